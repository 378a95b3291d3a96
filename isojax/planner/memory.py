"""The memory of a device in a step: sampling, then the update; by formulas.

Checked against compiled programs: tests/planner/test_memory.py, COMPILED.
"""

import dataclasses
import math

from isojax.models import kernels
from isojax.models.shape import ModelShape
from isojax.planner.machines import (
  Accelerator,
  GPU_SHARE_VARIABLE,
  Machine,
  Mesh,
)
from isojax.planner.workload import Workload
from isojax.rl.sizes import head_chunk
from isojax.sampling import sizes
from isojax.sampling.sizes import DRAWN

# The length before the last of the cache's four growths, over the final length.
SHORTER = 3 / 4
# Bytes per head and token in the backward of a fused attention kernel, instead
# of scores; fitted to the programs that launch.compile compiles with splash.
KERNEL = 3800


@dataclasses.dataclass(frozen=True)
class Held:
  """What a device holds at once."""

  slots: int  # of the sampler
  rows: int  # of a microbatch
  prompts: int  # of a microbatch
  whole: bool  # weights are gathered over fsdp while sampling
  pool: int | None = None  # positions of pages; None: longest slots


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
    """Arguments, temporaries and results of each program."""
    return dict(
        prefill=self.weights + self.window + self.prefilling,
        reread=self.weights + self.window + self.prefilling,
        insert=self.cache + self.window, move=self.cache,
        # The last growth of one part; the other parts stay in memory.
        resize=(1 + SHORTER) * self.part,
        decode=self.weights + self.cache + self.drawing, start=self.state,
        accumulate=2 * self.state + self.reference + self.copy + self.kept
        + max(self.head, self.backward), apply=4 * self.state)


def programs(shape: ModelShape, w: Workload, mesh: Mesh,
             held: Held) -> Programs:
  """The memory of isojax's programs, without adapters.

  Temporaries of the compiler are left out where the config has no remat, and
  weights that it gathers over fsdp for longer than a layer.
  """
  number, f = w.bytes("compute"), w.formats
  S, T, rows = w.lengths.max_prompt, w.lengths.max_response, held.rows
  shards, tensor, paged = mesh.weight_shards, mesh.tensor, held.pool is not None
  heads, mlp, words = (x / tensor for x in (
      shape.heads, shape.active * shape.mlp, shape.head))
  kv_heads = min(tensor, shape.kv_heads)
  state = 4 * shape.params / shards
  kv = shape.kv_bytes_per_token(number) / kv_heads
  sampled = shape.kv_bytes_per_token(w.bytes("sampled")) / kv_heads
  first = sizes.prefilled(held.slots, S, paged=paged)
  stored = held.pool if paged else held.slots * (S + T)
  # Scores and softmax of every position in float32. The pages of one layer are
  # gathered for each slot, see sizes.SamplerSizes.beside_pages.
  drawing = held.slots * (S + T) * (8 * heads + kv / shape.layers * paged)
  # Per token and layer: residual and normed input, then gate and up, or
  # queries, keys, values and scores. A backward has all of them, and their
  # gradients.
  attended = (2 * heads + 2 * shape.kv_heads / kv_heads) * shape.head_dim
  forward = number * 2 * shape.width + max(
      number * 2 * mlp,
      number * attended + (4 + number) * heads * S * (not w.fused))
  token = number * (4 * shape.width + attended + 3 * mlp)
  # Scores and softmax, unless a kernel computes attention without storing them.
  scores = heads * min(KERNEL if w.fused else math.inf, 2 * 4 * (S + T))
  kept = number * shape.width if w.remat else token + scores
  matrices = shape.layers * shape.layer_matmul / shards
  return Programs(
      state=state, reference=state * w.recipe.reference,
      weights=(sizes.weight_bytes(shape, f.sampled, f.sampled_head)
               / (tensor if held.whole else shards)),
      cache=stored * sampled,
      part=stored * sampled / (2 * shape.layers) * (not paged),
      window=first * S * sampled,
      prefilling=first * S * forward,
      drawing=drawing + held.slots * DRAWN * 4 * shape.vocab / tensor,
      copy=number * matrices,
      kept=(shape.layers * kept * (rows * T + held.prompts * S)
            + kv * (rows + held.prompts) * S
            # Hidden states and their gradient, where the head is wider.
            + 2 * (w.bytes("head") - number) * shape.width * rows * T),
      head=(w.bytes("head") + 4) * (
          words + min(head_chunk(shape.vocab), rows * T)
          * shape.vocab / tensor),
      backward=(w.bytes("reduce") * matrices + 4 * words / mesh.fsdp
                + w.remat * rows * T * (token + scores)))


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


def memory(shape: ModelShape, w: Workload, machine: Machine, mesh: Mesh,
           held: Held) -> Memory:
  """Bytes of a step on each device.

  With LoRA, the base and the merged weights are copies in the compute dtype,
  the update has gradients of whole matrices, and the reference costs nothing.
  """
  p, lora, shards = (programs(shape, w, mesh, held), w.lora_rank is not None,
                     mesh.weight_shards)
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
