"""Compares recipes by how much earlier they reach a reward.

The speed-up of PODS (arXiv 2504.13818) of runs in files; the arithmetic is that
of frontier.speedup.
"""

import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable

from isojax.errors import InputError
from isojax.format import aligned, many, number, rate
from isojax.frontier import collapse
from isojax.frontier import speedup
from isojax.frontier import study as study_lib
from isojax.frontier.read import Row
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

  @property
  def field(self) -> str:
    """The field that is the axis; records have steps and updates."""
    return "updates_made" if self.axis == "updates" else self.axis


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The speed-ups of all recipes over the baseline."""

  document: dict = dataclasses.field(repr=False)  # of speedup.json
  text: str  # table and notes


def span(values) -> str:
  """Returns a value that does not change, or the range of a schedule."""
  low, high = min(values), max(values)
  return str(low) if low == high else f"{low}..{high}"


def recipe_of(rows: list[Row]) -> tuple[int, str]:
  """Returns (Bp, n/m) of a run; logs without m are of m = n.

  A run with a schedule has several n; its rows get the first n and m, as the
  study requires one of each.
  """
  fields = [row.fields for row in rows]
  n = [f["n"] for f in fields]
  m = [f["m"] if "m" in f and f["m"] is not None else f["n"] for f in fields]
  for f in fields:
    f["n"], f["m"] = n[0], m[0]
  return fields[0]["Bp"], f"{span(n)}/{span(m)}"


def recipes(q: Question, pattern: str, flag: str, notes: list[str]) -> dict:
  """Returns (Bp, n/m) -> its rows in the files of a pattern."""
  rows, told = q.read([pattern], flag)
  notes += told
  runs, found = {}, {}
  for row in rows:
    f = row.fields
    f["updates_made"] = f["updates"] if "updates" in f else f["step"]
    runs.setdefault((f["run_id"], row.where.rsplit(":", 1)[0]), []).append(row)
  for run in runs.values():
    found.setdefault(recipe_of(run), []).extend(run)
  return found


def merged(q: Question, patterns, flag: str, notes: list[str]) -> dict:
  """Returns (Bp, n/m) -> rows of the files of all patterns."""
  out = {}
  for pattern in patterns:
    for key, rows in recipes(q, pattern, flag, notes).items():
      out.setdefault(key, []).extend(rows)
  return out


def name_of(key) -> str:
  return "Bp={}, n/m={}".format(*key)


def studied(q: Question, name: str, rows: list[Row], notes: list[str]):
  """Returns the (study, arm) of a recipe; InputError names it."""
  try:
    study, told = study_lib.from_rows(rows, study_lib.Selection(
        axis=q.field, metric=q.metric, at_k=q.at_k, eval_set=q.eval_set,
        Bp=None, B=None))
  except InputError as error:
    raise InputError(f"{name}: {error}") from error
  notes += told + [
      f"warning: {fall.what}" for fall in collapse.applied(study, "keep")[1]]
  return study, speedup.arm(name, list(study.runs))


def the_baseline(q: Question, notes: list[str]):
  """Returns (study, arm, files) of the baseline."""
  found = merged(q, q.baseline, "baseline", notes)
  if len(found) != 1:
    raise InputError(
        f"--baseline={','.join(q.baseline)}: runs of several recipes, "
        f"{'; '.join(map(name_of, sorted(found)))}; expected one Bp, n and m: "
        "give only its files")
  (key, rows), = found.items()
  return *studied(q, f"baseline {name_of(key)}", rows, notes), files(rows)


def files(rows) -> set[str]:
  return {os.path.realpath(row.where.rsplit(":", 1)[0]) for row in rows}


def the_others(q: Question, baseline_files: set[str],
               notes: list[str]) -> list:
  """Returns (key, study, arm) of each recipe in the records but the baseline.
  """
  found = []
  for pattern in q.records:
    for key, rows in sorted(recipes(q, pattern, "records", notes).items()):
      if files(rows) <= baseline_files:
        notes.append(f"{name_of(key)} of {pattern} is the baseline; left out")
      else:
        found.append((key, pattern, rows))
  if not found:
    raise InputError(f"--records={','.join(q.records)}: only the runs of "
                     "--baseline; give the runs of another recipe")
  keys = [key for key, _, _ in found]
  return [(key, *studied(
      q, name_of(key) + f", {pattern}" * (keys.count(key) > 1), rows, notes))
          for key, pattern, rows in found]


def same_problems(baseline, others) -> None:
  """Raises InputError if an arm has another metric, model or evaluation."""
  for _, study, arm in others:
    for name in ("eval_set", "model", "metric"):
      mine, theirs = getattr(study, name), getattr(baseline, name)
      if mine != theirs:
        raise InputError(f"{arm.name}: {name} is {mine}, that of the baseline "
                         f"is {theirs}; expected the same: compare runs of one "
                         "model by one evaluation")


def unit_of(axis: str) -> str:
  return axis.replace("_", " ")


def times(ratio: float) -> str:
  return f"{ratio:.2f}x"


def table(found: list[speedup.Speedup]) -> str:
  """Returns one line for each arm."""
  lines = [["recipe", "runs", "reaches T at", "speed-up", "2.5%", "50%",
            "97.5%", "never", "by the grid", "verdict"]]
  for s in found:
    lines.append([
        s.name, str(s.runs), "never" if s.time is None else number(s.time),
        "never" if s.ratio is None else times(s.ratio),
        *(map(times, s.interval) if s.interval else "---"),
        "-" if s.never is None else f"{s.never:.1%}",
        "-" if s.between is None else f"{times(s.between[0])} to " + (
            "inf" if s.between[1] is None else times(s.between[1])),
        s.verdict])
  return aligned(lines)


def cautions(baseline: speedup.Arm, start: float, T: float, time: float,
             found: list[speedup.Speedup]):
  """Yields what limits the numbers of the table."""
  if start >= T:
    yield ("the baseline's mean reward at the start is at or above T: the "
           "baseline does not improve, so the speed-up says nothing")
  for s in found:
    if s.ratio is None:
      yield (f"{s.name} never reaches T: its highest mean reward is "
             f"{rate(s.highest)}, up to {number(s.end)}"
             + (f"; it ends before the baseline reaches T, at {number(time)}"
                if s.end < time else
                f", so its speed-up is below {times(time / s.end)}"))
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


def sizes(key) -> dict:
  """Returns Bp, n and m of a recipe; None where a schedule changes them."""
  n, m = (int(x) if x.isdecimal() else None for x in key[1].split("/"))
  return {"Bp": key[0], "n": n, "m": m}


def document(q: Question, baseline: speedup.Arm, T: float, time: float, others,
             found: list[speedup.Speedup], notes: list[str]) -> dict:
  """Returns the content of speedup.json."""
  curve = lambda a: {
      "name": a.name, "points": a.points, "x": a.x_E.tolist(),
      "reward": a.reward_E.tolist(), "x_of_runs": a.x_SxE.tolist(),
      "reward_of_runs": a.reward_SxE.tolist()}
  return {"axis": q.axis, "metric": q.metric, "share": q.share, "threshold": T,
          "baseline": curve(baseline) | {"time": time},
          "arms": [sizes(key) | curve(arm) | dataclasses.asdict(s)
                   | {"verdict": s.verdict}
                   for (key, _, arm), s in zip(others, found)],
          "notes": notes}


def save(found: dict, out: str) -> str:
  """Writes speedup.json and the figure into a folder; returns what it wrote."""
  path = os.path.join(out, "speedup.json")
  records.replace(path, json.dumps(found, allow_nan=False).encode())
  if not importlib.util.find_spec("matplotlib"):
    return (f"{path}; the figure needs "
            f"pip install -e '.[plot]'")
  from isojax.frontier import plots  # needs matplotlib
  return f"{path} and {', '.join(plots.write(plots.speedup(found), out, 'speedup'))}"


def compared(q: Question) -> Comparison:
  """Returns the speed-ups of all recipes over the baseline.

  Raises:
    InputError: no such file, runs of several models or evaluations, or a
      baseline of several recipes.
  """
  notes = []
  study, baseline, baseline_files = the_baseline(q, notes)
  others = the_others(q, baseline_files, notes)
  same_problems(study, others)
  arms = [arm for _, _, arm in others]
  T, time = speedup.baseline_time(baseline, share=q.share)
  found = [speedup.speedup(baseline, arm, share=q.share, draws=q.draws, seed=0)
           for arm in arms]
  unit = unit_of(q.axis)
  start = baseline.reward_E[0] if baseline.x_E[0] == 0 else -1.0
  notes += [f"caution: {text}" for text in cautions(
      baseline, start, T, time, found)]
  notes += [f"{arm.name}: {speedup.POINTS[arm.points]}"
            for arm in (baseline, *arms) if arm.points == "interpolated"]
  text = (f"T = {T:.4f}, {q.share:g} of the highest mean {study.metric} of "
          f"{baseline.name} ({many(len(baseline.x_SxE), 'run')}), which reaches "
          f"T at {number(time)} {unit}; times in {unit}")
  return Comparison(
      document(q, baseline, T, time, others, found, notes),
      "\n".join([text, table(found), *(f"  {note}" for note in
                                      dict.fromkeys(notes))]))
