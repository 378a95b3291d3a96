"""Do the intervals hold? python -m launch.verify.calibrate

Makes studies whose truth is known, analyses each as launch.fit would, and
prints how often the 95% intervals hold the truth, how wide they are, and how
far the law and the frontier's switches lie from it. With it the choice of
points was made: all, or the record-breaking ones as in the IsoCompute Playbook.
"""

import dataclasses
import sys
import time

from absl import flags
import numpy as np
import tqdm

from isojax import cli
from isojax.errors import InputError
from isojax.frontier import analysis
from isojax.frontier import curves
from isojax.frontier import diagnostics
from isojax.frontier import synthetic
from isojax.planner import laws

_STUDIES = flags.DEFINE_integer("studies", 200, "Studies a row.", lower_bound=2)
_DRAWS = flags.DEFINE_integer("draws", 400, "Bootstrap draws of each study.",
                              lower_bound=100)
_SEED = flags.DEFINE_integer("seed", 0, "Of the first study.", lower_bound=0)
_ROWS = flags.DEFINE_list("rows", None, "Only these rows, counted from 0: 1,4.")

C_MAX = 4e6  # rollouts of a run, three times C0
AT = (3e5, 5e5, 1e6, 2e6, 3e6)  # rollouts where n*(C) is asked for
COLUMNS = ("log10 C0", "log2 ceiling", *(f"log2 n*({C / 1e6:g}M)" for C in AT))


@dataclasses.dataclass(frozen=True)
class Setting:
  """One row: how the studies are measured, and how they are analysed."""

  name: str
  points: curves.Points
  seeds: int = 1  # runs of each n
  run_sd: float = 0.0  # of the asymptote between runs, reward
  Q: int = 300  # validation problems
  k: int = 4  # samples of each
  evaluations: int = 100  # of each run


ALL = analysis.DEFAULT.points
RECORDS = analysis.PAPER.points
SETTINGS = (
    Setting("all points (default)", ALL),
    Setting("records, bins of 0.01 (paper)", RECORDS),
    Setting("records, no bins", dataclasses.replace(RECORDS, bin_width=0.0)),
    Setting("all points, moving average 0.8", dataclasses.replace(ALL, ema=.8)),
    Setting("30 evaluations", ALL, evaluations=30),
    Setting("k = 16 samples", ALL, k=16),
    Setting("runs differ by 0.005, 1 seed", ALL, run_sd=0.005),
    Setting("runs differ by 0.005, 2 seeds", ALL, run_sd=0.005, seeds=2),
    Setting("runs differ by 0.005, 3 seeds", ALL, run_sd=0.005, seeds=3),
)


def answers(fit: analysis.Fit) -> np.ndarray:
  """[1 + draws, columns] of a fit."""
  return np.column_stack([
      fit.law.x0_D, fit.law.b_D + fit.law.L_D,
      fit.law(np.log10(AT))])


def first_switch(fit: analysis.Fit) -> float:
  """C where a larger n takes over from the smallest; NaN: never."""
  found = [C for before, _, C in diagnostics.switches(fit)
           if before == min(fit.study.configurations, key=lambda c: c[1])[1]]
  return found[-1] if found else float("nan")


def calibrate(setting: Setting, *, studies: int, draws: int, seed: int,
              tick=lambda: None) -> dict:
  """Coverage, width and bias over `studies` studies.

  Returns:
    cover, width, bias: one number a column; identified: share of studies;
    switch: median of the first switch over the true one, minus 1.
  """
  truth = synthetic.saturating()
  noise = dict(C_max=C_MAX, evaluations=setting.evaluations, k=setting.k,
               spread=0.5)
  options = dataclasses.replace(analysis.DEFAULT, points=setting.points,
                                draws=draws)
  # The truth is what the same steps make of the curves without noise; records
  # then are all points, so that only noise can set the two apart.
  exact = analysis.analyse(
      synthetic.study(truth, seeds=1, Q=0, run_sd=0.0, seed=0, **noise),
      dataclasses.replace(analysis.DEFAULT, draws=0))
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
    tick()
  value, low, high, identified, switch = map(np.array, zip(*rows))
  return {"cover": np.mean((low <= wanted) & (wanted <= high), 0),
          "width": np.mean(high - low, 0), "bias": np.mean(value - wanted, 0),
          "identified": float(np.mean(identified)),
          "switch": float(np.nanmedian(switch)), "truth": wanted}


def rows(items: list[str]) -> list[Setting]:
  told = {str(i): setting for i, setting in enumerate(SETTINGS)}
  if unknown := [item for item in items if item not in told]:
    raise InputError(f"--rows={','.join(unknown)}: expected rows from 0 to "
                     f"{len(SETTINGS) - 1}: " + "; ".join(
                         f"{i} {s.name}" for i, s in told.items()))
  return [told[item] for item in items]


def main(_) -> None:
  chosen = rows(_ROWS.value) if _ROWS.value else SETTINGS
  began = time.monotonic()
  print(f"{_STUDIES.value} studies a row, {_DRAWS.value} draws each; 95% "
        "intervals of " + ", ".join(COLUMNS))
  print("cover: share that hold the truth; width and bias in the same units; "
        "switch: error of the first switch in C\n")
  join = lambda values, form: " ".join(f"{v:{form}}" for v in values)
  with tqdm.tqdm(total=len(chosen) * _STUDIES.value, unit="study",
                 disable=not sys.stderr.isatty()) as bar:
    for setting in chosen:
      found = calibrate(setting, studies=_STUDIES.value, draws=_DRAWS.value,
                        seed=_SEED.value, tick=bar.update)
      with bar.external_write_mode():
        print(f"{setting.name:33} cover {join(found['cover'], '.2f')}  width "
              f"{join(found['width'], '.2f')}  bias "
              f"{join(found['bias'], '+.2f')}  switch {found['switch']:+.0%}  "
              f"identified {found['identified']:.0%}", flush=True)
  print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
  cli.run(main)
