"""Decides which rollout each slot decodes next, and stores the drawn tokens.

ItemStore has the rollouts of a batch's groups, numbered as items. Slots has the
items that are decoded, and what the devices need of them. Scheduler connects
both with flight.GroupProgress; engine._refill calls its `evict`, `candidates`,
`fill` and `move_window`, and after a chunk next_batch its `harvest`. All arrays
are host arrays.

Each block of the mesh prefills a few sequences together: its window. A sequence
is a prompt, which all rollouts of a group continue, or a prompt with tokens,
which one rollout continues. The items that continue a sequence are a unit.

One queue serves all blocks: first rollouts in flight before the batch, the
longest first, then new ones in the order of their source (`_enqueue`). A block
takes whole problems, so it prefills each prompt once; an evicted rollout goes
to the front of what waits for its block (`evict`). When the queue is empty, a
block with free slots takes waiting rollouts from the fullest block and prefills
their prompts again.
"""

import collections

import jax
import numpy as np

from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling.flight import (
  BatchRule,
  CompletedBatch,
  GroupProgress,
  GroupSource,
  GroupTable,
  InFlightState,
  Items,
)
from isojax.sampling.sizes import Sizes, smallest
from isojax.types import Candidates, Drawn, Prompts, Rollouts, Rows


class ItemStore:
  """The addresses of all items, B of them, and their tokens.

  The first R items were in flight before the batch.

  Attributes:
    group_B: the group of an item.
    number_B: the item's number within its group.
    problem_B: index of its problem.
    limit_B: its tokens before an interruption, T: it is not interrupted; None:
      sampling.interrupt is off.
    out: its tokens so far.
    version_RxT: the versions that drew the tokens of the first R items.
  """

  def __init__(self, state: InFlightState, source: GroupSource,
               groups: GroupTable, *, version: int, T: int,
               interrupt: interrupt_lib.Interrupt | None):
    E = len(groups.n_E)
    self.prompts, self.groups = source.prompts, groups
    self.version, self.T, self.interrupt = version, T, interrupt
    self.key_Ex2 = np.array([source.key(int(p)) for p in groups.position_E],
                            np.uint32).reshape(E, 2)
    self.group_B = np.repeat(np.arange(E), groups.n_E)
    self.number_B = (np.arange(len(self.group_B))
                     - groups.offset_E[self.group_B])
    self.problem_B = groups.problem_E[self.group_B]
    self.limit_B = None
    if interrupt is not None:
      self.limit_B = (np.full(len(self.group_B), T, np.int32)
                      if source.interrupt_after is None
                      else source.interrupt_after(groups))
    self.out, self.version_RxT = self._restored(state)

  def _restored(self, state: InFlightState) -> tuple[Rollouts, np.ndarray]:
    """The values of `out` and `version_RxT` at the start."""
    B, R = len(self.group_B), len(state.len_R)
    zeros = lambda dtype, *shape: np.zeros((B, *shape), dtype)
    out = Rollouts(
        tokens_RxT=zeros(np.int32, self.T), len_R=zeros(np.int32),
        ended_R=zeros(bool), behavior_logp_RxT=zeros(np.float32, self.T),
        entropy_R=zeros(np.float32))
    version_RxT = np.full((R, self.T), self.version, np.int32)
    drawn = np.arange(self.T)[None] < state.len_R[:, None]
    out.tokens_RxT[:R][drawn] = state.tokens_X
    out.behavior_logp_RxT[:R][drawn] = state.logp_X
    version_RxT[drawn] = state.version_X
    out.len_R[:R], out.ended_R[:R] = state.len_R, state.ended_R
    out.entropy_R[:R] = state.entropy_R
    return out, version_RxT

  @property
  def done_B(self) -> np.ndarray:
    """Which items are complete."""
    return self.out.ended_R | (self.out.len_R == self.T)

  def length(self, items) -> np.ndarray:
    """Tokens so far, prompt included."""
    return (self.prompts.len_P[self.problem_B[items]]
            + self.out.len_R[items])

  def versions(self, items) -> np.ndarray:
    """The versions that drew the tokens of items, [len(items), T].

    Without rollouts in flight, a view of one number, which takes no memory.
    """
    R, shape = len(self.version_RxT), (len(items), self.T)
    version = np.broadcast_to(np.int32(self.version), shape)
    if R:
      version = version.copy()
      version[items < R] = self.version_RxT[items[items < R]]
    return version

  def slot_state(self, items) -> dict:
    """The fields of Slots.row for slots that take items.

    Decoding begins with the last token, which is not in the cache yet.
    """
    group, problem = self.group_B[items], self.problem_B[items]
    prompts, drawn = self.prompts, self.out.len_R[items]
    state = dict(
        token_R=np.where(
            drawn > 0, self.out.tokens_RxT[items, np.maximum(drawn - 1, 0)],
            prompts.tokens_PxS[problem, prompts.len_P[problem] - 1]),
        position_R=self.length(items) - 1, count_R=drawn,
        id_R=prompts.id_P[problem], rollout_R=self.number_B[items],
        key_Rx2=self.key_Ex2[group])
    if self.interrupt is None:
      return state
    return state | dict(interrupt_R=self.limit_B[items],
                        matched_R=self._matched(items))

  def _matched(self, items) -> np.ndarray:
    """The state of interrupt.unless's automaton, see interrupt.matched."""
    matched = np.zeros(len(items), np.int32)
    if self.interrupt.unless:
      drawn = self.out.len_R[items]
      for i in np.flatnonzero(drawn):
        # Only tokens before the interruption change the state.
        before = min(drawn[i], self.limit_B[items[i]])
        matched[i] = interrupt_lib.matched(
            self.out.tokens_RxT[items[i], :before], self.interrupt.unless)
    return matched

  def add(self, items, rows, before, after: Rows, drawn: Drawn) -> None:
    """Stores the tokens that the slots `rows` drew for `items` in a chunk.

    `before` has the number of tokens of each item before the chunk.
    """
    out, C = self.out, drawn.tokens_RxC.shape[1]
    new = after.count_R[rows] - before
    # Flat indices are three times as fast as (item, position) pairs, and the
    # devices wait for this function.
    index = np.repeat(np.arange(len(rows)), new)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(new) - new, new)
    source = (rows * C)[index] + offset
    target = (items * self.T + before)[index] + offset
    np.put(out.tokens_RxT, target, drawn.tokens_RxC.reshape(-1)[source])
    np.put(out.behavior_logp_RxT, target, drawn.logp_RxC.reshape(-1)[source])
    out.len_R[items] = after.count_R[rows]
    out.entropy_R[items] += drawn.entropy_R[rows]
    out.ended_R[items] = drawn.ended_R[rows]

  def addresses(self, items) -> Items:
    return Items(self.groups.position_E[self.group_B[items]],
                 self.problem_B[items], self.number_B[items])

  def rollouts(self, items) -> Rollouts:
    """The rollouts of items, with forced_RxT if the sampler interrupts."""
    rollouts = jax.tree.map(lambda x: x[items], self.out)
    if self.interrupt is None:
      return rollouts
    return rollouts.replace(forced_RxT=interrupt_lib.forced(
        rollouts.tokens_RxT, rollouts.len_R, self.limit_B[items],
        self.interrupt))


class Slots:
  """The slots of all blocks: the item of each, and `row`, the input of decode.

  The slots of a block are neighbours.
  """

  def __init__(self, R: int, G: int, *, interrupts: bool):
    zeros = lambda dtype, *shape: np.zeros((R, *shape), dtype)
    self.G, self.item_R = G, zeros(np.int64)
    self.row = Rows(
        token_R=zeros(np.int32), position_R=zeros(np.int32),
        count_R=zeros(np.int32), id_R=zeros(np.uint32),
        rollout_R=zeros(np.uint32), key_Rx2=zeros(np.uint32, 2),
        active_R=zeros(bool),
        **(dict(interrupt_R=zeros(np.int32), matched_R=zeros(np.int32))
           if interrupts else {}))

  @property
  def per_block(self) -> int:
    """Slots of a block."""
    return len(self.item_R) // self.G

  @property
  def active_GxR(self) -> np.ndarray:
    return self.row.active_R.reshape(self.G, -1)

  def put(self, rows, items, state: dict) -> None:
    """Gives slots these items; `state` is a result of ItemStore.slot_state."""
    self.item_R[rows] = items
    for name, value in state.items():
      getattr(self.row, name)[rows] = value
    self.row.active_R[rows] = True

  def keep(self, rows) -> None:
    """Keeps these slots, in this order; each block keeps equally many."""
    self.item_R = self.item_R[rows]
    self.row = jax.tree.map(lambda x: x[rows], self.row)

  def update(self, after: Rows) -> None:
    """Replaces fields of `row` by writable copies of what decode returns."""
    self.row = self.row.replace(**{
        name: np.array(x) for name, x in vars(after).items() if x is not None})


class Scheduler:
  """Gives slots the rollouts of one batch, and stores the tokens they draw.

  Attributes:
    units: units that wait and are assigned to no block yet.
    queued: for each block, the items assigned to it that wait for a slot.
    places: for each block, the index in its window of the sequence of each of
      its first queued items.
    refused_G: whether the block has no space for its next queued item.
    done: items that are complete and not yet reported.
  """

  def __init__(self, state: InFlightState, source: GroupSource,
               rule: BatchRule, *, version: int, sizes: Sizes, G: int,
               interrupt: interrupt_lib.Interrupt | None):
    self.sizes, self.prompts = sizes, source.prompts
    self._layout, self.evicted_count = state.sampler_layout, 0
    self.progress = GroupProgress(state, source, rule, version=version)
    self.items = ItemStore(
        state, source, self.progress.groups, version=version,
        T=sizes.max_new_tokens, interrupt=interrupt)
    done_B, group_B = self.items.done_B, self.items.group_B
    self.done = np.flatnonzero(done_B)
    self.progress.complete(group_B[self.done])
    waiting = np.flatnonzero(~done_B & self.progress.may_start_E[group_B])
    R = smallest(sizes.rows, min(-(-len(waiting) // G) * G, sizes.rows[-1]))
    self.slots = Slots(R, G, interrupts=interrupt is not None)
    self._enqueue(waiting)

  def _enqueue(self, items) -> None:
    """Queues items: first those with tokens, by decreasing length."""
    resumed = items[self.items.out.len_R[items] > 0]
    resumed = resumed[np.argsort(-self.items.length(resumed), kind="stable")]
    items = np.concatenate([resumed, items[self.items.out.len_R[items] == 0]])
    self.units = collections.deque(
        np.split(items, np.flatnonzero(self._begins(items)))[1:])
    self.queued = [np.zeros(0, np.int64)] * self.slots.G
    self.places = [np.zeros(0, np.int64)] * self.slots.G
    self.refused_G = np.zeros(self.slots.G, bool)

  def _begins(self, items) -> np.ndarray:
    """Whether each item's sequence differs from that of the item before."""
    sequence = np.where(  # its number, negative for a sequence of one item
        self.items.out.len_R[items] > 0, -1 - items, self.items.group_B[items])
    return np.diff(sequence, prepend=np.nan) != 0

  @property
  def waiting(self) -> bool:
    """Whether items wait."""
    return bool(self.units) or any(map(len, self.queued))

  @property
  def free_G(self) -> np.ndarray:
    """Free slots of each block; 0 if the block is refused."""
    return np.where(self.refused_G, 0, (~self.slots.active_GxR).sum(axis=1))

  @property
  def wanted_slots(self) -> int:
    """Slots of the next chunk: all while items wait, then fewer."""
    if self.waiting:
      return len(self.slots.item_R)
    most_active = int(self.slots.active_GxR.sum(axis=1).max())
    return smallest(self.sizes.rows, most_active * self.slots.G)

  @property
  def starving(self) -> bool:
    """Whether a slot is free while an item waits, after `fill`."""
    return bool(self.free_G.any() and self.waiting)

  def _assign(self) -> None:
    """Assigns units to blocks, up to a window of sequences each.

    A unit goes to the block with the smallest load: queued items minus free
    slots. When no unit is left, a block with free slots takes items from the
    block with the largest load, until both loads are equal or one is 0.
    """
    load_G = np.array([len(queued) for queued in self.queued]) - self.free_G
    capacity_G = self.sizes.window - np.array(
        [self._begins(queued).sum() for queued in self.queued])
    while self.units and (capacity_G > 0).any():
      unit = self.units.popleft()
      g = np.where(capacity_G > 0, load_G, np.inf).argmin()
      self.queued[g] = np.concatenate([self.queued[g], unit])
      load_G[g] += len(unit)
      capacity_G[g] -= 1
    while not self.units and load_G.min() < 0 < load_G.max():
      thief, owner = load_G.argmin(), load_G.argmax()
      count = min(-(-(load_G[owner] - load_G[thief]) // 2), load_G[owner])
      taken = self.queued[owner][-count:]
      self.queued[owner] = self.queued[owner][:-count]
      self.queued[thief] = np.concatenate([self.queued[thief], taken])
      load_G[owner] -= count
      load_G[thief] += count

  def move_window(self) -> Prompts:
    """The next window of each block, [G * W], as prompts of a prefill."""
    self._assign()
    begins = [self._begins(queued) for queued in self.queued]
    first = [queued[new][:self.sizes.window]
             for queued, new in zip(self.queued, begins, strict=True)]
    L = smallest(self.sizes.prefill_lengths, int(
        self.items.length(np.concatenate(first)).max(initial=1)))
    W, S = self.sizes.at_once(L), self.prompts.tokens_PxS.shape[1]
    out = Prompts(np.zeros((self.slots.G * W, L), np.int32),
                  np.ones(self.slots.G * W, np.int32),
                  np.zeros(self.slots.G * W, np.uint32))
    for g, items in enumerate(first):
      places, items = np.cumsum(begins[g]) - 1, items[:W]
      self.places[g] = places[places < W]
      index = g * W + np.arange(len(items))
      out.tokens_PxS[index, :min(S, L)] = self.prompts.tokens_PxS[
          self.items.problem_B[items], :L]
      out.len_P[index] = self.items.length(items)
      for i, item in zip(index, items, strict=True):
        if drawn := self.items.out.len_R[item]:
          length = out.len_P[i]
          out.tokens_PxS[i, length - drawn:length] = (
              self.items.out.tokens_RxT[item, :drawn])
    return out

  def candidates(self) -> list[Candidates]:
    """The waiting items that could take the free slots of each block.

    These are the first items of its queue whose sequences are in the window,
    and its lowest free slots.
    """
    out = []
    for g, active in enumerate(self.slots.active_GxR):
      free = np.flatnonzero(~active)[:len(self.places[g])]
      items, problem_B = self.queued[g][:len(free)], self.items.problem_B
      out.append(Candidates(
          row_F=g * self.slots.per_block + free,
          place_F=self.places[g][:len(free)],
          length_F=self.items.length(items), problem_F=problem_B[items],
          prompt_F=self.prompts.len_P[problem_B[items]]))
    return out

  def fill(self, candidates: list[Candidates], counts: list[int]) -> None:
    """Gives the first counts[g] candidates of each block g their slots.

    A block in which not all get one is refused until the next `evict`.
    """
    for g, (block, count) in enumerate(zip(candidates, counts, strict=True)):
      self.refused_G[g] |= count < len(block.row_F)
      items = self.queued[g][:count]
      self.progress.start(self.items.group_B[items])
      self.slots.put(block.row_F[:count], items, self.items.slot_state(items))
      self.queued[g] = self.queued[g][count:]
      self.places[g] = self.places[g][count:]

  def evict(self, rows) -> None:
    """Takes slots from active items; the longest get a slot again first.

    Blocks that were refused may be filled again.
    """
    rows = np.array(rows, np.int64)
    self.refused_G[:] = False
    self.slots.row.active_R[rows] = False
    self.evicted_count += len(rows)
    block_of_row = rows // self.slots.per_block
    for g in np.unique(block_of_row):
      evicted = self.slots.item_R[rows[block_of_row == g]]
      queued = np.concatenate([evicted, self.queued[g]])
      order = np.argsort(-self.items.out.len_R[queued], kind="stable")
      self.queued[g], self.places[g] = queued[order], self.places[g][:0]

  def harvest(self, after: Rows, drawn: Drawn) -> None:
    """Stores the tokens that the slots drew in a chunk."""
    rows = np.flatnonzero(self.slots.row.active_R)
    items = self.slots.item_R[rows]
    self.items.add(items, rows, self.slots.row.count_R[rows], after, drawn)
    self.slots.update(after)
    self.done = items[~after.active_R[rows]]
    self.progress.complete(self.items.group_B[self.done])

  def newly_ended(self) -> tuple[Items, Rollouts]:
    """The rollouts that ended in the last chunk; at first, those of `state`."""
    return self.items.addresses(self.done), self.items.rollouts(self.done)

  def completed_batch(self, chosen) -> CompletedBatch:
    """The batch of the chosen groups."""
    groups, offset_E = self.progress.groups, self.progress.groups.offset_E
    chosen = chosen[np.argsort(groups.position_E[chosen], kind="stable")]
    items = np.concatenate([
        offset_E[group] + np.arange(groups.n_E[group]) for group in chosen])
    return CompletedBatch(
        jax.tree.map(lambda x: x[chosen], groups), self.items.addresses(items),
        self.items.rollouts(items), self.items.versions(items),
        self.evicted_count)

  def remaining_state(self, chosen) -> InFlightState:
    """The state without the chosen groups."""
    steps, not_started_E, in_flight_E = self.progress.remaining(chosen)
    items = np.flatnonzero(in_flight_E[self.items.group_B])
    out = self.items.rollouts(items)
    drawn = np.arange(self.items.T)[None] < out.len_R[:, None]
    groups = lambda mask_E: jax.tree.map(
        lambda x: x[mask_E], self.progress.groups)
    return InFlightState(
        steps, groups(not_started_E), groups(in_flight_E), out.len_R,
        out.ended_R, out.entropy_R, out.tokens_RxT[drawn],
        out.behavior_logp_RxT[drawn], self.items.versions(items)[drawn],
        self._layout)
