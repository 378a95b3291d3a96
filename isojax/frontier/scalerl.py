"""ScaleRL's law of pass rate against compute, and its fits.

R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)        (arXiv 2510.13786, eq. 1)

C is any cumulative compute. `fit` takes R0, the pass rate before training, as
given. `A_interval` is the uncertainty of A for one run; repeated runs differ by
A_MARGIN as well. B is comparable only between runs of the same A.
"""

import dataclasses
import math

import numpy as np
import scipy.special
import scipy.stats

from isojax.core.format import compact, rate
from isojax.errors import InputError
from isojax.frontier import curves

A_MARGIN = 0.02  # pass rate; the paper's, as three runs varied by +-0.015
B_BOUNDS = (0.01, 20.0)  # far outside every published B (1.09 to 5.17)
C_MID_MARGIN = 1e3  # largest factor between C_mid and the data; a wide bound
MAX_EXTRAPOLATION = 10.0  # largest C_mid / C_hi of a law that is reported
MIN_POINTS = 4  # one more than the law has free parameters
# For `curves.project`; many, because C_mid and B can compensate each other.
ROUNDS = dict(rounds=30, shrink=1.5)


@dataclasses.dataclass(frozen=True)
class Hill:
  """R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B); R(0) = R0."""

  A: float  # pass rate at infinite compute
  B: float  # steepness, in log C
  C_mid: float  # compute at which R = (R0 + A) / 2
  R0: float  # pass rate at no compute

  def __call__(self, C):
    with np.errstate(divide="ignore"):  # log 0 is -inf, and R(0) is R0
      log_C = np.log(np.asarray(C, np.float64))
    return self.R0 + (self.A - self.R0) * scipy.special.expit(
        self.B * (log_C - math.log(self.C_mid)))


@dataclasses.dataclass(frozen=True)
class Points:
  """The evaluations of one run, to fit."""

  C_E: np.ndarray
  R_E: np.ndarray  # pass rates
  R0: float  # pass rate before training
  min_C: float = 0.0  # smallest compute that is fitted
  # Whether R0 is an evaluation at C = 0. Otherwise it may be anything from 0 to
  # the first reward.
  measured: bool = True

  def fitted(self) -> tuple[np.ndarray, np.ndarray, float]:
    """(C, R, R0) to fit; InputError for too few points, or none above R0."""
    C, R = (np.asarray(v, np.float64) for v in (self.C_E, self.R_E))
    R0 = float(self.R0)
    keep = (C >= self.min_C) & (C > 0)  # at C = 0 the law is R0 for any A, B
    C, R = C[keep], R[keep]
    if len(C) < MIN_POINTS:
      least, remedy = "> 0", "evaluate more often"
      if self.min_C:
        least, remedy = f">= {self.min_C:g}", f"lower min_C or {remedy}"
      raise InputError(f"{len(C)} points with C {least}: expected at least "
                       f"{MIN_POINTS}; {remedy}")
    if not 0 <= R0 < R.max():
      raise InputError(f"{R0=:g}: expected at least 0 and below the best pass "
                       f"rate, {R.max():g}")
    return C, R, R0


@dataclasses.dataclass(frozen=True)
class HillFit:
  """A fitted law and the points that it was fitted to."""

  law: Hill
  ssr: float  # sum of squared residuals, in pass rate
  count: int  # points fitted
  C_lo: float  # they span [C_lo, C_hi]
  C_hi: float
  at_bound: tuple[str, ...]  # parameters that stopped at a bound


def _grid(C) -> tuple[np.ndarray, np.ndarray]:
  """Candidates for log C_mid and for log B; their ends are the bounds."""
  return (np.linspace(np.log(C[0] / C_MID_MARGIN),
                      np.log(C[-1] * C_MID_MARGIN), 49),
          np.linspace(*np.log(B_BOUNDS), 33))


def fit(points: Points, *, A: float | None = None) -> HillFit:
  """The least-squares fit of A, B and C_mid; A is fixed if it is given."""
  C, R, R0 = points.fitted()
  if A is not None and not R0 < A <= 1:
    raise InputError(f"{A=:g}: expected above {R0=:g}, at most 1")
  # Bounds of the gain A - R0; a gain of 0 would leave B and C_mid undetermined.
  least, most = (1e-6 * (1 - R0), 1 - R0) if A is None else (A - R0, A - R0)

  def solve(sums):  # for project, as curves.solve
    _, g, gg, _, gy, _ = sums
    gain = np.clip(curves.ratio(gy - R0 * g, gg), least, most)
    return np.full_like(gain, R0), gain, curves.residual(sums, R0, gain)

  grid = _grid(C)
  theta, _, gain, ssr = curves.project(
      C, R[None], np.ones((1, len(R))), basis=curves.hill, grid=grid,
      solve=solve, **ROUNDS)
  near_end = lambda value, low, high: (
      min(value - low, high - value) < 1e-4 * (high - low))
  hits = {"A": A is None and near_end(gain[0], 0, 1 - R0),
          "B": near_end(math.exp(theta[0, 1]), *B_BOUNDS),
          "C_mid": near_end(theta[0, 0], *grid[0][[0, -1]])}
  law = Hill(float(min(R0 + gain[0], 1.0)) if A is None else A,
             math.exp(theta[0, 1]), math.exp(theta[0, 0]), R0)
  return HillFit(law, float(ssr[0]), len(C), float(C[0]), float(C[-1]),
                 tuple(name for name, hit in hits.items() if hit))


def empty(fit: HillFit) -> str | None:
  """Why a fitted law says nothing about its run, or None."""
  law, scatter = fit.law, math.sqrt(fit.ssr / fit.count)
  if law.A - law.R0 < 2 * scatter:
    return (f"its rise, from {rate(law.R0)} to {rate(law.A)}, is less than two "
            "standard deviations of an evaluation")
  if law.C_mid > MAX_EXTRAPOLATION * fit.C_hi:
    return (f"half of its rise would be at {compact(law.C_mid)}, far beyond "
            f"the data, which end at {compact(fit.C_hi)}")
  return None


def A_interval(points: Points, A: float) -> tuple[float, float]:
  """The 95 % profile-likelihood interval of the fitted A, for normal noise.

  It contains every A whose squared residuals, with B, C_mid and R0 refitted,
  do not exceed the minimum by more than an F test allows. R0 is refitted
  because it is an evaluation with noise, like the others.
  """
  C, R, R0 = points.fitted()
  # Points and R0, less A, B, C_mid and R0.
  freedom = len(C) + points.measured - 4
  if freedom < 1:
    return 0.0, 1.0
  x, y = np.append(C, 0.0), np.append(R, R0)
  weight = np.append(np.ones(len(C)), float(points.measured))
  R0_max = 1.0 if points.measured else R[0]  # see Points.measured

  def profile(A_D):
    """The least squared residuals for each A, a draw of `curves.project`."""
    A_Dx1 = A_D[:, None]

    def solve(sums):
      w, g, gg, y, gy, _ = sums
      base = np.clip(curves.ratio(y - gy - A_Dx1 * (g - gg), w - 2 * g + gg),
                     0, np.minimum(R0_max, A_Dx1))  # the refitted R0
      return base, A_Dx1 - base, curves.residual(sums, base, A_Dx1 - base)

    ones_Dx1 = np.ones((len(A_D), 1))
    return curves.project(x, ones_Dx1 * y, ones_Dx1 * weight, basis=curves.hill,
                          grid=_grid(C), solve=solve, **ROUNDS)[-1]

  A_D = np.union1d(np.linspace(min(1e-3, A), 1.0, 101), A)
  ssr_D = profile(A_D)
  best = int(ssr_D.argmin())
  limit = ssr_D[best] * (
      1 + scipy.stats.f.ppf(0.95, 1, freedom) / freedom) + 1e-12  # exact fits

  def end(A_D, ssr_D):
    """The first A beyond the limit, or the last; A_D begins at the best."""
    for _ in range(3):  # each time between two neighbours of the last grid
      beyond = np.flatnonzero(ssr_D > limit)
      if not len(beyond):
        break
      A_D = np.linspace(A_D[beyond[0] - 1], A_D[beyond[0]], 15)
      ssr_D = profile(A_D)
    return float(A_D[-1])

  low = end(A_D[best::-1], ssr_D[best::-1])
  return min(low, A), max(end(A_D[best:], ssr_D[best:]), A)


def extrapolate(points: Points, *, fit_below: float
                ) -> tuple[HillFit, np.ndarray]:
  """A fit of min_C <= C <= fit_below, and its errors (law minus R) beyond."""
  C, R, R0 = points.fitted()
  later = C > fit_below
  if not later.any():
    raise InputError(f"{fit_below=:g}: no point lies beyond; expected less "
                     f"than the last C, {C[-1]:g}")
  early = fit(Points(C[~later], R[~later], R0))
  return early, early.law(C[later]) - R[later]
