"""Bootstrap samples of problems and seeds, the first of which is the data."""

import numpy as np


def problems(Q: int, *, draws: int, seed: int) -> np.ndarray:
  """Returns weights of the problems, [1 + draws, Q]; equal ones first."""
  drawn = np.random.default_rng(seed).multinomial(
      Q, np.full(Q, 1 / Q), size=draws)
  return np.concatenate([np.full((1, Q), 1 / Q), drawn / Q])


def seeds(S: int, *, draws: int, seed: int, index: int) -> np.ndarray:
  """Returns weights of the runs of an n, [1 + draws, S]; equal ones first.

  S - 1 of S seeds are drawn, as in frontier.bootstrap.

  Args:
    S: runs.
    draws: bootstrap samples.
    seed: of all groups of runs.
    index: of this group, whose seeds are drawn independently of the others.
  """
  taken = max(S - 1, 1)
  drawn = np.random.default_rng([seed, index]).multinomial(
      taken, np.full(S, 1 / S), size=draws)
  return np.concatenate([np.full((1, S), 1 / S), drawn / taken])


def means(value_SxQ, *, draws: int, seed: int, index: int) -> np.ndarray:
  """Returns means over seeds and problems: of the data, then of the draws.

  Args:
    value_SxQ: of each run and problem.
    draws, seed, index: as of `seeds`; calls with the same seed have the same
      problems.
  """
  value_SxQ = np.asarray(value_SxQ, float)
  S, Q = value_SxQ.shape
  problems_DxQ = problems(Q, draws=draws, seed=seed)
  seeds_DxS = seeds(S, draws=draws, seed=seed, index=index)
  return ((problems_DxQ @ value_SxQ.T) * seeds_DxS).sum(1)
