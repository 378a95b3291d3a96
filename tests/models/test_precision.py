"""The precision of every product of sampler and trainer, in their programs."""

import dataclasses

import jax
from jax.lax import Precision
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models import decoder, lora
from isojax.models.precision import PRECISIONS
from isojax.rl import update as update_lib
from isojax.sampling import engine
from tests.conftest import columns, make_model
from tests.rl.test_update import LOSS, make_data, n, SGD
from tests.sampling.test_engine import CONFIG, EOS, free_slots, make_prompts

LORA = lora.LoraConfig(rank=3, alpha=6.0, targets=("q", "o", "down"))


def products(jaxpr):
  """(dtypes of the operands, precision) of each product, inner programs too."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "dot_general":
      yield ({x.aval.dtype.name for x in eqn.invars}, eqn.params["precision"])
    for value in eqn.params.values():
      for inner in value if isinstance(value, tuple) else (value,):
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
          yield from products(inner)


def float32(jaxpr) -> list:
  """The precision of each product of two float32 operands."""
  return [precision for dtypes, precision in products(jaxpr)
          if dtypes == {"float32"}]


def sampled(cfg) -> dict:
  """The precisions of decode and prefill."""
  return {name: set(float32(jaxpr)) for name, jaxpr in sampling(cfg).items()}


def updated(cfg, adapters=lora.FULL) -> set:
  """The precisions of a microbatch's forward and backward, with KL."""
  return set(float32(updating(cfg, adapters)))


def sampling(cfg) -> dict:
  """The programs of decode and prefill."""
  model = make_model()
  s = engine.make_sampler(model, cfg, EOS)
  params = jax.tree.map(lambda cast, x: jax.eval_shape(cast, x), s.casts,
                        decoder.abstract_params(model))
  return {
      "decode": s.decode.trace(
          params, jax.eval_shape(lambda: s.empty(4, 16)), free_slots(4),
          np.float32(1), np.float32(1),
          kind="whole").jaxpr.jaxpr,
      "prefill": s.prefill.trace(params, make_prompts(4)).jaxpr.jaxpr}


def updating(cfg, adapters=lora.FULL):
  """The program of a microbatch's forward and backward."""
  model = make_model()
  prompts, rollouts, advantage, weight = make_data()
  batch, *_ = update_lib.assemble(
      prompts, rollouts, columns(advantage, weight), n=n, G=1, cfg=cfg)
  start, accumulate, _ = update_lib.make_update(
      model, SGD, cfg, adapters).programs
  return accumulate.trace(
      (lora.abstract_trained(model, adapters), None),
      lora.abstract_base(model, adapters), jax.eval_shape(start), batch,
      np.float32(0.7)).jaxpr.jaxpr


@pytest.mark.parametrize("changes", [{}, {"weights": "int8"},
                                     {"cache": "float8"}])
def test_the_sampler_multiplies_float32_in_full(changes):
  found = sampled(dataclasses.replace(CONFIG, **changes))
  assert found["decode"] == {(Precision.HIGHEST, Precision.HIGHEST)}
  assert found["prefill"] == {(Precision.HIGHEST, Precision.HIGHEST)}


@pytest.mark.parametrize("changes", [
    {}, {"remat": True}, {"dtype": "bfloat16", "reduce_dtype": "bfloat16"}])
@pytest.mark.parametrize("adapters", [lora.FULL, LORA])
def test_the_update_multiplies_float32_in_full(changes, adapters):
  """Backward, reference of KL, head, and adapters beside bfloat16 too."""
  found = updated(dataclasses.replace(LOSS, **changes), adapters)
  exact = {(Precision.HIGHEST, Precision.HIGHEST)}
  # A whole update in bfloat16 has no product of two float32 operands.
  assert found == (exact if adapters.rank or "dtype" not in changes else set())


@pytest.mark.parametrize("name", ["default", "high"])
def test_the_knobs_are_those_of_the_programs(name):
  wanted = (Precision[name.upper()],) * 2
  found = sampled(dataclasses.replace(CONFIG, precision=name))
  assert found == {"decode": {wanted}, "prefill": {wanted}}
  exact = (Precision.HIGHEST,) * 2  # of a product with ones and zeros
  found = updated(dataclasses.replace(LOSS, precision=name), LORA)
  assert found == {wanted, exact}


FLOAT32_HEAD = {"dtype": "bfloat16", "head_dtype": "float32"}


@pytest.mark.parametrize("changes", [{}, {"weights": "int8"}])
def test_a_float32_head_of_the_sampler_is_multiplied_in_full(changes):
  """It alone: a prefill has no product of two float32 operands."""
  found = sampled(dataclasses.replace(CONFIG, **FLOAT32_HEAD, **changes))
  assert found == {
      "decode": {(Precision.HIGHEST, Precision.HIGHEST)}, "prefill": set()}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_float32_head_has_a_precision_of_its_own(precision):
  exact, rest = (Precision.HIGHEST,) * 2, (Precision[precision.upper()],) * 2
  found = sampled(dataclasses.replace(
      CONFIG, head_dtype="float32", precision=precision))
  assert found == {"decode": {exact, rest}, "prefill": {rest}}


@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
def test_a_float32_head_of_the_update_is_multiplied_in_full(reduce_dtype):
  """Logits, their two gradients, and the logits of the reference."""
  found = float32(updating(dataclasses.replace(
      LOSS, **FLOAT32_HEAD, reduce_dtype=reduce_dtype)))
  assert found == [(Precision.HIGHEST, Precision.HIGHEST)] * 4


def test_a_float32_head_of_a_float32_policy_changes_nothing():
  """Neither in the programs of the sampler nor in that of the update."""
  def text(head_dtype):
    return str((sampling(dataclasses.replace(CONFIG, head_dtype=head_dtype)),
                updating(dataclasses.replace(LOSS, head_dtype=head_dtype))))
  assert text(None) == text("float32")


def test_merged_adapters():
  model = make_model()
  merge = jax.jit(lambda base, trained: lora.merge(
      LORA, base, trained, dtype=jnp.bfloat16, precision="highest"))
  found = float32(merge.trace(
      lora.abstract_base(model, LORA),
      lora.abstract_trained(model, LORA)).jaxpr.jaxpr)
  assert set(found) == {(Precision.HIGHEST, Precision.HIGHEST)}
