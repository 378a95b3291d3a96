"""Tables of a fit, as rows of fit.json: switches, variants and others."""

import dataclasses

import numpy as np

from isojax import laws
from isojax.errors import InputError
from isojax.format import compact, number
from isojax.frontier import analysis, bootstrap, envelope, verdict
from isojax.frontier.bootstrap import Options
from isojax.frontier.study import FEWEST, Study
from isojax.frontier.verdict import Fit


def switches(fit: Fit) -> tuple[tuple[int, int, float], ...]:
  """(from n, to n, C) along the resolved frontier of the data."""
  at = np.flatnonzero(fit.frontier.resolved_DxG[0])
  C_G, best_G = fit.frontier.C_G, fit.frontier.best_DxG[0]
  n_of = lambda g: fit.study.configurations[best_G[g]][1]
  return tuple((n_of(i), n_of(j), envelope.crossing(
      fit.curves[best_G[i]], fit.curves[best_G[j]], C_G[i], C_G[j]))
               for i, j in zip(at, at[1:]) if n_of(i) != n_of(j))


def lead(fit: Fit) -> dict | None:
  """The best n at the largest resolved C and its lead over the next best n.

  Each curve counts as far as its data go. `since` is the C from which on this n
  leads, or None if no other n led before.
  """
  at = np.flatnonzero(fit.frontier.resolved_DxG[0])
  if fit.tied or not len(at):
    return None
  C, cells = float(fit.frontier.C_G[at[-1]]), fit.study.configurations
  best = int(fit.frontier.best_DxG[0, at[-1]])
  Bp, n = cells[best]
  reward_DxK = np.stack([c([min(C, c.C_hi)])[:, 0] for c in fit.curves], 1)
  rivals = [i for i, cell in enumerate(cells)
            if cell[1] != n and fit.curves[i].C_lo <= C]
  row = {"C": C, "Bp": Bp, "n": n, "reward": float(reward_DxK[0, best]),
         "rival": None, "lead": None, "lead_interval": None, "since": None}
  if rivals:
    lead_D = reward_DxK[:, best] - reward_DxK[:, rivals].max(1)
    changes = switches(fit)
    row |= {"rival": cells[rivals[int(reward_DxK[0, rivals].argmax())]][1],
            "lead": float(lead_D[0]),
            "lead_interval": bootstrap.percentiles(lead_D),
            "since": changes[-1][2] if changes else None}
  return row


def variants(study: Study, base: Options) -> list[dict]:
  """The law with `base`, then with one open choice of the paper changed."""
  if len(study.tested) < 2:
    return []
  point = lambda **kw: dataclasses.replace(
      base, points=dataclasses.replace(base.points, **kw))
  records = lambda bin_width: point(select="records", bin_width=bin_width)
  end = max(r.C_E.max() for r in study.runs)
  which = {"all": "all", "records": "record-breaking"}[base.points.select]
  choices = {
      f"reported ({which} points)": base,
      "all points": point(select="all"),
      "record-breaking points, bins of 0.01": records(0.01),
      "record-breaking points, bins of 0.002": records(0.002),
      "record-breaking points, no bins": records(0.0),
      "moving average 0.8": point(ema=0.8),
      "C from 5% of the largest on": point(min_C=0.05 * end),
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
      law = verdict.sigmoid_of(fit)
      row |= {"log10_C0": float(fit.law.x0_D[0]), "n_at_end": float(law(end)),
              "ceiling": float(2 ** (law.b + law.L))}
  return rows


def extrapolation(fit: Fit, C1: float) -> dict | None:
  """What the data up to C1 predict for the end of the data, if possible."""
  start = dataclasses.replace(fit.study, runs=tuple(
      run.at(run.C_E <= C1) for run in fit.study.runs
      if np.sum(run.C_E <= C1) >= FEWEST))
  resolved = np.flatnonzero(fit.frontier.resolved_DxG[0])
  if len(start.tested) < 2 or not len(resolved):
    return None
  try:
    early = analysis.analyse(start, dataclasses.replace(fit.options, draws=0))
  except InputError:  # too few points are left
    return None
  g = resolved[-1]
  C2, reward_D = float(fit.frontier.C_G[g]), fit.frontier.reward_DxG[:, g]
  return {
      "C1": C1, "C2": C2,
      "n_predicted": None if early.law is None else float(
          verdict.sigmoid_of(early)(C2)),
      "n_seen": int(round(2.0 ** fit.log2_n_DxG[0, g])),
      # by the continued curves
      "reward_predicted": max(float(c([C2])[0, 0]) for c in early.curves),
      "reward_seen": float(reward_D[0]),
      "reward_interval": bootstrap.percentiles(reward_D)}


def unforeseen(fit: Fit, row: dict) -> str | None:
  """A caution if the early law is wrong by half a step between tested n."""
  if row["n_predicted"] is None or abs(np.log2(
      row["n_predicted"] / row["n_seen"])) <= fit.study.grid_step / 2:
    return None
  symbol = fit.study.symbol
  return (f"the extrapolation check failed: the law of the data up to {symbol} "
          f"= {compact(row['C1'])} gives n* = {number(row['n_predicted'])} at "
          f"{compact(row['C2'])}, where n = {row['n_seen']} leads")


def _groups(fit: Fit, at: int):
  """Yields groups of configurations that differ in cell[at] alone.

  As (the other size, the largest C that all curves reach, those of them that
  begin by it, their rewards there [D, V]).
  """
  curve_of = dict(zip(fit.study.configurations, fit.curves, strict=True))
  for held in sorted({cell[1 - at] for cell in curve_of}):
    cells = sorted(cell for cell in curve_of if cell[1 - at] == held)
    C = min(curve_of[cell].C_hi for cell in cells)
    cells = [cell for cell in cells if curve_of[cell].C_lo <= C]
    if len(cells) > 1:
      yield held, C, cells, np.stack(
          [curve_of[cell]([C])[:, 0] for cell in cells], 1)


def sensitivity(fit: Fit) -> list[dict]:
  """Rewards over n at each Bp, and over Bp at each n (section 8.1).

  Each row is at the largest C that all of its configurations reached; `held` is
  the value of the other size, `best_seen` the largest single evaluation.
  """
  rows = []
  for varied, at in (("n", 1), ("Bp", 0)):
    for held, C, cells, reward_DxV in _groups(fit, at):
      spread_D = reward_DxV.max(1) - reward_DxV.min(1)
      low, high = np.quantile(reward_DxV[1:], bootstrap.QUANTILES, axis=0)
      rows.append({
          "varied": varied, "held": held, "C": C,
          "values": [cell[at] for cell in cells], "reward": reward_DxV[0],
          "low": low, "high": high,
          "best_seen": [float(np.concatenate([
              r.reward_E[r.C_E <= C]
              for r in fit.study.runs_of(*cell)]).max()) for cell in cells],
          "spread": float(spread_D[0]),
          "spread_interval": bootstrap.percentiles(spread_D)})
  return rows


def best_n(fit: Fit) -> list[dict]:
  """The n whose curve is highest where every n of a Bp has data (section 8.2).

  `agreeing` is the share of the draws with the same n.
  """
  rows = []
  for Bp, C, cells, reward_DxN in _groups(fit, 1):
    best_D = np.array([n for _, n in cells])[reward_DxN.argmax(1)]
    row = {"metric": fit.study.metric, "Bp": Bp, "C": C, "n": int(best_D[0]),
           "agreeing": float(np.mean(best_D[1:] == best_D[0])),
           "n_interval": bootstrap.percentiles(best_D), "why": None}
    if np.ptp(reward_DxN[0]) < laws.TIE:
      row |= {"n": None, "agreeing": None, "n_interval": None,
              "why": verdict.no_n_differs(fit.study, fit.curves, C)}
    rows.append(row)
  return rows
