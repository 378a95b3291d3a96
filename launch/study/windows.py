"""Means of runs in windows (C / 2, C], the best n, and differences.

The value of a window is the mean of all its evaluations or training rollouts.
The best n has an interval of bootstrap draws over seeds and problems; values
and differences have t intervals, which hold for two seeds, too.

A cell has the values [S, Q] of the runs of one arm and n. Axes besides those of
the package: W windows, N values of n, K cells; D, as an axis, bootstrap draws.
"""

import dataclasses

import numpy as np
from scipy import stats

from isojax.core import evaluate
from isojax.frontier import bootstrap
from launch.study.ledger import by_n, LedgerRun

# The longest delay of an evaluation, up to a step, as a share of the C at which
# it is due.
MAX_DELAY = 1 / 64
ALPHA = 0.05
# Of the correct ones of k samples.
METRICS = {"avg": lambda correct, k: correct / k,
           "best": lambda correct, k: evaluate.best_at_k(
               correct, stored=k, k=k)}


def measured(run: LedgerRun, metric: str, where_E=slice(None)) -> np.ndarray:
  """A metric of the chosen evaluations and each problem, [E, Q]."""
  k = run.head["k"]
  return np.stack([METRICS[metric](np.rint(value_Q * k).astype(int), k)
                   for value_Q in run.value_ExQ[where_E]])


def due(run: LedgerRun, C: float) -> np.ndarray:
  """Which evaluations in (C / 2, C] were not due at C / 2, bool [E]."""
  return (run.C_E > C / 2 * (1 + MAX_DELAY)) & (run.C_E <= C)


def training(run: LedgerRun, low: float, high: float, name: str) -> np.ndarray:
  """The mean of a training field over the rollouts in (low, high], [1].

  A ledger has the means of ranges of rollouts. A range that is cut by low or
  high counts with its share of rollouts. NaN: no such field, or no rollouts.
  """
  end_U = np.array([0, *(u["rollouts"] for u in run.updates)])
  high = min(high, end_U[-1])
  value_U = [u[name] for u in run.updates]
  if high <= low or None in value_U:
    return np.array([np.nan])
  sum_U = np.concatenate([[0], np.cumsum(np.diff(end_U) * value_U)])
  sum_low, sum_high = np.interp([low, high], end_U, sum_U)
  return np.array([(sum_high - sum_low) / (high - low)])


def window(run: LedgerRun, C: float, of: str = "avg") -> np.ndarray:
  """The mean in (C / 2, C]: of a metric for each problem, [Q], or of a training
  field, such as reward, [1]. NaN if the run does not reach the window."""
  if of not in METRICS:
    return training(run, C / 2, C, of)
  due_E = due(run, C)
  if not due_E.any():
    return np.full(run.value_ExQ.shape[1], np.nan)
  return measured(run, of, due_E).mean(0)


def cell(runs: list[LedgerRun], C: float, of: str = "avg") -> np.ndarray:
  """`window` of the runs that reach it, [S, Q]."""
  return np.array([value_Q for value_Q in (window(run, C, of) for run in runs)
                   if not np.isnan(value_Q).any()])


# ---- The best n, by bootstrap


def best_n(runs: list[LedgerRun], ends, of: str = "avg"
           ) -> tuple[dict[int, np.ndarray], list]:
  """The means of each n in windows, and the best n of each window.

  In a draw all n and windows have the same problems, and all windows the same
  seeds. S - 1 of S seeds are drawn, as by isojax.frontier.bootstrap.

  Returns:
    {n: means [W]}, NaN where no run reaches the window; (best n, low, high) of
    each window, with the 95 % interval of the draws.
  """
  value = {n: np.array([[window(run, end, of) for end in ends]
                        for run in members])  # [S, W, Q]
           for n, members in by_n(runs).items()}
  options = bootstrap.DEFAULT
  rng = np.random.default_rng(options.seed)
  Q = next(iter(value.values())).shape[2]
  problems_DxQ = bootstrap.weights(Q, Q, options.draws, rng) / Q
  mean_NxDxW = []  # draw 0 is the data
  for value_SxWxQ in value.values():
    S = len(value_SxWxQ)
    seeds_DxS = bootstrap.weights(S, max(S - 1, 1), options.draws, rng)
    value_SxDxW = np.einsum("dq,swq->sdw", problems_DxQ, value_SxWxQ)
    known_SxW = ~np.isnan(value_SxDxW[:, 0])
    weight_SxDxW = seeds_DxS.T[:, :, None] * known_SxW[:, None]
    # If no drawn seed reaches the window, all seeds that reach it count.
    weight_SxDxW = np.where(weight_SxDxW.sum(0) > 0, weight_SxDxW,
                            known_SxW[:, None])
    with np.errstate(invalid="ignore"):
      mean_NxDxW.append((np.nan_to_num(value_SxDxW) * weight_SxDxW).sum(0)
                        / weight_SxDxW.sum(0))
  # The last bits of sums depend on the machine; a tie must stay a tie.
  value_NxDxW = np.array(mean_NxDxW).round(9)
  best_DxW = np.array(list(value))[
      np.where(np.isnan(value_NxDxW), -np.inf, value_NxDxW).argmax(0)]
  low, high = np.quantile(best_DxW[1:], bootstrap.QUANTILES, axis=0,
                          method="nearest").tolist()
  return (dict(zip(value, value_NxDxW[:, 0], strict=True)),
          list(zip(best_DxW[0].tolist(), low, high, strict=True)))


def ends_of(runs: list[LedgerRun], C: float, count: int) -> list[float]:
  """The ends of those of `count` windows up to C that have each n evaluated."""
  return [end for end in (C / 2**i for i in range(count)[::-1]) if all(
      any(due(run, end).any() for run in members)
      for members in by_n(runs).values())]


# ---- Values and differences, by t


@dataclasses.dataclass(frozen=True)
class Effect:
  """A value whose error has a t distribution."""

  value: float
  se: float = np.nan  # NaN: not known
  df: float = np.nan  # degrees of freedom

  def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
    half = self.se * stats.t.ppf(1 - alpha / 2, self.df)
    return self.value - half, self.value + half

  @property
  def p(self) -> float:
    """The two-sided p-value of the hypothesis that the value is 0."""
    return float(2 * stats.t.sf(abs(self.value) / self.se, self.df))

  def sign(self, alpha: float = ALPHA) -> int:
    """1 or -1 if the interval excludes 0, else 0."""
    low, high = self.interval(alpha)
    return int(low > 0) - int(high < 0)


def seed_variance(cells: list[np.ndarray]) -> tuple[float, int]:
  """(variance of a seed's mean, pooled over cells [S, Q]; its df)."""
  df = sum(len(value_SxQ) - 1 for value_SxQ in cells)
  squares = 0.0
  for value_SxQ in cells:
    mean_S = value_SxQ.mean(1)
    deviation_S = mean_S - mean_S.mean()
    squares += deviation_S @ deviation_S
  return (float(squares / df) if df else np.nan), df


def _interaction(value_SxQ: np.ndarray) -> float:
  """The part of a cell mean's variance that both seeds and problems contain."""
  S, Q = value_SxQ.shape
  if min(S, Q) < 2:
    return 0.0
  residual_SxQ = (value_SxQ - value_SxQ.mean(1, keepdims=True)
                  - value_SxQ.mean(0) + value_SxQ.mean())
  return float((residual_SxQ**2).sum() / ((S - 1) * (Q - 1) * S * Q))


def sum_of(cells: list[np.ndarray], pooled=None) -> Effect:
  """The sum over cells of the means over seeds and problems.

  Args:
    cells: [S, Q] each, negated if the mean is to be subtracted. Seeds of two
      cells are independent, their problems the same.
    pooled: seed_variance of these and other cells; None: each cell has its own
      (Welch).

  Returns:
    An Effect. Its variance is the variance over seeds plus the variance over
    problems minus that of their interaction, which both contain; it is at least
    the larger of the two. Its degrees of freedom are Satterthwaite's.
  """
  variances = [pooled or seed_variance([cell]) for cell in cells]
  seed_K = np.array([variance / len(cell) for cell, (variance, _) in zip(
      cells, variances, strict=True)])
  df_K = np.array([df for _, df in variances])
  problem_Q = np.sum([cell.mean(0) for cell in cells], axis=0)
  Q, seed = len(problem_Q), seed_K.sum()
  problem = np.var(problem_Q, ddof=1) / Q if Q > 1 else 0.0
  variance = max(seed + problem - sum(map(_interaction, cells)), seed, problem)
  with np.errstate(divide="ignore", invalid="ignore"):
    seed_part = seed**2 / df_K[0] if pooled else (seed_K**2 / df_K).sum()
    df = (seed + problem)**2 / (seed_part + problem**2 / max(Q - 1, 1))
  return Effect(float(problem_Q.mean()), float(variance**0.5), float(df))


@dataclasses.dataclass(frozen=True)
class Term:
  """The mean of an arm over some n, in the window (C / 2, C]."""

  part: str
  n: tuple[int, ...]
  C: float
  arm: str = ""
  of: str = "avg"  # a metric or training field, see `window`
  seeds: tuple[int, ...] | None = None  # None: all
  problems: int | None = None  # number of validation problems; None: all


def contrast(L: dict, plus: list[dict], minus: list[dict] = (),
             value=lambda run, term: window(run, term.C, term.of)) -> Effect:
  """The sum of the terms `plus` minus that of `minus`; each has Term's fields.

  A run that two terms share counts once, with the sum of its weights. A run
  with NaN for a problem is left out.
  """
  cells = {}
  for sign, fields in [*((1, t) for t in plus), *((-1, t) for t in minus)]:
    term = Term(**fields)
    for n in term.n:
      runs = cells.setdefault((term.part, term.arm, n), {})
      for run in L[term.part].of_arm(term.arm, n):
        seed = run.head["seed"]
        if term.seeds is None or seed in term.seeds:
          runs[seed] = runs.setdefault(seed, 0.0) + sign / len(term.n) * value(
              run.with_problems(term.problems), term)
  values = [np.stack(list(runs.values())) for runs in cells.values()]
  return sum_of([v[~np.isnan(v).any(1)] for v in values])


def holm(p: list[float]) -> list[float]:
  """The alpha for each p-value of a family, by Holm's correction."""
  rank = np.argsort(np.argsort(p))  # 0: the smallest p
  return (ALPHA / (len(p) - rank)).tolist()
