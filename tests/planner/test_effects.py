"""What the rules of allocation are expected to do with a stratum."""

import math
import statistics

import numpy as np
import pytest
from scipy import special

from isojax.division import Bounds, Posterior, RULES
from isojax.errors import InputError
from isojax.planner import effects

DIVISION = effects.division(None, "knapsack", 8)
EVEN = [8] * 64  # of 16: every problem alike
MIXED = [0] * 24 + [1] * 16 + [8] * 12 + [16] * 12


def test_slowest_answer_of_a_group():
  """Two log-normals: E[max] = 2 mean Phi(sigma / sqrt(2)); one is the mean."""
  assert effects.slowest_answer(1) == pytest.approx(1.0, abs=1e-6)
  assert effects.slowest_answer(2) == pytest.approx(
      2 * statistics.NormalDist().cdf(0.8 / math.sqrt(2)), rel=1e-6)
  rng = np.random.default_rng(0)
  drawn = np.exp(0.8 * rng.standard_normal((20_000, 64)) - 0.32).max(1)
  assert effects.slowest_answer(64) == pytest.approx(drawn.mean(), rel=0.02)


def test_effects_equal_a_simulation():
  """Pass rates from the posterior, then answers from the pass rates."""
  found = effects.effects(MIXED, 16, Bp=64, n=8, division=DIVISION)
  rng, c = np.random.default_rng(0), np.array(MIXED)
  p = rng.beta(c + 0.5, 16 - c + 0.5, size=(20_000, 64))
  right = rng.binomial(8, p)
  uniform = found["uniform"]
  assert uniform.informative == pytest.approx(
      ((right > 0) & (right < 8)).sum(1).mean(), rel=0.005)
  assert uniform.hits == pytest.approx((right > 0).sum(1).mean(), rel=0.005)
  # Rewards of one rollout have the variance p (1 - p).
  assert uniform.variance == pytest.approx((p * (1 - p)).mean(), rel=0.01)
  assert found["variance"].variance == min(e.variance for e in found.values())
  assert found["hit"].hits == max(e.hits for e in found.values())
  assert found["skip"] == uniform  # a run begins without a silent visit


def test_a_rule_divides_by_what_a_run_knows_at_its_first_step():
  """Of 0 of 16 the run's prior, worth 4 rollouts, is Beta(2/17, 66/17)."""
  found = effects.effects(MIXED, 16, Bp=64, n=8, division=DIVISION)
  mean_P = (np.array(MIXED) + 0.5) / 17
  n_P = RULES["knapsack"](Posterior(4 * mean_P, 4 - 4 * mean_P, None, None),
                          512, Bounds(2, 64))
  a, b = np.array(MIXED) + 0.5, 16.5 - np.array(MIXED)
  alike = lambda a, b: np.exp(special.betaln(a + n_P, b)
                              - special.betaln(a, b))
  assert found["knapsack"].informative == pytest.approx(
      (1 - alike(a, b) - alike(b, a)).sum())


def test_a_uniform_stratum_is_said_to_be_one():
  text = effects.compared(EVEN, 16, Bp=32, n=16, division=DIVISION)
  assert text.endswith("than uniform at n = 16") and "too uniform" in text
  assert "seconds" not in text
  text = effects.compared(MIXED, 16, Bp=32, n=8, division=DIVISION)
  assert "too uniform" not in text and "knapsack *" in text


@pytest.mark.parametrize("correct, samples", [(EVEN, 0), (EVEN[:8], 16)])
def test_a_stratum_without_counts_is_refused(correct, samples):
  with pytest.raises(InputError, match="--rule=knapsack needs the pass"):
    effects.compared(correct, samples, Bp=32, n=8, division=DIVISION)
