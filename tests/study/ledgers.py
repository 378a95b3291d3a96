"""Ledgers of simulated runs, whose truth is known."""

import numpy as np

from launch.study import ledger
from launch.study.arms import Arm, Part
from tests.frontier import synthetic

PART = Part("hard", 400_000, (Arm("", (2, 8, 32), (0, 1), {}),))
TRUTH = synthetic.Truth(
    Bp=32, n=(2, 8, 32), A=(0.20, 0.30, 0.36), k=(6e-5, 1.6e-5, 0.8e-5), b=0.06)


def lines(part=PART, *, truth=TRUTH, C=None, Q=120, seed=3) -> list[dict]:
  """A ledger up to C; the training reward is the validation reward + 0.1."""
  C = C or part.C
  out = [ledger.header(part, "abc")]
  study = synthetic.study(
      truth, C_max=part.C, evaluations=12, seeds=len(part.arms[0].seeds), Q=Q,
      k=8, spread=0.2, run_sd=0.005, seed=seed)
  for run in study.runs:
    at = [i for i, x in enumerate(run.C_E) if x <= C]
    evals = [{
        "kind": "eval", **dict.fromkeys(ledger.TOTALS, 0),
        "rollouts": round(run.C_E[i]), "unix_time": round(run.C_E[i]),
        "maj": 0.1, "alarms": [], "correct": "".join(
            ledger.COUNTS[round(8 * v)] for v in run.value_ExQ[i])} for i in at]
    updates = [{"kind": "updates", "rollouts": round(run.C_E[i]), "steps": 5,
                "alarms": [], **dict.fromkeys(ledger.MEANS, 0.5),
                "reward": run.reward_E[i] + 0.1, "kl": None} for i in at[1:]]
    out += [{"kind": "run", "run_id": f"{run.n:06d}{run.seed:06d}",
             "arm": part.arms[0].name, "n": run.n, "seed": run.seed,
             "C": part.C, "reached": evals[-1]["rollouts"],
             "diverged": False, "Bp": 32, "m": run.n, "D": 1000, "k": 8,
             "model": "tiny", "task": "countdown", "split": "hard",
             "eval_set": "hard/validation"}, *evals, *updates]
  return out


def made(path, **options) -> ledger.Ledger:
  """The ledger of `lines`, written to a path and read."""
  ledger.write(str(path), lines(**options))
  return ledger.read(str(path))


def run(levels, *, n=2, seed=0, Q=60, reward=(), arm="", Bp=1, D=16,
        **means) -> ledger.LedgerRun:
  """A run whose evaluation at 1,000 * 2^i has the mean levels[i].

  Args:
    levels: 0 and 1 are exact, others drawn.
    n, seed, arm, Bp, D: of the run.
    Q: validation problems.
    reward: of the updates at 1,000 * 2^i.
    means: further means of the updates, such as entropy.
  """
  rng = np.random.default_rng([n, seed])
  evals = tuple({"rollouts": 1000 * 2**i, "correct": "".join(
      ledger.COUNTS[c] for c in rng.binomial(8, level, Q))}
                for i, level in enumerate(levels))
  means = {"reward": reward} | means
  updates = tuple({"rollouts": 1000 * 2**i, "steps": 1000, "lr": 1e-4} | {
      name: values[i] for name, values in means.items() if len(values) > i}
                  for i in range(max(map(len, means.values()))))
  return ledger.LedgerRun(
      {"run_id": f"{arm}-{Bp}-{n}-{seed}", "arm": arm, "n": n, "seed": seed,
       "k": 8, "Bp": Bp, "D": D, "diverged": False,
       "reached": evals[-1]["rollouts"]}, evals, updates)


def part(runs, C=4000, name="x", path="x") -> ledger.Ledger:
  """A ledger of some runs; one arm of each name."""
  cells = {}
  for run in runs:
    cells.setdefault((run.head["arm"], run.head["Bp"]), []).append(run.head)
  arms = tuple(Arm(arm, tuple(sorted({h["n"] for h in heads})), tuple(sorted(
      {h["seed"] for h in heads})), {"alloc": {"Bp": Bp, "C": C}})
               for (arm, Bp), heads in cells.items())
  return ledger.Ledger(path, "abc", Part(name, C, arms), tuple(runs))
