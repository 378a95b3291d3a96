"""Dithering: moves weights off the values of bfloat16, so small updates count.

Published checkpoints are stored in bfloat16. A program in bfloat16 rounds the
float32 weights to the nearest bfloat16 value. If a weight begins at such a
value, updates below half the spacing of bfloat16 (6e-5 for a weight of 0.02) do
not change the rounded weight until their sum crosses a midpoint. A weight that
begins at a random place between two midpoints crosses one with a probability
proportional to the update, so rounded weights follow the weights on average.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

HALF = 2**15  # float32 has 2 * HALF values for each value of bfloat16


def shifts(shape: tuple[int, ...], name: str) -> jax.Array:
  """An odd number in (-HALF, HALF) for each position, by murmur3's last mix.

  With adapters each microbatch computes them again. For 28 million weights this
  takes 0.07 CPU seconds; jax.random would take 0.6 to 1.
  """
  index = np.uint32(0)  # row-major; each device computes its own shard
  for axis, size in enumerate(shape):
    index = index * np.uint32(size) + jax.lax.broadcasted_iota(
        jnp.uint32, shape, axis)
  mixed = index ^ np.uint32(zlib.crc32(name.encode()))
  for bits, factor in (16, 0x85ebca6b), (13, 0xc2b2ae35):
    mixed = (mixed ^ (mixed >> bits)) * np.uint32(factor)
  return (mixed >> 16 | 1).astype(jnp.int32) - HALF


def moved(path, x):
  """A float32 weight, moved by less than half the spacing of bfloat16.

  If the weight has a value of bfloat16, rounding gives that value again.
  Otherwise rounding gives one of its two neighbours, whose mean over all moves
  is the weight. The move depends on path and position alone. Zeros, vectors
  (norms, which are multiplied in float32) and other dtypes are not moved.
  """
  if x.ndim == 1 or x.dtype != jnp.float32:
    return x
  bits = jax.lax.bitcast_convert_type(x, jnp.int32) + shifts(
      x.shape, jax.tree_util.keystr(path))
  return jnp.where(x == 0, x, jax.lax.bitcast_convert_type(bits, jnp.float32))


def initial_params(params):
  """The parameters (donated) at the start of a run, with dithered weights.

  Weights that no bfloat16 value equals are not moved: they are from a float32
  checkpoint, and lie between two values of bfloat16 already.
  """
  def dithered(path, x):
    is_bfloat16 = jax.lax.bitcast_convert_type(x, jnp.int32) % (2 * HALF) == 0
    return jnp.where(is_bfloat16, moved(path, x), x)

  return jax.jit(
      lambda params: jax.tree.map_with_path(dithered, params),
      donate_argnums=0,
      out_shardings=jax.tree.map(lambda x: x.sharding, params))(params)


def is_needed(*dtypes: str) -> bool:
  """Whether a program in one of these dtypes rounds the weights."""
  return "bfloat16" in dtypes
