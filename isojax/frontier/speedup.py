"""The speed-up of one recipe over another (PODS, arXiv 2504.13818).

The threshold T is 0.99 times the highest mean reward of the baseline after the
start. The time of a recipe, on any compute axis, is its first evaluation after
the start with a mean reward of at least T. The speed-up is the baseline's time
over the other's; its interval is of a bootstrap over runs.
"""

import collections
from collections.abc import Callable
import dataclasses
import json
import os

import numpy as np

from isojax.errors import InputError
from isojax.format import aligned, many, number, rate
from isojax.frontier import bootstrap, collapse
from isojax.frontier.fields import Row
from isojax.frontier.study import from_rows, Run, Selection, Study
from isojax.ledger import records

SHARE = 0.99  # of the baseline's highest mean: PODS's
QUANTILES = (0.025, 0.5, 0.975)
FEW = 5  # runs; of fewer, the interval is too narrow


@dataclasses.dataclass(frozen=True)
class Arm:
  """S runs of one recipe at E common points."""

  name: str
  x_SxE: np.ndarray  # compute, increasing along E
  reward_SxE: np.ndarray
  # Where all runs have evaluations: at the same compute ("axis"), at the same
  # step, with means of reward and compute ("steps"), or else "interpolated".
  points: str

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
    if self.ratio is None:
      return "never"
    if self.interval is None:
      return "no interval"
    low, _, high = self.interval
    if low > 1 and self.never < QUANTILES[0]:
      return "faster"
    return "slower" if high < 1 else "not resolved"


def arm(name: str, runs: list[Run]) -> Arm:
  """The runs of one recipe at common points.

  Points are the evaluations of the shortest run, if all runs have them: at the
  same compute, else at the same step. Otherwise each run is interpolated
  linearly at the evaluations of all runs, in the range that all runs cover.
  """
  for points, keys in (("axis", [r.C_E for r in runs]),  # noqa: B007
                       ("steps", [r.step_E for r in runs])):
    at = min(keys, key=len)
    if all(np.isin(at, key).all() for key in keys):
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
  before, own_before = (  # the point before; 0 before the first
      float(max(arm.x_E[(arm.x_E < t) & (arm.x_E > 0)], default=0.0))
      for arm, t in ((baseline, t_baseline), (other, time)))
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


# ---- Recipes in files

@dataclasses.dataclass(frozen=True)
class Question:
  """Which runs are compared, and how."""

  baseline: list[str]  # files or patterns of runs of one Bp, n and m
  records: list[str]  # of the others; each is split into recipes
  read: Callable  # (patterns, flag) -> (rows, notes)
  selection: Selection
  share: float = SHARE  # of the baseline's highest mean reward
  draws: int = 4000  # of the bootstrap


@dataclasses.dataclass(frozen=True)
class _Recipe:
  """The runs of one Bp, n and m, or of one schedule of them."""

  sizes: tuple[int, str]  # Bp, n/m
  study: Study
  arm: Arm
  files: set[str]


def _sizes_of(rows: list[Row]) -> tuple[int, str]:
  """(Bp, n/m) of a run; logs without m are of m = n.

  A run with a schedule has several n; its rows get the first n and m, as the
  study requires one of each.
  """
  fields = [row.fields for row in rows]
  n = [f["n"] for f in fields]
  m = [f["n"] if f.get("m") is None else f["m"] for f in fields]
  for f in fields:
    f["n"], f["m"] = n[0], m[0]
  ranges = (f"{min(x)}..{max(x)}" if len(set(x)) > 1 else str(x[0])
            for x in (n, m))
  return fields[0]["Bp"], "/".join(ranges)


def _by_sizes(q: Question, patterns: list[str], flag: str,
              notes: list[str]) -> dict:
  """(Bp, n/m) -> its rows in the files of the patterns."""
  rows, more = q.read(patterns, flag)
  notes += more
  runs, out = collections.defaultdict(list), collections.defaultdict(list)
  for row in rows:
    # records have steps and updates
    row.fields["updates_made"] = row.fields.get("updates", row.fields["step"])
    runs[row.fields["run_id"], row.where.rsplit(":", 1)[0]].append(row)
  for run in runs.values():
    out[_sizes_of(run)] += run
  return out


def _name(sizes: tuple[int, str]) -> str:
  return "Bp={}, n/m={}".format(*sizes)


def _files(rows: list[Row]) -> set[str]:
  return {os.path.realpath(row.where.rsplit(":", 1)[0]) for row in rows}


def _recipe(q: Question, name: str, sizes, rows: list[Row],
            notes: list[str]) -> _Recipe:
  selection = q.selection
  if selection.axis == "updates":
    selection = dataclasses.replace(selection, axis="updates_made")
  try:
    study, more = from_rows(rows, selection)
  except InputError as error:
    raise InputError(f"{name}: {error}") from error
  notes += more + [
      f"warning: {fall.what}" for fall in collapse.applied(study, "keep")[1]]
  return _Recipe(sizes, study, arm(name, list(study.runs)), _files(rows))


def _baseline(q: Question, notes: list[str]) -> _Recipe:
  recipes = _by_sizes(q, q.baseline, "baseline", notes)
  if len(recipes) != 1:
    raise InputError(
        f"--baseline={','.join(q.baseline)}: runs of several recipes, "
        f"{'; '.join(map(_name, sorted(recipes)))}; expected one Bp, n and m: "
        "give only its files")
  (sizes, rows), = recipes.items()
  return _recipe(q, f"baseline {_name(sizes)}", sizes, rows, notes)


def _others(q: Question, baseline: _Recipe, notes: list[str]) -> list[_Recipe]:
  """Each recipe in the records but the baseline."""
  groups = []
  for pattern in q.records:
    recipes = _by_sizes(q, [pattern], "records", notes)
    for sizes, rows in sorted(recipes.items()):
      if _files(rows) <= baseline.files:
        notes.append(f"{_name(sizes)} of {pattern} is the baseline; left out")
      else:
        groups.append((sizes, pattern, rows))
  if not groups:
    raise InputError(f"--records={','.join(q.records)}: only the runs of "
                     "--baseline; give the runs of another recipe")
  known = [sizes for sizes, _, _ in groups]
  out = [_recipe(q, _name(sizes) + f", {pattern}" * (known.count(sizes) > 1),
                 sizes, rows, notes) for sizes, pattern, rows in groups]
  for other in out:
    for name in ("eval_set", "model", "metric"):
      mine, theirs = getattr(other.study, name), getattr(baseline.study, name)
      if mine != theirs:
        raise InputError(
            f"{other.arm.name}: {name} is {mine}, that of the baseline is "
            f"{theirs}; expected the same: compare runs of one model by one "
            "evaluation")
  return out


def _times(ratio: float) -> str:
  return f"{ratio:.2f}x"


def table(speedups: list[Speedup]) -> str:
  lines = [["recipe", "runs", "reaches T at", "speed-up", "2.5%", "50%",
            "97.5%", "never", "by the grid", "verdict"]]
  for s in speedups:
    lines.append([
        s.name, str(s.runs), "never" if s.time is None else number(s.time),
        "never" if s.ratio is None else _times(s.ratio),
        *(map(_times, s.interval) if s.interval else "---"),
        "-" if s.never is None else f"{s.never:.1%}",
        "-" if s.between is None else f"{_times(s.between[0])} to " + (
            "inf" if s.between[1] is None else _times(s.between[1])),
        s.verdict])
  return aligned(lines)


def cautions(baseline: Arm, T: float, time: float, speedups: list[Speedup]):
  """Yields what limits the numbers of the table."""
  if baseline.x_E[0] == 0 and baseline.reward_E[0] >= T:
    yield ("the baseline's mean reward at the start is at or above T: the "
           "baseline does not improve, so the speed-up says nothing")
  for s in speedups:
    if s.ratio is None:
      yield (f"{s.name} never reaches T: its highest mean reward is "
             f"{rate(s.highest)}, up to {number(s.end)}"
             + (f"; it ends before the baseline reaches T, at {number(time)}"
                if s.end < time else
                f", so its speed-up is below {_times(time / s.end)}"))
    elif s.never and s.never >= QUANTILES[0]:
      yield (f"{s.name}: {s.never:.0%} of the resamples never reach T; the "
             "percentiles are of the others, so the lower end is never")
  for why in dict.fromkeys(s.no_interval for s in speedups if s.no_interval):
    names = [s.name for s in speedups if s.no_interval == why]
    yield f"no interval, because {why}: {'; '.join(names)}"
  fewest = min([len(baseline.x_SxE), *(s.runs for s in speedups)])
  if 1 < fewest < FEW:
    yield (f"{many(fewest, 'run')} of a recipe: with fewer than {FEW} the "
           "interval is too narrow")


def _curve(arm_: Arm) -> dict:
  return {"name": arm_.name, "points": arm_.points, "x": arm_.x_E.tolist(),
          "reward": arm_.reward_E.tolist(), "x_of_runs": arm_.x_SxE.tolist(),
          "reward_of_runs": arm_.reward_SxE.tolist()}


def _row(recipe: _Recipe, result: Speedup) -> dict:
  """A recipe in speedup.json; n and m are null if a schedule changes them."""
  n, m = (int(x) if x.isdecimal() else None
          for x in recipe.sizes[1].split("/"))
  return {"Bp": recipe.sizes[0], "n": n, "m": m, **_curve(recipe.arm),
          **dataclasses.asdict(result), "verdict": result.verdict}


def save(document: dict, out: str) -> str:
  """Writes speedup.json and the figure into a folder; returns what it wrote."""
  path = os.path.join(out, "speedup.json")
  try:
    os.makedirs(out, exist_ok=True)
    records.replace(path, json.dumps(document, allow_nan=False).encode())
  except OSError as error:
    raise InputError(f"--out={out}: cannot be written ({error}); choose "
                     "another folder") from error
  try:
    from isojax.frontier import plots
  except InputError as error:  # without matplotlib
    return f"{path}; {error}"
  figures = plots.write(plots.speedup(document), out, "speedup")
  return f"{path} and {', '.join(figures)}"


def compared(q: Question) -> tuple[dict, str]:
  """The speed-ups over the baseline: content of speedup.json, and its text."""
  notes = []
  base = _baseline(q, notes)
  others = _others(q, base, notes)
  T, time = baseline_time(base.arm, share=q.share)
  speedups = [speedup(base.arm, other.arm, share=q.share, draws=q.draws, seed=0)
              for other in others]
  notes += [f"caution: {text}"
            for text in cautions(base.arm, T, time, speedups)]
  notes += [f"{recipe.arm.name}: runs are evaluated at different steps: each "
            "run is interpolated linearly at the evaluations of all"
            for recipe in (base, *others)
            if recipe.arm.points == "interpolated"]
  axis = q.selection.axis
  unit = axis.replace("_", " ")
  text = (f"T = {T:.4f}, {q.share:g} of the highest mean {base.study.metric} "
          f"of {base.arm.name} ({many(len(base.arm.x_SxE), 'run')}), which "
          f"reaches T at {number(time)} {unit}; times in {unit}")
  document = {
      "axis": axis, "metric": q.selection.metric, "share": q.share,
      "threshold": T, "baseline": _curve(base.arm) | {"time": time},
      "arms": list(map(_row, others, speedups)), "notes": notes}
  return document, "\n".join([text, table(speedups), *(
      f"  {note}" for note in dict.fromkeys(notes))])
