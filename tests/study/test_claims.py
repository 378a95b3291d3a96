"""Every verdict of a registered claim has the sign of what was measured."""

import dataclasses
import json

import numpy as np
import pytest

from launch.study import claims, tables
from tests.study import ledgers

SEEDS = (0, 1)


def made(levels: dict, reward=None, **options):
  """Two seeds of each n; levels and reward: n -> values."""
  reward = reward or {n: (.1,) * len(v) for n, v in levels.items()}
  return [ledgers.run(values, n=n, seed=seed, reward=reward[n], **options)
          for n, values in levels.items() for seed in SEEDS]


def value(measure, L, **case):
  claim = {"measure": measure, "cases": [case], "bound": [0, 0]}
  return claims.judge(claim, L)["values"][0].value


def term(n, C, **more):
  return {"part": "x", "n": n, "C": C} | more


def test_a_claim_hits_if_all_values_are_within_the_bound():
  L = {"x": ledgers.part(made({8: (0.0,), 2: (1.0,)}))}
  case = lambda a, b: {"plus": [term([a], 1000)], "minus": [term([b], 1000)]}
  claim = {"id": "i", "says": "s", "measure": "contrast", "caveat": "",
           "bound": [0.5, 1.0], "cases": [case(2, 8)]}
  assert claims.judge(claim, L)["hit"]
  both = claims.judge(claim | {"cases": [case(2, 8), case(8, 2)]}, L)
  assert [x.value for x in both["values"]] == [1, -1] and not both["hit"]
  assert claims.judge(claim | {"bound": [1.0, 2.0]}, L)["hit"]  # inclusive
  table = tables.claims_table([both]).splitlines()
  assert len(table) == 3 and table[2].endswith("| miss | yes |")


def test_the_best_n():
  L = {"x": ledgers.part(made({2: (.1,), 8: (.9,), 32: (.5,)}))}
  assert value("best", L, term=term([2, 8, 32], 1000)) == 8
  assert value("best", L, term=term([2, 32], 1000)) == 32


def test_heights_their_spread_and_the_power_of_the_peak():
  """Heights 1 at 2,000 * sqrt(n / 2), of n = 128 0.5 later."""
  L = {"x": ledgers.part(made({
      2: (0, 1, 0, 0, 0), 8: (0, 0, 1, 0, 0), 32: (0, 0, 0, 1, 0),
      128: (0, 0, 0, 0, .5)}, Q=4000))}
  assert value("spread", L, part="x") == pytest.approx(0.5, abs=0.02)
  assert value("spread", L, part="x", n=[2, 8, 32]) == 0
  assert value("height", L, part="x") == pytest.approx(3.5 / 4, abs=0.02)
  assert value("power", L, part="x") == 0.5
  # The best mean over seeds, not the mean of the best ones.
  runs = [ledgers.run(levels, seed=seed, reward=(.1,)) for seed, levels in
          enumerate(((0, 1, 0, 0), (0, 0, 1), (0, 0, 1)))]
  assert claims.heights({"x": ledgers.part(runs)}, "x") == {
      2: (pytest.approx(2 / 3), 4000.0)}


def test_the_height_is_of_the_first_300_problems():
  run = ledgers.run((0,), reward=(.1,))
  runs = [dataclasses.replace(run, evals=(
      {"rollouts": 1000, "correct": "8" * 300 + "0" * 900},))]
  assert value("height", {"x": ledgers.part(runs)}, part="x") == 1


@pytest.mark.parametrize("lead, at", [
    ((-1, 1, -1, 1), 8.0), ((1, 2, 3, 4), 1.0), ((1, 1, 1, -1), np.inf),
    ((-1, 0, 0, 1), 2.0)])
def test_the_crossing_is_the_last_one(lead, at):
  assert claims.first_ahead(lead, (1, 2, 4, 8)) == at


def test_n_32_passes_8():
  """It is behind to 4,000 and ahead then: in more than half of (2,828,
  5,657]."""
  reward = {8: (.3, .3, .3, .4, .4), 32: (.2, .2, .2, .5, .6)}
  levels = dict.fromkeys(reward, (0,) * 5)
  L = {"x": ledgers.part(made(levels, reward), C=16_000)}
  assert value("crossing", L, part="x") == pytest.approx(8000 / 2**0.5 / 16)
  swapped = {8: reward[32], 32: reward[8]}
  L = {"x": ledgers.part(made(levels, swapped), C=16_000)}
  assert value("crossing", L, part="x") == np.inf


def test_the_lowest_evaluation_is_that_after_the_best():
  L = {"x": ledgers.part([ledgers.run((0, 1, .5, .25), Q=4000, seed=0,
                                      reward=(.1,)),
                          ledgers.run((0, 1, 1), seed=1, reward=(.1,))])}
  assert value("lowest", L, part="x") == pytest.approx(0.25, abs=0.02)


def test_a_difference_at_equal_entropy():
  """0.2 nats: 0.8 of the way from 0 to 1 with `a`; never with `short`."""
  runs = [ledgers.run((0.0, level), arm=arm, seed=seed, reward=(.1, .1),
                      entropy=(1.0, low))
          for arm, level, low in (("a", 1, 0), ("b", 0, 0), ("short", 1, .5))
          for seed in SEEDS]
  L = {"x": ledgers.part(runs)}
  at = lambda arm: [term([2], 0, arm=arm)]
  assert value("at_entropy", L, nats=0.2, plus=at("a"), minus=at("b")) == (
      pytest.approx(0.8))
  assert value("at_entropy", L, nats=0.5, plus=at("b"), minus=at("short")) == (
      pytest.approx(-1.0))


def test_the_share_of_groups_with_a_signal(tmp_path):
  """Measured 1 - 0.7 - 0.05; expected of 0, 0 and 128 of 256 with n = 8."""
  runs = [ledgers.run((0,), n=8, seed=seed, all_wrong=(.6, .8),
                      all_right=(.1, 0.0)) for seed in SEEDS]
  (tmp_path / "truly-solved.json").write_text(json.dumps(
      {"solved": {"0": 2, "128": 1}}))
  L = {"x": ledgers.part(runs, path=str(tmp_path / "x.gz"))}
  assert value("signal", L, part="x", n=8, C=2000) == pytest.approx(
      0.25 - (1 - 2 / 256) / 3)


def test_the_exponents_of_experiment_a():
  """C to 0.3 nats is 1,000 n / 8 at the best rate, whatever Bp is."""
  runs = [ledgers.run((0,) * 6, n=n, seed=seed, Bp=Bp, Q=2, arm=f"{Bp} {rate}",
                      entropy=[.5] * (i + wrong) + [.3] * (6 - i - wrong))
          for Bp in (8, 32, 128) for i, n in ((1, 8), (3, 32))
          for rate, wrong in (("x1", 1), ("x0.5", 0)) for seed in SEEDS]
  L = {"x": ledgers.part(runs, C=32_000)}
  of = {name: value("exponent", L, part="x", of=name) for name in ("n", "Bp")}
  assert of == pytest.approx({"n": 1.0, "Bp": 0.0}, abs=1e-9)
  assert value("exponent", L, part="x", of="resolved") == 1
