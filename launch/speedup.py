"""Measures how much earlier one recipe reaches a reward than another.

  python -m launch.speedup --baseline='runs/grpo-*/records.jsonl' \
      --records='runs/pods-*/records.jsonl'

The speed-up of PODS (arXiv 2504.13818): the first time at 0.99 of the
baseline's highest mean reward, of the baseline over that of the other recipe,
with a bootstrap interval over runs. Reads records of isojax or logs of another
trainer; runs of one Bp, n and m form one recipe.
"""

import dataclasses
import importlib.util
import json
import os

from absl import flags

from isojax import cli
from isojax import installation
from isojax.errors import InputError
from isojax.format import aligned, many, number, rate
from isojax.frontier import collapse
from isojax.frontier import speedup
from isojax.frontier.io import field_mapping
from isojax.frontier.io import selection
from isojax.ledger import records
from launch import record_flags

_BASELINE = flags.DEFINE_list(
    "baseline", None, "Files or patterns of the baseline's runs, separated by "
    "commas; runs of one Bp, n and m.", required=True)
_RECORDS = flags.DEFINE_list(
    "records", None, "Files or patterns of the other runs, separated by "
    "commas; each is split into recipes by Bp, n and m.", required=True)
_AXIS = flags.DEFINE_string(
    "axis", "device_seconds", "Compute: device_seconds, rollouts, "
    "sampled_tokens, trained_tokens, updates, or any column.")
_SHARE = flags.DEFINE_float(
    "share", speedup.SHARE, "Threshold as a share of the baseline's highest "
    "mean reward.", lower_bound=0.01, upper_bound=1.0)
_DRAWS = flags.DEFINE_integer(
    "draws", 4000, "Bootstrap draws.", lower_bound=100)
_OUT = flags.DEFINE_string(
    "out", None, "Folder for speedup.json and the figure; default: none.")
FEW = 5  # runs; of fewer, the interval is too narrow


def span(values) -> str:
  """Returns a value that does not change, or the range of a schedule."""
  low, high = min(values), max(values)
  return str(low) if low == high else f"{low}..{high}"


def recipe_of(rows: list[field_mapping.Row]) -> tuple[int, str]:
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


def axis_field() -> str:
  """Returns the field that is --axis; records have steps and updates."""
  return "updates_made" if _AXIS.value == "updates" else _AXIS.value


def recipes(pattern: str, flag: str, notes: list[str]) -> dict:
  """Returns (Bp, n/m) -> its rows in the files of a pattern."""
  rows, told = record_flags.rows_of([pattern], axis=_AXIS.value, flag=flag)
  notes += told
  runs, found = {}, {}
  for row in rows:
    f = row.fields
    f["updates_made"] = f["updates"] if "updates" in f else f["step"]
    runs.setdefault((f["run_id"], row.where.rsplit(":", 1)[0]), []).append(row)
  for run in runs.values():
    found.setdefault(recipe_of(run), []).extend(run)
  return found


def merged(patterns: list[str], flag: str, notes: list[str]) -> dict:
  """Returns (Bp, n/m) -> rows of the files of all patterns."""
  out = {}
  for pattern in patterns:
    for key, rows in recipes(pattern, flag, notes).items():
      out.setdefault(key, []).extend(rows)
  return out


def name_of(key) -> str:
  return "Bp={}, n/m={}".format(*key)


def studied(name: str, rows: list[field_mapping.Row], notes: list[str]):
  """Returns the (study, arm) of a recipe; InputError names it."""
  try:
    study, told = selection.from_rows(rows, selection.Selection(
        axis=axis_field(), metric=record_flags.METRIC.value,
        at_k=record_flags.AT_K.value, eval_set=record_flags.EVAL_SET.value,
        Bp=None, B=None))
  except InputError as error:
    raise InputError(f"{name}: {error}") from error
  notes += told + [
      f"warning: {fall.what}" for fall in collapse.applied(study, "keep")[1]]
  return study, speedup.arm(name, list(study.runs))


def the_baseline(notes: list[str]):
  """Returns (study, arm, files) of --baseline."""
  found = merged(_BASELINE.value, "baseline", notes)
  if len(found) != 1:
    raise InputError(
        f"--baseline={','.join(_BASELINE.value)}: runs of several recipes, "
        f"{'; '.join(map(name_of, sorted(found)))}; expected one Bp, n and m: "
        "give only its files")
  (key, rows), = found.items()
  return *studied(f"baseline {name_of(key)}", rows, notes), files(rows)


def files(rows) -> set[str]:
  return {os.path.realpath(row.where.rsplit(":", 1)[0]) for row in rows}


def the_others(baseline_files: set[str], notes: list[str]) -> list:
  """Returns (key, study, arm) of each recipe in --records but the baseline."""
  found = []
  for pattern in _RECORDS.value:
    for key, rows in sorted(recipes(pattern, "records", notes).items()):
      if files(rows) <= baseline_files:
        notes.append(f"{name_of(key)} of {pattern} is the baseline; left out")
      else:
        found.append((key, pattern, rows))
  if not found:
    raise InputError(f"--records={','.join(_RECORDS.value)}: only the runs of "
                     "--baseline; give the runs of another recipe")
  keys = [key for key, _, _ in found]
  return [(key, *studied(
      name_of(key) + f", {pattern}" * (keys.count(key) > 1), rows, notes))
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


def document(baseline: speedup.Arm, T: float, time: float, others,
             found: list[speedup.Speedup], notes: list[str]) -> dict:
  """Returns the content of speedup.json."""
  curve = lambda a: {
      "name": a.name, "points": a.points, "x": a.x_E.tolist(),
      "reward": a.reward_E.tolist(), "x_of_runs": a.x_SxE.tolist(),
      "reward_of_runs": a.reward_SxE.tolist()}
  return {"axis": _AXIS.value, "metric": record_flags.METRIC.value,
          "share": _SHARE.value, "threshold": T, "baseline": curve(baseline) | {"time": time},
          "arms": [sizes(key) | curve(arm) | dataclasses.asdict(s)
                   | {"verdict": s.verdict}
                   for (key, _, arm), s in zip(others, found)],
          "notes": notes}


def save(found: dict, out: str) -> str:
  """Writes speedup.json and the figure; returns what was written."""
  record_flags.writable(out)
  path = os.path.join(out, "speedup.json")
  records.replace(path, json.dumps(found, allow_nan=False).encode())
  if not importlib.util.find_spec("matplotlib"):
    return (f"{path}; the figure needs "
            f"{installation.pip_install('plot')}")
  from isojax.frontier.report import plots_speedup  # needs matplotlib
  return f"{path} and {', '.join(plots_speedup.save(found, out))}"


def main(_) -> None:
  notes = []
  study, baseline, baseline_files = the_baseline(notes)
  others = the_others(baseline_files, notes)
  same_problems(study, others)
  arms = [arm for _, _, arm in others]
  T, time = speedup.baseline_time(baseline, share=_SHARE.value)
  found = [speedup.speedup(baseline, arm, share=_SHARE.value,
                           draws=_DRAWS.value, seed=0) for arm in arms]
  unit = unit_of(_AXIS.value)
  start = baseline.reward_E[0] if baseline.x_E[0] == 0 else -1.0
  notes += [f"caution: {text}" for text in cautions(
      baseline, start, T, time, found)]
  notes += [f"{arm.name}: {speedup.POINTS[arm.points]}"
            for arm in (baseline, *arms) if arm.points == "interpolated"]
  print(f"T = {T:.4f}, {_SHARE.value:g} of the highest mean {study.metric} of "
        f"{baseline.name} ({many(len(baseline.x_SxE), 'run')}), which reaches "
        f"T at {number(time)} {unit}; times in {unit}")
  print(table(found))
  for note in dict.fromkeys(notes):
    print(f"  {note}")
  if _OUT.value is not None:
    print("wrote " + save(document(baseline, T, time, others, found, notes),
                          _OUT.value))


if __name__ == "__main__":
  cli.run(main)
