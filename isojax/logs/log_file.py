"""Opens a log with its format, in order of steps and without aborted runs."""

import dataclasses
import os
import pathlib
import re

from isojax.errors import InputError
from isojax.ledger import records
from isojax.logs.fields import nearest, Reading
from isojax.logs.formats import detect, FORMATS, text
from isojax.logs.formats.base import EVAL_FIELDS, Format, METRICS, parsed_number

LOG_CALLS = ("step is W&B's _step, which counts log calls in some trainers; "
             "if it does here, give --columns=step=NAME.")


MISSPELLED = re.compile(r"\s*-?\d+(?:[.,]\d+)?\s*%?\s*")  # 0,5 or 12%
# Names of evaluations.
EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:eval(?:uation)?|val(?:id(?:ation)?)?|test|held.?out)"
    r"(?:[^a-z]|$)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class LogFile:
  """A log with its format and the caller's names and constants."""

  path: str
  kind: str  # key of FORMATS
  form: Format
  table: list[tuple[str, dict]]  # (file:line, name -> value)
  names: list[str]  # of the values of all lines
  numbers: list[str]  # the names of which some value is a number
  head: str  # the text that a console printed before its metrics
  reading: Reading  # with columns as the file spells them
  notes: list[str]  # for the user; readers append to it

  @property
  def run_key(self) -> str:
    return self.reading.columns.get("run_id", "run_id")

  @property
  def step(self) -> str | None:
    """The name of the step in the file."""
    return step_name(self.form, self.reading, self.names)

  @property
  def default_run(self) -> str:
    return os.path.splitext(os.path.basename(self.path))[0]

  @property
  def runs(self) -> list[str]:
    return list(dict.fromkeys(
        run for _, line in self.table if (run := self.run(line)) is not None))

  def run(self, line: dict) -> str | None:
    return str(line[self.run_key]) if self.run_key in line else None

  def field_names(self) -> list[tuple[str, str]]:
    """(Field, its name in the file); the caller's come last and override."""
    columns, axis = self.reading.columns, self.reading.axis
    pairs = [(field, name) for field, name in (
        ("step", self.step), ("run_id", "run_id"), *self.form.names)
             if field not in columns and name]
    if axis not in ("rollouts", "updates", *columns):
      pairs.append((axis, axis))
    return pairs + [*columns.items()]

  @property
  def left_out(self) -> str:
    """The notes on lines and values that were left out, for an error."""
    place = re.compile(re.escape(self.path) + r":\d+: ")
    return "".join(f". {note}" for note in self.notes if place.match(note))

  def note(self, text: str) -> None:
    self.notes.append(f"{self.path}: {text}")


def step_name(form: Format, reading: Reading, names: list[str]) -> str | None:
  """The name of the step among `names`: the caller's, else the format's."""
  return reading.columns.get("step", next(
      (name for name in form.step if name in names), None))


LOG_FILES = "*.jsonl", "*.log", "*.csv", "trainer_state.json", "*tfevents*"


def file_of(path: str) -> str:
  """The path of the records in a run's folder; the path itself of a file."""
  records_path = os.path.join(path, "records.jsonl")
  if os.path.isfile(records_path):
    return records_path
  if os.path.isdir(path):
    logs = sorted(p.name for pattern in LOG_FILES
                  for p in pathlib.Path(path).glob(pattern))
    raise InputError(f"{path}: a folder; expected a log" + (
        f", such as {os.path.join(path, logs[0])}" if logs else ""))
  return path


def open_log(path: str, reading: Reading) -> LogFile:
  """The log at a path, in order of steps, and without aborted runs."""
  if reading.kind is not None and reading.kind not in FORMATS:
    raise InputError(f"--format={reading.kind}: expected one of "
                     f"{sorted(FORMATS)}")
  log = text.load(path)
  notes, table, kind = list(log.notes), log.lines, reading.kind
  names = _names(table)
  if kind is None:
    kind, example = detect(names)
    if kind != "isojax":
      notes.append(f"{path}: read as {kind}: " + (
          "no names of a known trainer" if example is None
          else f"names such as {example!r}") + "; --format=NAME overrides it.")
  form = FORMATS[kind]
  if note := _amend(path, form, [line for _, line in table]):
    notes.append(f"{path}: {note}")
  table, more = _with_numbers(table, _texts(form, reading), form)
  notes += more
  rows = _without_copies(table, step_name(form, reading, names))
  if copies := len(table) - len(rows):
    notes.append(f"{path}: {copies} lines are copies of an earlier one of "
                 "their step, as of several processes: left out.")
  table = rows
  if kind == "table" and named_groups(reading) and (
      "avg" not in reading.columns):
    table = _melted(table, names, reading.from_path)
  names = _names(table)
  numbers = [name for name in names if any(
      parsed_number(line.get(name)) is not None for _, line in table)]
  if not numbers:
    raise InputError(f"{path}: no numbers; expected one JSON object a line, "
                     "or CSV with a header")
  columns = _columns(path, reading, names, numbers)
  file = LogFile(path, kind, form, table, names, numbers, log.head,
                 dataclasses.replace(reading, columns=columns), notes)
  if "_step" in (reading.axis, *columns.values()):
    file.note(LOG_CALLS)
  if kind == "isojax":
    if "kind" in names and (damage := records.sound(path)[1]):
      notes.append(f"{damage}; its values are used as they are")
    return file
  keys = [file.run_key, *(columns.get(field, field)
                          for field in ("Bp", "n", "seed", "eval_set", "k"))]
  if not log.appended:
    file = _by_step(file, keys)
  return _without_aborted_runs(file, keys)


def _texts(form: Format, reading: Reading) -> set[str]:
  """The names of values that are texts, lists, or fields that must be right.

  A step that is no number is an error and not left out, see fields.typed.
  """
  fields = EVAL_FIELDS - {*METRICS}
  return {*fields, *form.step, *(name for _, name in form.names), *(
      name for field, name in reading.columns.items() if field in fields)}


def _with_numbers(table: list, texts: set[str], form: Format
                  ) -> tuple[list, list[str]]:
  """The table with numbers for what spells one, and notes on other values.

  In a name of numbers, a value that is none is left out, and in a known name a
  list or a misspelled number, too. This is the only place where the values of
  metrics are converted, so readers may rely on it.
  """
  rows = [(where, {
      name: value if name in texts or (
          found := parsed_number(value)) is None else found
      for name, value in line.items()}) for where, line in table]
  known = {name for name in _names(table) if EVALUATED.search(name) or any(
      form.columns(field, [name]) for field in form.fields)}
  numeric = {name for _, line in rows for name, value in line.items()
             if name not in texts and (is_number(value) or name in known and (
                 isinstance(value, list) or MISSPELLED.fullmatch(str(value))))}
  wrong = {}  # name -> (file:line, value) of what is no number
  for where, line in rows:
    for name in [name for name, value in line.items()
                 if name in numeric and not is_number(value)]:
      wrong.setdefault(name, []).append((where, line.pop(name)))
  return rows, [
      f"{places[0][0]}: {name} is {places[0][1]!r:.40}, no number: left out"
      + (f", and {len(places) - 1} more" if len(places) > 1 else "")
      for name, places in wrong.items()]


def _without_copies(table: list, step: str | None) -> list:
  """The table without copies of earlier lines since the step has changed."""
  rows, now, seen = [], None, set()
  for where, line in table:
    if line.get(step) != now:
      now, seen = line.get(step), set()
    if now is None or repr(line) not in seen:
      rows.append((where, line))
    seen.add(repr(line))
  return rows


def is_number(value) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _columns(path: str, reading: Reading, names: list[str], numbers: list[str]
             ) -> dict[str, str]:
  """Field -> the caller's column as the file spells it."""
  columns = {field: _spelled(name, names)
             for field, name in reading.columns.items()}
  for field, name in columns.items():
    if name not in names:
      raise InputError(f"{path}: no column {name!r} for {field}; the file "
                       f"has {nearest(name, names)}")
    if name not in numbers and field not in EVAL_FIELDS:
      raise InputError(f"{path}: {name!r} for {field} has no numbers; the file "
                       f"has numbers of {nearest(name, numbers)}")
  return columns


def _spelled(column: str, names: list[str]) -> str:
  """The caller's column as the file spells it.

  Nested names are joined by slashes here; users also write dots, and TRL's
  rewards have /mean in newer versions.
  """
  spellings = (column, column.replace(".", "/"), f"{column}/mean",
               column.removesuffix("/mean"))
  return next((name for name in spellings if name in names), column)


def _amend(path: str, form: Format, lines: list[dict]) -> str | None:
  """Corrects lines in place by the format's rule; returns a note."""
  try:
    return form.amend and form.amend(lines)
  except (TypeError, ValueError, OverflowError) as error:
    raise InputError(f"{path}: a step is no whole number ({error!s:.80}); "
                     "correct it, or give --format=table") from error


def named_groups(reading: Reading) -> list[str]:
  """The named groups of --from_path."""
  if reading.from_path is None:
    return []
  try:
    names = list(re.compile(reading.from_path).groupindex)
  except re.error as error:
    raise InputError(f"--from_path={reading.from_path}: not a regular "
                     f"expression ({error})") from error
  if not names:
    raise InputError(f"--from_path={reading.from_path}: no named group such as "
                     "(?P<n>\\d+)")
  return names


def _names(table) -> list[str]:
  return list(dict.fromkeys(name for _, line in table for name in line))


def _melted(table, names: list[str], from_path: str):
  """The table with a line for each run, if its columns are runs.

  The first column is the step, the others are runs if from_path matches all.
  """
  step, *runs = names
  if len(runs) < 2 or not all(re.search(from_path, run) for run in runs) or any(
      "run_id" in line for _, line in table):
    return table
  return [(where, {step: line[step], "run_id": run, "avg": line[run]})
          for where, line in table for run in runs
          if {step, run} <= line.keys()]


def _steps(file: LogFile, keys: list[str]):
  """Yields (index, values of `keys`, step) of the lines that have a step."""
  for index, (_, line) in enumerate(file.table):
    try:
      yield index, tuple(str(line.get(key)) for key in keys), float(
          line[file.step])
    except (KeyError, TypeError, ValueError, OverflowError):
      continue  # reported with the field's name when the line is used


def _by_step(file: LogFile, keys: list[str]) -> LogFile:
  """The file in the order of its steps, if each occurs once in a run."""
  rows = list(_steps(file, keys))
  by_run = sorted(rows, key=lambda row: row[1])
  in_order = by_run == sorted(by_run, key=lambda row: row[1:])
  unique = len({row[1:] for row in rows}) == len(file.table)  # each has a step
  if in_order or not unique:
    return file
  file.note(f"its rows are not in the order of {file.step!r}; they were sorted "
            "by it.")
  return dataclasses.replace(file, table=[
      file.table[index] for index, _, _ in sorted(
          rows, key=lambda row: row[2])])


def _without_aborted_runs(file: LogFile, keys: list[str]) -> LogFile:
  """The file without runs that were aborted and started again.

  A run starts again where the log returns to its first step and writes a name
  again. An attempt is dropped if the last one reached a later step; otherwise
  the file is refused.
  """
  # run -> its attempts: (names at the first step, [(index of a line, step)])
  runs = {}
  for index, run, step in _steps(file, keys):
    names = file.table[index][1].keys() - {file.step, *keys}
    attempts = runs.setdefault(run, [(names, [])])
    first_names, lines = attempts[-1]
    if lines and step <= lines[0][1] < lines[-1][1] and names & first_names:
      attempts.append((names, [(index, step)]))
      continue
    lines.append((index, step))
    if step <= lines[0][1]:
      first_names |= names  # in place, in the attempt
  where = lambda index: file.table[index][0]
  dropped = set()
  for *aborted, (_, last) in runs.values():
    (begin, start_step), (_, last_step) = last[0], last[-1]
    for _, lines in aborted:
      (first, _), (_, reached) = lines[0], lines[-1]
      if reached >= last_step:
        raise InputError(
            f"{where(begin)}: the log starts again at step {start_step:g}, "
            f"after step {reached:g} of the run from {where(first)}; delete "
            "one run, or separate them with --columns=run_id=NAME, seed or "
            "eval_set")
      file.notes.append(
          f"{where(first)}: a run that ended at step {reached:g} and was "
          f"started again at {where(begin)}: left out.")
      dropped |= {index for index, _ in lines}
  return dataclasses.replace(file, table=[
      line for index, line in enumerate(file.table) if index not in dropped])
