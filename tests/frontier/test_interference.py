"""Polarisation of the pass rates of problems."""

import dataclasses

import numpy as np
import pytest

from isojax.frontier import interference
from tests.frontier import studies


def test_polarisation_by_hand():
  assert interference.polarisation([0, 0, 4, 4], 4) == pytest.approx(1.0)
  # m = 3/6; mean c(c-1)/(k(k-1)) = (0+0+6)/(3*6) = 1/3; (1/3-1/4)/(1/4) = 1/3
  assert interference.polarisation([0, 1, 3], 3) == pytest.approx(
      (1 / 3 - (4 / 9) ** 2) / (4 / 9 * 5 / 9))
  assert np.isnan(interference.polarisation([0, 0], 4))


def test_polarisation_is_unbiased_in_k():
  rng = np.random.default_rng(0)
  p = rng.beta(0.7, 1.9, 40_000)
  exact = p.var() / (p.mean() * (1 - p.mean()))
  for k in (2, 5):
    found = interference.polarisation(rng.binomial(k, p), k)
    assert found == pytest.approx(exact, abs=0.02)


def test_uniform_progress_keeps_a_point_mass_a_point_mass():
  assert interference.uniform_progress(0.3, 0.0, 0.6) < 0.01
  assert interference.uniform_progress(0.3, 0.2, 0.3) == pytest.approx(
      0.2, abs=0.01)


def test_interference_tells_rich_get_richer_from_uniform():
  rng = np.random.default_rng(1)
  p = rng.beta(2, 6, 2000)
  start = rng.binomial(8, p)
  odds = np.log(p / (1 - p))
  ends = {"uniform": 1 / (1 + np.exp(-(odds + 1))),
          "rich": np.where(p > np.quantile(p, 0.6), 0.97, p)}
  score = {}
  for name, rate in ends.items():
    counts = np.stack([start, rng.binomial(8, rate)])
    run = dataclasses.replace(
        studies.small_study().runs[0], C_E=np.array([0.0, 1.0]),
        value_ExQ=counts / 8)
    score[name] = interference.interference(run, 8, draws=50, seed=0)
  assert abs(score["uniform"]["score"]) < 0.03
  assert score["rich"]["score_interval"][0] > 0.2
