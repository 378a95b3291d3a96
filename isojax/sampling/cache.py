"""Changes of a cache between two chunks: rows are inserted, kept, and grow."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from isojax import mesh as mesh_lib
from isojax.models import decoder


def sharding(model: decoder.Transformer) -> NamedSharding:
  """Returns the sharding of keys and values: rows by blocks, heads by tensor.

  Heads that do not divide over tensor are replicated.
  """
  tensor = "tensor" if model.cfg.K % model.mesh.shape["tensor"] == 0 else None
  return NamedSharding(model.mesh, P(mesh_lib.ROWS, tensor))


def insert(cache: decoder.KVCache, window: decoder.KVCache, row_GxF, slot_GxF,
           *, G: int) -> decoder.KVCache:
  """Copies prompt slot_GxF[g, f] of block g's window to row row_GxF[g, f].

  Rows beyond a block's last are padding, for which nothing is copied.
  """
  def put(axis, cache_R, window_P):
    L = min(cache_R.shape[axis], window_P.shape[axis])
    inner = *[slice(None)] * (axis - 1), slice(L)
    def block(into, source, row_F, slot_F):
      return into.at[(row_F, *inner)].set(source[(slot_F, *inner)],
                                          mode="drop")
    grouped = lambda x: x.reshape(G, -1, *x.shape[1:])
    return jax.vmap(block)(grouped(cache_R), grouped(window_P), row_GxF,
                           slot_GxF).reshape(cache_R.shape)
  each = lambda axis, into, source: tuple(
      put(axis, *pair) for pair in zip(into, source, strict=True))
  return decoder.KVCache(each(3, cache.k, window.k), each(2, cache.v, window.v))


def resize(part_BxK, take_GxR, L: int, axis: int):
  """Keeps rows take_GxR of each block; grows or cuts the axis of slots to L."""
  G = take_GxR.shape[0]
  grouped = part_BxK.reshape(G, -1, *part_BxK.shape[1:])
  kept = jax.vmap(lambda x, take: x[take])(grouped, take_GxR)
  kept = kept.reshape(-1, *part_BxK.shape[1:])
  if kept.shape[axis] >= L:
    return jax.lax.slice_in_dim(kept, 0, L, axis=axis)
  more = [(0, (L - kept.shape[axis]) * (i == axis)) for i in range(4)]
  return jnp.pad(kept, more)


def flush(cache: decoder.KVCache, recent: decoder.KVCache,
          start_R) -> decoder.KVCache:
  """Writes a chunk's keys and values into the cache, from start_R[r] in row r.

  The slots are moved by a product with ones and zeros, which is exact: on TPUs,
  writes at a different place in each row would be a loop over rows.
  """
  C, L = recent.v[0].shape[2], cache.v[0].shape[2]
  at_RxL = jnp.arange(L)[None] - start_R[:, None]
  taken_RxCxL = at_RxL[:, None] == jnp.arange(C)[None, :, None]
  new_Rx1xL = ((at_RxL >= 0) & (at_RxL < C))[:, None]

  def put(form, new, cache, part):
    dtype = jnp.bfloat16 if part.dtype.itemsize == 1 else part.dtype
    moved = jnp.einsum(form, part.astype(dtype), taken_RxCxL.astype(dtype),
                       precision=jax.lax.Precision.HIGHEST)
    return jnp.where(new, moved.astype(cache.dtype), cache)

  each = lambda form, new, caches, parts: tuple(
      put(form, new, *pair) for pair in zip(caches, parts, strict=True))
  return decoder.KVCache(
      each("rkhc,rcl->rkhl", new_Rx1xL[:, :, None], cache.k, recent.k),
      each("rkch,rcl->rklh", new_Rx1xL[..., None], cache.v, recent.v))
