"""Bootstrap draws: their variance, and whether intervals cover."""

import dataclasses

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import analysis, bootstrap
from tests.frontier import calibration, studies


def test_resamples_have_the_variance_of_the_mean():
  """Draws of S seeds scatter as the mean of S: sd^2 / S with ddof 1."""
  study = studies.small_study(seeds=2)
  options = dataclasses.replace(studies.QUICK, draws=20_000)
  problems, seeds = bootstrap.resamples(study, options)
  assert problems[0].sum() == pytest.approx(1.0)
  values = np.array([0.2, 0.6])
  means = seeds[0][1:] @ values / seeds[0][1:].sum(1)
  assert means.var() == pytest.approx(values.var(ddof=1) / 2, rel=0.03)


def test_without_counts_intervals_come_from_the_scatter():
  study = studies.small_study()
  study = dataclasses.replace(study, per_problem=False, runs=tuple(
      dataclasses.replace(r, value_ExQ=None) for r in study.runs))
  fit = analysis.analyse(study, studies.QUICK)
  assert any("no counts per problem" in c for c in fit.cautions)
  spread = fit.frontier.reward_DxG[1:].std(0)
  assert (spread > 0).all() and (spread < 0.2).all()


def options(**points):
  return dataclasses.replace(studies.EXACT, points=dataclasses.replace(
      studies.EXACT.points, **points))


@pytest.mark.parametrize("name, value", [
    ("bin_width", float("nan")), ("bin_width", 5.0), ("min_C", -1.0),
    ("min_C", float("nan")), ("ema", 1.0)])
def test_options_are_checked(name, value):
  with pytest.raises(InputError, match=f"{name}={value}: expected"):
    options(**{name: value})
  with pytest.raises(InputError, match="form=line: expected"):
    dataclasses.replace(bootstrap.DEFAULT, form="line")


def test_too_few_records_are_refused_with_the_run():
  wide = options(select="records", bin_width=0.5)
  study = studies.small_study()
  with pytest.raises(InputError, match=(
      r"run n3-0 breaks its record \d times .* use narrower bins")):
    bootstrap.fit_curves(study, wide)
  flat = dataclasses.replace(study, runs=tuple(
      dataclasses.replace(run, value_ExQ=np.ones_like(run.value_ExQ))
      for run in study.runs))
  with pytest.raises(InputError, match="fit all points, or leave the run out"):
    bootstrap.fit_curves(flat, options(select="records", bin_width=0.0))


def test_calibration_in_small():
  """12 studies: the full table is tests/slow/test_calibration.py."""
  result = calibration.calibrate(
      calibration.SETTINGS[0], studies=12, draws=100, seed=1000)
  # P(fewer than 8 of 12 | 95 %) is 2 in 10,000.
  assert (result["cover"] >= 8 / 12).all(), result["cover"]
  C0, ceiling, *n = result["width"]  # n: half a step each way is 1.0
  assert C0 < 0.5 and ceiling < 3.5 and max(n) < 1.4, result["width"]
  assert abs(result["switch"]) < 0.15
