"""Derives random keys from seed, stream, step, problem, rollout and position.

No key is carried over or stored. The same indices give the same bits on any
mesh, in any batch and after any resume, so at equal parameters the rollouts of
n = 4 are the first four of n = 8.
"""

import zlib

import jax
import numpy as np


def stream(seed: int, name: str, *ids: int) -> jax.Array:
  """The key of a stream, such as stream(seed, "rollout", step)."""
  key = jax.random.key(seed, impl="threefry2x32")
  for part in (zlib.crc32(name.encode()), *ids):
    key = jax.random.fold_in(key, part)
  return key


def row_keys(key, id_R, rollout_R):
  """A key per row [R] from its problem id and rollout index.

  `key` is a stream, or one per row [R].
  """
  fold = jax.vmap(jax.random.fold_in)
  axes = (None if key.ndim == 0 else 0, 0)
  return fold(jax.vmap(jax.random.fold_in, axes)(key, id_R), rollout_R)


def uniform_at(key_R, position_R):
  """A float32 uniform in [0, 1) per row [R], at its token position."""
  at = jax.vmap(jax.random.fold_in)(key_R, position_R)
  return jax.vmap(jax.random.uniform)(at)


def uniforms(seed: int, step: int, id_P, n: int, *,
             word: int = 2) -> np.ndarray:
  """A number in [0, 1) per rollout [P, n], on the host.

  A function of (seed, step, problem, rollout): the numbers of n = 4 are the
  first four of n = 8.
  """
  raw = np.stack([
      np.random.Philox(
          key=[seed, step], counter=[0, 0, int(i), word]).random_raw(n)
      for i in id_P])
  return (raw >> np.uint64(11)) * 2.0**-53
