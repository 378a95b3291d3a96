"""Advantages: what the published cases do not cover."""

import numpy as np
import pytest

from isojax.rl import advantages

SCALE = dict(ddof=0, eps=0.0)
CONSTANTS = {"centered": {}, "leave_one_out": {}} | dict.fromkeys(
    ("group_norm", "batch_norm_centered", "batch_norm_informative",
     "batch_norm_raw"), SCALE)


def computed(name, reward, **constants):
  """The advantages of groups of equal size."""
  return advantages.ADVANTAGES[name](
      reward, np.ones(np.shape(reward), bool), **constants)


@pytest.mark.parametrize("name", list(advantages.ADVANTAGES))
def test_equal_rewards_give_zero_by_equality_not_by_rounding(name):
  """0.1 three times has a mean of 0.10000000000000002."""
  reward = np.full((1, 3), 0.1)
  assert reward.mean() != 0.1
  assert not advantages.informative(reward, reward == reward)[0]
  assert (computed(name, reward, **CONSTANTS[name]) == 0.0).all()


@pytest.mark.parametrize("name", list(advantages.ADVANTAGES))
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_group_of_one_gets_zero(name, ddof):
  constants = CONSTANTS[name] and dict(ddof=ddof, eps=0.0)
  reward = np.array([[2.0], [5.0], [-1.0]])
  assert (computed(name, reward, **constants) == 0.0).all()
  assert (computed(name, reward[:1], **constants) == 0.0).all()


# Groups of 4, 2, 1 and 2; 9 is padding. Differences from the means 1/2, 1, 2:
RAGGED = np.array([[1.0, 1, 0, 0], [2, 0, 9, 9], [5, 9, 9, 9], [2, 2, 9, 9]])
REAL = np.arange(4)[None] < np.array([[4], [2], [1], [2]])
DIFFERENCE = np.array([[0.5, 0.5, -0.5, -0.5], [1, -1, 0, 0], [0] * 4, [0] * 4])


@pytest.mark.parametrize("name, ddof, scale", [
    ("centered", 0, 1.0),
    # n / (n - 1) is 4/3 and 2.
    ("leave_one_out", 0, 1 / np.array([[4 / 3], [2], [1], [1]])),
    # Variances (4/4) / 4 and 2 / 2; with ddof 1 over 3 and over 1.
    ("group_norm", 0, np.array([[0.5], [1], [1], [1]]) + 0.5),
    ("group_norm", 1, np.array([[(1 / 3)**0.5], [2**0.5], [1], [1]]) + 0.5),
    # Squares 4/4 + 2 = 3 of 9 rollouts, or of the 6 in informative groups.
    ("batch_norm_centered", 0, (3 / 9)**0.5 + 0.5),
    ("batch_norm_centered", 1, (3 / 8)**0.5 + 0.5),
    ("batch_norm_informative", 0, (3 / 6)**0.5 + 0.5),
    ("batch_norm_informative", 1, (3 / 5)**0.5 + 0.5),
    # Rewards 1, 1, 0, 0, 2, 0, 5, 2, 2: mean 13/9, mean square 39/9.
    ("batch_norm_raw", 0, (39 / 9 - 169 / 81)**0.5 + 0.5),
    ("batch_norm_raw", 1, ((39 - 169 / 9) / 8)**0.5 + 0.5)])
def test_groups_of_several_sizes_by_hand(name, ddof, scale):
  constants = CONSTANTS[name] and dict(ddof=ddof, eps=0.5)
  got = advantages.ADVANTAGES[name](RAGGED, REAL, **constants)
  np.testing.assert_allclose(got, DIFFERENCE / scale, atol=1e-15)


def test_padding_is_no_reward_that_differs():
  assert advantages.informative(RAGGED, REAL).tolist() == [
      True, True, False, False]


# --- Advantages of tokens -----------------------------------------------------

TOKENS = {"reinforce_pp": dict(gamma=0.9, ddof=1, eps=1e-8),
          "reinforce_pp_baseline": dict(ddof=1, eps=1e-8),
          "gae": dict(gamma=0.9, lam=0.5),
          "gae_whitened": dict(gamma=0.9, lam=0.5, ddof=1, eps=1e-8)}


def drawn():
  """Rewards, values and masks of 2 problems, 3 rollouts, 5 tokens."""
  rng = np.random.default_rng(4)
  reward, value = rng.normal(0.0, 1.0, (2, 2, 3, 5))
  mask = rng.random((2, 3, 5)) < 0.7
  mask[0, 1] = False  # a fully masked rollout
  return reward, value, mask


def masked_mean_and_variance(x, mask, ddof):
  values = [v for v, kept in zip(np.ravel(x), np.ravel(mask)) if kept]
  mean = sum(values) / len(values)
  return mean, sum((v - mean)**2 for v in values) / (len(values) - ddof)


def plain(name, reward, value, mask):
  """(advantage, returns) of one token after the other, without the masked."""
  c = TOKENS[name]
  advantage, returns = np.zeros(mask.shape), np.zeros(mask.shape)
  for p, i in np.ndindex(mask.shape[:2]):
    seen = np.flatnonzero(mask[p, i])
    for at, t in enumerate(seen):
      if name == "reinforce_pp":
        advantage[p, i, t] = returns[p, i, t] = sum(
            c["gamma"]**k * reward[p, i, u] for k, u in enumerate(seen[at:]))
      elif name == "reinforce_pp_baseline":
        sums = [reward[p, j][mask[p, j]].sum() for j in range(mask.shape[1])
                if mask[p, j].any()]
        advantage[p, i, t] = returns[p, i, t] = (
            reward[p, i, seen].sum() - sum(sums) / len(sums))
      else:
        following = [value[p, i, u] for u in seen] + [0.0]
        advantage[p, i, t] = sum(
            (c["gamma"] * c["lam"])**(k - at) * (
                reward[p, i, seen[k]] + c["gamma"] * following[k + 1]
                - following[k]) for k in range(at, len(seen)))
        returns[p, i, t] = advantage[p, i, t] + value[p, i, t]
  if "ddof" in c:
    mean, variance = masked_mean_and_variance(advantage, mask, c["ddof"])
    advantage = mask * (advantage - mean) / (variance + c["eps"])**0.5
  return advantage, returns


@pytest.mark.parametrize("name", list(advantages.TOKEN_ADVANTAGES))
def test_token_advantages_are_those_of_the_equations(name):
  reward, value, mask = drawn()
  compute = lambda reward, value: advantages.TOKEN_ADVANTAGES[name](
      reward, value, mask, **TOKENS[name])
  got = compute(reward, value)
  for x, want in zip(got, plain(name, reward, value, mask)):
    np.testing.assert_allclose(x, want, atol=1e-12)
    assert (x[~mask] == 0.0).all()
  np.testing.assert_array_equal(got, compute(
      np.where(mask, reward, 99.0), np.where(mask, value, -99.0)))


@pytest.mark.parametrize("name", list(advantages.TOKEN_ADVANTAGES))
@pytest.mark.parametrize("tokens", [0, 1])
def test_a_batch_of_no_or_one_token_is_finite(name, tokens):
  """Whitening needs more tokens than ddof; with fewer all get 0."""
  reward, value, mask = drawn()
  mask = np.zeros(mask.shape, bool)
  mask[1, 2, :tokens] = True
  advantage, returns = advantages.TOKEN_ADVANTAGES[name](
      reward, value, mask, **TOKENS[name])
  assert np.isfinite([advantage, returns]).all()
  if tokens == 0 or "ddof" in TOKENS[name]:
    assert (advantage == 0.0).all()


def test_equal_groups_of_the_baseline():
  """Alone they get 0; whitening moves the mean over tokens to 0.

  0.1 three times sums to 0.30000000000000004, and its mean is not 0.1.
  """
  mask = np.ones((2, 3, 2), bool)
  mask[1, 0, 1] = False
  reward = advantages.token_rewards(
      [[0.1] * 3, [1.0, 0.0, 0.0]], np.zeros(mask.shape), mask)
  alone, _ = advantages.reinforce_pp_baseline(
      reward[:1], 0 * reward[:1], mask[:1], ddof=1, eps=1e-8)
  assert (alone == 0.0).all()
  both, returns = advantages.reinforce_pp_baseline(
      reward, 0 * reward, mask, ddof=1, eps=1e-8)
  assert (returns[0] == 0.0).all()
  assert (both[0] > 0).all() and both.sum() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("x, constants, want", [
    # Mean 2 and variance 1 with ddof 1: 1 / sqrt(1 + 3) = 1/2.
    ([1.0, 2.0, 3.0, 6.0], dict(ddof=1, eps=3.0), [-0.5, 0.0, 0.5, 0.0]),
    ([1.0, 2.0, 3.0, 6.0], dict(ddof=0, eps=0.0),
     [-1.5**0.5, 0.0, 1.5**0.5, 0.0]),
    # 0 / 0, or the rounding of 0.1 - mean over sqrt(1e-34), else.
    ([0.0] * 4, dict(ddof=0, eps=0.0), [0.0] * 4),
    ([0.1] * 4, dict(ddof=0, eps=0.0), [0.0] * 4)])
def test_whitened_by_hand(x, constants, want):
  np.testing.assert_allclose(advantages.whitened(
      np.array([x]), np.array([[1, 1, 1, 0]]), **constants), [want])


def test_token_rewards_by_hand():
  """At the last token of the mask, also if others follow it."""
  mask = np.array([[[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]])
  penalty = np.full(mask.shape, 0.25)
  np.testing.assert_array_equal(
      advantages.token_rewards([[1.0, -1.0, 5.0]], penalty, mask),
      [[[-0.25, -0.25, 0.0, 0.75, 0.0], [-1.25, 0, 0, 0, 0], [0] * 5]])
