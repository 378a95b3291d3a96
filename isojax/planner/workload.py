"""What a step computes: lengths, number formats, and the parts of a recipe."""

import dataclasses
import math

from isojax import kernels
from isojax.errors import InputError
from isojax.memory import Formats

SIGMA = 0.8  # assumed deviation of the logarithm of an answer's tokens


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Tokens of a prompt and of an answer."""

  prompt: float  # mean of a problem
  response: float  # mean of a rollout
  max_prompt: int  # sizes the cache
  max_response: int

  def __post_init__(self):
    for name in ("prompt", "response"):
      mean, most = getattr(self, name), getattr(self, f"max_{name}")
      if not 0 < mean <= most:
        raise InputError(f"{name} tokens, mean {mean}: expected more than 0 "
                         f"and at most {most}")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The parts of a step that a recipe chooses."""

  m: int | None = None  # rollouts of a problem that are trained on; None: n
  epochs: int = 1  # passes over these rollouts
  minibatches: int = 1  # updates of a pass
  old_logp: bool = False  # one forward pass before the updates
  ref_logp: bool = False  # one of the reference, for a KL in the reward
  kl: bool = False  # in the loss: the reference computes every trained token
  critic: str = "none"  # or shared or own; its values are a forward pass more
  rounds: float = 1.0  # sampling rounds of a step, mean; more with refill
  in_flight: bool = False  # sampling goes on across updates

  def __post_init__(self):
    if min(self.epochs, self.minibatches, self.rounds) < 1:
      raise InputError(f"{self}: expected epochs, minibatches and rounds of at "
                       "least 1")

  @property
  def updates(self) -> int:
    """Optimizer steps of one step."""
    return self.epochs * self.minibatches

  @property
  def reference(self) -> bool:
    """Whether the base policy stays in memory."""
    return self.kl or self.ref_logp

  @property
  def own_critic(self) -> bool:
    return self.critic == "own"

  @property
  def valued(self) -> bool:
    """Whether values take a forward pass of their own.

    Those of a shared critic come with `old_logp`, from the same hidden states.
    """
    return self.own_critic or self.critic == "shared" and not self.old_logp

  @property
  def passes(self) -> int:
    """Forward passes over trained rollouts before the updates."""
    return self.old_logp + self.ref_logp + self.valued

  def trained(self, n):
    """Rollouts of a problem that are trained on."""
    return n if self.m is None else min(self.m, n)


@dataclasses.dataclass(frozen=True)
class Workload:
  """A step of any allocation.

  With `padded`, prompts and the cache have their maximal lengths and the
  answers of an update are packed into rows of the maximal length, as isojax
  does. Without, everything has its mean length.
  """

  lengths: Lengths
  formats: Formats
  recipe: Recipe = Recipe()
  padded: bool = False
  remat: bool = False  # the backward computes the forward again
  fused: bool = True  # attention never stores its scores; used where padded
  skips: bool = False  # and computes no blocks of other answers; where padded
  lora_rank: int | None = None  # of adapters on all matrices of a layer; None:
  # all weights are trained
  trained: float = 1.0  # share of groups with a gradient, which grows with n;
  # other groups are skipped

  def bytes(self, name: str) -> int:
    """Bytes of a number in the format of this name."""
    return self.formats.bytes(name)

  @property
  def computed(self) -> tuple[float, float, float, float]:
    """(prompt, response, context of a prompt, context of a response).

    Tokens computed, and the mean number of tokens that each attends to.
    """
    one = self.lengths
    if not self.padded:
      return (one.prompt, one.response, one.prompt / 2,
              one.prompt + one.response / 2)
    S, T = one.max_prompt, one.max_response
    return S, T, S, S + T

  @property
  def update_context(self) -> float:
    """Mean number of slots that a trained token attends to.

    Blocks are skipped as if lengths were log-normal, with E[T^2] = E[T]^2
    exp(SIGMA^2): a token attends to E[T^2] / 2 E[T] tokens of its answer.
    """
    if not (self.padded and self.skips):
      return self.computed[3]
    one = self.lengths
    return kernels.computed_slots(
        one.prompt, one.response * math.exp(SIGMA**2) / 2, S=one.max_prompt,
        T=one.max_response)
