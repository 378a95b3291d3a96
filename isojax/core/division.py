"""Division of a step's B rollouts among its problems: n_i of problem i.

Every rule of RULES returns n_P with sum(n_P) == B exactly, and all but uniform
with low <= n_P <= high where they sample a problem. knapsack, variance and hit
maximise an expected utility under a Beta posterior of each pass rate, so a
problem with 0 of 16 correct still gains from rollouts.
"""

import dataclasses
import functools
import typing

import numpy as np

from isojax.core import custom_function
from isojax.errors import expect, InputError

OBJECTIVES = ("problems", "rollouts")


@dataclasses.dataclass(frozen=True)
class Division:
  """The rule that divides the B rollouts of a step, with its options."""

  rule: str  # a key of RULES, or FILE.py:FUNCTION
  n_low: int  # least rollouts of a problem that is sampled
  n_high: int  # most rollouts of a problem
  prior_strength: float  # rollouts that the stratum's pass counts are worth
  forgetting: float  # each step multiplies the weight of earlier rollouts by it
  objective: str  # one of OBJECTIVES: what has equal weights in the loss

  def __post_init__(self):
    custom = None
    if self.rule.partition(":")[0].endswith(".py"):
      custom = custom_function.read("alloc.rule", self.rule)
    object.__setattr__(self, "custom", custom)  # so the file is read once
    expect(
        "alloc", self,
        rule=(custom is not None or self.rule in RULES,
              f"one of {', '.join(RULES)}, or FILE.py:FUNCTION"),
        n_low=(1 <= self.n_low <= self.n_high,
               f"1 <= n_low <= n_high={self.n_high}"),
        prior_strength=(self.prior_strength > 0, "> 0"),
        forgetting=(0 <= self.forgetting <= 1, "a weight in [0, 1]"),
        objective=(self.objective in OBJECTIVES,
                   f"one of {', '.join(OBJECTIVES)}"))

  @property
  def is_uniform(self) -> bool:
    return self.rule == "uniform"

  def n_of(self, p: "Posterior", B: int) -> np.ndarray:
    """n_P for B rollouts; InputError if a custom rule fails."""
    bounds = Bounds(self.n_low, self.n_high)
    if not self.custom:
      return RULES[self.rule](p, B, bounds)
    try:
      n_P = np.asarray(custom_function.load(**self.custom)(p, B, bounds))
    except Exception as error:  # any error of the file
      raise custom_function.with_line(self.custom["path"], error) from error
    if (n_P.shape != p.a_P.shape or n_P.dtype.kind not in "iu"
        or n_P.min() < 0 or n_P.max() > self.n_high or n_P.sum() != B):
      raise InputError(
          f"alloc.rule={self.rule}: returned {n_P!r:.80}; expected integers "
          f"{p.a_P.shape} in [0, {self.n_high}] whose sum is {B}")
    return n_P


class Posterior(typing.NamedTuple):
  """The posterior of the pass rate of each problem: Beta(a, b)."""

  a_P: np.ndarray  # float64, > 0
  b_P: np.ndarray  # float64, > 0
  # Number of steps in a row, up to now, that sampled the problem (visits) and
  # gave no signal: all rollouts were correct, or all incorrect.
  no_signal_P: np.ndarray
  uniform_P: np.ndarray  # float64 in [0, 1), a random number of this step


class Bounds(typing.NamedTuple):
  low: int  # least rollouts of a problem that is sampled, at least 1
  high: int  # most rollouts of a problem


def prior_mean(correct_P, n) -> np.ndarray:
  """The mean (c + 1/2) / (n + 1) after c of n correct; 1/2 for n = 0."""
  return (np.asarray(correct_P, np.float64) + 0.5) / (np.asarray(n) + 1)


def posterior(correct_P, incorrect_P, *, mean_P, strength: float,
              no_signal_P, uniform_P) -> Posterior:
  """The posterior after correct_P and incorrect_P rollouts.

  The prior is worth `strength` rollouts, a fraction mean_P of them correct.
  """
  return Posterior(correct_P + strength * mean_P,
                   incorrect_P + strength * (1 - mean_P), no_signal_P,
                   uniform_P)


@dataclasses.dataclass(frozen=True)
class Evidence:
  """The graded rollouts of a run, summed for each of its D training problems.

  Not in a checkpoint: a resumed run computes it from its records.
  """

  place: dict  # id of a problem -> its index in [D]
  mean_D: np.ndarray  # of the prior, from the stratum's pass counts
  strength: float  # of the prior, in rollouts
  forgetting: float  # see Division; below 1 because the policy changes
  correct_D: np.ndarray  # discounted correct rollouts of the run
  incorrect_D: np.ndarray
  no_signal_D: np.ndarray  # see Posterior

  def after(self, groups) -> "Evidence":
    """The evidence after one more step; groups are (problem id, n, correct)."""
    correct_D, incorrect_D = (
        x * self.forgetting for x in (self.correct_D, self.incorrect_D))
    no_signal_D = self.no_signal_D.copy()
    # A step with in-flight groups can have a problem twice, from two epochs.
    for problem, n, correct in groups:
      if n:
        d = self.place[problem]
        correct_D[d] += correct
        incorrect_D[d] += n - correct
        no_signal_D[d] = no_signal_D[d] + 1 if correct in (0, n) else 0
    return dataclasses.replace(
        self, correct_D=correct_D, incorrect_D=incorrect_D,
        no_signal_D=no_signal_D)

  def posterior(self, index, uniform_P) -> Posterior:
    """The posterior of the problems with these indices."""
    return posterior(
        self.correct_D[index], self.incorrect_D[index],
        mean_P=self.mean_D[index], strength=self.strength,
        no_signal_P=self.no_signal_D[index], uniform_P=uniform_P)

  def informative(self, groups) -> float:
    """Expected share of groups with correct and incorrect rollouts."""
    index_P, n_P = zip(*((self.place[problem], n) for problem, n, _ in groups
                         if n), strict=True)
    P = len(n_P)
    p = self.posterior(list(index_P), np.zeros(P))
    return float(informative(p, max(n_P))[n_P, np.arange(P)].mean())


def evidence(id_D, correct_D, n: int, division: Division) -> Evidence:
  """The evidence before the first step.

  The prior is from the stratum's pass counts: correct_D of n rollouts.
  """
  mean_D = prior_mean(correct_D, n)
  zeros_D = np.zeros(len(mean_D))
  return Evidence(
      {int(i): d for d, i in enumerate(id_D)}, mean_D,
      division.prior_strength, division.forgetting, zeros_D, zeros_D, zeros_D)


def moments(p: Posterior, count: int, *, i: int, j: int) -> np.ndarray:
  """E[p^(k+i) (1-p)^j] for k = 0 .. count - 1, [count, P].

  E[p^i (1-p)^j] = Beta(a+i, b+j) / Beta(a, b) as a product of ratios.
  """
  first = np.ones_like(p.a_P)
  total = p.a_P + p.b_P
  for power in range(i):
    first = first * (p.a_P + power) / (total + power)
  for power in range(j):
    first = first * (p.b_P + power) / (total + i + power)
  k = np.arange(count - 1)[:, None]
  ratio = (p.a_P + i + k) / (total + i + j + k)
  return np.cumprod(np.concatenate([first[None], ratio]), axis=0)


def mirrored(p: Posterior) -> Posterior:
  """The posterior of 1 - p."""
  return p._replace(a_P=p.b_P, b_P=p.a_P)


def informative(p: Posterior, high: int) -> np.ndarray:
  """Chance of both kinds of answers among n = 0 .. high rollouts, [n, P]."""
  return np.maximum(0.0, 1.0 - moments(p, high + 1, i=0, j=0)
                    - moments(mirrored(p), high + 1, i=0, j=0))


def hits(p: Posterior, high: int) -> np.ndarray:
  """Chance of a correct answer among n = 0 .. high rollouts, [n, P]."""
  return 1.0 - moments(mirrored(p), high + 1, i=0, j=0)


def knapsack_utility(p: Posterior, high: int) -> np.ndarray:
  """E[(1 - p^n - (1-p)^n) p (1-p)^2] for n = 0 .. high (arXiv 2509.25849)."""
  total = moments(p, 1, i=1, j=2)
  value = total - moments(p, high + 1, i=1, j=2) - moments(
      mirrored(p), high + 1, i=2, j=1)
  value[0] = 0.0  # n = 0, where the formula gives -E[p (1-p)^2]
  return value


def variance_utility(p: Posterior, high: int) -> np.ndarray:
  """-E[p (1-p)] / n for n = 0 .. high (arXiv 2602.01601); -inf for n = 0."""
  n = np.arange(high + 1)[:, None]
  with np.errstate(divide="ignore"):
    return -moments(p, 1, i=1, j=1) / n


def greedy(utility, p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """The n_P that maximises the summed utility; exact where it is concave in n.

  Each problem gets `low`. The other B - P * low rollouts have the largest gains
  of one more rollout; ties go to the smaller n, then to the first problem.
  """
  P = len(p.a_P)
  # A problem gets at most what is left if each other problem gets `low`.
  high = min(bounds.high, B - (P - 1) * bounds.low)
  gain_NxP = np.diff(utility(p, high)[bounds.low:], axis=0)
  order = np.argsort(-gain_NxP, axis=None, kind="stable")  # n * P + problem
  return bounds.low + np.bincount(order[:B - P * bounds.low] % P, minlength=P)


def uniform(p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """The same n for every problem; the first B % P problems get one more."""
  del bounds
  P = len(p.a_P)
  return B // P + (np.arange(P) < B % P)


EXPLORE = 0.5  # chance of a visit after one without a signal; GRESO begins so


def skip(p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """Skips problems without a recent signal; the others share B (GRESO).

  After z visits in a row without a signal a problem is visited with probability
  EXPLORE^z (arXiv 2506.02177, eq. 3), so every problem is visited again. If the
  others cannot take B at `high` each, the skipped problems with the smallest
  uniform_P / EXPLORE^z are added.
  """
  chance_P = EXPLORE ** p.no_signal_P.astype(float)
  visited_P = p.uniform_P < chance_P
  fewest = -(-B // bounds.high)
  order = np.argsort(p.uniform_P / chance_P, kind="stable")
  visited_P[order[:fewest]] = True
  n_P = np.zeros(len(p.a_P), int)
  n_P[visited_P] = uniform(
      Posterior(*(x[visited_P] for x in p)), B, bounds)
  return n_P


# The values of alloc.rule, which can also be FILE.py:FUNCTION.
RULES = {
    "uniform": uniform,
    # Largest chance of a gradient, weighted by p (1-p)^2 (Knapsack RL).
    "knapsack": functools.partial(greedy, knapsack_utility),
    # Smallest variance of the summed gradient (VIP): n ~ sqrt(p (1-p)).
    "variance": functools.partial(greedy, variance_utility),
    # Most problems with a correct answer (HORA, arXiv 2605.07114).
    "hit": functools.partial(greedy, hits),
    "skip": skip,
}
# The default of an Allocation; rule "uniform" reads none of the numbers.
UNIFORM = Division("uniform", n_low=1, n_high=1, prior_strength=1.0,
                   forgetting=1.0, objective="problems")
