"""ScaleRL's law and its fits, against published numbers and known curves."""

import csv
import dataclasses
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import scalerl
from isojax.frontier.scalerl import Points
from tests.frontier import calibration, scalerl_grid

PUBLISHED = pathlib.Path(__file__).parents[1] / "data/published"


POINTS = list(csv.DictReader((PUBLISHED / "scalerl_curve_points.csv").open()))
C_E = np.array([float(r["C_gpu_hours"]) for r in POINTS])
R_E = np.array([float(r["pass_rate"]) for r in POINTS])
RUN = Points(C_E, R_E, 0.4)
TRUE = scalerl.Hill(A=0.62, B=1.7, C_mid=3000.0, R0=0.38)
C_TRUE = np.geomspace(700.0, 40_000.0, 23)
LAWS = st.builds(
    scalerl.Hill, A=st.floats(0.5, 1.0), B=st.floats(0.5, 5.0),
    C_mid=st.floats(1e2, 1e5), R0=st.floats(0.0, 0.4))


@given(LAWS, st.lists(st.floats(0.0, 1e9), min_size=2, max_size=9))
def test_law_rises_from_R0_to_A_through_the_middle(law, C):
  R = law(np.sort(C))
  assert (np.diff(R) >= 0).all()
  assert (law.R0 <= R).all() and (R <= law.A + 1e-12).all()
  assert float(law(0.0)) == law.R0
  assert float(law(law.C_mid)) == pytest.approx((law.R0 + law.A) / 2)


def test_least_squares_is_no_worse_than_the_published_grid():
  fit = scalerl.fit(RUN)
  grid = scalerl_grid.profile(C_E, R_E, R0=0.4, A_grid=[0.6, 0.605, 0.61])
  assert fit.ssr <= min(cell.ssr for cell in grid)
  assert fit.law.A == pytest.approx(0.610, abs=0.02)  # as published
  assert fit.at_bound == () and fit.count == 18


@settings(max_examples=25)
@given(LAWS, st.floats(1e-3, 1e3))
def test_fit_finds_the_law_in_any_unit_of_C(law, unit):
  C = law.C_mid * np.geomspace(0.1, 30.0, 15)
  fit = scalerl.fit(Points(unit * C, law(C), law.R0))
  assert fit.law.A == pytest.approx(law.A, abs=1e-4)
  assert fit.law.B == pytest.approx(law.B, rel=1e-3)
  assert fit.law.C_mid == pytest.approx(unit * law.C_mid, rel=1e-3)


def interval(points):
  A = scalerl.fit(points).law.A
  low, high = scalerl.A_interval(points, A)
  assert low <= A <= high
  return low, high


def test_the_interval_of_A_is_the_profile_of_the_residuals():
  """Against fits with A fixed; R0 with many free points hardly matters."""
  noise = 0.003 * np.random.default_rng(0).normal(size=len(C_TRUE))
  points = Points(C_TRUE, TRUE(C_TRUE) + noise, TRUE.R0)
  low, high = interval(points)
  assert high - low < 0.03
  # F(1, 20) at 95 % is 4.351; with R0 fixed the interval is a little narrower.
  for end in (low, high):
    assert scalerl.fit(points, A=end).ssr / scalerl.fit(
        points).ssr == pytest.approx(1 + 4.351 / 20, rel=0.1)


def test_the_interval_when_R0_moves_the_least_residuals():
  """The step-0 rate is 0.01 too low: with R0 refitted, another A is better."""
  C = 1000.0 * np.arange(61)
  R = 0.05 + 0.48 / (1 + (31_000 / np.maximum(C, 1e-9))**2.3)
  R += 0.003 * np.random.default_rng(0).normal(size=61)
  R[0] = 0.04
  low, high = interval(Points(C, R, R[0]))
  assert low < 0.53 < high < low + 0.1  # 0.53 is true


def test_early_points_leave_A_open():
  early = C_E < 3000.0
  low, high = interval(Points(C_E[early], R_E[early], 0.4))
  assert low < 0.56 and high == 1.0  # A +- 0.02 was reported


def test_the_interval_without_an_evaluation_before_training():
  """The first reward, at C = 1,000, is far above R0 = 0.4.

  Taken for a measured R0, 1 of these 8 intervals contains A.
  """
  true, covered = scalerl.Hill(A=0.61, B=1.92, C_mid=2542.0, R0=0.4), 0
  C = np.geomspace(1000, 8000, 21)
  for seed in range(8):
    R = true(C) + 0.002 * np.random.default_rng(seed).normal(size=21)
    low, high = interval(Points(C, R, R[0], measured=False))
    covered += low <= true.A <= high
  assert covered >= 7
  assert interval(Points(C[::6], R[::6], R[0], measured=False)) == (
      0.0, 1.0)  # four points for four parameters


def test_an_interval_where_the_first_reward_is_0():
  """As of a policy that never succeeded, without an evaluation at C = 0."""
  C = np.geomspace(10, 1e4, 12)
  R = scalerl.Hill(A=0.5, B=1.0, C_mid=500.0, R0=0.0)(C) - 0.01
  R[0] = 0.0
  low, high = interval(Points(C, R, 0.0, measured=False))
  assert 0.4 < low < high <= 1.0


def test_a_law_without_content_is_named():
  """A flat run, and one whose midpoint would be far beyond its data."""
  rng = np.random.default_rng(0)
  C = np.geomspace(10, 1e3, 20)
  flat = scalerl.fit(Points(C, 0.3 + 0.02 * rng.normal(size=20), 0.3))
  assert "less than two standard deviations" in scalerl.empty(flat)
  early = scalerl.Hill(A=0.9, B=1.2, C_mid=5e4, R0=0.3)
  assert "half of its rise would be at" in scalerl.empty(
      scalerl.fit(Points(C, early(C), 0.3)))
  assert scalerl.empty(scalerl.fit(RUN)) is None


def test_the_interval_of_A_covers_in_small():
  """40 runs to 4,000 GPU-hours: more are in tests/slow/test_calibration.py."""
  result = calibration.calibrate_scalerl(
      calibration.SCALERL_RUNS["12 evaluations to 4,000"], 0.005, studies=40,
      seed=1000)
  # P(fewer than 32 of 40 | 95 %) is below 1 in 1,000; A +- 0.02 covers 0.42.
  assert result["cover"] >= 32 / 40 and result["margin"] < 0.7, result


def test_points_below_min_C_are_not_fitted():
  C, R = np.append(0.0, C_TRUE), np.append(TRUE.R0, TRUE(C_TRUE))
  R[1:4] = 0.1  # far off
  fit = scalerl.fit(Points(C, R, R[0], min_C=C_TRUE[3]))
  assert dataclasses.astuple(fit.law) == pytest.approx(
      dataclasses.astuple(TRUE), rel=1e-4)
  assert (fit.count, fit.C_lo) == (20, C_TRUE[3])


def test_FLOPs_do_not_overflow():
  """C ~ 1e21 and B = 20: C^B is beyond any float."""
  C = np.geomspace(1e19, 1e21, 30)
  law = scalerl.Hill(A=0.6, B=18.0, C_mid=1e20, R0=0.3)
  points = Points(C, law(C), 0.3)
  assert scalerl.fit(points).law.C_mid == pytest.approx(1e20, rel=1e-2)


def test_extrapolation_from_the_steep_part_promises_too_much():
  fit, error = scalerl.extrapolate(RUN, fit_below=3842.0)
  assert fit.at_bound == ("A",)  # these points do not determine A
  beyond = C_E > fit.C_hi
  assert (fit.count, beyond.sum()) == (11, 7)
  np.testing.assert_array_equal(error, fit.law(C_E[beyond]) - R_E[beyond])
  assert error.mean() > scalerl.A_MARGIN


@pytest.mark.parametrize("refused, message", [
    (lambda: scalerl.fit(Points(C_E, R_E, 0.4, 7000.0)), "2 points"),
    (lambda: scalerl.fit(Points(C_E[:3], R_E[:3], 0.4)),
     "3 points with C > 0: expected at least 4; evaluate more often"),
    (lambda: scalerl.fit(Points(C_E, R_E, 0.6)), "R0=0.6"),
    (lambda: scalerl.fit(RUN, A=0.4), "A=0.4: expected above R0=0.4"),
    (lambda: scalerl.extrapolate(RUN, fit_below=9000.0), "no point lies")])
def test_refusals(refused, message):
  with pytest.raises(InputError, match=message):
    refused()
