"""Exploratory results of the ledgers, besides the registered claims.

Experiment A is docs/study/registered-n-or-rate.json: is it n or the rate?
"""

import numpy as np

from launch.study import windows
from launch.study.ledger import by_n, Ledger, LedgerRun
from launch.study.windows import Effect

NATS = 0.3  # training entropy that a run is to reach in experiment A
LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6)  # training reward


def curve(run: LedgerRun, name: str) -> tuple[np.ndarray, np.ndarray]:
  """(rollouts so far, means of a field), [U] each, of a run's updates."""
  return (np.array([float(u["rollouts"]) for u in run.updates]),
          np.array([u[name] for u in run.updates]))


def C_to_entropy(run: LedgerRun, nats: float = NATS) -> tuple[float, bool]:
  """The C at which the entropy first falls to `nats`, interpolated in log C.

  Returns:
    (this C, True), or (the last C, False) if the entropy does not fall so far.
  """
  C, entropy = curve(run, "entropy")
  below = np.flatnonzero(entropy <= nats)
  if not len(below):
    return float(C[-1]), False
  ends = [max(below[0] - 1, 0), below[0]]
  return float(np.exp(np.interp(
      -nats, -entropy[ends], np.log(C[ends])))), True  # interp wants rising x


def exponents(C_of: dict[tuple[int, int], float]) -> dict[str, Effect]:
  """log2 C = constant + a log2 n + b log2 Bp, by least squares over (Bp, n).

  Returns:
    {"n": a, "Bp": b, "n - Bp": a - b}, with errors from the residuals.
  """
  X = np.array([[1, np.log2(n), np.log2(Bp)] for Bp, n in C_of])
  y = np.log2(list(C_of.values()))
  theta, df = np.linalg.lstsq(X, y, rcond=None)[0], len(y) - 3
  residual = y - X @ theta
  covariance = np.linalg.inv(X.T @ X) * (residual @ residual) / df
  return {name: Effect(float(w @ theta), float((w @ covariance @ w)**0.5),
                       df)
          for name, w in (("n", np.array([0, 1, 0])),
                          ("Bp", np.array([0, 0, 1])),
                          ("n - Bp", np.array([0, 1, -1])))}


def n_or_rate(ledger: Ledger) -> dict:
  """Experiment A, analysed as it was registered.

  Each learning rate of a cell (Bp, n) is an arm. The arm whose seed 0 needs the
  fewest rollouts to NATS is chosen; the C of the cell is that of its seed 1. If
  no arm reaches NATS with seed 0, all tie at their last C.

  Returns:
    cells: {(Bp, n): (arm, C, whether it reaches NATS)}, ties to the first arm;
    tied: the cells with a tie; exponents; exponents_last: ties to the last arm.
  """
  arms_of = {}  # (Bp, n) -> [(arm, C_to_entropy of seed 0, of seed 1)]
  for arm in ledger.part.arms:
    for n in arm.n:
      arms_of.setdefault((arm.overrides["alloc"]["Bp"], n), []).append(
          (arm.name, *map(C_to_entropy, ledger.of_arm(arm.name, n))))
  best = lambda arms: min(arms, key=lambda arm: arm[1][0])
  of_cells = lambda choose: exponents(
      {cell: choose(arms)[2][0] for cell, arms in arms_of.items()})
  cells = {cell: best(arms) for cell, arms in sorted(arms_of.items())}
  return {"cells": {cell: (name, *seed1)
                    for cell, (name, _, seed1) in cells.items()},
          "tied": [cell for cell, (_, seed0, _) in cells.items()
                   if not seed0[1]],
          "exponents": of_cells(best),
          "exponents_last": of_cells(lambda arms: best(arms[::-1]))}


def redundancy(regimes: Ledger, hard: Ledger,
               nats: float = NATS) -> tuple[dict, int]:
  """The exponents of n and Bp on 256 problems, n of 8 and more, seeds 0, 1.

  Returns:
    The result of `exponents`; the number of cells that reach the level.
  """
  runs = {r.head["run_id"]: r for r in (*regimes.runs, *hard.runs)}
  C_of = {}
  for run in runs.values():  # runs of both ledgers count once
    if run.head["n"] >= 8 and run.head["seed"] < 2:
      C, reached = C_to_entropy(run, nats)
      if reached:
        C_of.setdefault((run.head["Bp"], run.head["n"]), []).append(np.log(C))
  return exponents({cell: float(np.exp(np.mean(logs)))
                    for cell, logs in C_of.items()}), len(C_of)


def at_training(run: LedgerRun, name: str, levels) -> np.ndarray:
  """avg@k where a training field first reaches each level; NaN: it never does.

  The field `name` is reward, which rises, or entropy, which falls.
  """
  sign = -1.0 if name == "entropy" else 1.0
  C, value = curve(run, name)
  progress_E = np.maximum.accumulate(
      sign * np.interp(np.log1p(run.C_E), np.log1p(C), value))
  return np.interp(sign * np.array(levels), progress_E,
                   run.value_ExQ.mean(1), right=np.nan)


def mean_curve(runs: list[LedgerRun], name: str = "reward") -> tuple:
  """(C, avg@k, a training field) at each evaluation, means over seeds, [E]."""
  E = min(len(run.evals) for run in runs)
  trained = [np.interp(np.log1p(run.C_E[:E]), np.log1p(C), value)
             for run in runs for C, value in [curve(run, name)]]
  return (runs[0].C_E[:E], np.mean([run.value_ExQ[:E].mean(1)
                                    for run in runs], axis=0),
          np.mean(trained, axis=0))


def one_curve(runs: list[LedgerRun]) -> dict:
  """Validation against training reward, of each n.

  Returns:
    value: {n: avg@k at LEVELS, mean over seeds}; spread: the largest minus the
    smallest value at each level, NaN if fewer than two n reach it; peak, nats:
    {n: training reward, or entropy, at the best evaluation}.
  """
  value, peak, nats = {}, {}, {}
  for n, members in by_n(runs).items():
    value[n] = np.mean([at_training(run, "reward", LEVELS)
                        for run in members], axis=0)
    for at_peak, name in ((peak, "reward"), (nats, "entropy")):
      _, avg, trained = mean_curve(members, name)
      at_peak[n] = float(trained[avg.argmax()])
  value_NxL = np.array(list(value.values()))
  known = (~np.isnan(value_NxL)).sum(0) > 1
  spread = np.full(len(LEVELS), np.nan)
  spread[known] = np.nanmax(value_NxL[:, known], 0) - np.nanmin(
      value_NxL[:, known], 0)
  return {"value": value, "spread": spread.tolist(), "peak": peak,
          "nats": nats}


def paired_lead(grids: list[list[LedgerRun]], C_per_D: float = 4096.0) -> dict:
  """Training reward of n = 32 minus that of n = 8, per seed, at one C/D.

  Returns:
    lead: the mean over all pairs, with a t interval; positive: the number of
    pairs above 0; pairs: their number.
  """
  leads = []
  for runs in grids:
    C = C_per_D * runs[0].head["D"]
    value = {(r.head["n"], r.head["seed"]): windows.window(r, C, "reward")[0]
             for r in runs if r.head["n"] in (8, 32)}
    leads += [value[32, seed] - value[8, seed] for n, seed in value if n == 8]
  lead = np.array(leads)[~np.isnan(leads)]
  return {"lead": windows.sum_of([lead[:, None]]),
          "positive": int((lead > 0).sum()), "pairs": len(lead)}


def compared(ledger: Ledger) -> list[dict]:
  """Each arm in (C / 2, C] against the first arm at the same n.

  Returns:
    A dict for each arm and n. value: avg@k; gain: over the first arm, with an
    error pooled over all seeds of the part, None for the first arm; alpha: of
    Holm's correction for the part; resolved: whether the interval of this alpha
    excludes 0.
  """
  part = ledger.part
  value = {(arm.name, n): value_SxQ for arm in part.arms for n in arm.n
           if len(value_SxQ := windows.cell(
               ledger.of_arm(arm.name, n), float(part.C)))}
  pooled, rows = windows.seed_variance(list(value.values())), []
  for (arm, n), value_SxQ in value.items():
    first = part.arms[0].name, n
    rows.append({
        "arm": arm, "n": n, "value": float(value_SxQ.mean()),
        "gain": windows.sum_of([value_SxQ, -value[first]], pooled)
                if first in value and first != (arm, n) else None})
  family = [row for row in rows if row["gain"]]
  for row, alpha in zip(family, windows.holm(
      [row["gain"].p for row in family]), strict=True):
    row.update(alpha=alpha, resolved=row["gain"].sign(alpha) != 0)
  return rows


def regret(runs: list[LedgerRun], of: str, ends) -> dict:
  """How far each of N n is behind the best n of each of W windows.

  Returns:
    n [N]; C/D at the ends [W]; regret [N, W]; resolved [N, W], whether the
    interval of the regret excludes 0; best, the best n of each window.
  """
  groups, columns = by_n(runs), []
  for end in ends:
    value = {n: windows.cell(members, end, of) for n, members in groups.items()}
    best = max(value, key=lambda n: value[n].mean())
    behind = [windows.sum_of([value[best], -v]) for v in value.values()]
    columns.append(([b.value for b in behind], [b.sign() > 0 for b in behind],
                    best))
  regrets, resolved, best = zip(*columns, strict=True)
  return {"n": list(groups), "C/D": np.array(ends) / runs[0].head["D"],
          "regret": np.array(regrets).T, "resolved": np.array(resolved).T,
          "best": list(best)}
