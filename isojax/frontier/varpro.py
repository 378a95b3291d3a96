"""Least squares of y = b + s g(x; theta) by variable projection.

Saturating exponential, logistic, Hill and the law n*(C) have this form: given
theta (one or two numbers), they are linear in b and s. A fit solves for b and s
exactly on a grid of theta, then on finer grids around the best theta. It needs
no start values and no local solver, and fits thousands of bootstrap draws with
a few matrix products.
"""

import dataclasses
import itertools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Bounds on b and b + s; s >= 0 always, so every curve rises."""

  floor: float  # b >= floor
  ceiling: float  # b + s <= ceiling


def _solve(sums, bounds: Bounds):
  """Returns the best (b, s) and its error from the weighted sums, any shape.

  It is the minimum of a convex quadratic over a triangle: inside or on an edge.
  """
  w, g, gg, y, gy, yy = sums
  lo, hi = bounds.floor, bounds.ceiling
  error = lambda b, s: yy - 2 * (b * y + s * gy) + (
      b * b * w + 2 * b * s * g + s * s * gg)
  ratio = lambda a, b: np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape),
                                 where=np.abs(b) > 1e-12 * np.abs(w))
  s = ratio(w * gy - g * y, w * gg - g * g)
  b = (y - s * g) / w
  inside = (s > 0) & (b >= lo) & (b + s <= hi)
  flat = np.clip(y / w, lo, hi)
  rise = np.clip(ratio(gy - lo * g, gg), 0, hi - lo)
  fall = np.clip(ratio(hi * (w - g) - y + gy, w - 2 * g + gg), 0, hi - lo)
  edges = ((flat, np.zeros_like(flat)), (np.full_like(rise, lo), rise),
           (hi - fall, fall))
  best = error(*edges[0])
  b_edge, s_edge = edges[0]
  for b_other, s_other in edges[1:]:
    other = error(b_other, s_other)
    better = other < best
    best = np.where(better, other, best)
    b_edge = np.where(better, b_other, b_edge)
    s_edge = np.where(better, s_other, s_edge)
  return (np.where(inside, b, b_edge), np.where(inside, s, s_edge),
          np.where(inside, error(b, s), best))


def fit(x_E, y_DxE, w_DxE, *, basis, grid, bounds: Bounds, rounds: int):
  """Returns the fits of D draws.

  Args:
    x_E: abscissae.
    y_DxE: ordinates of each draw.
    w_DxE: weights, 0 for points that a draw does not use.
    basis: (theta [..., P], x_E) -> g [..., E], rising from 0 to 1.
    grid: P increasing arrays, the first candidates for theta; their ends are
      the bounds of theta.
    rounds: refinements, each by a factor of 3.

  Returns:
    theta [D, P], b [D], s [D], sum of squared errors [D].
  """
  axes = [np.asarray(a, float) for a in grid]
  low = np.array([a[0] for a in axes])
  high = np.array([a[-1] for a in axes])
  step = np.array([a[1] - a[0] for a in axes])
  theta_JxP = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(
      -1, len(axes))
  g_JxE = basis(theta_JxP, x_E)
  wy = w_DxE * y_DxE
  total = w_DxE.sum(1, keepdims=True), wy.sum(1, keepdims=True), (
      wy * y_DxE).sum(1, keepdims=True)

  def solve(g, gg, gy):
    w, y, yy = total
    return _solve((w, g, gg, y, gy, yy), bounds)

  b, s, error = solve(w_DxE @ g_JxE.T, w_DxE @ (g_JxE * g_JxE).T, wy @ g_JxE.T)
  pick = lambda values, at: np.take_along_axis(values, at[:, None], 1)[:, 0]
  at = error.argmin(1)
  theta, b, s, error = theta_JxP[at], *(pick(v, at) for v in (b, s, error))
  offsets = np.array(list(itertools.product((-2, -1, 0, 1, 2),
                                            repeat=len(axes)))) / 3
  for _ in range(rounds):
    near = np.clip(theta[:, None] + offsets * step, low, high)  # [D, J, P]
    g = basis(near, x_E)  # [D, J, E]
    b, s, error = solve(
        np.einsum("dje,de->dj", g, w_DxE),
        np.einsum("dje,dje,de->dj", g, g, w_DxE, optimize=True),
        np.einsum("dje,de->dj", g, wy))
    at = error.argmin(1)
    theta = np.take_along_axis(near, at[:, None, None], 1)[:, 0]
    b, s, error = (pick(v, at) for v in (b, s, error))
    step = step / 3
  return theta, b, s, np.maximum(error, 0.0)
