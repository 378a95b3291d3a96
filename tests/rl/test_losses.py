"""Advantages, weights and token terms against hand-worked numbers."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl import advantages
from isojax.rl import losses

CASES = {c["id"]: c for c in json.loads(
    (pathlib.Path(__file__).parents[1] / "data/loss_cases.json").read_text())[
        "cases"]}
FULL = CASES["batch_2x3x4"]
INPUT, EXPECTED = FULL["inputs"], FULL["expected"]
LENGTH = np.array(INPUT["lengths"])
MASK = np.arange(4) < LENGTH[:, None]


@pytest.mark.parametrize("name", [
    "group_norm_ddof0_P1", "group_norm_ddof1_P2", "group_norm_all_equal",
    "pods_subset_norm"])
def test_group_norm_literals(name):
  case = CASES[name]
  given = case["inputs"]
  np.testing.assert_allclose(
      advantages.group_norm(given["reward"], ddof=given["ddof"],
                           eps=given["eps"]),
      case["expected"], atol=case["tol"])


def test_zero_variance_is_by_equality_not_by_rounding():
  """0.1 three times has a float std of 1.4e-17, and no information."""
  reward = np.full((1, 3), 0.1)
  assert not advantages.informative(reward)[0]
  assert (advantages.group_norm(reward, ddof=0, eps=0.0) == 0.0).all()


LENGTHS_2x4 = np.array([[2, 4, 6, 8], [1, 1, 10, 3]])
SCALERL_2x4 = np.array([[1, 1, -1, -1], [1.5, -0.5, -0.5, -0.5]]) / 0.935414347


@pytest.mark.parametrize("mode, want", [
    ("sample_mean", 0.0), ("prompt_mean", 0.409800571),
    # -(sum of length * advantage) / 35 tokens = (8 + 5.5) / .935414 / 35
    ("token_mean", 0.412345585)])
def test_aggregation_literals(mode, want):
  weight = advantages.AGGREGATIONS[mode](LENGTHS_2x4, np.ones(2, bool))
  got = -(weight * LENGTHS_2x4 * SCALERL_2x4).sum()
  assert got == pytest.approx(want, abs=1e-6)
  assert (weight * LENGTHS_2x4).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("zero_variance, kept", [
    ("off", (True, True)), ("policy", (False, True)),
    ("regularizers", (True, False)), ("all", (False, False))])
@pytest.mark.parametrize("mode", list(advantages.AGGREGATIONS))
def test_zero_variance_leaves_numerator_and_denominator(
    mode, zero_variance, kept):
  reward = np.array([[0, 1, 0, 0], [1, 1, 1, 1]])
  for weight, stays in zip(advantages.row_weights(
      LENGTHS_2x4, reward, aggregation=mode,
      zero_variance=zero_variance), kept):
    assert (weight[1] > 0).all() == stays
    assert (weight * LENGTHS_2x4).sum() == pytest.approx(1.0)


def test_all_groups_dropped_is_zero_not_nan():
  policy, _ = advantages.row_weights(
      LENGTHS_2x4, np.zeros((2, 4)), aggregation="token_mean",
      zero_variance="all")
  assert (policy == 0).all()


def grpo_row(ratio, adv, low, high):
  logp = jnp.log(jnp.full((1, 1), ratio))
  term = lambda x: -losses.grpo(x, jnp.zeros((1, 1)), jnp.array([[adv]]),
                              clip_low=low, clip_high=high)[0][0, 0]
  return jax.value_and_grad(lambda x: term(x))(logp)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith("token_ratio")])
def test_clip_literals(name):
  given, want = CASES[name]["inputs"], CASES[name]["expected"]
  for kind in ("ppo", "dapo"):
    value, slope = grpo_row(given["ratio"], given["adv"],
                            *given[f"{kind}_clip"])
    assert value == pytest.approx(want[f"{kind}_objective"], abs=1e-6)
    assert slope[0, 0] == pytest.approx(want[f"{kind}_grad_coef"], abs=1e-6)


def test_importance_literals():
  given = CASES["tis_3"]["inputs"]
  weight, capped = losses.importance(
      jnp.array([given["train_logp"]]), jnp.array([given["behavior_logp"]]),
      cap=given["cap"])
  np.testing.assert_allclose(
      weight[0], CASES["tis_3"]["expected"]["token"], atol=1e-6)
  assert capped[0].tolist() == [False, True, False]


def test_importance_of_equal_log_probs_changes_no_bit():
  logp = jnp.array(INPUT["logp"], jnp.float32)
  weight, capped = losses.importance(logp, logp, cap=2.0)
  assert (weight == 1.0).all() and not capped.any()
  assert (logp * weight == logp).all()


def test_kl_literal_and_slope():
  value, slope = jax.value_and_grad(
      lambda x: losses.kl_k3(x, jnp.float32(-1.2)))(jnp.float32(-1.0))
  want = CASES["kl_k3_-1.0_-1.2"]["expected"]
  assert value == pytest.approx(want["value"], abs=1e-6)
  assert slope == pytest.approx(want["grad"], abs=1e-6)


def test_logp_and_entropy_literals():
  """Logits ln 3 and ln 1 at temperature 1/2 are p = 9/10, 1/10."""
  logits = jnp.log(jnp.array([[[3.0, 1.0], [1.0, 1.0]]]))
  logp, entropy = losses.logp_and_entropy(
      logits, jnp.array([[0, 1]]), temperature=0.5)
  np.testing.assert_allclose(logp, np.log([[0.9, 0.5]]), atol=1e-6)
  np.testing.assert_allclose(
      entropy, [[-0.9 * np.log(0.9) - 0.1 * np.log(0.1), np.log(2)]], atol=1e-6)


def full_batch(term, weight):
  """Loss and its gradient for a function logp -> term [R, T]."""
  def value(logp):
    return jnp.sum(jnp.where(MASK, term(logp) * weight[:, None], 0.0))
  return jax.value_and_grad(value)(jnp.array(INPUT["logp"], jnp.float32))


def weights(mode):
  keep = np.ones(INPUT["P"], bool)
  shape = (INPUT["P"], INPUT["n"])
  return jnp.array(advantages.AGGREGATIONS[mode](
      LENGTH.reshape(shape), keep).reshape(-1), jnp.float32)


def policy_term(*, ddof, eps, low, high):
  adv = jnp.array(advantages.group_norm(
      INPUT["reward"], ddof=ddof, eps=eps).reshape(-1, 1), jnp.float32)
  old = jnp.array(INPUT["old_logp"])
  adv = jnp.broadcast_to(adv, old.shape)
  return lambda logp: losses.grpo(logp, old, adv, clip_low=low,
                                clip_high=high)[0]


def check_full(name, term, mode):
  value, slope = full_batch(term, weights(mode))
  assert value == pytest.approx(EXPECTED[name]["loss"], abs=FULL["tol"])
  np.testing.assert_allclose(slope, EXPECTED[name]["grad"], atol=FULL["tol"])


def test_full_batch_grpo_with_kl():
  policy = policy_term(ddof=1, eps=1e-4, low=0.2, high=0.2)
  ref = jnp.array(INPUT["ref_logp"])
  check_full("grpo_ddof1_eps1e-4_clip.2_k3beta.04_sample_mean",
             lambda logp: policy(logp) + 0.04 * losses.kl_k3(logp, ref),
             "sample_mean")


def test_full_batch_dapo():
  check_full("dapo_ddof0_eps1e-6_clip.2_.28_token_mean",
             policy_term(ddof=0, eps=1e-6, low=0.2, high=0.28), "token_mean")


def test_full_batch_k3():
  ref = jnp.array(INPUT["ref_logp"])
  check_full("k3_token_mean", lambda logp: losses.kl_k3(logp, ref), "token_mean")


def test_on_policy_gradient_is_reinforce():
  logp = jnp.array(INPUT["logp"], jnp.float32)
  adv = jnp.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.25])[:, None].repeat(4, axis=1)
  slope = jax.grad(lambda x: losses.grpo(
      x, jax.lax.stop_gradient(x), adv, clip_low=0.2, clip_high=0.2)[0].sum())(
          logp)
  np.testing.assert_allclose(
      slope, -adv, atol=1e-6)
