"""Randomness as addresses: (seed, stream, step, problem, rollout, position).

No key is ever carried or stored. The same address gives the same bits on any
mesh, in any batch, after any resume; so at equal parameters the rollouts of
n = 4 are the first four of n = 8.
"""

import zlib

import jax


def stream(seed: int, name: str, *ids: int) -> jax.Array:
  """The key of a named stream, such as stream(seed, "rollout", step)."""
  key = jax.random.key(seed, impl="threefry2x32")
  for part in (zlib.crc32(name.encode()), *ids):
    key = jax.random.fold_in(key, part)
  return key


def row_keys(key, id_R, rollout_R):
  """A key per row, from its problem's id and its rollout index: [R]."""
  fold = jax.vmap(jax.random.fold_in)
  return fold(jax.vmap(jax.random.fold_in, (None, 0))(key, id_R), rollout_R)


def uniform_at(key_R, position_R):
  """One uniform number in [0, 1) per row, at its token position: [R] float32.
  """
  at = jax.vmap(jax.random.fold_in)(key_R, position_R)
  return jax.vmap(jax.random.uniform)(at)
