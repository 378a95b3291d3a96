"""Keys and values of the sampler's slots: rows of one length, or pages.

`Contiguous` and `Paged` have the same methods for the host: the engine reserves
space for the next chunk, gives space to rollouts that take a slot, and fits the
cache to the slots and positions in use.

With pages, each block of the mesh has a pool of its own. A page holds the keys
and values of consecutive positions of a sequence, in all layers. A slot takes
pages as its sequence grows. The slots of a problem share the full pages of its
prompt, but not the page of the prompt's last token, which decoding writes. If a
pool is exhausted, its slots with the fewest tokens are evicted: their rollouts
are queued again.
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
# stays free. Otherwise, growing slots would soon evict those with the fewest
# tokens.
SLOTS_PER_SPARE_PAGE = 8


def sharding(model: decoder.Transformer) -> NamedSharding:
  """Sharding of keys and values: rows or pages by blocks, heads by tensor."""
  tensor = "tensor" if model.cfg.K % model.mesh.shape["tensor"] == 0 else None
  return NamedSharding(model.mesh, P(mesh_lib.ROWS, tensor))


def _grouped(x, G: int):
  return x.reshape(G, -1, *x.shape[1:])


def _map_arrays(change, *caches: decoder.KVCache) -> decoder.KVCache:
  """Applies change(axis of positions, array of each cache) to keys and values.
  """
  layers = lambda axis, arrays: tuple(
      change(axis, *x) for x in zip(*arrays, strict=True))
  return decoder.KVCache(layers(3, [cache.k for cache in caches]),
                         layers(2, [cache.v for cache in caches]))


def insert(cache: decoder.KVCache, window: decoder.KVCache, row_GxF,
           slot_GxF) -> decoder.KVCache:
  """Copies sequence slot_GxF[g, f] of block g's window to row row_GxF[g, f].

  Rows beyond a block's last are padding, for which nothing is copied.
  """
  G = len(row_GxF)

  def put(axis, cache_R, window_P):
    L = min(cache_R.shape[axis], window_P.shape[axis])
    inner = *[slice(None)] * (axis - 1), slice(L)
    def block(target, source, row_F, slot_F):
      return target.at[(row_F, *inner)].set(source[(slot_F, *inner)],
                                            mode="drop")
    return jax.vmap(block)(_grouped(cache_R, G), _grouped(window_P, G), row_GxF,
                           slot_GxF).reshape(cache_R.shape)
  return _map_arrays(put, cache, window)


def insert_pages(pool: decoder.KVCache, window: decoder.KVCache, slot_GxF,
                 part_GxF, page_GxF) -> decoder.KVCache:
  """Copies part part_GxF of sequence slot_GxF of the window to page page_GxF.

  A part has the positions of one page. Sequences and pages are numbered inside
  their block; pages beyond a block's last are padding.
  """
  G = len(page_GxF)

  def put(axis, pool_P, window_W):
    page = pool_P.shape[axis]
    padding = -window_W.shape[axis] % page
    x = jnp.pad(window_W, [(0, padding * (i == axis)) for i in range(4)])
    x = x.reshape(*x.shape[:axis], -1, page, *x.shape[axis + 1:])
    heads = (slice(None),) * (axis - 1)  # the axes between slot and part
    def block(target, source, slot_F, part_F, page_F):
      return target.at[page_F].set(source[(slot_F, *heads, part_F)],
                                   mode="drop")
    return jax.vmap(block)(_grouped(pool_P, G), _grouped(x, G), slot_GxF,
                           part_GxF, page_GxF).reshape(pool_P.shape)
  return _map_arrays(put, pool, window)


def resize(part_BxK, take_GxR, L: int, axis: int):
  """Keeps rows take_GxR of each block; pads or cuts the positions to L."""
  rows = jax.vmap(lambda x, take: x[take])(
      _grouped(part_BxK, take_GxR.shape[0]), take_GxR)
  rows = rows.reshape(-1, *part_BxK.shape[1:])
  length = rows.shape[axis]
  if length >= L:
    return jax.lax.slice_in_dim(rows, 0, L, axis=axis)
  return jnp.pad(rows, [(0, (L - length) * (i == axis)) for i in range(4)])


def flush(cache: decoder.KVCache, recent: decoder.KVCache,
          start_R) -> decoder.KVCache:
  """Writes a chunk's keys and values into the cache, from start_R[r] in row r.

  The chunk is moved by a product with ones and zeros, which is exact: on TPUs,
  writes at a different position in each row would be a loop over rows.
  """
  C, L = recent.v[0].shape[2], cache.v[0].shape[2]
  offset_RxL = jnp.arange(L)[None] - start_R[:, None]  # in the chunk
  one_hot_RxCxL = offset_RxL[:, None] == jnp.arange(C)[None, :, None]
  new_RxL = (offset_RxL >= 0) & (offset_RxL < C)

  def put(axis, cache, part):
    spec = "rkhc,rcl->rkhl" if axis == 3 else "rkch,rcl->rklh"
    moved = jnp.einsum(spec, part, one_hot_RxCxL.astype(part.dtype),
                       precision=jax.lax.Precision.HIGHEST)
    new = jnp.expand_dims(new_RxL, (1, 2) if axis == 3 else (1, 3))
    return jnp.where(new, moved.astype(cache.dtype), cache)

  return _map_arrays(put, cache, recent)


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

  def allocate(self, g: int, rows, items, slots) -> int:
    """Reserves space for items that take slots; returns how many get it.

    If the space is short, the first items get it.

    Args:
      g: the block.
      rows: a slot for each item, numbered over all blocks.
      items: the items.
      slots: the place of each item's sequence in the block's window.
    """
    del g, items, slots
    return len(rows)

  def fit(self, R: int) -> None:
    """Keeps R slots, and makes the cache long enough for the next chunk.

    Each layer's keys or values are freed before the next are copied, so the
    peak is the new cache and one old part.
    """
    q, sizes, length = self.q, self.s.sizes, self.kv.v[0].shape[2]
    longest = int(q.slots.row.position_R[q.slots.row.active_R].max(initial=0))
    L = max(length, smallest(
        sizes.lengths, min(longest + sizes.chunk, sizes.lengths[-1])))
    if (R, L) == (len(q.slots.item_R), length):
      return
    take = self.s.place(q.slots.compact(R))
    k, v = list(self.kv.k), list(self.kv.v)
    self.kv = None  # frees each old part after its copy
    for axis, parts in ((3, k), (2, v)):
      for i in range(len(parts)):
        parts[i] = self.s.resize(parts[i], take, L, axis)
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
    self.table_RxM = np.full((R, self._count(s.sizes.longest)), s.pages,
                             np.int32)
    self.count_R = np.zeros(R, np.int64)  # pages of a slot
    self.shared_R = np.zeros(R, np.int64)  # its first pages, full of its prompt
    self.problem_R = np.zeros(R, np.int64)
    self.free = [list(range(s.pages))[::-1] for _ in range(q.slots.G)]
    # For each block: problem -> slots that share the pages of its prompt.
    self.readers = [{} for _ in range(q.slots.G)]
    # For each block: (slot of the window, part of its sequence, page to fill).
    self.pending_copies = [[] for _ in range(q.slots.G)]

  def _count(self, positions):
    return -(-positions // self.page)

  def _needed(self, position):
    """Pages of a slot after the next chunk."""
    sizes = self.s.sizes
    return self._count(np.minimum(position + sizes.chunk, sizes.longest))

  def _append(self, g: int, row: int, count: int) -> None:
    """Gives a slot of block g `count` further pages."""
    begin = self.count_R[row]
    self.table_RxM[row, begin:begin + count] = [
        self.free[g].pop() for _ in range(count)]
    self.count_R[row] += count

  def release(self, g: int, row: int) -> None:
    """Takes all pages from a slot; those that no other slot reads are freed."""
    pages = self.table_RxM[row, :self.count_R[row]].tolist()
    shared, problem = self.shared_R[row], int(self.problem_R[row])
    if shared:
      self.readers[g][problem].remove(row)
      if self.readers[g][problem]:
        pages = pages[shared:]
      else:
        del self.readers[g][problem]
    self.free[g].extend(reversed(pages))
    self.table_RxM[row] = self.pages
    self.count_R[row] = self.shared_R[row] = 0

  def reserve(self) -> list[int]:
    """Evicts the slots with the fewest tokens if the pages do not suffice."""
    row, evicted = self.q.slots.row, []
    for r in np.flatnonzero(~row.active_R & (self.count_R > 0)):
      self.release(r // self.q.slots.rows, r)
    for g, active in enumerate(self.q.slots.active_GxR):
      rows = g * self.q.slots.rows + np.flatnonzero(active)
      rows = rows[np.argsort(-row.count_R[rows], kind="stable")]
      more = np.maximum(
          0, self._needed(row.position_R[rows]) - self.count_R[rows])
      while more.sum() > len(self.free[g]):
        self.release(g, rows[-1])
        evicted.append(int(rows[-1]))
        rows, more = rows[:-1], more[:-1]
      for r, count in zip(rows, more, strict=True):
        self._append(g, r, count)
    return evicted

  def allocate(self, g: int, rows, items, slots) -> int:
    q = self.q
    for i, (row, item, slot) in enumerate(zip(rows, items, slots, strict=True)):
      problem = int(q.items.problem_B[item])
      stored = int(q.items.length(item)) - 1  # positions of its sequence
      shared = (int(q.prompts.len_P[problem]) - 1) // self.page
      readers = self.readers[g].get(problem, [])
      present = shared if readers else 0
      count = self._needed(stored) - present
      used = np.count_nonzero(self.count_R.reshape(q.slots.G, -1)[g])
      if count + used // SLOTS_PER_SPARE_PAGE > len(self.free[g]):
        return i
      if readers:
        self.table_RxM[row, :present] = self.table_RxM[readers[0], :present]
      self.count_R[row], self.problem_R[row] = present, problem
      self.shared_R[row] = shared
      if shared:
        self.readers[g][problem] = [*readers, row]
      self._append(g, row, count)
      self.pending_copies[g].extend(
          (slot, m, self.table_RxM[row, m])
          for m in range(present, self._count(stored)))
    return len(rows)

  def fit(self, R: int) -> None:
    q = self.q
    if R == len(q.slots.item_R):
      return
    rows, take_GxR = q.slots.rows, q.slots.compact(R)
    index = (take_GxR + np.arange(q.slots.G)[:, None] * rows).reshape(-1)
    new = {int(row): i for i, row in enumerate(index)}
    for name in ("table_RxM", "count_R", "shared_R", "problem_R"):
      setattr(self, name, getattr(self, name)[index])
    self.readers = [{problem: [new[row] for row in readers]
                     for problem, readers in block.items()}
                    for block in self.readers]

  def insert(self, filled) -> None:
    """Fills the pages that `allocate` has listed."""
    del filled
    F = self.q.slots.rows  # pages of a block in one call
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
    """The page table, as long as the longest sequence needs."""
    lengths = self.s.sizes.lengths
    L = smallest(lengths, min(
        int(self.count_R.max()) * self.page, lengths[-1]))
    return dict(table=self.s.place(self.table_RxM[:, :self._count(L)]))
