"""Replays the sampler with given lengths and given costs, without a model.

The loop and the queue are those of `sampler.stream`. Only the calls that run on
devices are replaced: they add up what they would cost, and end each rollout at
its given length. Designs that do not exist yet differ in what a decoded token
reads and what the cache holds, see `Design`.
"""

import dataclasses
import typing

import numpy as np

from isojax.models import decoder
from isojax.planner.cost.calls import Calls
from isojax.sampling import sampler as sampler_lib
from isojax.types import Drawn
from isojax.types import Prompts
from isojax.types import Rows


CALLS = ("gather", "prefill", "insert", "resize", "decode")


class Design(typing.NamedTuple):
  """A sampler; `sampler.py` has page=None and shrinks=False.

  Training does not know expected lengths: it has ordered=False.
  """

  name: str
  slots: int
  # Positions of a page of a paged cache. None: a slot has the same positions
  # as the longest.
  page: int | None
  # Whether a token reads the positions up to the longest active rollout,
  # instead of all that the cache has; not read with pages.
  shrinks: bool
  ordered: bool  # the longest expected problems are first


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
  seconds: dict  # of each call, summed
  counts: dict  # calls
  decoded: int = 0  # slots times tokens of the chunks
  tokens: int = 0  # of these, kept
  read: int = 0  # positions of keys and values, over all decoded tokens
  held: int = 0  # positions of the cache, at most
  started: int = 0  # rollouts
  tail: float = 0.0  # seconds after the last rollout has started

  def _spend(self, name: str, seconds: float) -> None:
    self.seconds[name] += seconds
    self.counts[name] += 1

  def empty(self, R: int, L: int) -> decoder.KVCache:
    """Returns a cache of one layer that has a shape and no memory."""
    shape = lambda *sizes: np.broadcast_to(np.int8(0), sizes)
    return decoder.KVCache((shape(R, 1, 1, L),), (shape(R, 1, L, 1),))

  def prefill(self, params, prompts: Prompts) -> decoder.KVCache:
    P, S = prompts.tokens_PxS.shape
    self._spend("prefill", self.calls.prefill(P, S))
    return self.empty(P, S)

  def insert(self, cache, window, row_GxF, slot_GxF, *, G: int):
    S = window.v[0].shape[2]
    # Pages of a prompt are shared, but for the last, which is copied.
    self._spend("insert", self.calls.copy(
        row_GxF.size * min(S, self.design.page or S)))
    return cache

  def resize(self, part, take_GxR, L: int, axis: int):
    before = part.shape[0] * part.shape[axis]
    shape = list(part.shape)
    shape[0], shape[axis] = take_GxR.size, L
    if self.design.page is None:  # else only the table of pages changes
      # One part of two, but each layer has a call of its own.
      self._spend("resize", self.calls.copy(
          max(before, take_GxR.size * L) // 2)
                  + (self.calls.shape.layers - 1) * self.calls.overheads.call)
    return np.broadcast_to(np.int8(0), shape)

  def decode(self, params, cache, row: Rows, key, temperature, top_p, kind):
    C, T = self.sizes["chunk"], self.lengths.new_PxN
    R, L = cache.v[0].shape[0], cache.v[0].shape[2]
    length_R = T[row.id_R, row.rollout_R]
    drawn_R = np.where(row.active_R, np.minimum(C, length_R - row.count_R), 0)
    active_R = row.active_R & (row.count_R + drawn_R < length_R)
    self.started += int((row.active_R & (row.count_R == 0)).sum())
    read, held = self._positions(row, R, L)
    seconds = self.calls.decode(C, R, read / R) + self._flush(R * L)
    self._spend("decode", seconds)
    if self.started == T.size:
      self.tail += seconds
    self.decoded += R * C
    self.tokens += int(drawn_R.sum())
    self.read += read * C
    self.held = max(self.held, held)
    after = row.replace(
        position_R=(row.position_R + drawn_R
                    - (row.active_R & ~active_R)).astype(np.int32),
        count_R=(row.count_R + drawn_R).astype(np.int32), active_R=active_R)
    nothing = np.zeros((R, C), np.int32)
    return cache, after, Drawn(
        nothing, nothing.astype(np.float32), np.zeros(R, np.float32),
        row.active_R & ~active_R & (length_R < self.sizes["max_new_tokens"]))

  def _positions(self, row: Rows, R: int, L: int) -> tuple[int, int]:
    """Returns (positions read for a token of each slot, positions held)."""
    last_R = row.position_R[row.active_R] + self.sizes["chunk"]
    page = self.design.page
    if page is None:
      longest = next(x for x in self.sizes["length_sizes"]
                     if x >= min(last_R.max(initial=0),
                                 self.sizes["length_sizes"][-1]))
      return R * (min(L, longest) if self.design.shrinks else L), R * L
    # On average over the chunk, half of it is there.
    read_R = -(-(last_R - self.sizes["chunk"] // 2) // page)
    problem_R = row.id_R[row.active_R]
    full_P = self.lengths.prompt_P // page
    own = (-(-last_R // page) - full_P[problem_R]).sum()
    return int(read_R.sum()) * page, page * int(
        own + full_P[np.unique(problem_R)].sum())

  def _flush(self, positions: int) -> float:
    """Returns the seconds in which a chunk is written to the whole cache."""
    if not self.calls.buffered or self.design.page is not None:
      return 0.0
    return self.calls.copy(positions) - self.calls.overheads.call

  def sampler(self) -> sampler_lib.Sampler:
    return sampler_lib.Sampler(
        mesh=None, **self.sizes, gathered=self.calls.whole, casts={},
        prepare=lambda params: params, place=lambda tree: tree,
        empty=self.empty, prefill=self.prefill, reread=self.prefill,
        insert=self.insert, resize=self.resize, decode=self.decode,
        interrupt=None, pool=None)


def replay(cfg: sampler_lib.SamplerConfig, lengths: Lengths, design: Design,
           calls: Calls) -> Replay:
  """Samples rollouts of these lengths once, and returns what it costs.

  Args:
    cfg: its sizes; the slots are those of the design.
    lengths: of prompts and rollouts, within the limits of cfg.
    design: of the sampler.
    calls: the costs.
  """
  P, n = lengths.new_PxN.shape
  sizes = sampler_lib.sizes(dataclasses.replace(cfg, slots=design.slots),
                            calls.mesh.data * calls.mesh.fsdp)
  out = Replay(calls, design, lengths, sizes, dict.fromkeys(CALLS, 0.0),
               dict.fromkeys(CALLS, 0))
  out._spend("gather", calls.gather)
  prompts = Prompts(
      np.zeros((P, cfg.max_prompt_tokens), np.int32),
      lengths.prompt_P.astype(np.int32), np.arange(P, dtype=np.uint32))
  sampler_lib.sample_all(
      out.sampler(), None, prompts, n, None, temperature=1.0, top_p=1.0,
      expected_P=lengths.expected_P if design.ordered else None)
  return out
