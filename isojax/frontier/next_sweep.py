"""The command to run next: a final run of an identified law, or a sweep."""

import os
import shlex

import numpy as np

from isojax.core import laws, plan_file
from isojax.core.allocation import B_MAX, FEWEST_M
from isojax.frontier import verdict
from isojax.frontier.study import Study
from isojax.frontier.verdict import Fit

EXPORT = (f" Add --export=NAME to print the options of your trainer: "
          f"{', '.join(plan_file.TRAINERS)}.")


def next_plan(fit: Fit, limits: tuple[str, ...] = (), *, path: str) -> dict:
  """What to do next, and its command, which reads the fit.json at `path`.

  `limits`: why the law holds within the data only.
  """
  study = fit.study
  if study.axis not in ("rollouts", "updates"):
    return {"text": f"The axis is {study.axis}, which launch.plan cannot use "
            "here: use the best n above as a guide, or fit again with "
            "--axis=rollouts.",
            "command": None}
  resolved = fit.frontier.C_G[fit.frontier.resolved_DxG[0]]
  end = float(resolved[-1] if len(resolved) else min(
      c.C_hi for c in fit.curves))
  if fit.falls:  # the budget that was run, not the part that was fitted
    end = max(end, min(max(run.C_E[-1] for run in fit.measured.runs_of(*cell))
                       for cell in fit.measured.configurations))
  if study.axis == "updates":
    end *= np.prod(study.configurations[0])
  if not fit.identified or limits:
    return _sweep(fit, end, path)
  return {
      "text": "The law is identified. The next step uses twice the largest C "
      "that was run, which is beyond the data: check how well the first half "
      "of the data predicted the end." + EXPORT * (not study.ours),
      "command": f"python -m launch.plan --rollouts={round(2 * end)} "
      f"--law={shlex.quote(path)}"}


def _wider(fit: Fit, C: float) -> tuple[set[int], float, int, list[str]]:
  """(n, rollouts of a run, seeds, why) of a sweep after the data up to C."""
  study = fit.study
  tested = study.tested
  on = set(fit.log2_n_DxG[0][fit.frontier.resolved_DxG[0]])
  seeds = min(len(study.runs_of(*c)) for c in study.configurations)
  why, ns = [], set(tested)
  if fit.identified:
    return ns, C, seeds + 1, [f"{seeds + 1} seeds of the tested n"]
  if len(tested) > 1 and (len(tested) < 4 or study.grid_step > 2):
    low, high = int(np.log2(tested[0])), int(np.ceil(np.log2(tested[-1])))
    ns |= {2**i for i in range(max(low, 1), high + 1)}
    if len(ns) > len(tested):
      why.append("every power of two between the tested n")
  if fit.tied:
    C *= 4
    why.append("four times the compute, because no n differs so far (or use "
               "another --metric)")
  elif verdict.unsaturated(fit):
    ns |= {2 * tested[-1], 4 * tested[-1]}
    why.append("n beyond the largest, which led"
               if fit.log2_n_DxG[0, -1] == np.log2(tested[-1])
               else "n beyond the largest, which may lead later")
  elif len(tested) < 3:
    ns |= {2 * tested[-1], 4 * tested[-1]}
    why.append("n beyond the largest")
  elif len(on) < 3:
    C *= 4
    why.append("four times the compute, because few n have led so far")
  if seeds < 2 or not why:
    seeds = max(2, seeds + 1)
    why.append(f"{seeds} seeds, to separate the noise of a run from the effect "
               "of n")
  return ns, C, seeds, why


def _sweep(fit: Fit, C: float, path: str) -> dict:
  """The next sweep, if the data up to C rollouts do not support a larger run.
  """
  study = fit.study
  ns, C, seeds, why = _wider(fit, C)
  sizes = {Bp * n for Bp, n in study.configurations}
  if len(sizes) == 1 and (study.axis == "updates" or len(study.tested) > 1):
    B, = sizes
    cells = [(B // n, n) for n in sorted(ns) if B % n == 0 and n > 1]
    design = f"--B={B} --Bp={_listed(Bp for Bp, _ in cells)}"
  else:
    Bps, B_max = {Bp for Bp, _ in study.configurations}, max(B_MAX, *sizes, 0)
    cells = [(Bp, n) for Bp in Bps for n in ns if Bp * n <= B_max and n > 1]
    design = f"--Bp={_listed(Bps)} --n={_listed({n for _, n in cells})}" + (
        f" --B_max={B_max}" if B_max > B_MAX else "")
  least = FEWEST_M * max((Bp * n for Bp, n in cells), default=0)
  if C < least:
    C = least
    why.append(f"at least {FEWEST_M} updates of the largest batch")
  C = round(C)
  runs, new = _planned(fit.measured, cells, C, seeds)
  while cells and not new:  # every run exists, such as where B_max admits no
    seeds += 1  # larger n
    runs, new = _planned(fit.measured, cells, C, seeds)
    why.append(f"{seeds} seeds, because these runs exist")
  config = _config(study)
  skip = f" --skip={shlex.quote(path)}" * (0 < len(new) < len(runs))
  return {
      "text": ("The law is good up to the largest C that was run, not beyond. "
               "A sweep that could tell more: " if fit.identified else
               "The law is not identified. A sweep that could identify it: ")
      + "; ".join(why) + f". It has {len(new)} runs and "
      f"{sum(new.values()):,} rollouts in all"
      + ", without the runs that exist" * bool(skip) + "." + (
          EXPORT if not study.ours else "" if config else
          " CONFIG is the config file of your runs."),
      "command": "python -m launch.plan --sweep "
      + f"--config={shlex.quote(config or 'CONFIG')} " * study.ours
      + f"--rollouts={C} {design} "
      f"--seeds={_listed(range(seeds))}{skip}"}


def _config(study: Study) -> str | None:
  """The config that launch.sweep wrote beside the folder of a run, if any."""
  paths = (os.path.dirname(run.where) + ".py" for run in study.runs)
  return next(filter(os.path.isfile, paths), None)


def _planned(study: Study, cells, C: int, seeds: int) -> tuple[dict, dict]:
  """(Bp, n, seed) -> rollouts of all runs, and of those to be made."""
  known = {(r.Bp, r.n, r.seed): r.C_E[-1] * (
      r.Bp * r.n if study.axis == "updates" else 1) for r in study.runs}
  runs = {(Bp, n, seed): C // (Bp * n) * Bp * n
          for Bp, n in cells for seed in range(seeds)}
  return runs, {run: C for run, C in runs.items()
                if run not in known or known[run] * laws.C_TOLERANCE < C}


def _listed(values) -> str:
  return ",".join(map(str, sorted(values)))
