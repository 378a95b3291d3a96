"""Verdicts on the end of a run, from a ledger made by hand."""

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
  assert got == pytest.approx((2.0, 2 - 12.7062, 2 + 12.7062, 2), rel=1e-5)
  assert r.difference(32, verdicts.AVERAGE, verdicts.CURRENT) is None


def test_rollouts_to_a_reward_are_linear_in_log_c():
  points = [(64, 0.1), (256, 0.3), (1024, 0.7)]
  assert verdicts.rollouts_to(points, 0.2) == pytest.approx(128)
  assert verdicts.rollouts_to(points, 0.6) == pytest.approx(256 * 4**0.75)
  assert verdicts.rollouts_to(points, 0.8) is None
  r = verdicts.rewards(ledger(
      line(0, 64, 0.2), *(line(0, C, y, policy="current") for C, y in points)),
      "hard")
  assert verdicts.saved(r, 64, verdicts.AVERAGE, verdicts.CURRENT) == (
      pytest.approx(2.0), True)
  high = verdicts.rewards(ledger(line(0, 64, 0.8), *(
      line(0, C, y, policy="current") for C, y in points)), "hard")
  assert verdicts.saved(high, 64, verdicts.AVERAGE, verdicts.CURRENT) == (
      16.0, False)


# avg of (average, best kept current) at 2^16, 2^18 and 2^20, two seeds each.
@pytest.mark.parametrize("gains, word", [
    ([(1, 2), (1, 1.1), (1, 3)], "hit"),
    ([(1, 2), (1, 9), (1, 3)], "missed"),  # the interval at 2^18 holds 0
    ([(-1, 9), (1, 1.1)], "open"), ([(-1, -9), (1, 1.1)], "missed")])
def test_the_claim_on_the_average(gains, word):
  rows = [row for C, pair in zip((2**16, 2**18, 2**20), gains)
          for seed, gain in enumerate(pair)
          for row in (line(seed, C, gain),
                      line(seed, C, 0.0, policy="current", which="best"))]
  assert verdicts.judged(ledger(*rows))["average"].word == word


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


def test_a_unit_for_each_seed_and_rate():
  stage = dict(set="hard", arm="kl", overrides={"seed": 1}, budgets=[4, 8],
               seeds=[0, 1], rates=[1.0, 0.5], decays=[0.3])
  got = end.units({"stages": [stage]})
  assert [(u.seed, u.rate) for u in got] == [
      (0, 1.0), (0, 0.5), (1, 1.0), (1, 0.5)]
  assert got[1].name == "hard-kl-seed0-rate0.5"


def test_the_best_step_of_each_policy():
  evaluations = [dict(step=s, rollouts=s, avg=a, current=dict(avg=c))
                 for s, a, c in ((0, 0.9, 0.9), (4, 0.2, 0.5), (8, 0.4, 0.3))]
  assert end.best_steps(evaluations) == {"average": 8, "current": 4}
