"""The critic's values and gradients against an independent implementation.

The reference has one sequence per row, no cache, no packing, no microbatches,
and computes in float64 (tests.rl.test_reference_gradient).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.errors import InputError
from isojax.models import lora as lora_lib
from isojax.rl import algorithm
from isojax.rl import critic as critic_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from tests.conftest import assert_close, make_model, put, TINY
from tests.rl import test_reference_gradient as plain
from tests.rl.batches import scalars

NO_CRITIC = critic_lib.CriticConfig("none", lr=3e-4, coef=0.5, clip=None)

Bp, n, T = plain.Bp, plain.n, plain.T
COEF, CLIP = 0.7, 0.2


def make_columns():
  """Values before the update, and returns: [B, T]."""
  random = np.random.default_rng(4)
  return {"value": random.normal(0, 0.3, (Bp * n, T)),
          "return": random.choice([0.0, 1.0], (Bp * n, 1)) + random.normal(
              0, 0.2, (Bp * n, T))}


def mask_of(rollouts):
  return np.arange(T) < rollouts.len_R[:, None]


def plain_values(params, value_D, cfg):
  """Values [B, T] of the state before each token."""
  prompts, rollouts, _ = plain.make_data()
  # With the identity as head, the logits are the hidden states.
  return plain.answer_logits(
      params | {"head": jnp.eye(cfg.D)}, prompts, rollouts, cfg) @ value_D


def plain_loss(params, value_D, clip):
  """(weighted loss, (mean loss, values)): the clipped squared error over two.
  """
  mask, columns = mask_of(plain.make_data()[1]), make_columns()
  V, old, G = plain_values(params, value_D, TINY), *columns.values()
  near = jnp.where(V > old + clip, old + clip, jnp.where(
      V < old - clip, old - clip, V))
  loss = jnp.where(abs(near - G) > abs(V - G), near - G, V - G) ** 2 / 2
  weight = plain.token_weights(mask, np.ones(Bp * n), plain.LOSS.aggregation)
  return (weight * loss).sum(), (
      jnp.where(mask, loss, 0.0).sum() / mask.sum(), V)


def real(policy, valued, base, *, kind, clip, loss=plain.LOSS,
         lora=lora_lib.FULL, **axes):
  """(state, metrics, scored columns, microbatches) after one update.

  The optimizers' states are the gradients.
  """
  model = make_model(**axes)
  critic = optimizer_lib.Critic(
      critic_lib.CriticConfig(kind, 1e-3, COEF, clip), plain.GRADIENT)
  _, rollouts, reward = plain.make_data()
  columns = (algorithm.single_update_columns(reward, rollouts, loss)
             | make_columns())
  wanted = optimizer_lib.abstract_state(model, plain.GRADIENT, lora, critic)
  trunk = valued["trunk"] if kind == "own" else None
  state = optimizer_lib.init_state(
      model, plain.GRADIENT, put(policy, wanted.params), lora, critic,
      trunk and put(trunk, wanted.critic.params["trunk"]))
  assert not np.asarray(state.critic.params["value"]).any()
  state = state.replace(critic=state.critic.replace(
      params=put(valued, wanted.critic.params)))
  assert jax.tree.map(lambda x: x.sharding, state) == (
      jax.tree.map(lambda x: x.sharding, wanted))
  base = base and put(base, lora_lib.abstract_base(model, lora))

  scored = plain.scored_columns(
      model, state, base, ("old_logp", "value"), loss, lora, critic)
  state, metrics, count = plain.updated(
      model, state, base, columns, loss, lora, critic)
  assert jax.tree.map(lambda x: x.sharding, state) == (
      jax.tree.map(lambda x: x.sharding, wanted))
  return state, metrics, scored, count


def check(params, kind, *, microbatches, tokens, lora=lora_lib.FULL, clip=CLIP,
          **options):
  """Compares each value, each element of the gradients, and the metric."""
  # An entropy bonus, but no KL: then no reference is needed.
  loss = dataclasses.replace(
      plain.LOSS, kl_coef=0.0, microbatch_tokens=tokens,
      remat="fsdp" in options)
  random = np.random.default_rng(8)
  policy, base = plain.moved(params, 5, 0.0), None
  valued = {"value": random.normal(0, 0.06, TINY.D).astype(np.float32)}
  if kind == "own":
    valued["trunk"] = plain.moved(critic_lib.headless(params), 5, 0.02)
  if lora.rank:
    base = policy
    policy, valued["trunk"] = (plain.moved(
        lora_lib.init(make_model(), lora, jax.random.key(0)), seed, 0.1)
        for seed in (9, 10))

  def whole(trained):
    return plain.with_adapters(base64, trained) if lora.rank else trained

  def total(policy, valued):
    if kind == "own":
      value, aux = plain_loss(whole(valued["trunk"]), valued["value"],
                              clip or np.inf)
      return value, aux
    value, aux = plain_loss(policy, valued["value"], clip or np.inf)
    return COEF * value + plain.reference(
        policy, None, policy, TINY, loss, False)[0], aux

  state, metrics, scored, count = real(
      policy, valued, base, kind=kind, clip=clip, loss=loss, lora=lora,
      **options)
  assert count == microbatches
  with jax.enable_x64(True):
    policy, valued, base64 = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64), (policy, valued, base))
    (_, (mean, values)), wanted = jax.device_get(jax.jit(jax.value_and_grad(
        total, argnums=(0, 1), has_aux=True))(policy, valued))
  mask = mask_of(plain.make_data()[1])
  clipped = abs(values - make_columns()["value"])[mask] > CLIP
  assert 0.2 < clipped.mean() < 0.9
  np.testing.assert_allclose(scored["value"][mask], values[mask], atol=2e-6)
  assert metrics["value_loss"] == pytest.approx(float(mean), rel=1e-5)
  assert metrics["finite"]
  plain.compare(state.critic.opt_state.trace, wanted[1], 1e-5)
  if kind == "shared":
    plain.compare(state.opt_state.trace, wanted[0], 1e-5)


@pytest.mark.parametrize("kind, options", [
    ("own", dict(microbatches=3, tokens=40, fsdp=2, tensor=2, clip=None)),
    ("own", dict(microbatches=2, tokens=60, lora=plain.LORA)),
    ("shared", dict(microbatches=1, tokens=1000, data=2, fsdp=2))],
    ids=["four devices with remat", "adapters", "shared on four devices"])
def test_values_and_gradients(params, kind, options):
  check(params, kind, **options)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_critic_is_not_averaged(params, kind):
  """The average has the policy alone; the critic is trained as without it."""
  model, tx = make_model(), optax.sgd(1.0)
  critic = optimizer_lib.Critic(
      critic_lib.CriticConfig(kind, 1e-3, COEF, CLIP), tx)
  loss = dataclasses.replace(plain.LOSS, kl_coef=0.0, microbatch_tokens=1000)
  prompts, rollouts, reward = plain.make_data()
  batches = update_lib.assemble(
      prompts, rollouts, algorithm.single_update_columns(reward, rollouts, loss)
      | make_columns(), n=n, G=1, cfg=loss)

  def after_two(average):
    policy, trunk = (jax.tree.map(jnp.copy, tree) for tree in (
        params, critic_lib.headless(params)))
    state = optimizer_lib.init_state(
        model, tx, policy, lora_lib.FULL, critic,
        trunk if kind == "own" else None, average=average)
    update = update_lib.make_update(
        model, tx, loss, lora_lib.FULL, critic, average=average)
    for weight in (1.0, 0.25):
      state, _ = update(state, None, batches, scalars(
          critic_lr=0.1, average_weight=weight))
    return jax.device_get(state)

  averaged, without = after_two(True), after_two(False)
  assert jax.tree.structure(averaged.average) == jax.tree.structure(params)
  assert without.average is None and np.any(averaged.critic.params["value"])
  assert_close((averaged.critic, averaged.params),
               (without.critic, without.params), rtol=1e-6, atol=1e-7)
  assert any((a != b).any() for a, b in zip(
      jax.tree.leaves(averaged.average), jax.tree.leaves(averaged.params)))


def test_explained_variance():
  mask = np.array([[True, True], [True, False]])
  returns = np.array([[0.0, 1.0], [2.0, 9.0]])
  # Errors 0, 0.5, 1 have a variance of 1/6, the returns of 2/3.
  assert critic_lib.explained_variance(
      np.array([[0.0, 0.5], [1.0, 9.0]]), returns, mask) == pytest.approx(0.75)
  assert critic_lib.explained_variance(returns, returns, mask) == 1.0
  assert critic_lib.explained_variance(
      returns, np.ones((2, 2)), mask) is None


@pytest.mark.parametrize("field, value, said", [
    ("kind", "owned", "expected one of none, shared, own"),
    ("lr", 0.0, "expected > 0"), ("coef", -1.0, "expected > 0"),
    ("clip", 0.0, "expected > 0, or None")])
def test_values_that_cannot_work(field, value, said):
  with pytest.raises(InputError, match=said):
    dataclasses.replace(NO_CRITIC, **{field: value})


def test_a_shared_critic_needs_no_pass_of_its_own():
  for kind, names, passes in (("own", ("old_logp", "value"), 2),
                              ("shared", ("old_logp", "value"), 1),
                              ("shared", ("value",), 1)):
    cfg = dataclasses.replace(NO_CRITIC, kind=kind)
    assert algorithm.forward_passes(names, cfg) == passes
