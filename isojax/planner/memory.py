"""The memory of a step on a device, and what fits into a machine's.

The bytes of each program are those of isojax/core/memory.py.
"""

import dataclasses
import functools
import itertools
import math

from isojax.core import kernels
from isojax.core.memory import DeviceBytes, Held, largest, LAST_GROWTH
from isojax.core.model_shape import ModelShape
from isojax.errors import InputError
from isojax.planner.cost import Efficiency, Price, Workload
from isojax.planner.machines import (
  Accelerator,
  ACCELERATORS,
  GPU_SHARE_VARIABLE,
  Machine,
  Mesh,
)

MOST_ROWS = 2**20  # rollouts of a microbatch
MOST_SHARE = 0.95  # of a GPU, for jax
FEW_CHIPS = [2**i for i in range(11)]  # of machines that are tried
STEP = (32, 128)  # (Bp, n) on which meshes are compared


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


def memory(price: Price, B: int, rows: int) -> Memory:
  """A device's memory at B rollouts per step, `rows` decoded at once."""
  G = price.mesh.row_shards
  micro = math.ceil(min(B, price.micro_rows) / G)
  return of_held(price, Held(math.ceil(rows / G), micro, micro,
                             price.weights_gathered, price.pages))


def of_held(price: Price, held: Held) -> Memory:
  """Bytes of a step on each device.

  With LoRA, the base and the merged weights are copies in the compute dtype,
  the update has gradients of whole matrices, and the reference costs nothing.
  """
  shape, w, machine = price.shape, price.workload, price.machine
  p = device_bytes(shape, w, price.mesh, price.page).programs(
      held, reference=w.recipe.kl or w.recipe.ref_logp)
  lora, shards = w.lora_rank is not None, price.mesh.weight_shards
  trained = shape.lora_params(w.lora_rank) if lora else shape.params
  copy = lora * w.bytes("compute") * shape.params / shards
  critic = w.recipe.own_critic * (  # parameters; it has no head
      trained + shape.width - shape.head * (not shape.tied and not lora))
  return Memory(
      always=dict(
          masters=4 * trained / shards, moments=8 * trained / shards,
          reference=p.reference * (not lora),
          critic=12 * critic / shards),
      # Beside the whole cache: temporaries of decoding, or the old part of a
      # growth.
      sampling=dict(copy=p.weights + copy, cache=p.cache + p.window,
                    logits=max(p.drawing, LAST_GROWTH * p.part)),
      update=dict(
          copy=p.copy + copy + lora * w.bytes("reduce") * shape.params / shards,
          gradients=4 * (trained + critic) / shards,
          activations=p.kept + max(0.0, p.backward - p.head), logits=p.head),
      available=machine.usable_bytes,
      limit="" if machine.accelerator.platform != "gpu" else (
          f" of {machine.accelerator.hbm_bytes / 1e9:g} GB "
          f"[{GPU_SHARE_VARIABLE}={machine.gpu_share:g}]"))


def with_rows(price: Price, most: int) -> Price:
  """With as many of `most` decoded rows as the memory admits."""
  G = price.mesh.row_shards
  local = largest(
      lambda r: memory(price, G, r * G).fits, max(1, most // G))
  return price.replace(rows=max(1, local) * G)


def with_micro_rows(price: Price) -> Price:
  """With the largest microbatches that the memory admits."""
  G = price.mesh.row_shards
  micro = largest(lambda r: memory(
      price.replace(micro_rows=r * G), r * G, G).fits, MOST_ROWS)
  return price.replace(micro_rows=micro * G)


def packed(shape: ModelShape, workload: Workload, machine: Machine, *,
           rows: int, efficiency: Efficiency) -> Price:
  """The price on the mesh with the fastest step that fits; InputError for none.

  Assumes a packed update that computes the forward twice, fused attention and
  a chunked head. As many of `rows` are decoded at once as the memory admits.
  """
  workload = dataclasses.replace(workload, padded=False, remat=True)

  def smallest(workload, machine):  # one row per shard, on each mesh
    prices = (Price(shape, machine, mesh, workload, efficiency,
                    rows=mesh.row_shards, micro_rows=mesh.row_shards,
                    weights_gathered=weights_gathered)
              for mesh in machine.meshes(shape.heads)
              for weights_gathered in (False, True)[:1 + (mesh.fsdp > 1)])
    return [(price, memory(price, price.rows, price.rows)) for price in prices]

  fitted = [with_rows(with_micro_rows(price), rows)
            for price, least in smallest(workload, machine) if least.fits]
  if not fitted:
    price, least = min(smallest(workload, machine), key=lambda x: x[1].total)
    fits = lambda price: any(least.fits for _, least in smallest(
        price.workload, price.machine))
    raise InputError(
        f"{machine.name}: the model does not fit, however it is sharded; at "
        f"mesh {price.mesh.text} with one row per shard: {least.text}; "
        f"{remedies(price, fits, sharded=True)}")
  return min(fitted, key=lambda price: price.run(*STEP, 1).seconds)


def changes(price: Price, *, sharded: bool) -> dict[str, Price]:
  """What may make a step fit, in the order in which to try it.

  `sharded`: every mesh, one slot and one row were tried before.
  """
  w, mesh, machine = price.workload, price.mesh, price.machine
  out = {}
  if w.lora_rank is None and not w.recipe.own_critic:
    out["LoRA (--config.model.lora.rank=16)"] = dict(lora_rank=16)
  if not w.remat:
    out["--config.recipe.loss.remat=True"] = dict(remat=True)
  if not sharded and mesh.data > 1:
    out[f"--config.mesh.data=1 --config.mesh.fsdp={mesh.row_shards}"] = dict(
        mesh=dataclasses.replace(mesh, data=1, fsdp=mesh.row_shards))
  if not sharded and price.micro_rows > mesh.row_shards:
    out["fewer recipe.loss.microbatch_tokens"] = dict(
        micro_rows=mesh.row_shards)
  if not sharded and price.rows > mesh.row_shards and price.page is None:
    out["fewer sampler.slots"] = dict(rows=mesh.row_shards)
  if machine.accelerator.platform == "gpu" and machine.gpu_share < MOST_SHARE:
    out[f"{GPU_SHARE_VARIABLE}={MOST_SHARE} (jax takes {machine.gpu_share:.0%} "
        "of a GPU)"] = dict(machine=dataclasses.replace(
            machine, gpu_share=MOST_SHARE))
  return out


def changed(price: Price, change: dict) -> Price:
  """The price with a change, whose `lora_rank` and `remat` are a workload's."""
  of_work = {name: change[name] for name in ("lora_rank", "remat")
             if name in change}
  return price.with_workload(**of_work).replace(**{
      name: value for name, value in change.items() if name not in of_work})


def remedies(price: Price, fits, *, sharded: bool) -> str:
  """What makes a step fit: each change that does, else the fewest together.

  And the smallest machines. fits is price -> bool.
  """
  options = changes(price, sharded=sharded)
  out = []
  for count in range(1, len(options) + 1):
    fitting_changes = [names for names in itertools.combinations(options, count)
             if fits(changed(price, functools.reduce(
                 lambda all_of, name: all_of | options[name], names, {})))]
    if fitting_changes:
      out = [" and ".join(names) for names in (
          fitting_changes if count == 1 else fitting_changes[:1])]
      break
  out = ["it fits with " + ", or with ".join(out)] if out else []
  out += machines_that_fit(price, fits)
  return "; ".join(out or ["nothing that was tried makes it fit: take a "
                           "smaller model or shorter answers"])


def machines_that_fit(price: Price, fits) -> list[str]:
  """The fewest of these chips, and the machine with the least memory."""
  machine, chip = price.machine, price.machine.accelerator
  others = [dataclasses.replace(machine, name=f"{count}x{name}",
                                accelerator=other, chips=count)
            for name, other in ACCELERATORS.items()
            if other.platform == chip.platform for count in FEW_CHIPS
            if count == 1 or other.link_bandwidth]
  others = [m for m in others if fits(on_machine(price, m))]
  own = [m for m in others if m.accelerator == chip and m.chips > machine.chips]
  out = [f"it fits on {own[0].name}"] if own else []
  if others:
    least = min(others, key=lambda m: m.chips * m.usable_bytes)
    out.append(f"the smallest machine that fits is {least.name}")
  return out


def on_machine(price: Price, machine: Machine) -> Price:
  """On another machine, whose further chips are shards of the weights."""
  shards = price.mesh.data * price.mesh.tensor
  fsdp = max(1, machine.chips // shards)
  mesh = dataclasses.replace(price.mesh, fsdp=fsdp)
  if mesh.devices != machine.chips:  # fewer, or not a multiple
    mesh = Mesh(1, machine.chips, 1)
  return price.replace(machine=machine, mesh=mesh)


def fitting(price: Price) -> Price:
  """The price with weights gathered while sampling where they fit.

  With pages it says itself whether they are gathered. InputError if it does not
  fit into the memory.
  """
  choices = (True, False) if price.page is None else (price.weights_gathered,)
  for weights_gathered in choices:
    price = price.replace(weights_gathered=weights_gathered)
    needed = memory(price, MOST_ROWS, price.rows)
    if needed.fits:
      return price

  fits = lambda price: memory(price, MOST_ROWS, price.rows).fits
  raise InputError(
      f"{price.machine.name}: a microbatch of {price.micro_rows:,} rollouts "
      f"does not fit: {needed.text}; {remedies(price, fits, sharded=False)}")
