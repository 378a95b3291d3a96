"""Evaluation metrics avg@k, best@k, worst@k and maj@k, and when to evaluate."""

import bisect
import collections

import numpy as np

# The fields of `at_k`.
FIELDS = ("k", "correct", *(name + suffix for name in (
    "avg", "best", "worst", "maj") for suffix in ("", "_se")))


def best_at_k(correct_Q, *, stored: int, k: int):
  """The chance that k of the stored samples include a correct one.

  1 - C(stored - c, k) / C(stored, k) for each problem with c correct samples:
  the unbiased estimate, without replacement.
  """
  return 1.0 - worst_at_k(stored - np.asarray(correct_Q), stored=stored, k=k)


def worst_at_k(correct_Q, *, stored: int, k: int):
  """The chance that k of the stored samples are all correct.

  C(c, k) / C(stored, k) for each problem with c correct samples, computed as a
  product of ratios, which cannot overflow.
  """
  c = np.asarray(correct_Q, np.float64)[..., None]
  i = np.arange(k)
  return np.prod(np.clip(c - i, 0, None) / (stored - i), axis=-1)


def majority(votes, reward) -> float:
  """The mean reward of all samples with a most common vote; "" is no vote."""
  count = collections.Counter(vote for vote in votes if vote)
  if not count:
    return 0.0
  top = max(count.values())
  tied = {vote for vote, c in count.items() if c == top}
  return float(sum(r for vote, r in zip(votes, reward, strict=True)
                   if vote in tied) / (top * len(tied)))


def mean_and_se(value_Q) -> tuple[float, float]:
  """The mean over problems and its standard error; 0 for a single problem."""
  value = np.asarray(value_Q, np.float64)
  if len(value) < 2:
    return float(value.mean()), 0.0
  return float(value.mean()), float(value.std(ddof=1) / np.sqrt(len(value)))


def at_k(reward_Qxk, votes_Qxk) -> dict:
  """The evaluation fields of a record, from rewards in [0, 1].

  If all rewards are 0 or 1, avg, best and worst are the usual avg@k, pass@k and
  worst@k, and `correct` has counts. Otherwise best and worst are the highest
  and the lowest of the k rewards, and `correct` has their sum, a float.
  """
  reward = np.asarray(reward_Qxk, np.float64)
  k = reward.shape[1]
  total = reward.sum(axis=1)
  correct = total.astype(int) if np.isin(reward, (0.0, 1.0)).all() else total
  per_problem = {
      "avg": reward.mean(axis=1),
      "best": reward.max(axis=1),
      "worst": reward.min(axis=1),
      "maj": [majority(votes, r)
              for votes, r in zip(votes_Qxk, reward, strict=True)],
  }
  fields = {"k": k, "correct": correct.tolist()}
  for name, value_Q in per_problem.items():
    fields[name], fields[f"{name}_se"] = mean_and_se(value_Q)
  return fields


def due_rollouts(*, C: int, first: int, growth: float) -> tuple[int, ...]:
  """The rollouts at which evaluations are due: 0, ..., C.

  After an evaluation at C' rollouts the next is due at max(C' + first,
  growth * C'): every `first` rollouts for growth = 1, geometric later on for
  growth > 1. An evaluation takes place after the first step that has sampled so
  many, so runs with different n are measured at about the same C.
  """
  due, rollouts = {0, C}, first
  while rollouts <= C:
    due.add(rollouts)
    rollouts = max(rollouts + first, int(growth * rollouts))
  return tuple(sorted(due))


def is_due(due: tuple[int, ...], evaluated: int | None, rollouts: int) -> bool:
  """Whether one is due at `rollouts`; the last was at `evaluated`, if any."""
  latest = due[bisect.bisect_right(due, rollouts) - 1]
  return evaluated is None or evaluated < latest


def evaluations_since_best(avg_E: list[float]) -> int:
  """The number of evaluations after the best one; of ties, after the first."""
  return len(avg_E) - 1 - avg_E.index(max(avg_E))


def due_steps(due: tuple[int, ...], B: int) -> frozenset[int]:
  """The steps of B rollouts after which to evaluate."""
  return frozenset(-(-rollouts // B) for rollouts in due)
