"""An allocation of C = Bp * n * M rollouts, in exact integers."""

import dataclasses
import math

import numpy as np

from isojax.errors import expect, InputError

MAX_B = 2**24  # rollouts of a step: all are in memory at once
MAX_C = 2**53  # rollouts; floats of larger counts are not exact


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Bp problems per step, n rollouts per problem, M steps."""

  Bp: int
  n: int
  M: int  # most steps; fewer if a step takes several sampling rounds
  m: int | None = None  # rollouts per problem that are trained on; None: n

  def __post_init__(self):
    expect("alloc", self, Bp=(self.Bp >= 1, "at least 1"),
           n=(self.n >= 1, "at least 1"), M=(self.M >= 1, "at least 1"),
           m=(self.m is None or self.m >= 1, "at least 1"))
    if self.B > MAX_B or self.C > MAX_C:
      raise InputError(
          f"alloc: Bp={self.Bp}, n={self.n}, M={self.M}: expected "
          f"Bp * n of at most {MAX_B:,} rollouts a step and Bp * n * M of at "
          "most 2**53; lower them")
    if self.m is not None and self.m > self.n:
      raise InputError(
          f"alloc.m={self.m} is more than the {self.n} rollouts of a "
          "problem; expected m <= n, or None to train on all")

  def is_finished(self, step: int, rollouts: int, *, rounds: int) -> bool:
    """Whether no step follows.

    Resampling may spend C before step M: then one more sampling round would
    exceed C.

    Args:
      step: steps made.
      rollouts: sampled in them.
      rounds: recipe.filter.rounds, the most sampling rounds of a step.
    """
    return step >= self.M or rounds > 1 and rollouts + self.B > self.C

  @property
  def kept(self) -> int:
    """Rollouts per problem that are trained on: m, or all n."""
    return self.n if self.m is None else self.m

  def kept_of(self, n_P) -> np.ndarray:
    """The rollouts of each problem that are trained on: m / n of n_P.

    n_P is below n where a rollout has no verdict. Rounded up, and at least 2 if
    m is: one alone has no advantage.
    """
    share_P = -(-np.asarray(n_P) * self.kept // self.n)
    return np.minimum(n_P, np.maximum(share_P, min(self.kept, 2)))

  @property
  def B(self) -> int:
    """The rollouts of a step of one sampling round."""
    return self.Bp * self.n

  @property
  def C(self) -> int:
    """The budget: the rollouts of M steps of one sampling round."""
    return self.B * self.M


def allocate(*, Bp: int, n: int, M: int | None, C: int,
             m: int | None = None) -> Allocation:
  """The allocation with M steps, or if M is None with those within C."""
  step = Allocation(Bp, n, 1 if M is None else M, m)
  if M is not None:
    return step
  B = step.B
  if C < B:
    raise InputError(
        f"alloc.C={C} is less than the rollouts of one step, Bp * n = {Bp} * "
        f"{n} = {B}; raise C to at least {B}, or lower Bp or n")
  return dataclasses.replace(step, M=C // B)


def sizes_of(allocation: Allocation) -> dict:
  """Bp, n, M, and m if it is set, as overrides of config.alloc."""
  return {name: size for name, size in dataclasses.asdict(allocation).items()
          if size is not None}


DEFAULT_B_MAX = 65_536  # of --B_max, rollouts per step; MAX_B is the limit
MIN_M = 50  # steps; the warm-up is a large part of a shorter run
# Anchor of the Playbook's square-root rule: lr of AdamW, rollouts per step.
PAPER_LR, PAPER_BATCH = 1e-6, 1024
# The rate of adapters over that of all weights (huggingface/trl#4207,
# thinking-machines-lab/tinker-cookbook#81).
LORA_LR = 10


def nearest_power(value: float, *, low: int, high: int) -> int:
  """The power of two nearest to value in log2, within [low, high]."""
  lowest, highest = math.ceil(math.log2(low)), math.floor(math.log2(high))
  return 2 ** min(max(round(math.log2(value)), lowest), highest)


def admitted(Bp: int, n: int, *, B_max: int,
             D: int) -> tuple[int, int, tuple[str, ...]]:
  """The nearest (Bp, n) within the limits, and the changes with their reasons.

  Bp is lowered rather than n: the IsoCompute Playbook tunes n first. D training
  problems limit Bp, because the problems of a step are distinct.
  """
  changes, near_n = [], min(max(n, 2), B_max)
  if near_n != n:
    changes.append(f"n {n} -> {near_n}: n is at least 2 and at most {B_max}")
  for limit, reason in ((B_max // near_n, f"Bp * n is at most {B_max}"),
                        (D, "the problem set has no more")):
    if Bp > limit:
      changes.append(f"Bp {Bp} -> {limit}: {reason}")
      Bp = limit
  return Bp, near_n, tuple(changes)


# Which rollouts of a step set the learning rate: all, those that are trained
# on, or those of an update. (allocation, minibatches) -> rollouts
BATCHES = {
    "sampled": lambda allocation, minibatches: allocation.B,
    "trained": lambda allocation, minibatches: allocation.Bp * allocation.kept,
    "update": lambda allocation, minibatches: (
        allocation.Bp * allocation.kept / minibatches),
}


def sqrt_lr(base_lr: float, base_batch: int, B):
  """The learning rate at batch B, a number or array (Playbook, section 6)."""
  return base_lr * (B / base_batch) ** 0.5
