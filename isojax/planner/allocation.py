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
# The anchor of the square-root rule: 1e-6 at 1024 rollouts a step, AdamW.
PAPER_LR, PAPER_BATCH = 1e-6, 1024


def cells(Bps, ns, *, B_max: int) -> tuple[tuple[int, int], ...]:
  """Every (Bp, n) with Bp * n <= B_max, in order."""
  return tuple((Bp, n) for Bp in Bps for n in ns if Bp * n <= B_max)


def nearest_power(value: float, *, low: int, high: int) -> int:
  """The power of two nearest to value in log2, within [low, high]."""
  lowest, highest = math.ceil(math.log2(low)), math.floor(math.log2(high))
  return 2 ** min(max(round(math.log2(value)), lowest), highest)


def _multiple(value: int, step: int, most: int) -> int | None:
  """The multiple of step up to most with the ratio nearest to value, if any."""
  if step > most:
    return None
  top = most // step * step
  below = min(max(step, value // step * step), top)
  return min(below, min(below + step, top),
             key=lambda x: abs(math.log(x / value)))


def admitted(Bp: int, n: int, *, unit: int, B_max: int,
             D: int) -> tuple[int, int, tuple[str, ...]]:
  """The nearest (Bp, n) that a mesh and a problem set admit, and why.

  n is kept as long as it can be: the playbook tunes n first.

  Args:
    Bp, n: the wish.
    unit: Bp * n must be a multiple: row shards times microbatches.
    B_max: most rollouts in a step.
    D: training problems; Bp distinct ones make a step.

  Raises:
    InputError: nothing is admitted.
  """
  why, wish = [], Bp
  at = lambda n: _multiple(Bp, unit // math.gcd(unit, n), min(D, B_max // n))
  if B_max // Bp < n <= B_max:
    why.append(f"Bp {Bp} -> {B_max // n}: Bp * n is at most {B_max}")
    Bp = B_max // n
  if Bp > D:
    why.append(f"Bp {Bp} -> {D}: the problem set has no more")
    Bp = D
  near = at(n) if n >= 2 else None
  if near:
    if near != Bp:
      why.append(f"Bp {Bp} -> {near}: Bp * n must be a multiple of {unit}, "
                 "row shards times microbatches")
    return near, n, tuple(why)
  if not 2 <= B_max >= unit:
    raise InputError(
        f"no Bp <= {D} and 2 <= n with Bp * n <= {B_max} a multiple of {unit} "
        "(row shards times microbatches); use a smaller mesh or fewer "
        "microbatches, or raise B_max")
  middle = min(max(n, 2), B_max)  # a multiple of unit is not further than unit
  both = [(at(y), y) for y in range(max(2, middle - unit),
                                    min(B_max, middle + unit) + 1) if at(y)]
  near = min(both, key=lambda c: abs(math.log(c[1] / n)) + 0.5 * abs(
      math.log(c[0] / wish)))
  rule = f"a multiple of {unit} and " * (unit > 1)
  return *near, (f"(Bp, n) ({wish}, {n}) -> {near}: Bp * n must be {rule}at "
                 f"most {B_max}, and n at least 2",)


def sqrt_lr(base_lr: float, base_batch: int, B):
  """base_lr * sqrt(B / base_batch): IsoCompute Playbook, section 6.

  B may be an array.
  """
  return base_lr * (B / base_batch) ** 0.5
