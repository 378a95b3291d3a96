"""The registered prediction: what the first stop of C says about the rest.

It is written before the longer runs start, committed, and compared with them.
"""

import hashlib
import json
import os
import subprocess
import time

import numpy as np

from isojax.errors import InputError
from isojax.format import compact, pair, rate
from isojax.frontier.bootstrap import Options
from isojax.frontier.verdict import Fit
from isojax.study import law
from isojax.study.ledger import LedgerRun

GRID_STEP = 1.0  # log2 n between a hit and a miss of n*
REWARD = 0.02  # largest error of a hit of the reward


def digest(runs: list[LedgerRun], C: float) -> str:
  """Returns a hash of the evaluations up to C, without their times."""
  kept = [[run.head["run_id"], *(
      [line["rollouts"], line["correct"]] for line in run.evals
      if line["rollouts"] <= C)] for run in runs]
  kept.sort(key=lambda each: each[0])
  return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def predict(runs: list[LedgerRun], *, part: str, path: str, first: int,
            later: tuple[int, ...], options: Options) -> dict:
  """Returns the prediction of a part, from the evaluations up to `first`.

  Args:
    runs: of the grid of n.
    part: name of the part.
    path: of the ledger.
    first: rollouts up to which evaluations are used.
    later: rollouts that are predicted.
    options: of the analysis.
  """
  if not law.reached(runs, first):
    raise InputError(f"{path}: not all runs have reached C = {first}, on which "
                     "the prediction rests: run the first stage to its end")
  notes: list[str] = []
  fit = law.fitted(runs, path=path, C=first, axis="rollouts", metric="avg",
                   options=options, notes=notes)
  now = time.time()
  return {"part": part, "fitted_to": first, "unix_time": round(now),
          "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)),
          "evaluations": digest(runs, first), "notes": notes,
          "identified": fit.identified, "reasons": list(fit.reasons),
          "at_fitted": rounded(law.at(fit, first, clipped=True)),
          "predicted": [{"C": C} | rounded(law.at(fit, C, clipped=False))
                        for C in later]}


def rounded(value, digits: int = 4):
  """Returns nested values with few significant digits."""
  if isinstance(value, dict):
    return {name: rounded(each, digits) for name, each in value.items()}
  if isinstance(value, (list, tuple)):
    return [rounded(each, digits) for each in value]
  return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def compared(predicted: dict, fit: Fit, ends: dict[int, float],
             tested: bool) -> dict:
  """Returns what was measured at the C of a prediction, and hit or miss.

  The measured values are those of the curves, which end at a fall; `ends` tells
  what the policies were.

  Args:
    predicted: an entry of `predicted`.
    fit: of all data.
    ends: mean reward of the last evaluations up to that C of each n whose runs
      have reached it.
    tested: whether every n has reached that C. If not, n* and the best reward
      are not compared, since the other n would keep their last values.
  """
  seen = law.at(fit, predicted["C"], clipped=True)
  steps = abs(np.log2(predicted["n"] / seen["n"]))
  low, high = predicted["interval"]
  reward_hit = lambda one, other, ends: bool(
      abs(one - other) <= REWARD or ends[0] <= other <= ends[1])
  by_n = {row["n"]: row for row in seen["by_n"]}
  return {"C": predicted["C"], "tested": tested, "measured": seen,
          "n_hit": bool(steps <= GRID_STEP + 1e-9) if tested else None,
          "reward_hit": reward_hit(predicted["reward"], seen["reward"],
                                   (low, high)) if tested else None,
          "by_n": [{"n": row["n"], "predicted": row["reward"],
                    "interval": row["interval"],
                    "measured": by_n[row["n"]]["reward"],
                    "end": ends[row["n"]],
                    "hit": reward_hit(row["reward"],
                                      by_n[row["n"]]["reward"],
                                      row["interval"])}
                   for row in predicted["by_n"]
                   if row["n"] in by_n and row["n"] in ends]}


def first_record(runs: list[LedgerRun], C: float) -> int | None:
  """Returns the time of the first evaluation beyond C rollouts, or None."""
  return min((line["unix_time"] for run in runs for line in run.evals
              if line["rollouts"] > C), default=None)


def sentence(found: dict) -> str:
  """Returns the predictions in words."""
  return "; ".join(
      f"at C = {compact(p['C'])}: n* = {p['n']} "
      f"{pair(p['n_interval'], str)}, avg {rate(p['reward'])} "
      f"{pair(p['interval'], rate)}" for p in found["predicted"])


def committed(path: str) -> bool:
  """Returns whether git has this very content of a file in a commit."""
  git = lambda *words: subprocess.run(
      ["git", "-C", os.path.dirname(path) or ".", *words],
      capture_output=True, text=True)
  name = os.path.basename(path)
  try:
    return (git("ls-files", "--error-unmatch", name).returncode == 0
            and git("diff", "--quiet", "HEAD", "--", name).returncode == 0)
  except OSError:  # no git
    return False
