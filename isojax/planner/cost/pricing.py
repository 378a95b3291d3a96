"""A price: one model on one machine, sharded in one way, at one efficiency."""

import dataclasses
from collections.abc import Callable

import numpy as np

from isojax.errors import InputError
from isojax.planner.cost import roofline
from isojax.planner.cost import step_memory
from isojax.planner.cost.efficiency import Efficiency
from isojax.planner.cost.machine import Machine
from isojax.models.shape import ModelShape
from isojax.planner.cost.roofline import Cost, Mesh
from isojax.planner.cost.slots import Slots
from isojax.planner.cost.workload import Workload
from isojax.sampling import sizes

STEP = (32, 128)  # (Bp, n) on which meshes are compared
MOST_ROWS = 2**20  # of a microbatch


@dataclasses.dataclass(frozen=True)
class Price:
  """Everything that a price depends on, except the allocation."""

  shape: ModelShape
  machine: Machine
  mesh: Mesh
  workload: Workload
  efficiency: Efficiency
  rows: int  # decoded at once on the whole machine, at most
  micro_rows: int  # rollouts of maximal length in a microbatch, at most
  chunked_head: bool
  whole: bool  # weights are gathered over fsdp while sampling
  eval_rollouts: Callable[[int, int], int] | None  # of M updates of B rollouts
  eval_k: int  # samples per validation problem
  # Of a config's sampler; None: a share of `rows` is kept, see Efficiency.
  slots: Slots | None

  def run(self, Bp, n, M) -> Cost:
    """Returns the cost of M sampling rounds, their steps and evaluations.

    A step takes recipe.rounds of them, one without refill. Without evaluations
    the arguments may be arrays.
    """
    return roofline.run_cost(
        Bp, n, M / self.workload.recipe.rounds, **self._step(Bp, n),
        eval_rollouts=(self.eval_rollouts(M, Bp * n) if self.eval_rollouts
                       else 0),
        eval_k=self.eval_k)

  def step(self, Bp, n) -> Cost:
    """Returns the cost of one step."""
    return roofline.step_cost(Bp, n, **self._step(Bp, n))

  def _step(self, Bp, n) -> dict:
    """Returns the keywords of `roofline.step_cost`."""
    return dict(
        shape=self.shape, machine=self.machine, mesh=self.mesh,
        workload=self.workload, efficiency=self.efficiency, rows=self.rows,
        whole=self.whole, slots=self.slots,
        microbatches=self.microbatches(Bp, n))

  def microbatches(self, Bp, n):
    """Returns the microbatches of one pass over the trained rollouts."""
    recipe = self.workload.recipe
    return recipe.minibatches * np.ceil(
        Bp * recipe.trained(n) / recipe.minibatches / self.micro_rows)

  def memory(self, B: int, rows: int) -> step_memory.Memory:
    """Returns a device's memory at B rollouts per step, `rows` at once."""
    return step_memory.memory(
        self.shape, self.workload, self.machine, self.mesh, rows=rows,
        microbatch_rows=min(B, self.micro_rows), whole=self.whole,
        chunked_head=self.chunked_head, slots=self.slots)

  def with_recipe(self, **changes) -> "Price":
    """Returns the price with these fields of the recipe."""
    recipe = dataclasses.replace(self.workload.recipe, **changes)
    return dataclasses.replace(self, workload=dataclasses.replace(
        self.workload, recipe=recipe))

  def with_rows(self, most: int) -> "Price":
    """Returns the price with as many of `most` rows as the memory admits."""
    G = self.mesh.data * self.mesh.fsdp
    local = sizes.largest(
        lambda r: self.memory(G, r * G).fits, max(1, most // G))
    return dataclasses.replace(self, rows=max(1, local) * G)


def packed(shape: ModelShape, workload: Workload, machine: Machine, *,
           rows: int, efficiency: Efficiency) -> Price:
  """Returns the price on the mesh with the fastest step that fits.

  Assumes a packed update that computes the forward twice, fused attention and
  a chunked head. As many of `rows` are decoded at once as the memory admits.

  Raises:
    InputError: no mesh fits with one row per shard.
  """
  workload = dataclasses.replace(workload, padded=False, remat=True)
  found, smallest = [], []
  for mesh in step_memory.meshes(shape, machine):
    G = mesh.data * mesh.fsdp
    for whole in (False, True)[:1 + (mesh.fsdp > 1)]:
      price = Price(
          shape=shape, machine=machine, mesh=mesh, workload=workload,
          efficiency=efficiency, rows=G, micro_rows=G, chunked_head=True,
          whole=whole, eval_rollouts=None, eval_k=1, slots=None)
      least = price.memory(G, G)
      smallest.append((least.total, mesh, least))
      if least.fits:
        micro = sizes.largest(lambda r: dataclasses.replace(
            price, micro_rows=r * G).memory(r * G, G).fits, MOST_ROWS)
        found.append(dataclasses.replace(
            price.with_rows(rows), micro_rows=micro * G))
  if not found:
    _, mesh, least = min(smallest, key=lambda x: x[0])
    raise InputError(
        f"{machine.name}: the model does not fit, however it is sharded; at "
        f"mesh data={mesh.data} fsdp={mesh.fsdp} tensor={mesh.tensor} with one "
        f"row per shard: {least.text}; take more or larger chips, a smaller "
        "model or shorter answers")
  return min(found, key=lambda price: price.run(*STEP, 1).seconds)


def fitting(price: Price) -> Price:
  """Returns the price with weights gathered while sampling where they fit.

  With pages it says itself whether they are gathered, see pages.admitted.

  Raises:
    InputError: the price does not fit into the memory.
  """
  paged = price.slots is not None and price.slots.page is not None
  for whole in (price.whole,) if paged else (True, False):
    price = dataclasses.replace(price, whole=whole)
    needed = price.memory(MOST_ROWS, price.rows)
    if needed.fits:
      return price
  raise InputError(
      f"{price.machine.name}: a microbatch of {price.micro_rows:,} rollouts "
      f"does not fit: {needed.text}; use fewer recipe.loss.microbatch_tokens "
      "or recipe.loss.remat, more devices on mesh.fsdp or mesh.tensor, fewer "
      "sampler.slots, or shorter answers")
