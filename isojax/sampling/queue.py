"""Which rollout each slot decodes: bookkeeping on the host, a function of data.

A queue of Bp * n rollouts, problem-major, is cut evenly over the G blocks of
the mesh. Slots take the next rollouts of their own block, whose prompts stand
in a window of W problems that moves on when all of its rollouts have started.
"""

import dataclasses

import jax
import numpy as np

from isojax.types import Drawn
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import Rows


def shares(parts: int, size: int, unit: int) -> tuple[int, ...]:
  """size * i / parts for i = 1 .. parts, rounded up to `unit`; at most size."""
  each = {min(size, -(-size * i // (parts * unit)) * unit)
          for i in range(1, parts + 1)}
  return tuple(sorted(each))


def halves(size: int, unit: int, times: int, least: int) -> tuple[int, ...]:
  """size, size / 2, ... `times` halvings, as multiples of `unit`; ascending.

  None but the first is below `least` units.
  """
  each = [-(-size // (2**i * unit)) for i in range(times + 1)]
  return tuple(sorted({unit * x for x in each if x >= min(least, each[0])}))


def smallest(sizes: tuple[int, ...], needed: int) -> int:
  return next(size for size in sizes if size >= needed)


@dataclasses.dataclass
class Queue:
  """Rollouts that wait, and those that slots hold; changed in place.

  Items are numbered problem * n + rollout. A block's slots are neighbours.
  """

  prompts: Prompts  # host arrays
  n: int
  G: int
  order_B: np.ndarray  # items, those of short prompts first
  next_G: np.ndarray  # of order_B, each block's next item
  last_G: np.ndarray  # behind each block's last item
  window_GxW: np.ndarray  # problems whose prompts are prefilled
  item_R: np.ndarray  # what each slot holds
  row: Rows  # where each slot stands
  out: Rollouts  # what was drawn, by item

  @property
  def waiting(self) -> bool:
    return bool((self.next_G < self.last_G).any())

  @property
  def most_active(self) -> int:
    """Slots that hold something, in the block with most of them."""
    return int(self.row.active_R.reshape(self.G, -1).sum(axis=1).max())

  @property
  def starving(self) -> bool:
    """Whether a block has a free slot and something that waits for it."""
    free_G = (~self.row.active_R.reshape(self.G, -1)).any(axis=1)
    return bool((free_G & (self.next_G < self.last_G)).any())


def start(prompts: Prompts, n: int, *, G: int, R: int, W: int, T: int) -> Queue:
  """Nothing has started; R slots, W prompts a block, T new tokens at most."""
  P = len(prompts.len_P)
  B = P * n
  problem_P = np.argsort(prompts.len_P, kind="stable")
  edge = np.arange(G + 1) * B // G
  nothing = lambda dtype, *shape: np.zeros(shape, dtype)
  return Queue(
      prompts=prompts, n=n, G=G,
      order_B=(problem_P[:, None] * n + np.arange(n)).reshape(-1),
      next_G=edge[:-1].copy(), last_G=edge[1:],
      window_GxW=np.full((G, W), P),  # none yet
      item_R=nothing(np.int64, R),
      row=Rows(token_R=nothing(np.int32, R), position_R=nothing(np.int32, R),
               count_R=nothing(np.int32, R), id_R=nothing(np.uint32, R),
               rollout_R=nothing(np.uint32, R), active_R=nothing(bool, R)),
      out=Rollouts(
          tokens_RxT=nothing(np.int32, B, T), len_R=nothing(np.int32, B),
          ended_R=nothing(bool, B),
          behavior_logp_RxT=nothing(np.float32, B, T),
          entropy_R=nothing(np.float32, B)))


def move_window(q: Queue) -> Prompts:
  """Each block's next W problems with a rollout that waits, [G * W].

  Beyond the last one, problem 0 fills the shape.
  """
  W = q.window_GxW.shape[1]
  q.window_GxW[:] = 0
  for g, (start_, stop) in enumerate(zip(q.next_G, q.last_G, strict=True)):
    waiting = q.order_B[start_:stop] // q.n
    first = waiting[np.flatnonzero(np.diff(waiting, prepend=-1))][:W]
    q.window_GxW[g, :len(first)] = first
  index = q.window_GxW.reshape(-1)
  return Prompts(q.prompts.tokens_PxS[index], q.prompts.len_P[index],
                 q.prompts.id_P[index])


def fill(q: Queue) -> tuple[np.ndarray, np.ndarray]:
  """Free slots take waiting rollouts whose prompts are in the window.

  Returns:
    row, slot [G, F]: slots inside their block that were filled, and the window
    slots of their prompts. F is 0, an eighth of a block's slots, or all; rows
    behind the last slot stand for none.
  """
  R_b = len(q.item_R) // q.G
  taken = []
  for g in range(q.G):
    free = np.flatnonzero(~q.row.active_R[g * R_b:(g + 1) * R_b])
    items = q.order_B[q.next_G[g]:q.last_G[g]][:len(free)]
    known = items[:, None] // q.n == q.window_GxW[g]
    # A window may end inside the items; what follows it waits.
    count = int(np.argmin(np.append(known.any(axis=1), False)))
    taken.append((free[:count], items[:count], known[:count].argmax(axis=1)))
    q.next_G[g] += count
  F = smallest((0, -(-R_b // 8), R_b), max(len(rows) for rows, _, _ in taken))
  row_GxF = np.full((q.G, F), R_b, np.int32)
  slot_GxF = np.zeros((q.G, F), np.int32)
  for g, (rows, items, slots) in enumerate(taken):
    row_GxF[g, :len(rows)], slot_GxF[g, :len(rows)] = rows, slots
    _hold(q, g * R_b + rows, items)
  return row_GxF, slot_GxF


def _hold(q: Queue, rows, items) -> None:
  """Slots begin with items: the prompt's last token is fed first."""
  problem = items // q.n
  last = q.prompts.len_P[problem] - 1
  q.item_R[rows] = items
  q.row.token_R[rows] = q.prompts.tokens_PxS[problem, last]
  q.row.position_R[rows] = last
  q.row.count_R[rows] = 0
  q.row.id_R[rows] = q.prompts.id_P[problem]
  q.row.rollout_R[rows] = items % q.n
  q.row.active_R[rows] = True


def harvest(q: Queue, after: Rows, drawn: Drawn) -> np.ndarray:
  """Takes in what slots drew; the items that ended with it.

  `after` says where the slots stand now.
  """
  rows = np.flatnonzero(q.row.active_R)
  items, before = q.item_R[rows], q.row.count_R[rows]
  new = np.arange(drawn.tokens_RxC.shape[1])
  at, col = np.nonzero(new < (after.count_R[rows] - before)[:, None])
  target = items[at], before[at] + col
  q.out.tokens_RxT[target] = drawn.tokens_RxC[rows[at], col]
  q.out.behavior_logp_RxT[target] = drawn.logp_RxC[rows[at], col]
  q.out.len_R[items] = after.count_R[rows]
  q.out.entropy_R[items] += drawn.entropy_R[rows]
  q.out.ended_R[items] = drawn.ended_R[rows]
  q.row = jax.tree.map(np.array, after)  # writable
  return items[~after.active_R[rows]]


def compact(q: Queue, R: int) -> np.ndarray:
  """Keeps R slots, the active ones among them; which ones, [G, R / G]."""
  active_GxR = q.row.active_R.reshape(q.G, -1)
  take_GxR = np.argsort(~active_GxR, axis=1, kind="stable")[:, :R // q.G]
  index = (take_GxR + np.arange(q.G)[:, None] * active_GxR.shape[1]).reshape(-1)
  q.item_R = q.item_R[index]
  q.row = jax.tree.map(lambda x: x[index], q.row)
  return take_GxR
