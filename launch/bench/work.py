"""The least work of a case: FLOPs and bytes of the model.

Counts useful work only, for every contestant alike: each prompt once, new
tokens up to the stop with their true context, no padding, no recomputation.
"""

import dataclasses

import numpy as np

from isojax.models.shape import ModelShape


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one stage."""

  flops: float
  bytes: float  # through memory


def mean_context(S: int, len_R) -> float:
  """Returns the mean number of tokens a new token attends to, with itself."""
  length = np.asarray(len_R, np.float64)
  return S + float((length * (length + 1) / 2).sum() / length.sum())


def sampling(shape: ModelShape, P: int, S: int, len_R, *, slots: int,
             weight_bytes: int, cache_bytes: int) -> tuple[Work, Work]:
  """Returns (prefill of P prompts of S tokens, decoding of these lengths).

  Weights go through memory once per position. There are as many positions as
  the longest row has, or as the tokens over all slots, if those are more.
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
  """Returns (forward and backward, optimizer), as `roofline.step_cost` does.

  Three forwards of each prompt and of each new token; weights go through memory
  three times per microbatch. AdamW in float32 reads and writes parameters and
  two moments, and reads gradients.
  """
  tokens = float(np.sum(len_R))
  forward = (P * S * shape.forward_flops(S / 2, head=False) + tokens
             * shape.forward_flops(mean_context(S, len_R), head=True))
  return (Work(3 * forward, 3 * microbatches * shape.params * number),
          Work(10.0 * shape.params, 28.0 * shape.params))


def roofline_seconds(stages, *, flops: float, bandwidth: float) -> float:
  """Returns the sum over stages, each at the slower of its two bounds."""
  return sum(max(w.flops / flops, w.bytes / bandwidth) for w in stages)
