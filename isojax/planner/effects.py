"""What each rule of `division.RULES` is expected to do on one's problems.

A rule divides by what a run knows before its first step: these counts, trusted
as far as alloc.prior_strength says, and no silent visit. What that gives is an
expectation in closed form under Beta(right + 1/2, wrong + 1/2), the posterior
of each problem's pass counts: a prediction for the first steps.
"""

import dataclasses
import math
import typing

import numpy as np
from scipy import special

from isojax import config_file
from isojax.division import (
  Bounds,
  Division,
  evidence,
  hits,
  informative,
  moments,
  RULES,
)
from isojax.errors import InputError
from isojax.format import aligned, rounded
from isojax.planner.workload import SIGMA

STEPS = 64  # that the means are over
MATTERS = 0.05  # relative gain over uniform below which a rule is not worth it


class Effect(typing.NamedTuple):
  """Means over the steps."""

  informative: float  # groups with right and wrong answers
  hits: float  # groups with a right answer
  variance: float  # of the gradient, times B: that of one rollout
  slowest: float  # answer of a group, over the mean answer


def slowest_answer(n: int) -> float:
  """E[longest of n answers] over the mean answer, of log-normal lengths."""
  z = np.linspace(-8.0, 8.0, 2001)
  density = np.exp(-z**2 / 2) / math.sqrt(2 * math.pi)
  return float(np.trapezoid(n * density * special.ndtr(z) ** (n - 1)
                            * np.exp(SIGMA * z - SIGMA**2 / 2), z))


def division(config, rule: str, n: int) -> Division:
  """The config's with this rule, and wider bounds if n is outside of them."""
  alloc = (config or config_file.read_config("configs/grpo.py")).alloc
  return Division(
      rule, min(alloc.n_low, n),
      alloc.n_high if n <= alloc.n_high else 2 * n, alloc.prior_strength,
      alloc.forgetting, alloc.objective)


def effects(correct_D, samples: int, *, Bp: int, n: int,
            division: Division) -> dict[str, Effect]:
  """The effect of each rule on steps of Bp problems with Bp * n rollouts.

  Args:
    correct_D: right answers of each problem, of `samples`.
    division: the bounds of n, and how far a run trusts the counts; any rule.
  """
  D, rng, B = len(correct_D), np.random.default_rng(0), Bp * n
  known = evidence(range(D), correct_D, samples, division)
  # Of all the counts: Beta(right + 1/2, wrong + 1/2).
  sharp = dataclasses.replace(known, strength=samples + 1)
  bounds = Bounds(division.n_low, division.n_high)
  order = rng.permutation(D)
  steps = [order[i:i + Bp] for i in range(0, len(order) - Bp + 1, Bp)][:STEPS]
  slowest = np.array([0.0] + [
      slowest_answer(i) for i in range(1, bounds.high + 1)])
  out = {name: [] for name in RULES}
  for step in steps:
    uniform_P = rng.uniform(size=Bp)
    p = sharp.posterior(step, uniform_P)
    signal, hit = informative(p, bounds.high), hits(p, bounds.high)
    variance = moments(p, 1, i=1, j=1)[0]
    for name, rule in RULES.items():
      n_P = rule(known.posterior(step, uniform_P), B, bounds)
      assert n_P.all()  # before a silent visit no rule skips a problem
      out[name].append(Effect(
          signal[n_P, np.arange(Bp)].sum(), hit[n_P, np.arange(Bp)].sum(),
          n / Bp * (variance / n_P).sum(), slowest[n_P].mean()))
  return {name: Effect(*np.mean(rows, axis=0)) for name, rows in out.items()}


def compared(correct_D, samples: int, *, Bp: int, n: int, division: Division,
             seconds=None) -> str:
  """The effects of all rules as a table, and whether one is worth it.

  seconds are those of a step, whatever the rule; None: not priced.
  """
  rule = division.rule
  if not samples or len(correct_D) < Bp:
    raise InputError(
        f"--rule={rule} needs the pass counts of at least Bp = {Bp} training "
        "problems: --problems=FILE of launch.split")
  means = effects(correct_D, samples, Bp=Bp, n=n, division=division)
  priced = seconds is not None
  lines = [["rule", "groups", "informative", "hits", "variance", "slowest",
            *["seconds"] * priced]]
  lines += [[f"{name}{' *' * (name == rule)}", f"{Bp:.1f}",
             f"{e.informative:.1f}", f"{e.hits:.1f}", f"{e.variance:.3f}",
             f"{e.slowest:.2f}", *[rounded(seconds)] * priced]
            for name, e in means.items()]
  base = means["uniform"]
  signal = {name: e.informative / base.informative - 1
            for name, e in means.items()}
  noise = {name: e.variance / base.variance - 1 for name, e in means.items()}
  verdict = (
      f"too uniform for a rule to matter: none has {MATTERS:.0%} more "
      f"informative groups or less variance than uniform at n = {n}"
      if max(*signal.values(), -min(noise.values())) < MATTERS else
      f"{rule}: {signal[rule]:+.1%} informative groups, {noise[rule]:+.1%} "
      "variance of the gradient against uniform; whether it learns faster is "
      "not known from this")
  return "\n".join([
      f"rules for {Bp} x {n} rollouts of a step, by the pass counts of "
      f"{len(correct_D)} problems (expected groups; variance of the gradient a "
      "rollout; slowest answer of a group in mean answers, for which in-flight "
      "updates wait):", aligned(lines), verdict])
