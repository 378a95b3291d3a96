"""The memory of a device in a step: sampling, then the update."""

import dataclasses
import functools
import math

from isojax.planner.cost import memory as memory_lib
from isojax.rl import sizes as rl_sizes
from isojax.sampling import sizes
from isojax.planner.cost.machine import Machine
from isojax.models.shape import ModelShape
from isojax.planner.cost.roofline import Mesh, checked_mesh
from isojax.planner.cost.slots import Slots
from isojax.models.shape import BYTES
from isojax.planner.cost.workload import Workload


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device, while sampling and in the update that follows."""

  masters: float  # float32 parameters
  moments: float  # Adam's two, float32
  reference: float  # float32 parameters of the base policy, with KL
  critic: float  # an own critic's parameters and moments, float32
  copy: float  # of the parameters in the compute dtype, while sampling
  cache: float  # keys and values, while sampling
  sample_logits: float  # float32, one position of every row
  update_copy: float  # of the parameters in the compute dtype, in the update
  gradients: float  # float32, in the update
  activations: float  # kept for the backward
  update_logits: float  # float32, and their gradient
  available: float  # of the chip, to jax
  whole: bool  # weights are gathered over fsdp while sampling

  @property
  def total(self) -> float:
    """Returns the peak: the larger of the two phases and what always stays."""
    return (self.masters + self.moments + self.reference + self.critic
            + max(self.copy + self.cache + self.sample_logits,
                  self.update_copy + self.gradients + self.activations
                  + self.update_logits))

  @property
  def fits(self) -> bool:
    return self.total <= self.available

  @property
  def text(self) -> str:
    """Returns every part in GB, as a sentence."""
    logits = max(self.sample_logits, self.update_logits)
    parts = dict(masters=self.masters, moments=self.moments,
                 copy=max(self.copy, self.update_copy),
                 reference=self.reference, critic=self.critic,
                 gradients=self.gradients,
                 activations=self.activations, cache=self.cache, logits=logits)
    return (f"{self.total / 1e9:.3g} GB of the {self.available / 1e9:.3g} GB "
            "that jax uses of a device (" + ", ".join(
                f"{name} {value / 1e9:.3g}" for name, value in parts.items()
                if value) + "; cache and update follow each other)")


def memory(shape: ModelShape, workload: Workload, machine: Machine, mesh: Mesh,
           *, rows: int, microbatch_rows: int, chunked_head: bool,
           whole: bool | None = None, slots: Slots | None = None) -> Memory:
  """Returns bytes per device.

  A padded workload with remat is priced by `memory.programs`. Other workloads
  exclude temporaries of the compiler, and weights that it gathers over fsdp for
  longer than a layer. With LoRA, the base and the merged weights are copies in
  the compute dtype, the update has gradients of whole matrices, and the
  reference costs nothing.

  Args:
    rows: decoded at once, on the whole machine.
    microbatch_rows: of the whole machine.
    chunked_head: logits exist for a few tokens at a time.
    whole: weights are gathered over fsdp while sampling; None: where they fit.
    slots: of a config's sampler; None: without pages.
  """
  if whole is None:
    size = functools.partial(
        memory, shape, workload, machine, mesh, rows=rows,
        microbatch_rows=microbatch_rows, chunked_head=chunked_head,
        slots=slots)
    return size(whole=True) if size(whole=True).fits else size(whole=False)
  return _memory(shape, workload, machine, checked_mesh(mesh, machine),
                 rows=rows, microbatch_rows=microbatch_rows,
                 chunked_head=chunked_head, whole=whole, slots=slots)


def _memory(shape: ModelShape, workload: Workload, machine: Machine,
            mesh: Mesh, *, rows: int, microbatch_rows: int, chunked_head: bool,
            whole: bool, slots: Slots | None) -> Memory:
  """Returns bytes per device; arguments as for `memory`."""
  w, number = workload, BYTES[workload.dtype]
  shards, G = mesh.fsdp * mesh.tensor, mesh.data * mesh.fsdp
  trained, lora = shape.params, w.lora_rank is not None
  if lora:
    trained = shape.lora_params(w.lora_rank)
  copy = number * shape.params / shards
  # Its gradients follow the policy's, which are larger by those of the head.
  critic = w.recipe.own_critic * 12 / shards * (
      trained + shape.width - shape.head * (not shape.tied and not lora))
  kl = w.kl or w.recipe.ref_logp
  local, micro = math.ceil(rows / G), math.ceil(microbatch_rows / G)
  length = w.max_prompt + w.max_response
  pool = None if slots is None or slots.page is None else (
      slots.page * slots.pages)
  if w.padded and w.remat and not lora:
    return _of_isojax(memory_lib.programs(
        shape, dtype=w.dtype, weights=w.sampled_weights,
        cache=w.sampled_cache, sampled_head=w.head_sampled,
        head=w.head_updated, reduce_dtype=w.reduce_dtype, mesh=mesh,
        gathered=whole, slots=local, pool=pool,
        chunk=0 if pool is None else slots.chunk, rows=micro, prompts=micro,
        max_prompt=w.max_prompt, max_response=w.max_response, kl=kl,
        fused=w.fused), machine, whole, critic)
  # A token in a layer: residual and normed input twice, query, key, value and
  # their product, three of the mlp; float32 scores and their softmax if stored.
  layer = length * number * (
      4 * shape.width
      + (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim / mesh.tensor
      + 3 * shape.mlp / mesh.tensor) + (
          w.padded * length * memory_lib.score_bytes(length, w.fused)
          * shape.heads / mesh.tensor)
  kept = shape.layers * length * shape.width * number + layer if w.remat else (
      shape.layers * layer)
  tokens = micro * w.max_response
  return Memory(
      masters=4 * trained / shards, moments=8 * trained / shards,
      copy=sizes.weight_bytes(
          shape, w.sampled_weights, w.head_sampled) / (
              mesh.tensor if whole else shards) + lora * copy,
      update_copy=copy + (
          BYTES[w.head_updated] - number) * shape.head / shards + lora * (
          copy + BYTES[w.reduce_dtype] * shape.params / shards),
      reference=4 * shape.params / shards * (kl and not lora),
      critic=critic,
      cache=(local * length if pool is None else pool)
      * shape.kv_bytes_per_token(BYTES[w.sampled_cache])
      / min(mesh.tensor, shape.kv_heads),
      sample_logits=4 * local * shape.vocab / mesh.tensor,
      gradients=4 * trained / shards, activations=micro * kept,
      update_logits=2 * 4 * shape.vocab / mesh.tensor * (
          min(rl_sizes.head_chunk(shape.vocab), tokens) if chunked_head
          else tokens),
      available=machine.usable_bytes, whole=whole)


def _of_isojax(p: memory_lib.Programs, machine: Machine,
               whole: bool, critic: float) -> Memory:
  """Returns the memory of a step of isojax's programs."""
  return Memory(
      masters=p.state, moments=2 * p.state, reference=p.reference, critic=critic,
      copy=p.weights, cache=p.cache + p.window,
      # With the whole cache: temporaries of decoding, or the old part of a
      # growth.
      sample_logits=max(p.drawing, memory_lib.SHORTER * p.part),
      update_copy=p.copy, gradients=p.state,
      activations=p.kept + max(0.0, p.backward - p.head), update_logits=p.head,
      available=machine.usable_bytes, whole=whole)


def divisors(number: int) -> list[int]:
  """Returns all divisors."""
  return [d for d in range(1, number + 1) if number % d == 0]


def meshes(shape: ModelShape, machine: Machine) -> list[Mesh]:
  """Returns every mesh of the machine's chips over which the heads divide."""
  return [Mesh(machine.chips // (tensor * fsdp), fsdp, tensor)
          for tensor in divisors(machine.chips) if shape.heads % tensor == 0
          for fsdp in divisors(machine.chips // tensor)]
