"""Evaluation metrics avg@k, best@k, worst@k and maj@k, and when to evaluate."""

import bisect
import collections

import numpy as np

# Share of the answers of an evaluation without a verdict, above which it
# chooses no checkpoint and enters no fit: its means are over a part that the
# judge chose.
MAX_UNJUDGED = 0.02
MIN_EVALUATIONS = 3  # of a run, which a curve and so launch.fit need
# The fields of `at_k`.
FIELDS = ("k", "judged", "correct", *(name + suffix for name in (
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


def is_judged(record: dict) -> bool:
  """Whether enough answers of an evaluation have a verdict to rely on it."""
  answers = len(record["correct"]) * record["k"]
  return answers - record["judged"] <= MAX_UNJUDGED * answers


def at_k(reward_Qxk, votes_Qxk, judged_Qxk=None) -> dict:
  """The evaluation fields of a record, from rewards in [0, 1].

  If all rewards are 0 or 1, avg, best and worst are the usual avg@k, pass@k and
  worst@k, and `correct` has counts. Otherwise best and worst are the highest
  and the lowest of the k rewards, and `correct` has their sum, a float.

  An answer that is not judged (None: all are) is left out: a mean is over the
  problems with a judged answer, and of a problem over its judged answers.
  `correct` adds nothing for it, and its vote is "". ValueError: no answer is
  judged.
  """
  reward = np.asarray(reward_Qxk, np.float64)
  judged = (np.ones(reward.shape, bool) if judged_Qxk is None
            else np.asarray(judged_Qxk, bool))
  k = reward.shape[1]
  total = np.where(judged, reward, 0.0).sum(axis=1)
  correct = total.astype(int) if np.isin(reward, (0.0, 1.0)).all() else total
  count = judged.sum(axis=1)
  seen = count > 0
  if not seen.any():
    raise ValueError("no answer is judged")
  per_problem = {
      "avg": total[seen] / count[seen],
      "best": np.where(judged, reward, -np.inf).max(axis=1)[seen],
      "worst": np.where(judged, reward, np.inf).min(axis=1)[seen],
      "maj": [majority(votes, r) for votes, r, any_judged in zip(
          votes_Qxk, reward, seen, strict=True) if any_judged],
  }
  fields = {"k": k, "judged": int(count.sum()), "correct": correct.tolist()}
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
  """The number of evaluations after the best one; of ties, after the first.

  run/history.py:History counts it from record to record.
  """
  if not avg_E:
    return 0
  return len(avg_E) - 1 - avg_E.index(max(avg_E))


def due_steps(due: tuple[int, ...], B: int) -> frozenset[int]:
  """The steps of B rollouts after which to evaluate."""
  return frozenset(-(-rollouts // B) for rollouts in due)
