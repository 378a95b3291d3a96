"""Compares two recipes: reward at equal compute, and compute to a reward.

The second gives the speed-up of PODS (arXiv 2504.13818). The threshold T is
0.99 times the highest mean reward of the baseline after the start. The time of
a recipe is the compute of its first evaluation after the start with a mean
reward of at least T. The speed-up is the baseline's time over the recipe's.
"""

import dataclasses

import numpy as np
from scipy import stats

from isojax.core.format import (
  aligned,
  compact,
  many,
  number,
  pair,
  rate,
  signed,
)
from isojax.core.laws import C_TOLERANCE
from isojax.errors import InputError
from isojax.frontier import bootstrap, collapse
from isojax.frontier.study import from_rows, Selection, Study, StudyRun

SHARE = 0.99  # of the baseline's highest mean reward, as in PODS
DRAWS = 4000  # bootstrap draws over runs
SHARES_OF_C = (0.25, 0.5, 1.0)  # of the largest C that all runs reached


@dataclasses.dataclass(frozen=True)
class Recipe:
  """S runs of one recipe at E common points of the axis."""

  name: str
  x_E: np.ndarray  # compute, increasing
  reward_SxE: np.ndarray


@dataclasses.dataclass(frozen=True)
class Speedup:
  """How much earlier than the baseline a recipe reaches the threshold."""

  threshold: float  # T
  baseline_time: float
  time: float | None = None  # None: never
  ratio: float | None = None
  # Range of the ratio if T is crossed anywhere between two evaluations; without
  # an upper end if the recipe reaches T at its first evaluation.
  between: tuple[float, float | None] | None = None
  interval: tuple[float, float] | None = None  # 95 %, of the draws that reach T
  never: float | None = None  # share of the draws that never reach T

  @property
  def verdict(self) -> str:
    if self.ratio is None:
      return "never"
    if self.interval is None:
      return "no interval"
    low, high = self.interval
    if low > 1 and self.never < bootstrap.QUANTILES[0]:  # never is a ratio of 0
      return "faster"
    return "slower" if high < 1 else "not resolved"


def make_recipe(name: str, runs: list[StudyRun]) -> Recipe:
  """The runs at every x where one was evaluated and all have data.

  Runs that were not evaluated there are interpolated linearly.
  """
  x_E = np.unique(np.concatenate([r.C_E for r in runs]))
  x_E = x_E[(x_E >= max(r.C_E[0] for r in runs))
            & (x_E <= min(r.C_E[-1] for r in runs))]
  if not (x_E > 0).any():
    raise InputError(f"{name}: no evaluation after the start that all runs "
                     "have; expected runs that overlap on the axis")
  return Recipe(name, x_E, np.stack(
      [np.interp(x_E, r.C_E, r.reward_E) for r in runs]))


def first_time(x_E, reward_DxE, threshold_D) -> np.ndarray:
  """The first x above 0 with reward >= threshold; NaN for never."""
  above_DxE = (reward_DxE >= threshold_D[:, None]) & (x_E > 0)
  return np.where(above_DxE.any(1), x_E[above_DxE.argmax(1)], np.nan)


def _means(recipe: Recipe, rng) -> np.ndarray:
  """Mean rewards [1 + D, E]: of the runs, then of S - 1 runs drawn of S."""
  S = len(recipe.reward_SxE)
  weight_DxS = bootstrap.weights(S, max(S - 1, 1), DRAWS, rng)
  return (weight_DxS / weight_DxS.sum(1, keepdims=True)) @ recipe.reward_SxE


def speedup(baseline: Recipe, other: Recipe, *, share: float,
            seed: int) -> Speedup:
  """The speed-up over a baseline, with its bootstrap interval over runs.

  T is `share` of the baseline's highest mean reward; InputError if it is not
  above 0. A draw resamples both recipes independently and has its own T.
  """
  rng, recipes = np.random.default_rng(seed), (other, baseline)
  other_DxE, base_DxE = (_means(recipe, rng) for recipe in recipes)
  T_D = share * base_DxE[:, baseline.x_E > 0].max(1)
  if T_D[0] <= 0:
    raise InputError(f"{baseline.name}: its highest mean reward after the "
                     f"start is {T_D[0] / share:g}; expected a baseline that "
                     "solves something")
  time_D, base_time_D = (
      first_time(recipe.x_E, reward_DxE, T_D) for recipe, reward_DxE
      in zip(recipes, (other_DxE, base_DxE), strict=True))
  time, base_time = float(time_D[0]), float(base_time_D[0])
  result = dict(threshold=float(T_D[0]), baseline_time=base_time)
  if reached := not np.isnan(time):
    # The evaluation before each time; 0 before the first.
    base_before, before = (
        float(r.x_E[(r.x_E < t) & (r.x_E > 0)].max(initial=0.0))
        for r, t in ((baseline, base_time), (other, time)))
    result |= dict(time=time, ratio=base_time / time, between=(
        base_before / time, base_time / before if before else None))
  seeds = [len(recipe.reward_SxE) for recipe in recipes]
  if min(seeds) < 2:
    return Speedup(**result)
  never_D = np.isnan(time_D[1:])
  result["never"] = float(never_D.mean())
  if never_D.all():
    return Speedup(**result)
  # At each end, the wider of the percentiles of the log ratio and Student's t
  # times its standard deviation. Percentiles alone contain the truth in 61 to
  # 73 % of simulations with two runs; this interval in 94 to 99 % with 2 to 8.
  log_D = np.log((base_time_D / time_D)[1:][~never_D])
  low, high = np.quantile(log_D, bootstrap.QUANTILES)
  if reached:
    half = stats.t.ppf(bootstrap.QUANTILES[1], sum(seeds) - 2) * log_D.std()
    low = min(low, np.log(result["ratio"]) - half)
    high = max(high, np.log(result["ratio"]) + half)
  return Speedup(**result, interval=(float(np.exp(low)), float(np.exp(high))))


def at_equal_compute(baseline: Recipe, other: Recipe) -> list[dict]:
  """Mean rewards at equal C, and their difference with Welch's t interval."""
  rows = []
  for C in min(baseline.x_E[-1], other.x_E[-1]) * np.array(SHARES_OF_C):
    if C >= max(baseline.x_E[0], other.x_E[0]):
      base_S, other_S = ([float(np.interp(C, recipe.x_E, reward_E))
                          for reward_E in recipe.reward_SxE]
                         for recipe in (baseline, other))
      difference, interval = bootstrap.welch(other_S, base_S)
      rows.append({"C": float(C), "baseline": float(np.mean(base_S)),
                   "recipe": float(np.mean(other_S)), "difference": difference,
                   "interval": interval})
  return rows


# ---- Recipes in files


def _read_recipe(role: str, rows: list, selection: Selection,
                 notes: list[str]) -> tuple[Study, Recipe]:
  """The study and the recipe of rows, which must have one Bp, n and m."""
  for row in rows:  # records of isojax count updates besides steps
    row.fields["updates_made"] = row.fields.get("updates", row.fields["step"])
    if row.fields.get("m") is None:  # logs without m have m = n
      row.fields["m"] = row.fields["n"]
  names = ["Bp={}, n/m={}/{}".format(*size) for size in sorted(
      {tuple(row.fields[key] for key in ("Bp", "n", "m")) for row in rows})]
  if len(names) > 1:
    raise InputError(f"the {role} has runs of several recipes, "
                     f"{'; '.join(names)}; expected one Bp, n and m: give only "
                     "its files")
  study, more = from_rows(rows, selection)
  notes += more + [
      f"warning: {fall.what}" for fall in collapse.treat(study, "keep")[1]]
  return study, make_recipe(f"{role} {names[0]}", list(study.runs))


def _check_same(baseline: Study, other: Study) -> None:
  for name in ("eval_set", "model", "metric"):
    mine, theirs = getattr(other, name), getattr(baseline, name)
    if mine != theirs:
      raise InputError(
          f"--records: {name} is {mine}, that of the baseline is {theirs}; "
          "expected the same: compare runs of one model by one evaluation")
  shared = sorted({run.where for run in other.runs}
                  & {run.where for run in baseline.runs})
  if shared:
    raise InputError(f"--records: runs of --baseline, {shared[0]}"
                     + (f" and {len(shared) - 1} more" if shared[1:] else "")
                     + "; expected runs of another recipe alone")


def _factor(ratio: float | None) -> str:
  return "inf" if ratio is None else f"{ratio:.2f}x"


def _unused(recipe: Recipe, runs: tuple[StudyRun, ...]):
  """Yields which evaluations are not used, because one of the runs has none."""
  late = max(runs, key=lambda run: run.C_E[0])
  short = min(runs, key=lambda run: run.C_E[-1])
  if min(run.C_E[0] for run in runs) * C_TOLERANCE < late.C_E[0]:
    yield (f"{recipe.name}: evaluations before {number(late.C_E[0])} are not "
           f"used, because {late.run_id} begins there ({late.where})")
  if max(run.C_E[-1] for run in runs) > short.C_E[-1] * C_TOLERANCE:
    yield (f"{recipe.name}: evaluations after {number(short.C_E[-1])} are not "
           f"used, because {short.run_id} ends there ({short.where})")


def _cautions(baseline: Recipe, other: Recipe, gain: Speedup):
  """Yields reasons to distrust the speed-up."""
  end = float(other.x_E[-1])
  if (baseline.x_E[0] == 0
      and baseline.reward_SxE[:, 0].mean() >= gain.threshold):
    yield ("the baseline's mean reward at the start is at or above T, so the "
           "speed-up says nothing")
  if gain.time is None:
    highest = float(other.reward_SxE.mean(0)[other.x_E > 0].max())
    yield (f"the recipe's highest mean reward is {rate(highest)}, up to "
           f"{number(end)}" + (
               "; it ends before the baseline reaches T"
               if end < gain.baseline_time else ", so its speed-up is below "
               f"{_factor(gain.baseline_time / end)}"))
  elif gain.never and gain.never >= bootstrap.QUANTILES[0]:
    yield (f"{gain.never:.0%} of the draws never reach T; the interval is of "
           "the others")
  if gain.never is None:
    yield "no interval, because a recipe has one run: run two seeds of each"


def _falls(role: str, study: Study):
  """Yields what a rate that falls towards the end of a run means here."""
  fall = next((run.falling for run in study.runs if run.falling), None)
  if fall is not None:
    yield (f"of the {role} {fall}: its rewards before its end, and its time to "
           "T, are not those of a run to a smaller budget, whose rate falls "
           "sooner")


def compared(baseline: tuple[list, list[str]], records: tuple[list, list[str]],
             selection: Selection, *, share: float = SHARE) -> tuple[dict, str]:
  """The content of compare.json, and the same as text.

  A recipe is given as the rows of its runs, and notes on them; for `share` see
  `speedup`.
  """
  axis, notes = selection.axis, [*baseline[1], *records[1]]
  if axis == "updates":
    selection = dataclasses.replace(selection, axis="updates_made")
  base_study, base = _read_recipe("baseline", baseline[0], selection, notes)
  study, other = _read_recipe("recipe", records[0], selection, notes)
  _check_same(base_study, study)
  gain = speedup(base, other, share=share, seed=0)
  rows = at_equal_compute(base, other)
  cautions = [*_unused(base, base_study.runs), *_unused(other, study.runs),
              *_cautions(base, other, gain), *_falls("baseline", base_study),
              *_falls("recipe", study)]
  notes = [*(f"caution: {text}" for text in cautions),
           *dict.fromkeys(notes)]
  document = {
      "axis": axis, "metric": base_study.metric, "share": share, "equal": rows,
      "speedup": dataclasses.asdict(gain) | {"verdict": gain.verdict},
      "notes": notes
  } | {key: {"name": recipe.name, "x": recipe.x_E.tolist(),
             "reward": recipe.reward_SxE.mean(0).tolist(),
             "reward_of_runs": recipe.reward_SxE.tolist()}
       for key, recipe in (("baseline", base), ("recipe", other))}
  unit = axis.replace("_", " ")
  time = "never for the recipe" if gain.time is None else (
      f"{number(gain.time)} for the recipe: {_factor(gain.ratio)}"
      + (f" {pair(gain.interval, _factor)}" if gain.interval else "")
      + f", {gain.verdict}; the spacing of the evaluations admits "
      f"{' to '.join(map(_factor, gain.between))}")
  return document, "\n".join([
      "; ".join(f"{recipe.name}: {many(len(recipe.reward_SxE), 'run')}"
                for recipe in (base, other)),
      aligned([[f"reward at {unit}", "baseline", "recipe", "difference",
                "95%"]] + [
          [compact(r["C"]), rate(r["baseline"]), rate(r["recipe"]),
           signed(r["difference"]), pair(r["interval"], signed)]
          for r in rows]),
      f"{unit} to T = {gain.threshold:.4f}, {share:g} of the baseline's "
      f"highest mean: {number(gain.baseline_time)} for the baseline, {time}",
      *(f"  {note}" for note in notes)])
