"""Replays the sampler with given lengths and given costs, without a model.

The loop, the queue and the table of pages are those of `sampler.stream`. Only
the calls that run on devices are replaced: they add up what they would cost,
and end each rollout at its given length.
"""

import dataclasses
import typing

import numpy as np

from isojax.models import decoder
from isojax.planner.cost.calls import Calls
from isojax.sampling import paged
from isojax.sampling import sampler as sampler_lib
from isojax.types import Drawn
from isojax.types import Prompts
from isojax.types import Rows


CALLS = ("gather", "prefill", "reread", "insert", "move", "resize", "decode")


class Design(typing.NamedTuple):
  """A sampler."""

  name: str
  slots: int
  page: int | None  # positions of a page; None: slots have the longest length
  pages: int | None  # of a block's pool; None: no pages
  # Whether a token reads only the pages of its slot, as a kernel would do.
  # `sampler` reads the arenas of the pool that are in use. Not used without
  # pages.
  kernel: bool
  ordered: bool  # the longest expected problems are first
  chunk: int | None  # tokens; None: the sampler's
  # Whether a chunk starts before the last one is read: the devices do not wait
  # for the host, and a slot that has ended is refilled a chunk later. `sampler`
  # does not do this.
  ahead: bool


class Lengths(typing.NamedTuple):
  """Tokens of each rollout, of the prompts, and those that are expected."""

  new_PxN: np.ndarray
  prompt_P: np.ndarray
  expected_P: np.ndarray  # mean of other rollouts of the problem


def geometric(P: int, n: int, *, mean: float, most: int, rng) -> np.ndarray:
  """Returns lengths [P, n] that end with the same chance at each token."""
  return np.minimum(rng.geometric(1 / mean, (P, n)), most)


def lognormal(P: int, n: int, *, mean: float, sigma: float, shared: float,
              most: int, rng) -> np.ndarray:
  """Returns lengths [P, n] whose logarithm is normal.

  Args:
    mean: tokens, before the limit.
    sigma: standard deviation of the logarithm.
    shared: share of its variance that the rollouts of a problem have in common.
    most: tokens of a rollout, at most.
    rng: of numpy.
  """
  normal = (np.sqrt(shared) * rng.standard_normal((P, 1))
            + np.sqrt(1 - shared) * rng.standard_normal((P, n)))
  length = mean * np.exp(sigma * normal - sigma**2 / 2)
  return np.clip(np.ceil(length), 1, most).astype(np.int64)


def resampled(problems: list[list[int]], P: int, n: int, *, most: int,
              rng) -> np.ndarray:
  """Returns lengths [P, n] of problems and rollouts drawn with replacement."""
  drawn = [rng.choice(problems[i], n) for i in rng.integers(len(problems),
                                                            size=P)]
  return np.clip(np.stack(drawn), 1, most)


@dataclasses.dataclass
class Replay:
  """What the calls of a sampler add up to; its methods are those calls."""

  calls: Calls
  design: Design
  lengths: Lengths
  sizes: dict  # of sampler.sizes
  longest: int  # positions of a sequence
  seconds: dict  # of each call, summed
  counts: dict  # calls
  log: list  # (name, seconds) of each call; a resize is that of all layers
  begun_PxN: np.ndarray  # bool, rollouts that have started
  decoded: int = 0  # slots times tokens of the chunks
  tokens: int = 0  # of these, kept
  read: int = 0  # positions of keys and values, over all decoded tokens
  held: int = 0  # positions of the cache or of the pages in use, at most
  put_back: int = 0  # times that a rollout lost its slot
  tail: float = 0.0  # seconds after the last rollout has started
  hidden: float = 0.0  # seconds of the host since the last chunk, if ahead

  def _spend(self, name: str, seconds: float, rollouts: int = 0) -> None:
    host = rollouts * self.calls.overheads.rollout
    seconds += host
    if self.design.ahead and name != "gather":
      host += self.calls.overheads.call * (
          self.calls.shape.layers if name == "resize" else 1)
      self.hidden, seconds = self.hidden + host, seconds - host
      if name == "decode":
        seconds, self.hidden = max(seconds, self.hidden), 0.0
    self.seconds[name] += seconds
    self.counts[name] += 1
    self.log.append((name, seconds))
    if self.begun_PxN.all():
      self.tail += seconds

  def empty(self, R: int, L: int) -> decoder.KVCache:
    """Returns a cache of one layer that has a shape and no memory."""
    shape = lambda *sizes: np.broadcast_to(np.int8(0), sizes)
    return decoder.KVCache((shape(R, 1, 1, L),), (shape(R, 1, L, 1),))

  def prefill(self, params, prompts: Prompts) -> decoder.KVCache:
    return self._prefill("prefill", prompts)

  def reread(self, params, prompts: Prompts) -> decoder.KVCache:
    return self._prefill("reread", prompts)

  def _prefill(self, name: str, prompts: Prompts) -> decoder.KVCache:
    P, S = prompts.tokens_PxS.shape
    self._spend(name, self.calls.prefill(P, S))
    return self.empty(P, S)

  def insert(self, cache, window, row_GxF, slot_GxF, *, G: int):
    self._spend("insert", self.calls.copy(
        row_GxF.size * window.v[0].shape[2]))
    return cache

  def insert_pages(self, pool, window, slot_GxF, part_GxF, page_GxF, *,
                   offsets):
    return self._copied("insert", pool, page_GxF)

  def move(self, pool, source_GxF, target_GxF, *, offsets):
    return self._copied("move", pool, target_GxF)

  def _copied(self, name: str, pool, page_GxF):
    """Spends the time of copying pages; padding is not copied."""
    count = int((page_GxF < self.design.pages).sum())
    self._spend(name, self.calls.copy(count * self.design.page))
    return pool

  def resize(self, part, take_GxR, L: int, axis: int):
    before = part.shape[0] * part.shape[axis]
    shape = list(part.shape)
    shape[0], shape[axis] = take_GxR.size, L
    # One part of two, but each layer has a call of its own.
    self._spend("resize", self.calls.copy(
        max(before, take_GxR.size * L) // 2)
                + (self.calls.shape.layers - 1) * self.calls.overheads.call)
    return np.broadcast_to(np.int8(0), shape)

  def decode(self, params, cache, row: Rows, key, temperature, top_p, kind,
             pages=None):
    C, T = self.sizes["chunk"], self.lengths.new_PxN
    R = len(row.active_R)
    length_R = T[row.id_R, row.rollout_R]
    drawn_R = np.where(row.active_R, np.minimum(C, length_R - row.count_R), 0)
    active_R = row.active_R & (row.count_R + drawn_R < length_R)
    # If ahead, the host learns of an end with the chunk that follows it.
    told_R = active_R | (self.design.ahead & (drawn_R > 0))
    begun = self.begun_PxN.sum()
    self.begun_PxN[row.id_R[row.active_R], row.rollout_R[row.active_R]] = True
    read, held, written = (self._contiguous(cache) if pages is None else
                           self._paged(cache, row, pages))
    seconds = self.calls.decode(C, R, read / R) + self._flush(written)
    if pages is not None and not self.design.kernel:
      # Of a block, each row with each place for a reader.
      seconds += self.calls.join(C, R // self.sizes["G"] * sum(
          reader.size for reader in pages.readers))
    self._spend("decode", seconds, self.begun_PxN.sum() - begun)
    self.decoded += R * C
    self.tokens += int(drawn_R.sum())
    self.read += read * C
    self.held = max(self.held, held)
    after = row.replace(
        position_R=(row.position_R + drawn_R
                    - ((drawn_R > 0) & ~active_R)).astype(np.int32),
        count_R=(row.count_R + drawn_R).astype(np.int32), active_R=told_R)
    nothing = np.zeros((R, C), np.int32)
    return cache, after, Drawn(
        nothing, nothing.astype(np.float32), np.zeros(R, np.float32),
        row.active_R & ~active_R & (length_R < self.sizes["max_new_tokens"]))

  def _contiguous(self, cache) -> tuple[int, int, int]:
    """Returns positions: read for a token of each slot, held, and rewritten."""
    all_ = cache.v[0].shape[0] * cache.v[0].shape[2]
    return all_, all_, all_ if self.calls.buffered else 0

  def _paged(self, pool, row: Rows, pages) -> tuple[int, int, int]:
    """Returns positions as `_contiguous`; the chunk itself is read beside it.
    """
    page, C = self.design.page, self.sizes["chunk"]
    block = len(row.active_R) // self.sizes["G"]
    readers = [(reader < block).sum(axis=1) for reader in pages.readers]
    used = sum(int((count > 0).sum()) for count in readers)
    if self.design.kernel:
      # Pages up to the chunk's beginning, whatever is shared.
      seen = int((-(-row.position_R[row.active_R] // page)).sum())
    else:
      seen = sum(arena.v[0].shape[0] for arena in pool)
    # Writing a chunk reads and rewrites all pages of the arenas.
    all_ = sum(arena.v[0].shape[0] for arena in pool) * page
    return seen * page + len(row.active_R) * C // 2, used * page, all_

  def _flush(self, positions: int) -> float:
    """Returns the seconds in which a chunk is written to the cache."""
    if not positions:
      return 0.0
    return self.calls.copy(positions) - self.calls.overheads.call

  def sampler(self) -> sampler_lib.Sampler:
    pool = None if self.design.page is None else paged.Pool(
        page=self.design.page, pages=self.design.pages, longest=self.longest,
        insert=self.insert_pages, move=self.move)
    return sampler_lib.Sampler(
        mesh=None, **self.sizes, gathered=self.calls.whole, casts={},
        prepare=lambda params: params, place=lambda tree: tree,
        empty=self.empty, prefill=self.prefill, reread=self.reread,
        insert=self.insert, resize=self.resize, decode=self.decode,
        interrupt=None, pool=pool)


def replay(cfg: sampler_lib.SamplerConfig, lengths: Lengths, design: Design,
           calls: Calls) -> Replay:
  """Samples rollouts of these lengths once, and returns what it costs.

  Args:
    cfg: its sizes; slots and pages are those of the design.
    lengths: of prompts and rollouts, within the limits of cfg.
    design: of the sampler.
    calls: the costs.
  """
  P, n = lengths.new_PxN.shape
  sizes = sampler_lib.sizes(
      dataclasses.replace(cfg, slots=design.slots, page=design.page),
      calls.mesh.data * calls.mesh.fsdp)
  sizes["chunk"] = design.chunk or sizes["chunk"]
  out = Replay(calls, design, lengths, sizes,
               cfg.max_prompt_tokens + cfg.max_new_tokens - 1,
               dict.fromkeys(CALLS, 0.0), dict.fromkeys(CALLS, 0), [],
               np.zeros((P, n), bool))
  out._spend("gather", calls.gather)
  prompts = Prompts(
      np.zeros((P, cfg.max_prompt_tokens), np.int32),
      lengths.prompt_P.astype(np.int32), np.arange(P, dtype=np.uint32))
  rollouts = sampler_lib.sample_all(
      out.sampler(), None, prompts, n, None, temperature=1.0, top_p=1.0,
      expected_P=lengths.expected_P if design.ordered else None)
  out.put_back = rollouts.put_back
  return out
