"""The sampler's loop over a paged cache: which calls are made before a chunk.

`refill` does for pages what `sampler._refill` does for a cache with the same
length in each slot: slots take pages as their sequences grow, and free slots
take rollouts as far as there are pages for them. If a pool is exhausted, its
youngest slots are put back into the queue. Their tokens are kept, and prompt
and tokens are prefilled again when a slot and pages are free.
"""

import dataclasses
import functools
import typing

import numpy as np

from isojax.models import decoder
from isojax.sampling import sizes as sizes_lib
from isojax.sampling import paged_cache
from isojax.sampling import pages as pages_lib
from isojax.sampling import prefill as prefill_lib
from isojax.sampling import queue as queue_lib
from isojax.types import Prompts


class Pool(typing.NamedTuple):
  """The sizes of a paged cache, and the calls that change it.

  The devices' arguments are those of paged_cache.
  """

  page: int  # positions of a page
  pages: int  # of a block
  longest: int  # positions of a sequence, at most
  insert: typing.Callable
  move: typing.Callable


@dataclasses.dataclass
class Held:
  """Caches on the devices, and what is known about them on the host."""

  table: pages_lib.Table
  offsets: tuple[int, ...]  # see sizes.offsets
  arenas: dict[int, decoder.KVCache]  # by arena, those that exist
  window: decoder.KVCache | None  # of the prompts prefilled last
  put_back_B: np.ndarray  # int32, times that each rollout was put back


def start(s, q: queue_lib.Queue) -> Held:
  """Returns a pool of which no page is in use, and no arena exists."""
  pool, R = s.pool, len(q.item_R)
  return Held(
      pages_lib.start(G=q.G, R=R, page=pool.page, pages=pool.pages,
                      longest=pool.longest, sharing=q.n > 1),
      sizes_lib.offsets(pool.pages), {}, None, np.zeros(len(q.out.len_R), np.int32))


def _span(held: Held) -> tuple[int, ...]:
  """Returns the arenas that a program gets, in order."""
  return tuple(sorted(held.arenas))


def _of(held: Held) -> dict:
  """Returns the keyword `offsets` of inserting and moving pages."""
  return dict(offsets=tuple(held.offsets[a] for a in _span(held)))


def _pool(held: Held) -> paged_cache.Pool:
  return tuple(held.arenas[a] for a in _span(held))


def _changed(held: Held, arenas: paged_cache.Pool) -> None:
  held.arenas = dict(zip(_span(held), arenas, strict=True))


def _last(held: Held, end: int) -> int:
  """Returns the last arena of the first `end` pages with one reader."""
  shared = held.offsets[1]
  return next(a for a in range(len(held.offsets) - 1)
              if held.offsets[a + 1] >= shared + end)


def _widen(s, held: Held) -> None:
  """Creates the arenas of the pages in use."""
  shared, end = pages_lib.extent(held.table)
  needed = {0} if shared else set()
  for a in sorted({*needed, *range(1, _last(held, end) + 1)} - {*held.arenas}):
    size = held.offsets[a + 1] - held.offsets[a]
    held.arenas[a] = s.empty(held.table.G * size, held.table.page)


def _narrow(s, held: Held, active: int) -> None:
  """Drops arenas if all pages fit into fewer, and the next one of each slot."""
  t = held.table
  used = int((t.refs_GxP[:, t.shared:] > 0).sum(axis=1).max())
  last = _last(held, min(used + active, t.pages - t.shared))
  if last >= max(held.arenas, default=0):
    return
  source_GxF, target_GxF = pages_lib.pack(t)
  for part in _parts(source_GxF.shape[1], t.block_slots):
    _changed(held, s.pool.move(_pool(held), *s.place(
        (_cut(source_GxF, part, t.pages), _cut(target_GxF, part, t.pages))),
                               **_of(held)))
  for a in [a for a in held.arenas if a > last]:
    del held.arenas[a]


def _parts(count: int, most: int) -> list[tuple[int, int, int]]:
  """Cuts 0 .. count into (begin, end, size); size is most / 8, or most."""
  sizes = tuple(sorted({-(-most // 8), most}))
  return [(begin, min(begin + most, count),
           queue_lib.smallest(sizes, min(most, count - begin)))
          for begin in range(0, count, most)]


def _cut(x_GxF, part: tuple[int, int, int], fill: int) -> np.ndarray:
  """Returns columns begin .. end of x, padded to a size."""
  begin, end, size = part
  out = np.full((len(x_GxF), size), fill, np.int32)
  out[:, :end - begin] = x_GxF[:, begin:end]
  return out


def _insert(s, held: Held, given: list[list]) -> None:
  """Fills pages from the window.

  Args:
    s: the sampler.
    held: pool and window.
    given: for each block (window's slot, which page of the sequence, page).
  """
  _widen(s, held)
  F, t = max(map(len, given)), held.table
  fill_GxFx3 = np.zeros((len(given), F, 3), np.int32)
  fill_GxFx3[..., 2] = t.pages
  for g, each in enumerate(given):
    if each:
      fill_GxFx3[g, :len(each)] = each
  for part in _parts(F, t.block_slots):
    _changed(held, s.pool.insert(_pool(held), held.window, *s.place(tuple(
        _cut(fill_GxFx3[..., i], part, t.pages * (i == 2)) for i in range(3))),
                                 **_of(held)))


def _needed(s, position):
  """Returns the positions of sequences after the next chunk."""
  return np.minimum(position + s.chunk, s.pool.longest)


def _put_back(s, q: queue_lib.Queue, held: Held) -> None:
  """Gives active slots pages for a chunk; puts those back that get none."""
  rows = np.flatnonzero(q.row.active_R)
  lost = pages_lib.grow(held.table, rows, _needed(s, q.row.position_R[rows]),
                        q.row.count_R[rows])
  q.row.active_R[lost] = False
  q.again.extend(q.item_R[lost].tolist())
  held.put_back_B[q.item_R[lost]] += 1


def _again(s, q: queue_lib.Queue, params, held: Held) -> None:
  """Continues rollouts that were put back, those with the most tokens first."""
  q.again.sort(key=lambda item: -q.out.len_R[item])
  blocks = [[] for _ in range(q.G)]  # (row, item, its pages to fill)
  R_b = held.table.block_slots
  while q.again:
    item = q.again[0]
    problem, known = item // q.n, queue_lib.known(q, item) - 1
    free_G = np.where(q.free_G > 0, held.table.free_G, -1)
    g = int(free_G.argmax())
    if free_G[g] < 0:
      break
    row = g * R_b + int(np.flatnonzero(
        ~q.row.active_R[g * R_b:(g + 1) * R_b])[0])
    fill = pages_lib.give(
        held.table, row, problem=problem, prompt=int(q.prompts.len_P[problem]),
        known=known, length=int(_needed(s, known)))
    if fill is None:
      break
    queue_lib.hold_again(q, row, item, s.interrupt)
    blocks[g].append((item, fill))
    q.again.pop(0)
  while any(blocks):
    blocks = _read(s, q, params, held, blocks)


def _read(s, q: queue_lib.Queue, params, held: Held, blocks: list) -> list:
  """Prefills the next sequences of each block; returns those that are left."""
  longest = max(queue_lib.known(q, item) for block in blocks
                for item, _ in block)
  L = queue_lib.smallest(
      tuple(sorted({*s.prompt_sizes, *s.length_sizes})), longest)
  W = prefill_lib.sequences_at_once(s.window, s.prompt_sizes[-1], L)
  tokens = np.zeros((q.G * W, L), np.int32)
  length = np.ones(q.G * W, np.int32)
  given = [[] for _ in blocks]
  for g, block in enumerate(blocks):
    for slot, (item, fill) in enumerate(block[:W]):
      x = queue_lib.sequence(q, item)
      tokens[g * W + slot, :len(x)], length[g * W + slot] = x, len(x)
      given[g].extend((slot, *each) for each in fill)
  held.window = None  # freed before the next is made
  held.window = s.reread(params, s.place(
      Prompts(tokens, length, np.zeros(q.G * W, np.uint32))))
  _insert(s, held, given)
  held.window = None  # the prompts of waiting rollouts are not in it
  queue_lib.forget_window(q)
  return [block[W:] for block in blocks]


def _take(s, q: queue_lib.Queue, held: Held, given, g: int, rows, problems,
          slots) -> int:
  """Gives slots pages for new rollouts; returns how many of them got theirs."""
  for count, (row, problem, slot) in enumerate(zip(rows, problems, slots)):
    prompt = int(q.prompts.len_P[problem])
    fill = None if q.again else pages_lib.give(
        held.table, int(row), problem=int(problem), prompt=prompt,
        known=prompt - 1, length=int(_needed(s, prompt - 1)))
    if fill is None:
      return count
    given[g].extend((slot, *each) for each in fill)
  return len(rows)


def refill(s, q: queue_lib.Queue, params, held: Held) -> None:
  """Gives slots pages for the next chunk, and free slots what waits."""
  t = held.table
  for row in np.flatnonzero(~q.row.active_R & (t.count_R > 0)):
    pages_lib.release(t, int(row))
  q.refused_G[:] = False
  _put_back(s, q, held)
  _again(s, q, params, held)
  while True:
    given = [[] for _ in range(q.G)]
    queue_lib.fill(q, functools.partial(_take, s, q, held, given))
    if any(given):
      _insert(s, held, given)
    if q.again or not q.starving:
      break
    held.window = None  # freed before the next is made
    held.window = s.prefill(params, s.place(
        prefill_lib.shortened(s.prompt_sizes, queue_lib.move_window(q))))
  _widen(s, held)
  if not q.waiting:
    R = queue_lib.smallest(s.row_sizes, q.most_active * q.G)
    if R < len(q.item_R):
      pages_lib.keep(t, queue_lib.compact(q, R))
    _narrow(s, held, q.most_active)


def pages_of(s, held: Held) -> paged_cache.Pages:
  """Returns the pages that a decode call reads and writes, on the devices."""
  reader_GxPxQ, begin_GxP = pages_lib.readers(held.table)
  readers, begins = [], []
  for a in _span(held):
    of = slice(held.offsets[a], held.offsets[a + 1])
    # Behind the shared part a page has one reader.
    readers.append(reader_GxPxQ[:, of, :1 if a else None].reshape(
        -1, 1 if a else pages_lib.READERS))
    begins.append(begin_GxP[:, of].reshape(-1))
  return s.place(paged_cache.Pages(tuple(readers), tuple(begins)))


def decode(s, q: queue_lib.Queue, params, held: Held, *more, kind: str):
  """Decodes a chunk; returns the state of the slots and what they drew."""
  arenas, *after = s.decode(params, _pool(held), s.place(q.row), *more,
                            kind=kind, pages=pages_of(s, held))
  _changed(held, arenas)
  return after
