"""From a study to a law with its uncertainty: the whole pipeline.

Draw 0 is the data itself, the others are bootstrap draws: problems are
resampled for all runs alike, so that the luck which the runs share cancels,
and seeds within a configuration.
"""

import dataclasses
import functools

import numpy as np

from isojax.errors import InputError
from isojax.frontier import curves as curves_lib
from isojax.frontier import envelope as envelope_lib
from isojax.frontier.curves import Curves
from isojax.frontier.curves import Points
from isojax.frontier.envelope import Envelope
from isojax.frontier.envelope import LawFits
from isojax.frontier.study import FEWEST, Run, Study
from isojax.frontier.words import compact, number, rate
from isojax.planner import laws
from isojax.planner.laws import FixedBatch
from isojax.planner.laws import Sigmoid
from isojax.format import many

QUANTILES = (0.025, 0.975)
TIE = 1e-9  # reward; curves that are closer are the same
UNSEEN = 0.05  # of the draws; in more the largest n must not lead at the end


@dataclasses.dataclass(frozen=True)
class Options:
  points: Points
  form: str  # key of curves.FORMS
  A_max: float  # bound on asymptotes
  b_min: float  # bound on the reward at C = 0
  draws: int  # bootstrap
  seed: int  # of the bootstrap
  grid: int  # compute values on the frontier, equal steps in log C
  rounds: int  # refinements of each fit, by 3

  def __post_init__(self):
    for name, holds, wanted in (
        ("form", self.form in curves_lib.FORMS, sorted(curves_lib.FORMS)),
        ("A_max", 0 < self.A_max <= 1, "0 < A_max <= 1"),
        ("b_min", 0 <= self.b_min < self.A_max, "0 <= b_min < A_max"),
        ("draws", self.draws == 0 or self.draws > 1, "0, or 2 and more"),
        ("seed", self.seed >= 0, "a whole number of at least 0"),
        ("grid", self.grid > 1, "at least 2 points"),
        ("rounds", self.rounds >= 0, "at least 0")):
      if not holds:
        raise InputError(f"{name}={getattr(self, name)}: expected {wanted}")


# The playbook states some of its steps; launch.verify.calibrate shows what each does.
DEFAULT = Options(
    points=Points(select="all", ema=0.0, min_C=0.0, bin_width=0.0),
    form="saturating_exponential", A_max=1.0, b_min=0.0, draws=1000, seed=0,
    grid=60, rounds=6)
PAPER = dataclasses.replace(
    DEFAULT, points=Points(select="records", ema=0.0, min_C=0.0,
                           bin_width=0.01))


def percentiles(value_D) -> tuple[float, float]:
  """The central 95% of the draws. For n of a law see laws.interval: wider."""
  low, high = np.quantile(value_D[1:], QUANTILES)
  return float(low), float(high)


def runs_of(study: Study, Bp: int, n: int) -> list[Run]:
  return [r for r in study.runs if (r.Bp, r.n) == (Bp, n)]


def resamples(study: Study, options: Options):
  """(problem weights [1 + D, Q], per configuration seed weights [1 + D, S])."""
  rng = np.random.default_rng(options.seed)
  D = options.draws
  Q = study.runs[0].value_ExQ.shape[1] if study.per_problem else 1
  problems = np.concatenate(
      [np.ones((1, Q)), rng.multinomial(Q, np.full(Q, 1 / Q), size=D)]) / Q
  seeds = []
  for cell in study.configurations:
    S = len(runs_of(study, *cell))
    # S - 1 of S: with few seeds, S of S would halve the variance (Rao and Wu,
    # JASA 83, 1988).
    seeds.append(np.concatenate([np.ones((1, S)), rng.multinomial(
        max(S - 1, 1), np.full(S, 1 / S), size=D)]))
  return problems, seeds


def _prepared(run: Run, points: Points):
  """(C_E, value_ExQ) after the moving average and the cut."""
  value = run.value_ExQ if run.value_ExQ is not None else run.reward_E[:, None]
  if points.ema:
    value = curves_lib.ema_matrix(len(value), points.ema) @ value
  keep = run.C_E >= points.min_C
  if keep.sum() < FEWEST:
    raise InputError(
        f"{run.where}: run {run.run_id} has {keep.sum()} evaluations from "
        f"min_C={points.min_C:g} on, a curve needs {FEWEST}; lower min_C or "
        "leave the run out")
  return run.C_E[keep], value[keep]


def fit_curves(study: Study, options: Options) -> list[Curves]:
  """1 + draws fits of every configuration, in the study's order.

  Without counts per problem, a draw is the fitted curve with normal noise of
  the residuals' size: what the runs share is then not known to be shared.
  """
  problems, seeds = resamples(study, options)
  rng = np.random.default_rng(options.seed + 1)
  points = options.points
  fits = []
  for cell, seeds_DxS in zip(study.configurations, seeds, strict=True):
    data = [_prepared(run, points) for run in runs_of(study, *cell)]
    x = np.concatenate([C for C, _ in data])
    weigh = lambda rewards: np.concatenate([
        (curves_lib.record_breaking(r, bin_width=points.bin_width)
         if points.select == "records" else np.ones_like(r)) * seeds_DxS[:, [i]]
        for i, r in enumerate(rewards)], 1)
    fit = lambda rewards, w: curves_lib.fit(
        x, np.concatenate(rewards, 1), w, form=options.form,
        A_max=options.A_max, b_min=options.b_min, rounds=options.rounds)
    if study.per_problem:
      rewards = [problems @ value.T for _, value in data]
    else:
      means = [value.mean(1)[None] for _, value in data]
      first = fit(means, weigh(means)[:1])
      free = max(len(x) - 1 - first.theta_DxP.shape[1] - 1, 1)
      sd = np.sqrt(((np.concatenate(means, 1) - first(x)) ** 2).sum() / free)
      rewards = [np.concatenate([mean, first(C) + sd * rng.normal(
          size=(options.draws, len(C)))]) for (C, _), mean in zip(data, means)]
    weights = weigh(rewards)
    firsts = np.split(weights[0] > 0, np.cumsum([len(C) for C, _ in data])[:-1])
    for run, used in zip(runs_of(study, *cell), firsts, strict=True):
      if used.sum() < FEWEST:
        raise InputError(
            f"{run.where}: run {run.run_id} breaks its record {used.sum()} "
            f"times in bins of {points.bin_width:g}, a curve needs {FEWEST} "
            "points: fit all points, take narrower bins, or leave the run out")
    fits.append(fit(rewards, weights))
  return fits


def frontier_grid(study: Study, points: int, *, min_C: float) -> np.ndarray:
  """Log-spaced C, from where two configurations were fitted to the end."""
  firsts = sorted(min(r.C_E[(r.C_E > 0) & (r.C_E >= min_C)].min()
                      for r in runs_of(study, *cell))
                  for cell in study.configurations)
  end = max(r.C_E.max() for r in study.runs)
  return np.geomspace(firsts[min(1, len(firsts) - 1)], end, points)


@dataclasses.dataclass(frozen=True)
class Fit:
  """What a study says; arrays have 1 + draws rows, the first is the data."""

  study: Study
  options: Options
  curves: list[Curves]
  frontier: Envelope
  log2_n_DxG: np.ndarray  # of the best configuration
  law: LawFits | None  # None: a single n
  law_DxG: np.ndarray | None  # log2 n* of the law on the frontier's grid
  noise_G: np.ndarray | None  # width of its interval were n* one of those tested
  tied: bool  # all curves are the same: there is no best n
  identified: bool
  reasons: tuple[str, ...]  # why it is not identified
  cautions: tuple[str, ...]  # what to keep in mind even so


def grid_step(study: Study) -> float:
  """The widest gap between neighbouring n tested, in log2."""
  n = np.log2(sorted({n for _, n in study.configurations}))
  return float(np.diff(n).max()) if len(n) > 1 else np.inf


def between_tested(log2_n_DxG, tested, *, seed: int) -> np.ndarray:
  """Returns the best n of each draw, moved within what the tested n can tell.

  If 32, 64 and 128 were tested and 64 leads, the best n lies somewhere between
  45 and 91. Each draw moves each tested n at random by up to half of the gap to
  the next one, so that the draws of the law contain this uncertainty. The first
  row, the data itself, is not moved.

  Args:
    log2_n_DxG: log2 of the n that leads.
    tested: log2 of the tested n, increasing; at least two.
    seed: of the random moves.
  """
  tested = np.asarray(tested)
  gap = np.diff(tested) / 2
  below, above = np.append(gap[0], gap), np.append(gap, gap[-1])
  u_DxN = np.random.default_rng(seed).uniform(
      -1, 1, (len(log2_n_DxG), len(tested)))
  u_DxN[0] = 0
  moved_DxN = tested + u_DxN * np.where(u_DxN < 0, below, above)
  return np.take_along_axis(
      moved_DxN, np.searchsorted(tested, log2_n_DxG), axis=1)


def analyse(study: Study, options: Options) -> Fit:
  """Curves, frontier, law and verdict of one study."""
  curves = fit_curves(study, options)
  C_G = frontier_grid(study, options.grid, min_C=options.points.min_C)
  frontier = envelope_lib.envelope(curves, C_G)
  log2_n = np.log2([n for _, n in study.configurations])
  tested = sorted(set(log2_n))
  log2_n_DxG = log2_n[frontier.best_DxG]
  law = law_DxG = noise_G = None
  weight = frontier.resolved_DxG.astype(float)
  # Nothing to fit in a draw whose frontier is hardly known: the data's stands.
  weight = np.where(weight.sum(1, keepdims=True) >= 5, weight, weight[:1])
  tied = len(tested) > 1 and bool(
      np.ptp([c(C_G)[0] for c in curves], axis=0).max() < TIE)
  if len(tested) > 1 and weight[0].sum() >= 5 and not tied:
    x_G = C_G if study.axis == "updates" else np.log10(C_G)
    width = x_G[-1] - x_G[0]
    steep = ((1 / width, 100 / width) if study.axis == "updates"
             else (0.5, envelope_lib.K_MAX))
    fit_law = functools.partial(
        envelope_lib.fit_law, x_G, w_DxG=weight, low=tested[0] - 1,
        high=tested[-1], k=steep, rounds=5)
    law = fit_law(between_tested(log2_n_DxG, tested, seed=options.seed + 2))
    law_DxG = law(x_G)
    if options.draws:
      drawn = fit_law(log2_n_DxG)(x_G)
      low, high = laws.interval(drawn[0], drawn[1:])
      noise_G = high - low
  fit = Fit(study, options, curves, frontier, log2_n_DxG, law, law_DxG, noise_G,
            tied, False, (), ())
  reasons, cautions = verdict(fit)
  return dataclasses.replace(fit, identified=not reasons, reasons=reasons,
                             cautions=cautions)


def symbol_of(study: Study) -> str:
  """The letter of the compute axis."""
  return "M" if study.axis == "updates" else "C"


def no_n_differs(study: Study, curves: list[Curves], C: float) -> str:
  """Why there is no best n, where all curves are the same at C."""
  values = np.concatenate([r.reward_E for r in study.runs])
  return "no n differs: " + (
      f"{study.metric} is {values[0]:.6g} throughout"
      if np.ptp(values) < TIE else
      f"every curve of {study.metric} is at {curves[0]([C])[0, 0]:.6g}")


def unsaturated(fit: Fit) -> str | None:
  """What speaks for an n above those tested, or None.

  The largest n leads at the end of the data, does so in more than 5% of the
  draws, or would in most of them (without draws: in the fit) at twice that C.
  """
  study, frontier = fit.study, fit.frontier
  at = np.flatnonzero(frontier.resolved_DxG[0])
  tested = sorted({n for _, n in study.configurations})
  if len(tested) < 2 or not len(at):
    return None
  largest = fit.log2_n_DxG[:, at[-1]] == np.log2(tested[-1])
  later = np.stack([c([2 * frontier.C_G[at[-1]]])[:, 0]
                    for c in fit.curves], 1).argmax(1)
  leads = np.array([n == tested[-1] for _, n in study.configurations])[later]
  often, ahead = largest[1:].mean() if len(largest) > 1 else 0.0, float(
      leads[1:].mean() if len(leads) > 1 else leads[0])
  symbol = symbol_of(study)
  if largest[0]:
    how = f"is best at the largest {symbol}"
  elif often > UNSEEN:
    how = f"is best at the largest {symbol} in {often:.0%} of the draws"
  elif ahead > 0.5:
    how = f"would be best at twice the largest {symbol}, as its curve goes on"
  else:
    return None
  return (f"saturation unseen: n = {tested[-1]}, the largest tested, {how}; "
          f"test n = {2 * tested[-1]} and beyond, or larger {symbol}")


def contradiction(fit: Fit) -> str | None:
  """Returns a caution if the law disagrees with the best measured n at the end.

  It disagrees if its n* there, or its ceiling, is nearer to another tested n
  than to the one that leads.
  """
  study, frontier = fit.study, fit.frontier
  end = np.flatnonzero(frontier.resolved_DxG[0])[-1]
  C, best = frontier.C_G[end], int(frontier.best_DxG[0, end])
  leader = study.configurations[best][1]
  tested = sorted({n for _, n in study.configurations})
  nearest = lambda log2_n: min(tested, key=lambda n: abs(np.log2(n) - log2_n))
  at_end = float(fit.law_DxG[0, end])
  ceiling = float(fit.law.b_D[0] + fit.law.L_D[0])
  others = [n for n in (nearest(at_end), nearest(ceiling)) if n != leader]
  if not others:
    return None
  reward, asymptote = max(
      (float(c([C])[0, 0]), float(c.b_D[0] + c.s_D[0]))
      for (_, n), c in zip(study.configurations, fit.curves) if n == others[-1])
  symbol = symbol_of(study)
  return (
      f"the law contradicts the measured curves: at {symbol} = {compact(C)}, "
      f"the end of the data, n = {leader} leads with "
      f"{rate(float(frontier.reward_DxG[0, end]))}, but the law gives n* = "
      f"{number(2**at_end)} there and a ceiling of {number(2**ceiling)}. The "
      f"curve of n = {others[-1]} is at {rate(reward)} there and tends to "
      f"{rate(asymptote)}. Do not use another n than {leader} without a test.")


def verdict(fit: Fit) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """(reasons why the law is not identified, cautions), in sentences."""
  study, frontier, law = fit.study, fit.frontier, fit.law
  symbol = symbol_of(study)
  tested = sorted({n for _, n in study.configurations})
  resolved = frontier.resolved_DxG[0]
  on = sorted({int(round(2.0**v)) for v in fit.log2_n_DxG[0][resolved]})
  reasons, cautions = [], []
  if fit.tied:
    return (no_n_differs(study, fit.curves, frontier.C_G[-1]),), ()
  if len(on) < 3:
    reasons.append(
        f"{many(len(on), 'value')} of n on the frontier "
        f"({', '.join(map(str, on))}) out of {len(tested)} tested; a law of "
        f"four parameters needs at least 3: test more n, or larger {symbol}")
  if unseen := unsaturated(fit):
    reasons.append(unseen)
  if law is not None:
    for name in law.at_bound:
      told = f"{symbol}0" if name == "midpoint" else name
      text = f"the fit of the law stands at the bound of its {told}"
      (cautions if name in ("k", "floor") else reasons).append(text)
    if fit.options.draws:
      wide = float(np.median(fit.noise_G[resolved]))
      if wide > grid_step(study):
        reasons.append(
            f"the 95% interval of n*({symbol}) spans a factor of "
            f"{2**wide:.3g} in the middle of the data, more than the step of "
            f"{2**grid_step(study):.3g} between tested n: more seeds, problems "
            "or evaluations")
      k_low, k_high = percentiles(law.k_D)
      if k_high > 3 * k_low:
        least, most = law.k_bounds
        cautions.append(
            f"k is weakly identified: {k_low:.3g} to {k_high:.3g}"
            + (f", where {least:.3g} and {most:.3g} are the bounds of the fit"
               if k_low < 1.001 * least or k_high > 0.999 * most else ""))
    if text := contradiction(fit):
      cautions.append(text)
  elif len(tested) > 1:
    reasons.append("the frontier is resolved at fewer than 5 compute values: "
                   f"runs must overlap in {symbol}")
  seeds = min(len(runs_of(study, *cell)) for cell in study.configurations)
  if seeds < 2:
    cautions.append(
        "one seed in some configurations: intervals hold the luck of the "
        "validation problems and samples, not that of the run; when runs "
        "differ by half a point they cover about 60% instead of 95% "
        "(launch.verify.calibrate)")
  if not study.per_problem:
    cautions.append(
        "no counts per problem: intervals come from the scatter around each "
        "curve, what the runs share is not known to be shared")
  early = frontier.early_DxG[0] & ~resolved
  ended = ~early & ~resolved
  told = [f"at {count} of them {why}" for count, why in (
      (early.sum(), f"a configuration whose first evaluation is at a larger "
       f"{symbol} would lead if its curve held there"),
      (ended.sum(), "the best n depends on a run that ended earlier")) if count]
  if told:
    cautions.append(
        f"{np.sum(~resolved)} of {len(resolved)} frontier points are not "
        f"resolved, so the law is not fitted to them: {'; '.join(told)}")
  sizes = {r.D for r in study.runs} - {None}
  if sizes and study.D is None:
    cautions.append("runs of several training sets, " + "; ".join(
        f"D = {D}: " + ", ".join(r.run_id for r in study.runs if r.D == D)
        for D in sorted(sizes)) + ": n may stand for D")
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
  return tuple(reasons), tuple(cautions)


def sigmoid_of(fit: Fit) -> Sigmoid | FixedBatch:
  """The law of the data itself, as the planner knows it."""
  law = fit.law
  L, k, x0, b = (float(v[0]) for v in (law.L_D, law.k_D, law.x0_D, law.b_D))
  if fit.study.axis == "updates":
    B, = {Bp * n for Bp, n in fit.study.configurations}
    return FixedBatch(B, L, k, x0, b)
  return Sigmoid(L, k, x0, b)
