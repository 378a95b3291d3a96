"""How many slots, pages and tokens the sampler's programs have, without jax.

While rollouts wait, all slots are decoded. When the queue is empty, active
slots become fewer, and the sampler goes on with the smallest program that
contains them. A pool of pages is read in parts that grow with the pages in use.
"""

import dataclasses
import math

from isojax.errors import InputError

FEW = 16  # slots of a row shard; on accelerators fewer are no faster
LEAST = 4  # slots of a row shard, with SHRINK "fine"
# Sizes: all slots, then a half, a quarter and an eighth; or three quarters, a
# half, three eighths ... to LEAST. The second leaves fewer slots idle, and
# compiles up to three times as many programs.
SHRINK = ("halves", "fine")
SHARED = 1 / 8  # part of a pool of pages that may have several readers
ROLLOUTS = 16  # of a problem, which share the pages of its prompt; assumed
ARENA = 32  # pages; a smaller arena saves less than its program costs


def chunk(max_response: int) -> int:
  """Returns the tokens decoded between two checks for slots that have ended.

  A finished slot idles for half a chunk on average: at a mean length of T / 8
  an eighth of its time.
  """
  return min(max_response, max(4, min(64, max_response // 32)))


def halves(size: int, unit: int, times: int, least: int) -> tuple[int, ...]:
  """Returns size, size / 2, ... after up to `times` halvings, ascending.

  All are multiples of `unit`; none but the first is below `least` units.
  """
  each = [-(-size // (2**i * unit)) for i in range(times + 1)]
  return tuple(sorted({unit * x for x in each if x >= min(least, each[0])}))


def row_sizes(slots: int, G: int, shrink: str) -> tuple[int, ...]:
  """Returns the slots of the sampler's programs, ascending.

  Args:
    slots: of all row shards; rounded up to a multiple of G.
    G: row shards.
    shrink: one of SHRINK.
  """
  if shrink == "halves":
    return halves(slots, G, 3, FEW)
  times = slots.bit_length()
  all_ = halves(slots, G, times, LEAST)
  return tuple(sorted({*all_, *(
      x for x in halves(-(-3 * slots // 4), G, times, LEAST)
      if x >= min(LEAST * G, all_[0]))}))


def shared(pages: int) -> int:
  """Returns how many pages of a pool may have several readers."""
  return math.ceil(pages * SHARED)


def offsets(pages: int) -> tuple[int, ...]:
  """Returns the first page of each arena of a pool, and the end of the last.

  The first arena has the pages that may be shared. A program reads it, or not,
  and an eighth, a quarter, a half or all of the others, if that is ARENA pages.
  """
  rest = pages - shared(pages)
  ends = halves(rest, 1, 3, ARENA)
  return 0, shared(pages), *(shared(pages) + end for end in ends[:-1]), pages


def check_shrink(shrink: str) -> None:
  """Raises InputError if this is not one of SHRINK."""
  if shrink not in SHRINK:
    raise InputError(f"sampler.shrink={shrink!r}: expected one of "
                     f"{', '.join(SHRINK)}")


@dataclasses.dataclass(frozen=True)
class Slots:
  """The sampler of a config, as far as prices depend on it."""

  G: int  # row shards
  shrink: str  # one of SHRINK
  chunk: int  # tokens of a call
  page: int | None  # positions; None: every slot has the longest length
  pages: int | None  # of a device's pool; None: no pages

  def sizes(self, rows: int) -> tuple[int, ...]:
    """Returns the slots of the programs if all row shards have `rows`."""
    return row_sizes(rows, self.G, self.shrink)
