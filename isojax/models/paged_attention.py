"""Attention of one token per row to keys and values in pages of a pool.

The page table has the layout of JAX's kernels for TPUs, a line for each row.
This module uses plain products: they support any head width, dtype and device,
and gather the pages of each row at every token.
"""

import flax.struct
import jax
import jax.numpy as jnp

from isojax.models import attention


@flax.struct.dataclass
class PageTable:
  """The pages of each row, and the positions in them that a row attends to."""

  page_RxM: jax.Array  # int32, index within the block; past the last: no page
  mask_Rx1xL: jax.Array  # bool, over the positions of the M pages
  # Row shards. Rows, and the pages of the pool, are cut into as many equal
  # blocks; the pages of a row are in its own block.
  blocks: int = flax.struct.field(pytree_node=False)

  def by_block(self, x):
    """Splits the first axis, of rows or pages, into [blocks, ...]."""
    return x.reshape(self.blocks, -1, *x.shape[1:])

  def gathered(self, pages_Px):
    """The pages of each row, [R, M, ...]; arbitrary ones where it has none."""
    picked = jax.vmap(lambda pages, page: pages.at[page].get(mode="clip"))(
        self.by_block(pages_Px), self.by_block(self.page_RxM))
    return picked.reshape(-1, *picked.shape[2:])


def write(pages_Px, new_RxKx, table: PageTable, position_R, axis: int):
  """Writes the keys or values [R, K, H] of one token per row to a page of it.

  Pages are keys [P, K, H, l] or values [P, K, l, H]; `axis` is that of l.
  """
  size = pages_Px.shape[axis]  # positions of a page
  page_Rx1 = jnp.take_along_axis(
      table.page_RxM, (position_R // size)[:, None], axis=1, mode="clip")
  heads = (slice(None),) * (axis - 1)  # the axes between page and position

  def write_block(pages, page_Rx1, offset_R, new):
    # A row without a page has an index past the last one: its write is dropped.
    return pages.at[(page_Rx1[:, 0], *heads, offset_R)].set(new, mode="drop")

  return jax.vmap(write_block)(*map(table.by_block, (
      pages_Px, page_Rx1, position_R % size, new_RxKx))).reshape(pages_Px.shape)


def attend(q_Rx1xNxH, k_PxKxHxl, v_PxKxlxH, table: PageTable, *, scale: float,
           cap: float | None, window: int | None):
  """Grouped-query attention of each row to its pages; see attention.attend."""
  R, _, N, H = q_Rx1xNxH.shape
  M, (_, K, _, size) = table.page_RxM.shape[1], k_PxKxHxl.shape
  dtype = q_Rx1xNxH.dtype
  q = jnp.broadcast_to((q_Rx1xNxH * scale).reshape(R, 1, K, N // K, H),
                       (R, M, K, N // K, H))
  # One small product per page: concatenating the pages of a row first takes
  # three times as long on CPUs.
  score = jnp.einsum("rmkxh,rmkhl->rmkxl", q,
                     table.gathered(k_PxKxHxl).astype(dtype),
                     preferred_element_type=jnp.float32)
  score = attention.soft_cap(score.transpose(0, 2, 3, 1, 4), cap)
  score = score.reshape(R, K, N // K, M * size)
  mask_Rx1xL = attention.windowed(table.mask_Rx1xL, window)
  score = jnp.where(mask_Rx1xL[:, None], score, attention.MASKED)
  weight = jax.nn.softmax(score, axis=-1).astype(dtype)
  weight = weight.reshape(R, K, N // K, M, size).transpose(0, 3, 1, 2, 4)
  out = jnp.einsum("rmkxl,rmklh->rmkxh", weight,
                   table.gathered(v_PxKxlxH).astype(dtype),
                   preferred_element_type=jnp.float32)
  return out.sum(axis=1).astype(dtype).reshape(R, 1, N, H)
