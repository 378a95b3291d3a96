"""Attention to pages is attention to the same positions in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models import attention, paged_attention

G, R, P, K, X, H, PAGE, C = 2, 6, 7, 2, 3, 5, 4, 3
# Of each block: the pages of its three rows. Page 0 is read by two rows.
LINES = (((0, 5, 1), (0, 6), (3,)), ((4, 1, 2), (5,), (0, 3, 6)))
START = (10, 6, 3, 11, 0, 9)  # positions in pages, of which the rest is stale


def pool(dtype, random):
  keys = random.normal(size=(G * P, K, H, PAGE))
  return jnp.array(keys, dtype), jnp.array(
      random.normal(size=(G * P, K, PAGE, H)), dtype)


def of_rows(x_Px, axis):
  """The pages of each row one after the other, up to 12 positions."""
  lines = []
  for g, block in enumerate(LINES):
    for line in block:
      row = jnp.concatenate([x_Px[g * P + page] for page in line], axis=axis)
      more = [(0, (12 - row.shape[axis]) * (i == axis)) for i in range(3)]
      lines.append(jnp.pad(row, more, constant_values=9.0))
  return jnp.stack(lines)


@pytest.mark.parametrize("dtype, cap, window, atol", [
    ("float32", None, None, 1e-6), ("float32", 1.5, 4, 1e-6),
    ("bfloat16", None, None, 2e-2)])
def test_equals_plain_attention(dtype, cap, window, atol):
  random = np.random.default_rng(0)
  k_PxKxHxl, v_PxKxlxH = pool(dtype, random)
  q = jnp.array(random.normal(size=(R, 1, K * X, H)), dtype)
  k = jnp.array(random.normal(size=(R, K, H, C)), dtype)
  v = jnp.array(random.normal(size=(R, K, C, H)), dtype)
  i, start_R = 1, np.array(START)
  # Two arenas: pages 0 to 1, with up to two readers, and pages 2 to 6.
  reader = np.full((G, P, 2), R // G, np.int32)
  begin = np.zeros((G, P), np.int32)
  for g, block in enumerate(LINES):
    for row, line in enumerate(block):
      for m, page in enumerate(line):
        at = int(reader[g, page, 0] < R // G)
        reader[g, page, at], begin[g, page] = row, m * PAGE
  split = lambda x: tuple(
      jnp.reshape(part, (-1, *part.shape[2:])) for part in jnp.split(
          jnp.reshape(x, (G, P, *x.shape[1:])), [2], axis=1))
  shared, own = split(reader.reshape(G * P, 2))
  seen = paged_attention.Seen(
      (shared, own[:, :1]), split(begin.reshape(-1)), jnp.array(start_R),
      jnp.array(start_R + i), jnp.array(i))
  got = jax.jit(lambda *x: paged_attention.attend(
      *x, scale=0.4, cap=cap, window=window, G=G))(
          q, k, v, seen, split(k_PxKxHxl), split(v_PxKxlxH))

  position = np.concatenate([
      np.broadcast_to(np.arange(12), (R, 12)),
      start_R[:, None] + np.arange(C)], axis=1)
  mask = np.concatenate([
      np.arange(12) < start_R[:, None],
      np.broadcast_to(np.arange(C) <= i, (R, C))], axis=1)
  if window is not None:
    mask &= position > start_R[:, None] + i - window
  want = attention.einsum(
      q * jnp.asarray(0.4, dtype), (of_rows(k_PxKxHxl, 2), k),
      (of_rows(v_PxKxlxH, 1), v), jnp.array(mask)[:, None], cap)
  np.testing.assert_allclose(np.float32(got), np.float32(want), atol=atol)
