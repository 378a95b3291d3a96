"""The set of good n, the lead, limits, variants, extrapolation, best n."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from isojax.frontier import analysis, diagnostics, fit_json
from isojax.frontier.study import Study, StudyRun
from isojax.logs.fields import TRAINING
from tests.frontier import studies


def test_a_forecast_that_failed_is_a_limit():
  # The widest gap between n is that of 7 and 23, 1.7 in log2.
  fit = analysis.analyse(studies.small_study(), studies.EXACT)
  seen = {"C1": 1e5, "C2": 3e5, "n_predicted": 6.0, "n_seen": 23}
  text = diagnostics.failed_extrapolation(fit, seen)
  assert "gives n* = 6 at 0.3M, where n = 23 leads" in text
  for n, failed in ((12.0, True), (14.0, False), (None, False)):
    # half a step is a factor of 1.8
    row = seen | {"n_predicted": n}
    assert bool(diagnostics.failed_extrapolation(fit, row)) == failed


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


def test_a_tie_is_named_with_the_reward_of_its_own_Bp():
  study = studies.small_study()
  flat = tuple(dataclasses.replace(
      run, Bp=9, value_ExQ=np.full_like(run.value_ExQ, 0.25),
      reward_E=np.full_like(run.reward_E, 0.25)) for run in study.runs)
  fit = analysis.analyse(
      dataclasses.replace(study, runs=study.runs + flat), studies.QUICK)
  differs, tied = diagnostics.best_n(fit)
  assert differs["why"] is None
  assert tied["why"] == "no n differs: every curve of avg is at 0.25"


def test_the_best_n_of_known_curves():
  fit = analysis.analyse(studies.clear_study(), studies.QUICK)
  best, = diagnostics.best_n(fit)
  assert (best["n"], best["Bp"], best["agreeing"]) == (23, 5, 1.0)
  assert best["n_interval"] == [23, 23]


def test_an_interval_of_n_has_tested_n_alone():
  """At 55,000, where the true curves of 7 and 23 cross."""
  fit = analysis.analyse(studies.small_study(C_max=5.5e4), studies.QUICK)
  best, = diagnostics.best_n(fit)
  assert best["agreeing"] < 0.95 and set(best["n_interval"]) <= {3, 7, 23}


def test_the_set_is_within_the_margin_of_the_best():
  """0.699 of n = 23 at the end, 0.600 of 7 and 0.500 of 3."""
  fit = analysis.analyse(studies.clear_study(), dataclasses.replace(
      studies.QUICK, margin=0.12))
  worse, best = diagnostics.as_good(fit)
  assert (worse["n"], best["n"], best["interval"]) == (7, 23, None)
  low, high = worse["interval"]
  assert low < worse["cost"] < high
  assert worse["cost"] == pytest.approx(0.099, abs=0.01)
  narrow = dataclasses.replace(fit, options=studies.QUICK)
  assert [row["n"] for row in diagnostics.as_good(narrow)] == [23]
  ended = dataclasses.replace(fit.study, runs=tuple(
      r.select(slice(13)) if r.n == 7 else r for r in fit.study.runs))
  row, _ = diagnostics.as_good(analysis.analyse(ended, fit.options))
  assert row["ended"] == max(
      r.C_E[-1] for r in ended.runs if r.n == 7) < fit.study.runs[0].C_E[-1]


def training(S, seed):
  """Two n with one true curve; runs differ by 0.02, steps by 0.03."""
  rng, C_E = np.random.default_rng(seed), np.arange(1, 21) * 1000.0
  runs = tuple(
      StudyRun(f"{n}-{seed}", seed, 32, n, C_E / 100, C_E, None, np.clip(
          0.3 + 0.2 * (1 - np.exp(-C_E / 8000)) + rng.normal(0, 0.02)
          + rng.normal(0, 0.03, 20), 0, 1), None, "a", samples=300)
      for n in (4, 8) for seed in range(S))
  return Study(runs, "rollouts", "avg", "made", TRAINING, "made", None, False)


@pytest.mark.parametrize("S", [2, 5])
def test_the_lead_of_a_training_reward_has_the_interval_of_its_seeds(S):
  """scipy's Welch interval; percentiles of few seeds are too narrow."""
  fit = analysis.analyse(training(S, 0), studies.QUICK)
  row = diagnostics.lead(fit)

  def distances(n):
    """Of each run from its curve, the mean over the second half of its C."""
    curve = fit.curves[fit.study.configurations.index((32, n))]
    return [np.mean(run.reward_E[10:] - curve(run.C_E[10:])[0])
            for run in fit.study.runs_of(32, n)]

  one, other = distances(row["n"]), distances(row["rival"])
  welch = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
  difference = np.mean(one) - np.mean(other)
  assert row["C"] == 20_000
  np.testing.assert_allclose(
      row["lead_interval"], row["lead"] + np.array(welch) - difference)


def test_a_curve_that_begins_after_another_ends_is_left_out():
  """200 steps of Bp * n for each n, evaluated every 10 steps from step 10 on.

  n = 8 ends at 51,200 rollouts, and n = 512 is first evaluated at 163,840.
  """
  step_E = np.arange(10, 201, 10)
  runs = tuple(
      StudyRun(f"r{n}", 0, 32, n, step_E, 32.0 * n * step_E, None,
               0.6 - 0.5 * np.exp(-step_E * n**0.5 / 900), None, "a.csv")
      for n in (8, 64, 512))
  fit = analysis.analyse(Study(runs, "rollouts", "avg", "hard", "v", "m", 4,
                               False), studies.QUICK)
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


def test_a_larger_n_that_catches_up_is_a_limit():
  """A gap of 0.06 after 0.095 an octave earlier; one after 0.065 is none."""
  C = np.array([1e3, 5e4, 1e5, 2e5])
  table = lambda gap_E, form="hill": Table(C, 0.5 - np.array(gap_E), form)
  leader = table([0, 0, 0, 0])
  near, far = table([.12, .095, .06, .03]), table([.09, .065, .06, .055])
  for rival, said in ((near, True), (far, False)):
    fit = analysis.analyse(studies.small_study(), studies.EXACT)
    study = dataclasses.replace(fit.study, runs=tuple(
        r for r in fit.study.runs if r.n != 23))
    frontier = dataclasses.replace(
        fit.frontier, C_G=np.array([1e3, 1e5]), best_DxG=np.zeros((3, 2), int),
        resolved_DxG=np.ones((3, 2), bool))
    limit = diagnostics.catching_up(dataclasses.replace(
        fit, study=study, curves=[leader, rival], other=[], frontier=frontier))
    assert (limit is not None) == said
    if said:
      assert "from 0.095 at 50k to 0.060 at 0.1M" in limit


class Table:
  """Three equal draws of a curve that is known at a few C."""

  def __init__(self, C, reward, form):
    self.C, self.reward, self.form = C, reward, form
    self.C_lo, self.C_hi, self.sse_D = C[0], 1e5, np.zeros(3)
    self.points = 20

  def __call__(self, C):
    return np.tile(np.interp(C, self.C, self.reward), (3, 1))
