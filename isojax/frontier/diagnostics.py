"""Computes tables of a fit: switches, variants, sensitivity and others."""

import dataclasses

import numpy as np

from isojax.errors import InputError
from isojax.format import compact, number
from isojax.frontier import analysis
from isojax.frontier import bootstrap
from isojax.frontier import envelope
from isojax.frontier import verdict
from isojax.frontier.bootstrap import Options
from isojax.frontier.study import FEWEST, Study
from isojax.frontier.verdict import Fit
from isojax import laws


@dataclasses.dataclass(frozen=True)
class Variant:
  """The law with one option changed that the paper does not specify."""

  name: str
  log10_C0: float | None  # None: no law can be fitted
  ceiling: float | None
  n_at_end: float | None
  switches: tuple[tuple[int, int, float], ...]  # (from n, to n, C)


def switches(fit: Fit) -> tuple[tuple[int, int, float], ...]:
  """Returns (from n, to n, C) along the resolved frontier of the data."""
  at = np.flatnonzero(fit.frontier.resolved_DxG[0])
  C_G, best_G = fit.frontier.C_G, fit.frontier.best_DxG[0]
  n_of = lambda g: fit.study.configurations[best_G[g]][1]
  return tuple((n_of(i), n_of(j), envelope.crossing(
      fit.curves[best_G[i]], fit.curves[best_G[j]], C_G[i], C_G[j]))
               for i, j in zip(at, at[1:]) if n_of(i) != n_of(j))


def variants(study: Study, base: Options) -> tuple[Variant, ...]:
  """Returns the law with `base`, then with one option changed at a time."""
  point = lambda **kw: dataclasses.replace(
      base, points=dataclasses.replace(base.points, **kw))
  end = max(r.C_E.max() for r in study.runs)
  which = {"all": "all", "records": "record-breaking"}[base.points.select]
  choices = {
      f"reported ({which} points)": base,
      "all points": point(select="all"),
      "record-breaking points, bins of 0.01": point(select="records",
                                                     bin_width=0.01),
      "record-breaking points, bins of 0.002": point(select="records",
                                                      bin_width=0.002),
      "record-breaking points, no bins": point(select="records", bin_width=0.0),
      "moving average 0.8": point(ema=0.8),
      "C from 5% of the largest on": point(min_C=0.05 * end),
      "Hill curves": dataclasses.replace(base, form="hill"),
      "logistic curves": dataclasses.replace(base, form="logistic"),
      "grid of twice as many C": dataclasses.replace(base, grid=2 * base.grid),
  }
  out = []
  for name, options in choices.items():
    if out and options == base:
      continue
    try:
      fit = analysis.analyse(study, dataclasses.replace(options, draws=0))
    except InputError:  # too few points are left
      out.append(Variant(name, None, None, None, ()))
      continue
    law = None if fit.law is None else verdict.sigmoid_of(fit)
    x0 = None if law is None else float(fit.law.x0_D[0])
    out.append(Variant(
        name, x0, None if law is None else float(2 ** (law.b + law.L)),
        None if law is None else float(law(end)), switches(fit)))
  return tuple(out)


@dataclasses.dataclass(frozen=True)
class Extrapolation:
  """A fit of the data up to C1, compared with what was measured at C2."""

  C1: float
  C2: float
  n_predicted: float | None  # by the law; None: no law can be fitted
  n_seen: int  # on the frontier of all data
  reward_predicted: float  # by the continued curves
  reward_seen: float
  reward_interval: tuple[float, float]  # 95 %, of reward_seen


def cut(study: Study, C1: float) -> Study:
  """Returns the study up to C1, without runs of too few evaluations there."""
  runs = []
  for run in study.runs:
    keep = run.C_E <= C1
    if keep.sum() >= FEWEST:
      runs.append(run.at(keep))
  return dataclasses.replace(study, runs=tuple(runs))


def extrapolation(fit: Fit, C1: float) -> Extrapolation | None:
  """Returns a prediction from C <= C1 for the end of the data, if possible."""
  early_study = cut(fit.study, C1)
  resolved = np.flatnonzero(fit.frontier.resolved_DxG[0])
  if len({r.n for r in early_study.runs}) < 2 or not len(resolved):
    return None
  try:
    early = analysis.analyse(early_study,
                             dataclasses.replace(fit.options, draws=0))
  except InputError:  # too few points are left
    return None
  g = resolved[-1]
  C2 = float(fit.frontier.C_G[g])
  predicted = max(float(c([C2])[0, 0]) for c in early.curves)
  law = None if early.law is None else verdict.sigmoid_of(early)
  reward_D = fit.frontier.reward_DxG[:, g]
  return Extrapolation(
      C1=C1, C2=C2, n_predicted=None if law is None else float(law(C2)),
      n_seen=int(round(2.0 ** fit.log2_n_DxG[0, g])),
      reward_predicted=predicted, reward_seen=float(reward_D[0]),
      reward_interval=bootstrap.percentiles(reward_D))


def unforeseen(fit: Fit, found: Extrapolation) -> str | None:
  """Returns a caution if the law of the early data mispredicts the later n.

  The limit is half of the step between tested n.
  """
  if found.n_predicted is None or abs(np.log2(
      found.n_predicted / found.n_seen)) <= fit.study.grid_step / 2:
    return None
  symbol = fit.study.symbol
  return (f"the extrapolation check failed: the law of the data up to {symbol} "
          f"= {compact(found.C1)} gives n* = {number(found.n_predicted)} at "
          f"{compact(found.C2)}, where n = {found.n_seen} leads")


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """Reward over one of (Bp, n) with the other fixed, at the same C for all."""

  varied: str  # n or Bp
  held: int  # value of the other
  C: float  # the largest C that all of them reached
  values: tuple[int, ...]
  reward: tuple[float, ...]  # of the fitted curves at C
  low: tuple[float, ...]  # 95 %
  high: tuple[float, ...]
  best_seen: tuple[float, ...]  # largest single evaluation, as in the paper
  spread: float  # max - min of `reward`
  spread_interval: tuple[float, float]


def _together(fit: Fit, members: list[int]) -> tuple[float, list[int]]:
  """Returns the largest C that all curves reach, and those that begin by it."""
  C = min(fit.curves[i].C_hi for i in members)
  return C, [i for i in members if fit.curves[i].C_lo <= C]


def sensitivity(fit: Fit) -> tuple[Sensitivity, ...]:
  """Returns rewards over n at each Bp, and over Bp at each n (section 8.1)."""
  cells = fit.study.configurations
  out = []
  for varied, at in (("n", 1), ("Bp", 0)):
    for held in sorted({cell[1 - at] for cell in cells}):
      C, members = _together(fit, [
          i for i, cell in enumerate(cells) if cell[1 - at] == held])
      members.sort(key=lambda i: cells[i][at])
      if len(members) < 2:
        continue
      reward_DxV = np.stack([fit.curves[i]([C])[:, 0] for i in members], 1)
      spread_D = reward_DxV.max(1) - reward_DxV.min(1)
      low, high = np.quantile(reward_DxV[1:], bootstrap.QUANTILES, axis=0)
      out.append(Sensitivity(
          varied=varied, held=held, C=C,
          values=tuple(cells[i][at] for i in members),
          reward=tuple(reward_DxV[0].tolist()), low=tuple(low.tolist()),
          high=tuple(high.tolist()),
          best_seen=tuple(float(np.concatenate([
              r.reward_E[r.C_E <= C]
              for r in fit.study.runs_of(*cells[i])]).max())
                          for i in members),
          spread=float(spread_D[0]),
          spread_interval=bootstrap.percentiles(spread_D)))
  return tuple(out)


@dataclasses.dataclass(frozen=True)
class BestN:
  """The n whose curve is highest at the largest C that every n reached."""

  metric: str
  Bp: int
  C: float
  n: int | None  # None: all n are equal
  agreeing: float | None  # share of the bootstrap draws with the same n
  n_interval: tuple[float, float] | None  # 95 % of the draws
  why: str | None  # why there is no best n


def best_n(fit: Fit) -> tuple[BestN, ...]:
  """Returns one row per Bp with at least two n (section 8.2)."""
  cells = fit.study.configurations
  out = []
  for Bp in sorted({b for b, _ in cells}):
    C, members = _together(fit, [
        i for i, (b, _) in enumerate(cells) if b == Bp])
    if len(members) < 2:
      continue
    n = np.array([cells[i][1] for i in members])
    reward_DxN = np.stack([fit.curves[i]([C])[:, 0] for i in members], 1)
    if np.ptp(reward_DxN[0]) < laws.TIE:
      out.append(BestN(fit.study.metric, Bp, C, None, None, None,
                       verdict.no_n_differs(fit.study, fit.curves, C)))
      continue
    best_D = n[reward_DxN.argmax(1)]
    out.append(BestN(fit.study.metric, Bp, C, int(best_D[0]),
                     float(np.mean(best_D[1:] == best_D[0])),
                     bootstrap.percentiles(best_D), None))
  return tuple(out)
