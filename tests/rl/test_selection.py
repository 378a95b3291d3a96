"""Selections against published cases and the published loop."""

import csv
import fractions
import pathlib

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.rl import selection

CASES = list(csv.DictReader(
    (pathlib.Path(__file__).parents[1] / "data/pods_select_cases.csv").open()))
# Few values, so that ties are common; 0.1, 0.7 and 1.1 are no dyadic fractions.
VALUES = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 0.7, 1.0, 1.1])


def spread(rewards):
  """m^2 times the variance, exactly."""
  exact = [fractions.Fraction(r) for r in rewards]
  return len(exact) * sum(r * r for r in exact) - sum(exact)**2


def selected(name, reward, m):
  """The indices of the selected rollouts, [P, m], of groups of equal size."""
  uniform = np.linspace(0.9, 0.1, np.size(reward)).reshape(np.shape(reward))
  return indices(selection.SELECTIONS[name](
      np.array(reward), np.ones(uniform.shape, bool), uniform, m=m))


def indices(selected_PxN):
  return np.nonzero(selected_PxN)[1].reshape(len(selected_PxN), -1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_published_case(case):
  reward, m = np.array(case["rewards"].split(), float), int(case["m"])
  chosen = reward[selected("max_variance", reward[None], m)[0]]
  assert chosen.var() == pytest.approx(float(case["best_var_pop"]), abs=1e-6)
  assert chosen.var(ddof=1) == pytest.approx(
      float(case["best_var_ddof1"]), abs=1e-6)
  assert sorted(chosen, reverse=True) == [
      float(r) for r in case["published_selection"].split()]


@hypothesis.given(st.lists(st.one_of(VALUES, st.floats(-1e300, 1e300)),
                           min_size=1, max_size=10), st.data())
def test_max_variance_follows_the_published_loop(reward, data):
  """The rule of PODS, with exact variances in place of its floats."""
  m = data.draw(st.integers(1, len(reward)))
  down = sorted(range(len(reward)), key=lambda i: reward[i], reverse=True)
  best = down[:m]
  for k in range(m):
    subset = down[:k] + down[len(down) - (m - k):]
    if spread([reward[i] for i in subset]) > spread([reward[i] for i in best]):
      best = subset
  assert selected("max_variance", [reward], m)[0].tolist() == sorted(best)


def test_no_tie_is_broken_by_rounding():
  """2 + 1, 1 + 2 and so on: three values 0.1 and three 1.1, any m.

  As floats, 3 sum r^2 - (sum r)^2 of one high is less than of two highs.
  """
  index = selected("max_variance", [[1.1, 0.1, 1.1, 0.1, 0.1, 1.1]], 3)
  assert index.tolist() == [[0, 3, 4]]


@pytest.mark.parametrize("name, reward, m, want", [
    # Equal rewards: the highest from the lowest index, the lowest from the
    # highest.
    ("max_variance", [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 4, [0, 2, 3, 5]),
    ("max_reward", [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 2, [0, 2]),
    ("percentile", [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 2, [2, 3]),
    ("max_variance", [0.3] * 5, 3, [0, 1, 2]),
    ("max_reward", [2.0] * 5, 3, [0, 1, 2]),
    # Every variance of one is 0, and the rule starts with the highest.
    ("max_variance", [0.0, 0.5, 1.0, 1.0], 1, [2]),
    ("max_reward", [0.0, 0.5, 1.0, 1.0], 1, [2]),
    ("max_reward", [0.0, 3.0, 1.0, 2.0], 2, [1, 3])])
def test_ties_by_hand(name, reward, m, want):
  assert selected(name, [reward], m).tolist() == [want]


@pytest.mark.parametrize("n, m, ranks", [
    (8, 4, [1, 3, 5, 7]), (8, 2, [2, 6]), (6, 1, [3]), (7, 3, [1, 3, 5]),
    (5, 4, [0, 1, 3, 4])])
def test_percentile_ranks(n, m, ranks):
  """floor(n (j + 1/2) / m): 8 of 4 are 1, 3, 5, 7."""
  reward = np.arange(n)[::-1]
  assert selected("percentile", [reward], m)[0].tolist() == sorted(
      n - 1 - rank for rank in ranks)


# Groups of 4, 3, 2 and 1; 9 and .0 are padding.
RAGGED = np.array([[1.0, 0, 2, 3], [0, 2, 1, 9], [0, 1, 9, 9], [5, 9, 9, 9]])
REAL = np.arange(4)[None] < np.array([[4], [3], [2], [1]])
UNIFORM = np.array([[.5, .1, .4, .2], [.8, .9, .7, .0], [.6, .3, .0, .0],
                    [.1, .0, .0, .0]])


@pytest.mark.parametrize("name, m, want", [
    ("all", 4, [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]),
    ("max_reward", 2, [[2, 3], [1, 2], [0, 1], [0]]),
    ("max_variance", 2, [[1, 3], [0, 1], [0, 1], [0]]),
    # Of 4 the ranks 1 and 3; of 3 floor(3/4) = 0 and floor(9/4) = 2.
    ("percentile", 2, [[0, 3], [0, 1], [0, 1], [0]]),
    ("random", 2, [[1, 3], [0, 2], [0, 1], [0]]),
    ("random", 5, [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]),
    ("max_reward", 5, [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]),
    ("max_reward", 3, [[0, 2, 3], [0, 1, 2], [0, 1], [0]]),
    ("max_variance", 5, [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]),
    ("percentile", 5, [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]])])
def test_groups_of_several_sizes_by_hand(name, m, want):
  got = selection.SELECTIONS[name](RAGGED, REAL, UNIFORM, m=m)
  assert [np.flatnonzero(row).tolist() for row in got] == want
