"""Studies: checked runs of one model on one problem set, one axis, one metric.

`io.selection` makes a study of the rows of log files.
"""

import collections
import dataclasses
import math

import numpy as np

FEWEST = 3  # evaluations of a run that a curve needs
UNKNOWN = "unknown"  # a set or model that the logs do not name
D_ROUNDING = 1.05  # D that differ by less are equal: logs round their epochs


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

  def at(self, index_E):
    """Returns the run with the evaluations of an index alone."""
    return dataclasses.replace(
        self, step_E=self.step_E[index_E], C_E=self.C_E[index_E],
        value_ExQ=None if self.value_ExQ is None else self.value_ExQ[index_E],
        reward_E=self.reward_E[index_E])


@dataclasses.dataclass(frozen=True)
class Study:
  """Runs of one model on one problem set, with one axis and one metric."""

  runs: tuple[Run, ...]
  axis: str  # updates, or a column of the records such as rollouts
  metric: str  # avg, best@k or worst@k
  split: str
  eval_set: str
  model: str  # UNKNOWN in logs of other trainers
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
