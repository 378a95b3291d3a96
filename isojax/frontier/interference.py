"""Interference: do some problems improve at the cost of others in training?"""

import numpy as np
from scipy import optimize, stats

from isojax.frontier.bootstrap import QUANTILES
from isojax.frontier.study import StudyRun


def polarisation(correct_Q, k: int) -> float:
  """rho = Var(p) / (m (1 - m)) of pass rates p with mean m.

  rho is 0 if every problem is equally likely to be solved, and 1 if each is
  always or never solved. E[p^2] is estimated without bias from c correct of k
  samples by c (c - 1) / (k (k - 1)). NaN if m is 0 or 1, or k is 1.
  """
  c = np.asarray(correct_Q, float)
  m = c.mean() / k
  if k < 2 or m in (0.0, 1.0):
    return float("nan")
  return float((np.mean(c * (c - 1)) / (k * (k - 1)) - m * m) / (m * (1 - m)))


def uniform_progress(mean0: float, rho0: float, mean: float) -> float:
  """rho at `mean`, if the log-odds of every problem rise by the same amount.

  The pass rates at the start are Beta-distributed, with mean0 and rho0.
  """
  rho0 = min(max(rho0, 1e-3), 0.999)
  size = 1 / rho0 - 1  # a + b of the Beta distribution
  p = stats.beta.ppf((np.arange(300) + 0.5) / 300, mean0 * size,
                     (1 - mean0) * size)  # 300 equally likely pass rates
  log_odds = np.log(np.clip(p, 1e-12, 1 - 1e-12) / np.clip(1 - p, 1e-12, 1))
  shifted = lambda rise: 1 / (1 + np.exp(-(log_odds + rise)))
  rise = optimize.brentq(lambda x: shifted(x).mean() - mean, -60, 60)
  return float(np.var(shifted(rise)) / (mean * (1 - mean)))


def interference(run: StudyRun, k: int, *, draws: int, seed: int
                 ) -> dict | None:
  """How the progress of a run is distributed over the validation problems.

  A row of fit.json: C, mean pass rate and rho at the start and the end, and the
  score: rho at the end minus that of uniform progress to the same mean. Above
  0, problems that were ahead gained more. `score_interval` is the 95 % interval
  over problems. None without counts, or with a mean pass rate of 0 or 1.
  """
  if run.value_ExQ is None or k < 2:
    return None
  correct = np.rint(run.value_ExQ * k).astype(int)
  if abs(correct - run.value_ExQ * k).max() > 1e-6:
    return None  # rewards other than 0 and 1
  ends = correct[[0, -1]]
  if ends.mean(1).min() == 0 or ends.mean(1).max() == k:
    return None

  def score(problems):
    first, last = ends[:, problems]
    m0, m1 = first.mean() / k, last.mean() / k
    if min(m0, m1) <= 0 or max(m0, m1) >= 1:
      return float("nan")
    return polarisation(last, k) - uniform_progress(
        m0, polarisation(first, k), m1)

  Q = correct.shape[1]
  rng = np.random.default_rng(seed)
  drawn = [score(rng.integers(0, Q, Q)) for _ in range(draws)]
  low, high = np.nanquantile(drawn, QUANTILES)
  return {
      "run_id": run.run_id, "seed": run.seed, "Bp": run.Bp, "n": run.n,
      "C": run.C_E[[0, -1]], "mean": ends.mean(1) / k,
      "rho": [polarisation(correct_Q, k) for correct_Q in ends],
      "score": score(np.arange(Q)), "score_interval": (low, high)}
