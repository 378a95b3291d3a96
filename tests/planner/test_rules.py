"""What the rules of allocation are expected to do with a stratum."""

import math
import statistics

import numpy as np
import pytest

from isojax.allocation import Bounds
from isojax.errors import InputError
from isojax.planner import rules

BOUNDS = Bounds(2, 64)
EVEN = [8] * 64  # of 16: every problem alike
MIXED = [0] * 24 + [1] * 16 + [8] * 12 + [16] * 12


def test_slowest_answer_of_a_group():
  """Two log-normals: E[max] = 2 mean Phi(sigma / sqrt(2)); one is the mean."""
  assert rules.slowest_answer(1) == pytest.approx(1.0, abs=1e-6)
  assert rules.slowest_answer(2) == pytest.approx(
      2 * statistics.NormalDist().cdf(0.8 / math.sqrt(2)), rel=1e-6)
  rng = np.random.default_rng(0)
  drawn = np.exp(0.8 * rng.standard_normal((20_000, 64)) - 0.32).max(1)
  assert rules.slowest_answer(64) == pytest.approx(drawn.mean(), rel=0.02)


def test_effects_equal_a_simulation():
  """Pass rates from the posterior, then answers from the pass rates."""
  found = rules.effects(MIXED, 16, Bp=64, n=8, bounds=BOUNDS)
  rng, c = np.random.default_rng(0), np.array(MIXED)
  p = rng.beta(c + 0.5, 16 - c + 0.5, size=(20_000, 64))
  right = rng.binomial(8, p)
  uniform = found["uniform"]
  assert uniform.groups == 64
  assert uniform.informative == pytest.approx(
      ((right > 0) & (right < 8)).sum(1).mean(), rel=0.005)
  assert uniform.hits == pytest.approx((right > 0).sum(1).mean(), rel=0.005)
  # Rewards of one rollout have the variance p (1 - p).
  assert uniform.variance == pytest.approx((p * (1 - p)).mean(), rel=0.01)
  assert found["variance"].variance == min(e.variance for e in found.values())
  assert found["hit"].hits == max(e.hits for e in found.values())
  assert found["skip"].groups < 64  # 36 problems were all right or all wrong


def test_seconds_are_those_of_the_groups_that_are_sampled():
  found = rules.effects(MIXED, 16, Bp=64, n=8, bounds=BOUNDS,
                        seconds=lambda K, n: K * n)
  assert {e.seconds for e in found.values()} == {512.0}  # of B rollouts


def test_a_uniform_stratum_is_said_to_be_one():
  text = rules.compared(EVEN, 16, Bp=32, n=16, bounds=BOUNDS,
                        rule="knapsack")
  assert text.endswith("than uniform at n = 16") and "too uniform" in text
  assert "seconds" not in text
  text = rules.compared(MIXED, 16, Bp=32, n=8, bounds=BOUNDS,
                        rule="knapsack")
  assert "too uniform" not in text and "knapsack *" in text


@pytest.mark.parametrize("correct, samples", [(EVEN, 0), (EVEN[:8], 16)])
def test_a_stratum_without_counts_is_refused(correct, samples):
  with pytest.raises(InputError, match="--rule=hit needs the pass counts"):
    rules.compared(correct, samples, Bp=32, n=8, bounds=BOUNDS,
                   rule="hit")
