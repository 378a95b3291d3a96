"""What the policies are in windows (C / 2, C], without a curve, with intervals.

A window is the mean of all evaluations, or of all training rollouts, in it.
Seeds and problems are resampled by isojax.frontier.bootstrap: all n and all
windows of a draw have the same problems, all windows of a draw the same seeds.
"""

import dataclasses

import numpy as np

from isojax import evaluate
from isojax.frontier import bootstrap
from isojax.frontier.study import Run, Study
from launch.study import ledger
from launch.study.ledger import LedgerRun

OPTIONS = bootstrap.DEFAULT
LATE = 1 / 64  # of C: an evaluation takes place up to a step after it is due
METRICS = {
    "avg": lambda c, k: c / k,
    "best": lambda c, k: evaluate.best_at_k(c, stored=k, k=k),
    "worst": lambda c, k: evaluate.worst_at_k(c, stored=k, k=k)}


def measured(run: LedgerRun, metric: str, at=slice(None)) -> np.ndarray:
  """A metric of each evaluation and problem, [E, Q]."""
  k = run.head["k"]
  return np.stack([METRICS[metric](np.rint(row * k).astype(int), k)
                   for row in run.value_ExQ[at]])


def _due(run: LedgerRun, low: float, high: float) -> np.ndarray:
  """Which evaluations were due in (low, high], [E]."""
  return (run.C_E > low * (1 + LATE)) & (run.C_E <= high)


def _validation(run: LedgerRun, low: float, high: float, metric: str):
  """The mean of each problem over the evaluations due in (low, high], [Q]."""
  at = _due(run, low, high)
  if not at.any():
    return np.full(run.value_ExQ.shape[1], np.nan)
  return measured(run, metric, at).mean(0)


def _training(run: LedgerRun, low: float, high: float, name: str):
  """The mean over the rollouts in (low, high], [1].

  A ledger keeps the means of about 40 parts of a run; a part that reaches over
  an end counts with its share of rollouts.
  """
  end_U = np.array([0, *(u["rollouts"] for u in run.updates)])
  high = min(high, end_U[-1])
  value_U = [u[name] for u in run.updates]
  if high <= low or None in value_U:  # a number that the run does not have
    return np.array([np.nan])
  total_U = np.concatenate([[0], np.cumsum(np.diff(end_U) * value_U)])
  first, last = np.interp([low, high], end_U, total_U)
  return np.array([(last - first) / (high - low)])


@dataclasses.dataclass(frozen=True)
class Table:
  """Means of each configuration in each window; draw 0 is the data."""

  cells: tuple[tuple[int, int], ...]  # (Bp, n)
  ends: tuple[float, ...]  # C of the windows
  value_KxDxW: np.ndarray  # NaN: no run of the configuration has got there

  @property
  def ns(self) -> list[int]:
    return [n for _, n in self.cells]

  def of(self, cell: tuple[int, int] | int) -> np.ndarray:
    """The draws of a configuration, or of an n, [D, W]."""
    keys = self.ns if isinstance(cell, int) else list(self.cells)
    return self.value_KxDxW[keys.index(cell)]

  def peak(self, n: int) -> int:
    """The window in which an n is best."""
    return int(self.of(n)[0].argmax())

  def estimates(self, window: int = 0) -> dict[int, tuple]:
    """The estimate of each n in one window."""
    return {n: estimate(self.of(n)[:, window]) for n in self.ns}

  def mean(self, ns, ends) -> np.ndarray:
    """The draws of the mean over some n and windows, [D]."""
    at = [self.ends.index(end) for end in ends]
    return np.mean([self.of(n)[:, at] for n in ns], axis=(0, 2))

  def best(self) -> np.ndarray:
    """The n with the highest value, [D, W]."""
    value = np.where(np.isnan(self.value_KxDxW), -np.inf, self.value_KxDxW)
    return np.array(self.ns)[value.argmax(0)]

  def lead(self) -> list[tuple[int, int, int]]:
    """The best n of each window, with the interval of the bootstrap draws."""
    best_DxW = self.best()
    low, high = np.quantile(best_DxW[1:], bootstrap.QUANTILES, axis=0,
                            method="nearest").tolist()
    return list(zip(best_DxW[0].tolist(), low, high, strict=True))

  def path(self) -> tuple[list[int], tuple[float, tuple[float, float]]]:
    """The best n of each window, and its trend.

    Returns:
      n of the data. The factor of n for ten times the C, of a straight line
      through log n over log C, with its 95 % interval.
    """
    best_DxW = self.best()
    slope_D = np.polyfit(np.log10(self.ends), np.log10(best_DxW.T), 1)[0]
    return best_DxW[0].tolist(), estimate(10.0 ** slope_D)


def ends_of(runs: list[LedgerRun], C: float, count: int) -> list[float]:
  """The ends of `count` windows up to C that all have evaluations of each n."""
  ends = [C / 2**i for i in range(count)][::-1]
  for end in list(ends):
    ns = {run.head["n"] for run in runs if _due(run, end / 2, end).any()}
    if ns < {run.head["n"] for run in runs}:
      ends.remove(end)
  return ends


def last(run: LedgerRun, C: float, metric: str = "avg") -> np.ndarray:
  """The last evaluation up to C, of each problem, [Q]."""
  at = np.flatnonzero(run.C_E <= C)[-1]
  return measured(run, metric, [at])[0]


def table(runs: list[LedgerRun], ends, *, of: str = "avg",
          width: float = 2.0, options=OPTIONS) -> Table:
  """Means in the windows (C / width, C] of these C.

  Args:
    runs: of one arm of each (Bp, n).
    of: a key of METRICS on the validation problems; last, for the avg of the
      last evaluation up to C; or a mean of the training, such as reward.
  """
  def values(run: LedgerRun) -> np.ndarray:
    rows = []
    for end in ends:
      if of == "last" or of.endswith(":last"):
        rows.append(last(run, end, of.partition(":")[0] if ":" in of else "avg")
                    if run.has_spent(end) else
                    np.full(run.value_ExQ.shape[1], np.nan))
      elif of in METRICS:
        rows.append(_validation(run, end / width, end, of))
      else:
        rows.append(_training(run, end / width, end, of))
    return np.array(rows)

  study = Study(runs=tuple(Run(
      run_id=run.head["run_id"], seed=run.head["seed"], Bp=run.head["Bp"],
      n=run.head["n"], step_E=np.arange(len(ends)), C_E=np.array(ends, float),
      value_ExQ=value, reward_E=value.mean(1), D=run.head["D"],
      where=run.head["run_id"]) for run in runs for value in [values(run)]),
      axis="rollouts", metric=of, split="", eval_set="", model="", k=None,
      per_problem=True)
  problems_DxQ, seeds = bootstrap.resamples(study, options)
  drawn = []
  for cell, seeds_DxS in zip(study.configurations, seeds, strict=True):
    value_SxDxW = np.stack([problems_DxQ @ run.value_ExQ.T
                            for run in study.runs_of(*cell)])
    known_SxW = ~np.isnan(value_SxDxW[:, 0])
    weight_SxDxW = seeds_DxS.T[:, :, None] * known_SxW[:, None]
    # A draw without any of the seeds that have got there has all of them.
    weight_SxDxW = np.where(weight_SxDxW.sum(0) > 0, weight_SxDxW,
                            known_SxW[:, None])
    with np.errstate(invalid="ignore"):
      drawn.append((np.nan_to_num(value_SxDxW) * weight_SxDxW).sum(0)
                   / weight_SxDxW.sum(0))
  # Sums of other machines differ in the last bits; a tie must stay one.
  return Table(study.configurations, tuple(ends), np.array(drawn).round(9))


def draws(runs: list[LedgerRun], C: float, of: str = "avg") -> np.ndarray:
  """The draws in (C / 2, C] of runs of one configuration, [D]; as of `table`.
  """
  return table(runs, [C], of=of).value_KxDxW[0, :, 0]


def estimate(value_D) -> tuple[float, tuple[float, float]]:
  """The value of the data and its 95 % interval."""
  return float(value_D[0]), bootstrap.percentiles(value_D)


def resolved(value: tuple[float, tuple[float, float]]) -> bool:
  """Whether the interval of a difference excludes 0."""
  low, high = value[1]
  return low > 0 or high < 0


def pooled(*ledgers: ledger.Ledger) -> list[LedgerRun]:
  """The grids of n of several parts; a run of a later part that an earlier one
  has, too, is left out."""
  runs = {}
  for one in ledgers:
    for run in one.of_arm():
      runs.setdefault((run.head["Bp"], run.head["n"], run.head["seed"]), run)
  return list(runs.values())


def crossing(first_W: np.ndarray, second_W: np.ndarray, ends) -> float | None:
  """The smallest of the C from which on the first is not below the second."""
  ahead = np.asarray(first_W) >= np.asarray(second_W)
  behind = np.flatnonzero(~ahead)
  start = behind[-1] + 1 if len(behind) else 0
  return float(ends[start]) if start < len(ends) else None
