"""Decides on the host which rollout each slot of the sampler decodes.

One queue of Bp * n rollouts, problem-major, serves the G blocks of the mesh.
Each block holds the rollouts of a few problems: the prompts of W problems are
prefilled together, as its window. When the windows move on, the next problems
of the queue go to the blocks with the least to do. When the queue is empty, a
block with free slots takes rollouts from the block with the most waiting ones.
"""

import dataclasses
import heapq

import jax
import numpy as np

from isojax.sampling import interrupt as interrupt_lib
from isojax.types import Drawn
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import Rows


def shares(parts: int, size: int, unit: int) -> tuple[int, ...]:
  """Returns size * i / parts for i = 1 .. parts, rounded up to `unit`.

  None is larger than `size`.
  """
  each = {min(size, -(-size * i // (parts * unit)) * unit)
          for i in range(1, parts + 1)}
  return tuple(sorted(each))


def smallest(sizes: tuple[int, ...], needed: int) -> int:
  """Returns the first of the ascending sizes that is at least `needed`."""
  return next(size for size in sizes if size >= needed)


@dataclasses.dataclass
class Queue:
  """Rollouts that wait, and those that slots hold; changed in place.

  Items are numbered problem * n + rollout. A block's slots are neighbours.
  Problems are ordered, see `start`; position p of that order of items has the
  problem of rank p // n.
  """

  prompts: Prompts  # host arrays
  n: int
  G: int
  W: int  # prompts of a block's window
  problem_P: np.ndarray  # problems by rank
  next: int  # rank of the first problem that no block holds
  # Of each block: the positions that wait, and the slots in the block's window
  # of the first of them, as far as their prompts are there.
  held: list[np.ndarray]
  slots: list[np.ndarray]
  item_R: np.ndarray  # the item that each slot holds
  row: Rows  # the state of each slot
  out: Rollouts  # the tokens drawn so far, by item
  interrupt_B: np.ndarray | None  # L of each item, see interrupt; None: off
  # With pages: items that have started and lost their slot, and blocks without
  # pages for what waits.
  again: list[int]
  refused_G: np.ndarray

  @property
  def waiting(self) -> bool:
    return bool(self.again) or self.next < len(self.problem_P) or any(
        map(len, self.held))

  @property
  def free_G(self) -> np.ndarray:
    """Free slots of each block; 0 if it has no pages for them."""
    free_G = (~self.row.active_R.reshape(self.G, -1)).sum(axis=1)
    return np.where(self.refused_G, 0, free_G)

  @property
  def most_active(self) -> int:
    """Active slots of the block with most of them."""
    return int(self.row.active_R.reshape(self.G, -1).sum(axis=1).max())

  @property
  def starving(self) -> bool:
    """Whether a slot is free while an item waits, after `fill`."""
    return self.waiting and bool(self.free_G.any())


def start(prompts: Prompts, n: int, *, G: int, R: int, W: int, T: int,
          interrupt_B=None, expected_P=None) -> Queue:
  """Returns a queue of which nothing has started.

  The problems with the longest expected rollouts are first. If nothing is
  expected, those with the shortest prompts are first, so that prompts of
  similar length are prefilled together.

  Args:
    prompts: host arrays.
    n: rollouts of each prompt.
    G: blocks of the mesh.
    R: slots of all blocks.
    W: prompts of a block's window.
    T: new tokens of a rollout, at most.
    interrupt_B: new tokens of each item before the phrase; None: it is off.
    expected_P: new tokens that a rollout of each problem is expected to have;
      None: not known.
  """
  P = len(prompts.len_P)
  B = P * n
  zeros = lambda dtype, *shape: np.zeros(shape, dtype)
  return Queue(
      prompts=prompts, n=n, G=G, W=W,
      problem_P=np.argsort(prompts.len_P if expected_P is None else
                           -np.asarray(expected_P), kind="stable"),
      next=0, held=[zeros(np.int64, 0)] * G, slots=[zeros(np.int64, 0)] * G,
      item_R=zeros(np.int64, R),
      row=Rows(token_R=zeros(np.int32, R), position_R=zeros(np.int32, R),
               count_R=zeros(np.int32, R), id_R=zeros(np.uint32, R),
               rollout_R=zeros(np.uint32, R), active_R=zeros(bool, R),
               **({} if interrupt_B is None else dict(
                   interrupt_R=zeros(np.int32, R),
                   matched_R=zeros(np.int32, R)))),
      out=Rollouts(
          tokens_RxT=zeros(np.int32, B, T), len_R=zeros(np.int32, B),
          ended_R=zeros(bool, B),
          behavior_logp_RxT=zeros(np.float32, B, T),
          entropy_R=zeros(np.float32, B)),
      interrupt_B=interrupt_B, again=[], refused_G=zeros(bool, G))


def _deal(q: Queue) -> None:
  """Gives blocks problems of the queue, up to W problems each.

  A problem goes to the block with the fewest items waiting beyond free slots.
  """
  begins = lambda held: 1 + int((np.diff(held // q.n) != 0).sum())
  room = {g: q.W - (begins(held) if len(held) else 0)
          for g, held in enumerate(q.held)}
  heap = [(len(q.held[g]) - int(free), g)
          for g, free in enumerate(q.free_G) if room[g] > 0]
  heapq.heapify(heap)
  dealt = [[] for _ in q.held]
  while heap and q.next < len(q.problem_P):
    load, g = heapq.heappop(heap)
    dealt[g].append(q.next)
    q.next, room[g] = q.next + 1, room[g] - 1
    if room[g]:
      heapq.heappush(heap, (load + q.n, g))
  for g, ranks in enumerate(dealt):
    items_RxN = np.array(ranks, np.int64)[:, None] * q.n + np.arange(q.n)[None]
    q.held[g] = np.concatenate([q.held[g], items_RxN.reshape(-1)])


def _steal(q: Queue) -> None:
  """Moves waiting items from the fullest block to blocks with free slots.

  Afterwards the two have equally many items waiting beyond free slots, or the
  first has none.
  """
  load_G = np.array([len(held) for held in q.held]) - q.free_G
  while True:
    thief, owner = int(load_G.argmin()), int(load_G.argmax())
    if load_G[thief] >= 0 or load_G[owner] <= 0:
      return
    count = min(-(-int(load_G[owner] - load_G[thief]) // 2),
                int(load_G[owner]))
    taken = q.held[owner][-count:]
    q.held[owner] = q.held[owner][:-count]
    q.held[thief] = np.concatenate([q.held[thief], taken])
    load_G[owner] -= count
    load_G[thief] += count


def move_window(q: Queue) -> Prompts:
  """Returns each block's next W problems with a waiting rollout, [G * W].

  Beyond the last one, problem 0 fills the shape.
  """
  _deal(q)
  if q.next == len(q.problem_P):
    _steal(q)
  index_GxW = np.zeros((q.G, q.W), np.int64)
  for g, held in enumerate(q.held):
    rank = held // q.n
    slot = np.cumsum(np.diff(rank, prepend=rank[:1]) != 0)
    q.slots[g] = slot[slot < q.W]
    index_GxW[g, q.slots[g]] = q.problem_P[rank[:len(q.slots[g])]]
  index = index_GxW.reshape(-1)
  return Prompts(q.prompts.tokens_PxS[index], q.prompts.len_P[index],
                 q.prompts.id_P[index])


def fill(q: Queue, take=None) -> tuple[np.ndarray, np.ndarray]:
  """Gives free slots the waiting items whose prompts are in the window.

  A block fills its lowest free slots, so every slot below a filled one is
  active. `compact`, which is stable, therefore leaves filled slots where they
  are, and the result may be used after it.

  Args:
    q: the queue.
    take: None, or (block, slots, problems, window slots) -> how many of these
      get pages, the first ones. If not all do, the block is refused.

  Returns:
    row, slot [G, F]: slots inside their block that were filled, and the window
    slots of their prompts. F is 0, an eighth of a block's slots, or all; rows
    equal to the number of a block's slots are padding.
  """
  R_b = len(q.item_R) // q.G
  taken = []
  for g in range(q.G):
    free = np.flatnonzero(~q.row.active_R[g * R_b:(g + 1) * R_b])
    free = free[:len(q.slots[g])]
    count = len(free)
    rank, rollout = np.divmod(q.held[g][:count], q.n)
    if take is not None and count:
      count = take(g, g * R_b + free, q.problem_P[rank], q.slots[g][:count])
      q.refused_G[g] |= count < len(free)
      free, rank, rollout = free[:count], rank[:count], rollout[:count]
    _hold(q, g * R_b + free, q.problem_P[rank], rollout)
    taken.append((free, q.slots[g][:count]))
    q.held[g], q.slots[g] = q.held[g][count:], q.slots[g][count:]
  F = smallest((0, -(-R_b // 8), R_b), max(len(rows) for rows, _ in taken))
  row_GxF = np.full((q.G, F), R_b, np.int32)
  slot_GxF = np.zeros((q.G, F), np.int32)
  for g, (rows, slots) in enumerate(taken):
    row_GxF[g, :len(rows)], slot_GxF[g, :len(rows)] = rows, slots
  return row_GxF, slot_GxF


def _hold(q: Queue, rows, problem, rollout) -> None:
  """Starts rollouts in slots: the prompt's last token is fed first."""
  last = q.prompts.len_P[problem] - 1
  q.item_R[rows] = problem * q.n + rollout
  q.row.token_R[rows] = q.prompts.tokens_PxS[problem, last]
  q.row.position_R[rows] = last
  q.row.count_R[rows] = 0
  q.row.id_R[rows] = q.prompts.id_P[problem]
  q.row.rollout_R[rows] = rollout
  q.row.active_R[rows] = True
  if q.interrupt_B is not None:
    q.row.interrupt_R[rows] = q.interrupt_B[q.item_R[rows]]
    q.row.matched_R[rows] = 0


def known(q: Queue, item: int) -> int:
  """Returns the tokens of an item so far, prompt included."""
  return int(q.prompts.len_P[item // q.n] + q.out.len_R[item])


def sequence(q: Queue, item: int) -> np.ndarray:
  """Returns the prompt of an item, and its tokens so far."""
  problem = item // q.n
  return np.concatenate([
      q.prompts.tokens_PxS[problem, :q.prompts.len_P[problem]],
      q.out.tokens_RxT[item, :q.out.len_R[item]]])


def hold_again(q: Queue, row: int, item: int,
               interrupt: interrupt_lib.Interrupt | None) -> None:
  """Continues in a slot a rollout that was put back."""
  _hold(q, row, *divmod(item, q.n))
  drawn = int(q.out.len_R[item])
  q.row.token_R[row] = sequence(q, item)[-1]
  q.row.position_R[row] += drawn
  q.row.count_R[row] = drawn
  if interrupt is not None and interrupt.unless:
    # Only tokens before the interruption change the state, see matched_next.
    before = min(drawn, int(q.interrupt_B[item]))
    q.row.matched_R[row] = interrupt_lib.matched(
        q.out.tokens_RxT[item, :before], interrupt.unless)


def forget_window(q: Queue) -> None:
  """Notes that the prompts of waiting items have to be prefilled again."""
  q.slots = [slots[:0] for slots in q.slots]


CHANGED = ("token_R", "position_R", "count_R", "active_R", "matched_R")


def read(after: Rows, drawn: Drawn) -> tuple[Rows, Drawn]:
  """Returns on the host what a chunk changed of the slots, and what they drew.

  Each array takes a transfer of its own, in one round trip.
  """
  unchanged = {field.name: None for field in dataclasses.fields(after)
               if field.name not in CHANGED}
  return jax.device_get((after.replace(**unchanged), drawn))


def harvest(q: Queue, after: Rows, drawn: Drawn) -> np.ndarray:
  """Stores what the slots drew in a chunk; returns the items that ended.

  Args:
    q: the queue.
    after: the state of the slots after the chunk.
    drawn: the tokens of the chunk.
  """
  ended, _ = store(q, q.out, after, drawn)
  return ended


def store(slots, out: Rollouts, after: Rows, drawn: Drawn):
  """Stores what slots drew in a chunk; updates the state of the slots.

  Args:
    slots: with the item (`item_R`) and the state (`row`) of each slot.
    out: the tokens drawn so far, by item; changed in place.
    after: the state of the slots after the chunk.
    drawn: the tokens of the chunk.

  Returns:
    The items that ended; item * T + position of each token that was stored.
  """
  rows = np.flatnonzero(slots.row.active_R)
  items, before = slots.item_R[rows], slots.row.count_R[rows]
  C, T = drawn.tokens_RxC.shape[1], out.tokens_RxT.shape[1]
  new = after.count_R[rows] - before
  # Positions of flat arrays, because the devices wait: (item, position) pairs
  # take three times as long.
  at = np.repeat(np.arange(len(rows)), new)
  col = np.arange(len(at)) - np.repeat(np.cumsum(new) - new, new)
  source, target = (rows * C)[at] + col, (items * T + before)[at] + col
  np.put(out.tokens_RxT, target, drawn.tokens_RxC.reshape(-1)[source])
  np.put(out.behavior_logp_RxT, target, drawn.logp_RxC.reshape(-1)[source])
  out.len_R[items] = after.count_R[rows]
  out.entropy_R[items] += drawn.entropy_R[rows]
  out.ended_R[items] = drawn.ended_R[rows]
  slots.row = slots.row.replace(**{
      name: np.array(getattr(after, name))  # writable
      for name in CHANGED if getattr(after, name) is not None})
  return items[~after.active_R[rows]], target


def compact(q: Queue, R: int) -> np.ndarray:
  """Keeps R slots, the active ones first, in their order.

  Returns:
    The slots inside their block that are kept, [G, R / G].
  """
  active_GxR = q.row.active_R.reshape(q.G, -1)
  take_GxR = np.argsort(~active_GxR, axis=1, kind="stable")[:, :R // q.G]
  index = (take_GxR + np.arange(q.G)[:, None] * active_GxR.shape[1]).reshape(-1)
  q.item_R = q.item_R[index]
  q.row = jax.tree.map(lambda x: x[index], q.row)
  return take_GxR
