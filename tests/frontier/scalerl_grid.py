"""ScaleRL's published fit: a grid over A and C_mid with B fitted per cell.

It is independent of isojax.frontier.scalerl, whose fits it checks.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize, special

C_MID = np.linspace(100, 4000, 100)
A = np.arange(450, 801, 5) / 1000


class Cell(NamedTuple):
  A: float
  C_mid: float
  B: float
  ssr: float


def _cell(C, R, R0, A, C_mid) -> Cell:
  ssr = lambda B: float(((R0 + (A - R0) * special.expit(
      B * np.log(C / C_mid)) - R)**2).sum())
  found = optimize.minimize_scalar(ssr, bounds=(0, 20), method="bounded",
                                   options={"xatol": 1e-7})
  return Cell(float(A), float(C_mid), found.x, found.fun)


def profile(C, R, *, R0: float, A_grid=A, C_mid_grid=C_MID) -> list[Cell]:
  """The best cell for each A."""
  return [min((_cell(C, R, R0, ceiling, mid) for mid in C_mid_grid),
              key=lambda cell: cell.ssr) for ceiling in A_grid]


def linearised(R, *, A: float, B: float, C_mid: float, R0: float) -> float:
  """F(R) = C_mid^B / ((A - R0) / (R - R0) - 1); it is C^B on the law."""
  return np.exp(B * np.log(C_mid)) / ((A - R0) / (R - R0) - 1)
