"""Changes of a paged cache on the devices: pages are filled, written and moved.

The pool of a block is a sequence of arenas: first the pages that may have
several readers, then parts of the others. A program gets the arenas that are in
use, so its cost follows the pages in use, not the size of the pool. An arena is
a decoder.KVCache whose rows are pages; blocks are neighbours. Pages have the
numbers of sampling.pages, and `offsets` has the number of each arena's first.
"""

import itertools

import flax.struct
import jax
import jax.numpy as jnp

from isojax.models import decoder
from isojax.models import paged_attention

Pool = tuple[decoder.KVCache, ...]


@flax.struct.dataclass
class Pages:
  """The pages that a chunk reads and writes; see pages.readers."""

  readers: tuple  # for each arena int32 [pages, Q]
  begins: tuple  # for each arena int32 [pages]

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


def _put(arena_Px, page_GxF, offset: int, value_GxFx):
  """Returns an arena with pages page_GxF replaced, as far as it has them.

  Args:
    arena_Px: of all blocks.
    page_GxF: numbers of pages.
    offset: number of the arena's first page.
    value_GxFx: the new pages.
  """
  G = page_GxF.shape[0]
  grouped = arena_Px.reshape(G, -1, *arena_Px.shape[1:])
  index_GxF = _inside(page_GxF, offset, grouped.shape[1])
  set_pages = jax.vmap(lambda x, i, new: x.at[i].set(new, mode="drop"))
  return set_pages(grouped, index_GxF, value_GxFx).reshape(
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
    return [_put(arena, page_GxF, offset, parts)
            for arena, offset in zip(arenas, offsets, strict=True)]

  return _each(pool, change)


def flush(pool: Pool, recent: decoder.KVCache, pages: Pages, start_R, *,
          G: int) -> Pool:
  """Writes a chunk's keys and values into the pages of their rows.

  A page that decoding writes has one reader. Pages with several readers have
  positions before the chunk only, so nothing is written there. Every page of
  the pool is passed through, in place: to gather and scatter the pages of each
  row takes more memory and time, because each arena needs both.

  Args:
    pool: the arenas.
    recent: keys and values of the chunk.
    pages: which row reads a page, and where the page begins.
    start_R: position of the chunk's first token.
    G: blocks.
  """
  page, C = pool[0].v[0].shape[2], recent.v[0].shape[2]
  form = {"k": "pkhc,pcl->pkhl", "v": "pkch,pcl->pklh"}
  axes = {"k": (1, 2), "v": (1, 3)}  # of new_Pxl in the shape of a page

  def written(arena_Px, part_Rx, reader_PxQ, begin_P, start_R, name):
    writer_Px1 = reader_PxQ[:, :1]
    of = lambda x_Rx: paged_attention.of_rows(x_Rx, writer_Px1, G)[:, 0]
    at_Pxl = (begin_P - of(start_R))[:, None] + jnp.arange(page)[None]
    new_Pxl = (at_Pxl >= 0) & (at_Pxl < C) & (
        writer_Px1 < start_R.shape[0] // G)
    taken_PxCxl = at_Pxl[:, None] == jnp.arange(C)[None, :, None]
    part = of(part_Rx)
    dtype = jnp.bfloat16 if part.dtype.itemsize == 1 else part.dtype
    moved = jnp.einsum(form[name], part.astype(dtype),
                       taken_PxCxl.astype(dtype),
                       precision=jax.lax.Precision.HIGHEST).astype(part.dtype)
    return jnp.where(jnp.expand_dims(new_Pxl, axes[name]), moved, arena_Px)

  changed, last = {}, None
  for key in itertools.product(range(len(recent.k)), ("k", "v")):
    z, name = key
    part_Rx = getattr(recent, name)[z]
    if last:
      # One after the other. Otherwise, XLA merges the same step of all layers,
      # and the program holds what is moved to all pages at once.
      start_R, part_Rx, changed[last] = jax.lax.optimization_barrier(
          (start_R, part_Rx, changed[last]))
    last = key
    changed[key] = [
        written(getattr(arena, name)[z], part_Rx, reader, begin, start_R, name)
        for arena, reader, begin in zip(pool, pages.readers, pages.begins,
                                        strict=True)]
  return _each(pool, lambda arenas, z, name: changed[z, name])


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
    return [_put(arena, target_GxF, offset, picked)
            for arena, offset in zip(arenas, offsets, strict=True)]

  return _each(pool, change)
