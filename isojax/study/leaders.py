"""Which n has the best policy at each budget, by the evaluations alone.

The curves of a fit only rise, so they keep the best reward that an n has had.
Where the reward falls again, as with few problems, the policy at C is another
question. Its answer has no model: the mean of the evaluations of a window.
"""

import numpy as np

from isojax.frontier import bootstrap
from isojax.frontier.bootstrap import Options
from isojax.study import ledger
from isojax.study import resampling
from isojax.study.ledger import LedgerRun

FACTOR = 2.0  # C at the end of a window over that at its beginning


def windows(runs: list[LedgerRun]) -> list[tuple[float, float]]:
  """Returns the windows (low, high] of C in which every run has evaluations.

  They end at the largest C that every run has reached.
  """
  at = [np.array([e["rollouts"] for e in run.evals]) for run in runs]
  high, out = float(min(C[-1] for C in at)), []
  while all(((C > high / FACTOR) & (C <= high)).any() for C in at):
    out.append((high / FACTOR, high))
    high /= FACTOR
  return out[::-1]


def values(run: LedgerRun, low: float, high: float) -> np.ndarray:
  """Returns the mean reward of each problem in a window, [Q]."""
  return np.mean([ledger.correct(line) for line in run.evals
                  if low < line["rollouts"] <= high], axis=0) / run.head["k"]


def leaders(runs: list[LedgerRun], options: Options) -> dict | None:
  """Returns the n with the highest mean in each window, and its trend.

  Seeds and problems are resampled; all n and all windows of a sample have the
  same problems, and all windows the same seeds.

  Args:
    runs: of the grid of n.
    options: `draws` bootstrap samples.

  Returns:
    windows: low and high C; n, its 95 % interval, and the share of the samples
    in which each n leads; by_n: mean and interval of each n. trend: the factor
    of n per tenfold C, of a straight line through log2 n over log10 C, with its
    interval. lost: the mean of each n in its best window, which is that of the
    data in all samples, minus that in the last window; n None is the mean over
    n. None: there are fewer than 3 windows, or n.
  """
  found = windows(runs) if runs else []
  if len(found) < 3 or len({run.head["n"] for run in runs}) < 3:
    return None
  ns = sorted({run.head["n"] for run in runs})
  by_n = {n: sorted((r for r in runs if r.head["n"] == n),
                    key=lambda r: r.head["seed"]) for n in ns}
  rows, lead_WxD, mean_WxNxD = [], [], []
  for low, high in found:
    drawn_NxD = np.stack([resampling.means(
        [values(run, low, high) for run in members], draws=options.draws,
        seed=100, index=i) for i, members in enumerate(by_n.values())])
    lead_D = np.array(ns)[drawn_NxD.argmax(0)]
    lead_WxD.append(lead_D)
    mean_WxNxD.append(drawn_NxD)
    ends = np.quantile(lead_D[1:], bootstrap.QUANTILES, method="nearest")
    rows.append({
        "low": low, "high": high, "n": int(lead_D[0]),
        "n_interval": [int(n) for n in ends],
        "share": {str(n): float(np.mean(lead_D[1:] == n)) for n in ns},
        "by_n": [{"n": n, "mean": float(drawn[0]),
                  "interval": list(bootstrap.percentiles(drawn))}
                 for n, drawn in zip(ns, drawn_NxD)]})
  slope_D = np.polyfit(np.log10([high for _, high in found]),
                       np.log2(lead_WxD), 1)[0]
  return {
      "windows": rows,
      "trend": {
          "factor": float(2 ** slope_D[0]),
          "interval": [float(2**s) for s in bootstrap.percentiles(slope_D)]},
      "lost": _lost(ns, np.array(mean_WxNxD))}


def _lost(ns: list[int], mean_WxNxD: np.ndarray) -> list[dict]:
  """Returns what each n, and their mean, lose after their best window."""
  peak_N = mean_WxNxD[:, :, 0].argmax(0)
  lost_NxD = mean_WxNxD[peak_N, np.arange(len(ns))] - mean_WxNxD[-1]
  return [{"n": n, "peak": peak, "mean": float(lost_D[0]),
           "interval": list(bootstrap.percentiles(lost_D))}
          for n, peak, lost_D in zip([*ns, None], [*peak_N.tolist(), None],
                                     [*lost_NxD, lost_NxD.mean(0)])]
