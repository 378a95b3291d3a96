"""Token weights of aggregations and of dropped groups."""

import numpy as np
import pytest

from isojax.rl import aggregation

LENGTHS_2x4 = np.array([[2, 4, 6, 8], [1, 1, 10, 3]])
SCALERL_2x4 = np.array([[1, 1, -1, -1], [1.5, -0.5, -0.5, -0.5]]) / 0.935414347
MEANS = ("sample_mean", "prompt_mean", "token_mean")  # weights sum to 1


def test_token_mean_by_hand():
  """-(sum of length * advantage) / 35 tokens = (8 + 5.5) / .935414 / 35."""
  weight = aggregation.token_mean(LENGTHS_2x4, np.ones((2, 4), bool))
  got = -(weight * LENGTHS_2x4 * SCALERL_2x4).sum()
  assert got == pytest.approx(0.412345585, abs=1e-6)


def test_sums_by_hand():
  """1 / 8 rollouts, and 1 / (8 * 16); of one kept group 1 / 4."""
  both = np.ones((2, 4), bool)
  assert (aggregation.sample_sum(LENGTHS_2x4, both) == 1 / 8).all()
  assert (aggregation.constant_length(
      LENGTHS_2x4, both, length=16) == 1 / 128).all()
  np.testing.assert_array_equal(
      aggregation.sample_sum(LENGTHS_2x4, np.array([[False] * 4, [True] * 4])),
      [[0.0] * 4, [0.25] * 4])


@pytest.mark.parametrize("zero_variance, kept", [
    ("off", (True, True)), ("policy", (False, True)),
    ("regularizers", (True, False)), ("all", (False, False))])
@pytest.mark.parametrize("name", MEANS)
def test_zero_variance_leaves_numerator_and_denominator(
    name, zero_variance, kept):
  reward = np.array([[0, 1, 0, 0], [1, 1, 1, 1]])
  for weight, stays in zip(aggregation.token_weights(
      LENGTHS_2x4, reward, aggregate=aggregation.AGGREGATIONS[name],
      zero_variance=zero_variance), kept):
    assert (weight[1] > 0).all() == stays
    assert (weight * LENGTHS_2x4).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", MEANS)
def test_all_groups_dropped_is_zero_not_nan(name):
  for weight in aggregation.token_weights(
      LENGTHS_2x4, np.zeros((2, 4)), zero_variance="all",
      aggregate=aggregation.AGGREGATIONS[name]):
    assert (weight == 0).all()


def test_equal_lengths_make_the_means_equal():
  length = np.full((2, 4), 5)
  for name in MEANS:
    np.testing.assert_allclose(
        aggregation.AGGREGATIONS[name](length, np.ones((2, 4), bool)), 1 / 40)
