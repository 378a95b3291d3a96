"""One run of any trainer, step by step, under the names of isojax's records."""

import collections
import dataclasses
import json
import math
import pathlib

from isojax.errors import InputError
from isojax.frontier.constants import (
  check_flags,
  constants,
  in_names,
  options_of,
)
from isojax.frontier.fields import Reading, typed
from isojax.frontier.formats.base import KNOWN, METRICS, ROLLOUTS
from isojax.frontier.formats.text import has
from isojax.frontier.log_file import LogFile, open_log
from isojax.frontier.metrics import curves_of, set_of
from isojax.frontier.spent import Spent, step_of

SHARES = 12  # of groups, between 0 and 1, that tell their size

@dataclasses.dataclass(frozen=True)
class Series:
  """What one run logged."""

  path: str
  trainer: str  # key of formats.FORMATS; table: no trainer is known
  # One dict for each training step, with the fields of `Format.fields` that
  # the log has, and with step, Bp, n and rollouts (C after the step) if known.
  train: tuple[dict, ...]
  evals: tuple[dict, ...]  # step, avg, best, worst, k, eval_set, if known
  names: dict[str, str]  # field -> its name in the log
  options: dict  # of the trainer, under its names, that the log tells
  settings: dict[str, str]  # what one changes -> the trainer's option for it
  notes: tuple[str, ...]


def read(path: str, how: Reading | None = None, *, run: str | None = None
         ) -> Series:
  """The series of one run; rewards keep their scale.

  Args:
    path: of the log.
    how: columns and constants that the format does not tell.
    run: its name, if the file has several.

  Raises:
    InputError: the file cannot be read, or has several runs.
  """
  file = open_log(path, how or Reading())
  check_flags(file)
  runs = file.runs
  if run is None and len(runs) > 1 or run is not None and run not in runs:
    raise InputError(f"{path}: expected one run; choose one of "
                     f"{', '.join(runs[:12])}")
  named, beside = in_names(file), options_of(file)
  known = run if run is not None else next(iter(runs), None)
  if not named.keys() & {None, known}:
    raise InputError(f"{path}: --from_path does not match the run {known}")
  fields, options = constants(
      file, named[None if None in named else known], beside)
  spent = Spent(file)
  spent.complete(fields)
  lines = [line for line in file.table if run in (None, file.run(line[1]))]
  if file.kind == "isojax":
    kinds = {kind: tuple(
        {name: _value(file, at, value, name) for name, value in line.items()}
        for at, line in lines if line.get("kind") == kind)
             for kind in ("train", "eval")}
    return Series(path, file.kind, kinds["train"], kinds["eval"],
                  {name: name for name in file.names},
                  _estimator(path) | beside | options,
                  file.form.settings, tuple(file.notes))
  names = {field: found[0] for field in file.form.fields
           if (found := file.form.columns(field, file.names))}
  names |= {field: name for field, name in file.places()
            if name in file.names and field not in METRICS}
  train = _train(file, lines, names, fields, options)
  if "n" not in fields.keys() | names.keys() and (
      n := _group_size(train, spent.counts[known])):
    fields["n"] = n
    spent.complete(fields)
    file.notes.append(f"{path}: n = {n} and Bp = {fields['Bp']} are from the "
                      "rollouts and the shares of groups of each step.")
    train = [fields | line for line in train]
  for line in train:
    if {"Bp", "n"} <= line.keys():
      line["rollouts"] = spent.after(known, line, options)
  return Series(path, file.kind, tuple(train),
                _evals(file, lines, fields, options, spent), names,
                beside | options,
                file.form.settings, tuple(file.notes))


def _group_size(train: list[dict], counts: dict) -> int | None:
  """The largest n at which the shares of groups are whole numbers of groups.

  With few shares between 0 and 1, a multiple of n may fit by chance: None.

  Args:
    train: steps with all_wrong and all_right.
    counts: step -> the rollouts of the step, by their unit.
  """
  steps = [(round(counts[line["step"]][ROLLOUTS]), line[name])
           for line in train for name in ("all_wrong", "all_right")
           if ROLLOUTS in counts.get(line["step"], {})
           and 0 < line.get(name, 0) < 1]
  if len(steps) < SHARES:
    return None
  size = math.gcd(*(rollouts for rollouts, _ in steps))
  return next((n for n in range(size, 1, -1) if size % n == 0 and all(
      abs(share * rollouts / n - round(share * rollouts / n)) < 1e-3
      for rollouts, share in steps)), None)


def _estimator(path: str) -> dict:
  """The advantage of a run of isojax, if its config.json is there."""
  try:
    text = pathlib.Path(path).with_name("config.json").read_text("utf-8")
    loss = json.loads(text)["config"]["recipe"]["loss"]
    return {"recipe.loss.advantage": loss["advantage"]}
  except (OSError, ValueError, KeyError, TypeError):
    return {}


def _train(file: LogFile, lines, names: dict, fields: dict, options: dict
           ) -> list[dict]:
  """A dict for each step with a value of a training field."""
  steps = collections.defaultdict(dict)
  counts = file.form.columns("zero_std_count", file.names)
  for order, (at, line) in enumerate(lines, 1):
    values = {field: _value(file, at, line[name], field, name)
              for field, name in names.items()
              if field != "step" and has(line, name)}
    if not values.keys() & file.form.fields.keys():
      continue
    step = _step(file, at, line, order, options)
    equal = [float(line[name]) for name in counts if has(line, name)]
    if equal and "Bp" in fields:
      values["zero_std"] = sum(equal) / fields["Bp"]
    steps[step + file.form.before_update] |= values
  none = {"zero_std": 0.0} if counts and "Bp" in fields else {}
  return [{"step": step} | fields | none | steps[step]
          for step in sorted(steps)]


def _evals(file: LogFile, lines, fields: dict, options: dict, spent: Spent
           ) -> tuple[dict, ...]:
  """A dict for each evaluation of each set."""
  try:
    curves = curves_of(file, fields, sized=spent.step_size is not None)
  except InputError:  # a log without evaluations, and without rewards
    return ()
  return tuple(
      {"step": _step(file, at, line, order, options),
       "eval_set": curve.eval_set or set_of(file.form, line),
       "k": curve.k} | values
      for order, (at, line) in enumerate(lines, 1)
      for curve in curves if not curve.train
      if (values := {field: _value(file, at, line[name], field, name)
                     for field, name in curve.source.items()
                     if field in METRICS and has(line, name)}))


def _step(file: LogFile, at: int, line: dict, order: int, options: dict
          ) -> int:
  """The step of a line; its number if the file has none."""
  step, name = step_of(file, line, options) or (
      line.get("logged", order), "step")
  return typed(f"{file.path}:{at}", step, "step", name)


def _value(file: LogFile, at: int, value, field: str, name: str | None = None):
  """A value as in records; W&B writes NaN as text, and CSV numbers."""
  if value is None or value == "":
    return None
  if field in KNOWN:
    return typed(f"{file.path}:{at}", value, field, name)
  try:
    return float(value)
  except (TypeError, ValueError):
    return value
