"""One run of any trainer, step by step, under the names of isojax's records."""

import collections
import dataclasses

from isojax.errors import InputError
from isojax.frontier.constants import (
  check_flags,
  constants,
  in_names,
  options_of,
)
from isojax.frontier.fields import Reading, typed
from isojax.frontier.formats.base import METRICS
from isojax.frontier.formats.text import has
from isojax.frontier.log_file import LogFile, open_log
from isojax.frontier.metrics import curves_of
from isojax.frontier.spent import Spent


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
  named = in_names(file)
  beside = options_of(file)
  fields, options = constants(file, next(iter(named.values())), beside)
  spent = Spent(file)
  spent.complete(fields)
  lines = [line for line in file.table if run in (None, file.run(line[1]))]
  if file.kind == "isojax":
    kinds = {kind: tuple(line for _, line in lines if line.get("kind") == kind)
             for kind in ("train", "eval")}
    return Series(path, file.kind, kinds["train"], kinds["eval"],
                  {name: name for name in file.names}, beside | options,
                  file.form.settings, tuple(file.notes))
  names = {field: found[0] for field in file.form.fields
           if (found := file.form.columns(field, file.names))}
  names |= {field: name for field, name in file.places()
            if name in file.names and field not in METRICS}
  train = _train(file, lines, names, fields)
  for line in train if {"Bp", "n"} <= fields.keys() else ():
    line["rollouts"] = spent.after(run, line, options)
  return Series(path, file.kind, tuple(train),
                _evals(file, lines, fields, spent), names, beside | options,
                file.form.settings, tuple(file.notes))


def _train(file: LogFile, lines, names: dict, fields: dict) -> list[dict]:
  """A dict for each step with a value of a training field."""
  steps = collections.defaultdict(dict)
  counts = file.form.columns("zero_std_count", file.names)
  for order, (at, line) in enumerate(lines, 1):
    values = {field: _number(line[name]) for field, name in names.items()
              if field != "step" and has(line, name)}
    if not values.keys() & file.form.fields.keys():
      continue
    step = _step(file, at, line, order)
    equal = [float(line[name]) for name in counts if has(line, name)]
    if equal and "Bp" in fields:
      values["zero_std"] = sum(equal) / fields["Bp"]
    steps[step + file.form.before_update] |= values
  none = {"zero_std": 0.0} if counts and "Bp" in fields else {}
  return [{"step": step} | fields | none | steps[step]
          for step in sorted(steps)]


def _evals(file: LogFile, lines, fields: dict, spent: Spent
           ) -> tuple[dict, ...]:
  """A dict for each evaluation of each set."""
  try:
    curves = curves_of(file, fields, sized=spent.step_size is not None)
  except InputError:  # a log without evaluations, and without rewards
    return ()
  return tuple(
      {"step": _step(file, at, line, order), "eval_set": curve.eval_set,
       "k": curve.k} | values
      for order, (at, line) in enumerate(lines, 1)
      for curve in curves if not curve.train
      if (values := {field: _number(line[name]) for field, name
                     in curve.source.items()
                     if field in METRICS and has(line, name)}))


def _step(file: LogFile, at: int, line: dict, order: int) -> int:
  """The step of a line; its number if the file has none."""
  if not (file.step and has(line, file.step)):
    return int(line.get("logged", order))
  return typed(f"{file.path}:{at}", line[file.step], "step", file.step)


def _number(value):
  """A number if it is one; W&B writes NaN as text."""
  try:
    return float(value)
  except (TypeError, ValueError):
    return value
