"""Fits the law n*(C) to the evaluations of many runs.

  python -m launch.fit --records='runs/*/records.jsonl'

Reads the evaluations of many runs, ours or another trainer's, and writes
fit.json (for launch.plan --law), figures and report.html into --out.
"""

import collections
import dataclasses
import glob
import importlib.util
import json
import math
import os
import re
import tempfile
import time

from absl import flags

from isojax import cli
from isojax import installation
from isojax.ledger import records
from isojax.ledger import object_store
from isojax.errors import InputError
from isojax.frontier import analysis
from isojax.frontier import curves
from isojax.frontier import document
from isojax.frontier import formats
from isojax.frontier import proposal
from isojax.frontier import readers
from isojax.frontier import study as study_lib
from isojax.frontier import words
from isojax.format import many

_RECORDS = flags.DEFINE_list(
    "records", ["runs/*/records.jsonl"], "Files or patterns, also of a bucket "
    "(gs://), separated by commas.")
_FORMAT = flags.DEFINE_enum(
    "format", "isojax", sorted(formats.FORMATS), "Who wrote them; table is any "
    "CSV, JSON lines or W&B export with --columns.")
_COLUMNS = flags.DEFINE_list(
    "columns", [], "Where a field stands: avg=val/acc,step=global_step.")
_FIXED = flags.DEFINE_list(
    "fixed", [], "Fields that the files have not: Bp=32,n=8.")
_FROM_PATH = flags.DEFINE_string(
    "from_path", None, "Regular expression whose named groups are fields that "
    "the path of a file tells or, of several runs in one file, their names: "
    "'n(?P<n>\\d+)-s(?P<seed>\\d+)'.")
_SCALE = flags.DEFINE_list(
    "scale", [], "Factors of metrics or axis: avg=0.01 for percent.")
_OUT = flags.DEFINE_string("out", "fit", "Folder for what is written.")
_AXIS = flags.DEFINE_string(
    "axis", "rollouts", "The compute: rollouts, sampled_tokens, "
    "device_seconds, any column, or a field of --columns; updates for n*(M) at "
    "a fixed --B.")
_METRIC = flags.DEFINE_enum(
    "metric", "avg", formats.METRICS, "avg, best@k or worst@k.")
_AT_K = flags.DEFINE_integer(
    "at_k", None, "k of best@k and worst@k; by default all stored samples.")
_EVAL_SET = flags.DEFINE_string(
    "eval_set", None, "Which evaluation, if the files hold several.")
_BP = flags.DEFINE_integer("Bp", None, "Only runs with this Bp: n*(C) at it.")
_B = flags.DEFINE_integer("B", None, "Only runs with this Bp * n.")
_DEFAULT = analysis.DEFAULT
_POINTS = flags.DEFINE_enum(
    "points", _DEFAULT.points.select, ["all", "records"], "Evaluations that "
    "are fitted: all, or the record-breaking ones as in the paper.")
_BIN_WIDTH = flags.DEFINE_float(
    "bin_width", _DEFAULT.points.bin_width, "Reward bins of record-breaking "
    "points; 0: every rise counts.")
_EMA = flags.DEFINE_float(
    "ema", _DEFAULT.points.ema, "Weight of the past in a moving average; 0: "
    "none.", lower_bound=0.0, upper_bound=0.999)
_MIN_C = flags.DEFINE_float(
    "min_C", _DEFAULT.points.min_C, "Earlier evaluations are not fitted.")
_FORM = flags.DEFINE_enum(
    "form", _DEFAULT.form, sorted(curves.FORMS), "Of the reward curves.")
_DRAWS = flags.DEFINE_integer(
    "draws", _DEFAULT.draws, "Bootstrap draws.", lower_bound=100)


def value_of(text: str):
  return int(text) if text.isdecimal() else text


def folded(notes: list[str], paths: list[str]) -> list[str]:
  """The notes; those that differ in nothing but the file, as one."""
  alike = collections.defaultdict(list)
  for note in notes:
    path = next((p for p in paths if p in note), None)
    bare = note if path is None else re.sub(
        r"^(left out: )?" + re.escape(path) + r"(:\d+)?: ", r"\1", note)
    alike[bare].append(note)
  return [each[0] + (f" ({len(each)} files)" if len(each) > 1 else "")
          for each in alike.values()]


def factors() -> dict[str, float]:
  out = {}
  for name, text in cli.pairs("scale", _SCALE.value).items():
    try:
      out[name] = float(text)
    except ValueError:
      out[name] = math.nan
    if not 0 < out[name] < math.inf:
      raise InputError(f"--scale={name}={text}: expected a number above 0, "
                       "such as 0.01 for percent")
  return out


def rows_of(patterns: list[str]) -> tuple[list[readers.Row], list[str]]:
  """Every evaluation in the files, and what the readers noted.

  Raises:
    InputError: a pattern without a file, or no file that can be read.
  """
  given = dict(
      kind=_FORMAT.value, columns=cli.pairs("columns", _COLUMNS.value),
      fixed={name: value_of(value)
             for name, value in cli.pairs("fixed", _FIXED.value).items()},
      scale=factors(), axis=_AXIS.value, from_path=_FROM_PATH.value)
  rows, notes, refused, paths = [], [], [], {}
  for pattern in patterns:
    object_store.check(pattern, "records")
    found = (object_store.glob(pattern) if object_store.remote(pattern)
             else sorted(glob.glob(pattern)))
    if not found:
      raise InputError(f"--records={pattern}: no such file; quote patterns, or "
                       "give the folder that --workdir or runs/ made")
    for path in found:
      if os.path.realpath(path) in paths:
        notes.append(f"{path}: given twice, and read once.")
      paths.setdefault(os.path.realpath(path), path)
  for path in paths.values():
    try:
      found, told = readers.read(path, **given)
    except InputError as error:
      refused.append(error)
      notes.append(f"left out: {error}")
      continue
    rows += found
    notes += told
  if refused and not rows:
    raise refused[0]
  return rows, folded(notes, list(paths.values()))


def selection(metric: str) -> study_lib.Selection:
  return study_lib.Selection(
      axis=_AXIS.value, metric=metric, at_k=_AT_K.value,
      eval_set=_EVAL_SET.value, Bp=_BP.value, B=_B.value)


def options() -> analysis.Options:
  return dataclasses.replace(
      _DEFAULT, form=_FORM.value, draws=_DRAWS.value, points=curves.Points(
          select=_POINTS.value, ema=_EMA.value, min_C=_MIN_C.value,
          bin_width=_BIN_WIDTH.value))


def of_all_metrics(fit, rows) -> dict:
  """metric -> fit of the same runs, for those that the records hold."""
  fits = {fit.study.metric: fit}
  for metric in formats.METRICS:
    try:
      study, _ = study_lib.from_rows(rows, selection(metric))
    except InputError:  # a log without this metric
      continue
    if study.metric not in fits:
      fits[study.metric] = analysis.analyse(study, options())
  return fits


def writable(folder: str) -> None:
  """Makes the folder; InputError if nothing can be written there."""
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise InputError(f"--out={folder}: cannot be written ({error}); choose "
                     "another folder") from error


def summary(found: dict) -> str:
  """The verdict and the law, for the terminal."""
  study, law, verdict = found["study"], found["law"], found["verdict"]
  lines = [f"{many(len(study['runs']), 'run')}, n = "
           f"{', '.join(map(str, study['n']))} at Bp = "
           f"{', '.join(map(str, study['Bp']))}; {study['metric']} on "
           f"{study['eval_set']} against {study['axis']}",
           "identified" if verdict["identified"] else "NOT identified:",
           *(f"  - {reason}" for reason in verdict["reasons"]),
           *(f"  caution: {caution}" for caution in verdict["cautions"])]
  if law is not None:
    said = {name.split(",")[0]: f"{value} {interval}"
            for name, value, interval in words.parameters(found)}
    lines.append(
        ("law: " if verdict["identified"] else
         "law, not identified, do not use: ")
        + ", ".join(f"{name} = {text}" for name, text in said.items())
        + f"; {words.axis_of(study)[0]} in {study['axis']}")
  lines += [f"  note: {note}" for note in found["notes"][:8]]
  if len(found["notes"]) > 8:
    lines.append(f"  and {len(found['notes']) - 8} more notes in the report")
  lines.append("next: " + found["next"]["text"])
  if found["next"]["command"]:
    lines.append("  " + found["next"]["command"])
  return "\n".join(lines)


def main(_) -> None:
  if not importlib.util.find_spec("matplotlib"):
    raise InputError("launch.fit draws figures and needs the extra: "
                     f"{installation.pip_install('plot')}")
  from isojax.frontier import plots  # needs matplotlib
  from isojax.frontier import report
  began = time.monotonic()
  rows, notes = rows_of(_RECORDS.value)
  study, more = study_lib.from_rows(rows, selection(_METRIC.value))
  wanted = options()
  writable(_OUT.value)
  fit = analysis.analyse(study, wanted)
  path = os.path.join(_OUT.value, "fit.json")
  notes = more + notes
  hill = document.scalerl_fields(study, min_C=_MIN_C.value, notes=notes)
  found = document.document(
      fit, others=of_all_metrics(fit, rows), hill=hill,
      matched=document.scalerl_matched(study, hill, min_C=_MIN_C.value),
      next_plan=proposal.next_plan(fit, path=path), notes=notes)
  try:
    figures = plots.save(found, _OUT.value)
    records.replace(os.path.join(_OUT.value, "report.html"),
                    report.html(found, figures).encode(errors="replace"))
    records.replace(path, json.dumps(found, allow_nan=False).encode())
  except OSError as error:
    raise InputError(f"--out={_OUT.value}: cannot be written ({error}); choose "
                     "another folder") from error
  print(summary(found))
  print(f"wrote {path}, {len(figures)} figures and report.html in "
        f"{time.monotonic() - began:.1f} s")


if __name__ == "__main__":
  cli.run(main)
