"""PODS's speed-up against its published curves, and hand-worked curves."""

import csv
import pathlib

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import bootstrap, compare
from isojax.frontier.study import StudyRun

DATA = pathlib.Path(__file__).parents[1] / "data"


def run(x, reward, *, seed=0):
  x = np.array(x, float)
  return StudyRun(run_id=f"r{seed}", seed=seed, Bp=2, n=4,
                  step_E=np.arange(len(x)), C_E=x, value_ExQ=None,
                  reward_E=np.array(reward, float), training_problems=None,
                  where="r.jsonl")


def measured(baseline, other, share=0.99):
  return compare.speedup(baseline, other, share=share, seed=0)


def published():
  """(n, m, rule) -> the arm of a PODS curve, one mean over 10 runs."""
  rows = {}
  with open(DATA / "pods_curves.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file):
      rows.setdefault((row["n"], row["m"], row["rule"]), []).append(row)
  return {key: compare.make_recipe("/".join(key), [run(
      [float(r["time"]) for r in of], [float(r["mean_percent"]) for r in of])])
          for key, of in rows.items()}


def test_published_curves_give_the_published_speedups():
  arms = published()
  with open(DATA / "pods_speedup_expected.csv", encoding="utf-8") as file:
    expected = list(csv.DictReader(file))
  baseline = arms["16", "16", "all"]
  for key, row in zip((("64", "16"), ("32", "16")), expected, strict=True):
    found = measured(baseline, arms[*key, "max_variance"])
    # the curves are rounded to 0.01, T comes from unrounded means
    assert abs(found.threshold - float(row["threshold_percent"])) < 0.01
    assert (found.baseline_time, found.time) == (
        float(row["t_grpo"]), float(row["t_pods"]))
    assert found.ratio == pytest.approx(float(row["speedup"]), abs=1e-9)
    assert (found.interval, found.verdict) == (None, "no interval")  # one run
  # 3.0 h / 1.5 h; crossed in (2.5, 3.0] and (1.0, 1.5]
  found = measured(baseline, arms["64", "16", "max_variance"])
  assert found.between == (2.5 / 1.5, 3.0 / 1.0)
  never = measured(baseline, arms["64", "16", "max_reward"])
  assert (never.time, never.ratio, never.verdict) == (None, None, "never")


def test_the_start_counts_neither_for_the_threshold_nor_as_a_time():
  baseline = compare.make_recipe("b", [run([0, 1, 2, 3], [0.9, 0.2, 0.5, 0.4])])
  other = compare.make_recipe("o", [run([0, 4, 5], [0.9, 0.3, 0.4])])
  found = measured(baseline, other, share=0.8)
  assert (found.threshold, found.baseline_time) == (0.4, 2.0)
  assert (found.time, found.ratio) == (5.0, 0.4)
  assert found.between == (1 / 5, 2 / 4)
  first = measured(baseline, compare.make_recipe("o", [run([0, 1], [0, 1])]),
                   share=0.8)
  assert (first.ratio, first.between) == (2.0, (1.0, None))
  with pytest.raises(InputError, match="0; expected a baseline that solves"):
    measured(compare.make_recipe("b", [run([0, 1], [1, 0])]), other)


def test_the_interval_of_two_runs_by_hand():
  """Each run of the baseline is 0.5 at 2 or at 4; the other is 0.5 at 1.

  A draw has one run of two: time 2 or 4 with equal chances; the mean of both
  reaches T = 0.495 at 4.
  """
  baseline = compare.make_recipe("b", [
      run([1, 2, 3, 4], [0, 0.5, 0.5, 0.5], seed=0),
      run([1, 2, 3, 4], [0, 0, 0, 0.5], seed=1)])
  other = compare.make_recipe(
      "o", [run([1, 2], [0.5, 0.5], seed=seed) for seed in (0, 1)])
  found = measured(baseline, other)
  assert (found.ratio, found.never, found.verdict) == (4.0, 0.0, "not resolved")
  # log 2 and log 4: a standard deviation of log(2) / 2; t of 2 is 4.303
  assert found.interval == pytest.approx(
      (4 / 2**(4.303 / 2), 4 * 2**(4.303 / 2)), rel=0.01)
  # One of its runs never gets there: a draw reaches T with probability 1/2.
  half = compare.make_recipe(
      "h", [run([1, 2], [0.5, 0.5]), run([1, 2], [0, 0])])
  found = measured(baseline, half)
  assert found.ratio is None and found.verdict == "never"
  assert found.interval == pytest.approx((2, 4))  # of draws that reach T
  assert abs(found.never - 0.5) < 0.035  # 4.4 standard errors
  none = measured(baseline, compare.make_recipe("n", [
      run([1], [0.4], seed=seed) for seed in (0, 1, 2)]))
  assert none.interval is None and none.never == 1.0


def test_an_interval_around_one_is_not_resolved():
  runs = [run([1, 2, 3], [0, 0.5, 0.5], seed=0),
          run([1, 2, 3], [0, 0.2, 0.5], seed=1)]
  recipe = compare.make_recipe("a", runs)
  found = measured(recipe, recipe)
  assert found.ratio == 1.0 and found.verdict == "not resolved"


def test_runs_with_other_evaluations_are_interpolated_where_all_have_data():
  one = run([0, 10, 20, 30], [0, 0.2, 0.4, 0.6])
  other = run([4, 8, 26, 50], [0.1, 0.1, 0.7, 1])
  arm = compare.make_recipe("a", [one, other])
  assert arm.x_E.tolist() == [4, 8, 10, 20, 26, 30]
  np.testing.assert_allclose(arm.reward_SxE[0],
                             [0.08, 0.16, 0.2, 0.4, 0.52, 0.6])
  np.testing.assert_allclose(arm.reward_SxE[1],
                             [0.1, 0.1, 1 / 6, 0.5, 0.7, 0.75])
  with pytest.raises(InputError, match="no evaluation after the start"):
    compare.make_recipe("a", [run([0, 1], [0, 1]), run([2, 3], [0, 1])])


def test_rewards_at_equal_compute_by_hand():
  """At 40, where the shorter recipe ends, at 20 and at 10."""
  slow = compare.make_recipe("b", [run([0, 40, 80], [0.0, 0.4, 0.8]),
                                   run([0, 40, 80], [0.0, 0.2, 0.8])])
  fast = compare.make_recipe("o", [run([0, 20, 40], [0.0, 0.4, 0.6]),
                                   run([0, 20, 40], [0.0, 0.4, 0.8])])
  rows = compare.at_equal_compute(slow, fast)
  assert [row["C"] for row in rows] == [10, 20, 40]
  assert [row["baseline"] for row in rows] == pytest.approx([.075, .15, .3])
  assert [row["recipe"] for row in rows] == pytest.approx([0.2, 0.4, 0.7])
  # At 40 each has a standard error of 0.1: df = 2, t = 4.303.
  assert rows[-1]["difference"] == pytest.approx(0.4)
  assert rows[-1]["interval"] == pytest.approx(
      (0.4 - 4.303 * 0.02**0.5, 0.4 + 4.303 * 0.02**0.5), abs=1e-3)


def test_welch_against_its_formula():
  """Variances 1 and 9 of 3 and 4 values: df = (1/3 + 9/4)^2 / ... = 3.89."""
  one, other = [1.0, 2.0, 3.0], np.array([-3.0, 0.0, 0.0, 3.0]) * 1.5**0.5 + 9
  difference, (low, high) = bootstrap.welch(one, other)
  assert difference == pytest.approx(-7.0)
  free = (1 / 3 + 9 / 4)**2 / ((1 / 3)**2 / 2 + (9 / 4)**2 / 3)
  assert free == pytest.approx(3.828, abs=1e-3)
  assert high - low == pytest.approx(
      2 * 2.826 * (1 / 3 + 9 / 4)**0.5, rel=2e-3)  # t at 3.828: 2.826
  assert bootstrap.welch([1.0], other)[1] is None
  assert bootstrap.welch([1.0, 1.0], [0.5, 0.5]) == (0.5, (0.5, 0.5))


@pytest.mark.parametrize("S", [2, 3, 8])
def test_intervals_contain_a_known_truth(S):
  """Simulated runs: 20 evaluations, noise 0.01 of each run and evaluation."""
  rng = np.random.default_rng(3)
  x = np.arange(1, 21.0)
  true = lambda tau: 0.3 + 0.4 * (1 - np.exp(-x / tau))
  make = lambda tau: compare.Recipe("a", x, true(tau) + rng.normal(
      0, 0.01, (S, 1)) + rng.normal(0, 0.01, (S, 20)))
  exact = lambda tau: compare.Recipe("t", x, true(tau)[None])
  assert measured(exact(6), exact(3)).ratio == 2.0
  held, equal = [], []
  for _ in range(150):
    arms = make(6), make(3)
    if interval := measured(*arms).interval:
      held.append(interval[0] <= 2.0 <= interval[1])
    low, high = compare.at_equal_compute(*arms)[-1]["interval"]
    equal.append(low <= true(3)[-1] - true(6)[-1] <= high)
  # P(fewer than 135 of 150 | 95 %) is 1 %
  assert np.mean(held) >= 0.9 and np.mean(equal) >= 0.9, (
      np.mean(held), np.mean(equal))
