"""When a law is identified, when beyond its data, and what is said if not."""

import dataclasses

import numpy as np
import pytest

from isojax.frontier import analysis, diagnostics, fit_json, proposal, verdict
from tests.frontier import overtaking, studies, synthetic


def test_points_that_are_not_resolved_are_reported_by_cause():
  """3 leads at first but begins late; 23 leads at the end but ends early."""
  study = studies.clear_study()
  keep = {3: slice(3, None), 7: slice(0, None), 23: slice(0, 12)}
  study = dataclasses.replace(study, runs=tuple(
      r.select(keep[r.n]) for r in study.runs))
  fit = analysis.analyse(study, studies.EXACT)
  early, late = fit.frontier.early_DxG[0], ~fit.frontier.resolved_DxG[0]
  assert early.any() and (late & ~early).any()
  caution, = [c for c in fit.cautions if "are not resolved" in c]
  assert f"at {early.sum()} of them a configuration" in caution
  assert f"at {(late & ~early).sum()} of them the best n" in caution


@pytest.mark.parametrize("keep, C_max, reason", [
    ((8, 16), 4e6, "a law of four parameters needs at least 3"),
    ((8, 16, 32, 64), 4e6, "saturation unseen: n = 64"),
    ((8, 16, 32, 64, 128, 256, 512, 1024), 3e5, "needs at least 3"),
    ((64,), 4e6, "1 value of n on the frontier")])
def test_data_that_cannot_tell_are_refused(keep, C_max, reason):
  study = synthetic.study(synthetic.saturating(), C_max=C_max, evaluations=40,
                          Q=100, k=4, seed=1)
  study = dataclasses.replace(
      study, runs=tuple(r for r in study.runs if r.n in keep))
  fit = analysis.analyse(study, studies.QUICK)
  assert not fit.identified
  assert any(reason in r for r in fit.reasons), fit.reasons
  assert any("one seed" in c for c in fit.cautions)
  assert "--sweep" in proposal.next_plan(fit, path="fit.json")["command"]


def test_few_problems_give_an_interval_that_is_too_wide():
  study = synthetic.study(synthetic.saturating(), C_max=4e6, evaluations=20,
                          Q=20, k=1, seed=1)
  fit = analysis.analyse(study, studies.QUICK)
  assert any("n* is known only to a factor of" in r
             for r in fit.reasons), fit.reasons


def leading_below_the_largest():
  """n = 2 to 128; 64 leads from 1.2 million to the end, at 3 million."""
  truth = synthetic.Truth(
      Bp=32, n=(2, 4, 8, 16, 32, 64, 128), b=0.3,
      A=(0.40, 0.425, 0.45, 0.475, 0.50, 0.53, 0.49),
      k=tuple(1e-5 * 0.66**i for i in range(7)))
  return synthetic.study(truth, C_max=3e6, evaluations=60, seeds=2, seed=1)


def test_a_law_that_contradicts_its_curves_says_so():
  fit = analysis.analyse(leading_below_the_largest(), studies.QUICK)
  assert fit.identified and fit.study.configurations[
      fit.frontier.best_DxG[0, -1]] == (32, 64)
  assert 90 < 2 ** (fit.law.b_D[0] + fit.law.L_D[0]) <= 128
  caution, = [c for c in fit.cautions if "contradicts the measured curves" in c]
  assert "n = 64 leads with 0.51" in caution
  assert "Do not use another n than 64 without a test." in caution
  found = fit_json.document(fit, path="fit.json", with_scalerl=False)
  assert caution in found["verdict"]["cautions"]
  # 64 is the best of 32, 64 and 128: the best n lies between 45 and 91.
  assert found["law"]["low"][-1] < 2**5.5 * 1.1
  assert found["law"]["high"][-1] > 2**6.5


def test_a_law_that_agrees_with_its_curves_has_no_such_caution():
  fit = analysis.analyse(studies.identified_study(), studies.EXACT)
  assert verdict.contradiction(fit) is None


def test_a_law_at_a_bound_says_what_the_data_do_not_show():
  fit = analysis.analyse(studies.identified_study(), studies.EXACT)
  assert fit.identified
  reasons, cautions = verdict.verdict(dataclasses.replace(
      fit, law=dataclasses.replace(
          fit.law, at_bound=("floor", "ceiling", "midpoint", "k"))))
  assert reasons == (
      "the data do not show where n* stops growing",
      "the data do not show C0, the middle of the rise of n*")
  assert {"the data do not show where n* begins to grow",
          "the data do not show how steeply n* grows"} <= set(cautions)


@pytest.mark.parametrize("largest, C_max", [(512, 3e6), (256, 2.8e6)])
def test_a_ceiling_that_is_not_in_the_data_is_refused(largest, C_max):
  """256 takes over at 2.84 million and 512 at 4.29, beyond the data."""
  k = (6e-6, 4.1e-6, 2.8e-6, 1.9e-6, 1.3e-6, .88e-6, .6e-6)
  n = tuple(2**i for i in range(3, 10) if 2**i <= largest)
  truth = synthetic.Truth(
      Bp=32, n=n, A=tuple(0.6 + 0.012 * i for i in range(len(n))),
      k=k[:len(n)], b=0.45)
  study = synthetic.study(truth, C_max=C_max, evaluations=60, seed=2)
  fit = analysis.analyse(study, studies.QUICK)
  reason, = [r for r in fit.reasons if "saturation unseen" in r]
  assert f"n = {largest}, the largest" in reason
  assert ("is best at the largest C;" in reason) == (largest == 256)
  found = proposal.next_plan(fit, path="fit.json")["command"]
  assert f"n={2 * largest} " in found if largest == 256 else (
      f"={round(2 * fit.frontier.C_G[-1])} --Bp=32 --n=256,512 " in found)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_without_a_difference_no_n_is_best(value):
  study = studies.small_study()
  study = dataclasses.replace(study, metric="worst@8", runs=tuple(
      dataclasses.replace(r, value_ExQ=np.full_like(r.value_ExQ, value),
                          reward_E=np.full_like(r.reward_E, value))
      for r in study.runs))
  fit = analysis.analyse(study, studies.QUICK)
  why = f"no n differs: worst@8 is {value:g} throughout"
  assert fit.law is None and fit.reasons == (why,) and not fit.cautions
  row, = diagnostics.best_n(fit)
  assert [row[key] for key in ("n", "agreeing", "n_interval", "why")] == [
      None, None, None, why]
  assert "no n differs" in proposal.next_plan(fit, path="f")["text"]


def test_training_sets_of_several_sizes_are_named():
  study = studies.small_study()
  several = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, training_problems=500 if r.n == 3 else 6000)
      for r in study.runs))
  assert several.training_problems is None
  assert any("D = 500: n3-0, n3-1; D = 6000: n7-0" in c
             for c in analysis.analyse(several, studies.EXACT).cautions)
  rounded = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, training_problems=6000 + i)
      for i, r in enumerate(study.runs)))
  assert rounded.training_problems in range(6000, 6006)
  assert not any("training sets" in c
                 for c in analysis.analyse(rounded, studies.EXACT).cautions)


def test_rewards_that_do_not_depend_on_n_are_no_law():
  """Five runs of each n with one true curve, and the study of three curves."""
  one = synthetic.Truth(Bp=5, n=(3, 7, 23), A=(0.6,) * 3, k=(4e-5,) * 3, b=0.3)
  equal = analysis.analyse(synthetic.study(
      one, C_max=3e5, evaluations=17, seeds=2, Q=100, k=8, seed=1),
                           studies.QUICK)
  null = verdict.null_model(equal)
  assert null["spread"] <= null["noise"]
  assert any("does not depend on n beyond the noise" in r
             for r in equal.reasons)
  clear = analysis.analyse(studies.clear_study(), studies.QUICK)
  null = verdict.null_model(clear)
  assert null["spread"] > 5 * null["noise"]
  assert not any("does not depend" in r for r in clear.reasons)


@pytest.mark.parametrize("truth, fires", [
    ("late", True), ("settled", False), ("noise", True)])
def test_a_study_that_ends_before_a_larger_n_leads_is_no_license(truth, fires):
  """Five studies; docs/fitting.md has the table of many."""
  verdicts = overtaking.counts(truth, 5)
  if truth == "noise":
    assert verdicts == {"not identified": 5}
  assert (verdicts["beyond the data"] == 0) == fires, verdicts


def test_neither_next_nor_its_command_goes_beyond_limited_data():
  fit = analysis.analyse(studies.identified_study(), studies.EXACT)
  fit = dataclasses.replace(fit, identified=True, reasons=())
  end = round(float(fit.frontier.C_G[-1]))
  free = proposal.next_plan(fit, path="f")
  assert f"--rollouts={2 * end} " in free["command"]
  held = proposal.next_plan(fit, ("a larger n is near",), path="f")
  assert f"--rollouts={end} " in held["command"]
  assert "--sweep" in held["command"] and "not beyond" in held["text"]
