"""How many slots the sampler's programs have, without jax.

While rollouts wait, all slots are decoded. When the queue is empty, active slots
become fewer, and the sampler goes on with the smallest program that contains
them.
"""

from isojax.errors import InputError

FEW = 16  # slots of a row shard; on accelerators fewer are no faster
LEAST = 4  # slots of a row shard, with SHRINK "fine"
# Sizes: all slots, then a half, a quarter and an eighth; or three quarters, a
# half, three eighths ... to LEAST. The second leaves fewer slots idle, and
# compiles up to three times as many programs.
SHRINK = ("halves", "fine")


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


def check_shrink(shrink: str) -> None:
  """Raises InputError if this is not one of SHRINK."""
  if shrink not in SHRINK:
    raise InputError(f"sampler.shrink={shrink!r}: expected one of "
                     f"{', '.join(SHRINK)}")
