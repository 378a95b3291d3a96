"""Decides on the host which rollouts are in flight, and when a batch is ready.

The problems of a run are one sequence: position p is problem p % Bp of step
p // Bp of the data order. The n rollouts of a position are a *group*. A group
*begins* when a slot takes its first rollout. A *version* is the number of steps
that the weights have made.

A group that begins at version v is trained on at version v + k at the latest,
so no token is older than k versions:

- At most (k + 1) * Bp groups have begun and are not handed over.
- A batch is the Bp oldest complete groups. It is handed over if the groups that
  remain can still be trained on in time: at most i * Bp of them are due by
  version + i, for i = 0 .. k. Otherwise sampling continues until an older group
  is complete.
- No group begins beyond the last step, so every rollout is trained on.
"""

import collections
import dataclasses
import io
import typing

import jax
import numpy as np

from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import queue as queue_lib
from isojax.types import Drawn
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import Rows


class Source(typing.NamedTuple):
  """The problems of a run, in the order in which their groups begin."""

  prompts: Prompts  # of all problems, host arrays
  index: typing.Callable  # position -> index into `prompts`
  key: typing.Callable  # position -> key data of its step, uint32 [2]
  Bp: int
  size: int  # positions of the run, M * Bp
  # Position -> tokens of each rollout before its interruption, [n], see
  # sampling.interrupt; None: none is interrupted.
  lengths: typing.Callable | None = None


@dataclasses.dataclass(frozen=True)
class InFlight:
  """Groups that have begun and are not handed over: E of them, host arrays.

  The tokens of all rollouts are concatenated. Together with the weights this
  is the state of sampling.
  """

  begun: int  # positions that have begun, of which E are in flight
  position_E: np.ndarray  # int64, ascending
  index_E: np.ndarray  # int64, of the problem, see Source
  # int64, of the problems that have not begun, of a step that has begun.
  ahead_A: np.ndarray
  version_E: np.ndarray  # int32, at which the group began
  len_R: np.ndarray  # int32, tokens so far; R = E * n, group-major
  ended_R: np.ndarray  # bool, EOS was drawn
  entropy_R: np.ndarray  # float32
  tokens_X: np.ndarray  # int32, X = sum of len_R
  behavior_logp_X: np.ndarray  # float32, of the weights that drew the token
  version_X: np.ndarray  # int32, of those weights


_DTYPES = dict(position_E=np.int64, index_E=np.int64, ahead_A=np.int64,
               version_E=np.int32, len_R=np.int32,
               ended_R=bool, entropy_R=np.float32, tokens_X=np.int32,
               behavior_logp_X=np.float32, version_X=np.int32)


def nothing() -> InFlight:
  """Returns the state before the first step."""
  return InFlight(0, **{name: np.zeros(0, dtype)
                        for name, dtype in _DTYPES.items()})


def to_bytes(state: InFlight, slots: int) -> np.ndarray:
  """Returns the state as one uint8 array, for a checkpoint.

  Args:
    slots: of the sampler, on which the results depend.
  """
  file = io.BytesIO()
  np.savez(file, slots=slots, **dataclasses.asdict(state))
  return np.frombuffer(file.getvalue(), np.uint8)


def from_bytes(saved: np.ndarray) -> InFlight:
  """Returns the state that `to_bytes` was given."""
  with np.load(io.BytesIO(saved.tobytes()), allow_pickle=False) as file:
    return InFlight(int(file["begun"]), **{name: file[name]
                                           for name in _DTYPES})


def slots_of(saved: np.ndarray) -> int | None:
  """Returns the slots that `to_bytes` was given; None in older checkpoints."""
  with np.load(io.BytesIO(saved.tobytes()), allow_pickle=False) as file:
    return int(file["slots"]) if "slots" in file.files else None


@dataclasses.dataclass
class Pool:
  """The groups in flight during one step; changed in place.

  Item e * n + i is rollout i of group e. Groups are in order of position.
  """

  n: int
  begun: int
  groups: int  # of the arrays' E that are in flight
  position_E: np.ndarray
  version_E: np.ndarray
  out: Rollouts  # by item
  version_RxT: np.ndarray

  @property
  def done_R(self) -> np.ndarray:
    """Returns which items of the groups in flight are complete."""
    R, T = self.groups * self.n, self.out.tokens_RxT.shape[1]
    return self.out.ended_R[:R] | (self.out.len_R[:R] == T)

  @property
  def complete_E(self) -> np.ndarray:
    return self.done_R.reshape(-1, self.n).all(axis=1)


def opened(state: InFlight, *, n: int, T: int, most: int) -> Pool:
  """Returns the pool of a state, with space for `most` groups."""
  E, R = len(state.position_E), len(state.len_R)
  drawn = np.arange(T)[None] < state.len_R[:, None]

  def table(x_X):
    whole = np.zeros((most * n, T), x_X.dtype)
    whole[:R][drawn] = x_X
    return whole

  def column(x, size):
    whole = np.zeros(size, x.dtype)
    whole[:len(x)] = x
    return whole

  return Pool(
      n, state.begun, E, column(state.position_E, most),
      column(state.version_E, most), Rollouts(
          tokens_RxT=table(state.tokens_X),
          len_R=column(state.len_R, most * n),
          ended_R=column(state.ended_R, most * n),
          behavior_logp_RxT=table(state.behavior_logp_X),
          entropy_R=column(state.entropy_R, most * n)),
      table(state.version_X))


def items_of(group_E, n: int) -> np.ndarray:
  """Returns the items of groups, [E * n]."""
  return (np.asarray(group_E, np.int64)[:, None] * n
          + np.arange(n)[None]).reshape(-1)


def chosen(state: InFlight) -> dict[int, int]:
  """Returns the problems of positions that a state has fixed."""
  ahead = state.begun + np.arange(len(state.ahead_A))
  return dict(zip([*state.position_E.tolist(), *ahead.tolist()],
                  [*state.index_E.tolist(), *state.ahead_A.tolist()],
                  strict=True))


def closed(pool: Pool, group_E, source: Source) -> InFlight:
  """Returns the state with only these groups of the pool."""
  index = lambda positions: np.array(
      [source.index(int(p)) for p in positions], np.int64)
  end = -(-pool.begun // source.Bp) * source.Bp
  items = items_of(group_E, pool.n)
  out = jax.tree.map(lambda x: x[items], pool.out)
  drawn = np.arange(out.tokens_RxT.shape[1])[None] < out.len_R[:, None]
  return InFlight(
      pool.begun, pool.position_E[group_E], index(pool.position_E[group_E]),
      index(range(pool.begun, end)), pool.version_E[group_E], out.len_R,
      out.ended_R, out.entropy_R, out.tokens_RxT[drawn],
      out.behavior_logp_RxT[drawn], pool.version_RxT[items][drawn])


def handed_over(version_E, complete_E, *, version: int, k: int, Bp: int):
  """Returns the Bp groups of the next batch, or None if it is not complete.

  Args:
    version_E: at which each group began, ascending.
    complete_E: whether all rollouts of a group are complete.
    version: of the weights that will train on the batch.
    k: largest staleness.
    Bp: groups of a batch.
  """
  chosen = np.flatnonzero(complete_E)[:Bp]
  if len(chosen) < Bp:
    return None
  due_E = np.delete(version_E, chosen) + k
  in_time = (np.sum(due_E <= version + i) <= i * Bp for i in range(k + 1))
  return chosen if all(in_time) else None


@dataclasses.dataclass
class Waiting:
  """Items that wait for a slot: unfinished ones, then those of new groups."""

  pool: Pool
  source: Source
  version: int
  most: int  # groups in flight
  items: collections.deque

  @property
  def further(self) -> int:
    """Groups that may begin now."""
    return min(self.most - self.pool.groups, self.source.size - self.pool.begun)

  @property
  def count(self) -> int:
    """Items that may take a slot now."""
    return len(self.items) + self.further * self.pool.n

  def take(self, count: int) -> list[int]:
    """Returns the next `count` items, or fewer; groups begin as needed."""
    taken = []
    while len(taken) < count and self.count:
      if not self.items:
        self.items.extend(self._begin())
      taken.append(self.items.popleft())
    return taken

  def _begin(self) -> range:
    pool = self.pool
    e = pool.groups
    pool.position_E[e], pool.version_E[e] = pool.begun, self.version
    pool.groups, pool.begun = e + 1, pool.begun + 1
    return range(e * pool.n, (e + 1) * pool.n)

  def next_positions(self, count: int) -> list[int]:
    """Returns positions of the next items of which nothing is drawn."""
    fresh = (int(self.pool.position_E[item // self.pool.n])
             for item in self.items if not self.pool.out.len_R[item])
    known = list(dict.fromkeys(fresh))[:count]
    more = min(count - len(known), self.further)
    return known + list(range(self.pool.begun, self.pool.begun + more))


def waiting(pool: Pool, source: Source, held, *, version: int,
            most: int) -> Waiting:
  """Returns what waits: items neither done nor in `held`, the slots' items.

  Rollouts with tokens come first, by length, the longest first; so sequences
  of similar length are read together.
  """
  length = pool.out.len_R + _prompt_len(pool, source)
  free = np.ones(pool.groups * pool.n, bool)
  free[held] = False
  free = np.flatnonzero(free & ~pool.done_R)
  begun = free[pool.out.len_R[free] > 0]
  begun = begun[np.argsort(-length[begun], kind="stable")]
  fresh = free[pool.out.len_R[free] == 0]
  return Waiting(pool, source, version, most, collections.deque(
      [*begun.tolist(), *fresh.tolist()]))


def _prompt_len(pool: Pool, source: Source) -> np.ndarray:
  """Returns the tokens of each item's prompt; 0 beyond the groups in flight."""
  len_E = np.zeros(len(pool.position_E), np.int32)
  len_E[:pool.groups] = [source.prompts.len_P[source.index(int(p))]
                         for p in pool.position_E[:pool.groups]]
  return np.repeat(len_E, pool.n)


def sequence(pool: Pool, source: Source, item: int) -> np.ndarray:
  """Returns the prompt of an item and its tokens so far."""
  i = source.index(int(pool.position_E[item // pool.n]))
  return np.concatenate([
      source.prompts.tokens_PxS[i, :source.prompts.len_P[i]],
      pool.out.tokens_RxT[item, :pool.out.len_R[item]]])


@dataclasses.dataclass
class Slots:
  """What each slot of the sampler decodes; a block's slots are neighbours."""

  G: int
  item_R: np.ndarray
  key_Rx2: np.ndarray  # uint32, key data of the step of the item's position
  row: Rows

  @property
  def active_GxR(self) -> np.ndarray:
    return self.row.active_R.reshape(self.G, -1)

  @property
  def held(self) -> np.ndarray:
    """Returns the items in active slots."""
    return self.item_R[self.row.active_R]


def free_slots(G: int, R: int, *, interrupted: bool) -> Slots:
  """Returns R slots, all of them free; with fields for interruption or not."""
  zeros = lambda dtype, *shape: np.zeros((R, *shape), dtype)
  return Slots(G, zeros(np.int64), zeros(np.uint32, 2), Rows(
      token_R=zeros(np.int32), position_R=zeros(np.int32),
      count_R=zeros(np.int32), id_R=zeros(np.uint32),
      rollout_R=zeros(np.uint32), active_R=zeros(bool),
      **({"interrupt_R": zeros(np.int32), "matched_R": zeros(np.int32)}
         if interrupted else {})))


def placed(slots: Slots, items: list[int]) -> list[list[tuple[int, int]]]:
  """Assigns items to free slots, each to the block with the most of them.

  Returns:
    For each block: (slot inside the block, item).
  """
  free = [collections.deque(np.flatnonzero(~active).tolist())
          for active in slots.active_GxR]
  out = [[] for _ in free]
  for item in items:
    g = max(range(slots.G), key=lambda g: len(free[g]))
    out[g].append((free[g].popleft(), item))
  return out


def lengths_of(source: Source, positions, *, n: int, T: int) -> np.ndarray:
  """Returns the tokens before each rollout's interruption, [E * n].

  They are T, beyond the last token, if none is interrupted.
  """
  if source.lengths is None:
    return np.full(len(positions) * n, T, np.int32)
  return np.concatenate([source.lengths(int(p)) for p in positions])


def hold(slots: Slots, pool: Pool, source: Source, rows, items,
         it: interrupt_lib.Interrupt | None) -> None:
  """Gives rows these items: the last token so far is fed first.

  Args:
    slots: changed in place.
    pool, source: of the items.
    rows, items: of which each row gets one.
    it: the phrase of forced interruption; None: off.
  """
  for row, item in zip(rows, items, strict=True):
    known = sequence(pool, source, item)
    position = int(pool.position_E[item // pool.n])
    slots.item_R[row] = item
    slots.key_Rx2[row] = source.key(position)
    slots.row.token_R[row] = known[-1]
    slots.row.position_R[row] = len(known) - 1
    slots.row.count_R[row] = pool.out.len_R[item]
    slots.row.id_R[row] = source.prompts.id_P[source.index(position)]
    slots.row.rollout_R[row] = item % pool.n
    slots.row.active_R[row] = True
    if it is not None:
      tokens_T, length = pool.out.tokens_RxT[item], pool.out.len_R[item]
      L = lengths_of(source, [position], n=pool.n, T=len(tokens_T))[
          item % pool.n]
      slots.row.interrupt_R[row] = L
      slots.row.matched_R[row] = interrupt_lib.matched(
          tokens_T[:min(length, L)], it.unless) if it.unless else 0


def resized(slots: Slots, R: int) -> np.ndarray:
  """Changes the number of slots to R, the active ones first, in their order.

  Returns:
    The former slot inside its block of each slot, [G, R / G]; 0 for those that
    are new.
  """
  before, R_b = slots.active_GxR.shape[1], R // slots.G
  order_GxR = np.argsort(~slots.active_GxR, axis=1, kind="stable")[:, :R_b]
  new = R_b - order_GxR.shape[1]
  take_GxR = np.pad(order_GxR, [(0, 0), (0, new)])
  index = (take_GxR + np.arange(slots.G)[:, None] * before).reshape(-1)
  old = np.tile(np.arange(R_b) < R_b - new, slots.G)
  slots.item_R, slots.key_Rx2 = slots.item_R[index], slots.key_Rx2[index]
  slots.row = jax.tree.map(lambda x: x[index], slots.row)
  slots.row.active_R[:] &= old
  return take_GxR


def harvest(slots: Slots, pool: Pool, after: Rows, drawn: Drawn, *,
            version: int) -> np.ndarray:
  """Stores what the slots drew in a chunk; returns the items that are done."""
  ended, target = queue_lib.store(slots, pool.out, after, drawn)
  np.put(pool.version_RxT, target, version)
  return ended


def renumber(slots: Slots, kept_E, n: int) -> None:
  """Follows `closed`: group kept_E[e] of the pool becomes group e."""
  group_R, rollout_R = np.divmod(slots.item_R, n)
  slots.item_R = np.searchsorted(kept_E, group_R) * n + rollout_R
