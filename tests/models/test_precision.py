"""The precision of every product of sampler and trainer, in their programs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import Precision

from isojax import rng
from isojax.models import decoder
from isojax.models import lora
from isojax.rl import update as update_lib
from isojax.sampling import queue
from isojax.sampling import sampler as sampler_lib
from tests.conftest import columns
from tests.conftest import make_model
from tests.rl.test_update import LOSS
from tests.rl.test_update import SGD
from tests.rl.test_update import make_data
from tests.rl.test_update import n
from tests.sampling.test_sampler import CONFIG
from tests.sampling.test_sampler import EOS
from tests.sampling.test_sampler import T
from tests.sampling.test_sampler import make_prompts

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


def float32(program, *args, **more) -> set:
  """The precisions of the products of two float32 operands."""
  return {precision for dtypes, precision in products(
      program.trace(*args, **more).jaxpr.jaxpr) if dtypes == {"float32"}}


def sampled(cfg) -> dict:
  """The precisions of decode and prefill."""
  model = make_model()
  s = sampler_lib.make_sampler(model, cfg, EOS)
  params = jax.tree.map(lambda cast, x: jax.eval_shape(cast, x), s.casts,
                        decoder.abstract_params(model))
  row = queue.start(make_prompts(1), 1, G=1, R=4, W=1, T=T).row
  return {
      "decode": float32(
          s.decode, params, jax.eval_shape(lambda: s.empty(4, 16)), row,
          rng.stream(0, "rollout", 0), np.float32(1), np.float32(1),
          kind="whole"),
      "prefill": float32(s.prefill, params, make_prompts(4))}


def updated(cfg, adapters=lora.FULL) -> set:
  """The precisions of a microbatch's forward and backward, with KL."""
  model = make_model()
  prompts, rollouts, advantage, weight = make_data()
  batch, *_ = update_lib.assemble(
      prompts, rollouts, columns(advantage, weight), n=n, G=1, cfg=cfg)
  start, accumulate, _ = update_lib.make_update(
      model, SGD, cfg, adapters).programs
  return float32(
      accumulate, lora.abstract_trained(model, adapters),
      lora.abstract_base(model, adapters), jax.eval_shape(start), batch,
      np.float32(0.7))


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


def test_merged_adapters():
  model = make_model()
  merge = jax.jit(lambda base, trained: lora.merge(
      LORA, base, trained, dtype=jnp.bfloat16, precision="highest"))
  found = float32(merge, lora.abstract_base(model, LORA),
                  lora.abstract_trained(model, LORA))
  assert found == {(Precision.HIGHEST, Precision.HIGHEST)}
