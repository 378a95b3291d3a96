"""Decides on the host which rollout each slot of the sampler decodes.

A queue of Bp * n rollouts, problem-major, is cut evenly over the G blocks of
the mesh. A slot takes the next rollout of its own block. The prompts of the
next W problems of a block are prefilled together, as its window; the window
moves on when all of its rollouts have started.
"""

import dataclasses

import jax
import numpy as np

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


def halves(size: int, unit: int, times: int, least: int) -> tuple[int, ...]:
  """Returns size, size / 2, ... after up to `times` halvings, ascending.

  All are multiples of `unit`; none but the first is below `least` units.
  """
  each = [-(-size // (2**i * unit)) for i in range(times + 1)]
  return tuple(sorted({unit * x for x in each if x >= min(least, each[0])}))


def smallest(sizes: tuple[int, ...], needed: int) -> int:
  """Returns the first of the ascending sizes that is at least `needed`."""
  return next(size for size in sizes if size >= needed)


@dataclasses.dataclass
class Queue:
  """Rollouts that wait, and those that slots hold; changed in place.

  Items are numbered problem * n + rollout. A block's slots are neighbours.
  Problems are ordered by the length of their prompt, shortest first; position p
  of that order of items has the problem of rank p // n.
  """

  prompts: Prompts  # host arrays
  n: int
  G: int
  W: int  # prompts of a block's window
  problem_P: np.ndarray  # problems by rank
  next_G: np.ndarray  # position of each block's next item
  last_G: np.ndarray  # position behind each block's last item
  first_G: np.ndarray  # rank of the first problem in each block's window
  known_G: np.ndarray  # position behind the last item with a prompt there
  item_R: np.ndarray  # the item that each slot holds
  row: Rows  # the state of each slot
  out: Rollouts  # the tokens drawn so far, by item
  interrupt_B: np.ndarray | None  # L of each item, see interrupt; None: off

  @property
  def waiting(self) -> bool:
    return bool((self.next_G < self.last_G).any())

  @property
  def most_active(self) -> int:
    """Active slots of the block with most of them."""
    return int(self.row.active_R.reshape(self.G, -1).sum(axis=1).max())

  @property
  def starving(self) -> bool:
    """Whether a block has both a free slot and a waiting item."""
    free_G = (~self.row.active_R.reshape(self.G, -1)).any(axis=1)
    return bool((free_G & (self.next_G < self.last_G)).any())


def start(prompts: Prompts, n: int, *, G: int, R: int, W: int, T: int,
          interrupt_B=None) -> Queue:
  """Returns a queue of which nothing has started.

  Args:
    prompts: host arrays.
    n: rollouts of each prompt.
    G: blocks of the mesh.
    R: slots of all blocks.
    W: prompts of a block's window.
    T: new tokens of a rollout, at most.
    interrupt_B: new tokens of each item before the phrase; None: it is off.
  """
  P = len(prompts.len_P)
  B = P * n
  edge = np.arange(G + 1) * B // G
  zeros = lambda dtype, *shape: np.zeros(shape, dtype)
  return Queue(
      prompts=prompts, n=n, G=G, W=W,
      problem_P=np.argsort(prompts.len_P, kind="stable"),
      next_G=edge[:-1].copy(), last_G=edge[1:],
      first_G=zeros(np.int64, G), known_G=zeros(np.int64, G),
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
      interrupt_B=interrupt_B)


def move_window(q: Queue) -> Prompts:
  """Returns each block's next W problems with a waiting rollout, [G * W].

  Beyond the last one, problem 0 fills the shape.
  """
  q.first_G = q.next_G // q.n
  q.known_G = np.minimum((q.first_G + q.W) * q.n, q.last_G)
  rank_GxW = q.first_G[:, None] + np.arange(q.W)[None]
  waits_GxW = rank_GxW * q.n < q.last_G[:, None]
  waits_GxW &= (q.next_G < q.last_G)[:, None]
  index = np.where(
      waits_GxW, q.problem_P[np.minimum(rank_GxW, len(q.problem_P) - 1)],
      0).reshape(-1)
  return Prompts(q.prompts.tokens_PxS[index], q.prompts.len_P[index],
                 q.prompts.id_P[index])


def fill(q: Queue) -> tuple[np.ndarray, np.ndarray]:
  """Gives free slots the waiting items whose prompts are in the window.

  A block fills its lowest free slots, so every slot below a filled one is
  active. `compact`, which is stable, therefore leaves filled slots where they
  are, and the result may be used after it.

  Returns:
    row, slot [G, F]: slots inside their block that were filled, and the window
    slots of their prompts. F is 0, an eighth of a block's slots, or all; rows
    equal to the number of a block's slots are padding.
  """
  R_b = len(q.item_R) // q.G
  taken = []
  for g in range(q.G):
    free = np.flatnonzero(~q.row.active_R[g * R_b:(g + 1) * R_b])
    count = max(0, min(len(free), q.known_G[g] - q.next_G[g]))
    rank, rollout = np.divmod(q.next_G[g] + np.arange(count), q.n)
    _hold(q, g * R_b + free[:count], q.problem_P[rank], rollout)
    taken.append((free[:count], rank - q.first_G[g]))
    q.next_G[g] += count
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
    The items that ended; (item, position) of each token that was stored.
  """
  rows = np.flatnonzero(slots.row.active_R)
  items, before = slots.item_R[rows], slots.row.count_R[rows]
  new = np.arange(drawn.tokens_RxC.shape[1])
  at, col = np.nonzero(new < (after.count_R[rows] - before)[:, None])
  target = items[at], before[at] + col
  out.tokens_RxT[target] = drawn.tokens_RxC[rows[at], col]
  out.behavior_logp_RxT[target] = drawn.logp_RxC[rows[at], col]
  out.len_R[items] = after.count_R[rows]
  out.entropy_R[items] += drawn.entropy_R[rows]
  out.ended_R[items] = drawn.ended_R[rows]
  slots.row = jax.tree.map(np.array, after)  # writable
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
