"""Variants, extrapolation, sensitivity, best n."""

import dataclasses

import numpy as np
import pytest

from isojax.frontier import analysis, diagnostics, fit_json
from isojax.frontier.study import Run, Study
from tests.frontier import studies


def test_a_forecast_that_failed_is_a_caution():
  # The widest gap between n is that of 7 and 23, 1.7 in log2.
  fit = analysis.analyse(studies.small_study(), studies.EXACT)
  seen = {"C1": 1e5, "C2": 3e5, "n_predicted": 6.0, "n_seen": 23}
  assert "gives n* = 6 at 0.3M, where n = 23 leads" in diagnostics.unforeseen(
      fit, seen)
  for n, failed in ((12.0, True), (14.0, False), (None, False)):
    # half a step is a factor of 1.8
    row = seen | {"n_predicted": n}
    assert bool(diagnostics.unforeseen(fit, row)) == failed


def test_the_switches_are_the_same_in_table_and_figure():
  fit = analysis.analyse(studies.clear_study(), studies.QUICK)
  switches = diagnostics.switches(fit)
  drawn = [C for C in fit_json.frontier_fields(fit)["change"] if C is not None]
  assert len(switches) == 2 and [C for *_, C in switches] == drawn
  one, other = (fit.curves[i]([switches[-1][2]])[0, 0] for i in (1, 2))
  assert one == pytest.approx(other, abs=1e-9)


def test_the_lead_at_the_end_by_hand():
  """A (1 - exp(-k C)) of the truth: 23 has 0.699 at 3e5, 7 has 0.600."""
  study = studies.clear_study()
  fit = analysis.analyse(study, studies.QUICK)
  best = diagnostics.lead(fit)
  assert (best["n"], best["rival"], best["C"]) == (23, 7, pytest.approx(
      3e5, rel=0.01))
  assert best["reward"] == pytest.approx(0.699, abs=0.01)
  low, high = best["lead_interval"]
  assert low < best["lead"] < high
  assert best["lead"] == pytest.approx(0.099, abs=0.01)
  assert best["since"] == diagnostics.switches(fit)[-1][-1]
  alone = analysis.analyse(dataclasses.replace(
      study, runs=tuple(study.runs_of(5, 7))), studies.QUICK)
  assert diagnostics.lead(alone)["rival"] is None
  assert diagnostics.variants(alone.study, studies.QUICK) == []


def test_sensitivity_and_best_n_of_known_curves():
  fit = analysis.analyse(studies.clear_study(), studies.QUICK)
  over_n, = diagnostics.sensitivity(fit)
  assert [over_n[key] for key in ("varied", "held", "values")] == [
      "n", 5, [3, 7, 23]]
  assert over_n["spread"] == pytest.approx(0.19, abs=0.03)
  best, = diagnostics.best_n(fit)
  assert (best["n"], best["Bp"], best["agreeing"]) == (23, 5, 1.0)


def test_a_curve_that_begins_after_another_ends_is_left_out():
  """200 steps of Bp * n for each n, evaluated every 10 steps from step 10 on.

  n = 8 ends at 51,200 rollouts, and n = 512 is first evaluated at 163,840.
  """
  step_E = np.arange(10, 201, 10)
  runs = tuple(
      Run(f"r{n}", 0, 32, n, step_E, 32.0 * n * step_E, None,
          0.6 - 0.5 * np.exp(-step_E * n**0.5 / 900), None, "a.csv")
      for n in (8, 64, 512))
  fit = analysis.analyse(Study(runs, "rollouts", "avg", "hard", "v", "m", 4,
                               False), studies.QUICK)
  over_n, = diagnostics.sensitivity(fit)
  assert over_n["C"] == 51_200 and over_n["values"] == [8, 64]
  # 51,200 rollouts are 25 steps of 32 * 64: the second evaluation is seen.
  assert over_n["best_seen"][1] == pytest.approx(
      0.6 - 0.5 * np.exp(-20 * 8 / 900))
  best, = diagnostics.best_n(fit)
  assert (best["n"], best["C"]) == (8, 51_200)


def test_extrapolation_is_scored_against_what_was_seen():
  study = studies.clear_study(evaluations=40)
  fit = analysis.analyse(study, studies.QUICK)
  found = diagnostics.extrapolation(fit, 1.5e5)
  assert found["n_seen"] == 23 and found["C2"] == pytest.approx(3e5, rel=0.01)
  assert found["reward_predicted"] == pytest.approx(found["reward_seen"],
                                                    abs=0.03)


def test_every_choice_of_a_step_is_reported():
  names = [row["name"] for row in diagnostics.variants(
      studies.small_study(), studies.QUICK)]
  assert len(names) == len(set(names)) == 9
  assert any("record" in name for name in names)
