"""Times launch.fit on the paper's size.

Records of 39 configurations x 200 evaluations x 300 problems are read and
analysed with 1,000 bootstrap draws.
"""

import json
import os
import resource
import tempfile
import time

import numpy as np

from isojax.frontier import analysis
from isojax.frontier import bootstrap
from isojax.frontier import next_sweep
from isojax.frontier import synthetic
from isojax.frontier import read as read_lib
from isojax.frontier import fit_json
from isojax.frontier import study as study_lib
from isojax.frontier import plots
from isojax.frontier import report
from isojax.allocation import B_MAX, PAPER_BP, PAPER_N, cells

EVALUATIONS, PROBLEMS, SAMPLES = 200, 300, 4
C_MAX = B_MAX * EVALUATIONS  # one step of the largest batch an evaluation


def write_records(folder: str) -> list[str]:
  """Writes a file of evaluations for each configuration; returns the paths."""
  paths = []
  for Bp, n in cells(PAPER_BP, PAPER_N, B_max=B_MAX):
    i = PAPER_N.index(n)
    truth = synthetic.Truth(Bp=Bp, n=(n,), A=(0.6 + 0.01 * min(i, 6),),
                            k=(6e-6 * 0.7**i,), b=0.45)
    run, = synthetic.study(
        truth, C_max=C_MAX, evaluations=EVALUATIONS, seeds=1, Q=PROBLEMS,
        k=SAMPLES, spread=0.5, run_sd=0.0, seed=0).runs
    paths.append(os.path.join(folder, f"{Bp}-{n}.jsonl"))
    with open(paths[-1], "w", encoding="utf-8") as file:
      for step, C, value in zip(run.step_E, run.C_E, run.value_ExQ):
        correct = np.rint(value * SAMPLES).astype(int).tolist()
        file.write(json.dumps({
            "kind": "eval", "run_id": f"{Bp}-{n}", "seed": 0, "model": "m",
            "split": "easy", "eval_set": "easy/validation", "Bp": Bp, "n": n,
            "step": int(step), "rollouts": int(C), "k": SAMPLES,
            "correct": correct, "avg": float(value.mean())}) + "\n")
  return paths


def rows():
  """Yields the seconds of each stage, and the peak memory of the process."""
  begun = last = time.perf_counter()

  def row(stage: str) -> dict:
    nonlocal last
    seconds, last = time.perf_counter() - last, time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"stage": stage, "seconds": seconds, "peak GiB": peak / 2**20}

  with tempfile.TemporaryDirectory() as folder:
    paths = write_records(folder)
    yield row("write records (not part of launch.fit)")
    begun = last
    read, _ = read_lib.read(paths, read_lib.Reading(), flag="records")
    yield row("read records")
    study, notes = study_lib.from_rows(read, study_lib.Selection(
        axis="rollouts", metric="avg", at_k=None, eval_set=None, Bp=None,
        B=None))
    yield row("study")
    fit = analysis.analyse(study, bootstrap.DEFAULT)
    yield row(f"curves, frontier, law, {fit.options.draws} draws")
    hill = fit_json.scalerl_fields(study, min_C=0.0, notes=notes)
    yield row("ScaleRL laws")
    found = fit_json.document(
        fit, others={study.metric: fit}, hill=hill, notes=notes,
        matched=fit_json.scalerl_matched(study, hill, min_C=0.0),
        next_plan=next_sweep.next_plan(fit, path="fit.json"))
    yield row("variants, extrapolation, interference")
    report.page(found, plots.save(found, folder))
    yield row("figures and report")
  last = begun
  yield row("all")
