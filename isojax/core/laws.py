"""The law n*(C): the best number of rollouts per problem at a budget.

IsoCompute Playbook (arXiv 2603.12151), section 3. `NStar` is the law: its
parameters, bootstrap draws, unit, range of the data, and verdict. `frontier`
fits it (envelope.fit_law) and writes fit.json, planner/fit_file.py reads that,
planner/priors.py has the published laws, and `planner.advice` applies them.
"""

import dataclasses
import itertools

import numpy as np

from isojax.core.format import pair

TIE = 1e-9  # reward; curves that differ by less count as equal
FIT_VERSION = 1  # of fit.json, which frontier writes and planner reads
UNKNOWN = "unknown"  # a set or model that the logs do not name
C_TOLERANCE = 1.05  # runs of different Bp * n end at slightly different C


def logistic(z):
  """1 / (1 + exp(-z)), any shape; does not overflow."""
  return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(z)))


def log2_n(x, *, L, k, x0, b):
  """log2 n* = L / (1 + exp(-k (x - x0))) + b; arguments broadcast.

  x and the midpoint x0 are log10 C, or M for a fixed batch; k is per unit of x.
  """
  return L * logistic(k * (x - x0)) + b


# Kind of a law -> (C, or M, to x of log2_n; name of x0 in fit.json).
KINDS = {"sigmoid": (np.log10, "log10_C0"),  # section 3.1
         "fixed_batch": (np.asarray, "M0")}  # section 3.3


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
class Curve:
  """The fitted reward of one configuration, as a table over C."""

  Bp: int
  n: int
  C: tuple[float, ...]
  reward: tuple[float, ...]
  low: tuple[float, ...]  # 95 %
  high: tuple[float, ...]
  C_lo: float  # range of the data; the table may go on beyond it
  C_hi: float

  def at(self, C: float) -> tuple[float, float, float]:
    """(reward, low, high) at C, interpolated in log C."""
    return tuple(float(np.interp(np.log(C), np.log(self.C), value))
                 for value in (self.reward, self.low, self.high))


@dataclasses.dataclass(frozen=True)
class Best:
  """The best measured configuration at one C of the frontier."""

  C: float
  Bp: int
  n: int
  interval: tuple[float, float] | None  # 95 %, of n
  agreeing: float  # share of the bootstrap draws with this n
  resolved: bool  # no curve could lead here outside its data


@dataclasses.dataclass(frozen=True)
class Estimate:
  """n* at one C, by a law, a measured frontier or public sources."""

  n: float  # rollouts per problem, not rounded
  interval: tuple[float, float] | None  # 95 %, or see basis; None: not known
  C: float
  unit: str  # of C
  seen: tuple[float, float]  # range of C in the data
  basis: str = ""  # which law or measurement gives n, and its interval
  measured_Bp: int | None = None  # n was measured, at this Bp; None: a law's n
  cautions: tuple[str, ...] = ()  # doubts about n: of the fit, and at this C

  @property
  def low(self) -> float:
    """The lower end of the 95 % interval."""
    return self.interval[0]

  @property
  def high(self) -> float:
    return self.interval[1]

  @property
  def beyond(self) -> bool:
    """Whether C is outside the data, so that n is extrapolated."""
    first, last = self.seen
    return not first / C_TOLERANCE <= self.C <= last * C_TOLERANCE

  def __repr__(self) -> str:
    text = (f"n* = {self.n:.4g}, 95% interval "
            f"{pair(self.interval, '{:.3g}'.format)}, at C = "
            f"{self.C:,.0f} {self.unit}")
    if self.beyond:
      side, end = ("end", 1) if self.C > self.seen[1] else ("begin", 0)
      text += f"; extrapolated: the data {side} at {self.seen[end]:,.0f}"
    return text + "".join(f"\n  warning: {line}" for line in self.cautions)


@dataclasses.dataclass(frozen=True, eq=False)
class NStar:
  """The law n*(C), what it was measured on, and how far it may be used.

  C is compute of a run in `unit`. The parameters are those of log2_n: of the
  data, then of each bootstrap draw. They are empty if there was nothing to fit.
  """

  L_D: np.ndarray  # log2 units between floor and ceiling
  k_D: np.ndarray  # per decade of C, or per update; the slope at x0 is L k / 4
  x0_D: np.ndarray  # log10 C of the midpoint, or its M
  b_D: np.ndarray  # log2 of the floor
  # Rollouts per step of a law over M updates at one Bp * n, by which Bp* is
  # B / n*. None: a law over C.
  B: int | None = None

  # How it was fitted.
  rmse_D: np.ndarray | None = None  # in log2 n
  at_bound: tuple[str, ...] = ()  # parameters of the data that are at a bound
  k_bounds: tuple[float, float] | None = None

  # Of a published law without draws: by how much refits of its points differ,
  # in decades of x0 and in log2 n.
  refits: tuple[float, float] | None = None

  # What it was measured on.
  unit: str = "rollouts"  # or tokens, updates, another column of the records
  C_seen: tuple[float, float] | None = None  # range of the data
  stratum: str | None = None  # easy or hard
  metric: str = "avg"
  model: str | None = None
  Bp: tuple[int, ...] = ()  # tested; empty: at each C the best of those tested
  n: tuple[int, ...] = ()  # tested
  B_max: int | None = None  # most rollouts per step of a published study
  path: str | None = None  # of fit.json; None: a published law
  curves: tuple[Curve, ...] = ()
  frontier: tuple[Best, ...] = ()  # in order of C; empty: all n are as good
  # (Bp, n, seed, C of the last evaluation).
  runs: tuple[tuple[int, int, int | None, float], ...] = ()

  # Verdict.
  identified: bool = True
  reasons: tuple[str, ...] = ()  # why it is not identified
  limits: tuple[str, ...] = ()  # why it is not used beyond its data
  cautions: tuple[str, ...] = ()

  @property
  def published(self) -> bool:
    """Whether it is a law of planner/priors.py, and no fit of the user's."""
    return self.path is None

  @property
  def kind(self) -> str:
    """A key of KINDS."""
    return "sigmoid" if self.B is None else "fixed_batch"

  @property
  def theta_Dx4(self) -> np.ndarray:
    """The parameters (L, k, x0, b) of the data, then of each draw."""
    return np.stack((self.L_D, self.k_D, self.x0_D, self.b_D), 1)

  def log2_D(self, C):
    """log2 n*(C) of the data, then of each draw, [D, ...]; C has any shape."""
    x = KINDS[self.kind][0](C)
    L, k, x0, b = self.theta_Dx4.T.reshape(4, -1, *[1] * np.ndim(x))
    return log2_n(x, L=L, k=k, x0=x0, b=b)

  def log2(self, C):
    """log2 n*(C), any shape; C > 0 in the unit of the law."""
    return self.log2_D(C)[0]

  def __call__(self, C):
    return 2.0 ** self.log2(C)

  def interval(self, C: float) -> tuple[float, float]:
    """The 95 % interval of n*(C) by the draws, or the spread of `refits`."""
    if self.refits:
      decades, log2 = self.refits
      low = self.log2(C / 10**decades) - log2
      high = self.log2(C * 10**decades) + log2
    else:
      log2_D = self.log2_D(C)
      low, high = interval(log2_D[0], log2_D[1:])
    return float(2.0**low), float(2.0**high)

  def estimate(self, C: float, basis: str = "", cautions=()) -> Estimate:
    """n*(C) with its interval."""
    return Estimate(float(self(C)), self.interval(C), float(C), self.unit,
                    self.C_seen, basis, cautions=tuple(cautions))

  def within_data(self, C: float) -> float:
    """C, or the nearest end of the data."""
    return min(max(C, self.C_seen[0]), self.C_seen[1])

  def measured_ranges(self) -> list[tuple[float, float]]:
    """The ranges of C in which the best of several n is resolved."""
    groups = [(resolved, [best.C for best in points]) for resolved, points in
              itertools.groupby(self.frontier, lambda best: best.resolved)]
    return [(Cs[0], Cs[-1]) for resolved, Cs in groups
            if resolved and len(Cs) > 1 and len(self.n) > 1]

  def best_measured(self, C: float) -> Best | None:
    """The best configuration near C, or None where not resolved."""
    if not any(low <= C <= high for low, high in self.measured_ranges()):
      return None
    return min((best for best in self.frontier if best.resolved),
               key=lambda best: abs(np.log(best.C / C)))


def Sigmoid(L, k, log10_C0, b, **measured) -> NStar:
  """The law over C; each parameter is a number, or [D] with the draws."""
  return NStar(*np.broadcast_arrays(*np.atleast_1d(L, k, log10_C0, b)),
               **measured)


def FixedBatch(B: int, L, k, M0, b, **measured) -> NStar:
  """The law over M updates at B = Bp * n; parameters as in `Sigmoid`."""
  return Sigmoid(L, k, M0, b, B=B, unit="updates", **measured)
