"""Shapes of the sampler's programs: slots, lengths, prompts; loads no jax.

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
# With fewer slots on a row shard there is one program: a second one costs more
# time than it saves.
MIN_SLOTS = 32
STEP = 32  # tokens between two lengths, for the same reason
MAX_LENGTHS = 4  # of caches, and of padded prompts
LENGTH_UNIT = 16  # tokens; the longest cache has a multiple of them


def smallest(sizes: tuple[int, ...], needed: int) -> int:
  """The first of the ascending sizes that is at least `needed`."""
  return next(size for size in sizes if size >= needed)


def lengths_up_to(longest: int) -> tuple[int, ...]:
  """longest * i / MAX_LENGTHS for each i, rounded up to STEP or to longest."""
  return tuple(sorted({
      min(longest, -(-longest * i // (MAX_LENGTHS * STEP)) * STEP)
      for i in range(1, MAX_LENGTHS + 1)}))


def row_sizes(slots: int, G: int) -> tuple[int, ...]:
  """Slots of the sampler's programs, ascending: multiples of G row shards."""
  per_block = -(-slots // G)
  return tuple(sorted({G * math.ceil(per_block * share) for share in (
      SHARES if per_block >= MIN_SLOTS else SHARES[-1:])}))


class Sizes(typing.NamedTuple):
  """Shapes of the sampler's programs; each tuple is ascending."""

  chunk: int  # tokens that a slot decodes in a call
  max_new_tokens: int  # T
  longest: int  # positions of a rollout; its last token is not stored
  rows: tuple[int, ...]  # slots of a call, of all blocks
  lengths: tuple[int, ...]  # of the cache
  prompts: tuple[int, ...]  # lengths to which prompts are padded
  window: int  # prompts prefilled at once in a block

  @property
  def prefill_lengths(self) -> tuple[int, ...]:
    """Lengths of prompts, and of prompts with drawn tokens."""
    return self.prompts + tuple(
        L for L in self.lengths if L > self.prompts[-1])

  def at_once(self, L: int) -> int:
    """Sequences of length L that a block prefills at once, at least one.

    Together they have at most the tokens of a window of the longest prompts.
    """
    return min(self.window, max(1, self.window * self.prompts[-1] // L))


def program_sizes(slots: int, S: int, T: int, G: int, *, paged: bool) -> Sizes:
  """The sizes for prompts of at most S tokens, and at most T new tokens."""
  rows = row_sizes(slots, G)
  return Sizes(
      chunk=memory.decode_chunk(T), max_new_tokens=T, longest=S + T - 1,
      rows=rows, prompts=lengths_up_to(S),
      lengths=lengths_up_to(-(-(S + T - 1) // LENGTH_UNIT) * LENGTH_UNIT),
      window=memory.prefilled(rows[-1] // G, S, paged=paged))
