"""The memory of isojax's programs on one device, by formulas.

Checked against compiled programs: tests/planner/test_cost.py, COMPILED.
"""

import dataclasses
import math

from isojax import attention_kernels
from isojax.planner.cost.machine import Accelerator
from isojax.planner.cost.model_shape import ModelShape
from isojax.planner.cost.roofline import Mesh
from isojax.planner.cost.workload import BYTES

# Most bytes of float32 logits that a chunked head computes at once: 1,024 tokens
# of Qwen2.5's vocabulary of 152,064.
HEAD_BYTES = 594 * 2**20
# Tokens of a prefill beside a pool of pages: enough to keep the matrix units of
# a device busy.
PREFILL = 8192
# Float32 arrays of [slots, vocabulary] while a token is drawn with top_p < 1, as
# in an evaluation; fewer are needed without.
DRAWN = 8
# The length before the last of the cache's four growths, over the final length.
SHORTER = 3 / 4
# Bytes per head and token in the backward of a fused attention kernel, instead
# of scores; fitted to the programs that launch.compile compiles with splash.
KERNEL = 3800


def prefilled(slots: int, max_prompt: int, *, paged: bool) -> int:
  """Returns the prompts that are prefilled at once on a device.

  They are an eighth of the slots. Beside a pool of pages, whose slots are many,
  they have at most PREFILL tokens.
  """
  most = math.ceil(slots / 8)
  return min(most, max(1, PREFILL // max_prompt)) if paged else most


def head_chunk(vocab: int) -> int:
  """Returns the tokens whose logits a chunked head computes at once."""
  return max(1, HEAD_BYTES // (4 * vocab))


def score_bytes(context: int, fused: bool) -> int:
  """Returns bytes per head and token of scores and softmax in a backward.

  Args:
    context: tokens attended to.
    fused: whether a kernel computes attention without storing scores.
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


def slot_bytes(shape: ModelShape, *, dtype: str, cache: str, tensor: int,
               max_prompt: int, max_response: int, fused: bool) -> float:
  """Returns the bytes of one slot of the sampler on a device.

  Counts the cache, and its largest part again while it grows; an eighth of a
  prompt with one layer's activations, for prefill; float32 scores, logits and
  the arrays of drawing.
  """
  kv = shape.kv_bytes_per_token(BYTES[cache]) / min(tensor, shape.kv_heads)
  length = max_prompt + max_response
  return (length * kv * (1 + 1 / (2 * shape.layers))
          + 8 * shape.heads / tensor * length + _beside_cache(
              shape, dtype=dtype, kv=kv, tensor=tensor, max_prompt=max_prompt,
              fused=fused))


def _beside_cache(shape: ModelShape, *, dtype: str, kv: float, tensor: int,
                  max_prompt: int, fused: bool) -> float:
  """Returns the bytes of a slot for drawing, and for an eighth of a prefill."""
  return DRAWN * 4 * shape.vocab / tensor + _prompt_bytes(
      shape, dtype=dtype, kv=kv, tensor=tensor, max_prompt=max_prompt,
      fused=fused) / 8


def _prompt_bytes(shape: ModelShape, *, dtype: str, kv: float, tensor: int,
                  max_prompt: int, fused: bool) -> float:
  """Returns the bytes of a prompt that is prefilled."""
  return max_prompt * (kv + BYTES[dtype] * (
      4 * shape.width + 3 * shape.mlp / tensor)
                       + 8 * shape.heads / tensor * max_prompt * (not fused))


def paged_slots_bytes(shape: ModelShape, *, slots: int, prompts: int, dtype: str,
                      cache: str, tensor: int, max_prompt: int, fused: bool,
                      chunk: int) -> float:
  """Returns the bytes of slots on a device, beside the pages of a pool.

  Counts chunks that are decoded beside the pool, the arrays of drawing, and
  `prompts` that are prefilled at once.
  """
  kv = shape.kv_bytes_per_token(BYTES[cache]) / min(tensor, shape.kv_heads)
  return slots * (chunk * kv + DRAWN * 4 * shape.vocab / tensor) + (
      prompts * _prompt_bytes(shape, dtype=dtype, kv=kv, tensor=tensor,
                              max_prompt=max_prompt, fused=fused))


def page_bytes(shape: ModelShape, *, page: int, cache: str, tensor: int,
               kernel: bool) -> float:
  """Returns the bytes of a page of all layers, and of the work on it.

  Args:
    shape: of the policy.
    page: positions.
    cache: dtype.
    tensor: of the mesh.
    kernel: whether a kernel reads pages. Plain products store float32 scores
      and their softmax: of one row for most pages, of eight for an eighth. A
      chunk is written with the pages of one layer beside the pool.
  """
  kv = shape.kv_bytes_per_token(BYTES[cache]) / min(tensor, shape.kv_heads)
  return page * (kv + (kv / shape.layers + 2 * 8 * shape.heads / tensor)
                 * (not kernel))


def weight_bytes(shape: ModelShape, weights: str, head: str) -> int:
  """Returns the bytes of all weights while sampling, on one device.

  Args:
    weights: dtype of all matrices but the head's.
    head: dtype of the head's; a tied embedding is stored once, in it.
  """
  return BYTES[weights] * shape.params + shape.head * (
      BYTES[head] - BYTES[weights])


def slots_admitted(shape: ModelShape, *, weights: str, head: str, fsdp: int,
                   tensor: int, budget: float, most: int,
                   **slot) -> tuple[int, bool]:
  """Returns (slots that a device holds, whether weights are gathered).

  Weights are gathered over fsdp once, instead of at every token, if all wanted
  slots still fit. Fewer slots than wanted are a multiple of `tensor`, whose
  devices share the drawing of tokens.

  Args:
    weights, head: their dtypes while sampling, see `weight_bytes`.
    budget: bytes of a device for sampling.
    most: slots wanted on a device.
    slot: the other keywords of `slot_bytes`.
  """
  each = slot_bytes(shape, tensor=tensor, **slot)
  whole = weight_bytes(shape, weights, head) / tensor

  def room(held):
    slots = max(0, min(most, int((budget - held) // each)))
    return slots if slots == most else slots // tensor * tensor or slots

  if fsdp == 1 or room(whole) == most:
    return room(whole), True
  return room(whole / fsdp), False


def least_bytes(shape: ModelShape, *, weights: str, head: str, fsdp: int,
                tensor: int, **slot) -> float:
  """Returns the bytes of a device that samples with one slot."""
  return (slot_bytes(shape, tensor=tensor, **slot)
          + weight_bytes(shape, weights, head) / tensor / fsdp)


def largest(fits, most: int) -> int:
  """Returns the largest whole number up to `most` that fits, or 0."""
  low, high = 0, most  # low fits or is 0, high + 1 does not or is too many
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


@dataclasses.dataclass(frozen=True)
class Programs:
  """Bytes on a device, as in the report of `launch.compile`.

  A pool of pages is not resized; its pages are moved in place.
  """

  state: float  # float32 parameters; its moments are twice as much
  reference: float  # float32 parameters of the base policy, with KL
  weights: float  # while sampling
  cache: float
  part: float  # keys or values of one layer, in the cache
  window: float  # keys and values of prompts
  prefilling: float  # temporaries of a prefill
  drawing: float  # temporaries of decoding
  copy: float  # of the layers' matrices in the compute dtype, in the update
  kept: float  # for the backward
  head: float  # of weight and logits and their gradients, one of each float32
  backward: float  # of the layers, when the head's is done

  @property
  def own(self) -> dict[str, float]:
    """Returns the arguments, temporaries and results of each program."""
    return dict(
        prefill=self.weights + self.window + self.prefilling,
        reread=self.weights + self.window + self.prefilling,
        insert=self.cache + self.window, move=self.cache,
        # The last growth of one part; the other parts stay in memory.
        resize=(1 + SHORTER) * self.part,
        decode=self.weights + self.cache + self.drawing, start=self.state,
        accumulate=2 * self.state + self.reference + self.copy + self.kept
        + max(self.head, self.backward), apply=4 * self.state)


def programs(shape: ModelShape, *, dtype: str, weights: str, cache: str,
             sampled_head: str, head: str, reduce_dtype: str, mesh: Mesh,
             gathered: bool, slots: int, pool: int | None, chunk: int,
             rows: int, prompts: int,
             max_prompt: int, max_response: int, kl: bool,
             fused: bool) -> Programs:
  """Returns the memory of the programs with remat and without adapters.

  Args:
    dtype: of activations, and of the layers' matrices in the update.
    weights, cache, sampled_head: while sampling.
    head: dtype of the head in the update.
    reduce_dtype: of the gradients of the layers' matrices.
    gathered: whole weights on each fsdp shard while sampling.
    slots: of the sampler, on a device.
    pool: positions of pages on a device; None: slots have the longest length.
    chunk: tokens that are decoded at once, beside a pool.
    rows, prompts: of a microbatch, on a device.
    fused: whether prefill and update use a fused attention kernel.
  """
  number, S, T = BYTES[dtype], max_prompt, max_response
  shards, tensor = mesh.fsdp * mesh.tensor, mesh.tensor
  heads, mlp, words = (x / tensor for x in (
      shape.heads, shape.mlp, shape.head))
  state = 4 * shape.params / shards
  kv = shape.kv_bytes_per_token(number) / min(tensor, shape.kv_heads)
  sampled = (shape.kv_bytes_per_token(BYTES[cache])
             / min(tensor, shape.kv_heads))
  first = prefilled(slots, S, paged=pool is not None)
  stored = slots * (S + T) if pool is None else pool
  # Scores and softmax of every position in float32, of two rows in a pool: see
  # page_bytes.
  drawing = 8 * heads * (stored if pool is None else 2 * stored) + (
      0 if pool is None else (slots * chunk + pool / shape.layers) * sampled)
  # Per token and layer: residual and normed input, then gate and up, or
  # queries, keys, values and scores. A backward has all of them, and their
  # gradients.
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
      weights=(weight_bytes(shape, weights, sampled_head)
               / (tensor if gathered else shards)),
      cache=stored * sampled,
      part=(stored if pool is None else 0) * sampled / (2 * shape.layers),
      window=first * S * sampled,
      prefilling=first * S * forward,
      drawing=drawing + slots * DRAWN * 4 * shape.vocab / tensor,
      copy=copy,
      kept=(number * shape.layers * shape.width * (rows * T + prompts * S)
            + kv * (rows + prompts) * S
            # Hidden states and their gradient, where the head is wider.
            + 2 * (BYTES[head] - number) * shape.width * rows * T),
      head=(BYTES[head] + 4) * (
          words + min(head_chunk(shape.vocab), rows * T)
          * shape.vocab / tensor),
      backward=(BYTES[reduce_dtype] * matrices + 4 * words / mesh.fsdp
                + rows * T * (token + heads * score_bytes(S + T, fused))))
