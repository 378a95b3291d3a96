"""The whole analysis against studies whose truth is known."""

import csv
import dataclasses
import json
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.core import laws
from isojax.frontier import analysis, diagnostics
from tests.frontier import studies

DATA = pathlib.Path(__file__).parents[1] / "data"


def fixture_study():
  """The published-style synthetic study: noise-free, five switches."""
  rows = list(csv.DictReader((DATA / "synthetic_frontier.csv").open()))
  template = studies.small_study()
  runs = []
  for n in sorted({int(r["n"]) for r in rows}):
    mine = [r for r in rows if int(r["n"]) == n]
    reward = np.array([float(r["reward"]) for r in mine])
    runs.append(dataclasses.replace(
        template.runs[0], run_id=f"n{n}", seed=0, Bp=32, n=n,
        step_E=np.array([int(r["step"]) for r in mine]),
        C_E=np.array([float(r["C"]) for r in mine]), reward_E=reward,
        value_ExQ=reward[:, None]))
  return dataclasses.replace(template, runs=tuple(runs))


def test_the_noise_free_study_is_recovered():
  truth = json.loads((DATA / "synthetic_frontier_truth.json").read_text())
  fit = analysis.analyse(fixture_study(), dataclasses.replace(
      studies.EXACT, grid=400))
  for curve, A, k in zip(fit.curves, truth["A"], truth["k_per_M"]):
    assert curve.b_D[0] + curve.s_D[0] == pytest.approx(A, abs=2e-3)
    assert np.exp(curve.theta_DxP[0, 0]) == pytest.approx(k * 1e-6, rel=0.02)
  found = diagnostics.switches(fit)
  assert [(n_from, n_to) for n_from, n_to, _ in found] == [
      (switch["n_from"], switch["n_to"]) for switch in truth["switches"]]
  for (_, _, C), wanted in zip(found, truth["switches"]):
    assert C == pytest.approx(wanted["C"], rel=0.05)


@pytest.mark.parametrize("first, min_C", [
    ((1, 1, 1, 1, 1, 1, 1, 1), 0.0),  # 8 at 99,840 first, 1024 at 98,304
    ((3, 1, 3, 1, 1, 3, 1, 3), 0.0), ((0,) * 8, 3e5)])
def test_a_configuration_without_an_evaluation_yet_may_lead(first, min_C):
  """Noise-free runs that start at different C; 8 leads up to 535,350."""
  study = studies.exact_study()
  study = dataclasses.replace(study, runs=tuple(
      r.select(slice(i, None)) for i, r in zip(first, study.runs, strict=True)))
  fit = analysis.analyse(study, dataclasses.replace(
      studies.EXACT, points=dataclasses.replace(
          studies.EXACT.points, min_C=min_C)))
  assert [switch[:2] for switch in diagnostics.switches(fit)] == [
      (8, 16), (16, 32), (32, 64), (64, 128), (128, 256)]
  early = ~fit.frontier.resolved_DxG[0]
  assert early.any() and (fit.frontier.early_DxG[0] == early).all()
  caution, = [c for c in fit.cautions if "are not resolved" in c]
  assert "first evaluation is at a larger C" in caution
  assert "ended earlier" not in caution


def test_the_fit_and_the_planner_have_one_formula():
  fit = analysis.analyse(studies.small_study(), studies.EXACT)
  C_G, (L, k, x0, b) = fit.frontier.C_G, fit.law.theta_Dx4[0]
  np.testing.assert_array_equal(fit.law_DxG[0], fit.law.log2(C_G))
  np.testing.assert_array_equal(
      fit.law_DxG[0], laws.Sigmoid(L, k, x0, b).log2(C_G))


@settings(max_examples=8)
@given(st.integers(-3, 5), st.integers(0, 10**6))
def test_scaling_C_scales_C0(power, seed):
  study = studies.small_study(seed=seed)
  scaled = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, C_E=r.C_E * 10.0**power) for r in study.runs))
  one, other = (analysis.analyse(case, studies.EXACT)
                for case in (study, scaled))
  np.testing.assert_array_equal(other.log2_n_DxG, one.log2_n_DxG)
  np.testing.assert_allclose(other.law_DxG, one.law_DxG, atol=1e-6)
  if len(set(one.log2_n_DxG[0])) > 1:  # else no C0 is better than another
    assert other.law.x0_D[0] - one.law.x0_D[0] == pytest.approx(power, abs=1e-6)


def test_the_truth_is_inside_the_intervals_of_a_good_study():
  fit = analysis.analyse(studies.identified_study(),
                         dataclasses.replace(studies.QUICK, draws=300))
  assert fit.identified, fit.reasons
  exact = analysis.analyse(studies.exact_study(), studies.EXACT)
  ceiling = lambda law: law.b_D + law.L_D
  for ours, truth in ((fit.law.x0_D, exact.law.x0_D),
                      (ceiling(fit.law), ceiling(exact.law))):
    low, high = laws.interval(ours[0], ours[1:])
    assert low <= truth[0] <= high


def test_the_best_n_of_a_draw_lies_between_the_tested_n():
  best = np.log2([[8, 16, 64]] * 5001)
  moved = analysis.between_tested(best, np.log2([8, 16, 64]), seed=0)
  np.testing.assert_array_equal(moved[0], best[0])
  np.testing.assert_allclose(moved[1:].min(0), [2.5, 3.5, 5.0], atol=0.01)
  np.testing.assert_allclose(moved[1:].max(0), [3.5, 5.0, 7.0], atol=0.01)


def test_the_observed_range_is_the_runs_own_whichever_points_are_fitted():
  study = studies.small_study()
  records = dataclasses.replace(studies.EXACT, points=dataclasses.replace(
      studies.EXACT.points, select="records"))
  everything, few = (analysis.analyse(study, options)
                     for options in (studies.EXACT, records))
  for one, other in zip(everything.curves, few.curves, strict=True):
    assert (one.C_lo, one.C_hi) == (other.C_lo, other.C_hi)
    assert other.points < one.points == 36
  assert few.frontier.resolved_DxG.all()
