"""What to run next: a sweep of the n that may still lead, and its cost.

A run beyond the data is proposed only for an identified law without limits.
"""

import math
import os
import shlex

import numpy as np

from isojax.core import plan_file, sweep_cells
from isojax.core.allocation import DEFAULT_B_MAX, MIN_M
from isojax.core.format import many
from isojax.frontier import verdict
from isojax.frontier.study import Study
from isojax.frontier.verdict import Fit

TIE = 0.002  # reward; a smaller lead is no lead
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
            "--axis=rollouts.", "command": None}
  if not fit.identified or limits:
    return _undecided(fit, path)
  return {
      "text": "The law is identified. The next step uses twice the largest C "
      "that was run, which is beyond the data: check how well the first half "
      "of the data predicted the end." + (
          "" if study.from_isojax else EXPORT),
      "command": f"python -m launch.plan --rollouts="
      f"{round(2 * _end(fit) * _unit(study))} --law={shlex.quote(path)}"}


def _unit(study: Study) -> int:
  """Rollouts in a unit of the study's axis."""
  return math.prod(study.configurations[0]) if study.axis == "updates" else 1


def _end(fit: Fit) -> float:
  """The largest resolved C, or the end of the first curve that ends."""
  resolved = fit.frontier.C_G[fit.frontier.resolved_DxG[0]]
  end = float(resolved[-1] if len(resolved) else min(
      c.C_hi for c in fit.curves))
  if fit.falls:  # the budget that was run, not the part that was fitted
    end = max(end, min(max(run.C_E[-1] for run in fit.measured.runs_of(*cell))
                       for cell in fit.measured.configurations))
  return end


def _fixed_batch(study: Study) -> int | None:
  """Bp * n if all runs share it by design: the axis is updates, or n differ."""
  sizes = {Bp * n for Bp, n in study.configurations}
  by_design = study.axis == "updates" or len(study.tested) > 1
  return sizes.pop() if by_design and len(sizes) == 1 else None


def contenders(fit: Fit, C: float) -> list[tuple[int, int]]:
  """(Bp, n) of the leader at C, then of those that may overtake it by 2 C.

  In either family of curves, they lead at 2 C by more than TIE in more than
  half of the draws, or their expected gain is above options.margin. If all
  curves are equal, every (Bp, n) contends.
  """
  cells = fit.study.configurations
  if fit.tied:
    return list(cells)
  leader = int(np.argmax([c([C])[0, 0] for c in fit.curves]))
  contends_K = np.zeros(len(cells), bool)
  for curves in verdict.families(fit):
    reward_KxD = np.stack([c([2 * C])[:, 0] for c in curves])
    reward_KxD = reward_KxD[:, int(reward_KxD.shape[1] > 1):]  # draws, if any
    gain_KxD = np.maximum(reward_KxD - reward_KxD[leader], 0)
    contends_K |= (gain_KxD > TIE).mean(1) > 0.5
    contends_K |= gain_KxD.mean(1) > fit.options.margin
  return [cells[leader], *(cell for cell, contends in zip(cells, contends_K)
                           if contends)]


def neighbours(study: Study, Bp: int, n: int) -> dict[int, str]:
  """Untested n next to a tested n, each with its position in words."""
  B = _fixed_batch(study)
  most = max(DEFAULT_B_MAX, *(Bp * n for Bp, n in study.configurations)) // Bp
  choices = [x for x in range(2, B + 1) if B % x == 0] if B else [
      2**i for i in range(1, most.bit_length())]
  i, positions = study.tested.index(n), {}
  ends = [0, *study.tested, math.inf][i:i + 3]  # n between its neighbours
  for low, high in zip(ends, ends[1:]):
    wanted, where = math.sqrt(low * high), f"between {low} and {high}"
    if not low:
      wanted, where = n / 2, "below the smallest, which leads"
    elif high == math.inf:
      wanted, where = 2 * n, "above the largest, which leads"
    elif high <= 2 * low:
      continue
    inside = [x for x in choices if low < x < high]
    if inside:
      positions[min(inside, key=lambda x: abs(math.log(x / wanted)))] = where
  return positions


def _undecided(fit: Fit, path: str) -> dict:
  """A sweep of untested n near the leader, else of those that may lead."""
  study, end = fit.study, _end(fit)
  cells = contenders(fit, end)
  Bp, leader = cells[0]
  untested = {} if fit.tied else neighbours(study, Bp, leader)
  C = round(end * _unit(study))
  why = [f"n = {n}, {where}" for n, where in sorted(untested.items())]
  Bps, ns = ({Bp}, set(untested)) if untested else map(set, zip(*cells))
  if untested:
    least_C = MIN_M * (_fixed_batch(study) or Bp * max(ns | {leader}))
    if C < least_C:
      C, ns = least_C, ns | {n for cell_Bp, n in cells if cell_Bp == Bp}
      why.append(f"all to {MIN_M} updates of the largest batch")
  elif not fit.identified:
    C *= 2
    why.append("twice the rollouts, of every n, because no n differs so far"
               if fit.tied else
               f"twice the rollouts, of the leader n = {leader}" + (
                   " and of each n that may overtake it" if len(cells) > 1 else
                   "; no other tested n is likely to pass it"))
  else:
    why.append(f"n = {', '.join(map(str, sorted(ns)))} again")
  return _sweep(fit, Bps, ns, C, why, path)


def _sweep(fit: Fit, Bps: set, ns: set, C: int, why: list[str],
           path: str) -> dict:
  study, B = fit.study, _fixed_batch(fit.study)
  if B:
    cells = [(B // n, n) for n in ns]
    design = f"--B={B} --Bp={_listed(Bp for Bp, _ in cells)}"
  else:
    B_max = max(DEFAULT_B_MAX, *(Bp * n for Bp, n in study.configurations))
    cells = [(Bp, n) for Bp in Bps for n in ns if Bp * n <= B_max and n > 1]
    design = f"--Bp={_listed(Bps)} --n={_listed({n for _, n in cells})}" + (
        f" --B_max={B_max}" if B_max > DEFAULT_B_MAX else "")
  seeds = min(len(study.runs_of(*cell)) for cell in study.configurations)
  runs, missing = _runs(fit.measured, cells, C, seeds)
  while cells and not missing:
    seeds += 1
    runs, missing = _runs(fit.measured, cells, C, seeds)
    why = [*why, f"{seeds} seeds, because these runs exist"]
  config = _config(study)
  remark = (EXPORT if not study.from_isojax else "" if config else
            " CONFIG is the config file of your runs.")
  option = (f"--config={shlex.quote(config or 'CONFIG')} "
            if study.from_isojax else "")
  spend, each = f"--rollouts={C}", _budgets(study, C)
  count, total = len(missing), f"{sum(missing.values()):,}"
  if len(each) > 1:
    spend, count = f"--budgets={_listed(each)}", len(missing) * len(each)
    total = "at most {:,}".format(sum(
        budget // (Bp * n) * Bp * n for Bp, n, _ in missing for budget in each))
  without = skip = ""
  if len(missing) < len(runs):
    without = ", without the runs that exist"
    skip = f" --skip={shlex.quote(path)}"
  return {
      "text": ("The law is good up to the largest C that was run, not beyond. "
               if fit.identified else "The law is not identified. ")
      + f"Run next: {'; '.join(why)}. "
      f"{many(count, 'run')}, {total} rollouts in all"
      f"{without}.{remark}",
      "command": f"python -m launch.plan --sweep {option}"
      f"{spend} {design} --seeds={_listed(range(seeds))}{skip}"}


def _budgets(study: Study, C: int) -> list[int]:
  """C, or the budgets up to it of isojax's runs with a falling rate.

  Of such a run only the end is a point, so each point needs its own run.
  """
  falling = [run.C_E for run in study.runs if run.falling]
  if not (study.from_isojax and falling):
    return [C]
  C_E = max(falling, key=len)
  return sorted({round(C * x / C_E[-1]) for x in C_E})


def _config(study: Study) -> str | None:
  """The config that launch.sweep wrote beside the folder of a run, if any."""
  paths = (os.path.dirname(run.where) + ".py" for run in study.runs)
  return next(filter(os.path.isfile, paths), None)


def _runs(study: Study, cells, C: int, seeds: int) -> tuple[dict, dict]:
  """Rollouts by (Bp, n, seed) of a sweep's runs, and of those that remain."""
  spent = {(r.Bp, r.n, r.seed): r.C_E[-1] * _unit(study) for r in study.runs}
  runs = {(Bp, n, seed): C // (Bp * n) * Bp * n
          for Bp, n in cells for seed in range(seeds)}
  return runs, {run: rollouts for run, rollouts in runs.items()
                if not sweep_cells.reached(spent.get(run, 0), rollouts)}


def _listed(values) -> str:
  return ",".join(map(str, sorted(values)))
