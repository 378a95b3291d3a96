"""ScaleRL's law of pass rate against compute, and its fits.

R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)        (arXiv 2510.13786, eq. 1)

C is any cumulative compute: GPU-hours in the paper, rollouts elsewhere here.
R0, the pass rate before training, is given and not fitted. `A_interval` is the
uncertainty of A for one run; repeated runs differ by A_MARGIN as well. B is
comparable only at the same A (`matched`). Suffixes: E evaluations, S grid of
C_mid.
"""

import dataclasses
import itertools
import math

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats

from isojax.errors import InputError

A_MARGIN = 0.02  # the paper's, from three runs that varied by +-0.015
B_BOUNDS = (0.01, 20.0)  # far outside every published B (1.09 to 5.17)
MIN_POINTS = 4  # one more than the law has free parameters


@dataclasses.dataclass(frozen=True)
class PowerLaw:
  """R(C) = A - D / C^B, the limit of Hill for C far above C_mid."""

  A: float
  log_D: float  # D overflows where C counts FLOPs
  B: float

  @property
  def D(self) -> float:
    with np.errstate(over="ignore"):
      return float(np.exp(self.log_D))

  def __call__(self, C):
    with np.errstate(over="ignore", divide="ignore"):  # at C = 0
      return self.A - np.exp(
          self.log_D - self.B * np.log(np.asarray(C, np.float64)))


def hill(log_C, A, B, log_C_mid, R0):
  """R at log C, by the law."""
  return R0 + (A - R0) * scipy.special.expit(B * (log_C - log_C_mid))


@dataclasses.dataclass(frozen=True)
class Hill:
  """R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B); R(0) = R0."""

  A: float  # pass rate at infinite compute
  B: float  # steepness, in log C
  C_mid: float  # compute of half of the gain, R = (R0 + A) / 2
  R0: float  # pass rate at no compute

  def __post_init__(self):
    if not (0 <= self.R0 < self.A <= 1 and 0 < self.B and 0 < self.C_mid):
      raise InputError(f"{self}: expected 0 <= R0 < A <= 1, B > 0, C_mid > 0")

  def __call__(self, C):
    with np.errstate(divide="ignore"):  # log 0 is -inf, and R(0) is R0
      log_C = np.log(np.asarray(C, np.float64))
    return hill(log_C, self.A, self.B, np.log(self.C_mid), self.R0)

  def power_law(self) -> PowerLaw:
    """The limit for large C: D = (A - R0) * C_mid^B."""
    return PowerLaw(self.A, math.log(self.A - self.R0)
                    + self.B * math.log(self.C_mid), self.B)


def linearise(R, law: Hill):
  """F(R) = C_mid^B / ((A - R0) / (R - R0) - 1); it is C^B on the law.

  log F against log C is a line of slope B. NaN unless R0 < R < A.
  """
  R = np.asarray(R, np.float64)
  gained = np.where((law.R0 < R) & (R < law.A), R - law.R0, np.nan)
  with np.errstate(over="ignore"):
    return np.exp(law.B * np.log(law.C_mid)) / ((law.A - law.R0) / gained - 1)


@dataclasses.dataclass(frozen=True)
class Fit:
  """A fitted law and the points that it was fitted to."""

  law: Hill | PowerLaw
  ssr: float  # sum of squared residuals, in pass rate
  count: int  # points fitted
  C_lo: float  # they span [C_lo, C_hi]
  C_hi: float
  at_bound: tuple[str, ...]  # parameters that stopped at a bound


@dataclasses.dataclass(frozen=True)
class GridFit(Fit):
  """The best cell of a grid over A and C_mid, and the best cell for each A."""

  profile: tuple[tuple[float, float, float, float], ...]  # A, C_mid, B, ssr


def _points(C_E, R_E, *, R0, min_C):
  """(C, R, R0) to fit; R0=None is the pass rate at C = 0.

  Raises:
    InputError: too few points, or none above R0.
  """
  C, R = np.asarray(C_E, np.float64), np.asarray(R_E, np.float64)
  if R0 is None and not (C[:1] == 0).any():
    raise InputError("R0=None takes the pass rate at C = 0; no point is there, "
                     "give R0")
  R0 = float(R[0] if R0 is None else R0)
  keep = (C >= min_C) & (C > 0)  # at C = 0 the law is R0, whatever the rest is
  C, R = C[keep], R[keep]
  if len(C) < MIN_POINTS:
    raise InputError(f"{len(C)} points with C " + (
        f">= {min_C:g}" if min_C else "> 0") + ": expected at least "
                     f"{MIN_POINTS}; lower min_C or evaluate more often")
  if not 0 <= R0 < R.max():
    raise InputError(f"{R0=:g}: expected at least 0 and below the best pass "
                     f"rate, {R.max():g}")
  return C, R, R0


def _fit_B(x_SxE, y_E, amplitude):
  """B >= 0 that fits y = amplitude * expit(B * x) best, and the ssr.

  Levenberg-Marquardt from B = 1 for all S rows at once; both are [S].
  """
  def residual(B):  # and its derivative
    s = scipy.special.expit(B[:, None] * x_SxE)
    return amplitude * s - y_E, amplitude * s * (1 - s) * x_SxE

  B, damping = np.ones(len(x_SxE)), np.full(len(x_SxE), 1e-3)
  r, J = residual(B)
  ssr = (r**2).sum(axis=1)
  for _ in range(60):
    curvature = (J**2).sum(axis=1) * (1 + damping) + 1e-300  # 0 on a plateau
    new = np.clip(B - (J * r).sum(axis=1) / curvature, 0, None)
    new_r, new_J = residual(new)
    new_ssr = (new_r**2).sum(axis=1)
    better = new_ssr < ssr
    B, ssr = np.where(better, new, B), np.where(better, new_ssr, ssr)
    r, J = (np.where(better[:, None], *pair)
            for pair in ((new_r, r), (new_J, J)))
    damping = np.maximum(damping * np.where(better, 0.2, 5.0), 1e-6)
  return B, ssr


def fit_grid(C_E, R_E, *, R0, A_grid, C_mid_grid, min_C) -> GridFit:
  """The fit by the published procedure: a grid, with B fitted per cell.

  The cell (A, C_mid) with the smallest unweighted squared residuals is the
  result. Values of A_grid up to R0 are skipped. at_bound names the grids on
  whose edge the best cell lies. The paper fits A in 0.450:0.005:0.800 on C of
  at least 1,500 GPU-hours. It states 100 values of C_mid in [100, 40000], but
  prints values of [100, 4000].
  """
  C, R, R0 = _points(C_E, R_E, R0=R0, min_C=min_C)
  A_grid, C_mid_grid = np.sort(A_grid), np.sort(C_mid_grid)
  x_SxE = np.log(C) - np.log(C_mid_grid)[:, None]
  profile = []
  for A in A_grid[A_grid > R0]:
    B, ssr = _fit_B(x_SxE, R - R0, A - R0)
    i = np.argmin(ssr)
    profile.append((float(A), float(C_mid_grid[i]), float(B[i]), float(ssr[i])))
  A, C_mid, B, ssr = min(profile, key=lambda row: row[-1])
  if B < B_BOUNDS[0]:
    raise InputError(f"the pass rate does not rise with C (best {B=:g}): there "
                     "is no such law to fit")
  edges = (("A", A, A_grid), ("C_mid", C_mid, C_mid_grid))
  edge = tuple(name for name, v, grid in edges if v in (grid[0], grid[-1]))
  return GridFit(Hill(A, B, C_mid, R0), ssr, len(C), float(C[0]), float(C[-1]),
                 edge, tuple(profile))


def _least_squares(predict, C, R, *, names, bounds, starts):
  """The best of several bounded fits, and the last fields of Fit.

  A parameter of theta with equal bounds is fixed.
  """
  lower, upper = np.array(bounds, np.float64).T
  free = lower < upper
  theta, best = lower.copy(), None

  def residual(part):
    theta[free] = part
    return predict(theta) - R

  for start in itertools.product(*starts):
    x0 = np.clip(start, lower, upper)[free]
    done = scipy.optimize.least_squares(
        residual, x0, bounds=(lower[free], upper[free]), x_scale="jac",
        ftol=1e-12, xtol=1e-12, gtol=1e-12)
    if best is None or done.cost < best.cost:
      best = done
  theta[free] = best.x
  near = 1e-4 * (upper - lower)
  hit = free & ((theta - lower < near) | (upper - theta < near))
  at_bound = tuple(name for name, h in zip(names, hit, strict=True) if h)
  return theta.tolist(), (float(2 * best.cost), len(C), float(C[0]),
                          float(C[-1]), at_bound)


def fit(C_E, R_E, *, R0, min_C, A_bounds) -> Fit:
  """The bounded least-squares fit of A, B, C_mid, from several starts.

  Args:
    A_bounds: (0, 1) for a free A; two equal values fix A, to compare B.
  """
  C, R, R0 = _points(C_E, R_E, R0=R0, min_C=min_C)
  low, high = max(A_bounds[0], R0), min(A_bounds[1], 1.0)
  if not R0 < high or high < low:
    raise InputError(f"{A_bounds=}: expected low <= high <= 1 above {R0=:g}")
  low = max(low, R0 + 1e-6 * (high - R0))  # A = R0 leaves the rest undetermined
  log_C = np.log(C)
  reach = math.log(1e3)  # C_mid may lie this far outside the points
  (A, B, log_C_mid), rest = _least_squares(
      lambda t: hill(log_C, *t, R0), C, R, names=("A", "B", "C_mid"),
      bounds=((low, high), B_BOUNDS, (log_C[0] - reach, log_C[-1] + reach)),
      starts=((R.max(), (R.max() + high) / 2), (1.0, 3.0),
              np.quantile(log_C, (0.1, 0.5, 0.9))))
  return Fit(Hill(A, B, math.exp(log_C_mid), R0), *rest)


def A_interval(C_E, R_E, found: Fit, *, R0, min_C,
               measured: bool) -> tuple[float, float]:
  """The 95 % profile-likelihood interval of A, for equal normal noise.

  It contains every A whose squared residuals, with B, C_mid and R0 refitted,
  do not exceed the minimum by more than an F test allows. R0 is refitted
  because it is an evaluation with noise, like the others. The interval holds
  for this run on these problems; see A_MARGIN for other runs.

  Args:
    found: the result of `fit` on the same points with A in (0, 1).
    measured: whether R0 is an evaluation at C = 0. Otherwise it may be anything
      from 0 to the first reward.
  """
  C, R, R0 = _points(C_E, R_E, R0=R0, min_C=min_C)
  log_C = np.log(C)
  # Points and R0, less A, B, C_mid and R0.
  freedom = len(C) + measured - 4
  if freedom < 1:
    return 0.0, 1.0
  reach = math.log(1e3)
  lower = np.array([B_BOUNDS[0], log_C[0] - reach, 0.0])
  upper = np.array([B_BOUNDS[1], log_C[-1] + reach,
                    1.0 if measured else max(R[0], 1e-6)])  # above `lower`

  def best(A, start):
    """The smallest ssr at A and its (B, log C_mid, R0)."""
    high = np.minimum(upper, [np.inf, np.inf, A])
    done = scipy.optimize.least_squares(
        lambda t: np.append(hill(log_C, A, *t) - R, measured * (t[2] - R0)),
        np.clip(start, lower, high), bounds=(lower, high), x_scale="jac")
    return 2 * done.cost, done.x

  A = found.law.A
  start = np.array([found.law.B, math.log(found.law.C_mid), found.law.R0])
  least = (*best(A, start), A)  # the smallest ssr, its parameters and A
  allowed = 1 + scipy.stats.f.ppf(0.95, 1, freedom) / freedom

  def end(bound):
    """The end of the interval between the estimate and the bound.

    The search doubles its step and starts each minimisation at the previous
    solution: the one at the estimate does not lead to the minimum at a far A.
    """
    nonlocal least
    _, at, begin = least
    inside = begin
    for share in 0.5 ** np.arange(10, -1, -1):
      outside = begin + (bound - begin) * share
      error, near = best(outside, at)
      if error < least[0]:
        least = error, near, outside
      if error > allowed * least[0] + 1e-12:
        most = allowed * least[0] + 1e-12
        return scipy.optimize.brentq(
            lambda a, at=at, most=most: best(a, at)[0] - most, inside, outside,
            xtol=1e-5)
      inside, at = outside, near
    return bound

  low, high = end(min(1e-3, A)), end(1.0)
  return float(min(low, A)), float(max(high, A))


def fit_power_law(C_E, R_E, *, min_C) -> Fit:
  """The least-squares fit of A - D / C^B, A <= 1, for comparison.

  It overestimates A: the law has no midpoint, so it fits the lower half of a
  rise as a slow approach to A.
  """
  C, R, _ = _points(C_E, R_E, R0=0.0, min_C=min_C)
  log_C = np.log(C) - np.log(C[0])  # D is then the gap at the first point
  (A, log_gap, B), rest = _least_squares(
      lambda t: t[0] - np.exp(t[1] - t[2] * log_C), C, R, names=("A", "D", "B"),
      bounds=((0.0, 1.0), (np.log(1e-6), np.log(10.0)), B_BOUNDS),
      starts=((R.max(), 1.0), (np.log(R.max() - R.min() + 1e-3),), (0.3, 2.0)))
  return Fit(PowerLaw(A, log_gap + B * math.log(C[0]), B), *rest)


def error_margin(fits: list[Fit]) -> dict:
  """The mean A of two or more runs of one setting, and half of its range."""
  A = [f.law.A for f in fits]
  return {"A": float(np.mean(A)), "plus_minus": (max(A) - min(A)) / 2,
          "count": len(A)}


@dataclasses.dataclass(frozen=True)
class Matched:
  """Runs compared at the same A, as in the paper's leave-one-out table."""

  A: float  # mean of the free fits
  spread: float  # largest minus smallest A of the free fits
  comparable: bool  # B may be compared: no A at a bound, all within A_MARGIN
  free: dict[str, Fit]
  fixed: dict[str, Fit]  # refitted at the mean A


def matched(runs, *, min_C) -> Matched:
  """Every run refitted at the average A; B is comparable if A agrees.

  Args:
    runs: name -> (C_E, R_E, R0).
  """
  if len(runs) < 2:
    raise InputError(f"{len(runs)} runs: expected two or more to compare")
  refit = lambda bounds: {
      name: fit(C_E, R_E, R0=R0, min_C=min_C, A_bounds=bounds)
      for name, (C_E, R_E, R0) in runs.items()}
  free = refit((0.0, 1.0))
  A_R = [f.law.A for f in free.values()]
  A, spread = float(np.mean(A_R)), max(A_R) - min(A_R)
  # Two A at the bound 1 would agree without being known.
  held = all("A" not in f.at_bound for f in free.values())
  return Matched(A, spread, held and spread <= A_MARGIN, free, refit((A, A)))


@dataclasses.dataclass(frozen=True)
class Forecast:
  """A fit to the start of a run, compared with the rest of it."""

  fit: Fit
  mean_error: float  # law minus measured: above 0 if the law is too high
  max_error: float  # absolute
  within_margin: bool  # max_error <= A_MARGIN


def extrapolate(C_E, R_E, *, R0, min_C, fit_below) -> Forecast:
  """A fit of min_C <= C <= fit_below and its errors on later points."""
  C, R, R0 = _points(C_E, R_E, R0=R0, min_C=min_C)
  seen = C > fit_below
  if not seen.any():
    raise InputError(f"{fit_below=:g}: no point lies beyond; the last is at "
                     f"C = {C[-1]:g}")
  start = fit(C[~seen], R[~seen], R0=R0, min_C=min_C, A_bounds=(0.0, 1.0))
  error = start.law(C[seen]) - R[seen]
  worst = float(abs(error).max())
  return Forecast(fit=start, mean_error=float(error.mean()), max_error=worst,
                  within_margin=worst <= A_MARGIN)
