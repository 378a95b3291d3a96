"""Public measurements of n and of Bp * n: which n are as good as the best.

Each source has one policy and one set of problems. It is a prior for other
runs, and no evidence for a C that it did not run.
"""

import dataclasses

from isojax.core import laws
from isojax.core.allocation import Allocation, nearest_power
from isojax.core.format import compact, many
from isojax.planner import priors
from isojax.planner.fit_file import Fitted
from isojax.planner.priors import Prior

# An n whose reward is this close to the best is as good, as by default in
# launch.fit --margin.
MARGIN = 0.01


@dataclasses.dataclass(frozen=True)
class Source:
  """A measurement of the best n, with one policy on one set of problems."""

  name: str
  setting: str  # policy, problems, where it is published
  C: tuple[float, float]  # rollouts of its runs
  n: tuple[int, ...]  # as good as the best tested n, by the source itself
  finding: str

  def covers(self, C: float) -> bool:
    return self.C[0] <= C <= self.C[1]

  def text(self, C: float) -> str:
    ends = " to ".join(dict.fromkeys(map(compact, self.C)))
    return (f"{self.name} ({self.setting}, {ends} rollouts): {self.finding}"
            + ("" if self.covers(C) else "; not run at this C"))


STUDY = Source(
    "isojax's study", "the embedded policy, Countdown, 256 problems, "
    "docs/study.md", (4096, 4.194304e6), (2, 4, 8, 16, 32, 64), "n = 2 to 64 "
    "reach the same best validation within 0.011, a larger n later; n = 128 is "
    "0.017 below")
# Numbers read from the figures and tables of the repositories named.
SWEEPS = (
    Source("OLMo2-1B", "GSM8K, one run each, sunnytqin/"
           "rl-excursions-during-pretraining @ cec69cc", (81_920, 1.92e6), (5,),
           "n = 5 is ahead of n = 64 in pass@1 at 37 of the 39 evaluations up "
           "to the end of n = 5, at 1.38M on easy and 1.92M on hard problems"),
    Source("Qwen2.5-1.5B-Instruct", "Countdown, one run each, simondong1/"
           "simondong1.github.io @ 1534dd6", (16_384, 16_384), (4, 8, 16),
           "n = 4, 8 and 16 end at 0.23 to 0.25, n = 32 at 0.12, with updates "
           "of 128 rollouts"))
RATE = ("learning rate: it grows as sqrt(Bp * n). In isojax's study half of it "
        "gains 0.032 [0.015, 0.048] at n = 128 on 2,500 problems, and at n = 8 "
        "it is ahead from 2^18 rollouts on (docs/study.md): try half with a "
        "large n or a large C")
CRITICAL_BATCH = (325, 3541)  # rollouts a step, of OpenReview uK4kMpNx0W


def playbook_source(law: Prior, C: float) -> Source:
  """A published law as a source at C, or at the nearest C of its data."""
  C = min(max(C, law.C_seen[0]), law.C_seen[1])
  low, high = map(round, priors.prior_interval(law, C))
  return Source(
      "IsoCompute Playbook", f"{priors.PRIOR_MODEL}, {law.stratum} math, one "
      "run each, arXiv 2603.12151", law.C_seen,
      powers_of_two(low, high),
      f"n* = {law.law(C):.0f}, refits {low} to {high}")


def powers_of_two(low: float, high: float) -> tuple[int, ...]:
  """From the power of two nearest to `low` to the one nearest to `high`."""
  first, last = (nearest_power(end, low=2, high=2**20).bit_length() - 1
                 for end in (low, high))
  return tuple(2**i for i in range(first, last + 1))


def sources(law, C: float) -> tuple[Source, ...]:
  """The public sources; first the published law of this stratum, if any."""
  published = (playbook_source(priors.PRIORS[f"q1-{law.stratum}"], C),) if (
      law.stratum in priors.STRATA) else ()
  return (*published, STUDY, *SWEEPS)


def as_good(law: Fitted, C: float) -> tuple[int, ...]:
  """The n of a fit whose measured curves are within MARGIN of the best at C.

  C is in law.unit.
  """
  reward_n: dict[int, float] = {}
  for curve in law.curves:
    if curve.C_lo <= C <= curve.C_hi * laws.C_TOLERANCE:
      reward_n[curve.n] = max(reward_n.get(curve.n, 0.0), curve.at(C)[0])
  best = max(reward_n.values(), default=0.0)
  return tuple(sorted(n for n, r in reward_n.items() if r >= best - MARGIN))


def known_ns(law, C: float) -> tuple[int, ...]:
  """All n that a source which covers C found as good as its best."""
  return tuple(sorted({n for source in sources(law, C) if source.covers(C)
                       for n in source.n}))


def sweep_of(Bp: int, ns, C: int) -> str:
  """What to run: a sweep of these n to C rollouts each, with its cost."""
  ns = sorted({n for n in ns if n > 1 and Bp * n <= C})
  rollouts = sum(C // (Bp * n) * Bp * n for n in ns)
  return (f"run a sweep of {many(len(ns), 'run')}, {rollouts:,} rollouts in "
          f"all: python -m launch.plan --sweep --rollouts={C} --Bp={Bp} "
          f"--n={','.join(map(str, ns))}, then launch.sweep")


def disagreement(law, a: Allocation) -> tuple[str, ...]:
  """One sentence if sources that cover C have disjoint ranges of n, or none."""
  covering = [s for s in sources(law, a.C) if s.covers(a.C)]
  if max((source.n[0] for source in covering), default=0) <= min(
      (source.n[-1] for source in covering), default=0):
    return ()
  return ("the sources disagree at this C: " + "; ".join(
      f"n = {span(source.n)} ({source.name})" for source in covering)
          + "; to decide on your own problems " + sweep_of(
              a.Bp, {n for s in covering for n in (s.n[0], s.n[-1])}, a.C),)


def span(ns: tuple[int, ...]) -> str:
  return ", ".join(map(str, ns)) if len(ns) < 4 else f"{ns[0]} to {ns[-1]}"


def lines(law, a: Allocation) -> tuple[str, ...]:
  """A line for each source."""
  rows = [source.text(a.C) for source in sources(law, a.C)]
  low, high = CRITICAL_BATCH
  side = ("below" if a.B < low else "above" if a.B > high else "within")
  return (*rows, "critical batch (OpenReview uK4kMpNx0W, GRPO on verifiable "
          f"rewards): {low:,} to {high:,} rollouts a step, rising with the "
          f"target; Bp * n = {a.B:,} is {side} that",
          RATE, *disagreement(law, a))


def headline(law, advice) -> str:
  """Which n are as good as the best, and by which source.

  Empty if the n of `advice`, an Advice, is the only one.
  """
  C, n = advice.allocation.C, advice.allocation.n
  if isinstance(law, Fitted):
    ns = as_good(law, advice.answer.argument)
    why = f"within {MARGIN:g} of the best by {law.path}"
  elif not advice.answer.beyond:
    bounds, why = advice.n_bounds, "by published runs"
    ns = powers_of_two(*bounds) if bounds else ()
  else:
    ns, why = known_ns(law, C), "by other sources: the law has no data here"
    if not ns:
      return (f"no source was run at {compact(C)} rollouts; the plan takes n = "
              f"{n}, that of the nearest C; a warning below has the sweep to "
              "run first")
  if set(ns) <= {n}:
    return ""
  return f"n = {span(ns)} are as good, {why}; the plan takes n = {n}"
