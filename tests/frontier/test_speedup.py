"""PODS's speed-up against its published curves and hand-worked curves."""

import csv
import pathlib

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import speedup
from isojax.frontier.study import Run

DATA = pathlib.Path(__file__).parents[1] / "data"


def run(x, reward, *, step=None, seed=0):
  x = np.array(x, float)
  return Run(run_id=f"r{seed}", seed=seed, Bp=2, n=4,
             step_E=np.arange(len(x)) if step is None else np.array(step),
             C_E=x, value_ExQ=None, reward_E=np.array(reward, float), D=None,
             where="r.jsonl")


def measured(baseline, other, **changes):
  return speedup.speedup(baseline, other, **(
      dict(share=0.99, draws=200, seed=0) | changes))


def published():
  """(n, m, rule) -> the arm of a PODS curve, one mean over 10 runs."""
  rows = {}
  with open(DATA / "pods_curves.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file):
      rows.setdefault((row["n"], row["m"], row["rule"]), []).append(row)
  return {key: speedup.arm("/".join(key), [run(
      [float(r["time"]) for r in of], [float(r["mean_percent"]) for r in of])])
          for key, of in rows.items()}


def test_published_curves_give_the_published_speedups():
  arms = published()
  with open(DATA / "pods_speedup_expected.csv", encoding="utf-8") as file:
    expected = list(csv.DictReader(file))
  baseline = arms["16", "16", "all"]
  for key, row in zip((("64", "16"), ("32", "16")), expected, strict=True):
    T, time = speedup.baseline_time(baseline, share=speedup.SHARE)
    # the curves are rounded to 0.01, T comes from unrounded means
    assert abs(T - float(row["threshold_percent"])) < 0.01
    found = measured(baseline, arms[*key, "max_variance"])
    assert (time, found.time) == (float(row["t_grpo"]), float(row["t_pods"]))
    assert found.ratio == pytest.approx(float(row["speedup"]), abs=1e-9)
    assert found.interval is None and "one run" in found.no_interval
  # 3.0 h / 1.5 h; crossed in (2.5, 3.0] and (1.0, 1.5]
  found = measured(baseline, arms["64", "16", "max_variance"])
  assert found.between == (2.5 / 1.5, 3.0 / 1.0)
  never = measured(baseline, arms["64", "16", "max_reward"])
  assert (never.time, never.ratio, never.verdict) == (None, None, "never")
  assert (never.highest, never.end) == (67.28, 6.0)


def test_start_counts_neither_for_the_threshold_nor_as_a_time():
  baseline = speedup.arm("b", [run([0, 1, 2, 3], [0.9, 0.2, 0.5, 0.4])])
  assert speedup.baseline_time(baseline, share=0.8) == (0.4, 2.0)
  other = speedup.arm("o", [run([0, 4, 5], [0.9, 0.3, 0.4])])  # 0.4 is enough
  found = measured(baseline, other, share=0.8)
  assert (found.time, found.ratio) == (5.0, 0.4)
  assert found.between == (1 / 5, 2 / 4)
  first = measured(baseline, speedup.arm("o", [run([0, 1], [0, 1])]),
                   share=0.8)
  assert (first.ratio, first.between) == (2.0, (1.0, None))
  with pytest.raises(InputError, match="0; expected a baseline that solves"):
    speedup.baseline_time(speedup.arm("b", [run([0, 1], [1, 0])]), share=0.8)


def test_interval_of_two_runs_by_hand():
  """Each run of the baseline is 0.5 at 2 or at 4; the other is 0.5 at 1.

  A resample has the first run twice (1/4: time 2), the second twice (1/4: time
  4) or both (1/2: means 0, 0.25, 0.25, 0.5 with T = 0.495: time 4).
  """
  baseline = speedup.arm("b", [run([1, 2, 3, 4], [0, 0.5, 0.5, 0.5], seed=0),
                               run([1, 2, 3, 4], [0, 0, 0, 0.5], seed=1)])
  other = speedup.arm("o", [run([1, 2], [0.5, 0.5], seed=s) for s in (0, 1)])
  found = measured(baseline, other, draws=4000)
  assert (found.ratio, found.interval, found.never) == (4.0, (2, 4, 4), 0.0)
  assert found.verdict == "faster"
  # One of its runs never gets there: a resample reaches T with prob. 1/4.
  half = speedup.arm("h", [run([1, 2], [0.5, 0.5]), run([1, 2], [0, 0])])
  found = measured(baseline, half, draws=4000)
  assert found.ratio is None and found.verdict == "never"
  assert found.interval == (2, 4, 4)  # of the resamples that reach T
  assert abs(found.never - 0.75) < 0.03  # 4.4 standard errors
  none = measured(baseline, speedup.arm("n", [
      run([1], [0.4], seed=s) for s in (0, 1, 2)]))
  assert none.interval is None and none.never == 1.0


def test_an_interval_around_one_is_not_resolved():
  runs = [run([1, 2, 3], [0, 0.5, 0.5], seed=0),
          run([1, 2, 3], [0, 0.2, 0.5], seed=1)]
  arm = speedup.arm("a", runs)
  found = measured(arm, arm)
  assert found.ratio == 1.0 and found.verdict == "not resolved"


def test_runs_meet_on_the_axis_at_steps_or_by_interpolation():
  one = run([0, 10, 20, 30], [0, 0.2, 0.4, 0.6], step=[0, 5, 10, 15])
  longer = run([0, 10, 20, 30, 40], [0, 0.4, 0.4, 0.8, 1], step=[0, 1, 2, 3, 4])
  arm = speedup.arm("a", [one, longer])
  assert arm.points == "axis" and arm.x_E.tolist() == [0, 10, 20, 30]
  np.testing.assert_allclose(arm.reward_E, [0, 0.3, 0.4, 0.7])
  slow = run([0, 14, 28], [0, 0.4, 0.8], step=[0, 5, 10])
  arm = speedup.arm("a", [one, slow])
  assert arm.points == "steps" and arm.x_E.tolist() == [0, 12, 24]
  np.testing.assert_allclose(arm.reward_E, [0, 0.3, 0.6])
  other = run([4, 8, 26, 50], [0.1, 0.1, 0.7, 1], step=[1, 2, 3, 4])
  arm = speedup.arm("a", [one, other])
  assert arm.points == "interpolated"
  assert arm.x_E.tolist() == [4, 8, 10, 20, 26, 30]  # both have 4 to 30
  np.testing.assert_allclose(arm.reward_SxE[0],
                             [0.08, 0.16, 0.2, 0.4, 0.52, 0.6])
  np.testing.assert_allclose(arm.reward_SxE[1],
                             [0.1, 0.1, 1 / 6, 0.5, 0.7, 0.75])
  with pytest.raises(InputError, match="no evaluation after the start"):
    speedup.arm("a", [run([0, 1], [0, 1]), run([2, 3], [0, 1], step=[7, 8])])


def test_intervals_contain_a_known_truth():
  """Simulated runs: 20 evaluations, noise 0.01 of each run and evaluation."""
  rng = np.random.default_rng(3)
  x = np.arange(1, 21.0)
  true = lambda tau: 0.3 + 0.4 * (1 - np.exp(-x / tau))
  make = lambda tau, S: speedup.Arm("a", np.tile(x, (S, 1)), true(tau)
      + rng.normal(0, 0.01, (S, 1)) + rng.normal(0, 0.01, (S, 20)), "axis")
  exact = lambda tau: speedup.Arm("t", x[None], true(tau)[None], "axis")
  truth = measured(exact(6), exact(3)).ratio
  intervals = lambda S: [measured(make(6, S), make(3, S)).interval
                         for _ in range(150)]
  held = {S: np.mean([low <= truth <= high for low, _, high in intervals(S)])
          for S in (3, 8)}
  assert truth == 2.0 and 0.75 < held[3] < 0.95  # few runs: too narrow
  assert held[8] > 0.9
