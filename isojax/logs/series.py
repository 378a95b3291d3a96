"""One run of any trainer, step by step, under the names of isojax's records."""

import collections
import dataclasses
import json
import pathlib
import re

from isojax.errors import InputError, UNREADABLE
from isojax.logs import granularity
from isojax.logs.fields import LISTED, nearest, Reading
from isojax.logs.formats import FORMATS
from isojax.logs.formats.base import EVAL_FIELDS, METRICS
from isojax.logs.log_file import LogFile, open_log
from isojax.logs.metrics import curve_lines, CurveNames, curves_of, not_all_zero
from isojax.logs.runs import Runs

# Names of columns that tell the runs of a table apart.
RUN_COLUMN = re.compile(
    r"(?i)(?:run|experiment|trial|arm|config|model|seed)(?:[_ ]?(?:id|name))?")
# Names of the parts of the reward in logs of TRL and of isojax.
PART = re.compile(r"(?:train/)?rewards/(?!eval/|train/|.*std)(.+?)(?:/mean)?|"
                  "reward_parts/(.+)")
# Fields of a training step that --columns may name besides EVAL_FIELDS.
FIELDS = sorted({field for name, form in FORMATS.items() if name != "isojax"
                 for field in form.fields} - EVAL_FIELDS)


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
  options: dict  # of the trainer, under its names, as far as the log has them
  settings: dict[str, str]  # see Format.settings
  notes: tuple[str, ...]
  numbered: bool = False  # the log has no step: `step` is the number of a line


def read(path: str, reading: Reading | None = None, *, run: str | None = None
         ) -> Series:
  """The series of one run; rewards keep their scale.

  `run` is its name, if the file has several. InputError if the file cannot be
  read, or `run` does not choose one of its runs.
  """
  file = open_log(path, reading or Reading())
  columns, form, runs = file.reading.columns, file.form, file.runs
  if run is None and len(runs) > 1 or run is not None and run not in runs:
    raise InputError(f"{path}: expected one run; " + (
        f"choose one of {', '.join(runs[:LISTED])}" if runs
        else "the file names none, so leave its name out"))
  log = Runs(file, run, more=FIELDS)
  run = next(iter(runs), None) if run is None else run
  fields, options = log.constants_of(run)
  source = {field: names[0] for field in form.fields
            if (names := not_all_zero(file, form.columns(field, file.numbers)))}
  source |= {field: name for field, name in columns.items() if field in FIELDS}
  source |= {name: name for name in file.numbers if PART.fullmatch(name)}
  names = source | {field: name for field, name in file.field_names()
                    if name in file.names and field not in METRICS}
  if file.kind == "table" and run is None and (column := _run_column(log)):
    raise InputError(
        f"{path}: " + ("no step, and" if file.step is None else "a step has")
        + f" rows of several {column}: they are not the steps of one run; "
        f"choose one with --columns=run_id={column} and --run=VALUE"
        + ("" if file.step else ", or name the step with --columns=step=NAME"))
  if "n" not in names:
    granularity.set_group_size(log, fields)
  train = _train(log, source, fields)
  numbered = bool(train) and file.step is None and not options.keys() & {
      "logging_steps"}
  for line in train:
    if {"Bp", "n"} <= line.keys() and not (numbered and "rollouts" not in line):
      line["rollouts"] = log.rollouts_after(run, line)
  evals = tuple({name: fields[name] for name in ("Bp", "n") if name in fields}
                | line for line in _evals(log))
  if not train and not evals:
    raise InputError(
        f"{path}: no known column of training steps or evaluations; the file "
        f"has numbers of {nearest('reward', file.numbers)}; name them, such as "
        "--columns=reward=NAME, or avg=NAME for an evaluation, or one of "
        + ", ".join(FIELDS) + file.left_out)
  notes = [f"{path}: {note}" for note in _notes(log, train, names)]
  if numbered:
    notes.insert(0, f"{path}: no step: the lines are numbered from 1, and "
                 "their updates and rollouts are not known; " + (
                     "--fixed=logging_steps=N says how many updates a line has"
                     if "logging_steps" in form.known_options else
                     "--columns=step=NAME names the step"))
  filtered = {form.settings["filter"]: True} if log.discarded and (
      "filter" in form.settings) else {}
  return Series(path, file.kind, tuple(train), evals, names,
                _estimator(file) | log.log_options | options | filtered,
                form.settings, (*notes, *file.notes), numbered)


def _notes(log: Runs, train: list[dict], names: dict[str, str]):
  """Yields notes on rewards that look wrong; `names` as in Series."""
  parts = {name: {line[name] for _, line in log.lines
                  if isinstance(line.get(name), (int, float))}
           for name in log.file.numbers if PART.fullmatch(name)}
  if zero := [name for name, values in parts.items() if values == {0}]:
    yield f"0 in every step: {', '.join(zero)}"
  total = names.get("reward")
  varied = [name for name, values in parts.items() if len(values) > 1]
  if len(varied) > 1 and total not in varied and len(
      {line["reward"] for line in train if "reward" in line}) == 1:
    yield (f"{', '.join(varied)} vary, and {total} does not: they cancel each "
           "other; change their weights.")
  if note := granularity.contradiction(log):
    yield note
  avg = log.file.reading.columns.get("avg")
  if avg is not None and total in (None, avg):
    yield (f"{avg!r} is read as an evaluation; if it is the reward of training "
           f"rollouts, give --columns=reward={avg}.")


def _run_column(log: Runs) -> str | None:
  """A column with several values at one step, as of different runs."""
  step, fields = log.file.step, dict(log.file.field_names())
  sizes = [fields.get("Bp"), fields.get("n")] if step else []
  for name in log.file.names:
    if RUN_COLUMN.fullmatch(name) or name in sizes:
      values = {(line.get(step), str(line.get(name))) for _, line in log.lines}
      if len(values) > len({at for at, _ in values}):
        return name
  return None


def _estimator(file: LogFile) -> dict:
  """The config's advantage, if the log is of isojax, beside a config.json."""
  if file.kind != "isojax":
    return {}
  try:
    text = pathlib.Path(file.path).with_name("config.json").read_text("utf-8")
    loss = json.loads(text)["config"]["recipe"]["loss"]
    return {"recipe.loss.advantage": loss["advantage"]}
  except UNREADABLE:
    return {}


def _train(log: Runs, source: dict, constant: dict) -> list[dict]:
  """A dict for each training step that has a value in the log."""
  steps, form, repeated = collections.defaultdict(dict), log.file.form, 0
  resumed = []  # (step, how many steps a resumed run has made again from it)
  counts = form.columns("zero_std_count", log.file.numbers)
  curve = CurveNames(None, None, source | {name: name for name in counts}, True)
  for _, _, order, _, line in curve_lines(log, [curve]):
    step = line.pop("step", order) + form.before_update
    group_counts = [line.pop(name) for name in counts if name in line]
    if group_counts and "Bp" in constant:
      line["zero_std"] = sum(group_counts) / constant["Bp"]
    line = {field: value for field, value in line.items()
            if field not in METRICS}
    if line.keys() & steps[step].keys() & source.keys():
      if dropped := _drop_from(steps, step):
        resumed.append((step, dropped))
      reward = line.get("reward")
      before = steps[step].get("reward")
      repeated += None not in (before, reward) and before != reward
    steps[step] |= line
  if resumed:
    log.file.note(f"{sum(count for _, count in resumed)} steps were made again "
                  f"from step {resumed[0][0]} on, by a resumed run: the later "
                  "lines are used.")
  if repeated:
    log.file.note(f"{repeated} lines have another reward of the step of an "
                  "earlier one, as of single rollouts or processes: the last "
                  "of each step is used; log the mean.")
  # A trainer may leave out a count of 0.
  zero = {"zero_std": 0.0} if counts and "Bp" in constant else {}
  return [{"step": step} | constant | zero | steps[step]
          for step in sorted(steps)]


def _evals(log: Runs) -> tuple[dict, ...]:
  """A dict for each evaluation of each set."""
  try:
    curves = [curve for curve in curves_of(log) if not curve.train]
  except InputError:  # a log without evaluations, and without rewards
    return ()
  all_fields = log.file.kind == "isojax"
  evals = collections.defaultdict(dict)  # (set, k) -> step -> its evaluation
  for position, (_, _, order, set_and_k, line) in enumerate(
      curve_lines(log, curves)):
    line = {"step": order} | set_and_k | {
        field: value for field, value in line.items()
        if all_fields or field in ("step", "Bp", "n", *METRICS)}
    steps = evals[line.get("eval_set"), line.get("k")]
    _, earlier = steps.get(line["step"], (None, {}))
    if earlier.keys() & line.keys() & {*METRICS}:
      _drop_from(steps, line["step"])
      earlier = {}
    steps[line["step"]] = position, earlier | line
  return tuple(line for _, line in sorted(
      (row for steps in evals.values() for row in steps.values()),
      key=lambda row: row[0]))


def _drop_from(steps: dict, first: float) -> int:
  """Drops a step and the later ones, which a resumed run has made again.

  A run that is not resumed writes each value of a step once. Returns how many
  steps were dropped.
  """
  if first == next(reversed(steps)):
    return 0
  again = [step for step in steps if step >= first]
  for step in again:
    del steps[step]
  return len(again)
