"""The allocation of a budget, with what the answer rests on.

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

DEFAULT_BP = 32  # the smallest of the paper's; "moderate" with a joint law: 64
FAR = 2  # times outside of the interval of n*
REACH = 4  # times the largest C of a law: further away a race decides
EPOCHS = 3.7  # of the smaller n where a larger one overtook it (draft)
FEWEST_BP = 8  # the smallest Bp that was tested without instability, on Easy


@dataclasses.dataclass(frozen=True)
class Question:
  """What is known about the run that is asked for."""

  C: int  # rollouts
  law: Prior | Fitted
  metric: str  # avg, best or worst
  model: str | None  # base policy; None: not known
  # (layers, width, mlp) of the policy, if its config.json was read.
  sizes: tuple[int, int, int] | None
  D: int | None  # training problems; None: not known
  B_max: int  # most rollouts per step
  Bp: int | None  # None: from the law
  n: int | None  # None: from the law
  base_lr: float  # at base_batch rollouts per step
  base_batch: int
  tokens_per_rollout: float | None  # for laws in tokens

  @property
  def from_table(self) -> bool:
    """Whether n comes from the published table: best@k and worst@k."""
    return isinstance(self.law, Prior) and self.metric != "avg"

  @property
  def fixed(self) -> bool:
    """Whether the law trades n against Bp at one Bp * n."""
    return isinstance(self.law.law, FixedBatch) and not self.from_table

  @property
  def Bps(self) -> tuple[int, ...]:
    """The Bp behind the answer; empty: the best of all tested."""
    if self.from_table:
      return tuple(priors.BEST_AT_END[self.law.stratum, self.metric])
    if isinstance(self.law, Fitted):
      return self.law.Bp
    return (self.law.Bp,) if self.law.Bp else ()


class Prediction(typing.NamedTuple):
  """The reward of an allocation, from fitted curves."""

  reward: float
  low: float  # 95 %
  high: float
  beyond: bool  # C is outside the data of the curve


@dataclasses.dataclass(frozen=True)
class Answer:
  """N* by a law, a published table or a measured frontier."""

  n: float
  interval: tuple[float, float] | None
  basis: str  # what it rests on, in a sentence
  x: float  # the argument of the law
  unit: str  # of x
  seen: tuple[float, float]  # range of x in the data behind it
  measured_Bp: int | None = None  # n is the best measured one, at this Bp

  @property
  def beyond(self) -> bool:
    return not self.seen[0] <= self.x <= self.seen[1]

  def near(self, ns, most: int) -> int:
    """The nearest of ns, else the tested n or a power of two up to `most`."""
    if ns:
      return min(ns, key=lambda n: abs(math.log(n / self.n)))
    if self.measured_Bp and self.n <= most:
      return int(self.n)
    return nearest_power(self.n, low=2, high=most)


@dataclasses.dataclass(frozen=True)
class Advice:
  allocation: Allocation
  lr: float
  answer: Answer  # n before rounding to a power of two
  wanted: float  # the answer's n within what speaks against it
  held: str  # why that is another n; empty: it is not
  bounds: tuple[float, float] | None  # of n by all of that
  changes: tuple[str, ...]  # what was moved to be admitted, and why
  warnings: tuple[str, ...]


def wanted_Bp(q: Question) -> int:
  Bps = (DEFAULT_BP,) if q.from_table else q.Bps
  return q.Bp or (Bps[0] if len(Bps) == 1 else 2 * DEFAULT_BP)


def _argument(q: Question) -> float:
  """The law's argument, in its unit; InputError if not known."""
  unit = q.law.unit
  if unit == "updates" and q.fixed:
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


def ask(q: Question) -> Answer:
  """What the law says; InputError if it cannot be asked."""
  if q.from_table:
    table = priors.BEST_AT_END[q.law.stratum, q.metric]
    near = min(table, key=lambda Bp: abs(math.log(Bp / wanted_Bp(q))))
    return Answer(
        float(table[near]), None, f"published: n with the best {q.metric}@4 at "
        f"the largest C on {q.law.stratum} problems at Bp = {near}; there is "
        f"no published law of n*(C) for {q.metric}@k", float(q.C), "rollouts",
        priors.AT_END)
  law, x = q.law, _argument(q)
  if isinstance(law, Prior):
    at = min(max(x, law.C_seen[0]), law.C_seen[1])
    return Answer(
        float(law.law(at)), priors.prior_interval(law, at),
        f"published prior ({law.stratum}, {priors.PRIOR_MODEL}, math, one run "
        "each); the interval is the spread of refits, not of your problems",
        x, law.unit, law.C_seen)
  if law.identified:
    if law.limits and x > law.C_seen[1] * laws.C_TOLERANCE:
      raise InputError(
          f"{law.path}: its law is good up to {law.C_seen[1]:,.0f} {law.unit}, "
          f"not at {x:,.0f}: {'; '.join(law.limits)}; run what the report "
          "proposes, or race several n, python -m launch.spend")
    return Answer(
        float(law.law(x)), law.interval(x),
        f"{law.whose} own fit, {law.path} ({law.metric} on {law.stratum}); 95% "
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
  seen = next(ends for ends in ranges if ends[0] <= x <= ends[1])
  return Answer(
      float(best.n), best.interval,
      f"the best of {law.whose} tested n at this C, measured, not a law: {why}"
      + ("; 95% interval of the bootstrap" if best.interval else "")
      + f"; {best.agreeing:.0%} of the bootstrap draws agree", x, law.unit,
      seen, best.Bp)


def _ns_of_fixed(q: Question) -> list[int]:
  """The n that keep the law's Bp * n; InputError for another batch."""
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
  if not ns or q.n and q.n not in ns:
    admits = ", ".join(map(str, ns)) or "none"
    raise InputError(f"--n={q.n}: expected a divisor of the law's Bp * n = "
                     f"{B}, with Bp at most D: {admits}")
  return ns


def within(q: Question, answer: Answer):
  """(n, bounds of n, why) by what is known to speak against a published law."""
  law, n, bounds, why = q.law, answer.n, answer.interval, []
  if not isinstance(law, Prior) or q.from_table:
    return n, bounds, ""
  limits = []  # (n from, n to), the n that were as good, in words
  if _is_other_model(q):
    limits.append(((1, priors.OTHERS_N[1]), priors.OTHERS_N, "base models other"
                   f" than {priors.PRIOR_MODEL} saturated at n = "
                   f"{priors.OTHERS_N[0]} to {priors.OTHERS_N[1]}"))
  if best := few_problems(q) and priors.study_bounds(law.stratum, q.D, q.C):
    limits.append((best, best, f"the law had {priors.PRIOR_D[law.stratum]:,} "
                   "problems, and with few the study found n = "
                   f"{' to '.join(map(str, dict.fromkeys(best)))} best"))
  elif answer.beyond and (known := evidence.known(law, q.C)):
    ends = known[0], known[-1]
    limits.append((ends, ends, "C is outside of the law's data, and there other"
                   f" sources found n = {ends[0]} to {ends[1]} as good"))
  for (low, high), admitted_n, reason in limits:
    if not low <= n <= high:
      n, bounds = min(max(n, low), high), admitted_n
      why.append(reason)
  return n, bounds, "; ".join(why)


def _is_other_model(q: Question) -> bool:
  """By its sizes, else by its name."""
  if q.sizes is not None:
    return q.sizes != priors.PRIOR_SIZES
  return q.model is not None and priors.PRIOR_FAMILY not in q.model.lower()


def few_problems(q: Question) -> bool:
  """Whether there are less than half of the problems of a published law."""
  return (isinstance(q.law, Prior) and q.D is not None
          and q.D < priors.PRIOR_D[q.law.stratum] / 2)


def _most_n(q: Question) -> int:
  """The largest n advised: Bp may be lowered for it, to FEWEST_BP."""
  return max(2, q.B_max // min(q.Bp or FEWEST_BP, FEWEST_BP))


def _cell(q: Question, n: int, Bp: int) -> tuple[int, int, tuple[str, ...]]:
  """The nearest admitted (Bp, n), and what was moved and why."""
  if q.fixed:
    return q.law.law.B // n, n, ()
  return admitted(Bp, n, B_max=q.B_max, D=q.D or q.B_max)


def advise(q: Question) -> Advice:
  """The allocation of a budget; InputError if nothing is known about it."""
  ns = _ns_of_fixed(q) if q.fixed else ()
  answer = ask(q)
  first_Bp = q.Bp or answer.measured_Bp or wanted_Bp(q)
  wanted, bounds, held = within(q, answer)
  n = q.n or dataclasses.replace(answer, n=wanted).near(
      ns, max(2, min(_most_n(q), q.C // first_Bp)))
  Bp, n, changes = _cell(q, n, first_Bp)
  allocation = allocate(Bp=Bp, n=n, M=None, C=q.C)
  return Advice(
      allocation=allocation, lr=sqrt_lr(q.base_lr, q.base_batch, allocation.B),
      answer=answer, wanted=wanted, held=held, bounds=bounds, changes=changes,
      warnings=(*law_cautions(q, allocation, answer),
                *allocation_cautions(q, allocation, answer)))


def neighbours(q: Question, a: Allocation) -> tuple[Allocation, ...]:
  """The admitted allocations of the same C at half and twice the n."""
  out = []
  for n in (a.n // 2, 2 * a.n):
    Bp = a.B // max(n, 1) if q.fixed else a.Bp
    B = Bp * n
    if (n > 1 and 1 <= Bp <= (q.D or Bp) and B <= min(q.B_max, a.C)
        and (B == a.B or not q.fixed)):
      out.append(allocate(Bp=Bp, n=n, M=None, C=a.C))
  return tuple(out)


def predict(law: Prior | Fitted, allocation: Allocation) -> Prediction | None:
  """The reward from the fit's tables, or None if not in them."""
  if isinstance(law, Prior) or law.unit != "rollouts":
    return None
  C = allocation.C
  for c in law.curves:
    if (c.Bp, c.n) == (allocation.Bp, allocation.n) and c.C[0] <= C <= c.C[-1]:
      return Prediction(*c.at(C), beyond=not c.C_lo <= C <= c.C_hi)
  return None


def _of_budget(q: Question, Bp: int, n: int, budget_at) -> Advice | None:
  """The advice for the budget at (Bp, n); None without a step."""
  # A measured frontier has its own Bp, at which the hours pay for another C.
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

  The rollouts that an hour pays for depend on n, and n on the rollouts. Of the
  powers of two, the advice takes the one nearest to what it wants at its own
  budget.
  budget_at is (Bp, n) -> C that fits into the hours, or 0.
  """
  most = _most_n(q)
  ns = [q.n] if q.n else [2**i for i in range(1, 13) if 2**i <= most]
  if q.fixed:
    ns = [n for n in _ns_of_fixed(q) if q.n in (None, n)]
  cells, advices, refused = [_cell(q, n, wanted_Bp(q)) for n in ns], [], []
  for Bp, n, changes in cells:
    try:
      advice = _of_budget(q, Bp, n, budget_at)
    except InputError as error:  # nothing is known of n at this budget
      refused.append(error)
      continue
    if advice:
      advices.append(dataclasses.replace(
          advice, changes=advice.changes or changes))
  if not advices and refused:
    raise refused[0]
  if not advices:
    Bp, n, _ = min(cells, key=lambda cell: cell[0] * cell[1])
    raise InputError(f"--hours={hours:g} is less than one step of the smallest "
                     f"batch, Bp={Bp}, n={n}; give more, or a smaller --Bp")
  return min(advices, key=lambda advice: abs(math.log(
      advice.allocation.n / advice.wanted)))


# What speaks against an advice: extrapolation, other data, measured curves.


def contradicted(law: Fitted, Bp: int | None, n: float,
                 x: float) -> tuple[str, str] | None:
  """How the measured curves contradict an n: (sentence, flags of launch.plan).

  None if no curve does. The curve of the nearest tested n at Bp (None: any)
  stands for n; curves are read up to their data. x is in their unit.
  """
  begun = [c for c in law.curves if c.C_lo <= x]
  same_Bp = [c for c in begun if Bp in (None, c.Bp)]
  if not same_Bp:
    return None
  value = lambda c: c.at(min(max(x, c.C[0]), c.C_hi))
  own = min(same_Bp, key=lambda c: (abs(math.log(c.n / n)), -value(c)[0]))
  best = max(begun, key=lambda c: value(c)[0])
  (reward, low, high), (most, best_low, best_high) = value(own), value(best)
  if best is own or most < reward + laws.TIE:
    return None
  joint = best.Bp != own.Bp
  name = lambda c: f"n = {c.n}" + f", Bp = {c.Bp}" * joint
  seen = min(x, own.C_hi, best.C_hi)
  return (
      f"{law.whose} own curves contradict this: at {seen:.3g} {law.unit}, "
      f"{name(best)} reached {most:.3f} [{best_low:.3f}, {best_high:.3f}] and "
      f"{name(own)} {reward:.3f} [{low:.3f}, {high:.3f}]"
      + "; the intervals overlap" * (best_low <= high),
      f"--n={best.n}" + f" --Bp={best.Bp}" * joint)


def prior_cautions(q: Question):
  """Yields how this run differs from those of a published law."""
  law = q.law
  if q.model is None and not q.from_table:
    yield (f"the law is of {priors.PRIOR_MODEL}; with --model=FOLDER of "
           f"another base model n is at most {priors.OTHERS_N[1]}, where "
           "others saturated")
  elif priors.PRIOR_MODEL not in (q.model or ""):
    yield (f"the law is of {priors.PRIOR_MODEL}: measure your own, "
           "launch.plan --sweep")
  if few_problems(q):
    yield (f"D = {q.D} training problems; the law had "
           f"{priors.PRIOR_D[law.stratum]}, and with fewer the best n is "
           "smaller (256 instead of 512 at D = 500)")
  if law.stratum == "hard":
    yield ("on hard problems Bp matters about as much as n (2.2 and 3.1 "
           "points): check two values of Bp")


def law_cautions(q: Question, a: Allocation, answer: Answer):
  """Yields what the law does not know about this run."""
  law, Bps = q.law, q.Bps
  if answer.beyond:
    yield (f"outside of the data: the {'table' if q.from_table else 'law'} is "
           f"of {answer.seen[0]:.3g} to {answer.seen[1]:.3g} {answer.unit}, "
           f"this is {answer.x:.3g}"
           + "; n* is that of their end" * isinstance(law, Prior))
  if Bps and not q.fixed and (a.Bp not in Bps if q.from_table else
                              not min(Bps) <= a.Bp <= max(Bps)):
    yield ("extrapolated: n* was seen at Bp = "
           f"{', '.join(map(str, Bps))}, this is Bp = {a.Bp}")
  if isinstance(law, Prior):
    yield from prior_cautions(q)
    return
  if law.whose != Fitted.whose:
    yield (f"the law is of {priors.STUDY_MODEL}, one small policy on one task: "
           "a prior for tiny policies; measure your own, launch.plan --sweep")
  yield from law.cautions
  if against := contradicted(law, a.Bp, a.n, answer.x):
    yield f"{against[0]}; to follow the curves: a constant {against[1]}"
  if q.model is not None and q.model != law.model:
    yield f"the fit is of {law.model}, this is {q.model}"
  if q.metric != law.metric.split("@")[0]:
    yield f"the fit is of {law.metric}, you ask for {q.metric}"
  tested = np.log2(sorted(law.n))
  low, high = answer.interval or (1.0, 1.0)
  if len(tested) > 1 and np.log2(high / low) > np.diff(tested).max():
    yield (f"the interval of n*, {low:.3g} to {high:.3g}, is wider than the "
           "step between the tested n")


def race_instead(answer: Answer) -> tuple[str, ...]:
  """What to do with a budget that is far beyond the data of the law."""
  times = answer.x / answer.seen[1]
  if times <= REACH:
    return ()
  return (f"{times:.3g} times the largest C of the law's data: a race decides "
          "among several n on your own problems, python -m launch.spend",)


def far_from_law(n: int, answer: Answer) -> tuple[str, ...]:
  """What to say of an n that was given instead of the law's."""
  low, high = answer.interval or (0.0, math.inf)
  if low / FAR <= n <= high * FAR:
    return ()
  return (f"n = {n} is far {'below' if n < low else 'above'} n* = "
          f"{answer.n:.3g} [{low:.3g}, {high:.3g}]; without --n the plan "
          "follows the law",)


def allocation_cautions(q: Question, a: Allocation, answer: Answer):
  """Yields the warnings of the playbook (section 9)."""
  largest = q.law.max_n if isinstance(q.law, Prior) else max(q.law.n)
  if a.n >= largest:
    yield f"n = {a.n} is at the edge of what was tested ({largest})"
  if a.B > q.B_max // 2 and a.n < answer.n / math.sqrt(2):
    yield (f"the cap of {q.B_max} rollouts a step keeps n below "
           f"n* = {answer.n:.3g}: a cap can look like saturation")
  if q.D is not None:
    epochs = a.M * a.Bp / q.D
    if epochs > EPOCHS and a.n < largest:
      yield (
          f"{epochs:.1f} epochs: in the paper's runs the next larger n led "
          f"once the smaller one had seen {EPOCHS} epochs at most; watch "
          "validation against training reward")
  if a.M < FEWEST_M:
    yield (f"only {a.M} update{'s' * (a.M > 1)}, of which the first 10 are "
           "warm-up")
