"""The memory of isojax's programs on one device, by formulas.

Checked against compiled programs: tests/planner/test_cost.py, COMPILED.
"""

import dataclasses

from isojax.models import kernels
from isojax.planner.cost.machine import Accelerator
from isojax.models.shape import BYTES, ModelShape
from isojax.planner.cost.roofline import Mesh
from isojax.rl.sizes import head_chunk
from isojax.sampling.sizes import DRAWN, prefilled, weight_bytes

# The length before the last of the cache's four growths, over the final length.
SHORTER = 3 / 4
# Bytes per head and token in the backward of a fused attention kernel, instead
# of scores; fitted to the programs that launch.compile compiles with splash.
KERNEL = 3800


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
  lacks = kernels.lacks(
      platform, capability=8.0 if platform == "gpu" else None,
      H=shape.head_dim, K=shape.kv_heads, tensor=tensor, dtype=dtype, cap=None,
      window=0, length=0)
  return attention != "einsum" and not shape.family.gemma and (
      None in lacks.values())


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
