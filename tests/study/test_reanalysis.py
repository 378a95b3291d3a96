"""The study's exploratory numbers, on runs whose truth is known."""

import dataclasses

import numpy as np
import pytest

from isojax.errors import InputError
from launch.study import ledger, reanalysis, tables
from tests.study import ledgers


def test_the_C_to_an_entropy_is_on_a_line_in_log_C():
  run = ledgers.run((0,), entropy=(.6, .4, .2, .5, .1))
  # From 0.4 at 2,000 to 0.2 at 4,000, half of the way.
  assert reanalysis.C_to_entropy(run, 0.3) == (
      pytest.approx(2000 * 2**0.5), True)
  assert reanalysis.C_to_entropy(run, 0.7) == (pytest.approx(1000), True)
  assert reanalysis.C_to_entropy(run, 0.05) == (16_000, False)


def test_exponents_are_those_of_the_data():
  C_of = {(Bp, n): 100 * n**0.5 * Bp**0.2 for Bp in (8, 32) for n in (2, 8, 32)}
  exact = reanalysis.exponents(C_of)
  assert [exact[k].value for k in ("n", "Bp", "n - Bp")] == pytest.approx(
      [0.5, 0.2, 0.3])
  assert exact["n"].df == 3 and exact["n"].se == pytest.approx(0, abs=1e-9)
  # One cell off by an octave: residuals by hand, X is orthogonal.
  C_of[8, 8] *= 2
  off = reanalysis.exponents(C_of)
  assert off["n"].value == pytest.approx(0.5)  # the middle n
  assert off["Bp"].value == pytest.approx(0.2 - 1 / 3 / 2)
  rest = np.array([-1, 2, -1, 0, 0, 0]) / 3
  assert off["n"].se == pytest.approx((rest @ rest / 3 / 16)**0.5)


@pytest.mark.parametrize("lowest, cell", [
    (.3, ("x0.5", pytest.approx(16_000), True)),
    (.4, ("x1", 32_000.0, False))])  # no rate gets there: the first one
def test_experiment_a_chooses_with_seed_0_and_reads_seed_1(lowest, cell):
  """The rate x0.5 is best of seed 0, x1 of seed 1."""
  at = {("x1", 0): 3, ("x1", 1): 1, ("x0.5", 0): 2, ("x0.5", 1): 4}
  runs = [ledgers.run((0,) * 6, n=n, seed=seed, Bp=Bp, Q=2, arm=f"{Bp} {arm}",
                      entropy=[.5] * i + [lowest] * (6 - i))
          for Bp in (8, 32) for n in (2, 8) for (arm, seed), i in at.items()]
  name, *rest = cell
  result = reanalysis.n_or_rate(ledgers.part(runs, C=32_000))
  cells = [(Bp, n) for Bp in (8, 32) for n in (2, 8)]
  assert result["cells"] == {
      (Bp, n): (f"{Bp} {name}", *rest) for Bp, n in cells}
  assert result["tied"] == ([] if lowest < .4 else cells)


def test_redundancy_takes_runs_of_two_parts_once():
  """C to 0.3 nats is 1,000 n / 8."""
  runs = lambda Bp, ns: [ledgers.run(
      (0,) * 6, n=n, seed=seed, Bp=Bp, Q=2,
      entropy=[.5] * i + [.3] * (6 - i)) for i, n in ns for seed in (0, 1, 2)]
  one, two = (ledgers.part(runs(Bp, ((1, 8), (3, 32), (5, 2))))
              for Bp in (8, 32))
  found, cells = reanalysis.redundancy(one, dataclasses.replace(
      two, runs=two.runs + one.runs), 0.3)
  assert cells == 4 and found["n"].value == pytest.approx(1)
  assert found["Bp"].value == pytest.approx(0, abs=1e-9)


def test_held_out_reward_at_equal_training_reward():
  """n = 2 peaks at a training reward of 0.4, n = 8 at 0.3."""
  nats = (.6, .5, .1)
  runs = [ledgers.run((0, 1, 0), n=n, seed=seed, Q=40, entropy=nats,
                      reward=(.2, at, .9)) for n, at in ((2, .4), (8, .3))
          for seed in (0, 1)]
  found = reanalysis.one_curve(runs)
  assert found["peak"] == pytest.approx({2: .4, 8: .3})
  assert found["nats"] == pytest.approx({2: .5, 8: .5})
  # At 0.3: n = 2 half of the way up, n = 8 at its peak.
  assert found["value"][2][:3] == pytest.approx([0, .5, 1])
  assert found["spread"][:2] == pytest.approx([0, .5])
  assert found["spread"][2] == pytest.approx(1 - 5 / 6)  # n = 8 falls from 0.3
  short = [ledgers.run((0, 1), n=8, seed=seed, reward=(.2, .3),
                       entropy=nats[:2]) for seed in (0, 1)]
  assert np.isnan(reanalysis.one_curve(runs[:2] + short)["spread"][2])


def test_the_first_time_counts_where_training_falls_back():
  run = ledgers.run((0, 1, 0), reward=(.1, .5, .2))
  assert reanalysis.at_training(run, "reward", [.1, .3, .7]) == pytest.approx(
      [0, .5, np.nan], nan_ok=True)


def test_the_lead_is_that_of_pairs_of_equal_seeds():
  """0.2 and 0.4 with D = 16, -0.1 with D = 32: mean 1/6."""
  def grid(D, leads):
    return [ledgers.run((0,), n=n, seed=seed, D=D, reward=(.3 + seed + extra,))
            for seed, lead in enumerate(leads)
            for n, extra in ((8, 0), (32, lead), (2, .9))]
  found = reanalysis.paired_lead([grid(16, (.2, .4)), grid(32, (-.1,))],
                                 C_per_D=1000 / 32)
  # (C / 2, C] of D = 16 is (250, 500], in which both have their reward.
  assert found["lead"].value == pytest.approx(.5 / 3)
  assert found["lead"].se == pytest.approx(
      np.std([.2, .4, -.1], ddof=1) / 3**0.5)
  assert (found["positive"], found["pairs"]) == (2, 3)


def test_arms_are_compared_with_the_first():
  one = ledgers.part([
      ledgers.run((level,), n=8, seed=seed, arm=arm, Q=300, reward=(.1,))
      for arm, level in {"": .4, "high": .5, "low": .3, "same": .4}.items()
      for seed in (0, 1, 2)], C=1000, name="rate")
  rows = {row["arm"]: row for row in reanalysis.compared(one)}
  assert rows[""]["gain"] is None and rows["same"]["gain"].value == 0.0
  assert rows["high"]["gain"].value == pytest.approx(0.1, abs=0.03)
  assert [rows[arm]["gain"].sign(rows[arm]["alpha"])
          for arm in ("high", "same", "low")] == [1, 0, -1]
  assert rows["same"]["alpha"] == 0.05 and not rows["same"]["resolved"]
  assert {rows["high"]["alpha"], rows["low"]["alpha"]} == {0.05 / 3, 0.05 / 2}
  text = tables.summary(one)
  assert "| high | 8 | +0." in text and "| as it is | 8 | 0." in text
  assert "Partial" not in text
  other = ledgers.part([ledgers.run((1.0,))], C=1000)
  lines = tables.arms_table(one, other).splitlines()
  assert lines[0] == "| arm | n | rate | x |"
  assert lines[-1] == "| as it is | 2 | - | 1.000 |"


def test_regret_is_how_far_each_n_is_behind():
  levels = {2: (.5, .2), 8: (.2, .8)}
  runs = [ledgers.run(each, n=n, seed=seed) for n, each in levels.items()
          for seed in (0, 1, 2)]
  found = reanalysis.regret(runs, "avg", [1000.0, 2000.0])
  assert found["best"] == [2, 8] and found["C/D"][0] == 1000 / 16
  assert found["regret"][:, 1] == pytest.approx([0.6, 0], abs=0.05)
  assert found["resolved"].tolist() == [[False, True], [True, False]]


def test_the_table_of_a_partial_ledger_says_what_is_missing(tmp_path):
  text = tables.summary(ledgers.made(tmp_path / "x.gz", C=200_000))
  assert "Partial: 6 of 6 runs have not reached C = 0.4M" in text
  whole = tables.summary(ledgers.made(tmp_path / "x.gz"))
  assert "| 0.4M | 400 | 32 [32, 32] | 32 [32, 32] |" in whole
  empty = dataclasses.replace(ledger.read(str(tmp_path / "x.gz")), runs=())
  with pytest.raises(InputError, match="no run has an evaluation"):
    tables.summary(empty)
