"""Compares recipes by how much earlier they reach a reward.

The speed-up of PODS (arXiv 2504.13818) of runs in files; the arithmetic is that
of frontier.speedup.
"""

import collections
from collections.abc import Callable
import dataclasses
import importlib.util
import json
import os

from isojax.errors import InputError
from isojax.format import aligned, many, number, rate
from isojax.frontier import collapse, speedup
from isojax.frontier import study as study_lib
from isojax.frontier.fields import Row
from isojax.ledger import records

FEW = 5  # runs; of fewer, the interval is too narrow


@dataclasses.dataclass(frozen=True)
class Question:
  """Which runs are compared, and how."""

  baseline: tuple[str, ...]  # files or patterns of runs of one Bp, n and m
  records: tuple[str, ...]  # of the others; each is split into recipes
  read: Callable  # (patterns, flag) -> (rows, notes)
  metric: str  # avg, best or worst
  at_k: int | None  # of best and worst
  eval_set: str | None  # if the files have several
  axis: str = "device_seconds"  # or rollouts, updates, any column
  share: float = speedup.SHARE  # of the baseline's highest mean reward
  draws: int = 4000  # of the bootstrap


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The speed-ups of all recipes over the baseline."""

  document: dict = dataclasses.field(repr=False)  # of speedup.json
  text: str  # table and notes


@dataclasses.dataclass(frozen=True)
class _Recipe:
  """The runs of one Bp, n and m, or of one schedule of them."""

  sizes: tuple[int, str]  # Bp, n/m
  study: study_lib.Study
  arm: speedup.Arm
  files: set[str]


def _span(values: list[int]) -> str:
  """A value that does not change, or the range of a schedule."""
  low, high = min(values), max(values)
  return str(low) if low == high else f"{low}..{high}"


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
  return fields[0]["Bp"], f"{_span(n)}/{_span(m)}"


def _by_sizes(q: Question, pattern: str, flag: str, notes: list[str]) -> dict:
  """(Bp, n/m) -> its rows in the files of a pattern."""
  rows, told = q.read([pattern], flag)
  notes += told
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
  """A recipe of its rows; InputError names it."""
  axis = "updates_made" if q.axis == "updates" else q.axis
  try:
    study, told = study_lib.from_rows(rows, study_lib.Selection(
        axis=axis, metric=q.metric, at_k=q.at_k, eval_set=q.eval_set, Bp=None,
        B=None))
  except InputError as error:
    raise InputError(f"{name}: {error}") from error
  notes += told + [
      f"warning: {fall.what}" for fall in collapse.applied(study, "keep")[1]]
  return _Recipe(sizes, study, speedup.arm(name, list(study.runs)),
                 _files(rows))


def _baseline(q: Question, notes: list[str]) -> _Recipe:
  merged = collections.defaultdict(list)
  for pattern in q.baseline:
    for sizes, rows in _by_sizes(q, pattern, "baseline", notes).items():
      merged[sizes] += rows
  if len(merged) != 1:
    raise InputError(
        f"--baseline={','.join(q.baseline)}: runs of several recipes, "
        f"{'; '.join(map(_name, sorted(merged)))}; expected one Bp, n and m: "
        "give only its files")
  (sizes, rows), = merged.items()
  return _recipe(q, f"baseline {_name(sizes)}", sizes, rows, notes)


def _others(q: Question, baseline: _Recipe, notes: list[str]) -> list[_Recipe]:
  """Each recipe in the records but the baseline."""
  groups = []
  for pattern in q.records:
    for sizes, rows in sorted(_by_sizes(q, pattern, "records", notes).items()):
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
      mine, theirs = (getattr(r.study, name) for r in (other, baseline))
      if mine != theirs:
        raise InputError(
            f"{other.arm.name}: {name} is {mine}, that of the baseline is "
            f"{theirs}; expected the same: compare runs of one model by one "
            "evaluation")
  return out


def _times(ratio: float) -> str:
  return f"{ratio:.2f}x"


def table(found: list[speedup.Speedup]) -> str:
  """One line for each arm."""
  lines = [["recipe", "runs", "reaches T at", "speed-up", "2.5%", "50%",
            "97.5%", "never", "by the grid", "verdict"]]
  for s in found:
    lines.append([
        s.name, str(s.runs), "never" if s.time is None else number(s.time),
        "never" if s.ratio is None else _times(s.ratio),
        *(map(_times, s.interval) if s.interval else "---"),
        "-" if s.never is None else f"{s.never:.1%}",
        "-" if s.between is None else f"{_times(s.between[0])} to " + (
            "inf" if s.between[1] is None else _times(s.between[1])),
        s.verdict])
  return aligned(lines)


def cautions(baseline: speedup.Arm, T: float, time: float,
             found: list[speedup.Speedup]):
  """Yields what limits the numbers of the table."""
  if baseline.x_E[0] == 0 and baseline.reward_E[0] >= T:
    yield ("the baseline's mean reward at the start is at or above T: the "
           "baseline does not improve, so the speed-up says nothing")
  for s in found:
    if s.ratio is None:
      yield (f"{s.name} never reaches T: its highest mean reward is "
             f"{rate(s.highest)}, up to {number(s.end)}"
             + (f"; it ends before the baseline reaches T, at {number(time)}"
                if s.end < time else
                f", so its speed-up is below {_times(time / s.end)}"))
    elif s.never and s.never >= speedup.QUANTILES[0]:
      yield (f"{s.name}: {s.never:.0%} of the resamples never reach T; the "
             "percentiles are of the others, so the lower end is never")
  for why in dict.fromkeys(s.no_interval for s in found if s.no_interval):
    alike = [s.name for s in found if s.no_interval == why]
    yield f"no interval, because {why}: {'; '.join(alike)}"
  fewest = min([len(baseline.x_SxE), *(s.runs for s in found)])
  if 1 < fewest < FEW:
    yield (f"{many(fewest, 'run')} of a recipe: with fewer than {FEW} the "
           "interval is too narrow")


def _curve(arm: speedup.Arm) -> dict:
  return {"name": arm.name, "points": arm.points, "x": arm.x_E.tolist(),
          "reward": arm.reward_E.tolist(), "x_of_runs": arm.x_SxE.tolist(),
          "reward_of_runs": arm.reward_SxE.tolist()}


def _row(recipe: _Recipe, found: speedup.Speedup) -> dict:
  """A recipe in speedup.json; n and m are null if a schedule changes them."""
  n, m = (int(x) if x.isdecimal() else None
          for x in recipe.sizes[1].split("/"))
  return {"Bp": recipe.sizes[0], "n": n, "m": m, **_curve(recipe.arm),
          **dataclasses.asdict(found), "verdict": found.verdict}


def save(found: dict, out: str) -> str:
  """Writes speedup.json and the figure into a folder; returns what it wrote."""
  path = os.path.join(out, "speedup.json")
  records.replace(path, json.dumps(found, allow_nan=False).encode())
  if not importlib.util.find_spec("matplotlib"):
    return f"{path}; the figure needs pip install -e '.[plot]'"
  from isojax.frontier import plots  # needs matplotlib
  figures = plots.write(plots.speedup(found), out, "speedup")
  return f"{path} and {', '.join(figures)}"


def compared(q: Question) -> Comparison:
  """The speed-ups of all recipes over the baseline.

  Raises:
    InputError: no such file, runs of several models or evaluations, or a
      baseline of several recipes.
  """
  notes = []
  base = _baseline(q, notes)
  others = _others(q, base, notes)
  T, time = speedup.baseline_time(base.arm, share=q.share)
  found = [speedup.speedup(base.arm, other.arm, share=q.share, draws=q.draws,
                           seed=0) for other in others]
  notes += [f"caution: {text}"
            for text in cautions(base.arm, T, time, found)]
  notes += [f"{arm.name}: {speedup.POINTS[arm.points]}"
            for arm in (base.arm, *(other.arm for other in others))
            if arm.points == "interpolated"]
  unit = q.axis.replace("_", " ")
  text = (f"T = {T:.4f}, {q.share:g} of the highest mean {base.study.metric} "
          f"of {base.arm.name} ({many(len(base.arm.x_SxE), 'run')}), which "
          f"reaches T at {number(time)} {unit}; times in {unit}")
  document = {
      "axis": q.axis, "metric": q.metric, "share": q.share, "threshold": T,
      "baseline": _curve(base.arm) | {"time": time},
      "arms": list(map(_row, others, found)), "notes": notes}
  return Comparison(document, "\n".join(
      [text, table(found), *(f"  {note}" for note in dict.fromkeys(notes))]))
