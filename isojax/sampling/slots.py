"""The slots that are decoded: which rollout each has, and its device state."""

import jax
import numpy as np

from isojax.types import Rows


class Slots:
  """The slots of all blocks; those of a block are neighbours.

  `item_R` is the rollout in each slot, `row` its device state.
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
  def rows(self) -> int:
    """Slots of a block."""
    return len(self.item_R) // self.G

  @property
  def active_GxR(self) -> np.ndarray:
    return self.row.active_R.reshape(self.G, -1)

  @property
  def most_active(self) -> int:
    """Active slots of the block with most of them."""
    return int(self.active_GxR.sum(axis=1).max())

  def put(self, rows, items, state: dict) -> None:
    """Gives slots these items, with the fields of their device state."""
    self.item_R[rows] = items
    for name, value in state.items():
      getattr(self.row, name)[rows] = value
    self.row.active_R[rows] = True

  def compact(self, R: int) -> np.ndarray:
    """Keeps R slots, the active ones first; returns their places, [G, R / G].
    """
    take_GxR = np.argsort(
        ~self.active_GxR, axis=1, kind="stable")[:, :R // self.G]
    index = (take_GxR + np.arange(self.G)[:, None] * self.rows).reshape(-1)
    self.item_R = self.item_R[index]
    self.row = jax.tree.map(lambda x: x[index], self.row)
    return take_GxR

  def update(self, after: Rows) -> None:
    """Replaces the device state by writable copies of what has changed."""
    self.row = self.row.replace(**{
        name: np.array(x) for name, x in vars(after).items() if x is not None})
