"""Keys and values of the sampler's slots: rows of one length, or pages.

`Contiguous` and `Paged` have the same methods for the host: the engine reserves
space for the next chunk, gives space to rollouts that take a slot, and fits the
cache to the slots and positions in use.

With pages, each block of the mesh has a pool of its own. A page holds the keys
and values of consecutive positions of a sequence, in all layers. A slot takes
pages as its sequence grows. The slots of a problem share the full pages of its
prompt, but not the page of the prompt's last token, which decoding writes. If a
pool is exhausted, its slots with the fewest new tokens are evicted: their
rollouts are queued again.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from isojax.models import decoder
from isojax.runtime import mesh as mesh_lib
from isojax.sampling.scheduler import Scheduler
from isojax.sampling.sizes import smallest

# A rollout starts only if one page for every so many used slots of the block
# stays free. Otherwise, growing slots would soon evict the new one.
SLOTS_PER_SPARE_PAGE = 8


def sharding(model: decoder.Transformer) -> NamedSharding:
  """Sharding of keys and values: rows or pages by blocks, heads by tensor."""
  tensor = "tensor" if model.cfg.K % model.mesh.shape["tensor"] == 0 else None
  return NamedSharding(model.mesh, P(mesh_lib.ROWS, tensor))


def _grouped(x, G: int):
  return x.reshape(G, -1, *x.shape[1:])


def _map_arrays(change, *caches: decoder.KVCache) -> decoder.KVCache:
  """Maps change(axis of positions, *arrays) over the keys and the values."""
  layers = lambda axis, arrays: tuple(
      change(axis, *x) for x in zip(*arrays, strict=True))
  return decoder.KVCache(layers(3, [cache.k for cache in caches]),
                         layers(2, [cache.v for cache in caches]))


def insert(cache: decoder.KVCache, window: decoder.KVCache, row_GxF,
           place_GxF) -> decoder.KVCache:
  """Copies sequence place_GxF[g, f] of block g's window to row row_GxF[g, f].

  Rows beyond a block's last are padding, for which nothing is copied.
  """
  G = len(row_GxF)

  def put(axis, cache_R, window_W):
    L = min(cache_R.shape[axis], window_W.shape[axis])
    inner = *[slice(None)] * (axis - 1), slice(L)
    def block(target, source, row_F, place_F):
      return target.at[(row_F, *inner)].set(source[(place_F, *inner)],
                                            mode="drop")
    return jax.vmap(block)(_grouped(cache_R, G), _grouped(window_W, G), row_GxF,
                           place_GxF).reshape(cache_R.shape)
  return _map_arrays(put, cache, window)


def insert_pages(pool: decoder.KVCache, window: decoder.KVCache, place_GxF,
                 part_GxF, page_GxF) -> decoder.KVCache:
  """Copies part part_GxF of sequence place_GxF of the window to page page_GxF.

  A part has the positions of one page. Sequences and pages are numbered inside
  their block. For pages beyond a block's last nothing is copied.
  """
  G = len(page_GxF)

  def put(axis, pool_P, window_W):
    page = pool_P.shape[axis]
    padding = -window_W.shape[axis] % page
    x = jnp.pad(window_W, [(0, padding * (i == axis)) for i in range(4)])
    x = x.reshape(*x.shape[:axis], -1, page, *x.shape[axis + 1:])
    heads = (slice(None),) * (axis - 1)  # the axes between sequence and part
    def block(target, source, place_F, part_F, page_F):
      return target.at[page_F].set(source[(place_F, *heads, part_F)],
                                   mode="drop")
    return jax.vmap(block)(_grouped(pool_P, G), _grouped(x, G), place_GxF,
                           part_GxF, page_GxF).reshape(pool_P.shape)
  return _map_arrays(put, pool, window)


def resize(layer_Rx, take_GxR, L: int, axis: int):
  """Keeps rows take_GxR of each block of a layer's keys or values.

  Positions, along `axis`, are padded or cut to L.
  """
  rows = jax.vmap(lambda x, take: x[take])(
      _grouped(layer_Rx, take_GxR.shape[0]), take_GxR)
  rows = rows.reshape(-1, *layer_Rx.shape[1:])
  length = rows.shape[axis]
  if length >= L:
    return jax.lax.slice_in_dim(rows, 0, L, axis=axis)
  return jnp.pad(rows, [(0, (L - length) * (i == axis)) for i in range(4)])


def flush(cache: decoder.KVCache, chunk: decoder.KVCache,
          start_R) -> decoder.KVCache:
  """Writes a chunk's keys and values into the cache, from start_R[r] in row r.

  They are moved by a product with ones and zeros, which is exact: on TPUs,
  writes at a different position in each row would be a loop over rows.
  """
  C, L = chunk.v[0].shape[2], cache.v[0].shape[2]
  offset_RxL = jnp.arange(L)[None] - start_R[:, None]  # index in the chunk
  one_hot_RxCxL = offset_RxL[:, None] == jnp.arange(C)[None, :, None]
  new_RxL = (offset_RxL >= 0) & (offset_RxL < C)

  def put(axis, cache, chunk):
    spec = "rkhc,rcl->rkhl" if axis == 3 else "rkch,rcl->rklh"
    moved = jnp.einsum(spec, chunk, one_hot_RxCxL.astype(chunk.dtype),
                       precision=jax.lax.Precision.HIGHEST)
    new = jnp.expand_dims(new_RxL, (1, 2) if axis == 3 else (1, 3))
    return jnp.where(new, moved.astype(cache.dtype), cache)

  return _map_arrays(put, cache, chunk)


class Contiguous:
  """Rows of one length, which grows with the longest active rollout."""

  def __init__(self, s, q: Scheduler):
    """An empty cache for s, the engine's Sampler, and the slots of q.

    `kv` is the cache on the devices.
    """
    self.s, self.q = s, q
    self.kv = s.empty(len(q.slots.item_R), s.sizes.lengths[0])
    self.window = None  # cache of the sequences prefilled last

  def reserve(self) -> list[int]:
    """Reserves space for the next chunk; returns the slots that get none."""
    return []

  def allocate(self, g: int, rows, items, places) -> int:
    """Reserves space for items that take slots; returns how many get it.

    If the space is short, the first items get it.

    Args:
      g: the block.
      rows: a slot for each item, numbered over all blocks.
      items: the items.
      places: index of each item's sequence in the block's window.
    """
    del g, items, places
    return len(rows)

  def fit(self, R: int) -> None:
    """Keeps R slots, and makes the cache long enough for the next chunk.

    The keys or values of a layer are freed before the next are copied, so the
    peak is the new cache and one old array.
    """
    q, sizes, length = self.q, self.s.sizes, self.kv.v[0].shape[2]
    longest = int(q.slots.row.position_R[q.slots.row.active_R].max(initial=0))
    L = max(length, smallest(
        sizes.lengths, min(longest + sizes.chunk, sizes.lengths[-1])))
    if (R, L) == (len(q.slots.item_R), length):
      return
    take = self.s.place(q.slots.compact(R))
    k, v = list(self.kv.k), list(self.kv.v)
    self.kv = None  # so that each old array is freed after its copy
    for axis, layers in ((3, k), (2, v)):
      for i in range(len(layers)):
        layers[i] = self.s.resize(layers[i], take, L, axis)
    self.kv = decoder.KVCache(tuple(k), tuple(v))

  def insert(self, filled) -> None:
    """Copies sequences of the window to slots that `Scheduler.fill` filled."""
    if filled[0].size:
      self.kv = self.s.insert(self.kv, self.window, *self.s.place(filled))

  def decode_arguments(self) -> dict:
    """Further arguments of decode."""
    return {}


class Paged:
  """Pools of pages, and a page table: the pages of each slot, by position.

  Free slots have no pages: their entries of the table are beyond the last page,
  where nothing is written. Methods are those of `Contiguous`.
  """

  def __init__(self, s, q: Scheduler):
    self.s, self.q, self.page, self.pages = s, q, s.page, s.pages
    self.kv, self.window = s.empty(q.slots.G * s.pages, s.page), None
    R = len(q.slots.item_R)
    self.table_RxM = np.full((R, self._pages_for(s.sizes.longest)), s.pages,
                             np.int32)
    self.pages_R = np.zeros(R, np.int64)  # number of pages of a slot
    self.shared_R = np.zeros(R, np.int64)  # of these, full pages of its prompt
    self.problem_R = np.zeros(R, np.int64)
    self.free = [list(range(s.pages))[::-1] for _ in range(q.slots.G)]
    # For each block: problem -> slots that share the pages of its prompt.
    self.readers = [{} for _ in range(q.slots.G)]
    # For each block: (place in the window, part of the sequence, page to fill).
    self.pending_copies = [[] for _ in range(q.slots.G)]

  def _pages_for(self, positions):
    return -(-positions // self.page)

  def _needed(self, stored):
    """Pages of a slot, with `stored` positions now, after the next chunk."""
    sizes = self.s.sizes
    return self._pages_for(np.minimum(stored + sizes.chunk, sizes.longest))

  def _append(self, g: int, row: int, count: int) -> None:
    """Gives a slot of block g `count` further pages."""
    begin = self.pages_R[row]
    self.table_RxM[row, begin:begin + count] = [
        self.free[g].pop() for _ in range(count)]
    self.pages_R[row] += count

  def release(self, g: int, row: int) -> None:
    """Takes all pages from a slot; those that no other slot reads are freed."""
    pages = self.table_RxM[row, :self.pages_R[row]].tolist()
    shared, problem = self.shared_R[row], int(self.problem_R[row])
    if shared:
      self.readers[g][problem].remove(row)
      if self.readers[g][problem]:
        pages = pages[shared:]
      else:
        del self.readers[g][problem]
    self.free[g].extend(reversed(pages))
    self.table_RxM[row] = self.pages
    self.pages_R[row] = self.shared_R[row] = 0

  def reserve(self) -> list[int]:
    """Frees the pages of ended slots, and gives active slots further ones.

    Returns the slots that were evicted because the pages do not suffice.
    """
    row, evicted = self.q.slots.row, []
    for r in np.flatnonzero(~row.active_R & (self.pages_R > 0)):
      self.release(r // self.q.slots.per_block, r)
    for g, active in enumerate(self.q.slots.active_GxR):
      rows = g * self.q.slots.per_block + np.flatnonzero(active)
      rows = rows[np.argsort(-row.count_R[rows], kind="stable")]
      more = np.maximum(
          0, self._needed(row.position_R[rows]) - self.pages_R[rows])
      while more.sum() > len(self.free[g]):
        self.release(g, rows[-1])
        evicted.append(int(rows[-1]))
        rows, more = rows[:-1], more[:-1]
      for r, count in zip(rows, more, strict=True):
        self._append(g, r, count)
    return evicted

  def allocate(self, g: int, rows, items, places) -> int:
    q = self.q
    for i, (row, item, place) in enumerate(
        zip(rows, items, places, strict=True)):
      problem = int(q.items.problem_B[item])
      stored = int(q.items.length(item)) - 1  # positions of its sequence
      shared = (int(q.prompts.len_P[problem]) - 1) // self.page
      readers = self.readers[g].get(problem, [])
      present = shared if readers else 0
      count = self._needed(stored) - present
      used = np.count_nonzero(self.pages_R.reshape(q.slots.G, -1)[g])
      if count + used // SLOTS_PER_SPARE_PAGE > len(self.free[g]):
        return i
      if readers:
        self.table_RxM[row, :present] = self.table_RxM[readers[0], :present]
      self.pages_R[row], self.problem_R[row] = present, problem
      self.shared_R[row] = shared
      if shared:
        self.readers[g][problem] = [*readers, row]
      self._append(g, row, count)
      self.pending_copies[g].extend(
          (place, m, self.table_RxM[row, m])
          for m in range(present, self._pages_for(stored)))
    return len(rows)

  def fit(self, R: int) -> None:
    q = self.q
    if R == len(q.slots.item_R):
      return
    per_block, take_GxR = q.slots.per_block, q.slots.compact(R)
    index = (take_GxR + np.arange(q.slots.G)[:, None] * per_block).reshape(-1)
    new_row = {int(row): i for i, row in enumerate(index)}
    for name in ("table_RxM", "pages_R", "shared_R", "problem_R"):
      setattr(self, name, getattr(self, name)[index])
    self.readers = [{problem: [new_row[row] for row in readers]
                     for problem, readers in block.items()}
                    for block in self.readers]

  def insert(self, filled) -> None:
    """Fills the pages that `allocate` has listed."""
    del filled
    F = self.q.slots.per_block  # pages of a block in one call
    while any(self.pending_copies):
      fill_GxFx3 = np.zeros((len(self.pending_copies), F, 3), np.int32)
      fill_GxFx3[..., 2] = self.pages  # beyond the last page: padding
      for g, copies in enumerate(self.pending_copies):
        if copies:
          fill_GxFx3[g, :len(copies[:F])] = copies[:F]
      self.pending_copies = [copies[F:] for copies in self.pending_copies]
      self.kv = self.s.insert(self.kv, self.window, *self.s.place(
          tuple(np.moveaxis(fill_GxFx3, 2, 0))))

  def decode_arguments(self) -> dict:
    """The page table, with as many columns as the longest sequence needs."""
    lengths = self.s.sizes.lengths
    L = smallest(lengths, min(
        int(self.pages_R.max()) * self.page, lengths[-1]))
    return dict(table=self.s.place(self.table_RxM[:, :self._pages_for(L)]))
