"""The precision of every product of sampler and trainer, in their programs."""

import dataclasses
import functools

import jax
from jax.lax import Precision
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models import decoder, linear, lora
from isojax.sampling import engine
from tests.conftest import make_model
from tests.rl.batches import assembled, equations, LOSS, make_update, SGD
from tests.sampling.samples import CONFIG, EOS, free_slots, make_prompts

LORA = lora.LoraConfig(rank=3, alpha=6.0, targets=("q", "o", "down"))
EXACT, HIGH, DEFAULT = ((precision,) * 2 for precision in (
    Precision.HIGHEST, Precision.HIGH, Precision.DEFAULT))
HALF = {"dtype": "bfloat16", "reduce_dtype": "bfloat16"}
FLOAT32_HEAD = {"dtype": "bfloat16", "head_dtype": "float32"}


def float32(jaxpr) -> list:
  """The precision of each product of two float32 operands."""
  return [eqn.params["precision"] for eqn in equations(jaxpr)
          if eqn.primitive.name == "dot_general" and {
              x.aval.dtype.name for x in eqn.invars} == {"float32"}]


def sampling(cfg) -> dict:
  """The programs of decode and prefill."""
  model = make_model()
  sampler = engine.make_sampler(model, cfg, EOS)
  params = jax.tree.map(lambda cast, x: jax.eval_shape(cast, x), sampler.casts,
                        decoder.abstract_params(model))
  return {
      "decode": sampler.decode.trace(
          params, jax.eval_shape(lambda: sampler.empty(4, 16)), free_slots(4),
          np.float32(1), np.float32(1),
          kind="whole").jaxpr.jaxpr,
      "prefill": sampler.prefill.trace(params, make_prompts(4)).jaxpr.jaxpr}


def updating(cfg, adapters=lora.FULL):
  """The program of a microbatch's forward and backward."""
  model = make_model()
  batch, *_ = assembled(cfg)
  start, accumulate, _ = make_update(model, SGD, cfg, adapters).programs
  return accumulate.trace(
      (lora.abstract_trained(model, adapters), None),
      lora.abstract_base(model, adapters), jax.eval_shape(start), batch,
      np.float32(0.7)).jaxpr.jaxpr


@pytest.mark.parametrize("changes, decode, prefill", [
    ({}, {EXACT}, {EXACT}), ({"precision": "default"}, {DEFAULT}, {DEFAULT}),
    # A float32 head alone: a prefill has no product of two float32 operands.
    (FLOAT32_HEAD, {EXACT}, set()),
    ({"head_dtype": "float32", "precision": "high"}, {EXACT, HIGH}, {HIGH})])
def test_products_of_the_sampler(changes, decode, prefill):
  programs = sampling(dataclasses.replace(CONFIG, **changes))
  assert {name: set(float32(jaxpr)) for name, jaxpr in programs.items()} == {
      "decode": decode, "prefill": prefill}


@pytest.mark.parametrize("changes, adapters, want", [
    ({}, lora.FULL, {EXACT}), ({"remat": True}, LORA, {EXACT}),
    # A whole update in bfloat16 has no product of two float32 operands; beside
    # it adapters have.
    (HALF, lora.FULL, set()), (HALF, LORA, {EXACT}),
    # EXACT is a product with ones and zeros.
    ({"precision": "high"}, LORA, {HIGH, EXACT})])
def test_products_of_the_update(changes, adapters, want):
  """Forward and backward, and the reference of KL."""
  assert want == set(float32(updating(
      dataclasses.replace(LOSS, **changes), adapters)))


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, HALF])
def test_an_update_in_bfloat16_has_no_mixed_product(changes):
  """XLA:CPU computes float32 by bfloat16 in float32."""
  operands = {tuple(x.aval.dtype.name for x in eqn.invars)
              for eqn in equations(updating(dataclasses.replace(
                  LOSS, **changes))) if eqn.primitive.name == "dot_general"}
  assert operands == {("bfloat16", "bfloat16")}


@pytest.mark.parametrize("spec, shapes", [
    ("td,vd->tv", ((6, 8), (10, 8))),
    ("bkxh,bkhl->bkxl", ((2, 3, 4, 8), (2, 3, 8, 5)))])
def test_the_gradients_of_a_wide_product(spec, shapes):
  """In bfloat16 they differ from float32 by their rounding alone."""
  x, y = (jax.random.normal(jax.random.key(i), shape, jnp.bfloat16)
          for i, shape in enumerate(shapes))
  einsum = functools.partial(linear.float32_einsum, spec)
  out, pull = jax.vjp(einsum, x, y)
  wide = [array.astype(jnp.float32) for array in (x, y)]
  exact, exact_pull = jax.vjp(einsum, *wide)
  np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)
  grad = jax.random.normal(jax.random.key(2), out.shape)
  for a, b in zip(pull(grad), exact_pull(grad), strict=True):
    assert a.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        a.astype(jnp.float32), b, rtol=2**-8, atol=2**-8 * np.abs(b).max())


@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
def test_a_float32_head_of_the_update_is_multiplied_in_full(reduce_dtype):
  """Logits, their two gradients, and the logits of the reference."""
  found = float32(updating(dataclasses.replace(
      LOSS, **FLOAT32_HEAD, reduce_dtype=reduce_dtype)))
  assert found == [EXACT] * 4


def test_a_float32_head_of_a_float32_policy_changes_nothing():
  """Neither in the programs of the sampler nor in that of the update."""
  def text(head_dtype):
    return str((sampling(dataclasses.replace(CONFIG, head_dtype=head_dtype)),
                updating(dataclasses.replace(LOSS, head_dtype=head_dtype))))
  assert text(None) == text("float32")


def test_merged_adapters():
  model = make_model()
  merge = lora.make_merge(LORA, dtype="bfloat16", precision="highest")
  found = float32(merge.trace(
      lora.abstract_base(model, LORA),
      lora.abstract_trained(model, LORA)).jaxpr.jaxpr)
  assert set(found) == {EXACT}
