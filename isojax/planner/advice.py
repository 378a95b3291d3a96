"""The allocation of a budget: n, then Bp and M, and warnings about it.

n has one rule: an own fit; else the published law, if the base model and the
problems are its own; else the set of n that public sources agree on.

IsoCompute Playbook (arXiv 2603.12151), sections 4 and 9: n from the law, a
moderate constant Bp, the rest of the budget in M, lr ~ sqrt(Bp n).
"""

import dataclasses
import math
import typing

import numpy as np

from isojax.core import laws
from isojax.core.allocation import (
  admitted,
  allocate,
  Allocation,
  FEWEST_M,
  nearest_power,
  sqrt_lr,
)
from isojax.core.laws import FixedBatch
from isojax.errors import InputError
from isojax.planner import evidence, priors
from isojax.planner.fit_file import Fitted
from isojax.planner.priors import Prior

DEFAULT_BP = 32  # the smallest Bp of the paper
# A given n outside the interval of n* by more than this factor gets a warning.
N_TOLERANCE = 2
MAX_EXTRAPOLATION = 4  # from a proposed sweep to the budget, in C
# The epochs after which, at the latest, the next larger n overtook an n in the
# runs of the paper's draft.
OVERTAKEN_EPOCHS = 3.7
FEWEST_BP = 8  # the smallest Bp that was tested without instability, on Easy


@dataclasses.dataclass(frozen=True)
class Question:
  """What is known about a run before its allocation is chosen."""

  C: int  # rollouts
  law: Prior | Fitted | None  # None: n from evidence.GOOD_NS
  metric: str  # avg or best
  model: str | None  # base policy; None: not known
  D: int | None  # training problems; None: not known
  B_max: int  # most rollouts per step
  Bp: int | None  # None: from the law
  n: int | None  # None: from the law
  base_lr: float  # at base_batch rollouts per step
  base_batch: int
  tokens_per_rollout: float | None  # for laws in tokens

  @property
  def has_fixed_batch(self) -> bool:
    """Whether the law trades n against Bp at one Bp * n."""
    return self.law is not None and isinstance(self.law.law, FixedBatch)

  @property
  def tested_Bps(self) -> tuple[int, ...]:
    """The Bp at which n* was measured; empty if it is of the best Bp at each C.
    """
    if isinstance(self.law, Fitted):
      return self.law.Bp
    return (self.law.Bp,) if self.law and self.law.Bp else ()


class Prediction(typing.NamedTuple):
  """The reward of an allocation, from fitted curves."""

  reward: float
  low: float  # 95 %
  high: float
  beyond: bool  # C is outside the data of the curve


@dataclasses.dataclass(frozen=True)
class Answer:
  """The best n, n*, by a law, a measured frontier or public sources."""

  n: float
  interval: tuple[float, float] | None
  basis: str  # a sentence: which law or measurement gives n, and its interval
  argument: float  # of the law, such as C
  unit: str  # of the argument
  data_range: tuple[float, float]  # of the argument
  measured_Bp: int | None = None  # n was measured, at this Bp; None: a law's n

  @property
  def beyond(self) -> bool:
    """Whether the argument is outside of the data's range."""
    return not self.data_range[0] <= self.argument <= self.data_range[1]

  def nearest_n(self, ns, most: int) -> int:
    """The nearest of `ns`; if empty, n if measured, or a near power of two."""
    if ns:
      return min(ns, key=lambda n: abs(math.log(n / self.n)))
    if self.measured_Bp and self.n <= most:
      return int(self.n)
    return nearest_power(self.n, low=2, high=most)


@dataclasses.dataclass(frozen=True)
class Advice:
  """An allocation, how its n was found, and warnings."""

  allocation: Allocation
  lr: float
  answer: Answer
  changes: tuple[str, ...]  # of Bp and n to admitted values, and why
  warnings: tuple[str, ...]


def preferred_Bp(q: Question) -> int:
  """The given Bp, else that of the law if it has one, else a moderate one."""
  if q.law is None:
    return q.Bp or DEFAULT_BP
  Bps = q.tested_Bps
  return q.Bp or (Bps[0] if len(Bps) == 1 else 2 * DEFAULT_BP)


def _law_argument(q: Question) -> float:
  """The law's argument for q.C; InputError if it cannot be computed."""
  unit = q.law.unit
  if unit == "updates" and q.has_fixed_batch:
    return float(q.C // q.law.law.B)
  if unit in ("tokens", "sampled_tokens"):
    if q.tokens_per_rollout is None:
      raise InputError(f"the law is in {unit}: give the mean tokens of a "
                       "rollout, --response_tokens")
    return q.C * q.tokens_per_rollout
  if unit != "rollouts":
    raise InputError(f"the law is in {unit}; fit it again with "
                     "--axis=rollouts to be advised for a number of rollouts")
  return float(q.C)


def by_sources(q: Question) -> Answer:
  """The middle n that public sources agree on, or less if C is small."""
  ns, Bp = evidence.GOOD_NS[q.metric], preferred_Bp(q)
  enough = [n for n in ns[:len(ns) // 2 + 1] if q.C // (Bp * n) >= FEWEST_M]
  return Answer(
      float(max(enough, default=ns[0])), (ns[0], ns[-1]),
      f"public sources, {evidence.WHY[q.metric]} (--evidence)", float(q.C),
      "rollouts", (0.0, math.inf))


def evaluate_law(q: Question) -> Answer:
  """The best n for the budget; InputError if the law does not give one."""
  if q.law is None:
    return by_sources(q)
  law, x = q.law, _law_argument(q)  # x in rollouts, tokens or updates
  if isinstance(law, Prior):
    seen_x = min(max(x, law.C_seen[0]), law.C_seen[1])
    return Answer(
        float(law.law(seen_x)), priors.prior_interval(law, seen_x),
        f"published prior ({law.stratum}, {priors.PRIOR_MODEL}, math, one run "
        "each); the interval is the spread of refits, not of your problems",
        x, law.unit, law.C_seen)
  if law.identified:
    if law.limits and x > law.C_seen[1] * laws.C_TOLERANCE:
      raise InputError(
          f"{law.path}: its law is good up to {law.C_seen[1]:,.0f} {law.unit}, "
          f"not at {x:,.0f}: {'; '.join(law.limits)}; run what the report "
          f"proposes, or {evidence.sweep_of(preferred_Bp(q), law.n, q.C)}")
    return Answer(
        float(law.law(x)), law.interval(x),
        f"your own fit, {law.path} ({law.metric} on {law.stratum}); 95% "
        "interval of the bootstrap", x, law.unit, law.C_seen)
  best, ranges = law.best_measured(x), law.measured_ranges()
  why = f"{law.path}: its law is not identified ({'; '.join(law.reasons)})"
  if best is None:
    known = " and ".join(f"from {low:,.0f} to {high:,.0f} {law.unit}"
                         for low, high in ranges)
    raise InputError(
        f"{why}" + (f", and its best tested n is known only {known}, not at "
                    f"{x:,.0f}" if known else "")
        + "; run what the report proposes, or take a published prior with "
        "--law")
  data_range = next(ends for ends in ranges if ends[0] <= x <= ends[1])
  return Answer(
      float(best.n), best.interval,
      f"the best of your tested n at this C, measured, not a law: {why}"
      + ("; 95% interval of the bootstrap" if best.interval else "")
      + f"; {best.agreeing:.0%} of the bootstrap draws agree", x, law.unit,
      data_range, best.Bp)


def _ns_of_fixed_batch(q: Question) -> list[int]:
  """The n that keep the law's Bp * n; InputError if q excludes all of them."""
  B = q.law.law.B
  if q.Bp:
    raise InputError(
        f"--Bp={q.Bp}: this law trades Bp against n at Bp * n = {B}, so Bp "
        "follows from n; leave --Bp out, or take a law at fixed Bp")
  if B > q.B_max:
    raise InputError(
        f"this law is of Bp * n = {B}; expected a batch of at most {q.B_max} "
        "(--B_max); take another law")
  ns = [n for n in range(2, B + 1) if B % n == 0 and B // n <= (q.D or B)]
  if q.n and q.n not in ns:
    raise InputError(f"--n={q.n}: expected a divisor of the law's Bp * n = "
                     f"{B}, with Bp at most D: {', '.join(map(str, ns))}")
  return ns


def _max_n(q: Question) -> int:
  """The largest n that is advised, for which Bp is lowered to FEWEST_BP."""
  return max(2, q.B_max // min(q.Bp or FEWEST_BP, FEWEST_BP))


def _cell(q: Question, n: int, Bp: int) -> tuple[int, int, tuple[str, ...]]:
  """(Bp, n, changes): the nearest admitted cell; why it is not (Bp, n)."""
  if q.has_fixed_batch:
    return q.law.law.B // n, n, ()
  return admitted(Bp, n, B_max=q.B_max, D=q.D or q.B_max)


def advise(q: Question) -> Advice:
  """The allocation of the budget q.C; InputError if no n is known for it."""
  ns = _ns_of_fixed_batch(q) if q.has_fixed_batch else ()
  answer = evaluate_law(q)
  first_Bp = q.Bp or answer.measured_Bp or preferred_Bp(q)
  n = q.n or answer.nearest_n(ns, max(2, min(_max_n(q), q.C // first_Bp)))
  Bp, n, changes = _cell(q, n, first_Bp)
  allocation = allocate(Bp=Bp, n=n, M=None, C=q.C)
  return Advice(
      allocation=allocation, lr=sqrt_lr(q.base_lr, q.base_batch, allocation.B),
      answer=answer, changes=changes, warnings=(
          *law_cautions(q, allocation, answer),
          *allocation_cautions(q, allocation, answer)))


def neighbours(q: Question, a: Allocation) -> tuple[Allocation, ...]:
  """The admitted allocations of the same C at half and twice the n."""
  out = []
  for n in (a.n // 2, 2 * a.n):
    Bp = a.B // max(n, 1) if q.has_fixed_batch else a.Bp
    B = Bp * n
    if (n > 1 and 1 <= Bp <= (q.D or Bp) and B <= min(q.B_max, a.C)
        and (B == a.B or not q.has_fixed_batch)):
      out.append(allocate(Bp=Bp, n=n, M=None, C=a.C))
  return tuple(out)


def predict(law: Prior | Fitted | None,
            allocation: Allocation) -> Prediction | None:
  """The reward of an allocation by its fitted curve; None if there is none."""
  if not isinstance(law, Fitted) or law.unit != "rollouts":
    return None
  C = allocation.C
  for c in law.curves:
    if (c.Bp, c.n) == (allocation.Bp, allocation.n) and c.C[0] <= C <= c.C[-1]:
      return Prediction(*c.at(C), beyond=not c.C_lo <= C <= c.C_hi)
  return None


def _for_budget(q: Question, Bp: int, n: int, budget_at) -> Advice | None:
  """The advice for the budget at (Bp, n); None if it pays for no step."""
  # The best measured cell may have another Bp, at which the hours give another
  # C: then try again with that Bp, at most twice.
  for _ in range(3):
    C = budget_at(Bp, n)
    if not C:
      return None
    advice = advise(dataclasses.replace(q, C=C, n=n))
    if advice.allocation.Bp == Bp:
      break
    Bp = advice.allocation.Bp
  return advice


def for_hours(q: Question, hours: float, budget_at) -> Advice:
  """The advice for hours of wall time instead of C.

  How many rollouts the hours pay for depends on n, and n* on these rollouts. So
  each power of two is tried: the advice is for the n that is nearest to the n*
  of the rollouts that it leaves. `budget_at`: (Bp, n) -> these rollouts, or 0.
  """
  most = _max_n(q)
  ns = [q.n] if q.n else [  # powers of two to 4,096, twice the largest tested
      2**i for i in range(1, 13) if 2**i <= most]
  if q.has_fixed_batch:
    ns = [n for n in _ns_of_fixed_batch(q) if q.n in (None, n)]
  cells, advices, errors = [_cell(q, n, preferred_Bp(q)) for n in ns], [], []
  for Bp, n, changes in cells:
    try:
      advice = _for_budget(q, Bp, n, budget_at)
    except InputError as error:  # nothing is known of n at this budget
      errors.append(error)
      continue
    if advice:
      advices.append(dataclasses.replace(
          advice, changes=advice.changes or changes))
  if not advices and errors:
    raise errors[0]
  if not advices:
    Bp, n, _ = min(cells, key=lambda cell: cell[0] * cell[1])
    raise InputError(f"{hours:.3g} hours of wall time are less than one step of"
                     f" the smallest batch, Bp={Bp}, n={n}; give more, or a "
                     "smaller --Bp")
  return min(advices, key=lambda advice: abs(math.log(
      advice.allocation.n / advice.answer.n)))


# ---- Warnings: extrapolation, other data, measured curves


def contradiction_of(law: Fitted, Bp: int | None, n: float,
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


def law_cautions(q: Question, a: Allocation, answer: Answer):
  """Yields how this run differs from the data of the law."""
  law, Bps = q.law, q.tested_Bps
  if law is None:
    return
  if answer.beyond:
    low, high = answer.data_range
    yield (f"outside of the data: the law is of {low:.3g} to {high:.3g} "
           f"{answer.unit}, this is {answer.argument:.3g}" + (
               "; n* is that of the range's end" if isinstance(law, Prior)
               else ""))
  if Bps and not q.has_fixed_batch and not min(Bps) <= a.Bp <= max(Bps):
    yield ("extrapolated: n* was seen at Bp = "
           f"{', '.join(map(str, Bps))}, this is Bp = {a.Bp}")
  if isinstance(law, Prior):
    if q.model is not None and not priors.is_own_model(q.model):
      yield f"the law is of {priors.PRIOR_MODEL}, this is {q.model}"
    if q.D is not None and priors.has_few_problems(law.stratum, q.D):
      yield (f"D = {q.D} training problems; the law had "
             f"{priors.PRIOR_D[law.stratum]}, and with fewer the best n is "
             "smaller (256 instead of 512 at D = 500)")
    return
  yield from law.cautions
  if contradiction := contradiction_of(law, a.Bp, a.n, answer.argument):
    sentence, options = contradiction
    yield f"{sentence}; to follow the curves: a constant {options}"
  if q.model is not None and q.model != law.model:
    yield f"the fit is of {law.model}, this is {q.model}"
  if q.metric != law.metric.partition("@")[0]:
    yield f"the fit is of {law.metric}, you ask for {q.metric}"
  tested = np.log2(sorted(law.n))
  low, high = answer.interval or (1.0, 1.0)
  if len(tested) > 1 and np.log2(high / low) > np.diff(tested).max():
    yield (f"the interval of n*, {low:.3g} to {high:.3g}, is wider than the "
           "step between the tested n")


def sweep_first(law, a: Allocation, answer: Answer) -> tuple[str, ...]:
  """A warning for a C beyond a law's data: what to run first, to a part of C.
  """
  times = answer.argument / answer.data_range[1]
  if law is None or times <= 1:
    return ()
  sweep = evidence.sweep_of(
      a.Bp, (a.n // 2, a.n, 2 * a.n), a.C // MAX_EXTRAPOLATION)
  return (f"C is {times:.3g} times the largest C of the law's data; first "
          f"{sweep}",)


def far_from_law(n: int, answer: Answer) -> tuple[str, ...]:
  """A warning for a given n that is far from n*."""
  low, high = answer.interval or (0.0, math.inf)
  if low / N_TOLERANCE <= n <= high * N_TOLERANCE:
    return ()
  return (f"n = {n} is far {'below' if n < low else 'above'} n* = "
          f"{answer.n:.3g} [{low:.3g}, {high:.3g}]; without --n the plan takes "
          "that",)


def allocation_cautions(q: Question, a: Allocation, answer: Answer):
  """Yields the warnings of the playbook (section 9)."""
  largest = math.inf
  if q.law is not None:
    largest = q.law.max_n if isinstance(q.law, Prior) else max(q.law.n)
  if a.n >= largest:
    yield f"n = {a.n} is at the edge of what was tested ({largest})"
  # Rounding to a power of two alone is a factor of at most sqrt(2).
  if a.B > q.B_max // 2 and a.n < answer.n / math.sqrt(2):
    yield (f"the cap of {q.B_max} rollouts a step keeps n below "
           f"n* = {answer.n:.3g}: a cap can look like saturation")
  if q.D is not None and isinstance(q.law, Prior):
    epochs = a.M * a.Bp / q.D
    if epochs > OVERTAKEN_EPOCHS and a.n < largest:
      yield (
          f"{epochs:.1f} epochs: in the runs of the paper's draft the next "
          f"larger n led once the smaller one had seen {OVERTAKEN_EPOCHS} "
          "epochs at most; watch validation against training reward")
  if a.M < FEWEST_M:
    yield (f"only {a.M} update{'s' * (a.M > 1)}, of which the first 10 are "
           "warm-up")
