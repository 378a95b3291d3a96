"""A log file with its format, its lines in order and without aborted runs."""

import dataclasses
import os
import pathlib
import re

from isojax.errors import InputError
from isojax.ledger import records
from isojax.logs.fields import nearest, Reading
from isojax.logs.formats import detect, FORMATS, text
from isojax.logs.formats.base import Format

LOG_CALLS = ("step is W&B's _step, which counts log calls in some trainers; "
             "else give --columns=step=NAME.")


@dataclasses.dataclass(frozen=True)
class LogFile:
  """A log, and what the caller said about it."""

  path: str
  kind: str
  form: Format
  table: list[tuple[str, dict]]  # (file:line, name -> value)
  names: list[str]
  head: str  # what a console printed before its metrics
  how: Reading  # columns as the file writes them
  notes: list[str]  # is extended

  @property
  def run_key(self) -> str:
    return self.how.columns.get("run_id", "run_id")

  @property
  def step(self) -> str | None:
    return self.how.columns.get("step", next(
        (name for name in self.form.step if name in self.names), None))

  @property
  def default_run(self) -> str:
    return os.path.splitext(os.path.basename(self.path))[0]

  @property
  def runs(self) -> list[str]:
    return list(dict.fromkeys(
        run for _, line in self.table if (run := self.run(line)) is not None))

  def run(self, line: dict) -> str | None:
    return str(line[self.run_key]) if self.run_key in line else None

  def places(self) -> list[tuple[str, str]]:
    """(Field, its name in the file), the caller's names last."""
    columns, axis = self.how.columns, self.how.axis
    out = [(field, name) for field, name in (
        ("step", self.step), ("run_id", "run_id"), *self.form.names)
           if field not in columns and name]
    if axis not in ("rollouts", "updates", *columns):
      out.append((axis, axis))
    return out + [*columns.items()]

  def note(self, text: str) -> None:
    self.notes.append(f"{self.path}: {text}")


LOGS = "*.jsonl", "*.log", "*.csv", "trainer_state.json", "*tfevents*"


def file_of(path: str) -> str:
  """The records of a run's folder, or the path; InputError: another folder."""
  records_path = os.path.join(path, "records.jsonl")
  if os.path.isfile(records_path):
    return records_path
  if os.path.isdir(path):
    logs = sorted(p.name for pattern in LOGS
                  for p in pathlib.Path(path).glob(pattern))
    raise InputError(f"{path}: a folder; expected a log" + (
        f", such as {os.path.join(path, logs[0])}" if logs else ""))
  return path


def open_log(path: str, how: Reading) -> LogFile:
  """The file with its format, in order, and without aborted runs."""
  if how.kind is not None and how.kind not in FORMATS:
    raise InputError(f"--format={how.kind}: expected one of {sorted(FORMATS)}")
  log = text.load(path)
  notes, table, kind = list(log.notes), log.lines, how.kind
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
  if kind == "table" and groups(how) and "avg" not in how.columns:
    table = _melted(table, names, how.from_path)
  names = _names(table)
  # nested names are joined by slashes here; users also write dots, and TRL's
  # rewards have /mean in newer versions
  columns = {field: next((other for other in (
      name, name.replace(".", "/"), f"{name}/mean", name.removesuffix("/mean"))
                          if other in names), name)
             for field, name in how.columns.items()}
  for field, name in columns.items():
    if name not in names:
      raise InputError(f"{path}: no column {name!r} for {field}; the file "
                       f"has {nearest(name, names)}")
  file = LogFile(path, kind, form, table, names, log.head,
                 dataclasses.replace(how, columns=columns), notes)
  if "_step" in (how.axis, *columns.values()):
    file.note(LOG_CALLS)
  if kind == "isojax":
    if "kind" in names and (damage := records.sound(path)[1]):
      notes.append(f"{damage}; its values are used as they are")
    return file
  keys = [file.run_key, *(columns.get(field, field)
                          for field in ("Bp", "n", "seed", "eval_set", "k"))]
  if not log.appended:
    file = _by_step(file, keys)
  return _last_start(file, keys)


def _amend(path: str, form: Format, lines: list[dict]) -> str | None:
  """Makes the steps of a trainer those of isojax, in place; returns a note."""
  try:
    return form.amend and form.amend(lines)
  except (TypeError, ValueError, OverflowError) as error:
    raise InputError(f"{path}: a step is no whole number ({error!s:.80}); "
                     "correct it, or give --format=table") from error


def groups(how: Reading) -> list[str]:
  """The named groups of --from_path."""
  if how.from_path is None:
    return []
  try:
    names = list(re.compile(how.from_path).groupindex)
  except re.error as error:
    raise InputError(f"--from_path={how.from_path}: not a regular expression "
                     f"({error})") from error
  if not names:
    raise InputError(f"--from_path={how.from_path}: no named group such as "
                     "(?P<n>\\d+)")
  return names


def _names(table) -> list[str]:
  return list(dict.fromkeys(name for _, line in table for name in line))


def _melted(table, names: list[str], from_path: str):
  """A table whose columns are runs as one with a line for each run.

  The first name is the step, the others are runs if from_path matches all.
  """
  step, *runs = names
  if len(runs) < 2 or not all(re.search(from_path, run) for run in runs) or any(
      "run_id" in line for _, line in table):
    return table
  return [(where, {step: line[step], "run_id": run, "avg": line[run]})
          for where, line in table for run in runs
          if {step, run} <= line.keys()]


def _steps(file: LogFile, keys: list[str]):
  """Yields (index, run, step) of the lines that have a step."""
  for at, (_, line) in enumerate(file.table):
    try:
      yield at, tuple(str(line.get(key)) for key in keys), float(
          line[file.step])
    except (KeyError, TypeError, ValueError):
      continue  # reported with the field's name when the line is used


def _by_step(file: LogFile, keys: list[str]) -> LogFile:
  """The file in the order of its steps, if each occurs once in a run."""
  known = list(_steps(file, keys))
  by_run = sorted(known, key=lambda row: row[1])
  if len(known) < len(file.table) or len({row[1:] for row in known}) < len(
      known) or by_run == sorted(by_run, key=lambda row: row[1:]):
    return file
  file.note(f"its rows are not in the order of {file.step!r}; they were sorted "
            "by it.")
  return dataclasses.replace(file, table=[
      file.table[at] for at, _, _ in sorted(known, key=lambda row: row[2])])


def _last_start(file: LogFile, keys: list[str]) -> LogFile:
  """The file without runs that were aborted and started again.

  A run starts again where the log returns to its first step and writes a name
  a second time. Lines before it are dropped if they end at an earlier step;
  otherwise the earlier run is the longer one, and the file is refused.
  """
  runs = {}  # run -> its parts: (names at the first step, [(at, step)])
  for at, run, step in _steps(file, keys):
    names = file.table[at][1].keys() - {file.step, *keys}
    parts = runs.setdefault(run, [(names, [])])
    first, lines = parts[-1]
    if lines and step <= lines[0][1] < lines[-1][1] and names & first:
      parts.append((names, [(at, step)]))
      continue
    lines.append((at, step))
    if step <= lines[0][1]:
      first |= names
  where = lambda at: file.table[at][0]
  dropped = set()
  for *earlier, (_, last) in runs.values():
    (begin, start), (_, end) = last[0], last[-1]
    for _, lines in earlier:
      (first, _), (_, reached) = lines[0], lines[-1]
      if reached >= end:
        raise InputError(
            f"{where(begin)}: the log starts again at step {start:g}, after "
            f"step {reached:g} of the run from {where(first)}; delete one run, "
            "or separate them with --columns=run_id=NAME, seed or eval_set")
      file.notes.append(
          f"{where(first)}: a run that ended at step {reached:g} and was "
          f"started again at {where(begin)}: left out.")
      dropped |= {at for at, _ in lines}
  return dataclasses.replace(file, table=[
      line for at, line in enumerate(file.table) if at not in dropped])
