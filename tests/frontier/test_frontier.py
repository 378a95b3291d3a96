"""Curves, frontier and law: known truths, properties, refusals."""

import csv
import dataclasses
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from scipy import optimize

from isojax.errors import InputError
from isojax.frontier import analysis
from isojax.frontier import curves
from isojax.frontier import diagnostics
from isojax.frontier import document
from isojax.frontier import envelope
from isojax.frontier import proposal
from isojax.frontier import synthetic
from isojax.planner import fit_file
from isojax.planner import laws
from isojax.planner import priors

DATA = pathlib.Path(__file__).parents[1] / "data"
PUBLISHED = pathlib.Path(__file__).parents[2] / "isojax/assets/published"
QUICK = dataclasses.replace(analysis.DEFAULT, draws=100)
EXACT = dataclasses.replace(analysis.DEFAULT, draws=0)


def small_study(**changes):
  """Three n, noisy, small; a truth that changes twice."""
  truth = synthetic.Truth(Bp=5, n=(3, 7, 23), A=(0.5, 0.6, 0.7),
                          k=(9e-5, 4e-5, 2e-5), b=0.3)
  wanted = dict(C_max=3e5, evaluations=17, seeds=2, Q=31, k=5, spread=0.4,
                run_sd=0.0, seed=1) | changes
  return synthetic.study(truth, **wanted)


# Curves


@pytest.mark.parametrize("form", sorted(curves.FORMS))
def test_a_noiseless_curve_is_found(form):
  x = np.linspace(0, 1e6, 31)
  theta = {"saturating_exponential": [np.log(3e-6)],
           "logistic": [np.log(8e-6), 4e5],
           "hill": [np.log(3e5), np.log(1.7)]}[form]
  y = 0.2 + 0.37 * curves.FORMS[form](np.array(theta)[None], x)
  fit = curves.fit(x, y, np.ones_like(y), form=form, A_max=1.0, b_min=0.0,
                   rounds=9)
  np.testing.assert_allclose(fit(x), y, atol=2e-4)
  assert fit.at_bound == ()


def test_hill_by_hand():
  theta = np.array([[np.log(100.0), np.log(2.0)]])
  np.testing.assert_allclose(
      curves.hill(theta, np.array([0.0, 50.0, 100.0, 300.0])),
      [[0.0, 0.2, 0.5, 0.9]], atol=1e-12)


def test_the_logistic_far_left_is_the_saturating_exponential():
  x = np.linspace(0, 9.0, 7)
  np.testing.assert_allclose(
      curves.logistic(np.array([[np.log(0.5), -99.0]]), x),
      curves.saturating_exponential(np.array([[np.log(0.5)]]), x), rtol=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_no_worse_than_scipy_from_many_starts(seed):
  rng = np.random.default_rng(seed)
  x = np.sort(rng.uniform(0, 1, 13))
  y = np.clip(rng.uniform() * x + rng.normal(0, 0.2, 13) + 0.3, 0, 1)
  ours = curves.fit(x, y[None], np.ones((1, 13)), form="saturating_exponential",
                    A_max=1.0, b_min=0.0, rounds=9)
  low, high = 0.02 / x.max(), 300 / x.max()

  def residual(p):  # A in [b, 1] as b + (1 - b) share
    A = p[0] + (1 - p[0]) * p[1]
    return A - (A - p[0]) * np.exp(-np.exp(p[2]) * x) - y

  theirs = min(optimize.least_squares(
      residual, (b, 0.5, np.log(k)),
      bounds=((0, 0, np.log(low)), (1, 1, np.log(high)))).cost * 2
               for b in (0.1, 0.5) for k in (2 * low, 1.0, high / 2))
  assert ours.sse_D[0] <= theirs * 1.001 + 1e-6


def test_bounds_hold_and_are_reported():
  x = np.linspace(0, 10, 11)
  rising = curves.fit(x, 0.09 * x[None], np.ones((1, 11)), A_max=1.0, b_min=0.0,
                      form="saturating_exponential", rounds=5)
  assert "A" in rising.at_bound
  assert rising.b_D[0] + rising.s_D[0] <= 1.0 + 1e-12
  falling = curves.fit(x, 0.9 - 0.05 * x[None], np.ones((1, 11)), A_max=1.0,
                       b_min=0.0, form="saturating_exponential", rounds=5)
  assert "flat" in falling.at_bound
  np.testing.assert_allclose(falling(x), 0.65)  # the mean


def test_ema_by_hand():
  np.testing.assert_allclose(
      curves.ema_matrix(3, 0.8) @ [1.0, 0.0, 2.0], [1.0, 0.8, 1.04])


def test_records_by_hand():
  reward = [0.101, 0.105, 0.111, 0.108, 0.119, 0.131]
  keep = lambda w: curves.record_breaking(reward, bin_width=w).tolist()
  assert keep(0.0) == [True, True, True, False, True, True]
  assert keep(0.01) == [True, False, True, False, False, True]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_frontier_of_all_points_is_that_of_the_record_breaking(reward):
  keep = curves.record_breaking(reward, bin_width=0.0)
  C = np.arange(len(reward))
  best = lambda at, pool: max(r for c, r in pool if c <= at)
  everything = list(zip(C, reward))
  records = [p for p, kept in zip(everything, keep) if kept]
  assert [best(c, everything) for c in C] == [best(c, records) for c in C]


# Frontier and law


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_envelope_is_monotone_and_above_every_curve_that_was_seen(seed):
  fits = analysis.fit_curves(small_study(seed=seed), QUICK)
  C = np.geomspace(1e3, 4e5, 29)
  frontier = envelope.envelope(fits, C)
  assert (np.diff(frontier.reward_DxG, axis=1) >= -1e-12).all()
  for curve in fits:
    seen = (curve.C_lo <= C) & (C <= curve.C_hi)
    assert (frontier.reward_DxG[:, seen] >= curve(C[seen]) - 1e-12).all()


def test_what_rests_on_a_run_that_ended_is_not_resolved():
  one = lambda A, k, C_hi: curves.Curves(
      "saturating_exponential", np.log([[k]]), np.array([0.1]),
      np.array([A - 0.1]), np.array([0.0]), 0.0, C_hi, 9, ())
  # The first would win later on, but was seen up to 30 only.
  frontier = envelope.envelope([one(0.9, 0.01, 30.0), one(0.5, 0.1, 1e3)],
                               [20.0, 300.0])
  assert frontier.best_DxG.tolist() == [[1, 1]]
  assert frontier.resolved_DxG.tolist() == [[True, False]]


def fixture_study():
  """The published-style synthetic study: noise-free, five switches."""
  rows = list(csv.DictReader((DATA / "synthetic_frontier.csv").open()))
  template = small_study()
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
      EXACT, grid=400))
  for curve, A, k in zip(fit.curves, truth["A"], truth["k_per_M"]):
    assert curve.b_D[0] + curve.s_D[0] == pytest.approx(A, abs=2e-3)
    assert np.exp(curve.theta_DxP[0, 0]) == pytest.approx(k * 1e-6, rel=0.02)
  found = diagnostics.switches(fit)
  assert [(a, b) for a, b, _ in found] == [
      (s["n_from"], s["n_to"]) for s in truth["switches"]]
  for (_, _, C), wanted in zip(found, truth["switches"]):
    assert C == pytest.approx(wanted["C"], rel=0.05)


@pytest.mark.parametrize("first, min_C", [
    ((1, 1, 1, 1, 1, 1, 1, 1), 0.0),  # 8 at 99,840 first, 1024 at 98,304
    ((3, 1, 3, 1, 1, 3, 1, 3), 0.0), ((0,) * 8, 3e5)])
def test_a_configuration_without_an_evaluation_yet_may_lead(first, min_C):
  """Noise-free runs that start at different C; 8 leads up to 535,350."""
  study = synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=60,
                          seeds=1, Q=0, k=16, spread=0.5, run_sd=0.0, seed=0)
  study = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, step_E=r.step_E[i:], C_E=r.C_E[i:],
                          reward_E=r.reward_E[i:], value_ExQ=r.value_ExQ[i:])
      for i, r in zip(first, study.runs, strict=True)))
  fit = analysis.analyse(study, dataclasses.replace(
      EXACT, points=dataclasses.replace(EXACT.points, min_C=min_C)))
  assert [s[:2] for s in diagnostics.switches(fit)] == [
      (8, 16), (16, 32), (32, 64), (64, 128), (128, 256)]
  early = ~fit.frontier.resolved_DxG[0]
  assert early.any() and (fit.frontier.early_DxG[0] == early).all()
  caution, = [c for c in fit.cautions if "are not resolved" in c]
  assert "first evaluation is at a larger C" in caution
  assert "ended earlier" not in caution


def test_points_that_are_not_resolved_are_told_by_their_cause():
  """3 leads at first but begins late; 23 leads at the end but ends early."""
  study = small_study(Q=4000, k=50)
  keep = {3: slice(3, None), 7: slice(0, None), 23: slice(0, 12)}
  study = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, step_E=r.step_E[keep[r.n]], C_E=r.C_E[keep[r.n]],
                          reward_E=r.reward_E[keep[r.n]],
                          value_ExQ=r.value_ExQ[keep[r.n]])
      for r in study.runs))
  fit = analysis.analyse(study, EXACT)
  early, late = fit.frontier.early_DxG[0], ~fit.frontier.resolved_DxG[0]
  assert early.any() and (late & ~early).any()
  caution, = [c for c in fit.cautions if "are not resolved" in c]
  assert f"at {early.sum()} of them a configuration" in caution
  assert f"at {(late & ~early).sum()} of them the best n" in caution


def test_the_law_of_the_true_frontier():
  truth = json.loads((DATA / "synthetic_frontier_truth.json").read_text())
  grid, wanted = truth["n_star_on_grid"], truth["sigmoid_refit_on_grid"]
  fit = envelope.fit_law(
      np.log10(grid["C"]), np.log2(grid["n"])[None], np.ones((1, 41)), low=2.0,
      high=9.0, k=(0.5, 50.0), rounds=8)
  assert fit.x0_D[0] == pytest.approx(wanted["log10_C0"], abs=0.01)
  assert fit.b_D[0] + fit.L_D[0] == pytest.approx(
      wanted["L"] + wanted["b"], abs=0.02)
  assert fit.rmse_D[0] == pytest.approx(wanted["rmse_log2"], abs=1e-3)


def test_the_fit_and_the_planner_have_one_formula():
  fit = analysis.analyse(small_study(), EXACT)
  C = np.geomspace(1e4, 1e6, 31)
  np.testing.assert_array_equal(
      fit.law(np.log10(C))[0], analysis.sigmoid_of(fit).log2(C))
  np.testing.assert_array_equal(fit.law(np.log10(C))[0], laws.log2_n(
      np.log10(C), L=fit.law.L_D[0], k=fit.law.k_D[0], x0=fit.law.x0_D[0],
      b=fit.law.b_D[0]))


@pytest.mark.parametrize("change", [
    dict(b=1.0, L=4.0, k=5.0, x0=5.5), dict(b=3.0, L=5.5, k=9.0, x0=6.1)])
def test_a_law_is_recovered_from_its_own_points(change):
  law = laws.Sigmoid(change["L"], change["k"], change["x0"], change["b"])
  x = np.linspace(4.5, 7.0, 53)
  fit = envelope.fit_law(x, law.log2(10**x)[None], np.ones((1, 53)), low=0.0,
                         high=11.0, k=(0.5, 50.0), rounds=9)
  assert fit.x0_D[0] == pytest.approx(change["x0"], abs=2e-3)
  assert fit.k_D[0] == pytest.approx(change["k"], rel=1e-2)
  assert fit.at_bound == ()


def test_fixed_batch_law_from_the_digitised_points():
  """B = 8192, Easy: the fit of our bounds against the published law."""
  rows = list(csv.DictReader((DATA / "isocompute_q2_points.csv").open()))
  M = np.array([float(r["M"]) for r in rows])
  order = np.argsort(M)
  n = np.array([float(r["n"]) for r in rows])[order]
  fit = envelope.fit_law(M[order], np.log2(n)[None], np.ones((1, len(M))),
                         low=np.log2(8 / 2), high=10.0, k=(1e-3, 0.1), rounds=8)
  published = priors.PRIORS["q2-easy"].law
  for at in (100.0, 200.0, 500.0):
    ours = fit.b_D[0] + fit.L_D[0] / (1 + np.exp(
        -fit.k_D[0] * (at - fit.x0_D[0])))
    assert ours == pytest.approx(published.log2(at), abs=0.6)
  np.testing.assert_allclose(published.Bp(200.0) * published(200.0), 8192)


@settings(max_examples=8)
@given(st.integers(-3, 5), st.integers(0, 10**6))
def test_scaling_C_scales_C0(power, seed):
  study = small_study(seed=seed)
  scaled = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, C_E=r.C_E * 10.0**power) for r in study.runs))
  one, other = analysis.analyse(study, EXACT), analysis.analyse(scaled, EXACT)
  np.testing.assert_array_equal(other.log2_n_DxG, one.log2_n_DxG)
  np.testing.assert_allclose(other.law_DxG, one.law_DxG, atol=1e-6)
  if len(set(one.log2_n_DxG[0])) > 1:  # else no C0 is better than another
    assert other.law.x0_D[0] - one.law.x0_D[0] == pytest.approx(power, abs=1e-6)


def test_resamples_have_the_variance_of_the_mean():
  """Draws of S seeds scatter as the mean of S: sd^2 / S with ddof 1."""
  study = small_study(seeds=2)
  options = dataclasses.replace(QUICK, draws=20_000)
  problems, seeds = analysis.resamples(study, options)
  assert problems[0].sum() == pytest.approx(1.0)
  values = np.array([0.2, 0.6])
  means = seeds[0][1:] @ values / seeds[0][1:].sum(1)
  assert means.var() == pytest.approx(values.var(ddof=1) / 2, rel=0.03)


# Verdicts


def identified_study():
  return synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=60,
                         seeds=2, Q=300, k=16, spread=0.5, run_sd=0.0, seed=3)


def test_the_truth_is_inside_the_intervals_of_a_good_study():
  fit = analysis.analyse(identified_study(),
                         dataclasses.replace(QUICK, draws=300))
  assert fit.identified, fit.reasons
  exact = analysis.analyse(
      synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=60,
                      seeds=1, Q=0, k=16, spread=0.5, run_sd=0.0, seed=0),
      EXACT)
  ceiling = lambda law: law.b_D + law.L_D
  for ours, truth in ((fit.law.x0_D, exact.law.x0_D),
                      (ceiling(fit.law), ceiling(exact.law))):
    low, high = laws.interval(ours[0], ours[1:])
    assert low <= truth[0] <= high


@pytest.mark.parametrize("keep, C_max, reason", [
    ((8, 16), 4e6, "a law of four parameters needs at least 3"),
    ((8, 16, 32, 64), 4e6, "saturation unseen: n = 64"),
    ((8, 16, 32, 64, 128, 256, 512, 1024), 3e5, "needs at least 3"),
    ((64,), 4e6, "1 value of n on the frontier")])
def test_data_that_cannot_tell_are_refused(keep, C_max, reason):
  study = synthetic.study(synthetic.saturating(), C_max=C_max, evaluations=40,
                          seeds=1, Q=100, k=4, spread=0.5, run_sd=0.0, seed=1)
  study = dataclasses.replace(
      study, runs=tuple(r for r in study.runs if r.n in keep))
  fit = analysis.analyse(study, QUICK)
  assert not fit.identified
  assert any(reason in r for r in fit.reasons), fit.reasons
  assert any("one seed" in c for c in fit.cautions)
  assert "--sweep" in proposal.next_plan(fit, path="fit.json")["command"]


def test_few_problems_give_an_interval_that_is_too_wide():
  study = synthetic.study(synthetic.saturating(), C_max=4e6, evaluations=20,
                          seeds=1, Q=20, k=1, spread=0.5, run_sd=0.0, seed=1)
  fit = analysis.analyse(study, QUICK)
  assert any("95% interval of n*(C)" in r for r in fit.reasons), fit.reasons


def test_without_counts_intervals_come_from_the_scatter():
  study = small_study()
  study = dataclasses.replace(study, per_problem=False, runs=tuple(
      dataclasses.replace(r, value_ExQ=None) for r in study.runs))
  fit = analysis.analyse(study, QUICK)
  assert any("no counts per problem" in c for c in fit.cautions)
  spread = fit.frontier.reward_DxG[1:].std(0)
  assert (spread > 0).all() and (spread < 0.2).all()


def test_calibration_in_small():
  """30 studies: the full table is `python -m launch.verify.calibrate`."""
  from launch.verify import calibrate
  found = calibrate.calibrate(calibrate.SETTINGS[0], studies=30, draws=100,
                              seed=1000)
  # P(fewer than 23 of 30 | 95 %) is below 1 in 10,000.
  assert (found["cover"] >= 23 / 30).all(), found["cover"]
  C0, ceiling, *n = found["width"]  # n: half a step each way is 1.0
  assert C0 < 0.5 and ceiling < 3.5 and max(n) < 1.4, found["width"]
  assert abs(found["switch"]) < 0.15


def leading_below_the_largest():
  """n = 2 to 128; 64 leads from 1.2 million to the end, at 3 million."""
  truth = synthetic.Truth(
      Bp=32, n=(2, 4, 8, 16, 32, 64, 128), b=0.3,
      A=(0.40, 0.425, 0.45, 0.475, 0.50, 0.53, 0.49),
      k=tuple(1e-5 * 0.66**i for i in range(7)))
  return synthetic.study(truth, C_max=3e6, evaluations=60, seeds=2, Q=300,
                         k=16, spread=0.5, run_sd=0.0, seed=1)


def test_a_law_that_contradicts_its_curves_says_so():
  fit = analysis.analyse(leading_below_the_largest(), QUICK)
  assert fit.identified and fit.study.configurations[
      fit.frontier.best_DxG[0, -1]] == (32, 64)
  assert 90 < 2 ** (fit.law.b_D[0] + fit.law.L_D[0]) <= 128
  told, = [c for c in fit.cautions if "contradicts the measured curves" in c]
  assert "n = 64 leads with 0.51" in told
  assert "Do not use another n than 64 without a test." in told
  found = document.document(
      fit, others={}, notes=[], matched=None, hill=[],
      next_plan=proposal.next_plan(fit, path="fit.json"))
  assert told in found["verdict"]["cautions"]
  # 64 is the best of 32, 64 and 128: the best n lies between 45 and 91.
  assert found["law"]["low"][-1] < 2**5.5 * 1.1
  assert found["law"]["high"][-1] > 2**6.5


def test_a_law_that_agrees_with_its_curves_has_no_such_caution():
  fit = analysis.analyse(identified_study(), EXACT)
  assert analysis.contradiction(fit) is None


def test_the_best_n_of_a_draw_lies_between_the_tested_n():
  best = np.log2([[8, 16, 64]] * 5001)
  moved = analysis.between_tested(best, np.log2([8, 16, 64]), seed=0)
  np.testing.assert_array_equal(moved[0], best[0])
  np.testing.assert_allclose(moved[1:].min(0), [2.5, 3.5, 5.0], atol=0.01)
  np.testing.assert_allclose(moved[1:].max(0), [3.5, 5.0, 7.0], atol=0.01)


def continuing(n_max):
  """A truth whose largest n goes on growing: 256 takes over at 2.84 million."""
  ns = tuple(2**i for i in range(3, 11) if 2**i <= n_max)
  return synthetic.Truth(
      Bp=32, n=ns, A=tuple(0.6 + 0.012 * i for i in range(len(ns))),
      k=(6e-6, 4.1e-6, 2.8e-6, 1.9e-6, 1.3e-6, .88e-6, .6e-6)[:len(ns)], b=0.45)


def test_a_ceiling_that_is_not_in_the_data_is_refused():
  """256 leads at the end, but 512 would soon, at 4.29 million."""
  study = synthetic.study(continuing(512), C_max=3e6, evaluations=60, seeds=1,
                          Q=300, k=16, spread=0.5, run_sd=0.0, seed=2)
  fit = analysis.analyse(study, QUICK)
  reason, = [r for r in fit.reasons if "saturation unseen: n = 512" in r]
  assert "twice the largest C" in reason or "of the draws" in reason
  assert "--n=8,16,32,64,128,256,512,1024,2048" in proposal.next_plan(
      fit, path="fit.json")["command"]


def test_a_tie_with_the_largest_n_at_the_end_is_not_saturation():
  """256 takes over just beyond the data: some draws have it lead there."""
  study = synthetic.study(continuing(256), C_max=2.8e6, evaluations=60, seeds=1,
                          Q=300, k=16, spread=0.5, run_sd=0.0, seed=2)
  fit = analysis.analyse(study, QUICK)
  assert any("saturation unseen: n = 256" in r for r in fit.reasons)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_without_a_difference_no_n_is_best(value):
  study = small_study()
  study = dataclasses.replace(study, metric="worst@8", runs=tuple(
      dataclasses.replace(r, value_ExQ=np.full_like(r.value_ExQ, value),
                          reward_E=np.full_like(r.reward_E, value))
      for r in study.runs))
  fit = analysis.analyse(study, QUICK)
  why = f"no n differs: worst@8 is {value:g} throughout"
  assert fit.law is None and fit.reasons == (why,) and not fit.cautions
  row, = diagnostics.best_n(fit)
  assert (row.n, row.agreeing, row.n_interval, row.why) == (
      None, None, None, why)
  assert "no n differs" in proposal.next_plan(fit, path="f")["text"]


def test_a_forecast_that_failed_is_a_caution():
  fit = analysis.analyse(small_study(), EXACT)  # steps up to 23 / 7, 1.7 log2
  seen = diagnostics.Extrapolation(
      C1=1e5, C2=3e5, n_predicted=6.0, n_seen=23, reward_predicted=0.5,
      reward_seen=0.5, reward_interval=(0.4, 0.6))
  assert "gives n* = 6 at 0.3M, where n = 23 leads" in diagnostics.unforeseen(
      fit, seen)
  told = lambda n: diagnostics.unforeseen(
      fit, dataclasses.replace(seen, n_predicted=n))
  assert told(12.0) and told(14.0) is None  # half a step is a factor of 1.8


def test_training_sets_of_several_sizes_are_named():
  study = small_study()
  several = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, D=500 if r.n == 3 else 6000) for r in study.runs))
  assert several.D is None
  assert any("D = 500: n3-0, n3-1; D = 6000: n7-0" in c
             for c in analysis.analyse(several, EXACT).cautions)
  rounded = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, D=6000 + i) for i, r in enumerate(study.runs)))
  assert rounded.D in range(6000, 6006)
  assert not any("training sets" in c
                 for c in analysis.analyse(rounded, EXACT).cautions)


# Diagnostics


def test_polarisation_by_hand():
  assert diagnostics.polarisation([0, 0, 4, 4], 4) == pytest.approx(1.0)
  # m = 3/6; mean c(c-1)/(k(k-1)) = (0+0+6)/(3*6) = 1/3; (1/3-1/4)/(1/4) = 1/3
  assert diagnostics.polarisation([0, 1, 3], 3) == pytest.approx(
      (1 / 3 - (4 / 9) ** 2) / (4 / 9 * 5 / 9))
  assert np.isnan(diagnostics.polarisation([0, 0], 4))


def test_polarisation_is_unbiased_in_k():
  rng = np.random.default_rng(0)
  p = rng.beta(0.7, 1.9, 40_000)
  exact = p.var() / (p.mean() * (1 - p.mean()))
  for k in (2, 5):
    found = diagnostics.polarisation(rng.binomial(k, p), k)
    assert found == pytest.approx(exact, abs=0.02)


def test_uniform_progress_keeps_a_point_mass_a_point_mass():
  assert diagnostics.uniform_progress(0.3, 0.0, 0.6) < 0.01
  assert diagnostics.uniform_progress(0.3, 0.2, 0.3) == pytest.approx(
      0.2, abs=0.01)


def test_interference_tells_rich_get_richer_from_uniform():
  rng = np.random.default_rng(1)
  p = rng.beta(2, 6, 2000)
  start = rng.binomial(8, p)
  odds = np.log(p / (1 - p))
  ends = {"uniform": 1 / (1 + np.exp(-(odds + 1))),
          "rich": np.where(p > np.quantile(p, 0.6), 0.97, p)}
  score = {}
  for name, rate in ends.items():
    counts = np.stack([start, rng.binomial(8, rate)])
    run = dataclasses.replace(small_study().runs[0], C_E=np.array([0.0, 1.0]),
                              value_ExQ=counts / 8)
    found = diagnostics.interference(run, 8, frames=2, draws=50, seed=0)
    score[name] = found
    assert [sum(h) for h in found.histograms] == [2000, 2000]
  assert abs(score["uniform"].score) < 0.03
  assert score["rich"].score_interval[0] > 0.2


def test_histogram_by_hand():
  #      0  (0,.1]  ...                              1
  assert diagnostics.histogram([0, 1, 2, 10, 20, 20], 20) == (
      1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2)


def curve(b, s, k, C_lo=0.0, C_hi=1e9):
  """R(C) = b + s (1 - exp(-k C))."""
  return curves.Curves(
      "saturating_exponential", np.log([[k]]), np.array([b]), np.array([s]),
      np.array([0.0]), C_lo, C_hi, 9, ())


def test_a_switch_is_where_the_curves_cross():
  flat, rising = curve(0.4, 0.0, 1.0), curve(0.2, 0.4, 0.01)
  # 0.2 + 0.4 (1 - exp(-C / 100)) = 0.4 at C = 100 log 2
  assert envelope.crossing(flat, rising, 1.0, 500.0) == pytest.approx(
      100 * np.log(2))
  # a curve that begins ahead leads from its first point on
  late = curve(0.5, 0.0, 1.0, C_lo=30.0)
  assert envelope.crossing(flat, late, 1.0, 500.0) == 30.0


def test_the_switches_are_the_same_in_table_and_figure():
  fit = analysis.analyse(small_study(Q=4000, k=50), QUICK)
  told = diagnostics.switches(fit)
  drawn = [C for C in document.frontier_fields(fit)["change"] if C is not None]
  assert len(told) == 2 and [C for *_, C in told] == drawn
  one, other = (fit.curves[i]([told[-1][2]])[0, 0] for i in (1, 2))
  assert one == pytest.approx(other, abs=1e-9)


def test_the_observed_range_is_the_runs_own_whichever_points_are_fitted():
  study = small_study()
  records = dataclasses.replace(EXACT, points=curves.Points(
      select="records", ema=0.0, min_C=0.0, bin_width=0.0))
  everything, few = (analysis.analyse(study, o) for o in (EXACT, records))
  for one, other in zip(everything.curves, few.curves, strict=True):
    assert (one.C_lo, one.C_hi) == (other.C_lo, other.C_hi)
    assert other.points < one.points == 36
  assert few.frontier.resolved_DxG.all()


@pytest.mark.parametrize("change", [
    dict(bin_width=-1.0), dict(bin_width=float("nan")), dict(bin_width=5.0),
    dict(min_C=-1.0), dict(min_C=float("nan")), dict(ema=1.0),
    dict(select="some")])
def test_points_are_checked(change):
  with pytest.raises(InputError, match=next(iter(change))):
    dataclasses.replace(analysis.DEFAULT.points, **change)


@pytest.mark.parametrize("change", [
    dict(draws=1), dict(draws=-3), dict(seed=-1), dict(form="line"),
    dict(grid=1), dict(A_max=2.0), dict(rounds=-1)])
def test_options_are_checked(change):
  with pytest.raises(InputError, match=next(iter(change))):
    dataclasses.replace(analysis.DEFAULT, **change)


def test_too_few_records_are_refused_with_the_run():
  wide = dataclasses.replace(analysis.PAPER, draws=0, points=curves.Points(
      select="records", ema=0.0, min_C=0.0, bin_width=0.5))
  with pytest.raises(InputError, match=r"run n3-0 breaks its record \d times"):
    analysis.fit_curves(small_study(), wide)


# What to run next


def command(fit):
  return dict(part[2:].split("=", 1) for part in proposal.next_plan(
      fit, path="my fit.json")["command"].split() if "=" in part)


def fixed_batch(axis):
  """B = 60, n = 3, 6, 12; 6 updates an evaluation."""
  runs = []
  for n in (3, 6, 12):
    runs += synthetic.study(
        synthetic.Truth(Bp=60 // n, n=(n,), A=(0.5 + 0.01 * n,), k=(5e-5,),
                        b=0.3), C_max=3600, evaluations=10, seeds=1, Q=50, k=4,
        spread=0.4, run_sd=0.0, seed=0).runs
  unit = 60 if axis == "updates" else 1
  return dataclasses.replace(small_study(), axis=axis, runs=tuple(
      dataclasses.replace(r, C_E=r.C_E / unit) for r in runs))


@pytest.mark.parametrize("axis", ["updates", "rollouts"])
def test_a_fixed_batch_stays_one_in_the_proposal(axis):
  fit = analysis.analyse(fixed_batch(axis), EXACT)
  assert not fit.identified
  found = command(fit)
  assert found["B"] == "60" and "n" not in found
  assert all(60 % int(Bp) == 0 for Bp in found["Bp"].split(","))
  assert int(found["rollouts"]) >= 3600  # rollouts, not 60 updates


def test_the_proposal_has_50_updates_and_says_what_it_takes():
  """One n, 160 rollouts a step: no `between`, and nothing that led."""
  study = synthetic.study(
      synthetic.Truth(Bp=20, n=(8,), A=(0.6,), k=(1e-3,), b=0.3), C_max=4800,
      evaluations=10, seeds=2, Q=50, k=4, spread=0.4, run_sd=0.0, seed=0)
  fit = analysis.analyse(study, EXACT)
  found, text = command(fit), proposal.next_plan(fit, path="f")["text"]
  assert found["n"] == "8,16,32" and found["Bp"] == "20"
  assert int(found["rollouts"]) == 50 * 20 * 32
  assert "between" not in text and "led" not in text
  assert "6 runs and 192,000 rollouts in all" in text


def test_an_identified_law_goes_on_from_what_was_fitted():
  """A run that went on alone, 25 times as far, moves nothing."""
  fit = analysis.analyse(identified_study(), EXACT)
  fit = dataclasses.replace(fit, identified=True)
  far = dataclasses.replace(fit, frontier=dataclasses.replace(
      fit.frontier, C_G=fit.frontier.C_G * np.where(
          np.arange(60) < 50, 1, 25), resolved_DxG=fit.frontier.resolved_DxG
      & (np.arange(60) < 50)))
  text = proposal.next_plan(far, path="my fit.json")["command"]
  assert f"--rollouts={round(2 * fit.frontier.C_G[49])} " in text
  assert text.endswith("--law='my fit.json'")


def test_sensitivity_and_best_n_of_known_curves():
  fit = analysis.analyse(small_study(Q=4000, k=50), QUICK)
  over_n, = diagnostics.sensitivity(fit)
  assert (over_n.varied, over_n.held, over_n.values) == ("n", 5, (3, 7, 23))
  assert over_n.spread == pytest.approx(0.19, abs=0.03)
  best, = diagnostics.best_n(fit)
  assert (best.n, best.Bp, best.agreeing) == (23, 5, 1.0)


def test_extrapolation_is_scored_against_what_was_seen():
  fit = analysis.analyse(small_study(Q=4000, k=50, evaluations=40), QUICK)
  found = diagnostics.extrapolation(fit, 1.5e5)
  assert found.n_seen == 23 and found.C2 == pytest.approx(3e5, rel=0.01)
  assert found.reward_predicted == pytest.approx(found.reward_seen, abs=0.03)


def test_every_choice_of_a_step_is_reported():
  names = [v.name for v in diagnostics.variants(small_study(), QUICK)]
  assert len(names) == len(set(names)) == 9
  assert any("record" in name for name in names)


# The document


def test_the_document_is_json_and_the_planner_reads_it():
  fit = analysis.analyse(identified_study(), QUICK)
  found = document.document(
      fit, others={"avg": fit}, notes=["a note"], matched=None,
      hill=document.scalerl_fields(
          dataclasses.replace(fit.study, runs=fit.study.runs[:1]), min_C=0.0,
          notes=[]), next_plan=proposal.next_plan(fit, path="fit.json"))
  again = json.loads(json.dumps(found, allow_nan=False))
  law = fit_file.read_fit(again, path="fit.json")
  assert law.identified and len(law.draws) == 100
  assert law.law(1e6) == pytest.approx(
      2 ** fit.law([6.0])[0, 0], rel=1e-4)
  low, high = law.interval(1e6)
  assert low < law.law(1e6) < high


def short_run(E):
  """A study of one run with E evaluations after the one at C = 0."""
  truth = synthetic.Truth(Bp=5, n=(3,), A=(0.5,), k=(2e-4,), b=0.3)
  return synthetic.study(truth, C_max=3e4, evaluations=E, seeds=1, Q=50, k=8,
                         spread=0.4, run_sd=0.0, seed=1)


def test_a_run_of_six_points_has_a_law_and_no_half():
  notes = []
  row, = document.scalerl_fields(short_run(6), min_C=0.0, notes=notes)
  assert row["half"] is None and 0.4 < row["A"] <= 1.0
  note, = notes
  assert note.startswith("no ScaleRL law of the first half for 1 run (n3-0): 3 ")


def test_the_document_has_the_real_interval_and_the_margin():
  row, = document.scalerl_fields(short_run(20), min_C=0.0, notes=[])
  low, high = row["A_interval"]
  assert low <= row["A"] <= high and row["A_margin"] == 0.02
  assert high - low != pytest.approx(0.04, abs=1e-6)


def test_the_best_n_of_each_C_has_an_interval():
  """What the envelope tells where no law is identified."""
  fit = analysis.analyse(small_study(), QUICK)
  found = document.frontier_fields(fit)
  assert set(found["n_low"]) | set(found["n_high"]) <= {3, 7, 23}
  assert (found["n_low"] <= found["n"]).all()
  assert (found["n_high"] >= found["n"]).all()
