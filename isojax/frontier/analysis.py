"""Analyses a study: curves, frontier, law, verdict."""

import dataclasses
import functools

import numpy as np

from isojax.core import laws
from isojax.frontier import bootstrap, collapse, verdict
from isojax.frontier import envelope as envelope_lib
from isojax.frontier.bootstrap import Options
from isojax.frontier.curves import Curves
from isojax.frontier.study import Study
from isojax.frontier.verdict import Fit

OTHER_DRAWS = 200  # bootstrap draws of the second family of curves


def frontier_grid(study: Study, points: int, *, min_C: float) -> np.ndarray:
  """Log-spaced C, from where two configurations have data to the last data."""
  firsts = sorted(min(r.C_E[(r.C_E > 0) & (r.C_E >= min_C)].min()
                      for r in study.runs_of(*cell))
                  for cell in study.configurations)
  end = max(r.C_E.max() for r in study.runs)
  return np.geomspace(firsts[min(1, len(firsts) - 1)], end, points)


def between_tested(log2_n_DxG, tested, *, seed: int) -> np.ndarray:
  """The best log2 n of each draw, moved at random between the tested ones.

  If 32, 64 and 128 were tested and 64 is best, the true best n is between about
  45 and 91. Intervals contain this uncertainty, because each draw, but not the
  data, moves each tested n by up to half of the gap to the next one.
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


def _with_law(fit: Fit) -> Fit:
  """The fit with its law, if enough points are resolved."""
  study, C_G = fit.study, fit.frontier.C_G
  weight = fit.frontier.resolved_DxG.astype(float)
  if fit.tied or len(study.tested) < 2 or (
      weight[0].sum() < verdict.MIN_RESOLVED):
    return fit
  # A draw with too few resolved points uses the resolved points of the data.
  enough = weight.sum(1, keepdims=True) >= verdict.MIN_RESOLVED
  B, x_G = None, np.log10(C_G)
  if study.axis == "updates":
    (B,), x_G = {Bp * n for Bp, n in study.configurations}, C_G
  width = x_G[-1] - x_G[0]
  tested = np.log2(study.tested)
  fit_law = functools.partial(
      envelope_lib.fit_law, x_G, w_DxG=np.where(enough, weight, weight[:1]),
      # Playbook, section 3.3: from half the smallest n tested to the largest
      low=tested[0] - 1, high=tested[-1], rounds=5, B=B,
      k=((1 / width, 100 / width) if B  # line to step
         else (0.5, envelope_lib.MAX_LAW_K)))
  seed = fit.options.seed + 2  # bootstrap has used seed and seed + 1
  law = fit_law(between_tested(fit.log2_n_DxG, tested, seed=seed))
  noise_G = None
  if fit.options.draws:
    drawn = fit_law(fit.log2_n_DxG).log2_D(C_G)
    low, high = laws.interval(drawn[0], drawn[1:])
    noise_G = high - low
  return dataclasses.replace(fit, law=law, law_DxG=law.log2_D(C_G),
                             noise_G=noise_G)


def other_family(study: Study, options: Options) -> list[Curves]:
  """The curves in a second family, with at most OTHER_DRAWS draws.

  A saturating exponential ends its rise early, a Hill curve late. What both
  predict beyond the data does not depend on the form.
  """
  form = "saturating_exponential" if options.form == "hill" else "hill"
  return bootstrap.fit_curves(study, dataclasses.replace(
      options, form=form, draws=min(options.draws, OTHER_DRAWS)))


def analyse(study: Study, options: Options) -> Fit:
  """Curves, frontier, law and verdict of one study."""
  measured = study
  study, falls = collapse.treat(measured, options.collapse)
  curves = bootstrap.fit_curves(study, options)
  C_G = frontier_grid(study, options.grid, min_C=options.points.min_C)
  frontier = envelope_lib.envelope(curves, C_G)
  log2_n = np.log2([n for _, n in study.configurations])
  tied = len(study.tested) > 1 and bool(
      np.ptp([c(C_G)[0] for c in curves], axis=0).max() < laws.TIE)
  fit = _with_law(Fit(study, measured, options, curves, frontier,
                      log2_n[frontier.best_DxG], tied, falls=falls,
                      other=other_family(study, options)))
  reasons, cautions = verdict.verdict(fit)
  return dataclasses.replace(fit, identified=not reasons, reasons=reasons,
                             cautions=cautions)
