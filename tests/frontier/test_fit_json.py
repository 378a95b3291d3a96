"""fit.json: what it contains, and that the planner reads it."""

import dataclasses
import json

import pytest

from isojax.core.format import compact
from isojax.frontier import analysis, fit_json, scalerl
from isojax.planner import fit_file
from isojax.report import labels
from tests.frontier import studies, synthetic


def test_the_document_is_json_and_the_planner_reads_it():
  fit = analysis.analyse(studies.identified_study(), studies.QUICK)
  found = fit_json.document(fit, notes=["a note"], path="fit.json",
                            with_scalerl=False)
  again = json.loads(json.dumps(found, allow_nan=False))
  law = fit_file.read_fit(again, path="fit.json")
  assert law.identified and law.theta_Dx4.shape == (101, 4)
  assert law(1e6) == pytest.approx(fit.law(1e6), rel=1e-4)
  low, high = law.interval(1e6)
  assert low < law(1e6) < high


def test_a_fixed_batch_goes_through_fit_json():
  """Bp * n = 483 in all runs, over M = C / 483."""
  study = studies.small_study()
  study = dataclasses.replace(study, axis="updates", runs=tuple(
      dataclasses.replace(run, Bp=483 // run.n, C_E=run.C_E / 483)
      for run in study.runs))
  fit = analysis.analyse(study, studies.QUICK)
  found = json.loads(json.dumps(fit_json.document(
      fit, path="fit.json", with_scalerl=False)))
  law = fit_file.read_fit(found, path="fit.json")
  assert (law.B, law.kind, law.unit) == (483, "fixed_batch", "updates")
  L, b, M0 = (found["law"][name] for name in ("L", "b", "M0"))
  assert law.log2(M0) == pytest.approx(b + L / 2)
  assert {name: value for name, value, _ in labels.parameters(found)}[
      "M0, updates"] == compact(M0)


def short_run(E):
  """A study of one run with E evaluations after the one at C = 0."""
  truth = synthetic.Truth(Bp=5, n=(3,), A=(0.5,), k=(2e-4,), b=0.3)
  return synthetic.study(truth, C_max=3e4, evaluations=E, Q=50, k=8,
                         spread=0.4, seed=1)


def test_a_run_of_six_points_has_a_law_and_no_half():
  notes = []
  row, = fit_json.scalerl_fields(short_run(6), min_C=0.0, notes=notes)
  assert row["half"] is None and 0.4 < row["A"] <= 1.0
  note, = notes
  assert note.startswith(
      "no ScaleRL law of the first half for 1 run (n3-0): 3 points")


def test_the_document_has_the_real_interval_and_the_error_ahead():
  row, = fit_json.scalerl_fields(short_run(20), min_C=0.0, notes=[])
  (low, high), half = row["A_interval"], row["half"]
  assert low <= row["A"] <= high
  assert high - low != pytest.approx(0.04, abs=1e-6)  # the paper's margin
  run, = short_run(20).runs
  later = run.C_E > run.C_E[-1] / 2
  start = scalerl.fit(scalerl.Points(
      run.C_E[~later], run.reward_E[~later], run.reward_E[0]))
  assert half == {"A": start.law.A, "max_error": abs(
      start.law(run.C_E[later]) - run.reward_E[later]).max()}


def test_a_first_reward_after_training_began_is_no_measured_R0():
  """The interval of A then allows any R0 up to it, so it is wider."""
  study = short_run(20)
  begun = dataclasses.replace(study, runs=tuple(
      run.select(slice(3, None)) for run in study.runs))
  row, = fit_json.scalerl_fields(begun, min_C=0.0, notes=[])
  run, = begun.runs
  points = scalerl.Points(run.C_E, run.reward_E, run.reward_E[0])
  low, high = scalerl.A_interval(points, scalerl.fit(points).law.A)
  assert row["A_interval"][1] - row["A_interval"][0] > high - low


def test_the_best_n_of_each_C_has_an_interval():
  """What the envelope tells where no law is identified."""
  fit = analysis.analyse(studies.small_study(), studies.QUICK)
  found = fit_json.frontier_fields(fit)
  assert set(found["n_low"]) | set(found["n_high"]) <= {3, 7, 23}
  assert (found["n_low"] <= found["n"]).all()
  assert (found["n_high"] >= found["n"]).all()
