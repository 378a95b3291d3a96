"""Changes of a paged cache on the devices: pages are filled, written and moved.

The pool of a block is a sequence of arenas: first the pages that may have
several readers, then parts of the others. A program gets the arenas that are in
use, so its cost follows the pages in use, not the size of the pool. An arena is
a decoder.KVCache whose rows are pages; blocks are neighbours. Pages have the
numbers of sampling.pages, and `offsets` has the number of each arena's first.
"""

import flax.struct
import jax
import jax.numpy as jnp

from isojax.models import decoder
from isojax.models import paged_attention

Pool = tuple[decoder.KVCache, ...]


@flax.struct.dataclass
class Pages:
  """The pages that a chunk reads and writes; see pages.readers, pages.written.
  """

  readers: tuple  # for each arena int32 [pages, Q]
  begins: tuple  # for each arena int32 [pages]
  written_RxJ: jax.Array  # int32

  def seen(self, start_R, position_R, i) -> paged_attention.Seen:
    return paged_attention.Seen(self.readers, self.begins, start_R, position_R,
                                i)


def past(pool: Pool) -> decoder.KVCache:
  """Returns the pool by layers: each has a tuple of arenas."""
  return decoder.KVCache(tuple(zip(*(arena.k for arena in pool), strict=True)),
                         tuple(zip(*(arena.v for arena in pool), strict=True)))


def _inside(page, offset: int, P: int):
  """Returns indices into an arena of P pages; P for pages of other arenas."""
  index = page - offset
  return jnp.where((index >= 0) & (index < P), index, P)


def _put(arena_Px, page_GxF, offset: int, value):
  """Returns an arena with pages page_GxF replaced, as far as it has them.

  Args:
    arena_Px: of all blocks.
    page_GxF: numbers of pages.
    offset: number of the arena's first page.
    value: old pages [F, ...] -> new pages, of each block g; see `jax.vmap`.
  """
  G = page_GxF.shape[0]
  grouped = arena_Px.reshape(G, -1, *arena_Px.shape[1:])
  index_GxF = _inside(page_GxF, offset, grouped.shape[1])
  set_pages = jax.vmap(lambda x, i, new: x.at[i].set(new, mode="drop"))
  return set_pages(grouped, index_GxF, value(grouped, index_GxF)).reshape(
      arena_Px.shape)


def _taken(grouped_GxPx, index_GxF):
  """Returns the pages of an arena; any for indices beyond its last."""
  last = grouped_GxPx.shape[1] - 1
  return jax.vmap(lambda x, i: x[i])(grouped_GxPx,
                                     jnp.minimum(index_GxF, last))


def _each(pool: Pool, change) -> Pool:
  """Returns change(parts of all arenas, layer, "k" or "v") as a pool."""
  changed = {name: [change([getattr(arena, name)[z] for arena in pool], z, name)
                    for z in range(len(pool[0].k))] for name in ("k", "v")}
  return tuple(decoder.KVCache(*(tuple(parts[a] for parts in changed[name])
                                 for name in ("k", "v")))
               for a in range(len(pool)))


def insert(pool: Pool, window: decoder.KVCache, slot_GxF, part_GxF, page_GxF, *,
           offsets: tuple[int, ...]) -> Pool:
  """Copies parts of sequences that were prefilled to pages.

  Args:
    pool: the arenas.
    window: keys and values of the sequences.
    slot_GxF: of the sequence, in the block's window.
    part_GxF: which page of the sequence.
    page_GxF: the page that is filled; of no arena: padding.
    offsets: of the arenas.
  """
  G, page = page_GxF.shape[0], pool[0].v[0].shape[2]

  def change(arenas, z, name):
    axis = 3 if name == "k" else 2
    x = getattr(window, name)[z]
    more = -x.shape[axis] % page
    x = jnp.pad(x, [(0, more * (i == axis)) for i in range(4)])
    x = x.reshape(G, -1, *x.shape[1:axis], x.shape[axis] // page, page,
                  *x.shape[axis + 1:])
    at = (slice(None),) * (axis - 1)
    parts = jax.vmap(lambda x, slot, part: x[(slot, *at, part)])(
        x, slot_GxF, part_GxF)
    return [_put(arena, page_GxF, offset, lambda *_: parts)
            for arena, offset in zip(arenas, offsets, strict=True)]

  return _each(pool, change)


def flush(pool: Pool, recent: decoder.KVCache, start_R, written_RxJ, *,
          offsets: tuple[int, ...], G: int) -> Pool:
  """Writes a chunk's keys and values into the pages, from start_R[r] in row r.

  Args:
    pool: the arenas.
    recent: keys and values of the chunk.
    start_R: position of the chunk's first token.
    written_RxJ: the pages from start_R on; of no arena: what would be written
      there is dropped.
    offsets: of the arenas.
    G: blocks.
  """
  page, C, J = pool[0].v[0].shape[2], recent.v[0].shape[2], written_RxJ.shape[1]
  begin_RxJ = (start_R // page)[:, None] * page + (jnp.arange(J) * page)[None]
  at_RxJxl = (begin_RxJ[..., None] + jnp.arange(page)[None, None]
              - start_R[:, None, None])
  taken_RxJxCxl = at_RxJxl[:, :, None] == jnp.arange(C)[None, None, :, None]
  new_RxJxl = (at_RxJxl >= 0) & (at_RxJxl < C)
  form = {"k": "rkhc,rjcl->rjkhl", "v": "rkch,rjcl->rjklh"}
  mask = {"k": new_RxJxl[:, :, None, None], "v": new_RxJxl[:, :, None, :, None]}
  blocks = lambda x: x.reshape(G, -1, *x.shape[2:])

  def change(arenas, z, name):
    part = getattr(recent, name)[z]
    dtype = jnp.bfloat16 if part.dtype.itemsize == 1 else part.dtype
    moved = jnp.einsum(form[name], part.astype(dtype),
                       taken_RxJxCxl.astype(dtype),
                       precision=jax.lax.Precision.HIGHEST).astype(part.dtype)
    value = lambda old, index: jnp.where(
        blocks(mask[name]), blocks(moved), _taken(old, index))
    return [_put(arena, blocks(written_RxJ), offset, value)
            for arena, offset in zip(arenas, offsets, strict=True)]

  return _each(pool, change)


def move(pool: Pool, source_GxF, target_GxF, *,
         offsets: tuple[int, ...]) -> Pool:
  """Copies pages source_GxF to target_GxF; pages of no arena are padding."""
  def change(arenas, z, name):
    del z, name
    picked = 0
    for arena, offset in zip(arenas, offsets, strict=True):
      grouped = arena.reshape(len(source_GxF), -1, *arena.shape[1:])
      index = _inside(source_GxF, offset, grouped.shape[1])
      here = (index < grouped.shape[1]).reshape(*index.shape, 1, 1, 1)
      picked = jnp.where(here, _taken(grouped, index), picked)
    return [_put(arena, target_GxF, offset, lambda *_: picked)
            for arena, offset in zip(arenas, offsets, strict=True)]

  return _each(pool, change)
