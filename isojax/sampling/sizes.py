"""Sizes of the sampler's programs: slots, chunk, pages, prefilled prompts.

The trainer and the price model both take these sizes from here; no jax.
"""

import dataclasses
import math
import typing

from isojax.models.shape import BYTES, ModelShape

# Slots of the sampler's programs. The smaller ones leave fewer slots idle when
# nothing waits: 84 % of 48 slots are useful for the skewed lengths of
# launch.bench, and 63 % with 48 and 24 alone.
SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
# Slots of a row shard. With fewer, a program more costs more than it saves.
FEW = 32
STEP = 32  # tokens; a smaller step of length saves less than its program costs
# Tokens of a prefill beside a pool of pages: enough to keep the matrix units of
# a device busy.
PREFILL = 8192
# Float32 arrays of [slots, vocabulary] while a token is drawn with top_p < 1,
# as in an evaluation; fewer are needed without.
DRAWN = 8
# Assumed shares of the most tokens where no mean is given.
MEAN_RESPONSE, MEAN_PROMPT = 0.18, 1 / 8


def chunk(max_response: int) -> int:
  """Tokens decoded between two checks for slots that have ended.

  A finished slot idles for half a chunk on average: at a mean length of T / 8
  an eighth of its time.
  """
  return min(max_response, max(4, min(64, max_response // 32)))


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
      SHARES if most >= FEW else SHARES[-1:])}))


def prefilled(slots: int, max_prompt: int, *, paged: bool) -> int:
  """Prompts that are prefilled at once on a device: an eighth of the slots.

  Beside a pool of pages, whose slots are many, they have at most PREFILL
  tokens.
  """
  most = math.ceil(slots / 8)
  return min(most, max(1, PREFILL // max_prompt)) if paged else most


class Sizes(typing.NamedTuple):
  """Shapes of the sampler's programs, ascending; slots are of all blocks."""

  chunk: int  # tokens of a call
  max_new_tokens: int  # T
  longest: int  # positions of a sequence; its last token is not stored
  rows: tuple[int, ...]  # slots of a call
  lengths: tuple[int, ...]  # of the cache
  prompts: tuple[int, ...]  # prompt lengths that are prefilled
  window: int  # prompts prefilled at once in a block

  @property
  def sequences(self) -> tuple[int, ...]:
    """Lengths that are prefilled: of prompts, or with tokens behind them."""
    return self.prompts + tuple(
        L for L in self.lengths if L > self.prompts[-1])

  def at_once(self, L: int) -> int:
    """Sequences of length L that a block prefills at once.

    They have no more tokens than a window of the longest prompts, or are one.
    """
    return min(self.window, max(1, self.window * self.prompts[-1] // L))


def program_sizes(slots: int, S: int, T: int, G: int, *, paged: bool) -> Sizes:
  """The sizes for prompts of S tokens, T new ones, and G blocks."""
  rows = row_sizes(slots, G)
  return Sizes(
      chunk=chunk(T), max_new_tokens=T, longest=S + T - 1, rows=rows,
      lengths=shares(4, -(-(S + T - 1) // 16) * 16, STEP),
      prompts=shares(4, S, STEP),
      window=prefilled(rows[-1] // G, S, paged=paged))


def weight_bytes(shape: ModelShape, dtype: str, head: str) -> int:
  """Bytes of all weights while sampling, before they are sharded."""
  return BYTES[dtype] * shape.params + shape.head * (
      BYTES[head] - BYTES[dtype])


def largest(fits, most: int) -> int:
  """The largest whole number up to `most` that fits, or 0."""
  low, high = 0, most  # low fits or is 0, high + 1 does not or is too many
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


class Admitted(typing.NamedTuple):
  """What the memory of a device has space for."""

  slots: int
  pages: int | None  # of the pool; None: each slot has the longest length
  gathered: bool  # weights over fsdp, once instead of at every token


@dataclasses.dataclass(frozen=True)
class SamplerSizes:
  """What decides the bytes of a sampler on a device, except its slots."""

  shape: ModelShape
  dtype: str  # a key of BYTES
  head: str  # of the head's matrix; a tied embedding is stored once, in it
  max_prompt: int  # tokens
  max_response: int
  fused: bool  # prefill stores no scores
  fsdp: int = 1
  tensor: int = 1
  page: int | None = None  # positions; None: slots have the longest length
  expected: float | None = None  # mean new tokens; None: MEAN_RESPONSE

  @property
  def kv(self) -> float:
    """Bytes of a token's keys and values on a device."""
    return (self.shape.kv_bytes_per_token(BYTES[self.dtype])
            / min(self.tensor, self.shape.kv_heads))

  @property
  def chunk(self) -> int:
    return chunk(self.max_response)

  @property
  def longest(self) -> int:
    """Pages of the longest rollout, whose last token is not stored."""
    return -(-(self.max_prompt + self.max_response - 1) // self.page)

  @property
  def weight_bytes(self) -> int:
    return weight_bytes(self.shape, self.dtype, self.head)

  @property
  def drawing_bytes(self) -> float:
    """Bytes of the arrays of a slot from which a token is drawn."""
    return DRAWN * 4 * self.shape.vocab / self.tensor

  @property
  def prompt_bytes(self) -> float:
    """Bytes of a prompt that is prefilled, with one layer's activations."""
    s, S = self.shape, self.max_prompt
    return S * (self.kv + BYTES[self.dtype] * (
        4 * s.width + 3 * s.active * s.mlp / self.tensor)
                + 8 * s.heads / self.tensor * S * (not self.fused))

  @property
  def slot_bytes(self) -> float:
    """Bytes of a slot without pages.

    Its cache, and the cache's largest part again while it grows; float32
    scores; the arrays of drawing; an eighth of a prompt's prefill.
    """
    s, length = self.shape, self.max_prompt + self.max_response
    return (length * self.kv * (1 + 1 / (2 * s.layers))
            + 8 * s.heads / self.tensor * length
            + self.drawing_bytes + self.prompt_bytes / 8)

  @property
  def page_bytes(self) -> float:
    return self.page * self.kv

  @property
  def pages_of_slot(self) -> float:
    """Pages that a slot needs on average.

    If every free slot is refilled, the mean age of a slot is E[T^2] / 2 E[T],
    for log-normal lengths of sigma 0.8 about E[T]. A chunk is decoded next, and
    half a page is empty at both ends. Prompts are counted as if none shared its
    pages, which leaves room for long answers.
    """
    prompt, response = MEAN_PROMPT * self.max_prompt, self.expected
    if response is None:
      response = MEAN_RESPONSE * self.max_response
    return 1 + (prompt + response + self.chunk) / self.page

  def beside_pages(self, slots: int) -> float:
    """Bytes of slots beside a pool: drawing, and prompts of a prefill.

    While a token attends, the pages of one layer are gathered for each slot,
    and there are float32 scores and their softmax.
    """
    s = self.shape
    gathered = self.longest * self.page * (
        s.kv_bytes_per_token(BYTES[self.dtype]) / s.layers
        / min(self.tensor, s.kv_heads) + 2 * 4 * s.heads / self.tensor)
    return (slots * (self.drawing_bytes + gathered)
            + prefilled(slots, self.max_prompt, paged=True) * self.prompt_bytes)

  @property
  def least_bytes(self) -> float:
    """Bytes of a device that samples with one slot, of the longest rollout."""
    held = self.weight_bytes / self.tensor / self.fsdp
    if self.page is None:
      return held + self.slot_bytes
    return held + self.beside_pages(1) + self.longest * self.page_bytes

  def admitted(self, *, budget: float, most: int) -> Admitted:
    """Slots of a device, and the pages of its pool.

    Weights are gathered over fsdp once, instead of at every token, if all
    wanted slots still fit; with pages, of which any number may be wanted,
    unless that costs more than half of the slots. The pool has the memory that
    is left. Without space for the longest rollout no slot is admitted.

    Args:
      budget: bytes of a device for sampling.
      most: slots wanted on a device.
    """
    room = self._slots if self.page is None else self._paged
    whole = self.weight_bytes / self.tensor
    slots, pages = room(budget - whole, most)
    if self.fsdp == 1:
      return Admitted(slots, pages, True)
    more = room(budget - whole / self.fsdp, most)
    if slots == most or self.page is not None and 2 * slots >= more[0]:
      return Admitted(slots, pages, True)
    return Admitted(*more, False)

  def _slots(self, budget: float, most: int) -> tuple[int, None]:
    slots = max(0, min(most, int(budget // self.slot_bytes)))
    return self._shared(slots, most), None

  def _paged(self, budget: float, most: int) -> tuple[int, int]:
    def pages(slots):
      return min(int((budget - self.beside_pages(slots)) // self.page_bytes),
                 slots * self.longest)

    slots = self._shared(largest(
        lambda slots: pages(slots) >= max(self.longest, min(
            slots * self.longest, slots * self.pages_of_slot)), most), most)
    return slots, pages(slots)

  def _shared(self, slots: int, most: int) -> int:
    """Fewer slots than wanted are a multiple of `tensor`, whose devices share
    the drawing of tokens."""
    return slots if slots == most else (
        slots // self.tensor * self.tensor or slots)
