"""Bytes on each device while sampling and updating."""

import dataclasses
import math

from isojax.planner.cost import BYTES
from isojax.planner.cost import Mesh
from isojax.planner.cost import Workload
from isojax.planner.cost import checked_mesh
from isojax.planner.machine import Machine
from isojax.planner.shape import ModelShape

HEAD_CHUNK = 1024  # tokens whose logits a chunked head holds at once
# Float32 arrays of a slot's vocabulary while a token is drawn: sorting for
# top_p < 1 is in the program also where it is not run.
DRAWN = 18


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device. Sampling and the update follow each other."""

  masters: float  # float32 parameters
  moments: float  # Adam's two, float32
  copy: float  # of the parameters, in the compute dtype
  reference: float  # float32 parameters of the base policy, with KL
  cache: float  # keys and values, while sampling
  sample_logits: float  # float32, one position of every row
  gradients: float  # float32, in the update
  activations: float  # kept for the backward
  update_logits: float  # float32, and their gradient
  available: float  # of the chip

  @property
  def total(self) -> float:
    """The larger of the two phases, on what always stays."""
    return (self.masters + self.moments + self.copy + self.reference
            + max(self.cache + self.sample_logits,
                  self.gradients + self.activations + self.update_logits))

  @property
  def fits(self) -> bool:
    return self.total <= self.available

  @property
  def text(self) -> str:
    """Every part in GB; of cache and update the larger counts."""
    logits = max(self.sample_logits, self.update_logits)
    parts = dict(masters=self.masters, moments=self.moments, copy=self.copy,
                 reference=self.reference, gradients=self.gradients,
                 activations=self.activations, cache=self.cache, logits=logits)
    return (f"{self.total / 1e9:.3g} GB of a device's "
            f"{self.available / 1e9:.3g} GB (" + ", ".join(
                f"{name} {value / 1e9:.3g}" for name, value in parts.items()
                if value) + "; cache and update are not there at once)")


def memory(shape: ModelShape, workload: Workload, machine: Machine, mesh: Mesh,
           *, rows: int, microbatch_rows: int, chunked_head: bool,
           lora_rank: int | None = None) -> Memory:
  """Bytes per device; `rows` and `microbatch_rows` are of the whole machine.

  Left out: what the compiler needs besides, fragmentation, and weights that it
  gathers over fsdp for longer than a layer. With LoRA the base is the copy in
  the compute dtype, and the reference costs nothing.
  """
  w, number = workload, BYTES[workload.dtype]
  mesh = checked_mesh(mesh, machine)
  shards, G = mesh.fsdp * mesh.tensor, mesh.data * mesh.fsdp
  trained = shape.params if lora_rank is None else shape.lora_params(lora_rank)
  local, micro = math.ceil(rows / G), math.ceil(microbatch_rows / G)
  length = w.max_prompt + w.max_response
  # A token in a layer: residual and normed input twice, query, key, value and
  # their product, three of the mlp; float32 scores and their softmax if whole.
  layer = length * number * (
      4 * shape.width
      + (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim / mesh.tensor
      + 3 * shape.mlp / mesh.tensor) + (
          w.padded * 2 * 4 * length**2 * shape.heads / mesh.tensor)
  kept = shape.layers * length * shape.width * number + layer if w.remat else (
      shape.layers * layer)
  tokens = micro * w.max_response
  return Memory(
      masters=4 * trained / shards, moments=8 * trained / shards,
      copy=number * shape.params / shards,
      reference=4 * shape.params / shards * (w.kl and lora_rank is None),
      cache=local * length * shape.kv_bytes_per_token(number)
      / min(mesh.tensor, shape.kv_heads),
      sample_logits=4 * local * shape.vocab / mesh.tensor,
      gradients=4 * trained / shards, activations=micro * kept,
      update_logits=2 * 4 * shape.vocab / mesh.tensor * (
          min(HEAD_CHUNK, tokens) if chunked_head else tokens),
      available=machine.accelerator.hbm_bytes)


def slot_bytes(shape: ModelShape, *, dtype: str, tensor: int, max_prompt: int,
               max_response: int) -> float:
  """Bytes on a device of one slot of isojax's sampler.

  The cache, once more the largest of its parts while it grows, and an eighth of
  a prompt that is prefilled; scores, logits and what is drawn from them in
  float32; one layer's activations of that eighth.
  """
  number, heads = BYTES[dtype], shape.heads / tensor
  kv = shape.kv_bytes_per_token(number) / min(tensor, shape.kv_heads)
  length = max_prompt + max_response
  prompt = max_prompt * (kv + number * (
      4 * shape.width + 3 * shape.mlp / tensor) + 8 * heads * max_prompt)
  return (length * kv * (1 + 1 / (2 * shape.layers)) + 8 * heads * length
          + DRAWN * 4 * shape.vocab / tensor + prompt / 8)


def slots_admitted(shape: ModelShape, *, dtype: str, fsdp: int, tensor: int,
                   max_prompt: int, max_response: int, budget: float,
                   most: int) -> tuple[int, bool]:
  """How many slots a device holds, and whether beside whole weights.

  Weights are gathered over fsdp once, and not at every token, where that leaves
  room for as many slots.

  Args:
    budget: bytes of a device for sampling.
    most: slots wanted on a device.

  Returns:
    slots, 0 if none fits; whether weights are gathered.
  """
  slot = slot_bytes(shape, dtype=dtype, tensor=tensor, max_prompt=max_prompt,
                    max_response=max_response)
  weights = BYTES[dtype] * shape.params / tensor
  room = lambda weights: max(0, min(most, int((budget - weights) // slot)))
  if fsdp == 1 or room(weights) == most:
    return room(weights), True
  return room(weights / fsdp), False


def largest(fits, most: int) -> int:
  """The largest whole number up to `most` that fits; 0: none does."""
  low, high = 0, most  # low fits or is 0, high + 1 does not or is too many
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


def divisors(number: int) -> list[int]:
  return [d for d in range(1, number + 1) if number % d == 0]


def meshes(shape: ModelShape, machine: Machine) -> list[Mesh]:
  """Every mesh of the machine's chips over which the heads divide."""
  return [Mesh(machine.chips // (tensor * fsdp), fsdp, tensor)
          for tensor in divisors(machine.chips) if shape.heads % tensor == 0
          for fsdp in divisors(machine.chips // tensor)]


@dataclasses.dataclass(frozen=True)
class Programs:
  """Bytes on a device that each of isojax's programs needs itself.

  Arguments, temporaries, results; what else the device holds is not in it.
  """

  prepare: float
  prefill: float
  insert: float
  resize: float
  decode: float
  start: float
  accumulate: float
  apply: float


def programs(shape: ModelShape, *, dtype: str, mesh: Mesh, gathered: bool,
             slots: int, rows: int, prompts: int, max_prompt: int,
             max_response: int, kl: bool) -> Programs:
  """What `launch.compile` finds, by formulas; with remat, without adapters.

  Args:
    gathered: whole weights on each fsdp shard while sampling.
    slots: of the sampler, on a device.
    rows, prompts: of a microbatch, on a device.
  """
  number, S, T = BYTES[dtype], max_prompt, max_response
  shards, tensor = mesh.fsdp * mesh.tensor, mesh.tensor
  heads, mlp = shape.heads / tensor, shape.mlp / tensor
  whole = number * shape.params / tensor
  weights = whole if gathered else whole / mesh.fsdp
  state = 4 * shape.params / shards
  kv = shape.kv_bytes_per_token(number) / min(tensor, shape.kv_heads)
  cache, window = slots * (S + T) * kv, math.ceil(slots / 8) * S * kv
  # A token in a layer: as in `memory`; scores of all the others in float32.
  token = number * (4 * shape.width + (2 * heads + 2 * shape.kv_heads / min(
      tensor, shape.kv_heads)) * shape.head_dim + 3 * mlp)
  layer = lambda B, T, L: B * T * (token + 2 * 4 * heads * L)
  answers, first = rows * T, prompts * S
  kept = number * shape.layers * shape.width * (answers + first) + kv * (
      rows + prompts) * S
  matrices = number * shape.layers * shape.layer_matmul / shards
  head = shape.head / tensor
  return Programs(
      prepare=state + 2 * weights,
      prefill=weights + window + layer(math.ceil(slots / 8), S, S),
      insert=cache + window,
      resize=cache / shape.layers,
      decode=weights + cache + slots * (
          2 * 4 * heads * (S + T) + DRAWN * 4 * shape.vocab / tensor),
      start=state,
      accumulate=(2 + kl) * state + matrices + kept + max(
          head * (number + 2 * 4) + 2 * 4 * HEAD_CHUNK * shape.vocab / tensor,
          matrices + 4 * head / mesh.fsdp + layer(rows, T, S + T)),
      apply=4 * state)
