"""Adapters: merged by hand; their base in bfloat16.

Gradients and meshes: tests/rl/test_reference_gradient.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.errors import InputError
from isojax.models import decoder, lora
from isojax.rl import optimizer as optimizer_lib
from tests import tolerance
from tests.conftest import TINY
from tests.rl.batches import (
  assembled,
  make_data,
  make_update,
  n,
  PLAIN,
  scalars,
  SGD,
)
from tests.sampling import samples

CFG = lora.LoraConfig(rank=3, alpha=6.0, targets=("q", "o", "down"))


def test_merge_by_hand():
  """scale 6 / 3 = 2; [[1], [2]] [[10, 20]] = [[10, 20], [20, 40]]."""
  base = {"layers_0": {"gate": jnp.ones((2, 2)), "up": jnp.ones((2, 2))},
          "norm": jnp.ones(2)}
  pair = {"a": jnp.array([[1.0], [2.0]]), "b": jnp.array([[10.0, 20.0]])}
  cfg = lora.LoraConfig(rank=1, alpha=2.0, targets=("gate",))
  merge = functools.partial(
      lora.merge, compute="float32", precision="highest")
  merged = merge(cfg, base, {"layers_0": {"gate": pair}})
  np.testing.assert_array_equal(merged["layers_0"]["gate"],
                                [[21.0, 41.0], [41.0, 81.0]])
  np.testing.assert_array_equal(merged["layers_0"]["up"], np.ones((2, 2)))
  assert merge(lora.FULL, None, base) is base


def test_new_adapters_change_nothing(model, params):
  adapters = lora.init(model, CFG, jax.random.key(0))
  merged = lora.merge(CFG, params, adapters, compute="float32",
                      precision="highest")
  jax.tree.map(np.testing.assert_array_equal, merged, params)
  a = np.asarray(adapters["layers_1"]["o"]["a"])
  assert a.shape == (TINY.N, TINY.H, 3)
  bound = (TINY.N * TINY.H) ** -0.5
  assert 0.9 * bound < np.abs(a).max() <= bound


def test_new_adapters_are_the_reference(model, params):
  """A bfloat16 base computes in float32, as what is merged with it.

  The weights are equal bit by bit, the two programs' log-probs up to the order
  of their sums: |d| <= t. The KL is the mean of exp(d) - 1 - d < d^2.
  """
  loss = dataclasses.replace(PLAIN, kl_coef=1.0)
  state = optimizer_lib.init_state(
      model, SGD, lora.init(model, CFG, jax.random.key(0)), CFG)
  _, metrics = make_update(model, SGD, loss, CFG)(
      state, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params),
      assembled(loss), scalars())
  prompts, rollouts, *_ = make_data()
  ids, _ = samples.sequences(prompts, rollouts.tokens_RxT, n)
  scale = np.abs(samples.plain_logits(model, params, ids)).max() / 0.8
  t = tolerance.for_sums(scale, tolerance.path(TINY, ids.shape[1]))
  assert 0 <= metrics["kl"] < t**2 < 1e-7


@pytest.mark.parametrize("values, message", [
    (dict(rank=-1, alpha=1.0, targets=("q",)), "rank=-1"),
    (dict(rank=2, alpha=0.0, targets=("q",)), "alpha=0.0"),
    (dict(rank=2, alpha=1.0, targets=("q_proj",)), "distinct ones of q, k"),
    (dict(rank=2, alpha=1.0, targets=("q", "q")), "distinct"),
    (dict(rank=2, alpha=1.0, targets=()), r"not \(\) with rank > 0")])
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
