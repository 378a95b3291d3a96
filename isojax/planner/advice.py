"""A budget to an allocation, with what the answer rests on.

IsoCompute Playbook (arXiv 2603.12151), sections 4 and 9: n from the law, a
moderate constant Bp, the rest of the budget in M, lr ~ sqrt(Bp n).
"""

import dataclasses
import math

import numpy as np

from isojax.errors import InputError
from isojax.planner import laws
from isojax.planner.allocation import Allocation
from isojax.planner.allocation import admitted
from isojax.planner.allocation import allocate
from isojax.planner.allocation import nearest_power
from isojax.planner.allocation import sqrt_lr
from isojax.planner.laws import FixedBatch
from isojax.planner.laws import Fitted
from isojax.planner.laws import Prior

# n that maximises best@4 and worst@4 at the largest C (4 to 6 million), by Bp.
BEST_AT_END = {
    ("easy", "best"): {32: 512, 64: 128, 128: 8, 256: 16},
    ("easy", "worst"): {32: 512, 64: 256, 128: 128, 256: 64},
    ("hard", "best"): {32: 256, 64: 128, 128: 128, 256: 32},
    ("hard", "worst"): {32: 64, 64: 32, 128: 8, 256: 8},
}
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
  unit: int  # Bp * n must be a multiple of it
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
  beyond: bool  # C is beyond what the curve was seen at


@dataclasses.dataclass(frozen=True)
class Advice:
  allocation: Allocation
  lr: float
  n_star: float  # before rounding to a power of two
  n_interval: tuple[float, float] | None
  prediction: Prediction | None
  basis: str  # what it rests on, in a sentence
  beyond: bool  # outside the range of the data behind the law
  changes: tuple[str, ...]  # what was moved to be admitted, and why
  warnings: tuple[str, ...]


def _ask(q: Question, Bp: int):
  """(n*, interval or None, basis, argument of the law)."""
  law, x = q.law, float(q.C)
  if isinstance(law, Prior) and q.metric != "avg":
    table = BEST_AT_END[law.stratum, q.metric]
    near = min(table, key=lambda b: abs(math.log(b / Bp)))
    return float(table[near]), None, (
        f"published: n with the best {q.metric}@4 at the largest C on "
        f"{law.stratum} problems at Bp = {near}; there is no published law of "
        f"n*(C) for {q.metric}@k"), x
  if isinstance(law, Fitted) and not law.identified:
    raise InputError(
        f"{law.path}: its law is not identified ({'; '.join(law.reasons)}); "
        "run what the report proposes, or take a published prior with --law")
  if isinstance(law.law, FixedBatch):
    x = q.C / law.law.B
  elif law.unit in ("tokens", "sampled_tokens"):
    if q.tokens_per_rollout is None:
      raise InputError(f"the law is in {law.unit}: give the mean tokens of a "
                       "rollout, --response_tokens")
    x = q.C * q.tokens_per_rollout
  elif law.unit != "rollouts":
    raise InputError(f"the law is in {law.unit}; fit it again with "
                     "--axis=rollouts to be advised for a number of rollouts")
  n = float(law.law(x))
  if isinstance(law, Prior):
    return n, laws.prior_interval(law, x), (
        f"published prior ({law.stratum}, {laws.PRIOR_MODEL}, math, one run "
        "each); the interval is the spread of refits, not of your problems"), x
  return n, law.interval(x), (
      f"your own fit, {law.path} ({law.metric} on {law.stratum}); 95% interval "
      "of the bootstrap"), x


def advise(q: Question) -> Advice:
  """The allocation of a budget.

  Raises:
    InputError: the budget is below one step, or the law is not identified.
  """
  if q.C < 2:
    raise InputError(f"C={q.C} rollouts: expected at least 2, one problem with "
                     "two rollouts")
  law = q.law
  Bp = q.Bp
  if Bp is None and not isinstance(law.law, FixedBatch):
    tested = law.Bp if isinstance(law, Fitted) else (law.Bp,)
    Bp = tested[0] if len(tested) == 1 and tested[0] else 2 * DEFAULT_BP
  n_star, interval, basis, x = _ask(q, Bp or DEFAULT_BP)
  at_least = min(Bp or FEWEST_BP, FEWEST_BP)  # n may lower Bp down to this
  wished = q.n or nearest_power(
      n_star, low=2, high=max(2, min(q.B_max // at_least, q.C // (Bp or 1))))
  if Bp is None:
    Bp = max(1, law.law.B // wished)
  Bp, n, changes = admitted(Bp, wished, unit=q.unit, B_max=q.B_max,
                            D=q.D or q.B_max)
  allocation = allocate(Bp=Bp, n=n, M=None, C=q.C)
  seen = law.C_seen
  beyond = not seen[0] <= x <= seen[1]
  return Advice(
      allocation=allocation, lr=sqrt_lr(q.base_lr, q.base_batch, allocation.B),
      n_star=n_star, n_interval=interval, prediction=None, basis=basis,
      beyond=beyond, changes=changes,
      warnings=_warnings(q, allocation, n_star, interval, x, beyond))


def _warnings(q: Question, a: Allocation, n_star, interval, x,
              beyond: bool) -> tuple[str, ...]:
  law, out = q.law, []
  prior = isinstance(law, Prior)
  largest = law.max_n if prior else max(law.n)
  if beyond:
    out.append(f"extrapolated: the law was fitted on {law.C_seen[0]:.3g} to "
               f"{law.C_seen[1]:.3g} {law.unit}, this is {x:.3g}")
  if prior and (q.model is None or laws.PRIOR_MODEL not in q.model):
    out.append(f"the prior is of {laws.PRIOR_MODEL}; other base models "
               "saturated at n = 16 to 64: measure your own, launch.plan "
               "--sweep")
  if prior and q.D is not None and q.D < laws.PRIOR_D[law.stratum] / 2:
    out.append(f"D = {q.D} training problems; the prior had "
               f"{laws.PRIOR_D[law.stratum]}, and with fewer the best n is "
               "smaller (256 instead of 512 at D = 500)")
  if not prior:
    out += law.cautions
    if q.model is not None and q.model != law.model:
      out.append(f"the fit is of {law.model}, this is {q.model}")
    if q.metric != law.metric.split("@")[0]:
      out.append(f"the fit is of {law.metric}, you ask for {q.metric}")
    tested = np.log2(sorted(law.n))
    if interval and len(tested) > 1 and np.log2(
        interval[1] / interval[0]) > np.diff(tested).max():
      out.append(f"the interval of n*, {interval[0]:.3g} to {interval[1]:.3g}, "
                 "is wider than the step between the tested n")
  if prior and law.law.log2(law.C_seen[1]) >= np.log2(law.max_n) - 0.5:
    out.append("saturation was not observed")
  if a.n >= largest:
    out.append(f"n = {a.n} is at the edge of what was tested ({largest})")
  if a.B > q.B_max // 2 and a.n < n_star / math.sqrt(2):
    out.append(f"the cap of {q.B_max} rollouts a step keeps n below "
               f"n* = {n_star:.3g}: a cap can look like saturation")
  if q.D is not None:
    epochs = a.M * a.Bp / q.D
    if epochs > EPOCHS and a.n < largest:
      out.append(
          f"{epochs:.1f} epochs: in the paper's runs the next larger n led once "
          f"the smaller one had seen {EPOCHS} epochs at most; watch validation "
          "against training reward")
  if prior and law.stratum == "hard":
    out.append("on hard problems Bp matters about as much as n (2.2 and 3.1 "
               "points): check two values of Bp")
  if a.M < 50:
    out.append(f"only {a.M} updates, of which the first 10 are warm-up")
  return tuple(out)


def predict(fit: dict, allocation: Allocation) -> Prediction | None:
  """Reward of the allocation from the tables of a fit.json; None: not tested.

  In rollouts only; beyond the table there is nothing to read.
  """
  if fit["study"]["axis"] != "rollouts":
    return None
  for curve in fit["curves"]:
    if (curve["Bp"], curve["n"]) == (allocation.Bp, allocation.n):
      if allocation.C > curve["C"][-1]:
        return None
      at = lambda name: float(np.interp(math.log(allocation.C),
                                        np.log(curve["C"]), curve[name]))
      return Prediction(at("reward"), at("low"), at("high"),
                        beyond=allocation.C > curve["C_hi"])
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


def for_hours(q: Question, budget_at, ns) -> Advice:
  """Advice where the clock is given, not C.

  How many rollouts an hour pays for depends on n, and n on the rollouts: of
  the powers of two, the one nearest to the n* of its own budget.

  Args:
    q: the question; its C is not read.
    budget_at: (Bp, n) -> C that the time pays for, or InputError for none.
    ns: candidates for n.
  """
  best, refused = None, None
  for n in ns:
    try:
      free = advise(dataclasses.replace(
          q, C=budget_at(q.Bp or DEFAULT_BP, n), n=None))
      a = free.allocation
      C = budget_at(a.Bp, n)
      advice = advise(dataclasses.replace(q, C=C, Bp=a.Bp, n=n))
    except InputError as error:
      refused = error
      continue
    distance = abs(math.log2(n / advice.n_star))
    if best is None or distance < best[0]:
      best = distance, advice
  if best is None:
    raise refused
  return best[1]
