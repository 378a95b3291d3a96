"""Decides on the host which rollouts are sampled, and when a batch is ready.

A *group* is a problem with its n rollouts; n may differ between groups. It
*begins* when a slot takes its first rollout. A *version* is the number of steps
that the weights have made. A batch is made of complete groups, the oldest ones.
With k = Rule.max_staleness, a group that begins at version v is trained on at
version v + k at the latest, so no token is older than k versions:

- At most (k + 1) * Rule.groups_per_batch groups have begun and are not handed
  over.
- A batch is handed over if the groups that remain can still be trained on in
  time: at most i * Rule.groups_per_batch of them are due by version + i, for
  i = 0 .. k.
  Otherwise sampling continues until an older group is complete.
- No group begins beyond the last step, so every rollout is trained on.

With k = 0 a batch is the groups of one step, all of them: synchronous sampling.
"""

import collections
import io
import typing

import flax.struct
import jax
import numpy as np

from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling.sizes import Sizes, smallest
from isojax.types import Drawn, Prompts, Rollouts, Rows


class Groups(typing.NamedTuple):
  """E problems with rollouts, in the order in which they begin.

  The rollouts of all groups are numbered: rollout i of group e is item
  offset_E[e] + i.
  """

  position_E: np.ndarray  # int64, place in the data order of the run
  problem_E: np.ndarray  # int64, index into Source.prompts
  n_E: np.ndarray  # int64, rollouts
  version_E: np.ndarray  # int32, of the weights at which the group began

  @property
  def offset_E(self) -> np.ndarray:
    return np.cumsum(self.n_E) - self.n_E


def new_groups(position, problem, n) -> Groups:
  """Groups that have not begun; n is one number, or one for each."""
  position_E = np.asarray(position, np.int64)
  return Groups(position_E, np.asarray(problem, np.int64),
                np.broadcast_to(np.asarray(n, np.int64), position_E.shape),
                np.zeros(len(position_E), np.int32))


class Source(typing.NamedTuple):
  """The problems of a run, or of one batch; its functions are pure."""

  prompts: Prompts  # of all problems, host arrays
  groups_of_step: typing.Callable  # step -> Groups, in the order of beginning
  key: typing.Callable  # position -> key data of its step, uint32 [2]
  steps: int
  # Groups -> tokens before the interruption of each item, int32, see
  # sampling.interrupt; None: nothing is interrupted.
  limits: typing.Callable | None = None


class Rule(typing.NamedTuple):
  groups_per_batch: int
  max_staleness: int  # in versions; 0: synchronous


@flax.struct.dataclass
class InFlightState:
  """What lives between two batches: groups that have begun; host arrays.

  Together with the weights this is the state of sampling. Tokens of all items
  are concatenated: X is the sum of len_R.
  """

  steps: int  # whose problems are chosen
  ahead: Groups  # of these steps, not begun
  groups: Groups  # begun and not handed over, by version; R items
  len_R: np.ndarray  # int32, tokens so far
  ended_R: np.ndarray  # bool, EOS was drawn
  entropy_R: np.ndarray  # float32
  tokens_X: np.ndarray  # int32
  logp_X: np.ndarray  # float32, under the weights that drew the token
  version_X: np.ndarray  # int32, of those weights
  # Slots, pages of a block, and blocks of the sampler: which weights draw a
  # token depends on them.
  sampler_layout: tuple[int, int, int]


def empty_state(sampler_layout: tuple[int, int, int]) -> InFlightState:
  """The state before the first batch."""
  zeros = lambda dtype: np.zeros(0, dtype)
  return InFlightState(
      0, new_groups([], [], 0), new_groups([], [], 0), zeros(np.int32),
      zeros(bool), zeros(np.float32), zeros(np.int32), zeros(np.float32),
      zeros(np.int32), sampler_layout)


def to_bytes(flight: InFlightState) -> np.ndarray:
  """The flight as one uint8 array, for a checkpoint."""
  file = io.BytesIO()
  np.savez(file, *jax.tree.leaves(flight))
  return np.frombuffer(file.getvalue(), np.uint8)


def from_bytes(saved: np.ndarray) -> InFlightState:
  with np.load(io.BytesIO(saved.tobytes()), allow_pickle=False) as file:
    leaves = [x if x.ndim else int(x) for x in file.values()]
  return jax.tree.unflatten(jax.tree.structure(empty_state((0, 0, 0))), leaves)


class Items(typing.NamedTuple):
  """Rollouts by their address."""

  position_R: np.ndarray  # of their groups
  problem_R: np.ndarray
  number_R: np.ndarray  # within their groups


class CompletedBatch(typing.NamedTuple):
  """A batch: complete groups, by position."""

  groups: Groups
  items: Items
  rollouts: Rollouts  # group-major
  version_RxT: np.ndarray  # int32, of the weights that drew each token
  evicted: int  # times that a rollout lost its slot, since the last batch

  def staleness(self, version: int) -> tuple[float, int]:
    """Mean and maximum over tokens of the versions since they were drawn."""
    T = self.version_RxT.shape[1]
    drawn = np.arange(T)[None] < self.rollouts.len_R[:, None]
    age_X = version - self.version_RxT[drawn]
    return float(age_X.mean()), int(age_X.max())


def next_batch_groups(version_E, complete_E, *, version: int, rule: Rule):
  """Indices of the groups of the next batch; None if it is not complete.

  Groups are ordered by the version at which they began; `version` is that of
  the weights that will train on the batch.
  """
  chosen = np.flatnonzero(complete_E)[:rule.groups_per_batch]
  if len(chosen) < rule.groups_per_batch:
    return None
  due_E = np.delete(version_E, chosen) + rule.max_staleness
  in_time = (np.sum(due_E <= version + i) <= i * rule.groups_per_batch
             for i in range(rule.max_staleness + 1))
  return chosen if all(in_time) else None


class Queue:
  """Rollouts that wait or are complete, and those in slots, for one batch.

  Groups in flight come first, then those that may begin. Each block of the mesh
  holds the rollouts of a few problems, whose prompts are prefilled together, as
  its window. The slots of a block are neighbours.

  A sequence is continued by the rollouts of a group, which are a unit, or by
  one rollout with tokens. `queued` has, of each block, the items dealt to it,
  and `slots` the places in its window of the sequences of the first of them.

  Attributes [E] are of groups, [B] of their rollouts, the items: `group_B`,
  `number_B` (in the group), `problem_B`, `limit_B` (tokens). `out` has the
  tokens so far; the first items were in flight, and `version_RxT` has the
  versions that drew their tokens. `left_E` rollouts of a group are incomplete,
  `done` are complete and not yet reported. `units` wait and are dealt to no
  block. `item_R` and `row` are of slots: the item in each, its device state.
  """

  def __init__(self, flight: InFlightState, source: Source, rule: Rule, *,
               version: int, sizes: Sizes, G: int,
               interrupt: interrupt_lib.Interrupt | None):
    self.flight, self.source, self.rule = flight, source, rule
    self.version, self.sizes, self.G = version, sizes, G
    self.T, self.interrupt = sizes.max_new_tokens, interrupt
    self.evicted_count = 0
    most = (rule.max_staleness + 1) * rule.groups_per_batch
    steps = flight.steps
    parts = [(steps - 1, flight.groups), (steps - 1, flight.ahead)]
    while sum(len(part.n_E) for _, part in parts) < most and (
        steps < source.steps):
      parts.append((steps, source.groups_of_step(steps)))
      steps += 1
    self.groups = Groups(*map(np.concatenate, zip(*(
        part for _, part in parts), strict=True)))
    self.step_E = np.concatenate(
        [np.full(len(part.n_E), step) for step, part in parts])
    E, started = len(self.step_E), len(flight.groups.n_E)
    self.groups.version_E[started:] = version
    self.started_E = np.arange(E) < started
    self.may_start_E = np.arange(E) < most
    self.key_Ex2 = np.array([source.key(int(p)) for p in
                             self.groups.position_E], np.uint32).reshape(E, 2)
    self.group_B = np.repeat(np.arange(E), self.groups.n_E)
    self.number_B = (np.arange(len(self.group_B))
                     - self.groups.offset_E[self.group_B])
    self.problem_B = self.groups.problem_E[self.group_B]
    self.limit_B = None
    if interrupt is not None:
      self.limit_B = (np.full(len(self.group_B), self.T, np.int32)
                      if source.limits is None else source.limits(self.groups))
    self.out, self.version_RxT = self._rollouts(flight)
    done_B = self.out.ended_R | (self.out.len_R == self.T)
    self.left_E = self.groups.n_E - np.bincount(
        self.group_B[done_B], minlength=E)
    self.done = np.flatnonzero(done_B)  # not reported yet
    waiting = np.flatnonzero(~done_B & self.may_start_E[self.group_B])
    self._enqueue(waiting)
    self._open_slots(smallest(
        sizes.rows, min(-(-len(waiting) // G) * G, sizes.rows[-1])))

  def _rollouts(self, flight: InFlightState) -> tuple[Rollouts, np.ndarray]:
    """The tokens of all items so far, and the versions of those in flight."""
    B, R = len(self.group_B), len(flight.len_R)
    zeros = lambda dtype, *shape: np.zeros((B, *shape), dtype)
    out = Rollouts(
        tokens_RxT=zeros(np.int32, self.T), len_R=zeros(np.int32),
        ended_R=zeros(bool), behavior_logp_RxT=zeros(np.float32, self.T),
        entropy_R=zeros(np.float32))
    version_RxT = np.full((R, self.T), self.version, np.int32)
    drawn = np.arange(self.T)[None] < flight.len_R[:, None]
    out.tokens_RxT[:R][drawn] = flight.tokens_X
    out.behavior_logp_RxT[:R][drawn] = flight.logp_X
    version_RxT[drawn] = flight.version_X
    out.len_R[:R], out.ended_R[:R] = flight.len_R, flight.ended_R
    out.entropy_R[:R] = flight.entropy_R
    return out, version_RxT

  def _versions(self, items) -> np.ndarray:
    """The versions that drew the tokens of items, [len(items), T].

    A view of one number without rollouts in flight, which fill no memory.
    """
    R, shape = len(self.version_RxT), (len(items), self.T)
    version = np.broadcast_to(np.int32(self.version), shape)
    if R:
      version = version.copy()
      version[items < R] = self.version_RxT[items[items < R]]
    return version

  def _enqueue(self, items) -> None:
    """Lets items wait: those with tokens first, the longest of them first."""
    again = items[self.out.len_R[items] > 0]
    again = again[np.argsort(-self.length(again), kind="stable")]
    items = np.concatenate([again, items[self.out.len_R[items] == 0]])
    self.units = collections.deque(
        np.split(items, np.flatnonzero(self._begins(items)))[1:])
    self.queued = [np.zeros(0, np.int64)] * self.G
    self.slots = [np.zeros(0, np.int64)] * self.G
    self.refused_G = np.zeros(self.G, bool)  # without space for what waits

  def _begins(self, items) -> np.ndarray:
    """Whether each item continues another sequence than the one before it."""
    sequence = np.where(
        self.out.len_R[items] > 0, -1 - items, self.group_B[items])
    return np.diff(sequence, prepend=np.nan) != 0

  def _open_slots(self, R: int) -> None:
    zeros = lambda dtype, *shape: np.zeros((R, *shape), dtype)
    self.item_R = zeros(np.int64)
    self.row = Rows(
        token_R=zeros(np.int32), position_R=zeros(np.int32),
        count_R=zeros(np.int32), id_R=zeros(np.uint32),
        rollout_R=zeros(np.uint32), key_Rx2=zeros(np.uint32, 2),
        active_R=zeros(bool),
        **({} if self.interrupt is None else
           dict(interrupt_R=zeros(np.int32), matched_R=zeros(np.int32))))

  def length(self, items) -> np.ndarray:
    """Tokens so far, prompt included."""
    return (self.source.prompts.len_P[self.problem_B[items]]
            + self.out.len_R[items])

  @property
  def waiting(self) -> bool:
    """Whether items wait."""
    return bool(self.units) or any(map(len, self.queued))

  @property
  def rows(self) -> int:
    """Slots of a block."""
    return len(self.item_R) // self.G

  @property
  def active_GxR(self) -> np.ndarray:
    return self.row.active_R.reshape(self.G, -1)

  @property
  def free_G(self) -> np.ndarray:
    """Free slots of each block; 0 if it has no space for what waits."""
    return np.where(self.refused_G, 0, (~self.active_GxR).sum(axis=1))

  @property
  def most_active(self) -> int:
    """Active slots of the block with most of them."""
    return int(self.active_GxR.sum(axis=1).max())

  @property
  def starving(self) -> bool:
    """Whether a slot is free while an item waits, after `fill`."""
    return bool(self.free_G.any() and self.waiting)

  def _deal(self) -> None:
    """Gives blocks what waits, up to a window of sequences each.

    A unit goes to the block with the smallest load: items that wait beyond its
    free slots. When no unit is left, a block with free slots takes items from
    the one with the largest load, until both have the same or one has none.
    """
    load_G = np.array([len(queued) for queued in self.queued]) - self.free_G
    room_G = self.sizes.window - np.array(
        [self._begins(queued).sum() for queued in self.queued])
    while self.units and (room_G > 0).any():
      unit = self.units.popleft()
      g = np.where(room_G > 0, load_G, np.inf).argmin()
      self.queued[g] = np.concatenate([self.queued[g], unit])
      load_G[g] += len(unit)
      room_G[g] -= 1
    while not self.units and load_G.min() < 0 < load_G.max():
      thief, owner = load_G.argmin(), load_G.argmax()
      count = min(-(-(load_G[owner] - load_G[thief]) // 2), load_G[owner])
      taken = self.queued[owner][-count:]
      self.queued[owner] = self.queued[owner][:-count]
      self.queued[thief] = np.concatenate([self.queued[thief], taken])
      load_G[owner] -= count
      load_G[thief] += count

  def move_window(self) -> Prompts:
    """The next sequences of each block, [G * W], as a prefill takes them."""
    self._deal()
    begins = [self._begins(queued) for queued in self.queued]
    first = [queued[new][:self.sizes.window]
             for queued, new in zip(self.queued, begins, strict=True)]
    L = smallest(self.sizes.sequences, int(
        self.length(np.concatenate(first)).max(initial=1)))
    W, S = self.sizes.at_once(L), self.source.prompts.tokens_PxS.shape[1]
    out = Prompts(np.zeros((self.G * W, L), np.int32),
                  np.ones(self.G * W, np.int32),
                  np.zeros(self.G * W, np.uint32))
    for g, items in enumerate(first):
      slots, items = np.cumsum(begins[g]) - 1, items[:W]
      self.slots[g] = slots[slots < W]
      at = g * W + np.arange(len(items))
      out.tokens_PxS[at, :min(S, L)] = self.source.prompts.tokens_PxS[
          self.problem_B[items], :L]
      out.len_P[at] = self.length(items)
      for slot, item in zip(at, items, strict=True):
        if drawn := self.out.len_R[item]:
          length = out.len_P[slot]
          out.tokens_PxS[slot, length - drawn:length] = (
              self.out.tokens_RxT[item, :drawn])
    return out

  def fill(self, allocate) -> tuple[np.ndarray, np.ndarray]:
    """Gives free slots the waiting items whose sequences are in the window.

    A block fills its lowest free slots, so every slot below a filled one is
    active. `compact`, which is stable, therefore leaves filled slots where they
    are, and the result may be used after it.

    Args:
      allocate: see cache.Contiguous.allocate; if not all items get space, the
        block is refused.

    Returns:
      row, slot [G, F]: slots inside their block that were filled, and the
      window slots of their sequences. F is 0, an eighth of a block's slots, or
      all; rows equal to the number of a block's slots are padding.
    """
    taken = []
    for g, active in enumerate(self.active_GxR):
      free = np.flatnonzero(~active)[:len(self.slots[g])]
      rows, items = g * self.rows + free, self.queued[g][:len(free)]
      count = allocate(g, rows, items, self.slots[g][:len(free)])
      self.refused_G[g] |= count < len(free)
      self._assign(rows[:count], items[:count])
      taken.append((free[:count], self.slots[g][:count]))
      self.queued[g] = self.queued[g][count:]
      self.slots[g] = self.slots[g][count:]
    F = smallest((0, -(-self.rows // 8), self.rows),
                 max(len(rows) for rows, _ in taken))
    row_GxF = np.full((self.G, F), self.rows, np.int32)
    slot_GxF = np.zeros((self.G, F), np.int32)
    for g, (rows, slots) in enumerate(taken):
      row_GxF[g, :len(rows)], slot_GxF[g, :len(rows)] = rows, slots
    return row_GxF, slot_GxF

  def _assign(self, rows, items) -> None:
    """Gives slots these items: the last token so far is fed first."""
    group, problem = self.group_B[items], self.problem_B[items]
    prompts, drawn = self.source.prompts, self.out.len_R[items]
    self.started_E[group] = True
    self.item_R[rows] = items
    row = self.row
    row.token_R[rows] = np.where(
        drawn > 0, self.out.tokens_RxT[items, np.maximum(drawn - 1, 0)],
        prompts.tokens_PxS[problem, prompts.len_P[problem] - 1])
    row.position_R[rows] = self.length(items) - 1
    row.count_R[rows] = drawn
    row.id_R[rows] = prompts.id_P[problem]
    row.rollout_R[rows] = self.number_B[items]
    row.key_Rx2[rows] = self.key_Ex2[group]
    row.active_R[rows] = True
    if self.interrupt is None:
      return
    row.interrupt_R[rows], row.matched_R[rows] = self.limit_B[items], 0
    if self.interrupt.unless:
      for i in np.flatnonzero(drawn):
        # Only tokens before the interruption change the state.
        before = min(drawn[i], self.limit_B[items[i]])
        row.matched_R[rows[i]] = interrupt_lib.matched(
            self.out.tokens_RxT[items[i], :before], self.interrupt.unless)

  def evict(self, rows) -> None:
    """Takes slots from active items, which are next to get one again."""
    rows = np.array(rows, np.int64)
    self.refused_G[:] = False
    self.row.active_R[rows] = False
    self.evicted_count += len(rows)
    for g in np.unique(rows // self.rows):
      lost = self.item_R[rows[rows // self.rows == g]]
      queued = np.concatenate([lost, self.queued[g]])
      order = np.argsort(-self.out.len_R[queued], kind="stable")
      self.queued[g], self.slots[g] = queued[order], self.slots[g][:0]

  def compact(self, R: int) -> np.ndarray:
    """Keeps R slots, the active ones first; returns their places, [G, R / G].
    """
    take_GxR = np.argsort(
        ~self.active_GxR, axis=1, kind="stable")[:, :R // self.G]
    index = (take_GxR + np.arange(self.G)[:, None] * self.rows).reshape(-1)
    self.item_R = self.item_R[index]
    self.row = jax.tree.map(lambda x: x[index], self.row)
    return take_GxR

  def harvest(self, after: Rows, drawn: Drawn) -> None:
    """Stores what the slots drew in a chunk, on the host."""
    out, rows = self.out, np.flatnonzero(self.row.active_R)
    items, before = self.item_R[rows], self.row.count_R[rows]
    C, new = drawn.tokens_RxC.shape[1], after.count_R[rows] - before
    # Positions of flat arrays, because the devices wait: (item, position) pairs
    # take three times as long.
    at = np.repeat(np.arange(len(rows)), new)
    col = np.arange(len(at)) - np.repeat(np.cumsum(new) - new, new)
    source, target = (rows * C)[at] + col, (items * self.T + before)[at] + col
    np.put(out.tokens_RxT, target, drawn.tokens_RxC.reshape(-1)[source])
    np.put(out.behavior_logp_RxT, target, drawn.logp_RxC.reshape(-1)[source])
    out.len_R[items] = after.count_R[rows]
    out.entropy_R[items] += drawn.entropy_R[rows]
    out.ended_R[items] = drawn.ended_R[rows]
    self.row = self.row.replace(**{  # writable copies of what has changed
        name: np.array(x) for name, x in vars(after).items() if x is not None})
    self.done = items[~after.active_R[rows]]
    np.subtract.at(self.left_E, self.group_B[self.done], 1)

  def _items(self, items) -> Items:
    return Items(self.groups.position_E[self.group_B[items]],
                 self.problem_B[items], self.number_B[items])

  def ended(self) -> tuple[Items, Rollouts]:
    """The rollouts that ended in the last chunk; at first those in flight."""
    return self._items(self.done), jax.tree.map(
        lambda x: x[self.done], self.out)

  def ready(self):
    """The groups of the next batch; None if sampling has to continue."""
    empty_E = self.groups.n_E == 0  # begin with the group before them
    self.started_E |= empty_E & self.may_start_E & (
        np.cumsum(~self.started_E & ~empty_E) == 0)
    started = np.flatnonzero(self.started_E)
    chosen = next_batch_groups(
        self.groups.version_E[started], self.left_E[started] == 0,
        version=self.version, rule=self.rule)
    return None if chosen is None else started[chosen]

  def completed_batch(self, chosen) -> CompletedBatch:
    """The batch of the chosen groups."""
    groups, offset_E = self.groups, self.groups.offset_E
    chosen = chosen[np.argsort(groups.position_E[chosen], kind="stable")]
    items = np.concatenate(
        [offset_E[e] + np.arange(groups.n_E[e]) for e in chosen])
    rollouts = jax.tree.map(lambda x: x[items], self.out)
    if self.interrupt is not None:
      rollouts = rollouts.replace(forced_RxT=interrupt_lib.forced(
          rollouts.tokens_RxT, rollouts.len_R, self.limit_B[items],
          self.interrupt))
    return CompletedBatch(
        jax.tree.map(lambda x: x[chosen], groups), self._items(items), rollouts,
        self._versions(items), self.evicted_count)

  def remaining_state(self, chosen) -> InFlightState:
    """The state without the chosen groups."""
    kept_E = self.started_E.copy()
    kept_E[chosen] = False
    items = np.flatnonzero(kept_E[self.group_B])
    steps = max(self.flight.steps,
                1 + int(self.step_E[self.started_E].max(initial=-1)))
    ahead_E = ~self.started_E & (self.step_E < steps)
    out = jax.tree.map(lambda x: x[items], self.out)
    drawn = np.arange(self.T)[None] < out.len_R[:, None]
    of = lambda which: jax.tree.map(lambda x: x[which], self.groups)
    return InFlightState(
        steps, of(ahead_E), of(kept_E), out.len_R, out.ended_R, out.entropy_R,
        out.tokens_RxT[drawn], out.behavior_logp_RxT[drawn],
        self._versions(items)[drawn], self.flight.sampler_layout)
