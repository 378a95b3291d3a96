"""Fits the law n*(C) to the grid of n of a part of the study."""

import collections

import numpy as np

from isojax.frontier import analysis
from isojax.frontier import bootstrap
from isojax.frontier.bootstrap import Options
from isojax.frontier import study as study_lib
from isojax.frontier.study import Study
from isojax.frontier.verdict import Fit
from isojax.study import ledger
from isojax.study.ledger import LedgerRun


def grid(runs: list[LedgerRun]) -> list[LedgerRun]:
  """Returns the runs of the first arm, the grid of n."""
  return [run for run in runs if run.head["arm"] == runs[0].head["arm"]]


def reached(runs: list[LedgerRun], C: float) -> bool:
  """Returns whether every run has spent C, or has diverged."""
  return all(run.has_spent(C) for run in runs)


def study_of(runs: list[LedgerRun], *, path: str, C: float, axis: str,
             metric: str, notes: list[str]) -> Study:
  """Returns the study of these runs up to C rollouts.

  Args:
    runs: of the grid of n.
    path: of the ledger, for messages.
    C: rollouts.
    axis, metric: as of launch.fit.
    notes: is extended by what was left out.
  """
  rows = ledger.rows(runs, path=path, C=C)
  study, told = study_lib.from_rows(rows, study_lib.Selection(
      axis=axis, metric=metric, at_k=None, eval_set=None, Bp=None, B=None))
  notes += told
  return study


def at(fit: Fit, C: float, *, clipped: bool) -> dict:
  """Returns the best n at C and its reward, with intervals.

  Args:
    fit: of all seeds.
    C: compute.
    clipped: a curve keeps its value from the last evaluation on; otherwise
      curves are continued.
  """
  ns = np.array([n for _, n in fit.study.configurations])
  reward_DxN = np.stack([
      c([min(C, c.C_hi) if clipped else C])[:, 0] for c in fit.curves], 1)
  best_D = reward_DxN.argmax(1)
  top_D = reward_DxN.max(1)
  share = collections.Counter(ns[best_D[1:]].tolist())
  low, high = np.quantile(ns[best_D[1:]], bootstrap.QUANTILES, method="nearest")
  x = C if fit.study.axis == "updates" else np.log10(C)
  each = [{"n": int(n), "reward": float(reward[0]),
           "interval": bootstrap.percentiles(reward)}
          for n, reward in zip(ns, reward_DxN.T)]
  return {"n": int(ns[best_D[0]]), "n_interval": [int(low), int(high)],
          "share": {str(n): share[n] / (len(best_D) - 1)
                    for n in sorted(share)},
          "reward": float(top_D[0]),
          "interval": bootstrap.percentiles(top_D), "by_n": each,
          "law_n": None if fit.law is None else float(
              2.0 ** fit.law([x])[0, 0])}


def fitted(runs: list[LedgerRun], *, path: str, C: float, axis: str,
           metric: str, options: Options, notes: list[str]) -> Fit:
  """Returns the analysis of these runs; arguments as for `study_of`."""
  return analysis.analyse(study_of(
      runs, path=path, C=C, axis=axis, metric=metric, notes=notes),
                          options)


def leading(runs: list[LedgerRun], *, path: str, C: float,
            options: Options) -> tuple[int, ...]:
  """Returns the n that leads at C and the next larger one that was tested."""
  fit = fitted(runs, path=path, C=C, axis="rollouts", metric="avg",
               options=options, notes=[])
  tested = fit.study.tested
  best = tested.index(at(fit, C, clipped=True)["n"])
  return tested[best:best + 2]
