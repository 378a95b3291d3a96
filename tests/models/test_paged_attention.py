"""Attention to pages is attention to the same positions in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models import attention, paged_attention

G, R, P, K, X, H, PAGE = 2, 6, 7, 2, 3, 5, 4
# Of each block: the pages of its three rows; 7: none. Page 0 has two readers.
TABLE = np.array([[0, 5, 1], [0, 6, 7], [3, 7, 7],
                  [4, 1, 2], [5, 7, 7], [0, 3, 6]], np.int32)
POSITION = np.array([10, 6, 3, 11, 0, 9])


def row_pages(x_Px, axis):
  """The pages of each row one after the other; of none, nines."""
  lines = []
  for r, line in enumerate(TABLE):
    block = list(x_Px[r // 3 * P:][:P]) + [jnp.full_like(x_Px[0], 9.0)]
    lines.append(jnp.concatenate([block[page] for page in line], axis=axis))
  return jnp.stack(lines)


def make_seen():
  mask = np.arange(12)[None] <= POSITION[:, None]
  return paged_attention.PageTable(
      jnp.array(TABLE), jnp.array(mask)[:, None], G)


def pool(dtype, random):
  keys = random.normal(size=(G * P, K, H, PAGE))
  return jnp.array(keys, dtype), jnp.array(
      random.normal(size=(G * P, K, PAGE, H)), dtype)


@pytest.mark.parametrize("dtype, cap, window, atol", [
    ("float32", None, None, 1e-6), ("float32", 1.5, 4, 1e-6),
    ("bfloat16", None, None, 2e-2)])
def test_equals_plain_attention(dtype, cap, window, atol):
  random = np.random.default_rng(0)
  keys, values = pool(dtype, random)
  q = jnp.array(random.normal(size=(R, 1, K * X, H)), dtype)
  got = jax.jit(lambda *x: paged_attention.attend(
      *x, scale=0.4, cap=cap, window=window))(q, keys, values, make_seen())
  mask = np.arange(12)[None] <= POSITION[:, None]
  if window is not None:
    mask &= np.arange(12)[None] > POSITION[:, None] - window
  want = attention.einsum(
      q * jnp.asarray(0.4, dtype),
      (row_pages(keys, 2),), (row_pages(values, 1),),
      jnp.array(mask)[:, None], cap)
  np.testing.assert_allclose(np.float32(got), np.float32(want), atol=atol)


@pytest.mark.parametrize("axis", [2, 3])
def test_a_token_is_written_to_its_page(axis):
  """And to no other place; row 1 has no page for it."""
  before = pool("float32", np.random.default_rng(0))[3 - axis]
  new = jnp.arange(R * K * H, dtype=jnp.float32).reshape(R, K, H)
  position = np.where(np.arange(R) == 1, 8, POSITION)
  after = jax.jit(paged_attention.write, static_argnums=4)(
      before, new, make_seen(), position, axis)
  want = np.array(before)
  for r in set(range(R)) - {1}:
    page = r // 3 * P + TABLE[r, position[r] // PAGE]
    np.moveaxis(want[page], axis - 1, 0)[position[r] % PAGE] = new[r]
  np.testing.assert_array_equal(after, want)
