"""The result of an analysis, and whether its law is identified.

A law is identified, so that it may be used, if there are no reasons against it.
Cautions are remarks that do not prevent its use.
"""

import dataclasses
import typing

import numpy as np

from isojax.core import laws
from isojax.core.format import compact, many, number, rate
from isojax.core.laws import NStar
from isojax.frontier import collapse
from isojax.frontier.bootstrap import Options, percentiles
from isojax.frontier.collapse import Fall
from isojax.frontier.curves import Curves
from isojax.frontier.envelope import Envelope
from isojax.frontier.study import Study

MIN_RESOLVED = 5  # points of the frontier for a law
MAX_LIKELIHOOD_GAP = 5.0  # in log; beyond it a family of curves is ruled out
# Share of draws in which the largest n may lead at the end.
MAX_SHARE_OF_LARGEST = 0.05


@dataclasses.dataclass(frozen=True)
class Fit:
  """The analysis of a study; arrays have a row for the data, then the draws."""

  study: Study  # what is fitted
  measured: Study  # also the parts of runs that `options.collapse` leaves out
  options: Options
  curves: list[Curves]
  frontier: Envelope
  log2_n_DxG: np.ndarray  # of the best configuration
  tied: bool  # all curves are equal: there is no best n
  law: NStar | None = None  # None: one n, a tie, or too few resolved points
  law_DxG: np.ndarray | None = None  # log2 n* of the law on the frontier's grid
  noise_G: np.ndarray | None = None  # 95 % width of law_DxG by noise alone
  identified: bool = False
  reasons: tuple[str, ...] = ()  # why it is not identified
  cautions: tuple[str, ...] = ()
  falls: tuple[Fall, ...] = ()  # runs whose reward falls, and what was done
  # The curves of the same data in a second family, with fewer draws.
  other: list[Curves] = dataclasses.field(default_factory=list)


def no_n_differs(study: Study, curves: list[Curves], C: float) -> str:
  """Why there is no best n; all curves must be equal at C."""
  values = np.concatenate([r.reward_E for r in study.runs])
  return "no n differs: " + (
      f"{study.metric} is {values[0]:.6g} throughout"
      if np.ptp(values) < laws.TIE else
      f"every curve of {study.metric} is at {curves[0]([C])[0, 0]:.6g}")


def unsaturated(fit: Fit) -> str | None:
  """A reason if a larger n than those tested may be better, or None.

  The largest n tested leads at the largest resolved C, or would at twice that.
  """
  study, frontier = fit.study, fit.frontier
  resolved = np.flatnonzero(frontier.resolved_DxG[0])
  if len(study.tested) < 2 or not len(resolved):
    return None
  largest, symbol = study.tested[-1], study.symbol
  leads_D = fit.log2_n_DxG[:, resolved[-1]] == np.log2(largest)
  share = leads_D[1:].mean() if len(leads_D) > 1 else 0.0
  later = overtaking(fit)
  if leads_D[0]:
    how = f"is best at the largest {symbol}"
  elif share > MAX_SHARE_OF_LARGEST:
    how = f"is best at the largest {symbol} in {share:.0%} of the draws"
  elif later and later.n == largest and later.alone:
    how = later.text
  else:
    return None
  return (f"saturation unseen: n = {largest}, the largest tested, {how}; "
          f"test n = {2 * largest} and beyond, or larger {symbol}")


def families(fit: Fit) -> list[list[Curves]]:
  """The fits of the families of curves that the data do not rule out."""
  both = [curves for curves in (fit.curves, fit.other) if curves]
  errors = [sum(c.sse_D[0] for c in curves) + 1e-12 for curves in both]
  points = sum(c.points for c in fit.curves)
  # Up to a constant, normal noise has log likelihood -points / 2 log(error).
  return [curves for curves, error in zip(both, errors)
          if points / 2 * np.log(error / min(errors)) <= MAX_LIKELIHOOD_GAP]


class Overtaking(typing.NamedTuple):
  n: int  # the n above the leader that is best most often
  alone: bool  # whether it alone is best in more than half of the draws
  text: str  # a clause for a message


def overtaking(fit: Fit) -> Overtaking | None:
  """The larger n that is likely to be best at twice the largest resolved C.

  None if in no family of curves more than half of the draws have a best n above
  the leader.
  """
  g = np.flatnonzero(fit.frontier.resolved_DxG[0])[-1]
  C, leader = 2 * fit.frontier.C_G[g], round(2 ** fit.log2_n_DxG[0, g])
  ns = np.array([n for _, n in fit.study.configurations])
  for curves in families(fit):
    best_D = ns[np.stack([c([C])[:, 0] for c in curves], 1).argmax(1)]
    draws_D = best_D[1:] if len(best_D) > 1 else best_D
    above_D = draws_D[draws_D > leader]
    if len(above_D) > len(draws_D) / 2:
      candidates, times = np.unique(above_D, return_counts=True)
      return Overtaking(
          int(candidates[times.argmax()]), bool(2 * times.max() > len(draws_D)),
          f"would be best at twice the largest {fit.study.symbol} if its "
          f"{curves[0].form.replace('_', ' ')} curve holds")
  return None


def null_model(fit: Fit) -> dict | None:
  """How far rewards at equal C depend on n, and how far by noise alone.

  `spread` is the standard deviation over n of the reward at equal C, the root
  mean square over the C where every n has data. `noise` is the 95th percentile
  over the draws of the spread of their deviations from the data. None for one
  n, without draws, or if there is no such C.
  """
  C_G, ns = fit.frontier.C_G, [n for _, n in fit.study.configurations]
  reward_KxDxG = np.stack([c(C_G) for c in fit.curves])
  seen_KxG = np.array([(c.C_lo <= C_G) & (C_G <= c.C_hi * laws.C_TOLERANCE)
                       for c in fit.curves])
  rows = []  # of each n, the configuration with the best mean
  for n in fit.study.tested:
    cells = [i for i, cell_n in enumerate(ns) if cell_n == n]
    rows.append(max(cells, key=lambda i: reward_KxDxG[i, 0].mean()))
  common_G = seen_KxG[rows].all(0)
  if len(rows) < 2 or not common_G.any() or not fit.options.draws:
    return None
  reward_NxDxG = reward_KxDxG[rows][..., common_G]
  rms_sd = lambda x_NxDxG: np.sqrt(x_NxDxG.var(0, ddof=1).mean(-1))
  spread = float(rms_sd(reward_NxDxG[:, :1])[0])
  noise_D = rms_sd(reward_NxDxG[:, 1:] - reward_NxDxG[:, :1])
  return {"spread": spread, "noise": float(np.quantile(noise_D, 0.95))}


def contradiction(fit: Fit) -> str | None:
  """A caution if the n nearest to the law or its ceiling is not the leader."""
  study, frontier = fit.study, fit.frontier
  end = np.flatnonzero(frontier.resolved_DxG[0])[-1]
  C, best = frontier.C_G[end], int(frontier.best_DxG[0, end])
  leader = study.configurations[best][1]
  at_end = float(fit.law_DxG[0, end])
  ceiling = float(fit.law.b_D[0] + fit.law.L_D[0])
  nearest = [min(study.tested, key=lambda n: abs(np.log2(n) - log2_n))
             for log2_n in (at_end, ceiling)]
  others = [n for n in nearest if n != leader]
  if not others:
    return None
  reward, asymptote = max(
      (float(c([C])[0, 0]), float(c.b_D[0] + c.s_D[0]))
      for (_, n), c in zip(study.configurations, fit.curves) if n == others[-1])
  return (
      f"the law contradicts the measured curves: at {study.symbol} = "
      f"{compact(C)}, the end of the data, n = {leader} leads with "
      f"{rate(float(frontier.reward_DxG[0, end]))}, but the law gives n* = "
      f"{number(2**at_end)} there and a ceiling of {number(2**ceiling)}. The "
      f"curve of n = {others[-1]} is at {rate(reward)} there and tends to "
      f"{rate(asymptote)}. Do not use another n than {leader} without a test.")


def _law_reasons(fit: Fit) -> tuple[list[str], list[str]]:
  """(reasons, cautions) that concern a fitted law."""
  law, symbol = fit.law, fit.study.symbol
  reasons, cautions = [], []
  not_seen = {
      "ceiling": (reasons, "where n* stops growing"),
      "midpoint": (reasons, f"{symbol}0, the middle of the rise of n*"),
      "floor": (cautions, "where n* begins to grow"),
      "k": (cautions, "how steeply n* grows")}
  for name in law.at_bound:
    sentences, what = not_seen[name]
    sentences.append(f"the data do not show {what}")
  if fit.options.draws:
    width = float(np.median(fit.noise_G[fit.frontier.resolved_DxG[0]]))
    step = fit.study.grid_step
    if width > step:
      reasons.append(
          "the evaluations are too noisy: n* is known only to a factor of "
          f"{2**width:.3g}; the tested n are a factor of {2**step:.3g} apart; "
          "use more seeds, problems or evaluations")
    k_low, k_high = percentiles(law.k_D)
    if k_high > 3 * k_low:
      least, most = law.k_bounds
      cautions.append(
          f"k is weakly identified: {k_low:.3g} to {k_high:.3g}"
          + (f", where {least:.3g} and {most:.3g} are the bounds of the fit"
             if k_low < 1.001 * least or k_high > 0.999 * most else ""))
  if text := contradiction(fit):
    cautions.append(text)
  return reasons, cautions


def _study_cautions(fit: Fit) -> list[str]:
  study, cautions = fit.study, list(map(str, fit.falls))
  cautions += filter(None, map(collapse.dip, study.runs))
  if min(len(study.runs_of(*cell)) for cell in study.configurations) < 2:
    cautions.append(
        "one seed in some configurations: intervals include the noise of the "
        "validation problems and samples, not that of the run; if runs differ "
        "by half a point they contain the truth less often than 95% "
        "(docs/fitting.md)")
  if not study.per_problem:
    cautions.append(
        "no counts per problem: intervals come from the scatter around each "
        "curve and do not include noise that the runs share")
  resolved = fit.frontier.resolved_DxG[0]
  early = np.sum(fit.frontier.early_DxG[0] & ~resolved)
  ended = np.sum(~resolved) - early
  if early or ended:
    cautions.append(
        f"{early + ended} of {len(resolved)} frontier points are not resolved, "
        "so the law is not fitted to them: " + "; ".join(
            f"at {count} of them {why}" for count, why in (
                (early, "a configuration whose first evaluation is at a larger "
                 f"{study.symbol} would lead if its curve holds there"),
                (ended, "the best n depends on a run that ended earlier"))
            if count))
  sizes = {r.training_problems for r in study.runs} - {None}
  if sizes and study.training_problems is None:
    cautions.append("runs of several training sets, " + "; ".join(
        f"D = {size}: " + ", ".join(
            r.run_id for r in study.runs if r.training_problems == size)
        for size in sorted(sizes)) + ": D may cause differences between n")
  caps = {Bp: max(n for b, n in study.configurations if b == Bp)
          for Bp, _ in study.configurations}
  if study.axis != "updates" and len(set(caps.values())) > 1:
    cautions.append(
        "the largest n tested falls with Bp (" + ", ".join(
            f"Bp {Bp}: {n}" for Bp, n in sorted(caps.items())) + "): a cap on "
        "Bp * n can look like saturation")
  flat = [cell for cell, c in zip(study.configurations, fit.curves)
          if "flat" in c.at_bound]
  if flat:
    cautions.append("no rise was found at (Bp, n) = "
                    + ", ".join(map(str, flat)))
  return cautions


def verdict(fit: Fit) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """(reasons why the law is not identified, cautions), as sentences."""
  study, frontier = fit.study, fit.frontier
  symbol, resolved = study.symbol, frontier.resolved_DxG[0]
  if fit.tied:
    return (no_n_differs(study, fit.curves, frontier.C_G[-1]),), ()
  leading = sorted({int(round(2.0**v)) for v in fit.log2_n_DxG[0][resolved]})
  reasons, cautions = [], []
  if len(leading) < 3:
    reasons.append(
        f"{many(len(leading), 'value')} of n on the frontier "
        f"({', '.join(map(str, leading))}) out of {len(study.tested)} tested; "
        "a law of four parameters needs at least 3: test more n, or larger "
        f"{symbol}")
  if unseen := unsaturated(fit):
    reasons.append(unseen)
  null = null_model(fit)
  if null and null["spread"] <= null["noise"]:
    reasons.append(
        f"the reward at equal {symbol} does not depend on n beyond the noise: "
        f"its standard deviation over n is {rate(null['spread'])}, and noise "
        f"alone gives up to {rate(null['noise'])}")
  if fit.law is not None:
    more, cautions = _law_reasons(fit)
    reasons += more
  elif len(study.tested) > 1:
    reasons.append(f"the frontier is resolved at fewer than {MIN_RESOLVED} "
                   f"compute values: runs must overlap in {symbol}")
  return tuple(reasons), tuple(cautions + _study_cautions(fit))
