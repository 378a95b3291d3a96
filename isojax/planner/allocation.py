"""A budget C of rollouts as C = Bp * n * M, in exact integers."""

import dataclasses
import math

from isojax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Bp problems a step, n rollouts a problem, M updates."""

  Bp: int
  n: int
  M: int

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if value < 1:
        raise InputError(f"alloc.{name}={value}: expected at least 1")

  @property
  def B(self) -> int:
    """Rollouts in a step."""
    return self.Bp * self.n

  @property
  def C(self) -> int:
    """Rollouts in all."""
    return self.B * self.M


def allocate(*, Bp: int, n: int, M: int | None, C: int) -> Allocation:
  """(Bp, n, M), or if M is None as many updates as a budget of C pays for.

  M = C // (Bp * n): what is left of C, less than one step, is not spent.
  """
  if M is not None:
    return Allocation(Bp, n, M)
  if Bp < 1 or n < 1:
    return Allocation(Bp, n, 1)  # raises, naming which
  if C < Bp * n:
    raise InputError(
        f"alloc: {C=} rollouts do not pay for one step of Bp * n = {Bp} * {n} "
        f"= {Bp * n}; raise C to at least {Bp * n}, or lower Bp or n")
  return Allocation(Bp, n, C // (Bp * n))


def sqrt_lr(base_lr: float, base_batch: int, B: int) -> float:
  """base_lr * sqrt(B / base_batch): IsoCompute Playbook, section 6."""
  return base_lr * math.sqrt(B / base_batch)
