"""How often the 95 % intervals of launch.fit contain a known truth.

Simulates studies whose truth is known and analyses each as launch.fit does. The
default choice of points (all, or the record-breaking ones as in the IsoCompute
Playbook) rests on these numbers.
"""

import dataclasses

import numpy as np

from isojax.core import laws
from isojax.frontier import (
  analysis,
  bootstrap,
  curves,
  diagnostics,
  scalerl,
  verdict,
)
from tests.frontier import synthetic

C_MAX = 4e6  # rollouts per run, three times C0
AT = (3e5, 5e5, 1e6, 2e6, 3e6)  # rollouts at which n*(C) is evaluated
# The published fit of the ScaleRL recipe, at the paper's budget of 3.5 to 4
# thousand GPU-hours for small runs, and at that of its longer ones.
SCALERL = scalerl.Hill(A=0.610, B=1.92, C_mid=2542.0, R0=0.400)
SCALERL_RUNS = {"12 evaluations to 4,000": np.linspace(1000, 4000, 12),
                "18 evaluations to 8,000": np.linspace(1000, 8000, 18),
                "30 evaluations to 16,000": np.linspace(1000, 16000, 30)}
NOISE = (0.002, 0.003, 0.005)  # standard deviation of a pass rate


@dataclasses.dataclass(frozen=True)
class Design:
  """One row: how the studies are measured, and how they are analysed."""

  name: str
  points: curves.PointRule
  seeds: int = 1  # runs per n
  run_sd: float = 0.0  # standard deviation of the asymptote between runs
  Q: int = 300  # validation problems
  k: int = 4  # samples per problem
  evaluations: int = 100  # per run


ALL = bootstrap.DEFAULT.points
RECORDS = dataclasses.replace(ALL, select="records", bin_width=0.01)
SETTINGS = (
    Design("all points (default)", ALL),
    Design("records, bins of 0.01 (paper)", RECORDS),
    Design("records, no bins", dataclasses.replace(RECORDS, bin_width=0.0)),
    Design("all points, moving average 0.8", dataclasses.replace(ALL, ema=.8)),
    Design("30 evaluations", ALL, evaluations=30),
    Design("k = 16 samples", ALL, k=16),
    Design("runs differ by 0.005, 1 seed", ALL, run_sd=0.005),
    Design("runs differ by 0.005, 2 seeds", ALL, run_sd=0.005, seeds=2),
    Design("runs differ by 0.005, 3 seeds", ALL, run_sd=0.005, seeds=3),
)


def answers(fit: verdict.Fit) -> np.ndarray:
  """The estimates of a fit, [1 + draws, columns]."""
  return np.column_stack([
      fit.law.x0_D, fit.law.b_D + fit.law.L_D,
      fit.law.log2_D(AT)])


def first_switch(fit: verdict.Fit) -> float:
  """C where a larger n overtakes the smallest; NaN if none does."""
  found = [C for before, _, C in diagnostics.switches(fit)
           if before == min(fit.study.configurations, key=lambda c: c[1])[1]]
  return found[-1] if found else float("nan")


def calibrate(setting: Design, *, studies: int, draws: int, seed: int) -> dict:
  """Coverage, width and bias over `studies` simulated studies.

  Returns:
    cover, width, bias: one number per column; identified: share of studies;
    switch: median of the first switch over the true one, minus 1.
  """
  truth = synthetic.saturating()
  noise = dict(C_max=C_MAX, evaluations=setting.evaluations, k=setting.k)
  options = dataclasses.replace(bootstrap.DEFAULT, points=setting.points,
                                draws=draws)
  # The truth is the same analysis of the curves without noise. There every
  # point breaks the record, so both choices of points have the same truth.
  exact = analysis.analyse(
      synthetic.study(truth, Q=0, **noise),
      dataclasses.replace(bootstrap.DEFAULT, draws=0))
  wanted = answers(exact)[0]
  rows = []
  for i in range(studies):
    study = synthetic.study(
        truth, seeds=setting.seeds, Q=setting.Q, run_sd=setting.run_sd,
        seed=seed + i + 1, **noise)
    fit = analysis.analyse(study, dataclasses.replace(options, seed=seed + i))
    values = answers(fit)
    low, high = laws.interval(values[0], values[1:])
    rows.append((values[0], low, high, fit.identified,
                 first_switch(fit) / first_switch(exact) - 1))
  value, low, high, identified, switch = map(np.array, zip(*rows))
  return {"cover": np.mean((low <= wanted) & (wanted <= high), 0),
          "width": np.mean(high - low, 0), "bias": np.mean(value - wanted, 0),
          "identified": float(np.mean(identified)),
          "switch": float(np.nanmedian(switch)), "truth": wanted}


def calibrate_scalerl(C_E, noise: float, *, studies: int, seed: int) -> dict:
  """How often the interval of A, and A +- 0.02, contain the truth.

  The evaluation before training, R0, has the same noise as the others.

  Returns:
    cover: share of the intervals; margin: share of A +- scalerl.A_MARGIN;
    width: median width of the interval.
  """
  rows = []
  for i in range(studies):
    rng = np.random.default_rng(seed + i)
    R_E = SCALERL(C_E) + noise * rng.normal(size=len(C_E))
    points = scalerl.Points(C_E, R_E, SCALERL.R0 + noise * rng.normal())
    fit = scalerl.fit(points)
    low, high = scalerl.A_interval(points, fit.law.A)
    rows.append((low <= SCALERL.A <= high, high - low,
                 abs(fit.law.A - SCALERL.A) <= scalerl.A_MARGIN))
  cover, width, margin = zip(*rows)
  return {"cover": float(np.mean(cover)), "margin": float(np.mean(margin)),
          "width": float(np.median(width))}
