"""Studies: checked runs of one model on one problem set, one axis, one metric.

`io.selection` makes a study of the rows of log files.
"""

import collections
import dataclasses
import math

import numpy as np

from isojax.format import compact

FEWEST = 3  # evaluations of a run that a curve needs
D_ROUNDING = 1.05  # D that differ by less are equal: logs round their epochs
FALL = 0.05  # reward; smallest fall that is reported without per-problem values


@dataclasses.dataclass(frozen=True)
class Run:
  """E evaluations of one run by one metric on Q problems, in order of C."""

  run_id: str
  seed: int | None
  Bp: int
  n: int
  step_E: np.ndarray  # updates
  C_E: np.ndarray  # compute on the study's axis, increasing
  value_ExQ: np.ndarray | None  # the metric of each problem, if known
  reward_E: np.ndarray  # the mean of the metric over problems
  D: int | None  # training problems, if known
  where: str  # path of the file


@dataclasses.dataclass(frozen=True)
class Study:
  """Runs of one model on one problem set, with one axis and one metric."""

  runs: tuple[Run, ...]
  axis: str  # updates, or a column of the records such as rollouts
  metric: str  # avg, best@k or worst@k
  split: str
  eval_set: str
  model: str
  k: int | None  # samples of each validation problem, if known
  per_problem: bool  # every run has value_ExQ, of the same problems

  @property
  def configurations(self) -> tuple[tuple[int, int], ...]:
    """The tested (Bp, n), sorted by n, then Bp."""
    return tuple(sorted({(r.Bp, r.n) for r in self.runs},
                        key=lambda c: (c[1], c[0])))

  @property
  def tested(self) -> tuple[int, ...]:
    """The tested n, increasing."""
    return tuple(sorted({r.n for r in self.runs}))

  @property
  def grid_step(self) -> float:
    """The widest gap between neighbouring tested n, in log2."""
    return float(np.diff(np.log2(self.tested)).max(initial=0)) or math.inf

  @property
  def symbol(self) -> str:
    """The letter of the compute axis."""
    return "M" if self.axis == "updates" else "C"

  def runs_of(self, Bp: int, n: int) -> list[Run]:
    """Returns the runs of one configuration."""
    return [r for r in self.runs if (r.Bp, r.n) == (Bp, n)]

  @property
  def D(self) -> int | None:
    """Number of training problems, if known and the same for all runs."""
    sizes = collections.Counter(r.D for r in self.runs if r.D is not None)
    if not sizes or max(sizes) > D_ROUNDING * min(sizes):
      return None
    return sizes.most_common(1)[0][0]


def fall(run: Run, metric: str) -> str | None:
  """Returns a warning if the run ends well below its best evaluation.

  The best of the last fifth is compared with the best of all: by the standard
  error over problems if their values are known, else by the scatter.
  """
  tail = max(len(run.reward_E) // 5, 1)
  best = int(run.reward_E.argmax())
  late = len(run.reward_E) - tail + int(run.reward_E[-tail:].argmax())
  if run.value_ExQ is not None and run.value_ExQ.shape[1] > 1:
    lost_Q = run.value_ExQ[best] - run.value_ExQ[late]
    noise = max(0.02, 4 * lost_Q.std(ddof=1) / math.sqrt(len(lost_Q)))
  elif len(run.reward_E) < 10:
    noise = FALL
  else:  # sd of an evaluation: the median |difference| of neighbours / 0.954
    noise = max(FALL, 3 * float(np.median(abs(np.diff(run.reward_E)))) / 0.954)
  if run.reward_E[best] - run.reward_E[late] <= noise:
    return None
  return (f"warning: run {run.run_id} falls: its best {metric} is "
          f"{run.reward_E[best]:.3f}, at {compact(run.C_E[best])}, its last "
          f"{run.reward_E[-1]:.3f}, at {compact(run.C_E[-1])}. Its curve is "
          "fitted as a rising one; if training broke down, leave the run out "
          f"({run.where})")
