"""Bootstrap fits of the reward curves of a study.

Draw 0 is the data; the others resample problems, and the seeds within each
configuration. All runs of a draw use the same problems, so that noise which
runs share cancels in differences.
"""

import dataclasses
import math

import numpy as np
from scipy import stats

from isojax.core.evaluate import MIN_EVALUATIONS
from isojax.errors import InputError
from isojax.frontier import collapse
from isojax.frontier import curves as curves_lib
from isojax.frontier.curves import Curves, PointRule
from isojax.frontier.study import Study, StudyRun

QUANTILES = (0.025, 0.975)


@dataclasses.dataclass(frozen=True)
class Options:
  """How a study is analysed."""

  points: PointRule
  form: str  # key of curves.FORMS
  A_max: float  # bound on asymptotes
  b_min: float  # bound on the reward at C = 0
  draws: int  # bootstrap draws; 0, or at least 2
  seed: int  # of the bootstrap
  grid: int  # compute values on the frontier, equally spaced in log C
  rounds: int  # refinements of each fit, by a factor of 3
  collapse: str  # what is fitted of runs that fall: one of collapse.TREATMENTS
  margin: float  # reward; n within it of the best n are as good

  def __post_init__(self):
    points = self.points
    for name, value, valid, expected in (
        ("form", self.form, self.form in curves_lib.FORMS,
         sorted(curves_lib.FORMS)),
        ("points", points.select, points.select in ("all", "records"),
         "all or records"),
        ("ema", points.ema, 0 <= points.ema < 1, "0 <= ema < 1"),
        ("min_C", points.min_C, 0 <= points.min_C < math.inf,
         "a number of at least 0"),
        ("bin_width", points.bin_width, 0 <= points.bin_width <= 1,
         "a reward from 0 to 1"),
        ("collapse", self.collapse, self.collapse in collapse.TREATMENTS,
         f"one of {', '.join(collapse.TREATMENTS)}"),
        ("margin", self.margin, 0 <= self.margin <= 1, "a reward from 0 to 1")):
      if not valid:  # also for nan
        raise InputError(f"{name}={value}: expected {expected}")


# The paper leaves some steps open: docs/fitting.md compares choices.
DEFAULT = Options(
    points=PointRule(select="all", ema=0.0, min_C=0.0, bin_width=0.0),
    form="saturating_exponential", A_max=1.0, b_min=0.0, draws=1000, seed=0,
    grid=60, rounds=6, collapse="cut", margin=0.01)


def percentiles(value_D) -> tuple[float, float]:
  """The central 95 % of the draws, value_D[1:]; laws.interval is wider."""
  low, high = np.quantile(value_D[1:], QUANTILES)
  return float(low), float(high)


def welch(one, other) -> tuple[float, tuple[float, float] | None]:
  """The difference of two means with its 95 % interval, Welch's t.

  None for the interval if a sample has one value.
  """
  one, other = np.asarray(one, float), np.asarray(other, float)
  difference = float(one.mean() - other.mean())
  if min(len(one), len(other)) < 2:
    return difference, None
  variances = np.array([x.var(ddof=1) / len(x) for x in (one, other)])
  freedom = variances.sum() ** 2 / max(
      sum(variances ** 2 / [len(one) - 1, len(other) - 1]), 1e-300)
  half = float(np.sqrt(variances.sum()) * stats.t.ppf(
      QUANTILES[1], max(freedom, 1.0)))
  return difference, (difference - half, difference + half)


def weights(count: int, taken: int, draws: int, rng) -> np.ndarray:
  """[1 + draws, count]: ones for the data, then how often each was drawn.

  A draw takes `taken` of `count` things, with replacement.
  """
  return np.concatenate([np.ones((1, count)), rng.multinomial(
      taken, np.full(count, 1 / count), size=draws)])


def resamples(study: Study, options: Options):
  """Problem weights [1 + D, Q] and, per configuration, seed weights [1 + D, S].

  S - 1 of S seeds are drawn: S of S would have (S - 1) / S of the variance (Rao
  and Wu, JASA 83, 1988).
  """
  rng = np.random.default_rng(options.seed)
  Q = study.runs[0].value_ExQ.shape[1] if study.per_problem else 1
  problems = weights(Q, Q, options.draws, rng) / Q
  counts = [len(study.runs_of(*cell)) for cell in study.configurations]
  return problems, [weights(S, max(S - 1, 1), options.draws, rng)
                    for S in counts]


def _prepare(run: StudyRun, points: PointRule):
  """(C_E, value_ExQ) after the moving average and the cut at min_C."""
  value = run.reward_E[:, None]
  if run.value_ExQ is not None:
    # Answers without a verdict lower the mean, but not reward_E.
    mean_E = run.value_ExQ.mean(1)
    above_E = (run.reward_E > mean_E) & ~np.isclose(run.reward_E, mean_E)
    scale_E = np.divide(run.reward_E, mean_E, out=np.ones_like(mean_E),
                        where=above_E & (mean_E > 0))
    value = run.value_ExQ * scale_E[:, None]
  if points.ema:
    value = curves_lib.ema_matrix(len(value), points.ema) @ value
  keep = run.C_E >= points.min_C
  if keep.sum() < MIN_EVALUATIONS:
    raise InputError(
        f"{run.where}: run {run.run_id} has {keep.sum()} evaluations from "
        f"min_C={points.min_C:g} on, a curve needs {MIN_EVALUATIONS}; lower "
        "min_C or leave the run out")
  return run.C_E[keep], value[keep]


def _fit_configuration(study: Study, cell, seeds_DxS, problems_DxQ,
                       options: Options, rng) -> Curves:
  """1 + draws fits of one configuration (Bp, n)."""
  points, runs = options.points, study.runs_of(*cell)
  data = [_prepare(run, points) for run in runs]
  x = np.concatenate([C for C, _ in data])

  def weigh(rewards):  # of each run: selected points, times draws of its seed
    return np.concatenate([
        (curves_lib.record_breaking(r, bin_width=points.bin_width)
         if points.select == "records" else np.ones_like(r)) * seeds_DxS[:, [i]]
        for i, r in enumerate(rewards)], 1)

  def fit(rewards, w_DxE):
    return curves_lib.fit(
        x, np.concatenate(rewards, 1), w_DxE, form=options.form,
        A_max=options.A_max, b_min=options.b_min, rounds=options.rounds)

  if study.per_problem:
    rewards = [problems_DxQ @ value.T for _, value in data]
  else:
    means = [value.mean(1)[None] for _, value in data]
    curve = fit(means, weigh(means)[:1])
    # All points, less b, s and theta.
    freedom = max(len(x) - 2 - curve.theta_DxP.shape[1], 1)
    sd = np.sqrt(((np.concatenate(means, 1) - curve(x)) ** 2).sum() / freedom)
    rewards = [np.concatenate([mean, curve(C) + sd * rng.normal(
        size=(options.draws, len(C)))]) for (C, _), mean in zip(data, means)]
  w_DxE = weigh(rewards)
  used_R = np.split(w_DxE[0] > 0, np.cumsum([len(C) for C, _ in data])[:-1])
  for run, used in zip(runs, used_R, strict=True):
    if used.sum() < MIN_EVALUATIONS:
      raise InputError(
          f"{run.where}: run {run.run_id} breaks its record {used.sum()} "
          f"times in bins of {points.bin_width:g}, a curve needs "
          f"{MIN_EVALUATIONS} points; fit all points, "
          + ("use narrower bins, " if points.bin_width else "")
          + "or leave the run out")
  return fit(rewards, w_DxE)


def fit_curves(study: Study, options: Options) -> list[Curves]:
  """1 + draws fits of every configuration, in the study's order.

  Without values per problem, a draw is the fitted curve plus normal noise of
  the size of the residuals, so intervals leave out noise that runs share.
  """
  problems, seeds = resamples(study, options)
  rng = np.random.default_rng(options.seed + 1)
  return [_fit_configuration(study, cell, seeds_DxS, problems, options, rng)
          for cell, seeds_DxS in zip(study.configurations, seeds, strict=True)]
