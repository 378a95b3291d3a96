"""Derives random keys from seed, stream, step, problem, rollout and position.

No key is carried over or stored. The same indices give the same bits on any
mesh, in any batch and after any resume, so at equal parameters the rollouts of
n = 4 are the first four of n = 8.
"""

import enum
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


def uniform_at(key_R, count_R):
  """A float32 uniform in [0, 1) per row [R], after `count_R` new tokens."""
  token_key_R = jax.vmap(jax.random.fold_in)(key_R, count_R)
  return jax.vmap(jax.random.uniform)(token_key_R)


class Draw(enum.IntEnum):
  """Host-side random streams, by what their words are drawn for."""

  ORDER = 0  # of the problems of an epoch
  MINIBATCHES = 1
  SELECTION = 2  # of the rollouts that are trained on
  REPLACEMENT = 3  # of solved problems
  INTERRUPT = 4  # after how many tokens


def words(draw: Draw, seed: int, step: int, count: int, *,
          at: tuple[int, int] = (0, 0)) -> np.ndarray:
  """Random uint64 [count]; `at` separates streams of one draw and step.

  Philox's raw bits are fixed by its definition, unlike numpy's use of them. The
  first word of the counter counts up as words are drawn, so it must be 0: with
  an index in it streams would overlap.
  """
  return np.random.Philox(
      key=[seed, step], counter=[0, *at, draw]).random_raw(count)


def rollout_words(draw: Draw, seed: int, step: int, id_P, n: int) -> np.ndarray:
  """uint64 per rollout [P, n].

  A function of (seed, step, problem, rollout): the words of n = 4 are the first
  four of n = 8.
  """
  return np.stack([words(draw, seed, step, n, at=(0, int(i))) for i in id_P])


def uniforms(draw: Draw, seed: int, step: int, id_P, n: int) -> np.ndarray:
  """Uniforms in [0, 1) per rollout [P, n], from the upper 53 bits of words."""
  raw = rollout_words(draw, seed, step, id_P, n)
  return (raw >> np.uint64(11)) * 2.0**-53
