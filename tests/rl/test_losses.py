"""Terms of the loss: what the published cases do not cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl import losses
from isojax.runtime import mesh as mesh_lib

LOGP = jnp.array([[-0.1, -1.6, -1.3], [-1.4, -0.2, -2.5]])
ADVANTAGE = jnp.array([[1.0, -2.0, 0.5], [3.0, -1.0, 0.25]])
# Without jit a scan is hundreds of programs.
ANSWER_SUMS = jax.jit(losses.answer_sums)
SEQUENCE = jax.jit(losses.sequence_log_ratio)
# Constants of the policy losses, each different from the others.
CONSTANTS = {"ppo_clip": dict(clip_low=0.2, clip_high=0.28),
             "ppo_dual_clip": dict(clip_low=0.2, clip_high=0.28, dual_clip=3.0),
             "cispo": dict(cap=1.7), "reinforce": {}}


@pytest.mark.parametrize("name, constants", [
    *CONSTANTS.items(), *(("ppo_clip", dict(clip_low=low, clip_high=high))
                          for low in (0.0, 0.2) for high in (0.0, 0.2))])
def test_on_policy_all_losses_have_the_gradient_of_reinforce(name, constants):
  """Also where r = 1 lies on the edge of the clip, for both signs of A."""
  def total(x):
    loss, bounded = losses.POLICY_LOSSES[name](
        x, losses.token_log_ratio(x, jax.lax.stop_gradient(x)), ADVANTAGE,
        **constants)
    return loss.sum(), bounded

  got, bounded = jax.grad(total, has_aux=True)(LOGP)
  np.testing.assert_array_equal(got, -ADVANTAGE)
  assert not bounded.any()


# --- Against plain equations, one token at a time -----------------------------


def plain(name, logp, r, moves, A):
  """(loss, its slope in logp, whether a bound acts) of one token.

  Args:
    r: the ratio. moves: whether it depends on logp.
  """
  c = CONSTANTS[name]
  if name == "reinforce":
    return -A * logp, -A, False
  if name == "cispo":
    w = min(r, c["cap"])
    return -w * A * logp, -w * A, r > c["cap"]
  most, least = 1 + c["clip_high"], 1 - c["clip_low"]
  objective, slope = r * A, r * A * moves
  if A > 0 and r > most:
    objective, slope = most * A, 0.0
  if A < 0 and r < least:
    objective, slope = least * A, 0.0
  if name == "ppo_dual_clip" and A < 0 and r > c["dual_clip"]:
    objective, slope = c["dual_clip"] * A, 0.0
  return -objective, -slope, objective != r * A


def drawn():
  """logp, old and advantages; one gap of each sign beyond the bound of 20."""
  rng = np.random.default_rng(7)
  logp = -rng.exponential(1.0, (3, 60))
  gap = rng.normal(0.0, 0.8, logp.shape)
  gap[1, 3:5], gap[2, 8:10] = 26.0, -23.0
  advantage = rng.normal(0.0, 1.0, logp.shape)
  advantage[1, 3:5] = advantage[2, 8:10] = 0.5, -0.5
  advantage[0, :4] = 0.0
  return logp, logp - gap, advantage


@pytest.mark.parametrize("name", list(losses.POLICY_LOSSES))
def test_losses_and_gradients_are_those_of_the_equations(name):
  logp, old, advantage = drawn()

  def total(x):
    loss, bounded = losses.POLICY_LOSSES[name](
        x, losses.token_log_ratio(x, jnp.float32(old)),
        jnp.float32(advantage), **CONSTANTS[name])
    return loss.sum(), (loss, bounded)

  slope, (loss, bounded) = jax.grad(total, has_aux=True)(jnp.float32(logp))
  want = [[plain(name, x, np.exp(np.clip(x - o, -20, 20)), abs(x - o) < 20, A)
           for x, o, A in zip(*row)] for row in zip(logp, old, advantage)]
  want = np.moveaxis(np.array(want), -1, 0)
  np.testing.assert_allclose(loss, want[0], rtol=2e-5, atol=1e-6)
  np.testing.assert_allclose(slope, want[1], rtol=2e-5, atol=1e-6)
  np.testing.assert_array_equal(bounded, want[2])
  assert bounded.any() or name == "reinforce"


OFFSET = jnp.array([[0, 1, 2, 0, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7]])
# A masked token inside an answer, and padding after the last answer of a row.
MASK = jnp.array([[1, 0, 1, 1, 1, 1, 0, 0], [1] * 8], bool)
ANSWERS = [(0, [0, 2]), (0, [3]), (0, [4, 5]), (1, list(range(8)))]


@pytest.mark.parametrize("name", list(losses.POLICY_LOSSES))
def test_sequence_ratio_is_that_of_the_equations(name):
  """Each answer's ratio is the exp of its own mean, over its own tokens."""
  logp, old, advantage = (x[:2, 20:28] for x in drawn())

  def total(x):
    log_ratio = SEQUENCE(x, jnp.float32(old), OFFSET, MASK)
    loss, _ = losses.POLICY_LOSSES[name](
        x, log_ratio, jnp.float32(advantage), **CONSTANTS[name])
    return jnp.where(MASK, loss, 0.0).sum()

  loss, slope = jax.jit(jax.value_and_grad(total))(jnp.float32(logp))
  want, want_loss = np.zeros(logp.shape), 0.0
  for row, tokens in ANSWERS:
    r = np.exp(np.mean([logp[row, t] - old[row, t] for t in tokens]))
    for t in tokens:
      value, want[row, t], _ = plain(
          name, logp[row, t], r, True, advantage[row, t])
      want_loss += value
  assert loss == pytest.approx(want_loss, rel=1e-5)
  np.testing.assert_allclose(slope, want, rtol=2e-5, atol=1e-6)


def test_sequence_ratio_beyond_the_bound_has_no_gradient():
  got, slope = jax.value_and_grad(lambda x: SEQUENCE(
      x, jnp.full((1, 2), -50.0), jnp.array([[0, 1]]),
      jnp.ones((1, 2), bool)).sum())(jnp.array([[-1.0, -2.0]]))
  assert got == 40.0 and (slope == 0.0).all()


def test_a_fully_masked_answer_has_ratio_one():
  got = SEQUENCE(LOGP, 3 * LOGP, jnp.array([[0, 1, 2]] * 2),
                 jnp.array([[False] * 3, [True] * 3]))
  assert (got[0] == 0.0).all() and (got[1] != 0.0).all()


@pytest.mark.parametrize("x, offset, want", [
    ([[1.0, 2, 4, 8, 16, 32, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]], OFFSET,
     [[7, 7, 7, 8, 48, 48, 0, 0], [36] * 8]),
    # A difference of cumulative sums would lose the small answer: 1e9 + 0.5.
    ([[1e9, 1e9, 0.25, 0.25, -1e9]], [[0, 1, 0, 1, 0]],
     [[2e9, 2e9, 0.5, 0.5, -1e9]])])
def test_answer_sums_by_hand(x, offset, want):
  np.testing.assert_array_equal(
      ANSWER_SUMS(jnp.array(x), jnp.array(offset)), np.float32(want))


def test_answer_sums_of_sharded_rows_need_no_communication():
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=4, fsdp=1, tensor=1))
  x = np.random.default_rng(2).normal(size=(8, 11)).astype(np.float32)
  offset = np.tile([0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 0], (8, 1))
  sharding = mesh_lib.row_sharding(mesh)
  program = jax.jit(losses.answer_sums, in_shardings=sharding,
                    out_shardings=sharding).lower(x, offset).compile()
  for collective in ("all-gather", "all-reduce", "permute", "all-to-all"):
    assert collective not in program.as_text()
  np.testing.assert_allclose(program(x, offset), ANSWER_SUMS(x, offset),
                             rtol=1e-6)


# --- Importance, KL, value ----------------------------------------------------


def test_importance_is_bounded_from_above_only_and_has_no_gradient():
  gap = jnp.array([[-7.0, 0.5, 300.0, 0.0]])
  weight, capped = losses.importance(gap, cap=2.0)
  np.testing.assert_allclose(weight, [[np.exp(-7.0), np.exp(0.5), 2.0, 1.0]],
                             rtol=1e-6)
  assert capped.tolist() == [[False, False, True, False]]
  assert (jax.grad(lambda x: losses.importance(x, cap=2.0)[0].sum())(gap)
          == 0.0).all()


def plain_kl(name, d):
  """(value, slope in logp) with d = ref - logp, d of k3 bounded to 20."""
  b = min(max(d, -20.0), 20.0)
  value = {"k1": -d, "k2": d * d / 2, "k3": np.exp(b) - b - 1,
           "k3_k2": np.exp(b) - b - 1}[name]
  return value, {"k1": 1.0, "k2": -d, "k3": (1 - np.exp(d)) * (abs(d) < 20),
                 "k3_k2": -d}[name]


@pytest.mark.parametrize("name", list(losses.KL_ESTIMATORS))
def test_kl_is_that_of_the_equations(name):
  d = np.array([-25.0, -3.0, -0.5, 0.25, 2.0, 2.9, 24.0])
  got, slope = jax.vmap(jax.value_and_grad(losses.KL_ESTIMATORS[name]))(
      jnp.full(d.shape, -1.0), jnp.float32(d - 1.0))
  want = np.array([plain_kl(name, x) for x in d])
  np.testing.assert_allclose(got, want[:, 0], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(slope, want[:, 1], rtol=1e-5, atol=1e-6)


def test_value_loss_is_that_of_the_equations():
  rng = np.random.default_rng(3)
  value, old, target = rng.normal(0.0, 1.0, (3, 4, 50))

  def total(x):
    loss, bounded = losses.value_loss(x, jnp.float32(old), jnp.float32(target),
                                      clip=0.4)
    return loss.sum(), (loss, bounded)

  slope, (loss, bounded) = jax.grad(total, has_aux=True)(jnp.float32(value))
  free = (value - target)**2
  clipped = (old + np.clip(value - old, -0.4, 0.4) - target)**2
  acts = (clipped > free) & (abs(value - old) > 0.4)
  np.testing.assert_allclose(loss, np.maximum(free, clipped) / 2, rtol=1e-5,
                             atol=1e-6)
  np.testing.assert_allclose(slope, np.where(acts, 0.0, value - target),
                             rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(bounded, acts)
  assert 20 < acts.sum() < 180


def test_logp_and_entropy_literals():
  """Logits ln 3 and ln 1 at temperature 1/2 are p = 9/10, 1/10."""
  logits = jnp.log(jnp.array([[[3.0, 1.0], [1.0, 1.0]]]))
  logp, entropy = losses.logp_and_entropy(
      logits, jnp.array([[0, 1]]), temperature=0.5)
  np.testing.assert_allclose(logp, np.log([[0.9, 0.5]]), atol=1e-6)
  np.testing.assert_allclose(
      entropy, [[-0.9 * np.log(0.9) - 0.1 * np.log(0.1), np.log(2)]], atol=1e-6)
