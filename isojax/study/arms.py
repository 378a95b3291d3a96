"""Compares the arms of a part of the study: recipes, rates, schedules, regimes.

Each arm is compared with the runs of the first arm at the same n, at the C of
the part. All arms of a bootstrap sample have the same problems.
"""

import collections
import dataclasses

import numpy as np

from isojax.errors import InputError
from isojax.frontier import analysis
from isojax.frontier import bootstrap
from isojax.frontier import scalerl
from isojax.frontier import speedup
from isojax.frontier.bootstrap import Options
from isojax.frontier import study as study_lib
from isojax.study import law
from isojax.study import leaders
from isojax.study import ledger
from isojax.study import resampling
from isojax.study import results
from isojax.study.ledger import LedgerRun

AXES = ("rollouts", "device_seconds")  # of speed-ups
SPEEDUP_DRAWS = 4000
# The name of an arm without changes, by part.
FIRST_ARM = {"scalerl": "the recipe", "pods": "all rollouts",
             "rate": "the rule", "schedule": "fixed", "regimes": "-",
             "setting": "hard.py"}


def name_of(found: dict, row: dict) -> str:
  """Returns the name of an arm."""
  part = found["part"]
  return row["arm"] or (FIRST_ARM[part] if part in FIRST_ARM else "as it is")


def grouped(runs: list[LedgerRun], C: float) -> dict[tuple, list[LedgerRun]]:
  """Returns (arm, n) -> its runs that have reached C, or have diverged."""
  out = collections.defaultdict(list)
  for run in runs:
    if law.reached([run], C):
      out[run.head["arm"], run.head["n"]].append(run)
  return dict(out)


def at_end(runs: list[LedgerRun], C: float, options: Options, *,
           index: int) -> np.ndarray:
  """Returns avg at C: the mean of the data, then of the bootstrap samples."""
  value_SxQ = np.stack([results.metric(
      results.correct_at(run, C)[1], run.head["k"], "avg") for run in runs])
  return resampling.means(value_SxQ, draws=options.draws, seed=100,
                          index=index)


def estimate(value_D) -> dict:
  """Returns the value of the data and the 95 % interval of the samples."""
  return {"mean": float(value_D[0]),
          "interval": list(bootstrap.percentiles(value_D))}


def speedups(baseline: list[LedgerRun], other: list[LedgerRun], *,
             path: str) -> dict:
  """Returns axis -> how much earlier an arm reaches the baseline's reward."""
  out = {}
  for axis in AXES:
    arms = [speedup.arm(name, list(_study(runs, axis, path).runs))
            for name, runs in (("baseline", baseline), ("arm", other))]
    try:
      found = speedup.speedup(*arms, share=speedup.SHARE, draws=SPEEDUP_DRAWS,
                              seed=0)
    except InputError:  # the baseline solves nothing
      continue
    out[axis] = dataclasses.asdict(found) | {"verdict": found.verdict}
  return out


def _study(runs: list[LedgerRun], axis: str, path: str):
  return study_lib.from_rows(
      ledger.rows(runs, path=path, C=results.EVERYTHING), study_lib.Selection(
          axis=axis, metric="avg", at_k=None, eval_set=None, Bp=None,
          B=None))[0]


def hill(runs: list[LedgerRun], options: Options, *, path: str) -> dict:
  """Returns ScaleRL's A and B of an arm, with 95 % intervals."""
  fit = bootstrap.fit_curves(_study(runs, "rollouts", path), dataclasses.replace(
      options, form="hill"))[0]
  return {"A": estimate(fit.b_D + fit.s_D),
          "B": estimate(np.exp(fit.theta_DxP[:, 1])),
          "at_bound": list(fit.at_bound)}


def _mean_curve(runs: list[LedgerRun], path: str):
  """Returns (C_E, reward_E) of the mean over seeds, where all have points."""
  arm = speedup.arm("arm", list(_study(runs, "rollouts", path).runs))
  return arm.x_E, arm.reward_E


def lowest(runs: list[LedgerRun], *, path: str) -> dict:
  """Returns the lowest mean reward of an arm from its best one on, and its C.

  Also the best one, and the curve of the mean over seeds.
  """
  C_E, reward_E = _mean_curve(runs, path)
  best = int(np.argmax(reward_E))
  low = best + int(np.argmin(reward_E[best:]))
  return {"best": float(reward_E[best]), "best_C": float(C_E[best]),
          "low": float(reward_E[low]), "low_C": float(C_E[low]),
          "curve": [C_E.tolist(), reward_E.tolist()]}


def falls(found: dict) -> bool:
  """Returns whether an arm loses half of its best mean."""
  return any(2 * row["lowest"]["low"] < row["lowest"]["best"]
             for row in found["rows"])


def alarms(groups: dict) -> dict:
  """Returns alarm -> [(arm, n, runs with it, runs)], for arms that have it."""
  out = collections.defaultdict(list)
  for (arm, n), members in groups.items():
    for name, found in results.alarms(members).items():
      out[name].append([arm, n, len(found), len(members)])
  return dict(out)


def matched(groups: dict, *, path: str) -> dict:
  """Returns B of every arm at the mean A, and what half of C predicts."""
  curves = {}
  for key, runs in groups.items():
    C, R = _mean_curve(runs, path)
    curves[key] = (C[1:], R[1:], float(R[0])) if C[0] == 0 else (C, R, None)
  try:
    found = scalerl.matched(curves, min_C=0.0)
  except InputError as error:
    return {"why": str(error)}
  out = {"why": None, "A": found.A, "spread": found.spread,
         "comparable": found.comparable, "rows": []}
  for key, (C, R, R0) in curves.items():
    try:
      half = scalerl.extrapolate(C, R, R0=R0, min_C=0.0, fit_below=C[-1] / 2)
      error = half.max_error
    except InputError:
      error = None
    out["rows"].append({"arm": key[0], "n": key[1],
                        "B_at_A": found.fixed[key].law.B, "half_error": error})
  return out


def _schedules(groups: dict, ends: dict) -> list[dict]:
  """Returns each schedule against the best fixed n; none without fixed n."""
  followed = [key for key, runs in groups.items() if runs[0].head["schedule"]]
  fixed = [key for key in groups if key not in followed]
  if not fixed:
    return []
  fixed_NxD, out = np.stack([ends[key] for key in fixed]), []
  for key in followed:
    gain_D = ends[key] - fixed_NxD.max(0)
    low, high = bootstrap.percentiles(gain_D)
    out.append({"arm": key[0], "pieces": groups[key][0].head["schedule"],
                "schedule": estimate(ends[key]),
                "best_n": int(fixed[int(fixed_NxD[:, 0].argmax())][1]),
                "gain": estimate(gain_D), "against": len(fixed),
                "verdict": ("beats" if low > 0 else "loses to" if high < 0 else
                            "cannot be told from")})
  return out


def _fixed_batch(runs: list[LedgerRun], options: Options, *,
                 path: str) -> dict | None:
  """Returns the fit of n*(M) to the runs of one Bp * n with several n."""
  sizes = collections.defaultdict(set)
  for run in runs:
    sizes[run.head["Bp"] * run.head["n"]].add(run.head["n"])
  B = max(sizes, key=lambda size: len(sizes[size]))
  if len(sizes[B]) < 3:
    return None
  kept = [r for r in runs if r.head["Bp"] * r.head["n"] == B]
  fit = analysis.analyse(_study(_once(kept), "updates", path), options)
  end = min(c.C_hi for c in fit.curves)
  return {"B": B, "at_end": law.at(fit, end, clipped=True), "end": end,
          "identified": fit.identified, "reasons": list(fit.reasons)}


def _joint(runs: list[LedgerRun], C: float, options: Options, *,
           path: str) -> dict:
  """Returns the best (Bp, n) at C, and the fit of n*(C) over all Bp."""
  fit = analysis.analyse(_study(_once(runs), "rollouts", path), options)
  reward_DxK = np.stack([c([min(C, c.C_hi)])[:, 0] for c in fit.curves], 1)
  best_D = reward_DxK.argmax(1)
  Bp, n = fit.study.configurations[best_D[0]]
  return {"Bp": Bp, "n": n, "share": float(np.mean(best_D[1:] == best_D[0])),
          "reward": estimate(reward_DxK.max(1)),
          "identified": fit.identified, "reasons": list(fit.reasons)}


def _once(runs: list[LedgerRun]) -> list[LedgerRun]:
  """Returns the runs without those that are in two arms."""
  return list({run.head["run_id"]: run for run in runs}.values())


def of_part(lines: list[dict], *, path: str, options: Options) -> dict:
  """Returns the results of a part that compares arms.

  Args:
    lines: of the ledger.
    path: of the ledger, for messages.
    options: of the fits.
  """
  p, runs = ledger.protocol_of(lines), ledger.runs(lines)
  if not runs:
    raise InputError(f"{path}: no run has an evaluation; expected at least one. "
                     "Start the runs, or read their logs in --root")
  groups = grouped(runs, p.C)
  ends = {key: at_end(members, p.C, options, index=i)
          for i, (key, members) in enumerate(groups.items())}
  rows = []
  for key, members in groups.items():
    arm, n = key
    base = (p.arms[0].name, n)
    followed = members[0].head["schedule"] is not None
    compared = (key != base and base in groups and not followed
                and p.part != "regimes")  # its arms differ in Bp
    rows.append({
        "arm": arm, "n": None if followed else n, "Bp": members[0].head["Bp"],
        "m": None if followed else members[0].head["m"], "seeds": len(members),
        "avg": estimate(ends[key]), "lowest": lowest(members, path=path),
        "gain": estimate(ends[key] - ends[base]) if compared else None,
        "speedups": speedups(groups[base], members, path=path)
        if compared and p.part == "pods" else {},
        "hill": hill(members, options, path=path)
        if p.part == "scalerl" else None,
        "device_seconds": float(np.mean(
            [run.evals[-1]["device_seconds"] for run in members]))})
  return {"part": p.part, "protocol": dataclasses.asdict(p),
          "missing": results.missing(p, runs), "rows": rows, "k": runs[
              0].head["k"], "baseline": p.arms[0].name,
          "matched": matched(groups, path=path)
          if p.part == "scalerl" and len(groups) > 1 else None,
          "schedules": _schedules(groups, ends),
          "leaders": leaders.leaders(
              [r for key, members in groups.items() for r in members
               if key[0] == p.arms[0].name and not r.head["diverged"]], options)
          if p.part == "schedule" and groups else None,
          "fixed_batch": _fixed_batch(
              [r for members in groups.values() for r in members], options,
              path=path) if p.part == "regimes" and groups else None,
          "joint": _joint([r for members in groups.values() for r in members],
                          p.C, options, path=path)
          if p.part == "regimes" and groups else None,
          "alarms": alarms(groups), "runs": len(runs), "clock": results.clock(runs),
          "code": lines[0]["code"]}
