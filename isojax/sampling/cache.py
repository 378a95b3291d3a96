"""Keys and values of the sampler's slots: rows of one length, or pages.

`Contiguous` and `Paged` have the same methods for the host, which the engine
calls in this order: `reserve` space for the next chunk of the active slots,
`allocate` space to rollouts that wait for a slot, `fit` the cache to the slots
and positions in use, `insert` the sequences of the new rollouts. A cache has no
queue: its arguments are the active slots and the lengths of their sequences. It
returns which slots lost their space, how many rollouts got some, and where the
slots were before it compacted them.

With pages, each block of the mesh has its own pool. A page holds the keys
and values of consecutive positions of a sequence, in all layers. A slot takes
pages as its sequence grows. The slots of a problem share the full pages of its
prompt, but not the page of the prompt's last token, which decoding writes. If a
pool is exhausted, its slots with the fewest new tokens are evicted, because
prefilling their rollouts again costs least. The longest rollout stays, so
sampling ends. Each slot has a row of a page table, as JAX's kernels for TPUs
take it.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from isojax.models import decoder
from isojax.runtime import mesh as mesh_lib
from isojax.sampling.sizes import smallest
from isojax.types import Candidates

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


def compacted(active_R, G: int, R: int) -> tuple[np.ndarray, np.ndarray]:
  """The R slots that remain, active ones first.

  Returns:
    Their old indices: [G, R / G] within a block, and [R] over all blocks.
  """
  active_GxR = active_R.reshape(G, -1)
  take_GxR = np.argsort(~active_GxR, axis=1, kind="stable")[:, :R // G]
  first_Gx1 = np.arange(G)[:, None] * active_GxR.shape[1]
  return take_GxR, (first_Gx1 + take_GxR).reshape(-1)


class Contiguous:
  """Rows of one length, which grows with the longest active rollout.

  Attributes:
    kv: the cache on the devices.
    window: cache of the sequences that were prefilled last.
  """

  def __init__(self, sampler, R: int):
    """An empty cache of R slots for the engine's Sampler."""
    self.sampler, self.R = sampler, R
    self.kv, self.window = sampler.empty(R, sampler.sizes.lengths[0]), None
    # For each block: its slots to fill, and the places of their sequences.
    self._pending = []

  def reserve(self, active_R, position_R, count_R) -> list[int]:
    """Reserves space for the next chunk of the active slots.

    Args:
      active_R, position_R, count_R: see types.Rows.

    Returns:
      The slots that lost their space, because there is not enough for all.
    """
    del active_R, position_R, count_R
    return []

  def allocate(self, candidates: list[Candidates]) -> list[int]:
    """Reserves space for rollouts that take slots, until `insert`.

    Args:
      candidates: of each block.

    Returns:
      How many of each block's candidates, the first ones, get space.
    """
    self._pending = [(block.row_F - g * (self.R // self.sampler.G),
                      block.place_F) for g, block in enumerate(candidates)]
    return [len(block.row_F) for block in candidates]

  def fit(self, R: int, active_R, position_R) -> np.ndarray | None:
    """Keeps R slots, and makes the cache long enough for the next chunk.

    The keys or values of a layer are freed before the next are copied, so the
    peak is the new cache and one old array.

    Args:
      R: slots, at least the active ones of each block.
      active_R, position_R: see types.Rows, with the rollouts of `allocate`.

    Returns:
      The old index of each slot that remains, [R]; None: all as they are.
    """
    sizes, length = self.sampler.sizes, self.kv.v[0].shape[2]
    longest = int(position_R[active_R].max(initial=0))
    L = max(length, smallest(
        sizes.lengths, min(longest + sizes.chunk, sizes.lengths[-1])))
    if (R, L) == (self.R, length):
      return None
    take_GxR, old_R = compacted(active_R, self.sampler.G, R)
    take, self.R = self.sampler.place(take_GxR), R
    k, v = list(self.kv.k), list(self.kv.v)
    self.kv = None  # so that each old array is freed after its copy
    for axis, layers in ((3, k), (2, v)):
      for i in range(len(layers)):
        layers[i] = self.sampler.resize(layers[i], take, L, axis)
    self.kv = decoder.KVCache(tuple(k), tuple(v))
    return old_R

  def insert(self) -> None:
    """Copies sequences of the window to the slots of `allocate`.

    `fit` has not moved these: they were the lowest free slots of their block,
    so all slots below them are active, and `compacted` is stable.
    """
    # A program copies an eighth of a block's slots, or all. Rows beyond the
    # last are padding.
    per_block = self.R // self.sampler.G
    F = smallest((0, -(-per_block // 8), per_block),
                 max((len(rows) for rows, _ in self._pending), default=0))
    row_GxF = np.full((self.sampler.G, F), per_block, np.int32)
    place_GxF = np.zeros((self.sampler.G, F), np.int32)
    for g, (rows, places) in enumerate(self._pending):
      row_GxF[g, :len(rows)], place_GxF[g, :len(rows)] = rows, places
    self._pending = []
    if F:
      self.kv = self.sampler.insert(
          self.kv, self.window, *self.sampler.place((row_GxF, place_GxF)))

  def decode_arguments(self) -> dict:
    """Further arguments of decode."""
    return {}


class Paged:
  """Pools of pages, and a page table: the pages of each slot, by position.

  Free slots have no pages: their entries of the table are beyond the last page,
  where nothing is written. Methods are those of `Contiguous`.
  """

  def __init__(self, sampler, R: int):
    G, pages, page = sampler.G, sampler.pages, sampler.page
    self.sampler, self.page, self.pages = sampler, page, pages
    self.kv, self.window = sampler.empty(G * pages, page), None
    self.table_RxM = np.full(
        (R, self._pages_for(sampler.sizes.longest)), pages, np.int32)
    self.pages_R = np.zeros(R, np.int64)  # number of pages of a slot
    self.shared_R = np.zeros(R, np.int64)  # of these, full pages of its prompt
    self.problem_R = np.zeros(R, np.int64)
    self.free = [list(range(pages))[::-1] for _ in range(G)]
    # For each block: problem -> slots that share the pages of its prompt.
    self.readers = [{} for _ in range(G)]
    # For each block: (place in the window, part of the sequence, page to fill).
    self.pending_copies = [[] for _ in range(G)]

  @property
  def _per_block(self) -> int:
    return len(self.pages_R) // self.sampler.G

  def _pages_for(self, positions):
    return -(-positions // self.page)

  def _needed(self, stored):
    """Pages of a slot, with `stored` positions now, after the next chunk."""
    sizes = self.sampler.sizes
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

  def reserve(self, active_R, position_R, count_R) -> list[int]:
    """Frees the pages of ended slots, and gives active slots further ones.

    Slots with the fewest new tokens lose their pages if these do not suffice.
    """
    evicted = []
    for row in np.flatnonzero(~active_R & (self.pages_R > 0)):
      self.release(row // self._per_block, row)
    for g, active in enumerate(active_R.reshape(self.sampler.G, -1)):
      rows = g * self._per_block + np.flatnonzero(active)
      rows = rows[np.argsort(-count_R[rows], kind="stable")]
      more = np.maximum(
          0, self._needed(position_R[rows]) - self.pages_R[rows])
      while more.sum() > len(self.free[g]):
        self.release(g, rows[-1])
        evicted.append(int(rows[-1]))
        rows, more = rows[:-1], more[:-1]
      for row, count in zip(rows, more, strict=True):
        self._append(g, row, count)
    return evicted

  def allocate(self, candidates: list[Candidates]) -> list[int]:
    return [self._allocate(g, block) for g, block in enumerate(candidates)]

  def _allocate(self, g: int, block: Candidates) -> int:
    """Gives pages to the first candidates of block g; returns how many."""
    for i, (row, place, length, problem, prompt) in enumerate(
        zip(*map(np.ndarray.tolist, block), strict=True)):
      stored = length - 1  # positions of its sequence
      shared = (prompt - 1) // self.page
      readers = self.readers[g].get(problem, [])
      present = shared if readers else 0
      count = self._needed(stored) - present
      used = np.count_nonzero(self.pages_R.reshape(self.sampler.G, -1)[g])
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
    return len(block.row_F)

  def fit(self, R: int, active_R, position_R) -> np.ndarray | None:
    """Keeps R slots; each has as many pages as `reserve` gave it."""
    del position_R
    if R == len(self.pages_R):
      return None
    _, old_R = compacted(active_R, self.sampler.G, R)
    new_row = {int(row): i for i, row in enumerate(old_R)}
    for name in ("table_RxM", "pages_R", "shared_R", "problem_R"):
      setattr(self, name, getattr(self, name)[old_R])
    self.readers = [{problem: [new_row[row] for row in readers]
                     for problem, readers in block.items()}
                    for block in self.readers]
    return old_R

  def insert(self) -> None:
    """Fills the pages that `allocate` has listed."""
    F = self._per_block  # pages of a block in one call
    while any(self.pending_copies):
      fill_GxFx3 = np.zeros((len(self.pending_copies), F, 3), np.int32)
      fill_GxFx3[..., 2] = self.pages  # beyond the last page: padding
      for g, copies in enumerate(self.pending_copies):
        if copies:
          fill_GxFx3[g, :len(copies[:F])] = copies[:F]
      self.pending_copies = [copies[F:] for copies in self.pending_copies]
      self.kv = self.sampler.insert(
          self.kv, self.window,
          *self.sampler.place(tuple(np.moveaxis(fill_GxFx3, 2, 0))))

  def decode_arguments(self) -> dict:
    """The page table, with as many columns as the longest sequence needs."""
    lengths = self.sampler.sizes.lengths
    L = smallest(lengths, min(
        int(self.pages_R.max()) * self.page, lengths[-1]))
    return dict(table=self.sampler.place(
        self.table_RxM[:, :self._pages_for(L)]))
