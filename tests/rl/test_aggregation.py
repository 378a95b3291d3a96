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
  for weight, stays in zip(aggregation.token_weights(
      LENGTHS_2x4, np.ones((2, 4), bool), np.array([True, False]),
      aggregate=aggregation.AGGREGATIONS[name],
      zero_variance=zero_variance), kept):
    assert (weight[1] > 0).all() == stays
    assert (weight * LENGTHS_2x4).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name, want", [
    ("sample_mean", [1 / 2 / 6, 1 / 6]),
    ("prompt_mean", [1 / 20 / 2, 1 / 2 / 2]),
    ("token_mean", [1 / 22, 1 / 22])])
def test_groups_of_several_sizes_by_hand(name, want):
  """4 rollouts of 20 tokens and 2 of 2 tokens; 9 is padding."""
  mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
  policy, regularizer = aggregation.token_weights(
      [[2, 4, 6, 8], [1, 1, 9, 9]], mask, np.array([True, False]),
      aggregate=aggregation.AGGREGATIONS[name], zero_variance="policy")
  np.testing.assert_allclose(regularizer[:, 0], want)
  assert regularizer[mask].all() and not regularizer[~mask].any()
  assert policy[0].all() and not policy[1].any()


def plain(name, length, keep):
  """The weight of each rollout's tokens, from the definitions.

  Rollouts without tokens and groups without rollouts are in no mean.
  """
  rows = [(p, i) for p, i in np.ndindex(length.shape)
          if keep[p, i] and length[p, i]]
  tokens = {p: sum(length[q, i] for q, i in rows if q == p) for p, _ in rows}
  weight = np.zeros(length.shape)
  for p, i in rows:
    weight[p, i] = {
        "sample_mean": 1 / length[p, i] / len(rows),
        "prompt_mean": 1 / tokens[p] / len(tokens),
        "token_mean": 1 / sum(tokens.values()),
        "constant_length": 1 / 16 / len(rows),
        "sample_sum": 1 / len(rows)}[name]
  return weight


def weights(name, length, keep):
  constants = {"length": 16} if name == "constant_length" else {}
  return aggregation.AGGREGATIONS[name](length, keep, **constants)


@pytest.mark.parametrize("name", list(aggregation.AGGREGATIONS))
def test_any_rollouts_may_be_dropped_or_have_no_tokens(name):
  rng = np.random.default_rng(6)
  for _ in range(50):
    length, keep = rng.integers(0, 4, (3, 4)), rng.random((3, 4)) < 0.6
    keep[rng.integers(3)] = False
    np.testing.assert_allclose(
        weights(name, length, keep), plain(name, length, keep), rtol=1e-14)


@pytest.mark.parametrize("name", list(aggregation.AGGREGATIONS))
def test_nothing_in_the_loss_is_zero_not_nan(name):
  every = np.ones((2, 4), bool)
  for length, keep in ((0 * LENGTHS_2x4, ~every), (LENGTHS_2x4, ~every),
                       (0 * LENGTHS_2x4, every)):
    assert (weights(name, length, keep) == 0).all()
