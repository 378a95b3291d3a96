"""Rows of fit.json: the best n, equally good n, limits, variants and checks.

The end is the largest resolved C of the frontier.
"""

import dataclasses

import numpy as np

from isojax.core import laws
from isojax.core.evaluate import MIN_EVALUATIONS
from isojax.core.format import compact, number, pair, rate, signed
from isojax.errors import InputError
from isojax.frontier import analysis, bootstrap, envelope, verdict
from isojax.frontier.bootstrap import Options
from isojax.frontier.study import Study
from isojax.frontier.verdict import Fit
from isojax.logs.fields import TRAINING


def switches(fit: Fit) -> tuple[tuple[int, int, float], ...]:
  """(old n, new n, C) of each change of the best n on the resolved frontier."""
  resolved = np.flatnonzero(fit.frontier.resolved_DxG[0])
  C_G, best_G = fit.frontier.C_G, fit.frontier.best_DxG[0]
  n_of = lambda g: fit.study.configurations[best_G[g]][1]
  return tuple((n_of(i), n_of(j), envelope.crossing(
      fit.curves[best_G[i]], fit.curves[best_G[j]], C_G[i], C_G[j]))
               for i, j in zip(resolved, resolved[1:])
               if n_of(i) != n_of(j))


def _end(fit: Fit) -> tuple[float, int] | None:
  """(C of the end, index of the best configuration); None: no n is best."""
  resolved = np.flatnonzero(fit.frontier.resolved_DxG[0])
  if fit.tied or not len(resolved):
    return None
  g = resolved[-1]
  return float(fit.frontier.C_G[g]), int(fit.frontier.best_DxG[0, g])


def _rewards_at(fit: Fit, C: float) -> np.ndarray:
  """The reward of each configuration at C, or where its data end, [D, K]."""
  return np.stack([c([min(C, c.C_hi)])[:, 0] for c in fit.curves], 1)


def _interval(fit: Fit, one: int, other: int, C: float,
              lead_D) -> tuple[float, float]:
  """The 95 % interval of the lead of configuration `one` over `other` at C.

  Its ends are percentiles of the draws. For training rewards, from 2 seeds on,
  it is Welch's t interval of the mean distance of each run from its curve in
  (C / 2, C]: their noise shows only between seeds, and percentiles of 2, 3 and
  5 seeds exclude a true lead of 0 in 33, 14 and 9 % of cases.
  """
  cells = [fit.study.configurations[i] for i in (one, other)]
  runs = [fit.study.runs_of(*cell) for cell in cells]
  if fit.study.eval_set != TRAINING or min(map(len, runs)) < 2:
    return bootstrap.percentiles(lead_D)

  def distance(run, curve):
    last = min(C, run.C_E[-1])
    late_E = (run.C_E > last / 2) & (run.C_E <= last)
    return float((run.reward_E - curve(run.C_E)[0])[late_E].mean())

  difference, ends = bootstrap.welch(*(
      [distance(run, fit.curves[i]) for run in runs_of_cell]
      for i, runs_of_cell in zip((one, other), runs)))
  # Around the lead of the curves.
  return tuple(float(lead_D[0] + end - difference) for end in ends)


def lead(fit: Fit) -> dict | None:
  """The best n at the end and its lead over the next best n.

  A curve whose data end earlier keeps its last reward. `since` is the C from
  which on this n leads, or None if no other n led before.
  """
  if not (end := _end(fit)):
    return None
  (C, best), cells = end, fit.study.configurations
  Bp, n = cells[best]
  reward_DxK = _rewards_at(fit, C)
  rivals = [i for i, cell in enumerate(cells)
            if cell[1] != n and fit.curves[i].C_lo <= C]
  row = {"C": C, "Bp": Bp, "n": n, "reward": float(reward_DxK[0, best]),
         "rival": None, "lead": None, "lead_interval": None, "since": None}
  if rivals:
    rival = rivals[int(reward_DxK[0, rivals].argmax())]
    lead_D = reward_DxK[:, best] - reward_DxK[:, rivals].max(1)
    changes = switches(fit)
    row |= {"rival": cells[rival][1], "lead": float(lead_D[0]),
            "lead_interval": _interval(fit, best, rival, C, lead_D),
            "since": changes[-1][2] if changes else None}
  return row


def as_good(fit: Fit) -> list[dict]:
  """The tested n, each with its best Bp, within `options.margin` of the best.

  `cost` is the reward of the best n minus that of n at the end, with its 95 %
  `interval`. `ended` is the C of the last evaluation of n if it is earlier.
  """
  if not (end := _end(fit)):
    return []
  (C, best), cells = end, fit.study.configurations
  reward_DxK, rows = _rewards_at(fit, C), []
  for n in fit.study.tested:
    started = [i for i, cell in enumerate(cells)
               if cell[1] == n and fit.curves[i].C_lo <= C]
    if not started:
      continue
    i = max(started, key=lambda i: reward_DxK[0, i])
    cost_D, last = reward_DxK[:, best] - reward_DxK[:, i], fit.curves[i].C_hi
    if cost_D[0] <= fit.options.margin:
      rows.append({
          "n": n, "Bp": cells[i][0], "reward": float(reward_DxK[0, i]),
          "cost": float(cost_D[0]), "interval": None if i == best else
          _interval(fit, best, i, C, cost_D),
          "ended": last if last * laws.C_TOLERANCE < C else None})
  return rows


def catching_up(fit: Fit) -> str | None:
  """A limit if a larger n gained much on the best n in the second half of C.

  That is, in either family of curves, the interval of the gain is above 0, and
  the gain is at least half of the distance that is left.
  """
  if not (end := _end(fit)):
    return None
  (C, best), cells = end, fit.study.configurations
  for i, (_, n) in enumerate(cells):
    if n <= cells[best][1] or not (
        fit.curves[i].C_lo <= C / 2
        and C <= fit.curves[i].C_hi * laws.C_TOLERANCE):
      continue
    for curves in verdict.families(fit):
      before_D, left_D = ((curves[best]([x]) - curves[i]([x]))[:, 0]
                          for x in (C / 2, C))
      gained_D = before_D - left_D
      low, _ = bootstrap.percentiles(gained_D)
      if low > 0 and gained_D[0] >= left_D[0] / 2 > 0:
        return (f"n = {n} is catching up: its distance to n = {cells[best][1]} "
                f"shrank from {rate(before_D[0])} at {compact(C / 2)} to "
                f"{rate(left_D[0])} at {compact(C)}")
  return None


def limits(fit: Fit, early: dict | None) -> tuple[str, ...]:
  """Why an identified law must not be used beyond the data.

  `early`, a row of `extrapolation`, is checked.
  """
  best, reasons = lead(fit), []
  if best and best["rival"] and best["lead_interval"][0] <= 0:
    reasons.append(
        f"the lead of n = {best['n']} over n = {best['rival']} at the end of "
        "the data is within the noise, "
        f"{pair(best['lead_interval'], signed)}")
  later = verdict.overtaking(fit) if best else None
  if later:
    reasons.append(f"an n above the leader, such as {later.n}, {later.text}")
  reasons += filter(None, (
      catching_up(fit), early and failed_extrapolation(fit, early)))
  return tuple(reasons)


def variants(study: Study, base: Options) -> list[dict]:
  """The law with `base`, then with one of the paper's open choices changed."""
  if len(study.tested) < 2:
    return []
  with_points = lambda **kw: dataclasses.replace(
      base, points=dataclasses.replace(base.points, **kw))
  records = lambda bin_width: with_points(select="records", bin_width=bin_width)
  end = max(r.C_E.max() for r in study.runs)
  which = {"all": "all", "records": "record-breaking"}[base.points.select]
  choices = {
      f"reported ({which} points)": base,
      "all points": with_points(select="all"),
      "record-breaking points, bins of 0.01": records(0.01),
      "record-breaking points, bins of 0.002": records(0.002),
      "record-breaking points, no bins": records(0.0),
      "moving average 0.8": with_points(ema=0.8),
      "C from 5% of the largest on": with_points(min_C=0.05 * end),
      "Hill curves": dataclasses.replace(base, form="hill"),
      "logistic curves": dataclasses.replace(base, form="logistic"),
      "grid of twice as many C": dataclasses.replace(base, grid=2 * base.grid),
  }
  rows = []
  for name, options in choices.items():
    if rows and options == base:
      continue
    row = {"name": name, "log10_C0": None, "ceiling": None, "n_at_end": None,
           "switches": ()}
    rows.append(row)
    try:
      fit = analysis.analyse(study, dataclasses.replace(options, draws=0))
    except InputError:  # too few points are left
      continue
    row["switches"] = switches(fit)
    if fit.law is not None:
      law = fit.law
      row |= {"log10_C0": float(law.x0_D[0]), "n_at_end": float(law(end)),
              "ceiling": float(2 ** (law.b_D[0] + law.L_D[0]))}
  return rows


def extrapolation(fit: Fit, C1: float) -> dict | None:
  """What the data up to C1 predict at C2, the end; None if they are too few."""
  early_study = dataclasses.replace(fit.study, runs=tuple(
      run.select(run.C_E <= C1) for run in fit.study.runs
      if np.sum(run.C_E <= C1) >= MIN_EVALUATIONS))
  resolved = np.flatnonzero(fit.frontier.resolved_DxG[0])
  if len(early_study.tested) < 2 or not len(resolved):
    return None
  try:
    early = analysis.analyse(
        early_study, dataclasses.replace(fit.options, draws=0))
  except InputError:  # too few points are left
    return None
  g = resolved[-1]
  C2, reward_D = float(fit.frontier.C_G[g]), fit.frontier.reward_DxG[:, g]
  return {
      "C1": C1, "C2": C2,
      "n_predicted": None if early.law is None else float(early.law(C2)),
      "n_seen": int(round(2.0 ** fit.log2_n_DxG[0, g])),
      # the highest curve, continued to C2
      "reward_predicted": max(float(c([C2])[0, 0]) for c in early.curves),
      "reward_seen": float(reward_D[0]),
      "reward_interval": bootstrap.percentiles(reward_D)}


def failed_extrapolation(fit: Fit, row: dict) -> str | None:
  """A limit if the early law is off by more than half of a gap between n."""
  if row["n_predicted"] is None or abs(np.log2(
      row["n_predicted"] / row["n_seen"])) <= fit.study.grid_step / 2:
    return None
  symbol = fit.study.symbol
  return (f"the extrapolation check failed: the law of the data up to {symbol} "
          f"= {compact(row['C1'])} gives n* = {number(row['n_predicted'])} at "
          f"{compact(row['C2'])}, where n = {row['n_seen']} leads")


def best_n(fit: Fit) -> list[dict]:
  """For each Bp, the n whose curve is highest at the largest C that all reach.

  IsoCompute Playbook, section 8.2. Configurations that begin at a larger C are
  left out. `agreeing` is the share of the draws with the same n.
  """
  rows = []
  curve_of = dict(zip(fit.study.configurations, fit.curves, strict=True))
  for Bp in sorted({cell[0] for cell in curve_of}):
    curve_of_n = {n: curve_of[b, n] for b, n in sorted(curve_of) if b == Bp}
    C = min(curve.C_hi for curve in curve_of_n.values())
    curve_of_n = {n: c for n, c in curve_of_n.items() if c.C_lo <= C}
    if len(curve_of_n) < 2:
      continue
    curves_N = list(curve_of_n.values())
    reward_DxN = np.stack([curve([C])[:, 0] for curve in curves_N], 1)
    best_D = np.array(list(curve_of_n))[reward_DxN.argmax(1)]
    row = {"metric": fit.study.metric, "Bp": Bp, "C": C, "n": int(best_D[0]),
           "agreeing": float(np.mean(best_D[1:] == best_D[0])),
           "n_interval": [int(n) for n in np.quantile(
               best_D[1:], bootstrap.QUANTILES, method="nearest")], "why": None}
    if np.ptp(reward_DxN[0]) < laws.TIE:
      row |= {"n": None, "agreeing": None, "n_interval": None,
              "why": verdict.no_n_differs(fit.study, curves_N, C)}
    rows.append(row)
  return rows
