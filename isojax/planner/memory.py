"""The memory of a step on a device, and the mesh, rows and remedies that fit.

isojax/core/memory.py computes the bytes of each program; `memory_of` adds the
optimizer, adapters and critic. With a config `fitting` refuses what does not
fit, without one `on_fastest_mesh`; planner/prices.py calls both.
"""

import dataclasses
import functools
import itertools
import math
import typing

from isojax.core import kernels
from isojax.core.memory import (
  DeviceBytes,
  largest,
  LAST_GROWTH,
  MAX_MICROBATCH,
  Occupancy,
)
from isojax.core.model_shape import ModelShape
from isojax.errors import InputError
from isojax.planner.cost import CostModel, Efficiency, Workload
from isojax.planner.machines import (
  Accelerator,
  ACCELERATORS,
  GPU_SHARE_VARIABLE,
  Machine,
  Mesh,
)

MAX_ROWS = 2**20  # rollouts of the largest microbatch that is tried
CHIP_ROWS = 64  # decoded at once on a chip, without --config and --rows
MAX_GPU_SHARE = 0.95  # of a GPU's memory for jax, as a remedy
TRIED_CHIPS = [2**i for i in range(11)]  # of a machine that a remedy may name
COMPARED_STEP = (32, 128)  # (Bp, n): meshes are compared on this usual step


class Attention(typing.NamedTuple):
  """The keys of the config's sampler that `has_kernel` reads."""

  dtype: str
  attention: str = "auto"
  precision: str = "highest"


def has_kernel(shape: ModelShape, section, *, tensor: int, length: int,
               accelerator: Accelerator) -> bool:
  """Whether isojax computes this attention with a fused kernel.

  `section`: the config's sampler or recipe.loss, with attention, dtype and
  precision. `length`: slots of the longest row.
  """
  platform = accelerator.platform
  obstacles = kernels.obstacles(
      platform,
      capability=accelerator.capability if platform == "gpu" else None,
      H=shape.head_dim, K=shape.kv_heads, tensor=tensor, dtype=section.dtype,
      precision=section.precision, cap=None,
      window=length if shape.window is None else shape.window, length=length)
  kernel = section.attention
  if kernel == "auto":
    kernel = kernels.automatic(obstacles, length)
  # ModelShape does not tell the windows and caps of Gemma.
  return (kernel in obstacles and obstacles[kernel] is None
          and not shape.family.gemma)


PARTS = ("masters", "moments", "average", "base", "copy", "reference",
         "critic", "gradients", "activations", "cache", "logits")


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device by PARTS, in the two phases of a step.

  Float32 are masters (the trained parameters), Adam's moments, the averaged
  policy, reference, critic and gradients. The base of adapters has the compute
  dtype, a copy of the parameters that of its phase.
  """

  # In both phases: masters, moments, average, base, reference, an own critic's.
  always: dict[str, float]
  sampling: dict[str, float]  # with the logits of one position of every row
  update: dict[str, float]  # with logits and their gradient
  available: float  # to jax
  limit: str  # why `available` is less than the chip has; empty if it is not

  @property
  def total(self) -> float:
    """The peak: the larger phase, with the parts of both."""
    return sum(self.always.values()) + max(
        sum(self.sampling.values()), sum(self.update.values()))

  @property
  def fits(self) -> bool:
    return self.total <= self.available

  @property
  def text(self) -> str:
    """The total and every part in GB, for a message."""
    parts = {name: max(phase.get(name, 0.0) for phase in (
        self.always, self.sampling, self.update)) for name in PARTS}
    return (f"{self.total / 1e9:.3g} GB of the {self.available / 1e9:.3g} GB "
            f"that jax uses of a device{self.limit} (" + ", ".join(
                f"{name} {value / 1e9:.3g}" for name, value in parts.items()
                if value) + "; cache and update follow each other)")


def device_bytes(shape: ModelShape, workload: Workload, mesh: Mesh,
                 page: int | None = None) -> DeviceBytes:
  """The bytes of the programs of a workload on a device of a mesh."""
  lengths = workload.lengths
  return DeviceBytes(
      shape, workload.formats, lengths.max_prompt, lengths.max_response,
      fused=workload.fused, fsdp=mesh.fsdp, tensor=mesh.tensor, page=page,
      remat=workload.remat)


def memory(cost_model: CostModel, B: int, rows: int) -> Memory:
  """A device's memory at B rollouts per update, `rows` decoded at once."""
  G = cost_model.mesh.row_shards
  micro = math.ceil(min(B, cost_model.micro_rows) / G)
  return memory_of(cost_model, Occupancy(
      math.ceil(rows / G), micro, micro, cost_model.weights_gathered,
      cost_model.pages))


def memory_of(cost_model: CostModel, occupancy: Occupancy) -> Memory:
  """A device's memory with these slots, rows and pages.

  With LoRA, the base and the merged weights are copies in the compute dtype,
  the update has gradients of whole matrices, and the reference costs nothing.
  """
  shape, workload = cost_model.shape, cost_model.workload
  machine, recipe = cost_model.machine, workload.recipe
  programs = device_bytes(
      shape, workload, cost_model.mesh, cost_model.page).programs(
          occupancy, reference=recipe.kl or recipe.ref_logp,
          average=recipe.average)
  lora = workload.lora_rank is not None
  shards = cost_model.mesh.weight_shards
  trained = shape.lora_params(workload.lora_rank) if lora else shape.params
  base_copy = lora * workload.bytes("compute") * shape.params / shards
  critic = recipe.own_critic * (  # parameters: a vector instead of the head
      trained + shape.width - shape.head * (not shape.tied and not lora))
  return Memory(
      always=dict(
          masters=4 * trained / shards, moments=8 * trained / shards,
          average=4 * trained / shards * recipe.average, base=base_copy,
          reference=programs.reference * (not lora),
          critic=12 * critic / shards),
      # logits: the largest temporaries, of decoding, of a prefill, or of the
      # last growth of the cache: the old arrays of one layer beside the new.
      sampling=dict(copy=programs.weights,
                    cache=programs.cache + programs.window,
                    logits=max(programs.draw_bytes, programs.prefilling,
                               LAST_GROWTH * programs.layer_bytes)),
      update=dict(
          copy=(programs.copy
                + lora * workload.bytes("reduce") * shape.params / shards),
          gradients=4 * (trained + critic) / shards,
          activations=programs.residuals + max(
              0.0, programs.backward - programs.head),
          logits=programs.head),
      available=machine.usable_bytes,
      limit="" if machine.accelerator.platform != "gpu" else (
          f" of {machine.accelerator.hbm_bytes / 1e9:g} GB "
          f"[{GPU_SHARE_VARIABLE}={machine.gpu_share:g}]"))


def sampling_gib(cost_model: CostModel) -> float:
  """sampler.memory_gib of a plan's row without --config, in tenths.

  What both phases leave of a device.
  """
  rows = cost_model.mesh.row_shards
  needed = memory(cost_model, rows, rows)
  free = needed.available - sum(needed.always.values())
  return math.floor(10 * free / 2**30) / 10


def with_rows(cost_model: CostModel, most: int) -> CostModel:
  """The cost model with the slots, up to `most`, that a run of its row admits.

  There may be none.
  """
  G = cost_model.mesh.row_shards
  shape, workload, mesh = (
      cost_model.shape, cost_model.workload, cost_model.mesh)
  sizes = dataclasses.replace(
      device_bytes(shape, workload, mesh), fused=has_kernel(
          shape, Attention(workload.formats.sampled), tensor=mesh.tensor,
          length=workload.lengths.max_prompt,
          accelerator=cost_model.machine.accelerator))
  weights = sizes.held_weights(cost_model.weights_gathered)
  slots, _ = sizes.within(
      sampling_gib(cost_model) * 2**30 - weights, max(1, most // G))
  return cost_model.replace(rows=G * slots)


def with_micro_rows(cost_model: CostModel) -> CostModel:
  """The cost model with the largest microbatches that fit and a run admits."""
  G = cost_model.mesh.row_shards
  admitted = MAX_MICROBATCH // cost_model.workload.lengths.max_response // G
  per_shard = largest(lambda r: memory(
      cost_model.replace(micro_rows=r * G), r * G, G).fits, max(1, min(
          MAX_ROWS, admitted)))
  return cost_model.replace(micro_rows=per_shard * G)


def on_fastest_mesh(shape: ModelShape, workload: Workload, machine: Machine, *,
                    rows: int, efficiency: Efficiency) -> CostModel:
  """The cost model of the mesh with the fastest step; InputError if none fits.

  Assumes a packed update that computes the forward twice, fused attention and
  a chunked head. As many of `rows` are decoded at once as fit into memory.
  """
  workload = dataclasses.replace(workload, padded=False, remat=True)

  def candidates(workload, machine):
    """Each mesh with one row per shard, and the memory that it needs."""
    cost_models = (
        CostModel(shape, machine, mesh, workload, efficiency,
                  rows=mesh.row_shards, micro_rows=mesh.row_shards,
                  weights_gathered=weights_gathered)
        for mesh in machine.meshes(shape.heads)
        for weights_gathered in ((False, True) if mesh.fsdp > 1 else (False,)))
    return [(cost_model, memory(cost_model, cost_model.rows, cost_model.rows))
            for cost_model in cost_models]

  fitting_models = [
      with_slots for cost_model, needed in candidates(workload, machine)
      if needed.fits and (with_slots := with_rows(
          with_micro_rows(cost_model), rows)).rows]
  if not fitting_models:
    cost_model, needed = min(
        candidates(workload, machine), key=lambda pair: pair[1].total)
    fits = lambda other: any(needed.fits for _, needed in candidates(
        other.workload, other.machine))
    raise InputError(
        f"{machine.name}: the model does not fit, however it is sharded; at "
        f"mesh {cost_model.mesh.text} with one row per shard: {needed.text}; "
        f"{remedies(cost_model, fits, sharded=True)}")
  return min(fitting_models, key=lambda cost_model: cost_model.run(
      *COMPARED_STEP, 1).seconds)


def fastest(cost_model: CostModel) -> CostModel:
  """The cost model on the mesh, slots and microbatches of no config."""
  machine = cost_model.machine
  return on_fastest_mesh(
      cost_model.shape, cost_model.workload, machine,
      rows=CHIP_ROWS * machine.chips, efficiency=cost_model.efficiency).replace(
          evaluations=cost_model.evaluations, k=cost_model.k)


def changes(cost_model: CostModel, *, sharded: bool) -> dict:
  """Changes that may make a step fit, in the order in which to try them.

  Option -> function of a CostModel. `sharded`: every mesh was tried, with one
  slot and one row per shard.
  """
  workload, machine = cost_model.workload, cost_model.machine
  mesh, rows = cost_model.mesh, cost_model.mesh.row_shards
  change = functools.partial
  out = {}
  if workload.lora_rank is None and not workload.recipe.own_critic:
    flag = ("--config.model.lora.rank" if cost_model.has_config
            else "--lora_rank")
    out[f"LoRA ({flag}=16)"] = change(CostModel.with_workload, lora_rank=16)
  if not workload.remat:
    out["--config.recipe.loss.remat=True"] = change(
        CostModel.with_workload, remat=True)
  if not sharded and mesh.data > 1:
    out[f"--config.mesh.data=1 --config.mesh.fsdp={rows}"] = change(
        CostModel.replace, mesh=dataclasses.replace(mesh, data=1, fsdp=rows))
  if not sharded and cost_model.micro_rows > rows:
    out["fewer recipe.loss.microbatch_tokens"] = change(
        CostModel.replace, micro_rows=rows)
  if not sharded and cost_model.rows > rows and cost_model.page is None:
    out["fewer sampler.slots"] = change(CostModel.replace, rows=rows)
  if not sharded and cost_model.weights_gathered and mesh.fsdp > 1:
    out["a smaller sampler.memory_gib (so that weights are not gathered over "
        "fsdp)"] = change(CostModel.replace, weights_gathered=False)
  share = machine.gpu_share
  if machine.accelerator.platform == "gpu" and share < MAX_GPU_SHARE:
    out[f"{GPU_SHARE_VARIABLE}={MAX_GPU_SHARE} (jax takes {share:.0%} "
        "of a GPU)"] = change(CostModel.replace, machine=dataclasses.replace(
            machine, gpu_share=MAX_GPU_SHARE))
  return out


def remedies(cost_model: CostModel, fits, *, sharded: bool) -> str:
  """What makes a step fit, and the smallest machines on which it does.

  Names each change that is enough alone, else a smallest set that is enough.
  `fits`: whether a CostModel fits. `sharded`: see `changes`.
  """
  cost_model.run(*COMPARED_STEP, 1)  # InputError: it could not be priced
  options, out = changes(cost_model, sharded=sharded), []
  changed = lambda names: functools.reduce(
      lambda model, name: options[name](model), names, cost_model)
  for count in range(1, len(options) + 1):
    enough = [" and ".join(names)
              for names in itertools.combinations(options, count)
              if fits(changed(names))]
    if enough:
      out = ["it fits with " + ", or with ".join(
          enough if count == 1 else enough[:1])]
      break
  out += machines_that_fit(cost_model, fits)
  return "; ".join(out or ["nothing that was tried makes it fit: take a "
                           "smaller model or shorter answers"])


def machines_that_fit(cost_model: CostModel, fits) -> list[str]:
  """The fewest chips of this kind, and the machine of least memory, that fit.
  """
  machine, chip = cost_model.machine, cost_model.machine.accelerator
  machines = [dataclasses.replace(machine, name=f"{count}x{name}",
                                  accelerator=other, chips=count)
              for name, other in ACCELERATORS.items()
              if other.platform == chip.platform for count in TRIED_CHIPS
              if count == 1 or other.link_bandwidth]
  machines = [m for m in machines if fits(on_machine(cost_model, m))]
  larger = [m for m in machines
            if m.accelerator == chip and m.chips > machine.chips]
  out = [f"it fits on {larger[0].name}"] if larger else []
  if machines:
    least = min(machines, key=lambda m: m.chips * m.usable_bytes)
    out.append(f"the smallest machine that fits is {least.name}")
  return out


def on_machine(cost_model: CostModel, machine: Machine) -> CostModel:
  """The cost model on another machine, whose number of chips sets fsdp."""
  shards = cost_model.mesh.data * cost_model.mesh.tensor
  fsdp = max(1, machine.chips // shards)
  mesh = dataclasses.replace(cost_model.mesh, fsdp=fsdp)
  if mesh.devices != machine.chips:  # chips are no multiple of the shards
    mesh = Mesh(1, machine.chips, 1)
  return cost_model.replace(machine=machine, mesh=mesh)


def fitting(cost_model: CostModel) -> CostModel:
  """The cost model; InputError if its step does not fit."""
  # With B = MAX_ROWS a microbatch is full.
  full_memory = lambda other: memory(other, MAX_ROWS, other.rows)
  needed = full_memory(cost_model)
  if needed.fits:
    return cost_model
  fits = lambda other: full_memory(other).fits
  raise InputError(
      f"{cost_model.machine.name}: a microbatch of {cost_model.micro_rows:,} "
      f"rollouts does not fit: {needed.text}; "
      f"{remedies(cost_model, fits, sharded=False)}")
