"""Sampling from rounded matrices, and from a rounded cache."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models import decoder, int8, linear
from isojax.sampling import engine
from tests.conftest import make_model, placed, random_params, RICH, TINY
from tests.sampling.samples import (
  buffered,
  make_sampler,
  run,
)


def test_a_matrix_by_hand():
  """Scales are 1 / 127 and 4 / 127; ties go to the even number."""
  found = int8.quantized(jnp.array(
      [[1.0, -2.0, 0.0], [0.5, 4.0, 0.0], [-0.25, 0.0, 0.0]]), (0,))
  np.testing.assert_array_equal(
      found.number, [[127, -64, 0], [64, 127, 0], [-32, 0, 0]])
  np.testing.assert_allclose(found.scale, [1 / 127, 4 / 127, 1], rtol=1e-6)
  np.testing.assert_allclose(
      linear.product(jnp.array([[[1.0, 2.0, 4.0]]]), found)[0, 0],
      [(127 + 128 - 128) / 127, (-64 + 254) * 4 / 127, 0], rtol=1e-6)


@pytest.mark.parametrize("name, shape, outputs", [
    ("q", (7, 3, 4), (3, 4)), ("o", (3, 4, 7), (7,)),
    ("embed", (11, 7), (11,))])
def test_no_weight_moves_by_more_than_half_its_scale(name, shape, outputs):
  weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  found = int8.quantized(jnp.array(weight), int8.INPUTS[name])
  assert found.shape == shape and found.scale.shape == outputs
  scale = np.expand_dims(found.scale, int8.INPUTS[name])
  assert np.all(np.abs(found.number * scale - weight) <= 0.5001 * scale)
  assert np.abs(found.number).max() == 127


def restored(name, weight):
  """The float32 matrix that an Int8 stands for."""
  if not isinstance(weight, int8.Int8):
    return weight
  return weight.number * np.expand_dims(weight.scale, int8.INPUTS[name])


def dequantized(model, params):
  kept = make_sampler(model, weights="int8").prepare(params)
  assert kept["embed"].number.dtype == jnp.int8
  assert kept["layers_0"]["o"].number.shape == params["layers_0"]["o"].shape
  return jax.tree.map_with_path(
      lambda path, weight: restored(path[-1].key, weight), kept,
      is_leaf=lambda x: isinstance(x, int8.Int8))


@pytest.mark.parametrize("cfg, axes", [
    (RICH, {}), (TINY, {"fsdp": 2, "tensor": 2})])
def test_tokens_are_those_of_the_rounded_weights(cfg, axes):
  """Sampled in float32 from what the whole numbers stand for."""
  plain, sharded = make_model(cfg), make_model(cfg, **axes)
  params = random_params(plain)
  want = run(make_sampler(plain, slots=4), dequantized(plain, params), 3)
  for gathered in (True, False) if axes else (True,):
    got = run(make_sampler(
        sharded, slots=4, weights="int8", gathered=gathered),
              placed(params, sharded), 3)
    np.testing.assert_array_equal(got.tokens_RxT, want.tokens_RxT)
    np.testing.assert_allclose(
        got.behavior_logp_RxT, want.behavior_logp_RxT, atol=2e-5)


def test_not_a_number_is_not_hidden():
  found = int8.quantized(jnp.array([[1.0, jnp.nan], [2.0, 3.0]]), (0,))
  out = linear.product(jnp.ones((1, 1, 2)), found)[0, 0]
  assert np.isfinite(out[0]) and np.isnan(out[1])


def test_float8_by_hand(float8):
  """Three bits behind the leading one: 1, 1.125, 1.25; at most 448."""
  cache = jnp.zeros((1, 1, 3, 1), engine.CACHES["float8"])
  new = jnp.array([1.05, 1.08, -1e9]).reshape(1, 1, 3, 1)
  np.testing.assert_array_equal(
      decoder.write(cache, new, 0, 2).astype(jnp.float32).ravel(),
      [1.0, 1.125, -448.0])


def test_slots_and_buffers_do_not_matter_to_a_rounded_cache(float8):
  model = make_model(RICH)
  params, rounded = random_params(model), dict(weights="int8", cache="float8")
  want = run(make_sampler(model, **rounded), params, 3)
  sampler = make_sampler(model, slots=4, **rounded)
  assert sampler.empty(4, 16).k[0].dtype == jnp.float8_e4m3fn
  for s in (sampler, buffered(sampler, model)):
    got = run(s, params, 3)
    np.testing.assert_array_equal(got.tokens_RxT, want.tokens_RxT)
