"""Simulated studies whose truth is known, to test an analysis."""

import dataclasses

import numpy as np
from scipy import stats

from isojax.frontier import curves
from isojax.frontier.study import Study, StudyRun


@dataclasses.dataclass(frozen=True)
class Truth:
  """R_n(C) = A - (A - b) exp(-k C) for each n, at one Bp."""

  Bp: int
  n: tuple[int, ...]
  A: tuple[float, ...]
  k: tuple[float, ...]  # per rollout
  b: float  # reward of the base policy

  def __call__(self, i: int, C, lift: float = 0.0):
    """The reward of the i-th n; lift is added to its asymptote."""
    A = self.A[i] + lift
    return self.b + (A - self.b) * curves.saturating_exponential(
        np.log([self.k[i]]), np.asarray(C, float))


def saturating() -> Truth:
  """A truth whose best n rises from 8 to 256 at 3 million rollouts."""
  return Truth(
      Bp=32, n=(8, 16, 32, 64, 128, 256, 512, 1024),
      A=(0.600, 0.612, 0.624, 0.636, 0.648, 0.660, 0.660, 0.660),
      k=(6.0e-6, 4.1e-6, 2.8e-6, 1.9e-6, 1.3e-6, 0.88e-6, 0.6e-6, 0.4e-6),
      b=0.45)


def problem_table(Q: int, spread: float, rng) -> tuple:
  """(mean M, pass rate [M, Q]) of Q problems at each mean pass rate.

  Each problem keeps its quantile in a Beta distribution with that mean over all
  possible problems, so all evaluations share the noise of the problems.
  """
  mean = np.linspace(0.001, 0.999, 400)
  place = rng.uniform(size=Q)
  rate = stats.beta.ppf(place[None], mean[:, None] / spread,
                        (1 - mean[:, None]) / spread)
  return mean, rate


def study(truth: Truth, *, C_max: float, evaluations: int, seeds: int = 1,
          Q: int = 300, k: int = 16, spread: float = 0.5, run_sd: float = 0.0,
          seed: int = 0) -> Study:
  """A study of `truth` as it would be measured; Q = 0: without noise.

  Args:
    truth: the curves.
    C_max: rollouts per run.
    evaluations: per run, equally spaced, after the one at C = 0.
    seeds: runs per n.
    Q, k: validation problems, and samples of each.
    spread: > 0, of pass rates over problems: Beta(R / spread, ...).
    run_sd: standard deviation of the asymptote between runs.
    seed: of the noise.
  """
  rng = np.random.default_rng(seed)
  table = problem_table(Q, spread, rng) if Q else None
  runs = []
  for i, n in enumerate(truth.n):
    B = truth.Bp * n
    steps = np.unique(np.linspace(0, C_max // B, evaluations + 1).astype(int))
    for s in range(seeds):
      mean_E = truth(i, steps * B, run_sd * rng.normal())
      if table is None:
        value = mean_E[:, None]
      else:
        rate = np.stack([np.interp(mean_E, table[0], column)
                         for column in table[1].T], 1)
        value = rng.binomial(k, rate) / k
      runs.append(StudyRun(
          run_id=f"n{n}-{s}", seed=s, Bp=truth.Bp, n=n, step_E=steps,
          C_E=(steps * B).astype(float), value_ExQ=value,
          reward_E=value.mean(1), training_problems=None, where="synthetic"))
  return Study(runs=tuple(runs), axis="rollouts", metric="avg", split="easy",
               eval_set="synthetic", model="synthetic", k=k,
               per_problem=True)
