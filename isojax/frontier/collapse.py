"""Runs whose reward falls, and what a fit does with them.

An evaluation *falls* if it is after the best one of its run, and below it by
more than MIN_FALL_SE standard errors of their difference over problems. A run
falls if its last evaluation does; the fall begins after the last one that does
not. A run that recovers *dips*: it is fitted as it is, with a caution.
"""

import dataclasses
import math

import numpy as np

from isojax.core.evaluate import MIN_EVALUATIONS
from isojax.core.format import compact, rate
from isojax.frontier.study import MAX_NOISE_SDS, Study, StudyRun

MIN_FALL_SE = 3.0  # standard errors
# Standard errors; larger, because any of many evaluations may be low by chance.
MIN_DIP_SE = 5.0
MIN_FALL_REWARD = 0.05  # reward; for runs without values per problem
TREATMENTS = ("cut", "exclude", "keep")


@dataclasses.dataclass(frozen=True)
class Fall:
  """A run that falls, and how it is fitted."""

  run_id: str
  Bp: int
  n: int
  seed: int | None
  best: float
  best_C: float
  last: float
  last_C: float
  errors: float | None  # standard errors of the fall; None: not known
  done: str  # how it is fitted, in words
  fitted: int  # number of evaluations that are fitted, from the first on

  @property
  def what(self) -> str:
    """The fall in words, without how it is fitted."""
    size = "" if self.errors is None or np.isinf(self.errors) else (
        f" ({self.errors:.1f} standard errors)")
    return (f"{_name(self)} falls from {rate(self.best)} at "
            f"{compact(self.best_C)} to {rate(self.last)} at "
            f"{compact(self.last_C)}{size}")

  def __str__(self) -> str:
    return f"{self.what}: {self.done}"


def _name(run: StudyRun | Fall) -> str:
  seed = "" if run.seed is None else f", seed {run.seed}"
  return f"run {run.run_id} (Bp {run.Bp}, n {run.n}{seed})"


def errors_below(run: StudyRun, best_E) -> np.ndarray | None:
  """By how many standard errors each evaluation is below evaluation `best_E`.

  `best_E` is one index, or one for each evaluation. The standard errors are of
  the difference over problems. None without values per problem.
  """
  if run.value_ExQ is None or run.value_ExQ.shape[1] < 2:
    return None
  lost_ExQ = run.value_ExQ[best_E] - run.value_ExQ
  se_E = lost_ExQ.std(axis=1, ddof=1) / math.sqrt(lost_ExQ.shape[1])
  lost_E = lost_ExQ.mean(1)
  return np.divide(lost_E, se_E, where=se_E > 0,
                   out=np.where(lost_E > 0, np.inf, 0.0))


def _below(run: StudyRun, best_E, limit: float) -> np.ndarray:
  """Whether each evaluation is below evaluation `best_E` by more than a limit.

  `limit` is in standard errors. Without values per problem, it is the larger of
  MIN_FALL_REWARD and MAX_NOISE_SDS * run.noise: by chance, the best of many
  evaluations is 2 to 3 standard deviations above the mean. run.noise is used
  from 10 evaluations on, or if it is known from the number of samples.
  """
  errors_E = errors_below(run, best_E)
  if errors_E is not None:
    return errors_E > limit
  reliable = len(run.reward_E) >= 10 or run.samples is not None
  return run.reward_E[best_E] - run.reward_E > max(
      MIN_FALL_REWARD, MAX_NOISE_SDS * run.noise if reliable else 0)


def fall_start(run: StudyRun) -> int | None:
  """The index of the evaluation at which a run begins to fall, or None."""
  best = run.reward_E.argmax()
  fallen_E = (np.arange(len(run.reward_E)) > best) & _below(
      run, best, MIN_FALL_SE)
  if not fallen_E[-1]:
    return None
  return len(fallen_E) - int(fallen_E[::-1].argmin())  # the best does not fall


def dip(run: StudyRun) -> str | None:
  """Where a run that recovers was lowest, in words, or None."""
  if fall_start(run) is not None:
    return None
  best_E = np.array([run.reward_E[:e + 1].argmax()
                     for e in range(len(run.reward_E))])
  lost_E = (run.reward_E[best_E] - run.reward_E) * _below(
      run, best_E, MIN_DIP_SE)
  low = int(lost_E.argmax())
  if lost_E[low] == 0:
    return None
  best = best_E[low]
  return (f"{_name(run)} dips from {rate(run.reward_E[best])} at "
          f"{compact(run.C_E[best])} to {rate(run.reward_E[low])} at "
          f"{compact(run.C_E[low])} and recovers: a rising curve is fitted "
          "through the dip")


def treat(study: Study, treatment: str) -> tuple[Study, tuple[Fall, ...]]:
  """The study without what a treatment leaves out, and the falls.

  `treatment` is cut (leave out the evaluations from the fall on), exclude (the
  whole run) or keep. A run with fewer than MIN_EVALUATIONS evaluations left is
  left out; if no run is left, all stay as they are.
  """
  runs, falls = [], []
  for run in study.runs:
    start = fall_start(run)
    if start is None:
      runs.append(run)
      continue
    best, count = int(run.reward_E.argmax()), len(run.C_E)
    errors = errors_below(run, best)
    fitted = {"keep": count, "exclude": 0,
              "cut": start if start >= MIN_EVALUATIONS else 0}[treatment]
    done = ("it is fitted as it is, by a rising curve" if fitted == count else
            f"it is fitted up to {compact(run.C_E[start - 1])}" if fitted else
            "it is left out")
    falls.append(Fall(
        run.run_id, run.Bp, run.n, run.seed, float(run.reward_E[best]),
        float(run.C_E[best]), float(run.reward_E[-1]), float(run.C_E[-1]),
        None if errors is None else float(errors[-1]), done, fitted))
    if fitted:
      runs.append(run.select(slice(fitted)))
  if not runs:
    return study, tuple(dataclasses.replace(
        fall, fitted=len(run.C_E),
        done="it is fitted as it is, because no run would be left")
                        for fall, run in zip(falls, study.runs, strict=True))
  return dataclasses.replace(study, runs=tuple(runs)), tuple(falls)
