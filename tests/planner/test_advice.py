"""A budget to an allocation, with reasons and warnings."""

import dataclasses
import json
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.core import laws, plan_file, sweep_cells
from isojax.core.allocation import admitted, Allocation, nearest_power
from isojax.errors import InputError
from isojax.planner import advice, priors, text

QUESTION = advice.Question(
    C=2_000_000, law=priors.PRIORS["q1-easy"], metric="avg",
    model="Qwen2.5-7B-Instruct", D=6000, B_max=65_536, Bp=None,
    n=None, base_lr=1e-6, base_batch=1024, tokens_per_rollout=None)
FITTED = laws.Sigmoid(
    4.0, 5.0, [5.0, 4.8, 4.9, 5.0, 5.1, 5.2], 2.0,
    curves=(laws.Curve(Bp=16, n=8, C=(100.0, 10_000.0), reward=(0.1, 0.3),
                       low=(0.05, 0.2), high=(0.15, 0.4), C_lo=500.0,
                       C_hi=5000.0),),
    stratum="hard", model="m", Bp=(16,), n=(4, 8, 16, 32, 64),
    C_seen=(1e4, 4e5), cautions=("k is weak",), path="fit.json")


def ask(**change):
  return advice.advise(dataclasses.replace(QUESTION, **change))


# Grids


@pytest.mark.parametrize("value, expected", [
    (117.7, 128), (295.5, 256), (1.3, 2), (9e9, 512), (90.6, 128), (90.4, 64)])
def test_nearest_power_in_log2(value, expected):
  assert nearest_power(value, low=2, high=1000) == expected


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 5000),
       st.integers(1, 400))
def test_admitted_is_legal_and_says_what_it_moved(Bp, n, B_max, D):
  new_Bp, new_n, why = admitted(Bp, n, B_max=B_max, D=D)
  assert new_Bp * new_n <= B_max
  assert 1 <= new_Bp <= D and new_n >= 2
  assert bool(why) == ((new_Bp, new_n) != (Bp, n))


def test_admitted_keeps_n_first():
  assert admitted(64, 512, B_max=16_384, D=999)[:2] == (32, 512)
  assert admitted(3, 9, B_max=8, D=999)[:2] == (1, 8)


# Advice


def test_two_million_easy_rollouts_by_hand():
  answer = ask()
  assert answer.n_star.n == pytest.approx(295.5, abs=0.1)  # the published table
  assert answer.allocation == Allocation(32, 256, 244)  # 2e6 // 8192
  assert answer.lr == pytest.approx(1e-6 * np.sqrt(8))
  low, high = answer.n_star.interval
  assert low < 295.5 < high and not answer.n_star.beyond
  assert "published prior" in answer.n_star.basis
  assert ask(D=60_000).warnings == ()


@given(st.integers(64, 10**9), st.sampled_from(sorted(priors.PRIORS)),
       st.integers(2, 70_000))
def test_never_more_than_the_budget(C, name, B_max):
  try:
    answer = ask(C=C, law=priors.PRIORS[name], B_max=B_max, D=None,
                 tokens_per_rollout=2190.0).allocation
  except InputError:  # a step larger than the budget
    return
  assert answer.C <= C and answer.B <= B_max and answer.n >= 2


def test_the_users_fit_comes_with_its_interval_and_cautions():
  answer = ask(C=100_000, law=FITTED, model="m")
  assert answer.n_star.n == pytest.approx(16.0)  # at C0, halfway
  low, high = answer.n_star.interval
  # draws at C0: log2 n = 2 + 4 / (1 + exp(-5 d)), d = -0.2 .. 0.2
  assert low < 2 ** (2 + 4 / (1 + np.exp(0.9)))
  assert high > 2 ** (2 + 4 / (1 + np.exp(-0.9)))
  assert answer.allocation == Allocation(16, 16, 390)
  assert "your own fit, fit.json" in answer.n_star.basis
  assert "k is weak" in answer.warnings
  assert any("wider than the step" in warning for warning in answer.warnings)


@pytest.mark.parametrize("change, warning", [
    (dict(C=10**8), "the law is of 5e+04 to 4e+06 rollouts, this is 1e+08"),
    (dict(Bp=64), "n* was seen at Bp = 32, this is Bp = 64"),
    (dict(law=FITTED, Bp=32), "n* was seen at Bp = 16, this is Bp = 32"),
    (dict(model="Llama"), "the law is of Qwen2.5-7B-Instruct, this is Llama"),
    (dict(D=500), "D = 500 training problems"),
    (dict(C=700_000, D=500), "epochs"),
    (dict(B_max=1024), "the cap of 1024"),
    (dict(C=40_000, n=512), "only 2 updates"),
    (dict(n=2048), "at the edge"),
    (dict(law=FITTED, model="other"), "the fit is of m"),
    (dict(law=FITTED, metric="best"), "the fit is of avg")])
def test_warnings(change, warning):
  assert any(warning in text for text in ask(**change).warnings), ask(**change)


def test_a_step_may_have_fewer_problems_for_a_larger_n():
  """n* = 295 at B_max = 4,096: Bp is lowered from 32, but not below 8."""
  alloc = ask(B_max=4096, Bp=32).allocation
  assert (alloc.Bp, alloc.n) == (16, 256)
  assert ask(B_max=1024, Bp=32).allocation.n == 128


@pytest.mark.parametrize("change, n, low, high", [
    ({}, 16, 8, 32), (dict(metric="best"), 64, 32, 128),
    # 50 updates of 32 * 16 rollouts; one less; fewer than 50 of n = 8
    (dict(C=25_600), 16, 8, 32), (dict(C=25_599), 8, 8, 32),
    (dict(C=2000), 8, 8, 32), (dict(C=25_599, Bp=16), 16, 8, 32),
    (dict(C=102_399, metric="best"), 32, 32, 128)])
def test_without_a_law_n_is_what_sources_agree_on(change, n, low, high):
  answer = ask(law=None, **change)
  assert answer.allocation.n == n and answer.n_star.interval == (low, high)
  assert answer.allocation.M < 50 or answer.warnings == ()


def test_a_given_n_far_from_the_law():
  """Twice the ends of the interval, [low, high] around n* = 295."""
  answer = ask().n_star
  low, high = answer.interval
  assert not advice.far_from_law(math.ceil(low / 2), answer)
  assert not advice.far_from_law(math.floor(2 * high), answer)
  (below,) = advice.far_from_law(math.floor(low / 2), answer)
  (above,) = advice.far_from_law(math.ceil(2 * high), answer)
  assert "is far below n* = 295" in below and "is far above n*" in above
  assert not advice.far_from_law(2, dataclasses.replace(answer, interval=None))


def test_a_law_in_tokens_needs_their_number():
  tokens = priors.PRIORS["q1-easy-tokens"]
  with pytest.raises(InputError, match="--response_tokens"):
    ask(law=tokens)
  # 10^(9.18 - 5.84) tokens a rollout put both laws' midpoints at one C
  answer = ask(C=691_831, law=tokens, tokens_per_rollout=10**3.34)
  assert np.log2(answer.n_star.n) == pytest.approx(2.64 + 6.62 / 2, abs=1e-3)


def test_a_fixed_batch():
  answer = ask(C=8192 * 200, law=priors.PRIORS["q2-easy"])
  assert answer.n_star.n == pytest.approx(226.26, abs=0.01)
  assert answer.allocation == Allocation(32, 256, 200)
  assert not any("extrapolated" in text for text in answer.warnings)
  assert [(x.Bp, x.n) for x in advice.neighbours(dataclasses.replace(
      QUESTION, law=priors.PRIORS["q2-easy"]), answer.allocation)] == [
          (64, 128), (16, 512)]


@pytest.mark.parametrize("change, message", [
    (dict(Bp=64), "--Bp=64.*Bp \\* n = 8192"),
    (dict(B_max=4096), "of Bp \\* n = 8192; expected a batch of at most 4096"),
    (dict(n=100), "--n=100: expected a divisor")])
def test_a_fixed_batch_stays_one(change, message):
  with pytest.raises(InputError, match=message):
    ask(C=8192 * 200, law=priors.PRIORS["q2-easy"], **change)


def test_a_batch_that_is_no_power_of_two():
  law = laws.FixedBatch(60, 4.0, 0.1, [50.0] * 3, 1.0, n=(4, 8),
                        C_seen=(5, 99), path="fit.json")
  answer = ask(C=60 * 50 + 7, law=law)  # n*(50) = 2^3
  assert answer.n_star.n == pytest.approx(8.0)
  assert answer.allocation == Allocation(6, 10, 50)  # of 6 and 10, in log2
  assert ask(C=60 * 50, law=law, D=5).allocation == Allocation(5, 12, 50)


def test_neighbours_are_of_the_same_budget_and_admitted():
  alloc = ask().allocation
  near = lambda **change: [(x.Bp, x.n, x.M) for x in advice.neighbours(
      dataclasses.replace(QUESTION, **change), alloc)]
  assert near() == [(32, 128, 488), (32, 512, 122)]
  assert near(B_max=8192) == [(32, 128, 488)]
  assert advice.neighbours(QUESTION, Allocation(32, 2, 1)) == ()


def test_a_small_budget_gets_a_small_batch_or_an_error():
  assert ask(C=2_000_000, B_max=2048).allocation == Allocation(8, 256, 976)
  with pytest.raises(InputError, match="C=1 is less"):
    ask(C=1)


def test_hours_choose_the_n_of_their_own_budget():
  budget = lambda Bp, n: 4_000_000 // (Bp * n) * Bp * n
  answer = advice.for_hours(QUESTION, 9.0, budget)
  assert answer.allocation.n == 512  # n*(4e6) = 406
  fixed = dataclasses.replace(QUESTION, law=priors.PRIORS["q2-easy"])
  assert advice.for_hours(fixed, 9.0, budget).allocation.B == 8192


def test_hours_leave_out_an_n_whose_budget_is_not_known():
  """n = 2 and 4 pay for fewer rollouts than the 10,000 where data begin."""
  law = unidentified(Bp=(4, 16))
  question = dataclasses.replace(QUESTION, law=law, model="m", D=None, Bp=None)
  budget = lambda Bp, n: 60 * Bp * n  # 3,840 n at Bp = 64, 960 n at 16
  answer = advice.for_hours(question, 1.0, budget)
  assert answer.allocation.Bp == 16  # of the measured frontier
  assert answer.allocation.C == 60 * 16 * answer.allocation.n >= 10_000
  with pytest.raises(InputError, match="not identified"):
    advice.for_hours(question, 1.0, lambda Bp, n: Bp * n * (n < 64))


def test_hours_that_pay_for_nothing_are_refused():
  with pytest.raises(InputError, match="0.5 hours .*Bp=32, n=2"):
    advice.for_hours(QUESTION, 0.5, lambda Bp, n: 0)


def test_prediction_reads_the_fits_table():
  # C = 896: 0.1 + 0.2 log(8.96) / log(100), between 0.05 to 0.2 and 0.15 to 0.4
  at = lambda law, *sizes: text.predicted(law, Allocation(*sizes))
  assert at(FITTED, 16, 8, 7) == "0.1952 [0.1214, 0.2690]"
  beyond = "beyond the data of its curve"
  assert beyond in at(FITTED, 16, 8, 50)  # C = 6400
  assert beyond in at(FITTED, 16, 8, 1)  # C = 128
  assert at(FITTED, 16, 8, 500) == ""  # above the table
  low = dataclasses.replace(FITTED.curves[0], C=(200.0, 10_000.0))
  low = dataclasses.replace(FITTED, curves=(low,))
  assert at(low, 16, 8, 1) == ""  # C = 128, below
  assert at(FITTED, 16, 4, 7) == "" and at(None, 16, 8, 7) == ""
  tokens = dataclasses.replace(FITTED, unit="sampled_tokens")
  assert at(tokens, 16, 8, 7) == ""


def test_strata_from_measured_difficulty():
  assert priors.stratum_of([0.0] * 4240 + [1 / 16] * 760) == "hard"
  assert priors.stratum_of(np.repeat([5, 6, 7, 8, 9], 9) / 16) == "easy"
  assert priors.stratum_of([0.0, 0.9]) is None
  with pytest.raises(InputError, match="no training problems"):
    priors.stratum_of([])


# Plans


def test_a_plan_goes_there_and_back():
  rows = sweep_cells.grid(((3, 5), (3, 7)), C=100, seeds=(0, 4), base_lr=2.0,
                          base_batch=60, expected=lambda alloc: None)
  assert [(r.allocation.n, r.allocation.M, r.seed) for r in rows] == [
      (5, 6, 0), (5, 6, 4), (7, 4, 0), (7, 4, 4)]
  assert rows[0].lr == pytest.approx(1.0)
  lines = plan_file.text(rows).splitlines()
  row = plan_file.read_row(lines, 3, path="p")
  assert row["overrides"] == {"seed": 4, "alloc": {"Bp": 3, "n": 7, "M": 4}}
  assert row["lr"] == rows[3].lr
  edited = plan_file.read_row([lines[3].replace('"n": 7', '"n": 8')], 0,
                              path="p")
  assert edited["overrides"]["alloc"]["n"] == 8


@pytest.mark.parametrize("lines, row, message", [
    (["{}"], 0, "p:1: not a row"), (["[]"], 0, "p:1: not a row"),
    (["torn {"], 0, "p:1: not a row"), (["{}"], 1, "p has 1 row, counted"),
    ([json.dumps(dict(overrides=None, C=1, lr=1.0, expected=None))], 0,
     "p:1: not a row .*overrides"),
    ([json.dumps(dict(overrides={}, C=1, lr="x", expected=None))], 0,
     "p:1: not a row .*lr"),
    ([json.dumps(dict(overrides={}, C=1, lr=10**400, expected=None))], 0,
     "expected lr in .0, 10."),
    (["{}"], -1, "--row=-1")])
def test_bad_plans(lines, row, message):
  with pytest.raises(InputError, match=message):
    plan_file.read_row(lines, row, path="p")


# A user's fit: measured curves


def measured(*ends, **change):
  """A fit whose curves rise to these (n, reward) at C = 1e5, at Bp = 16."""
  return dataclasses.replace(FITTED, cautions=(), curves=tuple(
      laws.Curve(Bp=16, n=n, C=(1e4, 1e5, 4e5), reward=(0.1, end, end),
                     low=(0.1, end - 0.02, end), high=(0.2, end + 0.02, 1.0),
                     C_lo=1e4, C_hi=1e5) for n, end in ends), **change)


def test_an_advice_says_that_a_measured_curve_is_better():
  """n* = 16 at C = 1e5, but the user's n = 8 reached .52 and n = 16 .47."""
  fit = measured((8, 0.52), (16, 0.47))
  for C in (100_000, 400_000):  # at and beyond the data, read at its end
    found = [text for text in ask(C=C, law=fit, model="m", n=16).warnings
             if "curves contradict" in text]
    assert found == [
        "your own curves contradict this: at 1e+05 rollouts, n = 8 reached "
        "0.520 [0.500, 0.540] and n = 16 0.470 [0.450, 0.490]; to follow the "
        "curves: a constant --n=8"]
  near = measured((8, 0.48), (16, 0.47))
  assert any("the intervals overlap" in text
             for text in ask(C=100_000, law=near, model="m", n=16).warnings)


@pytest.mark.parametrize("fit, n", [
    (measured((8, 0.47), (16, 0.52)), 16),  # the advice is the best measured
    (measured((8, 0.5), (16, 0.5)), 16),  # as good
    (measured((8, 0.52), (16, 0.47)), 8),
    (measured(), 16)])
def test_no_contradiction_without_a_better_curve(fit, n):
  warnings = ask(C=100_000, law=fit, model="m", n=n).warnings
  assert not any("contradict" in text for text in warnings), warnings


def unidentified(**change):
  """Resolved from 1e4 to 1e5 alone; n = 8 leads there, then n = 24."""
  best = lambda C, n, resolved: laws.Best(C, 16, n, (4, 32), 0.9, resolved)
  return dataclasses.replace(FITTED, **dict(
      C_seen=None, identified=False,
      reasons=("too few n",), cautions=("k is weak",), curves=(),
      frontier=(best(1e3, 4, False), best(1e4, 8, True), best(3e4, 24, True),
                best(1e5, 24, True), best(4e5, 64, False))) | change)


@pytest.mark.parametrize("C, n", [(15_000, 8), (20_000, 24)])
def test_a_law_that_is_not_identified_answers_with_its_frontier(C, n):
  answer = ask(C=C, law=unidentified(Bp=(4, 16)), model="m")
  assert (answer.allocation.Bp, answer.allocation.n) == (16, n)
  assert answer.n_star.interval == (4, 32) and not answer.n_star.beyond
  assert answer.n_star.basis == (
      "the best of your tested n at this C, measured, not a law: fit.json: its "
      "law is not identified (too few n); 95% interval of the bootstrap; 90% "
      "of the bootstrap draws agree")
  assert "k is weak" in answer.warnings


@pytest.mark.parametrize("C, change, message", [
    (9999, {}, "known only from 10,000 to 100,000 rollouts, not "
     "at 9,999"),
    (100_001, {}, "known only from 10,000 to 100,000 rollouts"),
    (50_000, dict(n=(8,)), "; run what")])  # one n is not the best of several
def test_the_frontier_is_no_answer_where_it_is_not_resolved(C, change, message):
  with pytest.raises(InputError, match=f"not identified .too few n.*{message}"):
    ask(C=C, law=unidentified(**change))
