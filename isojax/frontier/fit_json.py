"""fit.json: every number of a fit that planner, figures and report use."""

import collections
import dataclasses
import math

import numpy as np

from isojax.core import identity, laws
from isojax.core.format import many
from isojax.errors import InputError
from isojax.frontier import (
  analysis,
  bootstrap,
  diagnostics,
  envelope,
  interference,
  proposal,
  scalerl,
  verdict,
)
from isojax.frontier.study import from_rows, Selection, Study
from isojax.frontier.verdict import Fit
from isojax.logs.fields import LogRow
from isojax.logs.formats import base

CURVE_END = 2.0  # largest C of a tabulated curve over that of the data


def _round(value):
  """The value for JSON: floats have six digits, and are null if not finite."""
  if isinstance(value, dict):
    return {k: _round(v) for k, v in value.items()}
  if isinstance(value, (list, tuple, np.ndarray)):
    return list(map(_round, value))
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, float):
    return float(f"{value:.6g}") if math.isfinite(value) else None
  return value


def _band(value_DxG):
  """The central 95 % of the draws at each point."""
  low, high = np.quantile(value_DxG[1:], bootstrap.QUANTILES, axis=0)
  return {"low": low, "high": high}


def study_fields(fit: Fit) -> dict:
  """What was run; `fitted` counts the first evaluations of a run in the fit."""
  study = fit.study
  Bps = sorted({Bp for Bp, _ in study.configurations})
  key = lambda run: (run.run_id, run.Bp, run.n, run.seed)
  fitted = {key(fall): fall.fitted for fall in fit.falls}
  return {
      "axis": study.axis, "metric": study.metric, "split": study.split,
      "eval_set": study.eval_set, "model": study.model,
      "D": study.training_problems, "k": study.k,
      "per_problem": study.per_problem,
      "regime": ("fixed_B" if study.axis == "updates"
                 else "fixed_Bp" if len(Bps) == 1 else "joint"),
      "Bp": Bps, "n": list(study.tested),
      "runs": [{"run_id": r.run_id, "seed": r.seed, "Bp": r.Bp, "n": r.n,
                "where": r.where, "C": r.C_E, "reward": r.reward_E,
                "fitted": fitted.get(key(r), len(r.C_E))}
               for r in fit.measured.runs]}


def curve_fields(fit: Fit) -> list[dict]:
  """One entry per configuration, tabulated on a common grid of C."""
  end = max(fit.frontier.C_G[-1], *(run.C_E[-1] for run in fit.measured.runs))
  C_G = np.geomspace(fit.frontier.C_G[0], CURVE_END * end, 80)
  rows = []
  for (Bp, n), curve in zip(fit.study.configurations, fit.curves, strict=True):
    reward = curve(C_G)
    rows.append({
        "Bp": Bp, "n": n, "form": curve.form, "A": curve.b_D[0] + curve.s_D[0],
        "A_interval": bootstrap.percentiles(curve.b_D + curve.s_D),
        "b": curve.b_D[0], "theta": curve.theta_DxP[0],
        "C_lo": curve.C_lo, "C_hi": curve.C_hi, "points": curve.points,
        "rmse": np.sqrt(curve.sse_D[0] / curve.points),
        "at_bound": list(curve.at_bound),
        "C": C_G, "reward": reward[0], **_band(reward)})
  return rows


def frontier_fields(fit: Fit) -> dict:
  """The frontier; `change` is the C at which the lead changes after a point."""
  C_G, best_G = fit.frontier.C_G, fit.frontier.best_DxG[0]
  cells = np.array(fit.study.configurations)[best_G]
  change = [None if a == b else envelope.crossing(
      fit.curves[a], fit.curves[b], *C_G[i:i + 2])
            for i, (a, b) in enumerate(zip(best_G, best_G[1:]))]
  n_low, n_high = np.quantile(
      fit.log2_n_DxG[1:], bootstrap.QUANTILES, axis=0, method="nearest")
  return {"C": C_G, "reward": fit.frontier.reward_DxG[0],
          "Bp": cells[:, 0], "n": cells[:, 1], "change": change,
          "resolved": fit.frontier.resolved_DxG[0], "tied": fit.tied,
          "agreeing": np.mean(fit.log2_n_DxG[1:] == fit.log2_n_DxG[0], axis=0),
          "n_low": np.rint(2.0**n_low), "n_high": np.rint(2.0**n_high),
          **_band(fit.frontier.reward_DxG)}


def law_fields(fit: Fit) -> dict | None:
  if fit.law is None:
    return None
  law, seen = fit.law, fit.frontier.C_G[fit.frontier.resolved_DxG[0]]
  interval_of = lambda value_D: laws.interval(value_D[0], value_D[1:])
  x0 = interval_of(law.x0_D)
  if fit.study.axis == "updates":
    x0 = np.maximum(x0, 0.0)  # M is not negative
  as_n = lambda value_D: [float(2.0**end) for end in interval_of(value_D)]
  low, high = interval_of(fit.law_DxG)
  names = ("L", "k", laws.KINDS[law.kind][1], "b")
  return {
      "kind": law.kind, **dict(zip(names, law.theta_Dx4[0])),
      **({"B": law.B} if law.B else {}),
      "rmse_log2": law.rmse_D[0], "k_bounds": law.k_bounds,
      "at_bound": [fit.study.symbol + "0" if hit == "midpoint"
                   else hit for hit in law.at_bound],
      "C_seen": [seen[0], seen[-1]],
      "intervals": {
          "x0": x0, "k": bootstrap.percentiles(law.k_D),  # inside k_bounds
          "floor": as_n(law.b_D), "ceiling": as_n(law.b_D + law.L_D)},
      "C": fit.frontier.C_G, "n": 2.0 ** fit.law_DxG[0],
      "low": 2.0**low, "high": 2.0**high,
      "draws": law.theta_Dx4[1:]}


def _named(ids: list[str]) -> str:
  more = ", ..." if len(ids) > 3 else ""
  return f"{many(len(ids), 'run')} ({', '.join(ids[:3])}{more})"


def scalerl_fields(study: Study, *, min_C: float,
                   notes: list[str]) -> list[dict]:
  """ScaleRL's law of each run and of its first half.

  Runs for which a law cannot be fitted have no row, and are named in `notes`.
  """
  rows, late, unfitted = [], [], collections.defaultdict(list)
  for run in study.runs:
    points = scalerl.Points(run.C_E, run.reward_E, float(run.reward_E[0]),
                            min_C, measured=run.C_E[0] == 0)
    try:
      fit = scalerl.fit(points)
      if why := scalerl.empty(fit):
        raise InputError(why)
    except InputError as error:
      unfitted["no ScaleRL law", str(error)].append(run.run_id)
      continue
    half = None
    try:
      early, error_E = scalerl.extrapolate(points, fit_below=run.C_E[-1] / 2)
      half = {"A": early.law.A, "max_error": float(abs(error_E).max())}
    except InputError as error:
      unfitted["no ScaleRL law of the first half", str(error)].append(
          run.run_id)
    if not points.measured:
      late.append(run.run_id)
    rows.append({
        "run_id": run.run_id, "seed": run.seed, "Bp": run.Bp, "n": run.n,
        **dataclasses.asdict(fit.law), "fit_below": fit.C_hi,
        "A_at_edge": "A" in fit.at_bound, "half": half,
        "A_interval": scalerl.A_interval(points, fit.law.A)})
  if late:
    notes.append(f"no evaluation before training for {_named(late)}: R0 of the "
                 "ScaleRL law is their first evaluation, and in the interval "
                 "of A anything up to it")
  notes += [f"{what} for {_named(ids)}: {why}"
            for (what, why), ids in unfitted.items()]
  return rows


def document(fit: Fit, *, path: str, others: tuple[Fit, ...] = (),
             notes: list[str] = (), with_scalerl: bool = True) -> dict:
  """The content of fit.json.

  Args:
    fit: the analysis of the study's metric.
    path: of fit.json, for the command of the next step.
    others: analyses of the same runs by other metrics, for their best n.
    notes: what was left out or corrected when the logs were read.
    with_scalerl: whether ScaleRL's law is fitted to each run.
  """
  end, notes = float(fit.frontier.C_G[-1]), list(notes)
  early_rows = [row for part in (2, 4)  # by the first half and quarter of C
                if (row := diagnostics.extrapolation(fit, end / part))]
  limits = diagnostics.limits(fit, early_rows[0] if early_rows else None)
  study = fit.study
  interference_rows = [
      row for r in study.runs
      if (row := interference.interference(r, study.k, draws=100, seed=0))
  ] if study.per_problem and study.k and study.metric == "avg" else []
  scalerl_rows = scalerl_fields(
      study, min_C=fit.options.points.min_C,
      notes=notes) if with_scalerl else []
  content = _round({
      "version": laws.FIT_VERSION, "study": study_fields(fit),
      "options": dataclasses.asdict(fit.options),
      "best": diagnostics.lead(fit), "as_good": diagnostics.as_good(fit),
      "curves": curve_fields(fit), "frontier": frontier_fields(fit),
      "switches": diagnostics.switches(fit), "law": law_fields(fit),
      "verdict": {"identified": fit.identified, "reasons": list(fit.reasons),
                  "limits": list(limits), "cautions": list(fit.cautions)},
      "null_model": verdict.null_model(fit),
      "falls": list(map(dataclasses.asdict, fit.falls)),
      "variants": diagnostics.variants(
          study, fit.options) if fit.identified else [],
      "extrapolation": early_rows,
      "best_n": [row for other in (fit, *others)
                 for row in diagnostics.best_n(other)] if others else [],
      "interference": interference_rows, "scalerl": scalerl_rows,
      "next": proposal.next_plan(fit, limits, path=path), "notes": notes})
  return content | {"id": identity.content_id(content)}


def study_document(study: Study, rows: list[LogRow], chosen: Selection,
                   options: bootstrap.Options, *, notes: list[str],
                   path: str) -> dict:
  """The document of a study, with the best n by its other metrics."""
  fit, others = analysis.analyse(study, options), []
  for metric in base.METRICS:
    try:
      other, _ = from_rows(rows, dataclasses.replace(chosen, metric=metric))
    except InputError:  # a log without this metric
      continue
    if other.metric != study.metric:
      others.append(analysis.analyse(other, options))
  return document(fit, others=tuple(others), notes=notes, path=path)
