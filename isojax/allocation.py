"""An allocation of C rollouts to Bp problems, n rollouts and M steps.

C = Bp * n * M if n is constant, in exact integers.
"""

import dataclasses
import math

from isojax.errors import InputError

Pieces = tuple[tuple[int, int], ...]  # (from C, n), in order of C


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Bp problems per step, n rollouts per problem, M steps.

  With a schedule, a step has the n of the last piece that begins at or before
  the rollouts that were sampled before the step. A piece whose C lies inside a
  step therefore begins with the next step.
  """

  Bp: int
  n: int  # of the first step
  M: int  # with refill: the most steps, of one sampling round each
  # Rollouts per problem that are trained on; None: n.
  m: int | None = None
  # (from C, n) of each piece; empty: n is constant.
  schedule: Pieces = ()

  def __post_init__(self):
    for name in ("Bp", "n", "M", "m"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise InputError(f"alloc.{name}={value}: expected at least 1")
    _check_schedule(self.n, self.schedule)
    if self.m is not None and self.m > self.n_min:
      raise InputError(
          f"alloc.m={self.m} is more than the {self.n_min} rollouts of a "
          "problem; expected m <= n, or None to train on all")

  @property
  def pieces(self) -> Pieces:
    """Returns (from C, n) of each piece; without a schedule there is one."""
    return self.schedule or ((0, self.n),)

  @property
  def n_max(self) -> int:
    """The largest n of the run."""
    return max(n for _, n in self.pieces)

  @property
  def n_min(self) -> int:
    """The smallest n of the run."""
    return min(n for _, n in self.pieces)

  def n_after(self, rollouts: int) -> int:
    """N of a step that begins after so many rollouts."""
    return [n for start, n in self.pieces if start <= rollouts][-1]

  def rollouts_of_step(self, rollouts: int) -> int:
    """The rollouts of one round of a step that begins after so many.
    """
    return self.Bp * self.n_after(rollouts)

  def is_spent(self, rollouts: int) -> bool:
    """Whether another step, or round of one, would exceed C."""
    return rollouts + self.rollouts_of_step(rollouts) > self.C

  def m_of(self, n: int) -> int:
    """The rollouts per problem that are trained on in a step of n."""
    return n if self.m is None else self.m

  @property
  def B(self) -> int:
    """The rollouts of the first step, which are those of all steps if
    n is constant."""
    return self.Bp * self.n

  @property
  def C(self) -> int:
    """The budget: the rollouts of M steps of one sampling round."""
    return self.rollouts_after(self.M)

  @property
  def steps_by_piece(self) -> tuple[tuple[int, int], ...]:
    """Returns (n, steps) of each piece that has a step, in order."""
    out, left = [], self.M
    for size, count in _runs(self.Bp, self.pieces):
      taken = left if count is None else min(left, count)
      if taken:
        out.append((size // self.Bp, taken))
      left -= taken
    return tuple(out)

  def rollouts_after(self, steps: int) -> int:
    """The rollouts of the first steps, of one sampling round each."""
    rollouts = 0
    for size, count in _runs(self.Bp, self.pieces):
      taken = steps if count is None else min(steps, count)
      rollouts, steps = rollouts + taken * size, steps - taken
    return rollouts


def _runs(Bp: int, pieces: Pieces):
  """Yields (rollouts of a step, number of such steps), in order.

  The last number is None: the last piece has no end.
  """
  rollouts = 0
  for (_, n), (end, _) in zip(pieces, (*pieces[1:], (None, None)), strict=True):
    if end is None:
      yield Bp * n, None
    elif rollouts < end:
      count = -(-(end - rollouts) // (Bp * n))
      yield Bp * n, count
      rollouts += count * Bp * n


def _check_schedule(n: int, schedule: Pieces) -> None:
  """Raises InputError unless pieces begin at C = 0 with n, in order of C."""
  if not schedule:
    return
  if any(len(piece) != 2 for piece in schedule):
    raise InputError(f"alloc.schedule={schedule}: expected pieces (from C, n), "
                     "such as ((0, 4), (65536, 8))")
  starts = [start for start, _ in schedule]
  if starts[0] != 0 or sorted(set(starts)) != starts:
    raise InputError(f"alloc.schedule={schedule}: expected pieces (from C, n) "
                     "that begin at C = 0, in increasing order of C")
  for _, each in schedule:
    if each < 1:
      raise InputError(f"alloc.schedule={schedule}: n={each}: expected at "
                       "least 1")
  if schedule[0][1] != n:
    raise InputError(f"alloc.schedule={schedule} begins with n = "
                     f"{schedule[0][1]}, but alloc.n={n}; set alloc.n to the "
                     "n of the first piece")


def allocate(*, Bp: int, n: int, M: int | None, C: int, m: int | None = None,
             schedule: Pieces = ()) -> Allocation:
  """The allocation; M = None becomes the number of steps within C.

  Without a schedule this is C // (Bp * n). With one it is the number of steps
  before the first that would exceed C. The rest of C, less than that step, is
  not spent.

  Raises:
    InputError: C is less than one step, or the schedule is wrong.
  """
  make = lambda M: Allocation(Bp, n, M, m, schedule)
  if M is not None:
    return make(M)
  if Bp < 1 or n < 1:
    return make(1)  # raises, naming which
  if C < Bp * n:
    raise InputError(
        f"alloc.C={C} is less than the rollouts of one step, Bp * n = {Bp} * "
        f"{n} = {Bp * n}; raise C to at least {Bp * n}, or lower Bp or n")
  make(1)  # raises if the schedule is wrong
  M, left = 0, C
  for size, count in _runs(Bp, schedule or ((0, n),)):
    fitting = left // size
    taken = fitting if count is None else min(count, fitting)
    M, left = M + taken, left - taken * size
    if count is not None and taken < count:
      break
  return make(M)


def section_of(a: Allocation) -> dict:
  """The keys of a config's section, without m and schedule if not set."""
  return {"Bp": a.Bp, "n": a.n, "M": a.M} | (
      {"m": a.m} if a.m is not None else {}) | (
          {"schedule": a.schedule} if a.schedule else {})


def of_section(alloc: dict) -> Allocation:
  """The allocation of a config's section, as JSON may have stored it."""
  return allocate(**alloc | {"schedule": tuple(map(tuple, alloc["schedule"]))})


# The playbook's sweep (section 4): 39 cells with at most 65,536 rollouts per
# step (Easy), 27 with at most 16,384 (Hard).
PAPER_BP = (32, 64, 128, 256, 512, 1024)
PAPER_N = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
B_MAX = 65_536  # default for the most rollouts per step
FEWEST_M = 50  # updates; of fewer, the warm-up is a large part
# Anchor of the square-root rule: 1e-6 at 1024 rollouts per step, AdamW.
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
  """The nearest admitted (Bp, n), and what was changed and why.

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
  """Base_lr * sqrt(B / base_batch) (IsoCompute Playbook, section 6).

  B may be an array.
  """
  return base_lr * (B / base_batch) ** 0.5
