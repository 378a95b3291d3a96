"""Reward curves of a configuration: R(C) = b + s g(C; theta), with s = A - b.

b is the reward at C = 0, A the asymptote. Least squares by variable projection:
b and s are exact for each theta of a grid, and the grid is refined around the
best theta. No start values are needed, and a few matrix products fit thousands
of bootstrap draws. The law n*(C) and ScaleRL's law have this form, too.
"""

import dataclasses
import itertools

import numpy as np
from scipy import special


def saturating_exponential(theta, x):
  """1 - exp(-k C), the form of the IsoCompute Playbook; theta = log k."""
  return -np.expm1(-np.exp(theta[..., :1]) * x)


def logistic(theta, x):
  """A logistic in C, rescaled to 0 at C = 0; theta = (log k, C_half).

  For C_half far below 0 it is the saturating exponential.
  """
  k, half = np.exp(theta[..., :1]), theta[..., 1:]
  with np.errstate(over="ignore"):
    return -np.expm1(-k * x) / (1 + np.exp(-k * (x - half)))


def hill(theta, x):
  """1 / (1 + (C_mid / C)^B), ScaleRL's form; theta = (log C_mid, log B)."""
  mid, B = theta[..., :1], np.exp(theta[..., 1:])
  with np.errstate(divide="ignore"):  # at C = 0
    return special.expit(B * (np.log(x) - mid))


FORMS = {"saturating_exponential": saturating_exponential,
         "logistic": logistic, "hill": hill}


def first_grid(form: str, C_max: float) -> tuple[np.ndarray, ...]:
  """Candidates for theta; the ends are bounds beyond any real run."""
  # k C_max from 0.02, a straight line, to 300, a step.
  log_k = np.log(np.geomspace(0.02, 300.0, 97) / C_max)
  if form == "saturating_exponential":
    return (log_k,)
  if form == "logistic":
    return log_k[::4], np.linspace(-1.0, 1.5, 26) * C_max
  return (np.log(np.geomspace(0.003, 30.0, 41) * C_max),
          np.log(np.geomspace(0.2, 8.0, 24)))


@dataclasses.dataclass(frozen=True)
class PointRule:
  """Which evaluations are fitted (IsoCompute Playbook, section 2)."""

  select: str  # all, or records: only those that break the run's record
  ema: float  # weight of the past in a moving average; 0: none
  min_C: float  # smallest compute that is fitted
  bin_width: float  # reward; a record reaches a higher bin; 0: any rise


def ema_matrix(E: int, decay: float) -> np.ndarray:
  """The matrix of s_0 = r_0, s_i = decay s_(i-1) + (1 - decay) r_i, [E, E]."""
  power = decay ** (np.arange(E)[:, None] - np.arange(E))
  rows = np.tril(power * (1 - decay))
  rows[:, 0] = decay ** np.arange(E)
  return rows


def record_breaking(reward_DxE, *, bin_width: float):
  """Whether each reward, in order of C, is in a bin above all earlier ones."""
  height = np.asarray(reward_DxE, float)
  if bin_width:
    height = np.floor(height / bin_width + 1e-9)
  past = np.maximum.accumulate(height, axis=-1)
  first = np.ones(height.shape[:-1] + (1,), bool)
  return np.concatenate([first, height[..., 1:] > past[..., :-1]], -1)


@dataclasses.dataclass(frozen=True)
class Curves:
  """D fits of one configuration; the first is the fit of the data itself."""

  form: str
  theta_DxP: np.ndarray
  b_D: np.ndarray
  s_D: np.ndarray  # A - b
  sse_D: np.ndarray  # weighted squared errors
  C_lo: float  # range of the evaluations, also of those with weight 0
  C_hi: float
  points: int  # how many are fitted
  at_bound: tuple[str, ...]  # bounds that the first fit is at

  def __call__(self, C_G) -> np.ndarray:
    """The rewards, [D, G]."""
    g = FORMS[self.form](self.theta_DxP, np.asarray(C_G, float))
    return self.b_D[:, None] + self.s_D[:, None] * g


def fit(x_E, y_DxE, w_DxE, *, form: str, A_max: float, b_min: float,
        rounds: int) -> Curves:
  """Least-squares fits of one configuration for every draw.

  Args:
    x_E: compute of each evaluation, >= 0.
    y_DxE, w_DxE: reward and weight of each point, in each draw.
    form: key of FORMS.
    A_max, b_min: bounds on the asymptote and on the reward at C = 0.
    rounds: refinements of theta, by a factor of 3.
  """
  grid = first_grid(form, float(x_E.max()))
  theta, b, s, sse = project(x_E, y_DxE, w_DxE, basis=FORMS[form], grid=grid,
                             solve=lambda sums: solve(sums, b_min, A_max),
                             rounds=rounds)
  hits = {"A": b[0] + s[0] >= A_max - 1e-9, "b": b[0] <= b_min + 1e-9,
          "flat": s[0] <= 1e-9,
          "straight line": theta[0, 0] <= grid[0][0] + 1e-9
          and form == "saturating_exponential"}
  return Curves(form, theta, b, s, sse, float(x_E.min()), float(x_E.max()),
                int(np.sum(w_DxE[0] > 0)),
                tuple(name for name, hit in hits.items() if hit))


def ratio(a, b, least=1e-300):
  """a / b, or 0 where abs(b) <= least."""
  return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape),
                   where=np.abs(b) > least)


def residual(sums, b, s):
  """The weighted squared residuals of y = b + s g; for `sums` see `solve`."""
  w, g, gg, y, gy, yy = sums
  return yy - 2 * (b * y + s * gy) + (b * b * w + 2 * b * s * g + s * s * gg)


def solve(sums, lo: float, hi: float):
  """The best b and s with lo <= b, s >= 0 and b + s <= hi, and their residuals.

  They minimise a convex quadratic over a triangle: inside or on an edge. `sums`
  are the weighted sums of 1, g, g^2, y, g y and y^2, any shape.
  """
  w, g, gg, y, gy, _ = sums
  least = 1e-12 * np.abs(w)  # smaller denominators are rounding errors
  s = ratio(w * gy - g * y, w * gg - g * g, least)
  b = (y - s * g) / w
  inside = (s > 0) & (b >= lo) & (b + s <= hi)
  # The minima on the edges s = 0, b = lo and b + s = hi.
  b_flat = np.clip(y / w, lo, hi)
  s_lo = np.clip(ratio(gy - lo * g, gg, least), 0, hi - lo)
  s_hi = np.clip(ratio(hi * (w - g) - y + gy, w - 2 * g + gg, least), 0,
                 hi - lo)
  candidates = ((b_flat, 0.0), (lo, s_lo), (hi - s_hi, s_hi), (b, s))
  errors = np.stack([residual(sums, *candidate) for candidate in candidates])
  best = np.where(inside, 3, errors[:3].argmin(0))
  return tuple(np.choose(best, values)  # b, s and the error of the best
               for values in (*zip(*candidates), errors))


def project(x_E, y_DxE, w_DxE, *, basis, grid, solve, rounds: int,
            shrink: float = 3.0):
  """Fits of y = b + s g(x; theta) for D draws: theta [D, P], b, s, errors [D].

  Args:
    x_E, y_DxE, w_DxE: the points; weight 0: a draw does not use it.
    basis: gives g [..., E], rising from 0 to 1, for theta [..., P] and x_E.
    grid: P increasing arrays, the first candidates for theta; their ends are
      the bounds of theta.
    solve: gives b, s and the residuals for the sums of `solve` above.
    rounds: refinements of the grid around the best theta.
    shrink: factor by which a refinement divides the spacing of the grid.
  """
  axes = [np.asarray(axis, float) for axis in grid]
  low = np.array([axis[0] for axis in axes])
  high = np.array([axis[-1] for axis in axes])
  step = np.array([axis[1] - axis[0] for axis in axes])
  theta_JxP = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(
      -1, len(axes))
  g_JxE = basis(theta_JxP, x_E)
  wy = w_DxE * y_DxE
  w, y, yy = (x.sum(1, keepdims=True) for x in (w_DxE, wy, wy * y_DxE))
  fits = solve((w, w_DxE @ g_JxE.T, w_DxE @ (g_JxE * g_JxE).T, y, wy @ g_JxE.T,
                yy))
  pick = lambda values, j: np.take_along_axis(values, j[:, None], 1)[:, 0]
  best_D = fits[-1].argmin(1)
  theta, b, s, error = theta_JxP[best_D], *(pick(v, best_D) for v in fits)
  # Along each axis 5 candidates, step / 3 apart.
  offsets = np.array(list(itertools.product((-2, -1, 0, 1, 2),
                                            repeat=len(axes)))) / 3
  for _ in range(rounds):
    near = np.clip(theta[:, None] + offsets * step, low, high)  # [D, J, P]
    g = basis(near, x_E)  # [D, J, E]
    fits = solve((
        w, np.einsum("dje,de->dj", g, w_DxE),
        np.einsum("dje,dje,de->dj", g, g, w_DxE, optimize=True), y,
        np.einsum("dje,de->dj", g, wy), yy))
    best_D = fits[-1].argmin(1)
    theta = np.take_along_axis(near, best_D[:, None, None], 1)[:, 0]
    b, s, error = (pick(v, best_D) for v in fits)
    step = step / shrink
  return theta, b, s, np.maximum(error, 0.0)
