"""A step's memory on a device: what always stays, sampling, then the update.

The bytes of each program are those of isojax/memory.py.
"""

import dataclasses

from isojax import kernels
from isojax.memory import DeviceBytes, Held, SHORTER
from isojax.model_shape import ModelShape
from isojax.planner.machines import (
  Accelerator,
  GPU_SHARE_VARIABLE,
  Machine,
  Mesh,
)
from isojax.planner.workload import Workload


def has_kernel(shape: ModelShape, *, attention: str, dtype: str, tensor: int,
               accelerator: Accelerator) -> bool:
  """Whether isojax's update uses a fused attention kernel."""
  platform = accelerator.platform
  lacks = kernels.lacks(
      platform, capability=8.0 if platform == "gpu" else None,
      H=shape.head_dim, K=shape.kv_heads, tensor=tensor, dtype=dtype, cap=None,
      window=0, length=0)
  # Of all windows and caps, only Gemma's are known here.
  return (attention != "einsum" and not shape.family.gemma
          and None in lacks.values())


PARTS = ("masters", "moments", "copy", "reference", "critic", "gradients",
         "activations", "cache", "logits")


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device by PARTS: while sampling, then in the update.

  Copies are of the parameters in the compute dtype; everything else but the
  cache is float32.
  """

  always: dict[str, float]  # masters, Adam's moments, reference, an own critic
  sampling: dict[str, float]  # with the logits of one position of every row
  update: dict[str, float]  # with logits and their gradient
  available: float  # of the chip, to jax
  limit: str  # why that is less than the chip has; empty: it is all

  @property
  def total(self) -> float:
    """The peak: the larger of the two phases and what always stays."""
    return sum(self.always.values()) + max(
        sum(self.sampling.values()), sum(self.update.values()))

  @property
  def fits(self) -> bool:
    return self.total <= self.available

  @property
  def text(self) -> str:
    """Every part in GB, as a sentence."""
    parts = {name: max(phase.get(name, 0.0) for phase in (
        self.always, self.sampling, self.update)) for name in PARTS}
    return (f"{self.total / 1e9:.3g} GB of the {self.available / 1e9:.3g} GB "
            f"that jax uses of a device{self.limit} (" + ", ".join(
                f"{name} {value / 1e9:.3g}" for name, value in parts.items()
                if value) + "; cache and update follow each other)")


def device_bytes(shape: ModelShape, w: Workload, mesh: Mesh,
                 page: int | None = None) -> DeviceBytes:
  return DeviceBytes(
      shape, w.formats, w.lengths.max_prompt, w.lengths.max_response,
      fused=w.fused, fsdp=mesh.fsdp, tensor=mesh.tensor, page=page,
      remat=w.remat)


def memory(shape: ModelShape, w: Workload, machine: Machine, mesh: Mesh,
           held: Held, page: int | None = None) -> Memory:
  """Bytes of a step on each device.

  With LoRA, the base and the merged weights are copies in the compute dtype,
  the update has gradients of whole matrices, and the reference costs nothing.
  """
  p = device_bytes(shape, w, mesh, page).programs(
      held, reference=w.recipe.reference)
  lora, shards = w.lora_rank is not None, mesh.weight_shards
  trained = shape.lora_params(w.lora_rank) if lora else shape.params
  copy = lora * w.bytes("compute") * shape.params / shards
  return Memory(
      always=dict(
          masters=4 * trained / shards, moments=8 * trained / shards,
          reference=p.reference * (not lora),
          # Its gradients follow the policy's, which have those of the head too.
          critic=w.recipe.own_critic * 12 / shards * (
              trained + shape.width - shape.head * (
                  not shape.tied and not lora))),
      # Beside the whole cache: temporaries of decoding, or the old part of a
      # growth.
      sampling=dict(copy=p.weights + copy, cache=p.cache + p.window,
                    logits=max(p.drawing, SHORTER * p.part)),
      update=dict(
          copy=p.copy + copy + lora * w.bytes("reduce") * shape.params / shards,
          gradients=4 * trained / shards,
          activations=p.kept + max(0.0, p.backward - p.head), logits=p.head),
      available=machine.usable_bytes,
      limit="" if machine.accelerator.platform != "gpu" else (
          f" of {machine.accelerator.hbm_bytes / 1e9:g} GB "
          f"[{GPU_SHARE_VARIABLE}={machine.gpu_share:g}]"))
