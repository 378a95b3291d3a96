"""Shapes of the sampler's programs: slots, lengths, prefilled prompts; no jax.

isojax/core/memory.py has the memory of the programs. A block is the part of a
batch on one of G row shards.
"""

import math
import typing

from isojax.core import memory

# Slots of the sampler's programs, as shares of config.sampler.slots. When no
# rollout waits, a program of fewer slots has fewer idle ones. For the skewed
# lengths of launch.bench and 48 slots, 84 % of the decoded slots are useful;
# with the shares 1/2 and 1 alone, 63 %.
SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
# Slots of a row shard. Below, another program costs more time than it saves.
MIN_SLOTS = 32
# Tokens between two lengths. With a smaller step, another program costs more
# time than it saves.
STEP = 32
PARTS = 4  # most lengths of caches, and of prompts
LENGTH_UNIT = 16  # of the longest cache


def smallest(sizes: tuple[int, ...], needed: int) -> int:
  """The first of the ascending sizes that is at least `needed`."""
  return next(size for size in sizes if size >= needed)


def shares(parts: int, size: int, unit: int) -> tuple[int, ...]:
  """size * i / parts for i = 1 .. parts, rounded up to `unit`, at most size."""
  return tuple(sorted({
      min(size, -(-size * i // (parts * unit)) * unit)
      for i in range(1, parts + 1)}))


def row_sizes(slots: int, G: int) -> tuple[int, ...]:
  """Slots of the sampler's programs, ascending: multiples of G row shards."""
  most = -(-slots // G)
  return tuple(sorted({G * math.ceil(most * share) for share in (
      SHARES if most >= MIN_SLOTS else SHARES[-1:])}))


class Sizes(typing.NamedTuple):
  """Shapes of the sampler's programs, ascending; slots of all blocks together.
  """

  chunk: int  # tokens of a call
  max_new_tokens: int  # T
  longest: int  # positions of a sequence; its last token is not stored
  rows: tuple[int, ...]  # slots of a call
  lengths: tuple[int, ...]  # of the cache
  prompts: tuple[int, ...]  # lengths to which prompts are padded
  window: int  # prompts prefilled at once in a block

  @property
  def sequences(self) -> tuple[int, ...]:
    """Lengths that are prefilled: of prompts, with or without drawn tokens."""
    return self.prompts + tuple(
        L for L in self.lengths if L > self.prompts[-1])

  def at_once(self, L: int) -> int:
    """Sequences of length L that a block prefills at once, at least one.

    Together they have at most the tokens of a window of the longest prompts.
    """
    return min(self.window, max(1, self.window * self.prompts[-1] // L))


def program_sizes(slots: int, S: int, T: int, G: int, *, paged: bool) -> Sizes:
  """The sizes for prompts of S tokens, T new tokens and G blocks."""
  rows = row_sizes(slots, G)
  return Sizes(
      chunk=memory.decode_chunk(T), max_new_tokens=T, longest=S + T - 1,
      rows=rows,
      lengths=shares(PARTS, -(-(S + T - 1) // LENGTH_UNIT) * LENGTH_UNIT,
                     STEP),
      prompts=shares(PARTS, S, STEP),
      window=memory.prefilled(rows[-1] // G, S, paged=paged))
