"""The tokens of a rollout, and how they are computed."""

import dataclasses
import math

import numpy as np

from isojax.models import kernels
from isojax.errors import InputError
from isojax.models.shape import BYTES
from isojax.planner.cost.recipe import ON_POLICY, Recipe

SIGMA = 0.8  # assumed deviation of the logarithm of an answer's tokens


@dataclasses.dataclass(frozen=True)
class Workload:
  """Lengths and number formats of one run.

  With `padded`, prompts and the cache have their maximal lengths and the
  answers of an update are packed into rows of the maximal length, as isojax
  does. Without, everything has its mean length, as in an update without
  padding, with fused attention and a growing cache.
  """

  prompt_tokens: float  # mean of a problem
  response_tokens: float  # mean of a rollout
  max_prompt: int  # tokens; sizes the cache
  max_response: int  # tokens; sizes the cache
  dtype: str  # of compute, a key of BYTES
  padded: bool = False
  fused: bool = True  # attention never stores its scores; used where padded
  skips: bool = False  # and computes no blocks of other answers; where padded
  kl: bool = False  # the reference computes every trained token in an update
  remat: bool = False  # the backward computes the forward again
  weights: str | None = None  # while sampling, a key of BYTES; None: dtype
  cache: str | None = None  # keys and values, a key of BYTES; None: dtype
  sampled_head: str | None = None  # while sampling, a key of BYTES; None:
  # as the weights
  head: str | None = None  # in the update, a key of BYTES; None: dtype
  reduce_dtype: str = "float32"  # of gradients across devices, a key of BYTES
  lora_rank: int | None = None  # of adapters on all matrices of a layer; None:
  # all weights are trained
  trained: np.ndarray | float = 1.0  # share of groups with a gradient, one for
  # each allocation or one for all; it grows with n; other groups are skipped
  recipe: Recipe = ON_POLICY

  def __post_init__(self):
    for name in ("dtype", "weights", "cache", "sampled_head", "head",
                 "reduce_dtype"):
      if (getattr(self, name) or self.dtype) not in BYTES:
        raise InputError(f"workload.{name}={getattr(self, name)!r}: expected "
                         f"one of {', '.join(BYTES)}")
    for mean, top in (("prompt_tokens", "max_prompt"),
                      ("response_tokens", "max_response")):
      if not 0 < getattr(self, mean) <= getattr(self, top):
        raise InputError(
            f"workload.{mean}={getattr(self, mean)}: expected more than 0 and "
            f"at most {top}={getattr(self, top)}")
    if not np.all((0 <= np.asarray(self.trained)) & (self.trained <= 1)):
      raise InputError(f"workload.trained={self.trained}: expected in [0, 1]")

  @property
  def sampled_weights(self) -> str:
    return self.weights or self.dtype

  @property
  def head_sampled(self) -> str:
    return self.sampled_head or self.sampled_weights

  @property
  def head_updated(self) -> str:
    return self.head or self.dtype

  @property
  def sampled_cache(self) -> str:
    return self.cache or self.dtype

  @property
  def lengths(self) -> tuple[float, float, float, float]:
    """Returns (prompt, response, context of a prompt, context of a response).

    Tokens computed, and the mean number of tokens that each attends to.
    """
    S, T = self.prompt_tokens, self.response_tokens
    if not self.padded:
      return S, T, S / 2, S + T / 2
    S, T = float(self.max_prompt), float(self.max_response)
    return S, T, S, S + T

  @property
  def update_context(self) -> float:
    """Returns the mean number of slots that a trained token attends to.

    Blocks are skipped as if lengths were log-normal, with E[T^2] = E[T]^2
    exp(SIGMA^2): a token attends to E[T^2] / 2 E[T] tokens of its answer.
    """
    if not (self.padded and self.skips):
      return self.lengths[3]
    return kernels.computed_slots(
        self.prompt_tokens, self.response_tokens * math.exp(SIGMA**2) / 2,
        S=self.max_prompt, T=self.max_response)
