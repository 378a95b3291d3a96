"""The speed-up of one recipe over another, as PODS defines it.

The threshold T is 0.99 times the highest mean reward of the baseline after the
start. The time of a recipe is the first evaluation after the start at which its
mean reward is at least T. The speed-up is the baseline's time over the other's
(PODS, arXiv 2504.13818, scripts of its repository). "Time" stands for any
compute axis. Intervals come from a bootstrap over runs.
"""

import dataclasses

import numpy as np

from isojax.errors import InputError
from isojax.frontier import bootstrap
from isojax.frontier.study import Run

SHARE = 0.99  # of the baseline's highest mean: PODS's
QUANTILES = (0.025, 0.5, 0.975)
# How the runs of an arm share their points.
POINTS = {
    "axis": "all runs are evaluated at the same compute",
    "steps": "means of runs at the same step, in reward and in compute",
    "interpolated": "runs are evaluated at different steps: each run is "
                    "interpolated linearly at the evaluations of all"}


@dataclasses.dataclass(frozen=True)
class Arm:
  """S runs of one recipe at E common points."""

  name: str
  x_SxE: np.ndarray  # compute, increasing along E
  reward_SxE: np.ndarray
  points: str  # key of POINTS

  @property
  def x_E(self) -> np.ndarray:
    return self.x_SxE.mean(0)

  @property
  def reward_E(self) -> np.ndarray:
    return self.reward_SxE.mean(0)


@dataclasses.dataclass(frozen=True)
class Speedup:
  """How much earlier than the baseline an arm reaches the threshold."""

  name: str
  runs: int
  time: float | None  # None: never
  ratio: float | None  # None: never
  # Ratios that the same curves admit, as the threshold is crossed at some
  # point between two evaluations.
  between: tuple[float, float | None] | None  # None: no upper end
  # Quantiles of the resamples that reach T; None: see `no_interval`.
  interval: tuple[float, float, float] | None
  never: float | None  # share of the resamples that never reach T
  no_interval: str | None  # why there is none
  highest: float  # mean reward after the start
  end: float  # compute of the last point

  @property
  def verdict(self) -> str:
    """Never, faster, slower, or not resolved."""
    if self.ratio is None:
      return "never"
    if self.interval is None:
      return "no interval"
    low, _, high = self.interval
    if low > 1 and self.never < QUANTILES[0]:
      return "faster"
    return "slower" if high < 1 else "not resolved"


def _shared(keys: list[np.ndarray]) -> np.ndarray | None:
  """The keys of the shortest run, or None if another lacks one."""
  shortest = min(keys, key=len)
  return shortest if all(np.isin(shortest, key).all() for key in keys) else None


def arm(name: str, runs: list[Run]) -> Arm:
  """The runs of one recipe at common points.

  Points are the evaluations of the shortest run, if all runs have them: at the
  same compute, else at the same step. Otherwise each run is interpolated
  linearly at the evaluations of all runs, in the range that all runs cover.

  Raises:
    InputError: no common point after the start.
  """
  for points, keys in (("axis", [r.C_E for r in runs]),  # noqa: B007
                       ("steps", [r.step_E for r in runs])):
    at = _shared(keys)
    if at is not None:
      rows = [np.searchsorted(key, at) for key in keys]
      x_SxE = np.stack([r.C_E[i] for r, i in zip(runs, rows)])
      reward_SxE = np.stack([r.reward_E[i] for r, i in zip(runs, rows)])
      break
  else:
    points, at = "interpolated", np.unique(np.concatenate(
        [r.C_E for r in runs]))
    at = at[(at >= max(r.C_E[0] for r in runs))
            & (at <= min(r.C_E[-1] for r in runs))]
    x_SxE = np.tile(at, (len(runs), 1))
    reward_SxE = np.stack([np.interp(at, r.C_E, r.reward_E) for r in runs])
  if not (x_SxE > 0).all(0).any():
    raise InputError(f"{name}: no evaluation after the start that all runs "
                     "have; expected runs that overlap on the axis")
  return Arm(name, x_SxE, reward_SxE, points)


def first_time(x_DxE, reward_DxE, threshold_D) -> np.ndarray:
  """The first x above 0 with reward >= threshold; NaN for never."""
  above_DxE = (reward_DxE >= threshold_D[:, None]) & (x_DxE > 0)
  first_D = above_DxE.argmax(1)
  return np.where(above_DxE.any(1), x_DxE[np.arange(len(x_DxE)), first_D],
                  np.nan)


def threshold(x_DxE, reward_DxE, *, share: float) -> np.ndarray:
  """share * the highest reward at x above 0."""
  return share * np.where(x_DxE > 0, reward_DxE, -np.inf).max(1)


def _before(x_E, time: float) -> float:
  """The point before the one at `time`; 0 before the first."""
  return float(max(x_E[(x_E < time) & (x_E > 0)], default=0.0))


def _means(arm_: Arm, draws: int, rng) -> tuple[np.ndarray, np.ndarray]:
  """(x_DxE, reward_DxE) of the means over resampled runs."""
  S = len(arm_.x_SxE)
  weights_DxS = bootstrap.weights(S, S, draws, rng)[1:] / S
  return weights_DxS @ arm_.x_SxE, weights_DxS @ arm_.reward_SxE


def baseline_time(baseline: Arm, *, share: float) -> tuple[float, float]:
  """(T, the time of the baseline); InputError if T is not above 0."""
  T = threshold(baseline.x_E[None], baseline.reward_E[None], share=share)
  if T[0] <= 0:
    raise InputError(f"{baseline.name}: its highest mean reward after the "
                     f"start is {T[0] / share:g}; expected a baseline that "
                     "solves something")
  time = first_time(baseline.x_E[None], baseline.reward_E[None], T)
  return float(T[0]), float(time[0])


def speedup(baseline: Arm, other: Arm, *, share: float, draws: int,
            seed: int) -> Speedup:
  """The speed-up of an arm, with its bootstrap interval.

  A resample draws as many runs as there are, with replacement, in both arms
  independently; it has a threshold of its own.
  """
  T, t_baseline = baseline_time(baseline, share=share)
  time = float(first_time(other.x_E[None], other.reward_E[None],
                          np.array([T]))[0])
  reached = not np.isnan(time)
  before, own_before = (_before(a.x_E, t) for a, t in (
      (baseline, t_baseline), (other, time)))
  interval = never = None
  few = [name for name, a in (("the baseline", baseline), ("the recipe", other))
         if len(a.x_SxE) < 2]
  if not few:
    rng = np.random.default_rng(seed)
    x_DxE, reward_DxE = _means(baseline, draws, rng)
    T_D = threshold(x_DxE, reward_DxE, share=share)
    t_D = first_time(x_DxE, reward_DxE, T_D)
    ratio_D = t_D / first_time(*_means(other, draws, rng), T_D)
    never = float(np.isnan(ratio_D).mean())
    if never < 1:
      interval = tuple(map(float, np.nanquantile(ratio_D, QUANTILES)))
  return Speedup(
      name=other.name, runs=len(other.x_SxE), time=time if reached else None,
      ratio=t_baseline / time if reached else None,
      between=(before / time, t_baseline / own_before if own_before else None
               ) if reached else None,
      interval=interval, never=never,
      no_interval=None if interval else (
          " and ".join(few) + (" have" if len(few) > 1 else " has") + " one run"
          if few else "no resample reaches the threshold"),
      highest=float(other.reward_E[other.x_E > 0].max()),
      end=float(other.x_E[-1]))
