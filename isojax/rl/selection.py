"""Which rollouts of each group enter the update.

A selection is a pure function of rewards [Bp, n] and of uniform random numbers
[Bp, n], one for each rollout. It returns the indices [Bp, m] of the rollouts to
keep in each group, ascending and without repetition. Its keyword-only arguments
are m and constants of the config (docs/extending.md). Advantages and weights
are computed on the kept rollouts alone. Every sampled rollout is charged to C,
kept or not.

Only `random` uses the random numbers. The other selections are deterministic:
sorting is stable, so among equal rewards the rollout with the lower index comes
first. With m = n each selection returns all rollouts in their order.

PODS: arXiv 2504.13818; its code is YixuanEvenXu/pods @ 187f43b.
"""

import numpy as np

from isojax.errors import InputError


def everything(reward_Bpxn, uniform_Bpxn, *, m: int):
  """Returns the indices of all rollouts.

  Raises:
    InputError: m is not n.
  """
  del uniform_Bpxn
  Bp, n = np.shape(reward_Bpxn)
  if m != n:
    raise InputError(f"selection all keeps every rollout, but m={m} and n={n}: "
                     "choose another selection, or m = n")
  return np.tile(np.arange(n), (Bp, 1))


def descending(reward_Bpxn):
  """Returns the order of each group from the highest reward to the lowest."""
  return np.argsort(-np.asarray(reward_Bpxn, np.float64), axis=1, kind="stable")


def max_reward(reward_Bpxn, uniform_Bpxn, *, m: int):
  """Returns the m highest rewards of each group (a baseline of PODS)."""
  del uniform_Bpxn
  return np.sort(descending(reward_Bpxn)[:, :m], axis=1)


def integers(reward_Bpxn):
  """Returns integers that are proportional to the rewards, exactly.

  A float is an integer times a power of 2. Python's integers have no bound, so
  arithmetic with the result does not round. The factor is positive and the same
  for all rewards.
  """
  mantissa_Bpxn, exponent_Bpxn = np.frexp(np.asarray(reward_Bpxn, np.float64))
  shift_Bpxn = np.where(mantissa_Bpxn == 0, 0,
                        exponent_Bpxn - exponent_Bpxn.min(initial=0))
  return ((mantissa_Bpxn * 2.0**53).astype(np.int64).astype(object)
          << shift_Bpxn.astype(object))


def max_variance(reward_Bpxn, uniform_Bpxn, *, m: int):
  """Returns the m rollouts of each group with the largest reward variance.

  Some best subset holds the k highest and the m - k lowest rewards (PODS, Lemma
  3.1). Candidates are compared by m sum r^2 - (sum r)^2, which is m^2 times
  their variance, in integers: a tie is a tie. Sorting takes O(n log n), the
  rest O(n). The tie rule is that of PODS: the first best of k = m, 0, 1, ...,
  m - 1. Equal rewards are in the order of their indices, so the highest are
  taken from the lowest index upwards, the lowest from the highest downwards.
  """
  del uniform_Bpxn
  Bp, n = np.shape(reward_Bpxn)
  order_Bpxn = descending(reward_Bpxn)
  sorted_Bpxn = np.take_along_axis(integers(reward_Bpxn), order_Bpxn, axis=1)

  def candidates(x_Bpxn):
    """Returns the sums over the k highest and m - k lowest, k = 0 to m."""
    start_Bpx1 = np.zeros((Bp, 1), object)
    high, low = (np.concatenate(
        [start_Bpx1, np.cumsum(x[:, :m], axis=1)], axis=1)
        for x in (x_Bpxn, x_Bpxn[:, ::-1]))
    return high + low[:, ::-1]

  spread = m * candidates(sorted_Bpxn**2) - candidates(sorted_Bpxn)**2
  spread = np.roll(spread, 1, axis=1)  # k = m, 0, 1, ..., m - 1
  high_Bpx1 = (np.argmax(spread, axis=1)[:, None] - 1) % (m + 1)
  place_m = np.arange(m)[None]
  place_Bpxm = np.where(place_m < high_Bpx1, place_m, n - m + place_m)
  return np.sort(np.take_along_axis(order_Bpxn, place_Bpxm, axis=1), axis=1)


def percentile(reward_Bpxn, uniform_Bpxn, *, m: int):
  """Returns the rewards at percentiles 0.5/m, 1.5/m, ..., (m - 0.5)/m.

  Percentile q is the reward of rank floor(q n), counted from 0, in ascending
  order. PODS names the rule and does not define the rank.
  """
  del uniform_Bpxn
  n = np.shape(reward_Bpxn)[1]
  rank_m = (2 * np.arange(m) + 1) * n // (2 * m)
  order_Bpxn = np.argsort(np.asarray(reward_Bpxn), axis=1, kind="stable")
  return np.sort(order_Bpxn[:, rank_m], axis=1)


def random(reward_Bpxn, uniform_Bpxn, *, m: int):
  """Returns the m rollouts with the smallest random numbers of each group."""
  del reward_Bpxn
  order_Bpxn = np.argsort(np.asarray(uniform_Bpxn), axis=1, kind="stable")
  return np.sort(order_Bpxn[:, :m], axis=1)


SELECTIONS = {
    "all": everything,
    "max_variance": max_variance,
    "max_reward": max_reward,
    "percentile": percentile,
    "random": random,
}
