"""Which rollouts of each group enter the update.

A selection is a pure function of rewards [Bp, n] that returns indices [Bp, m]
of the rollouts to keep in each group, without repetition; its keyword-only
arguments are constants of the config (docs/extending.md). Advantages and
weights are computed on the kept rollouts alone. Every sampled rollout is
charged to C, kept or not.
"""

import numpy as np


def everything(reward_Bpxn):
  """Returns the indices of all rollouts: m = n."""
  Bp, n = np.shape(reward_Bpxn)
  return np.tile(np.arange(n), (Bp, 1))


SELECTIONS = {
    "all": everything,
}
