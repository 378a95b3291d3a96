"""The allocation of a budget: n, then Bp and M, and warnings about it.

n has one rule: an own fit; else the published law, if the base model and the
problems are its own; else the set of n that public sources agree on.

IsoCompute Playbook (arXiv 2603.12151), sections 4 and 9: n from the law, a
moderate constant Bp, the rest of the budget in M, lr ~ sqrt(Bp n).
"""

import dataclasses
import math

import numpy as np

from isojax.core import laws
from isojax.core.allocation import (
  admitted,
  allocate,
  Allocation,
  MIN_M,
  nearest_power,
  sqrt_lr,
)
from isojax.core.format import many
from isojax.core.laws import Curve, Estimate, NStar
from isojax.errors import InputError
from isojax.planner import evidence, priors

DEFAULT_BP = 32  # of the paper's runs at a given Bp
# A given n outside the interval of n* by more than this factor gets a warning.
N_TOLERANCE = 2
MAX_EXTRAPOLATION = 4  # from a proposed sweep to the budget, in C
# The epochs after which, at the latest, the next larger n overtook an n in the
# runs of the paper's draft.
OVERTAKEN_EPOCHS = 3.7
MIN_BP = 8  # the smallest Bp that was tested without instability, on Easy


@dataclasses.dataclass(frozen=True)
class Question:
  """What is known about a run before its allocation is chosen."""

  C: int  # rollouts
  law: NStar | None  # None: n from evidence.GOOD_NS
  metric: str  # avg or best
  model: str | None  # base policy; None: not known
  D: int | None  # training problems; None: not known
  B_max: int  # most rollouts per step
  Bp: int | None  # None: from the law, or without one DEFAULT_BP
  n: int | None  # None: from the law, or without one evidence.GOOD_NS
  base_lr: float  # at base_batch rollouts per step
  base_batch: int
  tokens_per_rollout: float | None  # for laws in tokens

  @property
  def fixed_B(self) -> int | None:
    """Bp * n, if the law trades n against Bp at a constant Bp * n."""
    return self.law and self.law.B

  @property
  def usual_Bp(self) -> int:
    """The given Bp, else that of the law if it has one, else a moderate one."""
    if self.Bp or self.law is None:
      return self.Bp or DEFAULT_BP
    return self.law.Bp[0] if len(self.law.Bp) == 1 else 2 * DEFAULT_BP

  @property
  def largest_n(self) -> int:
    """The largest n that is advised, for which Bp is lowered to MIN_BP."""
    return max(2, self.B_max // min(self.Bp or MIN_BP, MIN_BP))


@dataclasses.dataclass(frozen=True)
class Advice:
  """An allocation, how its n was found, and warnings."""

  allocation: Allocation
  lr: float
  n_star: Estimate
  changes: tuple[str, ...]  # of Bp and n to admitted values, and why
  warnings: tuple[str, ...]


def _in_unit_of_law(question: Question) -> float:
  """C in the unit of the law; InputError if it cannot be computed."""
  unit, C = question.law.unit, question.C
  if question.fixed_B:
    return float(C // question.fixed_B)
  if unit in ("tokens", "sampled_tokens"):
    if question.tokens_per_rollout is None:
      raise InputError(f"the law is in {unit}: give the mean tokens of a "
                       "rollout, --response_tokens")
    return C * question.tokens_per_rollout
  if unit != "rollouts":
    raise InputError(f"the law is in {unit}; fit it again with "
                     "--axis=rollouts to be advised for a number of rollouts")
  return float(C)


def best_n(question: Question) -> Estimate:
  """n* at C: by the law, or without one the n that public sources agree on.

  Where the user's law is not identified, the best of the tested n. InputError
  if none of them gives an n.
  """
  law, metric = question.law, question.metric
  if law is None:
    ns, Bp = evidence.GOOD_NS[metric], question.usual_Bp
    enough = [n for n in ns[:len(ns) // 2 + 1]
              if question.C // (Bp * n) >= MIN_M]
    return Estimate(
        float(max(enough, default=ns[0])), (ns[0], ns[-1]), float(question.C),
        "rollouts", (0.0, math.inf),
        f"most public sources, {evidence.WHY[metric]} (--evidence)")
  C = _in_unit_of_law(question)
  if law.published:
    return dataclasses.replace(law.estimate(
        law.within_data(C),
        f"published prior ({law.stratum}, {law.model}, math, one run each); "
        "the interval is the spread of refits, not of your problems"), C=C)
  if law.identified:
    if law.limits and C > law.C_seen[1] * laws.C_TOLERANCE:
      sweep = evidence.sweep_of(question.usual_Bp, law.n, question.C)
      raise InputError(
          f"{law.path}: its law is good up to {law.C_seen[1]:,.0f} {law.unit}, "
          f"not at {C:,.0f}: {'; '.join(law.limits)}; run what the report "
          f"proposes, or {sweep}")
    return law.estimate(
        C, f"your own fit, {law.path} ({law.metric} on {law.stratum}); 95% "
        "interval of the bootstrap")
  best, ranges = law.best_measured(C), law.measured_ranges()
  why = f"{law.path}: its law is not identified ({'; '.join(law.reasons)})"
  if best is None:
    known = " and ".join(f"from {low:,.0f} to {high:,.0f} {law.unit}"
                         for low, high in ranges)
    if known:
      why += f", and its best tested n is known only {known}, not at {C:,.0f}"
    raise InputError(f"{why}; run what the report proposes, or take a published"
                     " prior with --law")
  seen = next(ends for ends in ranges if ends[0] <= C <= ends[1])
  return Estimate(
      float(best.n), best.interval, C, law.unit, seen,
      f"the best of your tested n at this C, measured, not a law: {why}"
      + ("; 95% interval of the bootstrap" if best.interval else "")
      + f"; {best.agreeing:.0%} of the bootstrap draws agree", best.Bp)


def fixed_batch_ns(question: Question) -> list[int]:
  """The n that keep the law's Bp * n; InputError if there is none."""
  B = question.fixed_B
  if question.Bp:
    raise InputError(
        f"--Bp={question.Bp}: this law trades Bp against n at Bp * n = {B}, so "
        "Bp follows from n; leave --Bp out, or take a law at fixed Bp")
  if B > question.B_max:
    raise InputError(
        f"this law is of Bp * n = {B}; expected a batch of at most "
        f"{question.B_max} (--B_max); take another law")
  ns = [n for n in range(2, B + 1)
        if B % n == 0 and B // n <= (question.D or B)]
  if question.n and question.n not in ns:
    raise InputError(f"--n={question.n}: expected a divisor of the law's "
                     f"Bp * n = {B}, with Bp at most D: "
                     f"{', '.join(map(str, ns))}")
  return [question.n] if question.n else ns


def advise(question: Question) -> Advice:
  """From C to (Bp, n, M); InputError if no n is known for it.

  1. n*: by the law, the measured frontier, or what public sources agree on.
  2. Bp: as given, else where n was measured, else the law's one Bp, or 64 if it
     has none or several, or DEFAULT_BP without a law.
  3. n: as given, else nearest to n* of the n that a step may have: divisors of
     a fixed batch; the measured n, if C and B_max allow it; powers of two up
     to C // Bp and `Question.largest_n`.
  4. Both within B_max and D (`allocation.admitted`): Bp is lowered rather than
     n, or is B / n.
  5. M: the whole steps that C pays for.
  """
  B = question.fixed_B
  ns = fixed_batch_ns(question) if B else ()
  star, changes = best_n(question), ()
  Bp = question.Bp or star.measured_Bp or question.usual_Bp
  most = max(2, min(question.largest_n, question.C // Bp))
  n = question.n
  if B:
    n = min(ns, key=lambda n: abs(math.log(n / star.n)))
  elif n is None and star.measured_Bp and star.n <= most:
    n = int(star.n)
  elif n is None:
    n = nearest_power(star.n, low=2, high=most)
  if B:
    Bp = B // n
  else:
    Bp, n, changes = admitted(
        Bp, n, B_max=question.B_max, D=question.D or question.B_max)
  allocation = allocate(Bp=Bp, n=n, M=None, C=question.C)
  return Advice(
      allocation,
      sqrt_lr(question.base_lr, question.base_batch, allocation.B),
      star, changes, warnings=(
          *law_cautions(question, allocation, star),
          *allocation_cautions(question, allocation, star)))


def neighbours(question: Question,
               allocation: Allocation) -> tuple[Allocation, ...]:
  """The admitted allocations of the same C at half and twice the n."""
  out, B, C = [], question.fixed_B, allocation.C
  for n in (allocation.n // 2, 2 * allocation.n):
    Bp = B // max(n, 1) if B else allocation.Bp
    if (n > 1 and 1 <= Bp <= (question.D or Bp)
        and Bp * n <= min(question.B_max, C) and B in (None, Bp * n)):
      out.append(allocate(Bp=Bp, n=n, M=None, C=C))
  return tuple(out)


def curve_of(law: NStar | None, allocation: Allocation) -> Curve | None:
  """The fitted curve of an allocation, if its table has C."""
  for curve in law.curves if law and law.unit == "rollouts" else ():
    if ((curve.Bp, curve.n) == (allocation.Bp, allocation.n)
        and curve.C[0] <= allocation.C <= curve.C[-1]):
      return curve
  return None


def _for_budget(question: Question, Bp: int, n: int, budget_at
                ) -> Advice | None:
  """The advice for the budget at (Bp, n); None if it pays for no step."""
  # A measured n may have another Bp, at which the hours give another C: then
  # try again with that Bp, at most twice.
  for _ in range(3):
    C = budget_at(Bp, n)
    if not C:
      return None
    advice = advise(dataclasses.replace(question, C=C, n=question.n or n))
    if advice.allocation.Bp == Bp:
      break
    Bp = advice.allocation.Bp
  return advice


def for_hours(question: Question, hours: float, budget_at) -> Advice:
  """The advice for hours of wall time instead of C.

  How many rollouts the hours pay for depends on n, and n* on these rollouts. So
  each power of two is tried: the advice is for the n that is nearest to the n*
  of the rollouts that it leaves. `budget_at`: (Bp, n) -> these rollouts, or 0.
  """
  if B := question.fixed_B:
    cells = [(B // n, n) for n in fixed_batch_ns(question)]
  else:  # powers of two to 4,096, twice the largest tested
    ns = [question.n] if question.n else [
        2**i for i in range(1, 13) if 2**i <= question.largest_n]
    cells = [admitted(question.usual_Bp, n, B_max=question.B_max,
                      D=question.D or question.B_max)[:2] for n in ns]
  advices, errors = [], []
  for Bp, n in cells:
    try:
      advices.append(_for_budget(question, Bp, n, budget_at))
    except InputError as error:  # nothing is known of n at this budget
      errors.append(error)
  advices = [advice for advice in advices if advice]
  if not advices and errors:
    raise errors[0]
  if not advices:
    Bp, n = min(cells, key=math.prod)
    raise InputError(f"{hours:.3g} hours of wall time are less than one step of"
                     f" the smallest batch, Bp={Bp}, n={n}; give more, or a "
                     "smaller --Bp")
  return min(advices, key=lambda advice: abs(math.log(
      advice.allocation.n / advice.n_star.n)))


# ---- Warnings: extrapolation, other data, measured curves


def contradiction_of(law: NStar, Bp: int | None, n: float,
                     x: float) -> tuple[str, str] | None:
  """How the measured curves contradict an n: (sentence, flags of launch.plan).

  None if no curve does. n is judged by the curve of the nearest tested n at Bp
  (None: any Bp), and each curve by its last data if they end before x, which is
  C in the law's unit.
  """
  started = [c for c in law.curves if c.C_lo <= x]
  same_Bp = [c for c in started if Bp in (None, c.Bp)]
  if not same_Bp:
    return None
  value = lambda c: c.at(min(max(x, c.C[0]), c.C_hi))
  curve = min(same_Bp, key=lambda c: (abs(math.log(c.n / n)), -value(c)[0]))
  best = max(started, key=lambda c: value(c)[0])
  reward, low, high = value(curve)
  best_reward, best_low, best_high = value(best)
  if best is curve or best_reward < reward + laws.TIE:
    return None
  other_Bp = best.Bp != curve.Bp
  name = lambda c: f"n = {c.n}" + (f", Bp = {c.Bp}" if other_Bp else "")
  last_x = min(x, curve.C_hi, best.C_hi)
  return (
      f"your own curves contradict this: at {last_x:.3g} {law.unit}, "
      f"{name(best)} reached {best_reward:.3f} [{best_low:.3f}, "
      f"{best_high:.3f}] and {name(curve)} {reward:.3f} [{low:.3f}, {high:.3f}]"
      + ("; the intervals overlap" if best_low <= high else ""),
      f"--n={best.n}" + (f" --Bp={best.Bp}" if other_Bp else ""))


def law_cautions(question: Question, allocation: Allocation, star: Estimate):
  """Yields how this run differs from the data of the law."""
  law, model, Bp = question.law, question.model, allocation.Bp
  if law is None:
    return
  if star.beyond:
    low, high = star.seen
    yield (f"outside the data: the law is of {low:.3g} to {high:.3g} "
           f"{star.unit}, this is {star.C:.3g}" + (
               "; n* is that of the range's end" if law.published else ""))
  if law.Bp and law.B is None and not min(law.Bp) <= Bp <= max(law.Bp):
    yield ("extrapolated: n* was seen at Bp = "
           f"{', '.join(map(str, law.Bp))}, this is Bp = {Bp}")
  if law.published:
    if model is not None and not priors.is_own_model(model):
      yield f"the law is of {law.model}, this is {model}"
    if question.D and priors.has_few_problems(law.stratum, question.D):
      yield (f"D = {question.D} training problems; the law had "
             f"{priors.PRIOR_D[law.stratum]}, and with fewer the best n is "
             "smaller (256 instead of 512 at D = 500)")
    return
  yield from law.cautions
  if contradiction := contradiction_of(law, Bp, allocation.n, star.C):
    sentence, options = contradiction
    yield f"{sentence}; to follow the curves: a constant {options}"
  if model is not None and model != law.model:
    yield f"the fit is of {law.model}, this is {model}"
  if question.metric != law.metric.partition("@")[0]:
    yield f"the fit is of {law.metric}, you ask for {question.metric}"
  tested = np.log2(sorted(law.n))
  low, high = star.interval or (1.0, 1.0)
  if len(tested) > 1 and np.log2(high / low) > np.diff(tested).max():
    yield (f"the interval of n*, {low:.3g} to {high:.3g}, is wider than the "
           "step between the tested n")


def sweep_first(law, allocation: Allocation, star: Estimate
                ) -> tuple[str, ...]:
  """A warning for a C beyond a law's data: what to run first, to a part of C.
  """
  times, n = star.C / star.seen[1], allocation.n
  if law is None or times <= 1:
    return ()
  sweep = evidence.sweep_of(allocation.Bp, (n // 2, n, 2 * n),
                            allocation.C // MAX_EXTRAPOLATION)
  return (f"C is {times:.3g} times the largest C of the law's data; first "
          f"{sweep}",)


def far_from_law(n: int, star: Estimate) -> tuple[str, ...]:
  """A warning for a given n that is far from n*."""
  low, high = star.interval or (0.0, math.inf)
  if low / N_TOLERANCE <= n <= high * N_TOLERANCE:
    return ()
  return (f"n = {n} is far {'below' if n < low else 'above'} n* = "
          f"{star.n:.3g} [{low:.3g}, {high:.3g}]; without --n the plan takes "
          "that",)


def allocation_cautions(question: Question, allocation: Allocation,
                        star: Estimate):
  """Yields the warnings of the playbook (section 9)."""
  law, D, n, M = question.law, question.D, allocation.n, allocation.M
  largest = max(law.n) if law else math.inf
  if n >= largest:
    yield f"n = {n} is at the edge of what was tested ({largest})"
  # Rounding to a power of two alone is a factor of at most sqrt(2).
  if allocation.B > question.B_max // 2 and n < star.n / math.sqrt(2):
    yield (f"the cap of {question.B_max} rollouts a step keeps n below "
           f"n* = {star.n:.3g}: a cap can look like saturation")
  if D is not None and law and law.published:
    epochs = M * allocation.Bp / D
    if epochs > OVERTAKEN_EPOCHS and n < largest:
      yield (
          f"{epochs:.1f} epochs: in the runs of the paper's draft the next "
          f"larger n led once the smaller one had seen {OVERTAKEN_EPOCHS} "
          "epochs at most; watch validation against training reward")
  if M < MIN_M:
    yield f"only {many(M, 'update')}, of which the first 10 are warm-up"
