"""Decides on the host which pages of a pool each slot of the sampler reads.

Each block of the mesh has a pool of pages of its own. A page holds the keys and
values of `page` consecutive positions of a sequence, in all layers. A slot
takes pages as its sequence grows. A page is free when no slot reads it.

The rollouts of a problem share the full pages of its prompt, up to READERS
slots each copy. The page of the prompt's last token is not shared, because
decoding writes that token's keys and values.

This module needs no device: `sampler.stream` and the simulator both use it.
"""

import dataclasses
import typing

import numpy as np

from isojax.sampling import sizes as sizes_lib

# Slots that may read one page. Attention multiplies each page of the shared
# part with this many queries, whether the page has as many readers or not.
READERS = 8
# A rollout starts only if one page is left for this many slots of the block.
# Otherwise, the slots that grow would soon put the youngest back.
SLOTS_PER_SPARE_PAGE = 8


class _Copy(typing.NamedTuple):
  """The full pages of a prompt."""

  problem: int
  pages: tuple[int, ...]


@dataclasses.dataclass
class Table:
  """The pages of each slot; changed in place.

  Pages are numbered inside their block. The first `shared` pages may have
  READERS readers, the others have one. Slots are numbered over all blocks, and
  a block's slots are neighbours.
  """

  page: int  # positions of a page
  G: int  # blocks
  shared: int
  pages: int  # of a block
  sharing: bool  # whether prompts are shared
  page_RxM: np.ndarray  # the slot's pages, in the order of positions
  count_R: np.ndarray  # pages that a slot has: the first of a line are valid
  refs_GxP: np.ndarray  # slots that read each page
  copies: list[list[_Copy]]  # of each block, those that are read
  copy_R: list[_Copy | None]  # that each slot reads

  @property
  def block_slots(self) -> int:
    return len(self.count_R) // self.G

  @property
  def free_G(self) -> np.ndarray:
    return (self.refs_GxP == 0).sum(axis=1)

  @property
  def used(self) -> int:
    """Pages that are read, of all blocks."""
    return int((self.refs_GxP > 0).sum())


def count(positions, page: int):
  """Returns the pages of that many positions; numbers or arrays."""
  return -(-positions // page)


def start(*, G: int, R: int, page: int, pages: int, longest: int,
          sharing: bool) -> Table:
  """Returns a table of free pages.

  Args:
    G: blocks.
    R: slots of all blocks.
    page: positions of a page.
    pages: of a block; at least those of the longest sequence.
    longest: positions of a sequence, at most.
    sharing: whether prompts are shared; without, they are copied.
  """
  M = count(longest, page)
  if pages < M:
    raise ValueError(f"{pages} pages of {page} positions cannot hold a "
                     f"sequence of {longest}, which needs {M}")
  return Table(
      page=page, G=G, shared=sizes_lib.shared(pages), pages=pages, sharing=sharing,
      page_RxM=np.zeros((R, M), np.int32),
      count_R=np.zeros(R, np.int64), refs_GxP=np.zeros((G, pages), np.int64),
      copies=[[] for _ in range(G)], copy_R=[None] * R)


def _free(t: Table, g: int, wanted: int) -> np.ndarray:
  """Returns up to `wanted` free pages of a block for one reader.

  The lowest ones with one reader come first, so that the pages in use stay
  close together. Pages that may be shared come last.
  """
  free = np.flatnonzero(t.refs_GxP[g] == 0)
  split = np.searchsorted(free, t.shared)
  return np.concatenate([free[split:], free[:split][::-1]])[:wanted]


def _append(t: Table, row: int, pages) -> None:
  begin = t.count_R[row]
  t.page_RxM[row, begin:begin + len(pages)] = pages
  t.count_R[row] += len(pages)
  t.refs_GxP[row // t.block_slots, pages] += 1


def give(t: Table, row: int, *, problem: int, prompt: int, known: int,
         length: int) -> list[tuple[int, int]] | None:
  """Gives a slot without pages those of a sequence, if there are enough.

  Args:
    t: the table.
    row: the slot.
    problem: whose prompt the sequence begins with.
    prompt: tokens of the prompt.
    known: tokens of the sequence so far, whose keys and values exist.
    length: positions that the sequence needs, at least `known`.

  Returns:
    (m, page) for each page that must be filled with positions m * t.page and
    further; None if there are not enough pages, and nothing has changed.
  """
  g = row // t.block_slots
  full = (prompt - 1) // t.page if t.sharing else 0
  copy = next((each for each in t.copies[g] if each.problem == problem
               and t.refs_GxP[g, each.pages[0]] < READERS), None)
  there = 0
  if copy is not None:
    there = full
  elif full:
    free = np.flatnonzero(t.refs_GxP[g, :t.shared] == 0)
    if len(free) >= full:
      copy = _Copy(problem, tuple(free[:full].tolist()))
  prefix = copy.pages if copy else ()
  t.refs_GxP[g, list(prefix)] += 1  # not free for the rest of the sequence
  rest = int(count(length, t.page)) - len(prefix)
  own = _free(t, g, rest)
  t.refs_GxP[g, list(prefix)] -= 1
  slots = slice(g * t.block_slots, (g + 1) * t.block_slots)
  active = int((t.count_R[slots] > 0).sum())
  left = t.free_G[g] - rest - (len(prefix) - there)
  if len(own) < rest or active and left < active // SLOTS_PER_SPARE_PAGE:
    return None
  _append(t, row, [*prefix, *own])
  t.copy_R[row] = copy
  if copy and not there:
    t.copies[g].append(copy)
  return [(m, int(t.page_RxM[row, m]))
          for m in range(there, int(count(known, t.page)))]


def release(t: Table, row: int) -> None:
  """Takes all pages from a slot; those that nobody reads are free."""
  g, copy = row // t.block_slots, t.copy_R[row]
  t.refs_GxP[g, t.page_RxM[row, :t.count_R[row]]] -= 1
  t.count_R[row], t.copy_R[row] = 0, None
  if copy and not t.refs_GxP[g, copy.pages[0]]:
    t.copies[g].remove(copy)


def grow(t: Table, rows, length_R, drawn_R) -> list[int]:
  """Gives slots the pages of their next positions.

  If a block has too few pages, its youngest slots lose theirs: those with the
  fewest tokens drawn, and of equal ones the last.

  Args:
    t: the table.
    rows: the slots that have pages.
    length_R: positions that each of them needs.
    drawn_R: tokens that each of them has drawn.

  Returns:
    The slots that lost their pages. Their rollouts have to start again.
  """
  rows, length_R = np.asarray(rows), np.asarray(length_R)
  needs = np.maximum(0, count(length_R, t.page) - t.count_R[rows])
  lost = []
  for g in range(t.G):
    mine = np.flatnonzero(rows // t.block_slots == g)
    if not needs[mine].any():
      continue
    mine = mine[np.argsort(-np.asarray(drawn_R)[mine], kind="stable")]
    while needs[mine].sum() > t.free_G[g]:
      release(t, int(rows[mine[-1]]))
      lost.append(int(rows[mine[-1]]))
      mine = mine[:-1]
    for i in mine[needs[mine] > 0]:
      _append(t, int(rows[i]), _free(t, g, int(needs[i])))
  return lost


def keep(t: Table, take_GxR) -> None:
  """Keeps slots take_GxR[g] of each block; the others have no pages."""
  index = (take_GxR + np.arange(t.G)[:, None] * t.block_slots).reshape(-1)
  assert t.count_R.sum() == t.count_R[index].sum()
  t.page_RxM, t.count_R = t.page_RxM[index], t.count_R[index]
  t.copy_R = [t.copy_R[i] for i in index]


def extent(t: Table) -> tuple[bool, int]:
  """Returns what the pages in use span.

  Returns:
    Whether a page of the shared part is in use; and the end of the pages in
    use behind it, counted from its end, in the block where it is largest.
  """
  used_P = (t.refs_GxP > 0).any(axis=0)
  own = np.flatnonzero(used_P[t.shared:])
  return bool(used_P[:t.shared].any()), int(own[-1]) + 1 if len(own) else 0


def pack(t: Table) -> tuple[np.ndarray, np.ndarray]:
  """Moves pages with one reader to the lowest free ones behind the shared part.

  Returns:
    source, target [G, F]: pages to copy; those equal to t.pages are padding.
  """
  moves = []
  for g, used_P in enumerate(t.refs_GxP[:, t.shared:] > 0):
    end = int(used_P.sum())
    target = np.flatnonzero(~used_P[:end]) + t.shared
    source = np.flatnonzero(used_P[end:]) + end + t.shared
    name = np.arange(t.pages + 1)
    name[source] = target
    slots = slice(g * t.block_slots, (g + 1) * t.block_slots)
    t.page_RxM[slots] = name[t.page_RxM[slots]]
    t.refs_GxP[g, target], t.refs_GxP[g, source] = 1, 0
    moves.append((source, target))
  F = max(len(source) for source, _ in moves)
  source_GxF, target_GxF = np.full((2, t.G, F), t.pages, np.int32)
  for g, (source, target) in enumerate(moves):
    source_GxF[g, :len(source)], target_GxF[g, :len(target)] = source, target
  return source_GxF, target_GxF


def readers(t: Table) -> tuple[np.ndarray, np.ndarray]:
  """Returns the slots that read each page, and where the page begins.

  Returns:
    [G, P, READERS] slots inside their block, of which only the first may be
    there behind the shared part; the number of a block's slots: none. And the
    position of each page's first slot, [G, P]; 0 of free pages.
  """
  row, m = np.nonzero(np.arange(t.page_RxM.shape[1]) < t.count_R[:, None])
  at = row // t.block_slots * t.pages + t.page_RxM[row, m]
  order = np.argsort(at, kind="stable")
  at = at[order]
  # The rank of each reader among those of its page.
  rank = np.arange(len(at)) - np.searchsorted(at, at)
  reader = np.full((t.G * t.pages, READERS), t.block_slots, np.int32)
  reader[at, rank] = row[order] % t.block_slots
  begin = np.zeros(t.G * t.pages, np.int32)
  begin[at] = m[order] * t.page
  return (reader.reshape(t.G, t.pages, READERS),
          begin.reshape(t.G, t.pages))
