"""Terms of the loss: what the published cases do not cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl import losses

LOGP = jnp.array([[-0.1, -1.6, -1.3], [-1.4, -0.2, -2.5]])
ADVANTAGE = jnp.array([[1.0, -2.0, 0.5], [3.0, -1.0, 0.25]])


def slope_of(advantage, **clip):
  return jax.grad(lambda x: losses.ppo_clip(
      x, x - jax.lax.stop_gradient(x), advantage, **clip)[0].sum())(LOGP)


@pytest.mark.parametrize("clip_low, clip_high", [
    (0.2, 0.2), (0.0, 0.2), (0.2, 0.0), (0.0, 0.0)])
def test_on_policy_gradient_is_reinforce_for_any_clip(clip_low, clip_high):
  """Also where r = 1 lies on the edge of the clip, for both signs of A."""
  got = slope_of(ADVANTAGE, clip_low=clip_low, clip_high=clip_high)
  want = jax.grad(
      lambda x: losses.reinforce(x, 0 * x, ADVANTAGE)[0].sum())(LOGP)
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(want, -ADVANTAGE)
  _, bounded = losses.ppo_clip(LOGP, 0 * LOGP, ADVANTAGE, clip_low=clip_low,
                               clip_high=clip_high)
  assert not bounded.any()


@pytest.mark.parametrize("ratio, advantage, slope", [
    (1.25, 1.0, 0.0), (1.25, -1.0, 1.25), (0.5, 1.0, -0.5), (0.5, -1.0, 0.0)])
def test_a_clip_of_zero_stops_what_has_moved_far_enough(
    ratio, advantage, slope):
  """d loss / d logp is -r A where r A is the minimum, else 0."""
  got = jax.grad(lambda x: losses.ppo_clip(
      x, x, jnp.array([advantage]), clip_low=0.0, clip_high=0.0)[
          0].sum())(jnp.log(jnp.array([ratio])))
  assert got[0] == pytest.approx(slope, abs=1e-6)


def test_importance_of_equal_log_probs_changes_no_bit():
  weight, capped = losses.importance(LOGP - LOGP, cap=2.0)
  assert (weight == 1.0).all() and not capped.any()
  assert (LOGP * weight == LOGP).all()


def test_logp_and_entropy_literals():
  """Logits ln 3 and ln 1 at temperature 1/2 are p = 9/10, 1/10."""
  logits = jnp.log(jnp.array([[[3.0, 1.0], [1.0, 1.0]]]))
  logp, entropy = losses.logp_and_entropy(
      logits, jnp.array([[0, 1]]), temperature=0.5)
  np.testing.assert_allclose(logp, np.log([[0.9, 0.5]]), atol=1e-6)
  np.testing.assert_allclose(
      entropy, [[-0.9 * np.log(0.9) - 0.1 * np.log(0.1), np.log(2)]], atol=1e-6)
