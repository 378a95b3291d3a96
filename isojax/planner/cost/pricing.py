"""What runs are priced on: a model on a machine, sharded, with assumptions."""

import dataclasses
from collections.abc import Callable

import numpy as np

from isojax.errors import InputError
from isojax.planner.cost import roofline
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost.roofline import Cost, Efficiency, Mesh, Workload
from isojax.planner.cost.machine import Machine
from isojax.planner.cost.model_shape import ModelShape

STEP = (32, 128)  # (Bp, n) by which meshes are compared


@dataclasses.dataclass(frozen=True)
class Price:
  """Everything that a price depends on but the allocation."""

  shape: ModelShape
  machine: Machine
  mesh: Mesh
  workload: Workload
  efficiency: Efficiency
  rows: int  # decoded at once on the whole machine, at most
  micro_rows: int  # rollouts in a microbatch of the longest, at most
  chunked_head: bool
  eval_rollouts: Callable[[int, int], int] | None  # of M updates of B rollouts
  eval_k: int  # samples of a validation problem

  def run(self, Bp, n, M) -> Cost:
    """M steps with their evaluations; without these, arrays too."""
    return roofline.run_cost(
        Bp, n, M, shape=self.shape, machine=self.machine, mesh=self.mesh,
        workload=self.workload, efficiency=self.efficiency, rows=self.rows,
        microbatches=np.ceil(Bp * n / self.micro_rows),
        eval_rollouts=(self.eval_rollouts(M, Bp * n) if self.eval_rollouts
                       else 0),
        eval_k=self.eval_k)

  def memory(self, B: int, rows: int) -> memory_lib.Memory:
    """A device's, with B rollouts in a step and `rows` decoded at once."""
    return memory_lib.memory(
        self.shape, self.workload, self.machine, self.mesh, rows=rows,
        microbatch_rows=min(B, self.micro_rows),
        chunked_head=self.chunked_head)


def packed(shape: ModelShape, workload: Workload, machine: Machine, *,
           rows: int) -> Price:
  """A price on any trainer: on the mesh with the fastest step that fits.

  Assumes a packed update that computes the forward twice, with fused attention
  and a chunked head; decodes as many of `rows` as memory admits.

  Raises:
    InputError: no mesh fits with one row a shard.
  """
  workload = dataclasses.replace(workload, padded=False, remat=True)
  price = lambda mesh, local, micro: Price(
      shape=shape, machine=machine, mesh=mesh, workload=workload,
      efficiency=roofline.ASSUMED, rows=local * mesh.data * mesh.fsdp,
      micro_rows=micro * mesh.data * mesh.fsdp,
      chunked_head=True, eval_rollouts=None, eval_k=1)
  memory = lambda *args: price(*args).memory(2**60, price(*args).rows)
  smallest = {mesh: memory(mesh, 1, 1)
              for mesh in memory_lib.meshes(shape, machine)}
  found = []
  for mesh in (mesh for mesh, needed in smallest.items() if needed.fits):
    most = max(1, rows // (mesh.data * mesh.fsdp))
    found.append(price(
        mesh, memory_lib.largest(lambda r: memory(mesh, r, 1).fits, most),
        memory_lib.largest(lambda r: memory(mesh, 1, r).fits, 2**20)))
  if not found:
    mesh = min(smallest, key=lambda mesh: smallest[mesh].total)
    raise InputError(
        f"{machine.name}: the model does not fit, however it is sharded; at "
        f"mesh data={mesh.data} fsdp={mesh.fsdp} tensor={mesh.tensor} with one "
        f"row a shard: {smallest[mesh].text}; take more chips, larger ones, a "
        "smaller model or shorter answers")
  return min(found, key=lambda price: price.run(*STEP, 1).seconds)


def checked(price: Price) -> Price:
  """The price itself.

  Raises:
    InputError: what it is of does not fit the memory.
  """
  needed = price.memory(2**60, price.rows)
  if needed.fits:
    return price
  raise InputError(
      f"{price.machine.name}: a microbatch of {price.micro_rows:,} rollouts "
      f"does not fit: {needed.text}; use fewer recipe.loss.microbatch_tokens "
      "or recipe.loss.remat, more devices on mesh.fsdp or mesh.tensor, fewer "
      "sampler.slots, or shorter answers")
