"""Fits the law n*(C) to the evaluations of many runs.

  python -m launch.fit runs/*/records.jsonl
  python -m launch.fit verl-n8.log verl-n16.log --out=fit

Reads records of isojax or logs of another trainer, whose format it finds out;
writes fit.json (for launch.plan --law), figures and report.html to --out.
"""

import dataclasses
import importlib.util
import json
import os
import time

from absl import flags

from isojax import cli
from isojax import installation
from isojax.errors import InputError
from isojax.format import many
from isojax.frontier import analysis
from isojax.frontier import bootstrap
from isojax.frontier import curves
from isojax.frontier import labels
from isojax.frontier import next_sweep
from isojax.frontier.io import fit_json
from isojax.frontier.io import formats
from isojax.frontier.io import selection
from isojax.ledger import records
from launch import record_flags

_RECORDS = flags.DEFINE_list(
    "records", ["runs/*/records.jsonl"], "Files or patterns, separated by "
    "commas; also in a bucket (gs://). Files named without a flag replace it.")
_OUT = flags.DEFINE_string("out", "fit", "Folder for the output.")
_AXIS = flags.DEFINE_string(
    "axis", "rollouts", "Compute: rollouts, sampled_tokens, device_seconds, "
    "any column, or a field of --columns; updates: n*(M) at a fixed --B.")
_BP = flags.DEFINE_integer("Bp", None, "Only runs with this Bp.")
_B = flags.DEFINE_integer("B", None, "Only runs with this Bp * n.")
_DEFAULT = bootstrap.DEFAULT
_POINTS = flags.DEFINE_enum(
    "points", _DEFAULT.points.select, ["all", "records"], "Evaluations to fit: "
    "all, or only record-breaking ones as in the paper.")
_BIN_WIDTH = flags.DEFINE_float(
    "bin_width", _DEFAULT.points.bin_width, "Width of the reward bins for "
    "--points=records; 0: every rise is a record.")
_EMA = flags.DEFINE_float(
    "ema", _DEFAULT.points.ema, "Weight of the past in a moving average of the "
    "evaluations; 0: no average.", lower_bound=0.0, upper_bound=0.999)
_MIN_C = flags.DEFINE_float(
    "min_C", _DEFAULT.points.min_C, "Smallest compute that is fitted.")
_FORM = flags.DEFINE_enum(
    "form", _DEFAULT.form, sorted(curves.FORMS), "Form of the reward curves.")
_DRAWS = flags.DEFINE_integer(
    "draws", _DEFAULT.draws, "Bootstrap draws.", lower_bound=100)


def selected(metric: str) -> selection.Selection:
  """Returns which of the records form the study."""
  return selection.Selection(
      axis=_AXIS.value, metric=metric, at_k=record_flags.AT_K.value,
      eval_set=record_flags.EVAL_SET.value, Bp=_BP.value, B=_B.value)


def options() -> bootstrap.Options:
  """Returns the options of the analysis from the flags."""
  return dataclasses.replace(
      _DEFAULT, form=_FORM.value, draws=_DRAWS.value, points=curves.Points(
          select=_POINTS.value, ema=_EMA.value, min_C=_MIN_C.value,
          bin_width=_BIN_WIDTH.value))


def of_all_metrics(fit, rows) -> dict:
  """Returns metric -> fit of the same runs, for each metric in the records."""
  fits = {fit.study.metric: fit}
  for metric in formats.METRICS:
    try:
      study, _ = selection.from_rows(rows, selected(metric))
    except InputError:  # a log without this metric
      continue
    if study.metric not in fits:
      fits[study.metric] = analysis.analyse(study, options())
  return fits


def summary(found: dict) -> str:
  """Returns the verdict, the law and the next step, for the terminal."""
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
            for name, value, interval in labels.parameters(found)}
    lines.append(
        ("law: " if verdict["identified"] else
         "law, not identified, do not use: ")
        + ", ".join(f"{name} = {text}" for name, text in said.items())
        + f"; {labels.axis_of(study)[0]} in {study['axis']}")
  lines += [f"  note: {note}" for note in found["notes"][:8]]
  if len(found["notes"]) > 8:
    lines.append(f"  and {len(found['notes']) - 8} more notes in the report")
  lines.append("next: " + found["next"]["text"])
  if found["next"]["command"]:
    lines.append("  " + found["next"]["command"])
  return "\n".join(lines)


def main(argv) -> None:
  if not importlib.util.find_spec("matplotlib"):
    raise InputError("launch.fit draws figures and needs the extra: "
                     f"{installation.pip_install('plot')}")
  from isojax.frontier.report import html
  from isojax.frontier.report import plots  # needs matplotlib
  began = time.monotonic()
  rows, notes = record_flags.rows_of(
      argv[1:] or _RECORDS.value, axis=_AXIS.value, flag="records")
  study, more = selection.from_rows(rows, selected(record_flags.METRIC.value))
  wanted = options()
  record_flags.writable(_OUT.value)
  fit = analysis.analyse(study, wanted)
  path = os.path.join(_OUT.value, "fit.json")
  notes = more + notes
  hill = fit_json.scalerl_fields(study, min_C=_MIN_C.value, notes=notes)
  found = fit_json.document(
      fit, others=of_all_metrics(fit, rows), hill=hill,
      matched=fit_json.scalerl_matched(study, hill, min_C=_MIN_C.value),
      next_plan=next_sweep.next_plan(fit, path=path), notes=notes)
  try:
    figures = plots.save(found, _OUT.value)
    records.replace(os.path.join(_OUT.value, "report.html"),
                    html.page(found, figures).encode(errors="replace"))
    records.replace(path, json.dumps(found, allow_nan=False).encode())
  except OSError as error:
    raise InputError(f"--out={_OUT.value}: cannot be written ({error}); choose "
                     "another folder") from error
  print(summary(found))
  print(f"wrote {path}, {len(figures)} figures and report.html in "
        f"{time.monotonic() - began:.1f} s")


if __name__ == "__main__":
  cli.run(main, words=True)
