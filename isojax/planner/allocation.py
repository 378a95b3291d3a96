"""An allocation C = Bp * n * M of rollouts, in exact integers."""

import dataclasses
import math

from isojax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Bp problems per step, n rollouts per problem, M updates."""

  Bp: int
  n: int
  M: int

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if value < 1:
        raise InputError(f"alloc.{name}={value}: expected at least 1")

  @property
  def B(self) -> int:
    """Returns the rollouts per step."""
    return self.Bp * self.n

  @property
  def C(self) -> int:
    """Returns all rollouts."""
    return self.B * self.M


def allocate(*, Bp: int, n: int, M: int | None, C: int) -> Allocation:
  """Returns (Bp, n, M); M = None becomes C // (Bp * n).

  The rest of C, less than one step, is not spent.

  Raises:
    InputError: C is less than one step.
  """
  if M is not None:
    return Allocation(Bp, n, M)
  if Bp < 1 or n < 1:
    return Allocation(Bp, n, 1)  # raises, naming which
  if C < Bp * n:
    raise InputError(
        f"alloc.C={C} is less than the rollouts of one step, Bp * n = {Bp} * "
        f"{n} = {Bp * n}; raise C to at least {Bp * n}, or lower Bp or n")
  return Allocation(Bp, n, C // (Bp * n))


# The playbook's sweep (section 4): 39 cells with at most 65,536 rollouts per
# step (Easy), 27 with at most 16,384 (Hard).
PAPER_BP = (32, 64, 128, 256, 512, 1024)
PAPER_N = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
B_MAX = 65_536  # default for the most rollouts per step
FEWEST_M = 50  # updates; of fewer, the warm-up is a large part
# Anchor of the square-root rule: 1e-6 at 1024 rollouts per step, AdamW.
PAPER_LR, PAPER_BATCH = 1e-6, 1024


def cells(Bps, ns, *, B_max: int) -> tuple[tuple[int, int], ...]:
  """Returns every (Bp, n) with Bp * n <= B_max, in order."""
  return tuple((Bp, n) for Bp in Bps for n in ns if Bp * n <= B_max)


def nearest_power(value: float, *, low: int, high: int) -> int:
  """Returns the power of two nearest to value in log2, within [low, high]."""
  lowest, highest = math.ceil(math.log2(low)), math.floor(math.log2(high))
  return 2 ** min(max(round(math.log2(value)), lowest), highest)


def admitted(Bp: int, n: int, *, B_max: int,
             D: int) -> tuple[int, int, tuple[str, ...]]:
  """Returns the nearest admitted (Bp, n), and what was changed and why.

  n is kept if possible: the playbook tunes n first.

  Args:
    Bp, n: wanted.
    B_max: most rollouts per step.
    D: training problems; the Bp problems of a step are distinct.

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
  """Returns base_lr * sqrt(B / base_batch) (IsoCompute Playbook, section 6).

  B may be an array.
  """
  return base_lr * (B / base_batch) ** 0.5
