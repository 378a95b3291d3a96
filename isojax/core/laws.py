"""The law n*(C): the best number of rollouts per problem at a budget.

IsoCompute Playbook (arXiv 2603.12151), section 3. The only definition of the
law's formula: `frontier` fits it, `planner` applies it. Published parameters
are in `planner.priors`, fitted ones in `planner.fit_file`.
"""

import dataclasses

import numpy as np

TIE = 1e-9  # reward; curves that differ by less count as equal
FIT_VERSION = 1  # of fit.json, which frontier writes and planner reads
C_TOLERANCE = 1.05  # runs of different Bp * n end at slightly different C


def logistic(z):
  """1 / (1 + exp(-z)), any shape; does not overflow."""
  return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(z)))


def log2_n(x, *, L, k, x0, b):
  """log2 n* = L / (1 + exp(-k (x - x0))) + b; arguments broadcast.

  x and the midpoint x0 are log10 C, or M for a fixed batch; k is per unit of x.
  """
  return L * logistic(k * (x - x0)) + b


@dataclasses.dataclass(frozen=True)
class Sigmoid:
  """The law over log10 C (section 3.1)."""

  L: float  # log2 units between floor and ceiling
  k: float  # per decade; the slope at C0 is L k / 4
  log10_C0: float
  b: float  # log2 of the floor

  def log2(self, C):
    """log2 n*(C), any shape; C > 0 in the unit of the law."""
    return log2_n(np.log10(C), L=self.L, k=self.k, x0=self.log10_C0, b=self.b)

  def __call__(self, C):
    return 2.0 ** self.log2(C)


@dataclasses.dataclass(frozen=True)
class FixedBatch:
  """The law over M updates at one B = Bp * n (section 3.3); Bp* is B / n*."""

  B: int  # rollouts per step
  L: float
  k: float  # per update
  M0: float
  b: float

  def log2(self, M):
    """log2 n*(M), any shape."""
    return log2_n(np.asarray(M, float), L=self.L, k=self.k, x0=self.M0,
                  b=self.b)

  def __call__(self, M):
    return 2.0 ** self.log2(M)


def formula(theta, B: int | None = None) -> Sigmoid | FixedBatch:
  """The law with the parameters (L, k, x0, b); B is that of a fixed batch."""
  return Sigmoid(*theta) if B is None else FixedBatch(B, *theta)


def interval(value, draws):
  """(low, high), the 95 % interval of a quantity of a law.

  Each end is the wider of two: a percentile of the bootstrap draws, and value
  +- 1.96 standard deviations of the draws. Percentiles alone contain the truth
  too rarely, because a frontier that switches between nearly parallel curves
  pulls estimates to the middle of the range. docs/fitting.md has the coverage.

  Args:
    value: any shape; on a scale where errors add, such as log2 n.
    draws: [draws, ...], bootstrap draws of value.
  """
  draws = np.asarray(draws)
  low, high = np.quantile(draws, (0.025, 0.975), axis=0)
  half_width = 1.96 * draws.std(axis=0)
  return (np.minimum(low, value - half_width),
          np.maximum(high, value + half_width))


@dataclasses.dataclass(frozen=True)
class MeasuredLaw:
  """A law of n*(C): what it was measured on, and how far it may be used.

  A published law is a `planner.priors.Prior`, a fitted one a
  `planner.fit_file.Fitted`.
  """

  law: Sigmoid | FixedBatch | None  # None: nothing to fit it to
  unit: str  # of C: rollouts, tokens, updates or another column of the records
  stratum: str | None  # easy or hard
  C_seen: tuple[float, float] | None  # range of the data; None without a law
  draws: tuple[Sigmoid | FixedBatch, ...] = ()  # of the bootstrap
  identified: bool = True
  reasons: tuple[str, ...] = ()  # why it is not identified
  limits: tuple[str, ...] = ()  # why it is not used beyond its data
  cautions: tuple[str, ...] = ()

  def interval(self, C: float) -> tuple[float, float]:
    """The 95 % interval of n*(C), by the bootstrap draws."""
    low, high = interval(self.law.log2(C), [d.log2(C) for d in self.draws])
    return float(2.0**low), float(2.0**high)
