"""Which rollout each slot decodes next: GroupProgress, ItemStore and Slots.

Each block of the mesh holds the rollouts of a few problems, whose prompts are
prefilled together, as its window. A sequence is continued by the rollouts of a
group, which are a unit, or by one rollout with tokens.
"""

import collections

import jax
import numpy as np

from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling.flight import (
  CompletedBatch,
  GroupProgress,
  InFlightState,
  Items,
  Rule,
  Source,
)
from isojax.sampling.items import ItemStore
from isojax.sampling.sizes import Sizes, smallest
from isojax.sampling.slots import Slots
from isojax.types import Drawn, Prompts, Rollouts, Rows


class Scheduler:
  """Gives slots the rollouts of one batch, and stores what they draw.

  `queued` has, of each block, the items dealt to it, and `places` the places in
  its window of the sequences of the first of them. `units` wait and are dealt
  to no block. `done` items are complete and not yet reported.
  """

  def __init__(self, state: InFlightState, source: Source, rule: Rule, *,
               version: int, sizes: Sizes, G: int,
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
    """Queues items: those with tokens first, the longest of them first."""
    again = items[self.items.out.len_R[items] > 0]
    again = again[np.argsort(-self.items.length(again), kind="stable")]
    items = np.concatenate([again, items[self.items.out.len_R[items] == 0]])
    self.units = collections.deque(
        np.split(items, np.flatnonzero(self._begins(items)))[1:])
    self.queued = [np.zeros(0, np.int64)] * self.slots.G
    self.places = [np.zeros(0, np.int64)] * self.slots.G
    self.refused_G = np.zeros(self.slots.G, bool)  # no space for what waits

  def _begins(self, items) -> np.ndarray:
    """Whether each item continues another sequence than the one before it."""
    sequence = np.where(
        self.items.out.len_R[items] > 0, -1 - items, self.items.group_B[items])
    return np.diff(sequence, prepend=np.nan) != 0

  @property
  def waiting(self) -> bool:
    """Whether items wait."""
    return bool(self.units) or any(map(len, self.queued))

  @property
  def free_G(self) -> np.ndarray:
    """Free slots of each block; 0 if it has no space for what waits."""
    return np.where(self.refused_G, 0, (~self.slots.active_GxR).sum(axis=1))

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
        self.items.length(np.concatenate(first)).max(initial=1)))
    W, S = self.sizes.at_once(L), self.prompts.tokens_PxS.shape[1]
    out = Prompts(np.zeros((self.slots.G * W, L), np.int32),
                  np.ones(self.slots.G * W, np.int32),
                  np.zeros(self.slots.G * W, np.uint32))
    for g, items in enumerate(first):
      slots, items = np.cumsum(begins[g]) - 1, items[:W]
      self.places[g] = slots[slots < W]
      at = g * W + np.arange(len(items))
      out.tokens_PxS[at, :min(S, L)] = self.prompts.tokens_PxS[
          self.items.problem_B[items], :L]
      out.len_P[at] = self.items.length(items)
      for slot, item in zip(at, items, strict=True):
        if drawn := self.items.out.len_R[item]:
          length = out.len_P[slot]
          out.tokens_PxS[slot, length - drawn:length] = (
              self.items.out.tokens_RxT[item, :drawn])
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
    for g, active in enumerate(self.slots.active_GxR):
      free = np.flatnonzero(~active)[:len(self.places[g])]
      rows, items = g * self.slots.rows + free, self.queued[g][:len(free)]
      count = allocate(g, rows, items, self.places[g][:len(free)])
      self.refused_G[g] |= count < len(free)
      self._start(rows[:count], items[:count])
      taken.append((free[:count], self.places[g][:count]))
      self.queued[g] = self.queued[g][count:]
      self.places[g] = self.places[g][count:]
    F = smallest((0, -(-self.slots.rows // 8), self.slots.rows),
                 max(len(rows) for rows, _ in taken))
    row_GxF = np.full((self.slots.G, F), self.slots.rows, np.int32)
    slot_GxF = np.zeros((self.slots.G, F), np.int32)
    for g, (rows, slots) in enumerate(taken):
      row_GxF[g, :len(rows)], slot_GxF[g, :len(rows)] = rows, slots
    return row_GxF, slot_GxF

  def _start(self, rows, items) -> None:
    """Gives slots these items."""
    self.progress.start(self.items.group_B[items])
    self.slots.put(rows, items, self.items.slot_state(items))

  def evict(self, rows) -> None:
    """Takes slots from active items, which are next to get one again."""
    rows = np.array(rows, np.int64)
    self.refused_G[:] = False
    self.slots.row.active_R[rows] = False
    self.evicted_count += len(rows)
    for g in np.unique(rows // self.slots.rows):
      lost = self.slots.item_R[rows[rows // self.slots.rows == g]]
      queued = np.concatenate([lost, self.queued[g]])
      order = np.argsort(-self.items.out.len_R[queued], kind="stable")
      self.queued[g], self.places[g] = queued[order], self.places[g][:0]

  def harvest(self, after: Rows, drawn: Drawn) -> None:
    """Stores what the slots drew in a chunk, on the host."""
    rows = np.flatnonzero(self.slots.row.active_R)
    items = self.slots.item_R[rows]
    self.items.add(items, rows, self.slots.row.count_R[rows], after, drawn)
    self.slots.update(after)
    self.done = items[~after.active_R[rows]]
    self.progress.complete(self.items.group_B[self.done])

  def ended(self) -> tuple[Items, Rollouts]:
    """The rollouts that ended in the last chunk; at first those in flight."""
    return self.items.addresses(self.done), self.items.rollouts(self.done)

  def completed_batch(self, chosen) -> CompletedBatch:
    """The batch of the chosen groups."""
    groups, offset_E = self.progress.groups, self.progress.groups.offset_E
    chosen = chosen[np.argsort(groups.position_E[chosen], kind="stable")]
    items = np.concatenate(
        [offset_E[e] + np.arange(groups.n_E[e]) for e in chosen])
    return CompletedBatch(
        jax.tree.map(lambda x: x[chosen], groups), self.items.addresses(items),
        self.items.complete_rollouts(items), self.items.versions(items),
        self.evicted_count)

  def remaining_state(self, chosen) -> InFlightState:
    """The state without the chosen groups."""
    steps, ahead_E, kept_E = self.progress.remaining(chosen)
    items = np.flatnonzero(kept_E[self.items.group_B])
    out = self.items.rollouts(items)
    drawn = np.arange(self.items.T)[None] < out.len_R[:, None]
    of = lambda which: jax.tree.map(lambda x: x[which], self.progress.groups)
    return InFlightState(
        steps, of(ahead_E), of(kept_E), out.len_R, out.ended_R, out.entropy_R,
        out.tokens_RxT[drawn], out.behavior_logp_RxT[drawn],
        self.items.versions(items)[drawn], self._layout)
