"""Which rollouts of each group enter the update.

A selection is a pure function of rewards, of a mask, and of uniform random
numbers, [P, N] each: problem, rollout. N is the largest group; the mask is
False for padding behind a smaller one. It returns the selected rollouts, bool
[P, N]: m of each group, or all of a group that has no more (`everything`: all).
Its keyword-only arguments are m and constants of the config (docs/api.md).
Weights are computed on the selected rollouts alone, and so are advantages
unless recipe.loss.normalise is "before". Every sampled rollout is charged to C,
selected or not.

Sorting is stable: among equal rewards the rollout with the lower index comes
first. Only `random` uses the random numbers.

PODS: arXiv 2504.13818; its code is YixuanEvenXu/pods @ 187f43b.
"""

import numpy as np


def everything(reward_PxN, mask_PxN, uniform_PxN, *, m: int):
  """All rollouts, whatever m is."""
  del reward_PxN, uniform_PxN, m
  return np.array(mask_PxN, bool)


def max_reward(reward_PxN, mask_PxN, uniform_PxN, *, m: int):
  """The m highest rewards of each group (a baseline of PODS)."""
  del uniform_PxN
  return _selected(_descending(reward_PxN, mask_PxN), np.arange(m)[None],
                   mask_PxN, m=m)


def max_variance(reward_PxN, mask_PxN, uniform_PxN, *, m: int):
  """The m rollouts of each group with the largest reward variance.

  Some best subset holds the k highest and the m - k lowest rewards (PODS, Lemma
  3.1). Candidates are compared by m sum r^2 - (sum r)^2, which is m^2 times
  their variance, in integers, so that rounding breaks no tie. Sorting takes
  O(n log n), the rest O(n). The tie rule is that of PODS: the first best of k =
  m, 0, 1, ..., m - 1. Of equal rewards, those with low indices count as higher.
  """
  del uniform_PxN
  m = min(m, np.shape(mask_PxN)[1])
  order_PxN = _descending(reward_PxN, mask_PxN)
  sorted_PxN = np.take_along_axis(
      _integers(np.where(mask_PxN, reward_PxN, 0.0)), order_PxN, axis=1)
  n_Px1, place_1xm = _count(mask_PxN), np.arange(m)[None]
  lowest_Pxm = np.maximum(n_Px1 - 1 - place_1xm, 0)

  def candidates(x_PxN):
    """Sums over the k highest and the m - k lowest, k = 0 to m: [P, m + 1]."""
    start_Px1 = np.zeros((len(x_PxN), 1), object)
    high, low = (np.concatenate([start_Px1, np.cumsum(x, axis=1)], axis=1)
                 for x in (x_PxN[:, :m],
                           np.take_along_axis(x_PxN, lowest_Pxm, axis=1)))
    return high + low[:, ::-1]

  spread = m * candidates(sorted_PxN**2) - candidates(sorted_PxN)**2
  spread = np.roll(spread, 1, axis=1)  # k = m, 0, 1, ..., m - 1
  k_Px1 = (np.argmax(spread, axis=1)[:, None] - 1) % (m + 1)
  place_Pxm = np.where(place_1xm < k_Px1, place_1xm, n_Px1 - m + place_1xm)
  return _selected(order_PxN, place_Pxm, mask_PxN, m=m)


def percentile(reward_PxN, mask_PxN, uniform_PxN, *, m: int):
  """The rewards at percentiles 0.5/m, 1.5/m, ..., (m - 0.5)/m.

  Percentile q is the reward of rank floor(q n), counted from 0, in ascending
  order. PODS names the rule and does not define the rank.
  """
  del uniform_PxN
  rank_Pxm = (2 * np.arange(m) + 1)[None] * _count(mask_PxN) // (2 * m)
  return _selected(_ascending(reward_PxN, mask_PxN), rank_Pxm, mask_PxN, m=m)


def random(reward_PxN, mask_PxN, uniform_PxN, *, m: int):
  """The m rollouts with the smallest random numbers of each group."""
  del reward_PxN
  return _selected(_ascending(uniform_PxN, mask_PxN), np.arange(m)[None],
                   mask_PxN, m=m)


def _ascending(x_PxN, mask_PxN):
  """The stable order of each group; padding is last."""
  return np.argsort(np.where(mask_PxN, np.asarray(x_PxN, np.float64), np.inf),
                    axis=1, kind="stable")


def _descending(x_PxN, mask_PxN):
  return _ascending(-np.asarray(x_PxN, np.float64), mask_PxN)


def _count(mask_PxN):
  return np.asarray(mask_PxN).sum(axis=1, keepdims=True)


def _selected(order_PxN, place_Pxm, mask_PxN, *, m: int):
  """The rollouts at m places of each group's order; all if there are <= m."""
  P, N = order_PxN.shape
  place_Pxm = np.broadcast_to(place_Pxm.clip(0, N - 1), (P, m))
  selected_PxN = np.zeros((P, N), bool)
  np.put_along_axis(
      selected_PxN, np.take_along_axis(order_PxN, place_Pxm, axis=1), True,
      axis=1)
  return np.where(_count(mask_PxN) <= m, mask_PxN, selected_PxN)


def _integers(reward_PxN):
  """Integers that are proportional to the rewards, exactly.

  A float is an integer times a power of 2, and Python's integers have no bound,
  so arithmetic with the result does not round.
  """
  mantissa, exponent = np.frexp(np.asarray(reward_PxN, np.float64))
  shift = np.where(mantissa == 0, 0, exponent - exponent.min(initial=0))
  return ((mantissa * 2.0**53).astype(np.int64).astype(object)
          << shift.astype(object))


SELECTIONS = {
    "all": everything,
    "max_variance": max_variance,
    "max_reward": max_reward,
    "percentile": percentile,
    "random": random,
}
