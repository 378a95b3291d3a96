"""Reward curves: forms, bounds, records."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import optimize

from isojax.frontier import curves


@pytest.mark.parametrize("form", sorted(curves.FORMS))
def test_a_noiseless_curve_is_found(form):
  x = np.linspace(0, 1e6, 31)
  theta = {"saturating_exponential": [np.log(3e-6)],
           "logistic": [np.log(8e-6), 4e5],
           "hill": [np.log(3e5), np.log(1.7)]}[form]
  y = 0.2 + 0.37 * curves.FORMS[form](np.array(theta)[None], x)
  fit = curves.fit(x, y, np.ones_like(y), form=form, A_max=1.0, b_min=0.0,
                   rounds=9)
  np.testing.assert_allclose(fit(x), y, atol=2e-4)
  assert fit.at_bound == ()


def test_hill_by_hand():
  theta = np.array([[np.log(100.0), np.log(2.0)]])
  np.testing.assert_allclose(
      curves.hill(theta, np.array([0.0, 50.0, 100.0, 300.0])),
      [[0.0, 0.2, 0.5, 0.9]], atol=1e-12)


def test_the_logistic_far_left_is_the_saturating_exponential():
  x = np.linspace(0, 9.0, 7)
  np.testing.assert_allclose(
      curves.logistic(np.array([[np.log(0.5), -99.0]]), x),
      curves.saturating_exponential(np.array([[np.log(0.5)]]), x), rtol=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_no_worse_than_scipy_from_many_starts(seed):
  rng = np.random.default_rng(seed)
  x = np.sort(rng.uniform(0, 1, 13))
  y = np.clip(rng.uniform() * x + rng.normal(0, 0.2, 13) + 0.3, 0, 1)
  ours = curves.fit(x, y[None], np.ones((1, 13)), form="saturating_exponential",
                    A_max=1.0, b_min=0.0, rounds=9)
  low, high = 0.02 / x.max(), 300 / x.max()

  def residual(p):  # A in [b, 1] as b + (1 - b) share
    A = p[0] + (1 - p[0]) * p[1]
    return A - (A - p[0]) * np.exp(-np.exp(p[2]) * x) - y

  theirs = min(optimize.least_squares(
      residual, (b, 0.5, np.log(k)),
      bounds=((0, 0, np.log(low)), (1, 1, np.log(high)))).cost * 2
               for b in (0.1, 0.5) for k in (2 * low, 1.0, high / 2))
  assert ours.sse_D[0] <= theirs * 1.001 + 1e-6


def test_bounds_hold_and_are_reported():
  x = np.linspace(0, 10, 11)
  rising, falling = (
      curves.fit(x, y[None], np.ones((1, 11)), A_max=1.0, b_min=0.0,
                 form="saturating_exponential", rounds=5)
      for y in (0.09 * x, 0.9 - 0.05 * x))
  assert "A" in rising.at_bound
  assert rising.b_D[0] + rising.s_D[0] <= 1.0 + 1e-12
  assert "flat" in falling.at_bound
  np.testing.assert_allclose(falling(x), 0.65)  # the mean


def test_ema_by_hand():
  np.testing.assert_allclose(
      curves.ema_matrix(3, 0.8) @ [1.0, 0.0, 2.0], [1.0, 0.8, 1.04])


def test_records_by_hand():
  reward = [0.101, 0.105, 0.111, 0.108, 0.119, 0.131]
  keep = lambda width: curves.record_breaking(reward, bin_width=width).tolist()
  assert keep(0.0) == [True, True, True, False, True, True]
  assert keep(0.01) == [True, False, True, False, False, True]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_frontier_of_all_points_is_that_of_the_record_breaking(reward):
  keep = curves.record_breaking(reward, bin_width=0.0)
  C = np.arange(len(reward))
  best = lambda at, pool: max(r for c, r in pool if c <= at)
  everything = list(zip(C, reward))
  records = [p for p, kept in zip(everything, keep) if kept]
  assert [best(c, everything) for c in C] == [best(c, records) for c in C]
