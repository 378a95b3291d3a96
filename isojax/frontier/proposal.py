"""What to run next, from what a study could and could not tell."""

import numpy as np

from isojax.frontier import analysis
from isojax.frontier.analysis import Fit


def next_plan(fit: Fit, *, path: str) -> dict:
  """A sentence, and the command of launch.plan that does it.

  With an identified law: the allocation of twice the largest C. Otherwise the
  sweep that could identify it.
  """
  study, end = fit.study, float(fit.frontier.C_G[-1])
  if study.axis not in ("rollouts", "updates"):
    return {"text": f"The axis is {study.axis}: take the largest n* of the "
            "table as a guide, or fit again with --axis=rollouts.",
            "command": None}
  if fit.identified:
    B = study.configurations[0][0] * study.configurations[0][1]
    C = 2 * end * (B if study.axis == "updates" else 1)
    return {
        "text": "The law is identified. The next step, twice the largest C that "
        "was measured, is already beyond the data: see how the extrapolation "
        "from the first half of it did.",
        "command": f"python -m launch.plan --rollouts={C:.6g} --law={path}"}
  tested = sorted({n for _, n in study.configurations})
  resolved = fit.frontier.resolved_DxG[0]
  on = {int(round(2.0**v)) for v in fit.log2_n_DxG[0][resolved]}
  seeds = min(len(analysis.runs_of(study, *c)) for c in study.configurations)
  why, ns, C = [], set(tested), end
  if len(tested) < 4 or analysis.grid_step(study) > 2:
    low, high = int(np.log2(tested[0])), int(np.ceil(np.log2(tested[-1])))
    ns |= {2**i for i in range(low, high + 1)}
    why.append("every power of two between the tested n")
  if tested[-1] in on or len(tested) < 3:
    ns |= {2 * tested[-1], 4 * tested[-1]}
    why.append("n beyond the largest, which led")
  elif len(on) < 3:
    C = 4 * end
    why.append("four times the compute, because few n have led so far")
  if seeds < 2 or not why:
    seeds = max(2, seeds + 1)
    why.append(f"{seeds} seeds, so that the luck of a run can be told from n")
  Bp = ",".join(map(str, sorted({b for b, _ in study.configurations})))
  largest = max(b * max(ns) for b, _ in study.configurations)
  C = max(C, 16 * largest)  # at least some updates of the largest batch
  return {
      "text": "The law is not identified. A sweep that could do it: "
      + "; ".join(why) + ".",
      "command": "python -m launch.plan --sweep --config=CONFIG "
      f"--rollouts={round(C)} --Bp={Bp} --n={','.join(map(str, sorted(ns)))} "
      f"--seeds={','.join(map(str, range(seeds)))}"}
