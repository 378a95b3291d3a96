"""Verdicts on the end of a run, from a ledger made by hand."""

import types

import pytest

from launch.study import end, verdicts
from launch.study import ledger as ledger_lib

NAMES = dict(set="hard", arm="", rate=1.0)


def line(seed, C, avg, decay=0.0, policy="average", which="last", **more):
  return NAMES | dict(seed=seed, C=C, decay=decay, policy=policy, which=which,
                      avg=avg) | more


def ledger(*rows):
  return {ledger_lib.key(row): row for row in rows}


def test_differences_are_of_pairs():
  """1 and 3 above: mean 2, sd sqrt(2), half 12.706 * 1; seed 2 has no pair."""
  r = verdicts.rewards(ledger(
      line(0, 64, 5.0), line(1, 64, 9.0), line(2, 64, 99.0),
      line(0, 64, 4.0, policy="current"), line(1, 64, 6.0, policy="current")),
      "hard")
  got = r.difference(64, verdicts.AVERAGE, verdicts.CURRENT)
  assert got == pytest.approx((2.0, 2 - 12.7062, 2 + 12.7062), rel=1e-5)
  assert r.difference(32, verdicts.AVERAGE, verdicts.CURRENT) is None


# A rival at 0.1, 0.3 and 0.7 after 2^16, 2^18 and 2^20 rollouts.
@pytest.mark.parametrize("reward, ratio, reached", [
    (0.2, 2.0, True), (0.6, 4 * 4**0.75, True), (0.8, 16.0, False)])
def test_rollouts_saved_are_linear_in_log_c(reward, ratio, reached):
  r = verdicts.rewards(ledger(line(0, 2**16, reward), *(
      line(0, C, y, policy="current")
      for C, y in zip((2**16, 2**18, 2**20), (0.1, 0.3, 0.7)))), "hard")
  assert verdicts.saved(r, 2**16, verdicts.AVERAGE, verdicts.CURRENT) == (
      pytest.approx(ratio), reached)


def test_nothing_is_saved_against_a_rival_that_begins_above():
  r = verdicts.rewards(ledger(
      line(0, 2**16, 0.1), line(0, 2**16, 0.2, policy="current")), "hard")
  assert verdicts.saved(r, 2**16, verdicts.AVERAGE, verdicts.CURRENT) is None


# avg of (average, best kept current) at 2^16, 2^18 and 2^20, two seeds each.
@pytest.mark.parametrize("gains, hit", [
    ([(1, 2), (1, 1.1), (1, 3)], True),
    ([(1, 2), (1, 9), (1, 3)], False),  # the interval at 2^18 holds 0
    ([(-1, 9), (1, 1.1)], None), ([(-1, -9), (1, 1.1)], False)])
def test_the_claim_on_the_average(gains, hit):
  rows = [row for C, pair in zip((2**16, 2**18, 2**20), gains)
          for seed, gain in enumerate(pair)
          for row in (line(seed, C, gain),
                      line(seed, C, 0.0, policy="current", which="best"))]
  assert verdicts.judged(ledger(*rows))["average"].hit is hit


@pytest.mark.parametrize("gains, decay", [
    ({0.15: (1, 2), 0.3: (3, 4), 1.0: (-9, -8)}, 0.3),
    # Sum of four means 4 * 1.5, standard error sqrt(4 * 12.5) = 7.1.
    ({0.15: (-1, -2), 0.3: (-2, 5), 1.0: (-9, -8)}, 0.0)])
def test_the_default_by_the_registered_rule(gains, decay):
  rows = [line(seed, C, x, decay=d) | {"set": name}
          for name in ("hard", "easy") for C in (2**18, 2**20)
          for d, pair in ({0.0: (0, 0)} | gains).items()
          for seed, x in enumerate(pair)]
  assert verdicts.default_end(ledger(*rows), False) == (
      decay, "current", "last")
  assert verdicts.default_end(ledger(*rows[1:-1]), None) is None


# n = 64 at half the rate and at the rate, minus n = 8 at the rate.
@pytest.mark.parametrize("half, full, hit", [
    ((-2, -9), (-1, 5), True),  # at the rate avg is higher, -1
    ((-1, 5), (-2, -9), True), ((1, 5), (-1, 5), False),
    ((-1, -5), (-2, 5), False), (None, (-1, 5), None)])
def test_the_claim_on_coverage(half, full, hit):
  def row(arm, rate, avg, best):
    return [line(seed, 2**20, avg, **{"best@64": best, "arm": arm})
            | {"rate": rate} for seed in (0, 1)]
  rows = [*row("", 1.0, 0, 0), *row("", 0.5, -1, 99), *row("n64", 1.0, *full)]
  rows += row("n64", 0.5, *half) if half else []
  assert verdicts.judged(ledger(*rows))["coverage"].hit is hit


def test_a_unit_for_each_seed_and_rate():
  stage = dict(set="hard", arm="kl", overrides={"seed": 1}, budgets=[4, 8],
               seeds=[0, 1], rates=[1.0, 0.5], decays=[0.3])
  got = end.units({"stages": [stage]})
  assert [unit[2:4] for unit in got] == [
      (0, 1.0), (0, 0.5), (1, 1.0), (1, 0.5)]
  assert got[1].name == "hard-kl-seed0-rate0.5"


@pytest.mark.parametrize("policy, which, step", [
    ("average", "best", 8), ("current", "best", 4), ("current", "last", 12)])
def test_the_checkpoint_that_a_line_tests(policy, which, step):
  """The best one of its policy after the first, up to C."""
  evaluations = [dict(step=s, rollouts=s, avg=a, current=dict(avg=c))
                 for s, a, c in ((0, 0.9, 0.9), (4, 0.2, 0.5), (8, 0.4, 0.3),
                                 (12, 0.1, 0.2), (16, 0.8, 0.8))]
  name = ("hard", "", 0, 1.0, 12, 0.0, policy, which)
  records = types.SimpleNamespace(evaluations=evaluations, steps=[])
  got = end.line_of(name, records,
                    lambda policy, step, store: {"tested": (policy, step)})
  assert got["tested"] == (policy, step) and got["step"] == step


def test_a_curve_has_the_training_reward_since_the_evaluation_before():
  evaluations = [dict(step=s, rollouts=s, avg=0.5, current=dict(avg=0.25))
                 for s in (0, 4, 8, 12)]
  steps = [dict(rollouts=s, reward=r)
           for s, r in ((2, 0.0), (4, 1.0), (6, 0.5), (8, 1.0), (10, 9.0))]
  got = end.line_of(
      ("hard", "", 0, 1.0, 8, 0.0, "average", "last"),
      types.SimpleNamespace(evaluations=evaluations, steps=steps),
      lambda *_: {})
  assert got["curve"] == [
      [0, 0.5, 0.25, None], [4, 0.5, 0.25, 0.5], [8, 0.5, 0.25, 0.75]]


def test_how_far_validation_is_apart_at_equal_training_reward():
  """At 0.3: 0.15 of n = 8 (mean of two seeds), 0.5 of n = 2; the rest is below.

  n = 8 passes 0.3 between 0.2 and 0.6, a quarter of the way from 0.1 to 0.3.
  """
  def curve(arm, seed, *points):
    return line(seed, 9, 0.0, arm=arm, curve=[
        [0, 0.9, 0.9, None], *([C, avg, 0.9, reward]
                               for C, (avg, reward) in enumerate(points, 1))])
  rows = [curve("", 0, (0.0, 0.1), (0.2, 0.6)),
          curve("", 1, (0.2, 0.3), (0.4, 0.6)),
          curve("n2", 0, (0.5, 0.3), (0.8, 0.9)),
          *(curve(f"n{n}", 0, (0.0, 0.0), (7.0, 0.29))
            for n in (4, 16, 32, 64, 128))]
  got = verdicts.apart(ledger(*rows), "hard", 9, 0.3)
  assert got == pytest.approx(0.5 - 0.15)


@pytest.mark.parametrize("gains, hit", [
    (((1, 2), (1, 2)), True), (((1, 2), (-1, -2)), False),
    (((1, 2), None), None)])
def test_the_claim_on_more_problems_per_step(gains, hit):
  rows = [line(seed, 2**18, gain * (arm[0] == "b"), arm=arm)
          for arms, pair in zip((("bp128", "n32"), ("bp512", "n128")), gains)
          for arm in arms for seed, gain in enumerate(pair or ())]
  assert verdicts.judged(ledger(*rows))["bp"].hit is hit


def test_rollouts_saved_decide_the_claim_against_both_rivals():
  """The default is a decay of 0.3; the last weights need 16 times as many.

  The best kept checkpoints of rate 2 are as good as it, so nothing is saved.
  """
  def rows(name, C, seed):
    yield line(seed, C, 1.0 if name == "hard" else 0.0, decay=0.3)
    for decay in (0.0, 0.15, 1.0):
      yield line(seed, C, 0.0, decay=decay)
    yield line(seed, C, 0.5, decay=0.3, policy="current")
    yield line(seed, C, 0.5 if C == 2**20 else 0.0, policy="current")
    for rate in verdicts.RATES:
      kept = 0.5 if rate == 2.0 else 0.1
      yield line(seed, C, kept, policy="current", which="best") | {"rate": rate}
  lines = ledger(*(row | {"set": name} for name in ("hard", "easy")
                   for C in (2**16, 2**18, 2**20) for seed in (0, 1)
                   for row in rows(name, C, seed)))
  got = verdicts.judged(lines)["saved"]
  assert not got.hit
  assert got.measured.split("; ")[0] == "C = 65,536: 16.00"
  assert got.measured.split("; ")[1].endswith("C = 65,536: 1.00")
