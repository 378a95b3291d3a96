"""The memory of a device: of a price, and of the programs of isojax."""

import dataclasses
import functools
import math

from isojax import attention_kernels
from isojax.planner.cost.machine import Accelerator, Machine
from isojax.planner.cost.model_shape import ModelShape
from isojax.planner.cost.roofline import Mesh, checked_mesh
from isojax.planner.cost.workload import BYTES, Workload

# Of the float32 logits that a chunked head holds at once: those of 1,024 tokens
# of Qwen2.5's 152,064.
HEAD_BYTES = 594 * 2**20
# Float32 arrays of a slot's vocabulary while a token is drawn: sorting for
# top_p < 1 is in the program also where it is not run.
DRAWN = 8
# Of the largest cache's length: the length before the last of its four growths.
SHORTER = 3 / 4
# Bytes of a head of a token in the backward of a kernel of attention, instead
# of its scores; fitted to what launch.compile finds with splash.
KERNEL = 3800


def head_chunk(vocab: int) -> int:
  """Returns the tokens whose logits a chunked head holds at once."""
  return max(1, HEAD_BYTES // (4 * vocab))


def score_bytes(context: int, fused: bool) -> int:
  """Of a head of a token in a backward: float32 scores and their softmax.

  Args:
    context: tokens attended to.
    fused: in a kernel, which keeps no scores.
  """
  whole = 2 * 4 * context
  return min(KERNEL, whole) if fused else whole


def has_kernel(shape: ModelShape, *, attention: str, dtype: str, tensor: int,
               accelerator: Accelerator) -> bool:
  """Returns whether isojax's update uses a fused attention kernel.

  Of all windows and caps, only Gemma's are known here.
  """
  platform = accelerator.platform
  lacks = attention_kernels.lacks(
      platform, capability=8.0 if platform == "gpu" else None,
      H=shape.head_dim, K=shape.kv_heads, tensor=tensor, dtype=dtype, cap=None,
      window=0, length=0)
  return attention != "einsum" and not shape.family.gemma and (
      None in lacks.values())


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device, while sampling and in the update that follows."""

  masters: float  # float32 parameters
  moments: float  # Adam's two, float32
  reference: float  # float32 parameters of the base policy, with KL
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
    return (self.masters + self.moments + self.reference
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
                 reference=self.reference, gradients=self.gradients,
                 activations=self.activations, cache=self.cache, logits=logits)
    return (f"{self.total / 1e9:.3g} GB of the {self.available / 1e9:.3g} GB "
            "that jax uses of a device (" + ", ".join(
                f"{name} {value / 1e9:.3g}" for name, value in parts.items()
                if value) + "; cache and update follow each other)")


def memory(shape: ModelShape, workload: Workload, machine: Machine, mesh: Mesh,
           *, rows: int, microbatch_rows: int, chunked_head: bool,
           whole: bool | None = None) -> Memory:
  """Returns bytes per device.

  A padded workload with remat is priced by `programs`. Otherwise two things are
  not included: what the compiler needs besides, and weights that it gathers
  over fsdp for longer than a layer. With LoRA, the base and the merged weights
  are copies in the compute dtype, the update has gradients of whole matrices,
  and the reference costs nothing.

  Args:
    rows: decoded at once, on the whole machine.
    microbatch_rows: of the whole machine.
    chunked_head: logits exist for HEAD_CHUNK tokens at a time.
    whole: weights are gathered over fsdp while sampling; None: where they fit.
  """
  if whole is None:
    size = functools.partial(
        memory, shape, workload, machine, mesh, rows=rows,
        microbatch_rows=microbatch_rows, chunked_head=chunked_head)
    return size(whole=True) if size(whole=True).fits else size(whole=False)
  w, number = workload, BYTES[workload.dtype]
  mesh = checked_mesh(mesh, machine)
  shards, G = mesh.fsdp * mesh.tensor, mesh.data * mesh.fsdp
  trained, lora = shape.params, w.lora_rank is not None
  if lora:
    trained = shape.lora_params(w.lora_rank)
  copy = number * shape.params / shards
  local, micro = math.ceil(rows / G), math.ceil(microbatch_rows / G)
  length = w.max_prompt + w.max_response
  if w.padded and w.remat and not lora:
    return _of_isojax(programs(
        shape, dtype=w.dtype, weights=w.sampled_weights,
        cache=w.sampled_cache, reduce_dtype=w.reduce_dtype, mesh=mesh,
        gathered=whole, slots=local, rows=micro, prompts=micro,
        max_prompt=w.max_prompt, max_response=w.max_response, kl=w.kl,
        fused=w.fused), machine, whole)
  # A token in a layer: residual and normed input twice, query, key, value and
  # their product, three of the mlp; float32 scores and their softmax if stored.
  layer = length * number * (
      4 * shape.width
      + (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim / mesh.tensor
      + 3 * shape.mlp / mesh.tensor) + (
          w.padded * length * score_bytes(length, w.fused)
          * shape.heads / mesh.tensor)
  kept = shape.layers * length * shape.width * number + layer if w.remat else (
      shape.layers * layer)
  tokens = micro * w.max_response
  return Memory(
      masters=4 * trained / shards, moments=8 * trained / shards,
      copy=BYTES[w.sampled_weights] * shape.params / (
          mesh.tensor if whole else shards) + lora * copy,
      update_copy=copy + lora * (
          copy + BYTES[w.reduce_dtype] * shape.params / shards),
      reference=4 * shape.params / shards * (w.kl and not lora),
      cache=local * length * shape.kv_bytes_per_token(BYTES[w.sampled_cache])
      / min(mesh.tensor, shape.kv_heads),
      sample_logits=4 * local * shape.vocab / mesh.tensor,
      gradients=4 * trained / shards, activations=micro * kept,
      update_logits=2 * 4 * shape.vocab / mesh.tensor * (
          min(head_chunk(shape.vocab), tokens) if chunked_head else tokens),
      available=machine.usable_bytes, whole=whole)


def slot_bytes(shape: ModelShape, *, dtype: str, cache: str, tensor: int,
               max_prompt: int, max_response: int, fused: bool) -> float:
  """Bytes on a device of one slot of isojax's sampler.

  The cache, once more the largest of its parts while it grows; an eighth of a
  prompt that is prefilled; scores, logits and what is drawn from them in
  float32; one layer's activations of that eighth.
  """
  number, heads = BYTES[dtype], shape.heads / tensor
  kv = shape.kv_bytes_per_token(BYTES[cache]) / min(tensor, shape.kv_heads)
  length = max_prompt + max_response
  prompt = max_prompt * (kv + number * (
      4 * shape.width + 3 * shape.mlp / tensor)
                         + 8 * heads * max_prompt * (not fused))
  return (length * kv * (1 + 1 / (2 * shape.layers)) + 8 * heads * length
          + DRAWN * 4 * shape.vocab / tensor + prompt / 8)


def slots_admitted(shape: ModelShape, *, weights: str, fsdp: int, tensor: int,
                   budget: float, most: int, **slot) -> tuple[int, bool]:
  """How many slots a device holds, and whether beside whole weights.

  Weights are gathered over fsdp once, and not at every token, where that leaves
  room for as many slots. Fewer than wanted are so many that the devices of
  `tensor`, which draw for them, share them evenly.

  Args:
    weights: their dtype while sampling.
    budget: bytes of a device for sampling.
    most: slots wanted on a device.
    slot: the other keywords of `slot_bytes`.

  Returns:
    slots, 0 if none fits; whether weights are gathered.
  """
  each = slot_bytes(shape, tensor=tensor, **slot)
  whole = BYTES[weights] * shape.params / tensor

  def room(held):
    slots = max(0, min(most, int((budget - held) // each)))
    return slots if slots == most else slots // tensor * tensor or slots

  if fsdp == 1 or room(whole) == most:
    return room(whole), True
  return room(whole / fsdp), False


def least_bytes(shape: ModelShape, *, weights: str, fsdp: int, tensor: int,
                **slot) -> float:
  """Of a device that samples with one slot."""
  return (slot_bytes(shape, tensor=tensor, **slot)
          + BYTES[weights] * shape.params / tensor / fsdp)


def largest(fits, most: int) -> int:
  """Returns the largest whole number up to `most` that fits, or 0."""
  low, high = 0, most  # low fits or is 0, high + 1 does not or is too many
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


def divisors(number: int) -> list[int]:
  return [d for d in range(1, number + 1) if number % d == 0]


def meshes(shape: ModelShape, machine: Machine) -> list[Mesh]:
  """Returns every mesh of the machine's chips over which the heads divide."""
  return [Mesh(machine.chips // (tensor * fsdp), fsdp, tensor)
          for tensor in divisors(machine.chips) if shape.heads % tensor == 0
          for fsdp in divisors(machine.chips // tensor)]


@dataclasses.dataclass(frozen=True)
class Programs:
  """Bytes on a device of isojax's programs, as `launch.compile` finds them."""

  state: float  # float32 parameters; its moments are twice as much
  reference: float  # float32 parameters of the base policy, with KL
  weights: float  # while sampling
  cache: float
  part: float  # keys or values of one layer, in the cache
  window: float  # keys and values of prompts
  prefilling: float  # what a prefill holds besides
  drawing: float  # what decoding holds besides
  copy: float  # of the layers' matrices in the compute dtype, in the update
  kept: float  # for the backward
  head: float  # of weight and logits and their gradients, one of each float32
  backward: float  # of the layers, when the head's is done

  @property
  def own(self) -> dict[str, float]:
    """What each program needs itself: arguments, temporaries, results."""
    return dict(
        prefill=self.weights + self.window + self.prefilling,
        insert=self.cache + self.window,
        # The last growth of one part; what else is in the cache stays beside.
        resize=(1 + SHORTER) * self.part,
        decode=self.weights + self.cache + self.drawing, start=self.state,
        accumulate=2 * self.state + self.reference + self.copy + self.kept
        + max(self.head, self.backward), apply=4 * self.state)


def programs(shape: ModelShape, *, dtype: str, weights: str, cache: str,
             reduce_dtype: str, mesh: Mesh, gathered: bool, slots: int,
             rows: int, prompts: int, max_prompt: int, max_response: int,
             kl: bool, fused: bool) -> Programs:
  """Formulas; with remat, without adapters.

  Args:
    dtype: of activations, and of the layers' matrices in the update.
    weights, cache: while sampling.
    reduce_dtype: of the gradients of the layers' matrices.
    gathered: whole weights on each fsdp shard while sampling.
    slots: of the sampler, on a device.
    rows, prompts: of a microbatch, on a device.
    fused: whether attention is a kernel's, but for decoding.
  """
  number, S, T = BYTES[dtype], max_prompt, max_response
  shards, tensor = mesh.fsdp * mesh.tensor, mesh.tensor
  heads, mlp, head = (x / tensor for x in (shape.heads, shape.mlp, shape.head))
  state = 4 * shape.params / shards
  kv = shape.kv_bytes_per_token(number) / min(tensor, shape.kv_heads)
  sampled = (shape.kv_bytes_per_token(BYTES[cache])
             / min(tensor, shape.kv_heads))
  first = math.ceil(slots / 8)  # prompts of a prefill
  # A token in a layer: residual and normed input, then gate and up, or queries,
  # keys, values and scores. A backward has all of it, and its gradients.
  attended = (2 * heads + 2 * shape.kv_heads / min(tensor, shape.kv_heads)
              ) * shape.head_dim
  forward = number * 2 * shape.width + max(
      number * 2 * mlp,
      number * attended + (4 + number) * heads * S * (not fused))
  token = number * (4 * shape.width + attended + 3 * mlp)
  matrices = shape.layers * shape.layer_matmul / shards
  copy = number * matrices
  return Programs(
      state=state, reference=state * kl,
      weights=(BYTES[weights] * shape.params
               / (tensor if gathered else shards)),
      cache=slots * (S + T) * sampled,
      part=slots * (S + T) * sampled / (2 * shape.layers),
      window=first * S * sampled,
      prefilling=first * S * forward,
      drawing=slots * (2 * 4 * heads * (S + T)
                       + DRAWN * 4 * shape.vocab / tensor),
      copy=copy,
      kept=(number * shape.layers * shape.width * (rows * T + prompts * S)
            + kv * (rows + prompts) * S),
      head=(number + 4) * (
          head + min(head_chunk(shape.vocab), rows * T)
          * shape.vocab / tensor),
      backward=(BYTES[reduce_dtype] * matrices + 4 * head / mesh.fsdp
                + rows * T * (token + heads * score_bytes(S + T, fused))))


def _of_isojax(p: Programs, machine: Machine, whole: bool) -> Memory:
  return Memory(
      masters=p.state, moments=2 * p.state, reference=p.reference,
      copy=p.weights, cache=p.cache + p.window,
      # Beside a whole cache: what decoding holds, or the old part of a growth.
      sample_logits=max(p.drawing, SHORTER * p.part),
      update_copy=p.copy, gradients=p.state,
      activations=p.kept + max(0.0, p.backward - p.head), update_logits=p.head,
      available=machine.usable_bytes, whole=whole)
