"""A budget to an allocation, with what the answer rests on.

IsoCompute Playbook (arXiv 2603.12151), sections 4 and 9: n from the law, a
moderate constant Bp, the rest of the budget in M, lr ~ sqrt(Bp n).
"""

import dataclasses
import math

import numpy as np

from isojax.errors import InputError
from isojax.planner import priors
from isojax.planner.allocation import FEWEST_M, Allocation, admitted, allocate
from isojax.planner.allocation import nearest_power, sqrt_lr
from isojax.planner.fit_file import Fitted
from isojax.planner.laws import FixedBatch
from isojax.planner.priors import Prior

DEFAULT_BP = 32  # the smallest of the paper's; "moderate" with a joint law: 64
FEWEST_BP = 8  # the smallest Bp that was tested, on Easy, without instability
EPOCHS = 3.7  # of the smaller n where a larger one overtook it (draft)
STRATA = {"easy": (0.3, 0.6), "hard": (0.0, 0.0625)}  # avg@16 of the base


@dataclasses.dataclass(frozen=True)
class Question:
  """What is known when the allocation is asked for."""

  C: int  # rollouts
  law: Prior | Fitted
  metric: str  # avg, best or worst
  model: str | None  # base policy, if known
  D: int | None  # training problems, if known
  B_max: int  # rollouts in a step
  Bp: int | None  # None: from the law
  n: int | None  # None: from the law
  base_lr: float  # at base_batch rollouts a step
  base_batch: int
  tokens_per_rollout: float | None  # for laws in tokens


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Reward at the allocation, from fitted curves."""

  reward: float
  low: float  # 95 %
  high: float
  beyond: bool  # C is outside of what the curve was seen at


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a law, or the published table, says of n."""

  n: float
  interval: tuple[float, float] | None
  basis: str  # what it rests on, in a sentence
  x: float  # its argument
  unit: str  # of x
  seen: tuple[float, float]  # range of x in the data behind it

  @property
  def beyond(self) -> bool:
    return not self.seen[0] <= self.x <= self.seen[1]


@dataclasses.dataclass(frozen=True)
class Advice:
  allocation: Allocation
  lr: float
  answer: Answer  # n before rounding to a power of two
  prediction: Prediction | None
  changes: tuple[str, ...]  # what was moved to be admitted, and why
  warnings: tuple[str, ...]


def _from_table(q: Question) -> bool:
  """Whether n comes from the published table: no law for best@k, worst@k."""
  return isinstance(q.law, Prior) and q.metric != "avg"


def _fixed(q: Question) -> bool:
  """Whether the law trades n against Bp at one Bp * n."""
  return isinstance(q.law.law, FixedBatch) and not _from_table(q)


def _Bps(q: Question) -> tuple[int, ...]:
  """The Bp behind the answer; none if it is the best over all."""
  if _from_table(q):
    return tuple(priors.BEST_AT_END[q.law.stratum, q.metric])
  if isinstance(q.law, Fitted):
    return q.law.Bp
  return (q.law.Bp,) if q.law.Bp else ()


def _Bp(q: Question) -> int:
  Bps = (DEFAULT_BP,) if _from_table(q) else _Bps(q)
  return q.Bp or (Bps[0] if len(Bps) == 1 else 2 * DEFAULT_BP)


def _table(q: Question) -> Answer:
  table = priors.BEST_AT_END[q.law.stratum, q.metric]
  near = min(table, key=lambda Bp: abs(math.log(Bp / _Bp(q))))
  return Answer(
      float(table[near]), None, f"published: n with the best {q.metric}@4 at "
      f"the largest C on {q.law.stratum} problems at Bp = {near}; there is no "
      f"published law of n*(C) for {q.metric}@k", float(q.C), "rollouts",
      priors.AT_END)


def _ask(q: Question) -> Answer:
  """What the law says; InputError if it cannot be asked."""
  if _from_table(q):
    return _table(q)
  law, x = q.law, float(q.C)
  if isinstance(law, Fitted) and not law.identified:
    raise InputError(
        f"{law.path}: its law is not identified ({'; '.join(law.reasons)}); "
        "run what the report proposes, or take a published prior with --law")
  if _fixed(q):
    x = float(q.C // law.law.B)
  elif law.unit in ("tokens", "sampled_tokens"):
    if q.tokens_per_rollout is None:
      raise InputError(f"the law is in {law.unit}: give the mean tokens of a "
                       "rollout, --response_tokens")
    x = q.C * q.tokens_per_rollout
  elif law.unit != "rollouts":
    raise InputError(f"the law is in {law.unit}; fit it again with "
                     "--axis=rollouts to be advised for a number of rollouts")
  if isinstance(law, Prior):
    basis = (
        f"published prior ({law.stratum}, {priors.PRIOR_MODEL}, math, one run "
        "each); the interval is the spread of refits, not of your problems")
    interval = priors.prior_interval(law, x)
  else:
    basis = (f"your own fit, {law.path} ({law.metric} on {law.stratum}); 95% "
             "interval of the bootstrap")
    interval = law.interval(x)
  return Answer(float(law.law(x)), interval, basis, x, law.unit, law.C_seen)


def _ns_of_fixed(q: Question) -> list[int]:
  """The n that keep the law's Bp * n.

  Raises:
    InputError: the question asks for another batch.
  """
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


def _most_n(q: Question) -> int:
  """The largest n advised: Bp may be lowered for it, but not below a floor."""
  return max(2, q.B_max // min(q.Bp or FEWEST_BP, FEWEST_BP))


def _cell(q: Question, n: int) -> tuple[int, int, tuple[str, ...]]:
  """(Bp, n, what was moved and why), the nearest that is admitted."""
  if _fixed(q):
    return q.law.law.B // n, n, ()
  return admitted(_Bp(q), n, B_max=q.B_max, D=q.D or q.B_max)


def advise(q: Question) -> Advice:
  """The allocation of a budget.

  Raises:
    InputError: the budget is below one step, the law is not identified, or it
      is of another batch.
  """
  if q.C < 2:
    raise InputError(f"C={q.C} rollouts: expected at least 2, one problem with "
                     "two rollouts")
  ns = _ns_of_fixed(q) if _fixed(q) else None
  answer = _ask(q)
  if ns:
    n = q.n or min(ns, key=lambda n: abs(math.log(n / answer.n)))
  else:
    n = q.n or nearest_power(answer.n, low=2, high=max(
        2, min(_most_n(q), q.C // _Bp(q))))
  Bp, n, changes = _cell(q, n)
  allocation = allocate(Bp=Bp, n=n, M=None, C=q.C)
  return Advice(
      allocation=allocation, lr=sqrt_lr(q.base_lr, q.base_batch, allocation.B),
      answer=answer, prediction=predict(q.law, allocation), changes=changes,
      warnings=(*_of_the_law(q, allocation, answer),
                *_of_the_allocation(q, allocation, answer)))


def _of_the_law(q: Question, a: Allocation, answer: Answer):
  """Warnings of what the law does not know."""
  law, Bps = q.law, _Bps(q)
  if answer.beyond:
    yield (f"extrapolated: the {'table' if _from_table(q) else 'law'} is of "
           f"{answer.seen[0]:.3g} to {answer.seen[1]:.3g} {answer.unit}, this "
           f"is {answer.x:.3g}")
  if Bps and not _fixed(q) and (a.Bp not in Bps if _from_table(q) else
                                not min(Bps) <= a.Bp <= max(Bps)):
    yield ("extrapolated: n* was seen at Bp = "
           f"{', '.join(map(str, Bps))}, this is Bp = {a.Bp}")
  if isinstance(law, Prior):
    if q.model is None or priors.PRIOR_MODEL not in q.model:
      yield (f"the prior is of {priors.PRIOR_MODEL}; other base models saturated "
             "at n = 16 to 64: measure your own, launch.plan --sweep")
    if q.D is not None and q.D < priors.PRIOR_D[law.stratum] / 2:
      yield (f"D = {q.D} training problems; the prior had "
             f"{priors.PRIOR_D[law.stratum]}, and with fewer the best n is "
             "smaller (256 instead of 512 at D = 500)")
    if law.stratum == "hard":
      yield ("on hard problems Bp matters about as much as n (2.2 and 3.1 "
             "points): check two values of Bp")
    return
  yield from law.cautions
  if q.model is not None and q.model != law.model:
    yield f"the fit is of {law.model}, this is {q.model}"
  if q.metric != law.metric.split("@")[0]:
    yield f"the fit is of {law.metric}, you ask for {q.metric}"
  tested, (low, high) = np.log2(sorted(law.n)), answer.interval
  if len(tested) > 1 and np.log2(high / low) > np.diff(tested).max():
    yield (f"the interval of n*, {low:.3g} to {high:.3g}, is wider than the "
           "step between the tested n")


def _of_the_allocation(q: Question, a: Allocation, answer: Answer):
  """Warnings of the playbook (section 9)."""
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


def neighbours(q: Question, a: Allocation) -> tuple[Allocation, ...]:
  """The allocations of the same C with half and twice the n, if admitted."""
  out = []
  for n in (a.n // 2, 2 * a.n):
    Bp = a.B // max(n, 1) if _fixed(q) else a.Bp
    B = Bp * n
    if (n > 1 and 1 <= Bp <= (q.D or Bp) and B <= min(q.B_max, a.C)
        and (B == a.B or not _fixed(q))):
      out.append(allocate(Bp=Bp, n=n, M=None, C=a.C))
  return tuple(out)


def predict(law: Prior | Fitted, allocation: Allocation) -> Prediction | None:
  """Reward of the allocation from the fit's tables; None: not in them."""
  if isinstance(law, Prior) or law.unit != "rollouts":
    return None
  C = allocation.C
  for c in law.curves:
    if (c.Bp, c.n) == (allocation.Bp, allocation.n) and c.C[0] <= C <= c.C[-1]:
      at = lambda value: float(np.interp(math.log(C), np.log(c.C), value))
      return Prediction(at(c.reward), at(c.low), at(c.high),
                        beyond=not c.C_lo <= C <= c.C_hi)
  return None


def stratum_of(pass_rate_Q) -> str:
  """easy or hard, from the base policy's pass rate on each problem (avg@16).

  Raises:
    InputError: most problems are of neither kind; there is no prior for them.
  """
  rate = np.asarray(pass_rate_Q, float)
  if not len(rate) or rate.min() < 0 or rate.max() > 1:
    raise InputError("pass rates: expected numbers in [0, 1], one a problem")
  share = {name: float(np.mean((low - 1e-9 <= rate) & (rate <= high + 1e-9)))
           for name, (low, high) in STRATA.items()}
  best = max(share, key=share.get)
  if share[best] <= 0.5:
    raise InputError(
        "the problems are of mixed difficulty: " + ", ".join(
            f"{s:.0%} {name} (avg@16 in {STRATA[name]})"
            for name, s in share.items()) + "; split them first, "
        "launch.split, or name the stratum yourself")
  return best


def for_hours(q: Question, hours: float, budget_at, step_hours) -> Advice:
  """Advice where the clock is given, not C.

  How many rollouts an hour pays for depends on n, and n on the rollouts: of
  the powers of two, the one nearest to the n* of its own budget.

  Args:
    q: the question; its C is not read.
    hours: on the clock.
    budget_at: (Bp, n) -> C that the hours pay for, 0 for not one step.
    step_hours: (Bp, n) -> hours of one step.

  Raises:
    InputError: they pay for nothing.
  """
  most = _most_n(q)
  ns = [q.n] if q.n else [2**i for i in range(1, 13) if 2**i <= most]
  if _fixed(q):
    ns = [n for n in _ns_of_fixed(q) if q.n in (None, n)]
  cells, found = [_cell(q, n) for n in ns], []
  for Bp, n, changes in cells:
    C = budget_at(Bp, n)
    if C:
      advice = advise(dataclasses.replace(q, C=C, n=n))
      found.append(dataclasses.replace(advice, changes=changes))
  if not found:
    need, Bp, n = min((step_hours(*cell[:2]), *cell[:2]) for cell in cells)
    digit = 10.0 ** (math.floor(math.log10(need)) - 2)
    raise InputError(
        f"--hours={hours:g} do not pay for one step; the shortest, Bp={Bp}, "
        f"n={n}, takes --hours={math.ceil(need / digit) * digit:.3g}")
  return min(found, key=lambda advice: abs(math.log(
      advice.allocation.n / advice.answer.n)))
