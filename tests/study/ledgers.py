"""Ledgers of simulated runs, whose truth is known."""

import dataclasses

import numpy as np

from isojax.frontier import synthetic
from isojax.study import ledger
from isojax.study.protocol import Arm, Protocol

N = (2, 8, 32)
PROTOCOL = Protocol(part="hard", C=400_000, stops=(100_000,), beyond=None,
                    registered="file", law=None,
                    arms=(Arm("", N, (0, 1), {}),))
TRUTH = synthetic.Truth(
    Bp=32, n=N, A=(0.20, 0.30, 0.36), k=(6e-5, 1.6e-5, 0.8e-5), b=0.06)


def lines(protocol=PROTOCOL, *, truth=TRUTH, C=None, begun=1_000_000_000,
          Q=120, seed=3) -> list[dict]:
  """Returns a ledger; a record is written 100 s after each 10,000 rollouts."""
  C = C or protocol.C
  study = synthetic.study(
      truth, C_max=protocol.C, evaluations=12, seeds=len(
          protocol.arms[0].seeds), Q=Q, k=8, spread=0.2, run_sd=0.005,
      seed=seed)
  out = [{"kind": "study", "version": ledger.VERSION, "code": "abc",
          "protocol": dataclasses.asdict(protocol)}]
  for run in study.runs:
    evals = []
    for step, at, value_Q in zip(run.step_E.tolist(), run.C_E.tolist(),
                                 run.value_ExQ):
      if at > C:
        break
      at = round(at)
      evals.append({
          "kind": "eval", "step": step, "rollouts": at,
          "prompt_tokens": 9 * at, "sampled_tokens": 12 * at,
          "trained_tokens": 12 * at, "scored_tokens": 0, "updates": step,
          "device_seconds": at / 5000 + 0.01 * step,
          "unix_time": begun + at // 100, "maj": 0.1, "alarms": [],
          "correct": "".join(ledger.COUNTS[int(round(8 * v))]
                             for v in value_Q)})
    updates = [{"kind": "updates", "rollouts": round(x), "steps": 5,
                "alarms": [], **{name: 0.5 for name in ledger.MEANS},
                "kl": None, "entropy": 1.0 - 0.5 * x / protocol.C}
               for x in np.geomspace(1000, C, 10)]
    out += [{"kind": "run", "run_id": f"{run.n:06d}{run.seed:06d}", "distances": [],
             "arm": "", "n": run.n, "seed": run.seed, "C": protocol.C,
             "schedule": None, "reached": evals[-1]["rollouts"],
             "seconds": 100.0, "diverged": False, "Bp": 32, "m": run.n,
             "D": 3000, "k": 8, "model": "tiny", "task": "countdown",
             "split": "hard", "eval_set": "hard/validation"},
            *evals, *updates]
  return out


def of_arms(protocol: Protocol, gains: dict) -> list[dict]:
  """Returns a ledger in which an arm adds `gains[name]` to the asymptote.

  All arms have the same problems and samples, but for the gain.
  """
  out = []
  for i, arm in enumerate(protocol.arms):
    for n in arm.n or (4,):
      truth = synthetic.Truth(Bp=32, n=(n,), A=(0.3 + gains[arm.name],),
                              k=(12 / protocol.C,), b=0.06)
      made = lines(dataclasses.replace(protocol, arms=(
          Arm("", (n,), arm.seeds, {}),)), truth=truth, Q=300)
      for line in made[1:]:
        if line["kind"] == "run":
          line |= {"arm": arm.name, "run_id": f"{i:06d}{n:04d}{line['seed']:02d}",
                   "schedule": None if arm.n else [[0, 4], [1000, 8]]}
      out += made[1:]
  return [{"kind": "study", "version": ledger.VERSION, "code": "abc",
           "protocol": dataclasses.asdict(protocol)}, *out]
