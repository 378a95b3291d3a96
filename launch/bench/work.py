"""What a case needs at least: FLOPs and bytes of the model, by the planner.

Counts are of useful work, whoever does it: each prompt once, new tokens up to
the stop with the context that they really have, no padding, no recomputation.
"""

import dataclasses

import numpy as np

from isojax.planner.cost.model_shape import ModelShape


@dataclasses.dataclass(frozen=True)
class Work:
  """What one stage needs."""

  flops: float
  bytes: float  # through memory


def mean_context(S: int, len_R) -> float:
  """What a new token attends to in the mean, itself included."""
  length = np.asarray(len_R, np.float64)
  return S + float((length * (length + 1) / 2).sum() / length.sum())


def sampling(shape: ModelShape, P: int, S: int, len_R, *, slots: int,
             weight_bytes: int, cache_bytes: int) -> tuple[Work, Work]:
  """(prefill of P prompts of S tokens, decoding of rows of these lengths).

  Weights go through memory once a position; there are as many positions as the
  longest row has, or as tokens fill all slots. Bytes are of one number.
  """
  kv = shape.kv_bytes_per_token(cache_bytes)
  weights = shape.matmul_params * weight_bytes
  prefill = Work(P * S * shape.forward_flops(S / 2, head=False),
                 P * S * kv + weights)
  tokens, context = float(np.sum(len_R)), mean_context(S, len_R)
  positions = max(float(np.max(len_R)), tokens / slots)
  return prefill, Work(tokens * shape.forward_flops(context, head=True),
                       positions * weights + tokens * context * kv)


def update(shape: ModelShape, P: int, S: int, len_R, *, microbatches: int,
           number: int) -> tuple[Work, Work]:
  """(forward and backward, optimizer), as `planner.cost.step_cost` has them.

  Three forwards of each prompt, once, and of each new token; weights once in
  each forward and backward of a microbatch. AdamW in float32: parameters and
  two moments read and written, gradients read.
  """
  tokens = float(np.sum(len_R))
  forward = (P * S * shape.forward_flops(S / 2, head=False) + tokens
             * shape.forward_flops(mean_context(S, len_R), head=True))
  return (Work(3 * forward, 3 * microbatches * shape.params * number),
          Work(10.0 * shape.params, 28.0 * shape.params))


def roofline_seconds(stages, *, flops: float, bandwidth: float) -> float:
  """One stage after the other, each at the slower of the two bounds."""
  return sum(max(w.flops / flops, w.bytes / bandwidth) for w in stages)
