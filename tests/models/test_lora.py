"""Adapters: merged by hand, gradients by the chain rule, any mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import decoder, lora
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from tests.conftest import columns, make_model, TINY
from tests.rl.test_update import LOSS, make_data, n, SGD

CFG = lora.LoraConfig(rank=3, alpha=6.0, targets=("q", "o", "down"))
PLAIN = dataclasses.replace(LOSS, kl_coef=0.0, entropy_coef=0.0)


def random_adapters(model, cfg=CFG):
  """Neither A nor B zero; the same on any mesh."""
  adapters = lora.init(model, cfg, jax.random.key(0))
  return jax.tree.map_with_path(
      lambda path, x: jax.device_put(0.1 * jax.random.normal(
          jax.random.key(len(jax.tree_util.keystr(path)) + x.ndim), x.shape),
                                     x.sharding), adapters)


def test_merge_by_hand():
  """scale 6 / 3 = 2; [[1], [2]] [[10, 20]] = [[10, 20], [20, 40]]."""
  base = {"layers_0": {"gate": jnp.ones((2, 2)), "up": jnp.ones((2, 2))},
          "norm": jnp.ones(2)}
  pair = {"a": jnp.array([[1.0], [2.0]]), "b": jnp.array([[10.0, 20.0]])}
  cfg = lora.LoraConfig(rank=1, alpha=2.0, targets=("gate",))
  merged = lora.merge(cfg, base, {"layers_0": {"gate": pair}})
  np.testing.assert_array_equal(merged["layers_0"]["gate"],
                                [[21.0, 41.0], [41.0, 81.0]])
  np.testing.assert_array_equal(merged["layers_0"]["up"], np.ones((2, 2)))
  assert lora.merge(lora.FULL, None, base) is base


def test_new_adapters_change_nothing(model, params):
  adapters = lora.init(model, CFG, jax.random.key(0))
  merged = lora.merge(CFG, params, adapters)
  jax.tree.map(np.testing.assert_array_equal, merged, params)
  a = np.asarray(adapters["layers_1"]["o"]["a"])
  assert a.shape == (TINY.N, TINY.H, 3)
  bound = (TINY.N * TINY.H) ** -0.5
  assert 0.9 * bound < np.abs(a).max() <= bound


def lora_step(params, dtype, **axes):
  """(adapters before, their change, metrics) of one update on a mesh."""
  model = make_model(**axes)
  base = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x).astype(dtype),
                                     like.sharding),
      params, lora.abstract_base(model, CFG))
  adapters = random_adapters(model)
  before = jax.device_get(adapters)
  state = optimizer_lib.init_state(model, SGD, adapters, CFG)
  prompts, rollouts, advantage, weight = make_data()
  batches = update_lib.assemble(prompts, rollouts, columns(advantage, weight),
                                n=n, G=mesh_lib.blocks(model.mesh), cfg=PLAIN)
  after, metrics = update_lib.make_update(model, SGD, PLAIN, CFG)(
      state, base, [update_lib.place(b, model.mesh) for b in batches],
      np.float32(0.8))
  want = jax.tree.map(lambda x: x.sharding,
                      optimizer_lib.abstract_state(model, SGD, CFG))
  assert jax.tree.map(lambda x: x.sharding, after) == want
  change = jax.tree.map(lambda x, y: np.asarray(x) - y, after.params, before)
  return before, change, jax.device_get(metrics)


@pytest.fixture(scope="module")
def one_device(params):
  return lora_step(params, np.float32)


def test_gradients_follow_the_chain_rule(model, params, one_device):
  """dA = scale dW B', dB = scale A' dW, with dW from the full update."""
  before, change, metrics = one_device
  merged = lora.merge(CFG, params, before)
  start = jax.device_get(merged)
  prompts, rollouts, advantage, weight = make_data()
  batches = update_lib.assemble(prompts, rollouts, columns(advantage, weight),
                                n=n, G=1, cfg=PLAIN)
  state = optimizer_lib.init_state(model, SGD, merged)
  after, full_metrics = update_lib.make_update(model, SGD, PLAIN)(
      state, None, batches, np.float32(0.8))
  assert metrics["logp"] == pytest.approx(float(full_metrics["logp"]), rel=1e-5)
  for layer, targets in change.items():
    for target, pair in targets.items():
      dW = np.asarray(after.params[layer][target]) - start[layer][target]
      a, b = before[layer][target]["a"], before[layer][target]["b"]
      dW = dW.reshape(a.size // 3, b.size // 3)
      flat_a, flat_b = a.reshape(-1, 3), b.reshape(3, -1)
      np.testing.assert_allclose(pair["a"].reshape(-1, 3),
                                 2.0 * dW @ flat_b.T, atol=1e-5)
      np.testing.assert_allclose(pair["b"].reshape(3, -1),
                                 2.0 * flat_a.T @ dW, atol=1e-5)
      assert np.abs(pair["a"]).max() > 1e-3 and np.abs(pair["b"]).max() > 1e-3


@pytest.mark.parametrize("axes", [{"data": 4}, {"fsdp": 2, "tensor": 2}])
def test_devices_change_nothing(params, one_device, axes):
  _, change, metrics = lora_step(params, np.float32, **axes)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6),
               change, one_device[1])
  for name, value in metrics.items():
    np.testing.assert_allclose(value, one_device[2][name], rtol=2e-5)


def test_a_bfloat16_base_is_enough(params, one_device):
  """Rounding the base moves gradients by a few per cent, not more."""
  _, change, _ = lora_step(params, jnp.bfloat16)
  for a, b in zip(jax.tree.leaves(change), jax.tree.leaves(one_device[1])):
    assert np.linalg.norm(a - b) < 0.1 * np.linalg.norm(b)


def test_new_adapters_are_the_reference(model, params):
  """KL is 0: a bfloat16 base computes in float32, as what is merged with it."""
  base = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  loss = dataclasses.replace(PLAIN, kl_coef=1.0)
  prompts, rollouts, advantage, weight = make_data()
  batches = update_lib.assemble(prompts, rollouts, columns(advantage, weight),
                                n=n, G=1, cfg=loss)
  state = optimizer_lib.init_state(
      model, SGD, lora.init(model, CFG, jax.random.key(0)), CFG)
  _, metrics = update_lib.make_update(model, SGD, loss, CFG)(
      state, base, batches, np.float32(0.8))
  assert metrics["kl"] == 0


@pytest.mark.parametrize("values, message", [
    (dict(rank=-1, alpha=1.0, targets=("q",)), "rank=-1"),
    (dict(rank=2, alpha=0.0, targets=("q",)), "alpha=0.0"),
    (dict(rank=2, alpha=1.0, targets=("q_proj",)), "distinct ones of q, k"),
    (dict(rank=2, alpha=1.0, targets=("q", "q")), "distinct"),
    (dict(rank=2, alpha=1.0, targets=()), "distinct")])
def test_bad_settings(values, message):
  with pytest.raises(InputError, match=message):
    lora.LoraConfig(**values)


def test_what_is_held_is_small(model):
  """Adapters in float32, the base in bfloat16, nothing twice."""
  size = lambda tree: sum(
      np.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
  base = lora.abstract_base(model, CFG)
  assert {x.dtype for x in jax.tree.leaves(base)} == {jnp.dtype("bfloat16")}
  assert 2 * size(base) == size(decoder.abstract_params(model))
  trained = lora.abstract_trained(model, CFG)
  each = 3 * (20 + 60) + 3 * (60 + 20) + 3 * (28 + 20)  # q, o, down
  assert size(trained) == 4 * TINY.Z * each
