"""Attention of one token per row to keys and values in pages of a pool.

The page table has a line for each row, in the layout of JAX's kernels for TPUs.
Plain products support any head width, dtype and device. They gather the pages
of each row at every token.
"""

import flax.struct
import jax
import jax.numpy as jnp

from isojax.models import attention


@flax.struct.dataclass
class PageTable:
  """The pages of each row, and the positions in them that a row attends to."""

  # int32, indices into the pages of the row's block; beyond the last: no page.
  table_RxM: jax.Array
  mask_Rx1xL: jax.Array  # bool, over the positions of the M pages
  blocks: int = flax.struct.field(pytree_node=False)  # row shards

  def grouped(self, x):
    return x.reshape(self.blocks, -1, *x.shape[1:])

  def gathered(self, pages_Px):
    """The pages of each row, [R, M, ...]; arbitrary ones where it has none."""
    picked = jax.vmap(lambda pages, table: pages.at[table].get(mode="clip"))(
        self.grouped(pages_Px), self.grouped(self.table_RxM))
    return picked.reshape(-1, *picked.shape[2:])


def write(pages_Px, new_RxKx, seen: PageTable, position_R, axis: int):
  """Writes the keys or values [R, K, H] of one token a row to the row's page.

  Pages are keys [P, K, H, page] or values [P, K, page, H]; `axis` is that of
  the positions.
  """
  page = pages_Px.shape[axis]
  page_Rx1 = jnp.take_along_axis(
      seen.table_RxM, (position_R // page)[:, None], axis=1, mode="clip")
  at = (slice(None),) * (axis - 1)

  def block(pages, page_Rx1, offset_R, new):
    return pages.at[(page_Rx1[:, 0], *at, offset_R)].set(new, mode="drop")

  return jax.vmap(block)(*map(seen.grouped, (
      pages_Px, page_Rx1, position_R % page, new_RxKx))).reshape(pages_Px.shape)


def attend(q_Rx1xNxH, k_PxKxHxl, v_PxKxlxH, seen: PageTable, *, scale: float,
           cap: float | None, window: int | None):
  """Grouped-query attention of each row to its pages; see attention.attend."""
  R, _, N, H = q_Rx1xNxH.shape
  M, (_, K, _, page) = seen.table_RxM.shape[1], k_PxKxHxl.shape
  dtype = q_Rx1xNxH.dtype
  q = jnp.broadcast_to((q_Rx1xNxH * scale).reshape(R, 1, K, N // K, H),
                       (R, M, K, N // K, H))
  # One small product per page: concatenating the pages of a row first takes
  # three times as long on CPUs.
  score = jnp.einsum("rmkxh,rmkhl->rmkxl", q,
                     seen.gathered(k_PxKxHxl).astype(dtype),
                     preferred_element_type=jnp.float32)
  score = attention.soft_cap(score.transpose(0, 2, 3, 1, 4), cap)
  score = score.reshape(R, K, N // K, M * page)
  mask_Rx1xL = attention.windowed(seen.mask_Rx1xL, window)
  score = jnp.where(mask_Rx1xL[:, None], score, -1e30)
  weight = jax.nn.softmax(score, axis=-1).astype(dtype)
  weight = weight.reshape(R, K, N // K, M, page).transpose(0, 3, 1, 2, 4)
  out = jnp.einsum("rmkxl,rmklh->rmkxh", weight,
                   seen.gathered(v_PxKxlxH).astype(dtype),
                   preferred_element_type=jnp.float32)
  return out.sum(axis=1).astype(dtype).reshape(R, 1, N, H)
