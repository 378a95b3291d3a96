"""Reward curves: R(C) = b + (A - b) g(C; theta), rising, per configuration.

The forms of g, and which points are fitted (IsoCompute Playbook, section 2).
"""

import dataclasses
import math

import numpy as np
from scipy import special

from isojax.errors import InputError
from isojax.frontier import varpro


def saturating_exponential(theta, x):
  """Returns 1 - exp(-k C), the form of the paper's curves; theta = log k."""
  return -np.expm1(-np.exp(theta[..., :1]) * x)


def logistic(theta, x):
  """Returns a logistic in C, rescaled to 0 at C = 0; theta = (log k, C_half).

  For C_half far below 0 it is the saturating exponential.
  """
  k, half = np.exp(theta[..., :1]), theta[..., 1:]
  with np.errstate(over="ignore"):
    return -np.expm1(-k * x) / (1 + np.exp(-k * (x - half)))


def hill(theta, x):
  """Returns 1 / (1 + (C_mid / C)^B); theta = (log C_mid, log B)."""
  mid, B = theta[..., :1], np.exp(theta[..., 1:])
  with np.errstate(divide="ignore"):
    return special.expit(B * (np.log(x) - mid))


FORMS = {"saturating_exponential": saturating_exponential,
         "logistic": logistic, "hill": hill}


def first_grid(form: str, C_max: float) -> tuple[np.ndarray, ...]:
  """Returns candidates for theta; the ends are bounds beyond any real run."""
  rate = np.log(np.geomspace(0.02, 300.0, 97) / C_max)  # straight .. a step
  if form == "saturating_exponential":
    return (rate,)
  if form == "logistic":
    return rate[::4], np.linspace(-1.0, 1.5, 26) * C_max
  return (np.log(np.geomspace(0.003, 30.0, 41) * C_max),
          np.log(np.geomspace(0.2, 8.0, 24)))


@dataclasses.dataclass(frozen=True)
class Points:
  """Which evaluations are fitted, and how they are smoothed."""

  select: str  # all, or records: only those that break the run's record
  ema: float  # weight of the past in a moving average; 0: none
  min_C: float  # smallest compute that is fitted
  bin_width: float  # reward; a record reaches a higher bin; 0: any rise

  def __post_init__(self):
    for name, holds, wanted in (
        ("select", self.select in ("all", "records"), "all or records"),
        ("ema", 0 <= self.ema < 1, "0 <= ema < 1"),
        ("min_C", 0 <= self.min_C < math.inf, "a number of at least 0"),
        ("bin_width", 0 <= self.bin_width <= 1, "a reward from 0 to 1")):
      if not holds:  # also for nan
        raise InputError(f"{name}={getattr(self, name)}: expected {wanted}")


def ema_matrix(E: int, decay: float) -> np.ndarray:
  """Returns [E, E]: s_i = decay s_(i-1) + (1 - decay) r_i, and s_0 = r_0."""
  power = decay ** (np.arange(E)[:, None] - np.arange(E))
  rows = np.tril(power * (1 - decay))
  rows[:, 0] = decay ** np.arange(E)
  return rows


def record_breaking(reward_DxE, *, bin_width: float):
  """Returns where a run, in order of C, first reaches a higher reward (bin)."""
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
  sse_D: np.ndarray
  C_lo: float  # range of the evaluations, also of those that are not fitted
  C_hi: float
  points: int  # fitted
  at_bound: tuple[str, ...]  # of the first fit

  def __call__(self, C_G) -> np.ndarray:
    """Returns the rewards, [D, G]."""
    g = FORMS[self.form](self.theta_DxP, np.asarray(C_G, float))
    return self.b_D[:, None] + self.s_D[:, None] * g


def fit(x_E, y_DxE, w_DxE, *, form: str, A_max: float, b_min: float,
        rounds: int) -> Curves:
  """Returns least-squares fits of one configuration for every draw.

  Args:
    x_E: compute of each evaluation, >= 0.
    y_DxE, w_DxE: reward and weight of each point, in each draw.
    form: key of FORMS.
    A_max: bound on the asymptote.
    b_min: bound on the reward at C = 0.
    rounds: refinements of theta, by a factor of 3.
  """
  grid = first_grid(form, float(x_E.max()))
  bounds = varpro.Bounds(floor=b_min, ceiling=A_max)
  theta, b, s, sse = varpro.fit(
      x_E, y_DxE, w_DxE, basis=FORMS[form], grid=grid, bounds=bounds,
      rounds=rounds)
  hits = [name for name, hit in (
      ("A", b[0] + s[0] >= A_max - 1e-9), ("b", b[0] <= b_min + 1e-9),
      ("flat", s[0] <= 1e-9),
      ("straight line", theta[0, 0] <= grid[0][0] + 1e-9
       and form == "saturating_exponential")) if hit]
  return Curves(form, theta, b, s, sse, float(x_E.min()), float(x_E.max()),
                int(np.sum(w_DxE[0] > 0)), tuple(hits))
