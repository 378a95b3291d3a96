"""Windows, the best n, and differences with their intervals."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from launch.study import windows
from tests.study import ledgers


def column(*seeds) -> np.ndarray:
  """Values of one problem, [S, 1]."""
  return np.array(seeds, float)[:, None]


def test_windows_have_the_evaluations_above_their_beginning():
  run = ledgers.run((0.0, 1.0, 0.5), reward=(0.1, 0.2, 0.4))
  of = lambda C, name="avg": windows.window(run, C, name).mean()
  assert [of(1000), of(2000), of(4000)] == pytest.approx(
      [0.0, 1.0, run.value_ExQ[2].mean()])
  assert of(4000, "reward") == 0.4 and of(4000, "best") > 0.9
  assert np.isnan(of(8000)) and np.isnan(of(8000, "reward"))
  assert windows.ends_of([run], 4000.0, 4) == [1000.0, 2000.0, 4000.0]
  # Due at 2,000, but the step ended at 2,010: not in (2,000, 4,000].
  late = dataclasses.replace(run, evals=tuple(
      line | {"rollouts": line["rollouts"] + 10 * (line["rollouts"] == 2000)}
      for line in run.evals))
  assert windows.window(late, 4000).mean() == of(4000)


def test_a_part_of_the_ledger_counts_with_its_share_of_a_training_window():
  run = ledgers.run((0.5,), reward=(0.2,))
  lines = ({"rollouts": 600, "steps": 3, "reward": 0.1}, {
      "rollouts": 1000, "steps": 1, "reward": 0.5})
  run = dataclasses.replace(run, updates=lines)
  # (500, 1000]: 100 rollouts of the first part and 400 of the second
  assert [windows.window(run, C, "reward")[0] for C in (800, 1000)] == (
      pytest.approx([0.3, 0.42]))
  assert windows.training(run, 0, 1000, "reward")[0] == pytest.approx(0.26)


def test_a_seed_that_has_not_got_there_does_not_count():
  runs = [ledgers.run((0.0, 0.0), seed=0), ledgers.run((1.0, 1.0, 1.0), seed=1)]
  value, _ = windows.best_n(runs, [2000.0, 4000.0])
  assert value[2] == pytest.approx([0.5, 1.0])


def test_the_best_n_rises():
  """n = 2 is best at first and falls; n = 8, then 32, take over."""
  levels = {2: (.5, .7, .5, .3, .2), 8: (.2, .5, .8, .5, .3),
            32: (.1, .2, .4, .7, .8)}
  runs = [ledgers.run(each, n=n, seed=seed) for n, each in levels.items()
          for seed in (0, 1, 2)]
  value, best = windows.best_n(runs, [1000.0 * 2**i for i in range(5)])
  assert list(value) == [2, 8, 32] and value[8].argmax() == 2
  assert [n for n, _, _ in best] == [2, 2, 8, 32, 32]
  assert best[0] == (2, 2, 2)
  # Two seeds that disagree: the interval has both n.
  two = [ledgers.run((level,), n=n, seed=seed) for n, seed, level in (
      (2, 0, 0.0), (2, 1, 1.0), (8, 0, 0.7), (8, 1, 0.3))]
  assert windows.best_n(two, [1000.0])[1][0][1:] == (2, 8)


def test_a_difference_of_seeds_is_that_of_welch():
  one, other = (1.0, 3.0, 4.0), (0.0, 0.5)
  found = windows.sum_of([column(*one), -column(*other)])
  welch = stats.ttest_ind(one, other, equal_var=False)
  assert found.value == pytest.approx(np.mean(one) - np.mean(other))
  assert found.df == pytest.approx(welch.df)
  assert found.p == pytest.approx(welch.pvalue)
  assert found.interval() == pytest.approx(welch.confidence_interval())
  assert (found.sign(), windows.sum_of([column(-2, -2.1)]).sign()) == (0, -1)


def test_a_pooled_difference_has_the_variance_of_all_cells():
  """Squares of 2 and 8 over two degrees: 5 for a seed."""
  cells = [column(1, 3), column(2, 6)]
  pooled = windows.seed_variance(cells)
  assert pooled == (5.0, 2)
  found = windows.sum_of([cells[0], -cells[1]], pooled)
  assert (found.value, found.se, found.df) == pytest.approx((-2, 5**0.5, 2))


def test_problems_that_all_seeds_share_are_counted_once():
  """Three seeds without noise on problems of 0, 0.5 and 1: the mean's variance
  is 0.25 / 3, of two degrees; the same problems cancel in a difference."""
  cell = np.array(3 * [[0.0, 0.5, 1.0]])
  found = windows.sum_of([cell])
  assert (found.se, found.df) == pytest.approx(((0.25 / 3)**0.5, 2))
  assert windows.sum_of([cell + 0.1, -cell]).se == pytest.approx(0, abs=1e-9)
  # Noise of seed and problem: as that of the mean of all S * Q values.
  rng = np.random.default_rng(0)
  noise = rng.normal(size=(200, 200))
  assert windows.sum_of([noise]).se == pytest.approx(1 / 200, rel=0.15)


def test_one_seed_has_no_interval():
  assert np.isnan(windows.sum_of([column(1.0)]).se)


def test_a_contrast_adds_and_subtracts_terms():
  """Rewards of n = 8: 0.2 then 0.6; of n = 2: 0.1 then 0.3."""
  runs = [ledgers.run((0, 0), n=n, seed=seed, Q=4, reward=values)
          for n, values in ((8, (.2, .6)), (2, (.1, .3))) for seed in (0, 1, 2)]
  runs.append(ledgers.run((0, 0), n=8, seed=3, Q=4, reward=(.9, .9)))
  L = {"x": ledgers.part(runs)}
  T = lambda n, C, **more: dict(part="x", n=n, C=C, of="reward") | more
  seeds = dict(seeds=(0, 1, 2))
  of = lambda *terms: windows.contrast(L, *terms).value
  assert of([T((8,), 2000.0, **seeds)], [T((2,), 2000.0)]) == pytest.approx(.3)
  assert of([T((2, 8), 2000.0, **seeds)]) == pytest.approx(.45)
  assert of([T((8,), 2000.0)]) == pytest.approx((3 * .6 + .9) / 4)
  assert of([T((8,), 1000.0, **seeds), T((2,), 2000.0)], [
      T((2,), 1000.0), T((8,), 2000.0, **seeds)]) == pytest.approx(.1 - .3)
  # A seed that two windows share has one value, the sum of both.
  shared = windows.contrast(L, [T((8,), 1000.0)], [T((8,), 2000.0)])
  assert shared.se == pytest.approx(np.std([-.4, -.4, -.4, 0], ddof=1) / 2)


def test_a_contrast_takes_the_first_problems():
  runs = [dataclasses.replace(ledgers.run((0,), seed=s), evals=(
      {"rollouts": 1000, "correct": "8800"},)) for s in (0, 1)]
  L = {"x": ledgers.part(runs)}
  assert [windows.contrast(
      L, [dict(part="x", n=[2], C=1000.0, problems=q)]).value
          for q in (None, 2, 3)] == pytest.approx([1 / 2, 1, 2 / 3])


def test_holm():
  assert windows.holm([0.04, 0.01, 0.03]) == pytest.approx(
      [0.05, 0.05 / 3, 0.05 / 2])
