"""Fits the law n*(C) to the evaluations of many runs.

  python -m launch.fit runs/*/records.jsonl
  python -m launch.fit verl-n8.log verl-n16.log --out=fit

Reads records of isojax or logs of another trainer, whose format is detected.
Writes fit.json (for launch.plan --law), figures and report.html to --out.
"""

import dataclasses
import importlib
import os
import time

from absl import flags

from isojax.core import cli
from isojax.frontier import bootstrap, collapse, curves, fit_json
from isojax.frontier import study as study_lib
from isojax.logs import reading
from isojax.report import html
from launch import log_flags, record_flags

flags.adopt_module_key_flags(record_flags)

_RECORDS = flags.DEFINE_list(
    "records", ["runs/*/records.jsonl"], "Files or patterns, separated by "
    "commas; also in a bucket (gs://). Files may also be named without a flag, "
    "in addition or instead of the default.")
_OUT = flags.DEFINE_string("out", "fit", "Folder for the output.")
_AXIS = flags.DEFINE_string(
    "axis", "rollouts", "Compute: rollouts, sampled_tokens, device_seconds, "
    "any column, or a field of --columns; updates: n*(M) at a fixed --B.")
_BP = flags.DEFINE_integer("Bp", None, "Only runs with this Bp.")
_B = flags.DEFINE_integer("B", None, "Only runs with this Bp * n.")
_ONLY = flags.DEFINE_string(
    "only", None, "Only runs with this name, which may have wildcards: "
    "'*-qwen-*'.")
_DEFAULT = bootstrap.DEFAULT
_POINTS = flags.DEFINE_enum(
    "points", _DEFAULT.points.select, ["all", "records"], "Evaluations to fit: "
    "all, or only record-breaking ones (the paper: with --bin_width=0.01).")
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
_COLLAPSE = flags.DEFINE_enum(
    "collapse", _DEFAULT.collapse, collapse.TREATMENTS, "Runs whose last "
    "evaluation is below their best by more than 3 standard errors: fit them "
    "up to the fall, not at all, or as they are.")
_MARGIN = flags.DEFINE_float(
    "margin", _DEFAULT.margin, "n whose reward is behind the best n by at most "
    "this are as good.", lower_bound=0.0, upper_bound=1.0)
_DRAWS = flags.DEFINE_integer(
    "draws", _DEFAULT.draws, "Bootstrap draws.", lower_bound=100)


def options() -> bootstrap.Options:
  return dataclasses.replace(
      _DEFAULT, form=_FORM.value, draws=_DRAWS.value,
      collapse=_COLLAPSE.value, margin=_MARGIN.value, points=curves.PointRule(
          select=_POINTS.value, ema=_EMA.value, min_C=_MIN_C.value,
          bin_width=_BIN_WIDTH.value))


def main(argv) -> None:
  importlib.import_module("isojax.report.plots")  # early: needs matplotlib
  start = time.monotonic()
  paths = argv[1:]  # also the rest of what a shell made of --records *.log
  if not paths or flags.FLAGS["records"].present:
    paths = [*_RECORDS.value, *paths]
  rows, notes = record_flags.rows_of(paths, axis=_AXIS.value, flag="records")
  rows, more = reading.budgets(rows)
  selection = study_lib.Selection(
      axis=_AXIS.value, metric=record_flags.METRIC.value,
      at_k=record_flags.AT_K.value, eval_set=log_flags.EVAL_SET.value,
      Bp=_BP.value, B=_B.value, only=_ONLY.value)
  study, study_notes = study_lib.from_rows(rows, selection)
  fit_options = options()
  log_flags.make_writable(_OUT.value)
  path = os.path.join(_OUT.value, "fit.json")
  document = fit_json.of_rows(study, rows, selection, fit_options,
                              notes=more + study_notes + notes, path=path)
  html.save(document, _OUT.value)
  print(html.summary(document))
  print(f"wrote {path}, the figures and report.html in "
        f"{time.monotonic() - start:.1f} s")


if __name__ == "__main__":
  cli.run(main, words=True)
