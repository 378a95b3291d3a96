"""An allocation of C = Bp * n * M rollouts, in exact integers."""

import dataclasses
import itertools
import math

import numpy as np

from isojax.division import Division, UNIFORM
from isojax.errors import expect, InputError

Pieces = tuple[tuple[int, int], ...]  # (from C, n), in order of C


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Bp problems per step, n rollouts per problem, M steps.

  A piece of a schedule begins with the first step at or after its C.
  """

  Bp: int
  n: int  # of the first step
  M: int  # with refill: the most steps, of one sampling round each
  # Rollouts per problem that are trained on; None: n.
  m: int | None = None
  # (from C, n) of each piece; empty: n is constant.
  schedule: Pieces = ()
  # With a rule other than uniform n and m are means over the problems.
  division: Division = UNIFORM

  def __post_init__(self):
    expect("alloc", self, Bp=(self.Bp >= 1, "at least 1"),
           n=(self.n >= 1, "at least 1"), M=(self.M >= 1, "at least 1"),
           m=(self.m is None or self.m >= 1, "at least 1"))
    if self.schedule:
      _check_schedule(self.n, self.schedule)
    least, most = (f(n for _, n in self.pieces) for f in (min, max))
    if self.m is not None and self.m > least:
      raise InputError(
          f"alloc.m={self.m} is more than the {least} rollouts of a "
          "problem; expected m <= n, or None to train on all")
    if not self.n_min <= least <= most <= self.n_max:
      raise InputError(
          f"alloc.rule={self.division.rule!r} with n = {least} to {most} in "
          f"the mean: expected alloc.n_low={self.n_min} <= n <= "
          f"alloc.n_high={self.n_max}")

  @property
  def pieces(self) -> Pieces:
    return self.schedule or ((0, self.n),)

  @property
  def n_max(self) -> int:
    """The most rollouts of a problem in the run."""
    return self.widest(max(n for _, n in self.pieces))

  @property
  def n_min(self) -> int:
    """The fewest rollouts of a problem that is sampled in the run."""
    if not self.division.is_uniform:
      return self.division.n_low
    return min(n for _, n in self.pieces)

  def widest(self, n: int) -> int:
    """The most rollouts of a problem in a step of n in the mean."""
    return n if self.division.is_uniform else self.division.n_high

  def n_after(self, rollouts: int) -> int:
    """The n of a step that begins after so many rollouts."""
    return [n for start, n in self.pieces if start <= rollouts][-1]

  def is_spent(self, rollouts: int) -> bool:
    """Whether another step, or round of one, would exceed C."""
    return rollouts + self.Bp * self.n_after(rollouts) > self.C

  def m_of(self, n: int) -> int:
    """Rollouts per problem that are trained on in a step of n."""
    return n if self.m is None else self.m

  def m_of_each(self, n_P, n: int) -> np.ndarray:
    """The rollouts of each problem that are trained on: m / n of its n_P.

    Rounded up, and two if m is at least two: one has none to compare with.
    """
    m = self.m_of(n)
    share_P = -(-np.asarray(n_P) * m // n)
    return np.minimum(n_P, np.maximum(share_P, min(m, 2)))

  @property
  def B(self) -> int:
    """The rollouts of the first step, of every step if n is constant."""
    return self.Bp * self.n

  @property
  def C(self) -> int:
    """The budget: the rollouts of M steps of one sampling round."""
    return self.rollouts_after(self.M)

  def steps_by_piece(self, steps: int) -> tuple[tuple[int, int], ...]:
    """(n, how many of the first steps) of each piece that has a step."""
    out = []
    for n, count in _runs(self.Bp, self.pieces):
      if taken := min(steps, count):
        out.append((n, taken))
      steps -= taken
    return tuple(out)

  def rollouts_after(self, steps: int) -> int:
    """The rollouts of the first steps, of one sampling round each."""
    return sum(self.Bp * n * count for n, count in self.steps_by_piece(steps))


def _runs(Bp: int, pieces: Pieces):
  """Yields (n, number of steps with it), which is infinite at the end."""
  rollouts = 0
  ends = [*(C for C, _ in pieces[1:]), math.inf]
  for (_, n), end in zip(pieces, ends, strict=True):
    if rollouts < end:
      steps = -(-(end - rollouts) // (Bp * n)) if end < math.inf else end
      yield n, steps
      rollouts += steps * Bp * n


def _check_schedule(n: int, schedule: Pieces) -> None:
  where = f"alloc.schedule={schedule}"
  if any(len(piece) != 2 for piece in schedule) or schedule[0][0] != 0 or any(
      start >= after for (start, _), (after, _) in itertools.pairwise(
          schedule)):
    raise InputError(f"{where}: expected pieces (from C, n) that begin at C = "
                     "0, in increasing order of C, such as ((0, 4), (65536, "
                     "8))")
  ns = [n for _, n in schedule]
  if min(ns) < 1:
    raise InputError(f"{where}: n={min(ns)}: expected at least 1")
  if ns[0] != n:
    raise InputError(f"{where} begins with n = {ns[0]}, but alloc.n={n}; set "
                     "alloc.n to the n of the first piece")


def allocate(*, Bp: int, n: int, M: int | None, C: int, m: int | None = None,
             schedule: Pieces = (), division: Division = UNIFORM) -> Allocation:
  """The allocation; M = None becomes the number of steps within C."""
  a = Allocation(Bp, n, 1 if M is None else M, m, schedule, division)
  if M is not None:
    return a
  if C < a.B:
    raise InputError(
        f"alloc.C={C} is less than the rollouts of one step, Bp * n = {Bp} * "
        f"{n} = {a.B}; raise C to at least {a.B}, or lower Bp or n")
  M, left = 0, C
  for n_, count in _runs(Bp, a.pieces):
    taken = min(count, left // (Bp * n_))
    M, left = M + taken, left - taken * Bp * n_
    if taken < count:
      break
  return dataclasses.replace(a, M=M)


def section_of(a: Allocation) -> dict:
  """The keys of a config's section, without m and schedule if not set."""
  return {"Bp": a.Bp, "n": a.n, "M": a.M} | (
      {"m": a.m} if a.m is not None else {}) | (
          {"schedule": a.schedule} if a.schedule else {})


def of_section(*, Bp: int, n: int, M: int | None, C: int, m: int | None,
               schedule: Pieces, rule: str, n_low: int, n_high: int,
               prior_strength: float, forgetting: float,
               objective: str) -> Allocation:
  """The allocation of a config's section, as JSON may have stored it."""
  return allocate(
      Bp=Bp, n=n, M=M, C=C, m=m, schedule=tuple(map(tuple, schedule)),
      division=Division(rule, n_low, n_high, prior_strength, forgetting,
                        objective))


B_MAX = 65_536  # default for the most rollouts per step
FEWEST_M = 50  # updates; of fewer, the warm-up is a large part
# Anchor of the square-root rule: 1e-6 at 1024 rollouts per step, AdamW.
PAPER_LR, PAPER_BATCH = 1e-6, 1024


def nearest_power(value: float, *, low: int, high: int) -> int:
  """The power of two nearest to value in log2, within [low, high]."""
  lowest, highest = math.ceil(math.log2(low)), math.floor(math.log2(high))
  return 2 ** min(max(round(math.log2(value)), lowest), highest)


def admitted(Bp: int, n: int, *, B_max: int,
             D: int) -> tuple[int, int, tuple[str, ...]]:
  """The nearest admitted (Bp, n), and what was changed and why.

  n is kept if possible: the playbook tunes n first. The Bp problems of a step
  are distinct, of D.
  """
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
  """The square-root rule (IsoCompute Playbook, section 6), also of arrays B."""
  return base_lr * (B / base_batch) ** 0.5
