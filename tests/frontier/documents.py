"""Documents (parsed fit.json) of every regime, with hostile names."""

import dataclasses

from isojax.frontier import analysis, bootstrap, fit_json
from tests.frontier import synthetic

HOSTILE = "<script>alert('$x_$')</script>"
B = 8192


def study(*, C_max):
  return synthetic.study(synthetic.saturating(), C_max=C_max, evaluations=24,
                         Q=60, k=4, spread=2.0, seed=3)


def lift(run, by):
  return dataclasses.replace(run, reward_E=run.reward_E + by,
                             value_ExQ=run.value_ExQ + by)


def joint():
  """Two Bp, the second a little better; the large n ended early."""
  one = study(C_max=3_000_000)
  runs = tuple(r.select(slice(9)) if r.n > 32 else r
               for r in one.runs if r.n < 256)
  return dataclasses.replace(one, runs=runs + tuple(
      dataclasses.replace(lift(r, 0.01), Bp=64, run_id="64-" + r.run_id)
      for r in runs))


def fixed_batch():
  one = study(C_max=4_000_000)
  return dataclasses.replace(one, axis="updates", runs=tuple(
      dataclasses.replace(r, Bp=B // r.n, C_E=(r.C_E / B).round())
      for r in one.runs))


def document_of(one):
  one = dataclasses.replace(one, model=HOSTILE, runs=tuple(
      dataclasses.replace(r, run_id=f"{HOSTILE}{r.run_id}") for r in one.runs))
  fit = analysis.analyse(one, dataclasses.replace(bootstrap.DEFAULT, draws=30,
                                                  grid=40))
  best = dataclasses.replace(fit, study=dataclasses.replace(
      one, metric="best@4"))
  found = fit_json.document(
      fit, others=(best,), notes=[f"{HOSTILE}.jsonl:3: left out"],
      path=f"{HOSTILE}.json")
  found["scalerl"] = found["scalerl"][::4]  # slow to draw, like the next
  found["interference"] = found["interference"][-3:]
  found["next"] = {"text": f"Test more {HOSTILE}", "command": "run --n=<n>"}
  return found
