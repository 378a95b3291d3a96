"""The best configuration at each C, and the fit of the law n*(C) to it.

IsoCompute Playbook, sections 2.3 and 3.
"""

import dataclasses

import numpy as np
from scipy import optimize

from isojax.core import laws
from isojax.frontier import curves
from isojax.frontier.curves import Curves

# Bound on k, per decade of C; the paper's joint fit of its Hard set is at it.
MAX_LAW_K = 50.0


@dataclasses.dataclass(frozen=True)
class Envelope:
  """D frontiers over K configurations on a grid of G compute values."""

  C_G: np.ndarray
  reward_DxG: np.ndarray
  best_DxG: np.ndarray  # index of the configuration
  resolved_DxG: np.ndarray  # bool: no curve outside its data could change it
  early_DxG: np.ndarray  # bool: a curve that begins at a larger C could lead


def envelope(curves_K: list[Curves], C_G) -> Envelope:
  """The upper envelope of the curves, each clipped to its own data.

  A configuration whose data end before C keeps its last reward; one without an
  evaluation up to C cannot lead there. A point is not resolved, and its best n
  must not be used, if one of these would lead with its curve continued to C.
  """
  C_G = np.asarray(C_G, float)
  continued = np.stack([c(C_G) for c in curves_K], 1)  # [D, K, G]
  clipped = np.stack([c(np.minimum(C_G, c.C_hi)) for c in curves_K], 1)
  started = np.array([c.C_lo for c in curves_K])[:, None] <= C_G
  ended = np.array([c.C_hi for c in curves_K])[:, None] * laws.C_TOLERANCE < C_G
  seen = np.where(started, clipped, -np.inf)
  best = seen.argmax(1)
  rival = np.where(ended | ~started, continued, clipped).argmax(1)
  flag_of = lambda flag_KxG, index_DxG: np.take_along_axis(
      flag_KxG, index_DxG, axis=0)
  resolved = (rival == best) & ~flag_of(ended, best) & started.any(0)
  return Envelope(C_G, seen.max(1), best, resolved, flag_of(~started, rival))


def crossing(one: Curves, other: Curves, C_lo: float, C_hi: float) -> float:
  """C in [C_lo, C_hi] at which `other` takes the lead from `one`."""
  gain = lambda C: float((other(np.minimum([C], other.C_hi))
                          - one(np.minimum([C], one.C_hi)))[0, 0])
  if other.C_lo > C_lo or gain(C_lo) >= 0:  # it leads from its start or C_lo on
    return max(C_lo, other.C_lo)
  return C_hi if gain(C_hi) <= 0 else float(optimize.brentq(gain, C_lo, C_hi))


def fit_law(x_G, log2_n_DxG, w_DxG, *, low: float, high: float,
            k: tuple[float, float], rounds: int, B: int | None = None
            ) -> laws.NStar:
  """The law by least squares, of the data (draw 0) and of every draw.

  Args:
    x_G: log10 C, or M for a fixed batch.
    log2_n_DxG: log2 of the best n.
    w_DxG: 1, or 0 where the best n is not resolved.
    low: bound on the floor b; `analysis` passes log2 of half the smallest n.
    high: bound on the ceiling b + L; `analysis` passes log2 of the largest n.
    k: bounds on the steepness, per unit of x; 0.5 and MAX_LAW_K over log10 C.
    rounds: refinements of (x0, k), by a factor of 3.
    B: of a fixed batch, Bp * n.
  """
  grid = (np.linspace(x_G[0], x_G[-1], 49),  # candidates for x0
          np.linspace(np.log(k[0]), np.log(k[1]), 25))  # and for log k
  theta, b, L, sse = curves.project(
      x_G, log2_n_DxG, w_DxG, grid=grid, rounds=rounds,
      basis=lambda theta, x: laws.log2_n(
          x, L=1.0, k=np.exp(theta[..., 1:]), x0=theta[..., :1], b=0.0),
      solve=lambda sums: curves.solve(sums, low, high))
  near = lambda value, *bounds: any(
      abs(value - bound) < 1e-6 for bound in bounds)
  hits = {"floor": near(b[0], low), "ceiling": near(b[0] + L[0], high),
          "midpoint": near(theta[0, 0], *grid[0][[0, -1]]),
          "k": near(theta[0, 1], *grid[1][[0, -1]])}
  return laws.NStar(
      L, np.exp(theta[:, 1]), theta[:, 0], b, B,
      rmse_D=np.sqrt(sse / w_DxG.sum(1)), k_bounds=k,
      at_bound=tuple(name for name, hit in hits.items() if hit))
