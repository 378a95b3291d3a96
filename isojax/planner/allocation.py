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


# The playbook's sweep (section 4): 39 cells at 65,536 rollouts a step (Easy),
# 27 at 16,384 (Hard).
PAPER_BP = (32, 64, 128, 256, 512, 1024)
PAPER_N = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
B_MAX = 65_536  # rollouts in a step at most, where nobody says
FEWEST_M = 50  # updates; in fewer, the warm-up is a large part
# The anchor of the square-root rule: 1e-6 at 1024 rollouts a step, AdamW.
PAPER_LR, PAPER_BATCH = 1e-6, 1024


def cells(Bps, ns, *, B_max: int) -> tuple[tuple[int, int], ...]:
  """Every (Bp, n) with Bp * n <= B_max, in order."""
  return tuple((Bp, n) for Bp in Bps for n in ns if Bp * n <= B_max)


def nearest_power(value: float, *, low: int, high: int) -> int:
  """The power of two nearest to value in log2, within [low, high]."""
  lowest, highest = math.ceil(math.log2(low)), math.floor(math.log2(high))
  return 2 ** min(max(round(math.log2(value)), lowest), highest)


def admitted(Bp: int, n: int, *, B_max: int,
             D: int) -> tuple[int, int, tuple[str, ...]]:
  """The nearest (Bp, n) that a batch and a problem set admit, and why.

  n is kept as long as it can be: the playbook tunes n first.

  Args:
    Bp, n: the wish.
    B_max: most rollouts in a step.
    D: training problems; Bp distinct ones make a step.

  Raises:
    InputError: nothing is admitted.
  """
  if B_max < 2:
    raise InputError(f"no n >= 2 with Bp * n <= {B_max}; raise B_max")
  why, near = [], min(max(n, 2), B_max)
  if near != n:
    why.append(f"n {n} -> {near}: n is at least 2 and at most {B_max}")
  for most, rule in ((B_max // near, f"Bp * n is at most {B_max}"),
                     (D, "the problem set has no more")):
    if Bp > most:
      why.append(f"Bp {Bp} -> {most}: {rule}")
      Bp = most
  return Bp, near, tuple(why)


def sqrt_lr(base_lr: float, base_batch: int, B):
  """base_lr * sqrt(B / base_batch): IsoCompute Playbook, section 6.

  B may be an array.
  """
  return base_lr * (B / base_batch) ** 0.5
