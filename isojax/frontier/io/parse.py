"""Reads text files as flat lines of names and values, with line numbers.

Reads CSV, JSON lines, one JSON document, or the console output of a trainer. An
incomplete last line is dropped and a few broken lines are skipped, both with a
note; a file of another kind is an error.
"""

import csv
import dataclasses
import io
import json
import math
import os
import re

from isojax.errors import InputError
from isojax.frontier.io import console
from isojax.ledger import records

BROKEN_SHARE = 0.1  # of the lines; with more the file is of another kind
COMMA = re.compile(r"\s*-?\d+,\d+(?:[eE][-+]?\d+)?\s*")  # a decimal comma


@dataclasses.dataclass(frozen=True)
class Log:
  """The lines of a file, and what a console printed before them."""
  lines: list[tuple[int, dict]]  # (line number, name -> value)
  notes: list[str]
  head: str  # text before the first line of metrics; empty for other files
  appended: bool  # in the order of time, as a CSV file need not be


def load(path: str) -> Log:
  """Returns the lines of a file, with notes on skipped ones.

  Raises:
    InputError: the file cannot be read, or is neither table, JSON nor console
      output.
  """
  text, whole = _text(path)
  if text.lstrip()[0] in "{[" or path.lower().endswith(
      (".json", ".jsonl", ".ndjson")):
    try:
      return Log(_document(text), [], "", True)
    except (ValueError, RecursionError):
      pass
    try:
      return Log(*_json_lines(path, text), "", True)
    except InputError:
      if (output := console.read(text)) is None:
        raise
  else:
    output = console.read(text)
  if output is not None:
    return Log(output.lines, [f"{path}: {note}" for note in output.notes],
               output.head, True)
  if not whole:
    raise InputError(
        f"{path}: not UTF-8 text; expected CSV or JSON lines: decompress it, "
        "save it as UTF-8, or export the curves of a TensorBoard file as CSV")
  return Log(*_csv(path, text), "", False)


def there(line: dict, name: str) -> bool:
  """Returns whether the line has a value of that name; NaN is a value."""
  return name in line and line[name] is not None and line[name] != ""


def _text(path: str) -> tuple[str, bool]:
  """Returns the text of a file, and whether all of it is UTF-8 text.

  Console output may contain other bytes: NCCL prints NUL.
  """
  if os.path.isdir(path):
    names = sorted(os.listdir(path))
    if "records.jsonl" in names:  # a run of isojax
      raise InputError(f"{path}: a folder; expected a file: "
                       f"{os.path.join(path, 'records.jsonl')}")
    raise InputError(
        f"{path}: a folder; expected a file such as metrics.jsonl or "
        f"trainer_state.json; it contains {names}")
  try:
    data = records.content(path)
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({error.strerror}); expected the "
                     "path of a log or a table") from error
  text = data.decode("utf-8-sig", errors="replace")
  whole = "\0" not in text and "\ufffd" not in text
  if not text.strip():
    raise InputError(f"{path}: empty; expected one evaluation a line")
  if text.lstrip().startswith("<"):
    raise InputError(f"{path}: a web page or XML; expected CSV or JSON lines: "
                     "download the file itself")
  return text, whole


def _document(text: str) -> list[tuple[int, dict]]:
  """Returns the lines of one JSON value: a list, or a trainer_state.json.

  Raises:
    ValueError: the text is neither.
  """
  state = isinstance(json.loads(text), dict)
  at = text.index("[", text.index('"log_history"') if state else 0) + 1
  decoder, between = json.JSONDecoder(), re.compile(r"[\s,]*")
  lines, number, counted = [], 1, 0
  while text[at := between.match(text, at).end()] != "]":
    number, counted = number + text.count("\n", counted, at), at
    line, at = decoder.raw_decode(text, at)
    if not isinstance(line, dict):
      raise ValueError("not a list of objects")
    # a trainer's state has null where a mean is NaN
    lines.append((number, _flat(line, null=math.nan if state else None)))
  return lines


def _json_lines(path: str, text: str):
  """Returns the lines of a file of JSON lines, and notes."""
  *whole, last = text.split("\n")
  lines, broken, notes = [], [], []
  for number, line in enumerate((*whole, last), 1):
    if not line.strip():
      continue
    try:
      value = json.loads(line)
      if not isinstance(value, dict):
        raise ValueError("not an object")
    except (ValueError, RecursionError):
      if number > len(whole) > 0:
        notes.append(f"{path}:{number}: the last line is torn: dropped.")
      else:
        broken.append((number, 1, "not a JSON object"))
      continue
    if value.keys() == {"step", "data"} and isinstance(value["data"], dict):
      # verl's file logger, which writes NaN as null
      value = {"step": value["step"], **_flat(value["data"], null=math.nan)}
    lines.append((number, _flat(value, null=None)))
  total = len(lines) + len(broken)
  return lines, _judge(path, broken, total, notes)


def _flat(value: dict, *, null) -> dict:
  """Returns a flat line: nested names joined by slashes, nulls as `null`."""
  line = {}
  for name, part in value.items():
    if isinstance(part, dict):
      line |= {f"{name}/{k}": v for k, v in _flat(part, null=null).items()}
    else:
      line[name] = null if part is None else part
  return line


def _csv(path: str, text: str):
  """Returns the lines of a table with a header, and notes."""
  first = text.lstrip().split("\n", 1)[0]
  reader = csv.reader(io.StringIO(text, newline=""),
                      delimiter=max(",\t;", key=first.count))
  rows, end = [], 0
  try:
    for row in reader:
      if row:
        rows.append((end + 1, reader.line_num, row))
      end = reader.line_num
  except csv.Error as error:
    raise InputError(f"{path}:{end + 1}: not CSV ({error}); expected a header "
                     "and one row a line") from error
  header = [name.strip() for name in rows[0][2]]
  if twice := sorted({name for name in header if header.count(name) > 1}):
    raise InputError(f"{path}: columns {twice} occur more than once; rename or "
                     "delete one of each")
  if len(rows) == 1:
    raise InputError(f"{path}: a header and no rows; expected one a line")
  lines, broken, notes = [], [], []
  if reader.dialect.delimiter == ";" and not any(
      re.search(r"\d\.\d", cell) for *_, row in rows for cell in row) and any(
          COMMA.fullmatch(cell) for *_, row in rows for cell in row):
    notes.append(f"{path}: 0,5 between semicolons was read as 0.5.")
    rows = [(*at, [cell.replace(",", ".") if COMMA.fullmatch(cell) else cell
                   for cell in row]) for *at, row in rows]
  for start, stop, row in rows[1:]:
    if len(row) == len(header):
      lines += ((start, line) for line in _runs(dict(zip(header, row))))
    elif start == end and not text.endswith("\n") and len(row) < len(header):
      notes.append(f"{path}:{start}: the last line is torn: dropped.")
    else:  # an unclosed quote joins lines: all of them are broken
      broken.append((start, stop - start + 1, f"{len(row)} values under "
                     f"{len(header)} columns"))
  return lines, _judge(path, broken, end, notes)


def _runs(line: dict) -> list[dict]:
  """Returns one line per run for a line of W&B's chart export, `RUN - metric`.
  """
  (x, at), *rest = line.items()
  if " - " in x or not rest or not all(" - " in name for name, _ in rest):
    return [line]
  runs = {}
  for name, value in rest:
    if not name.endswith(("__MIN", "__MAX")):
      run, metric = name.rsplit(" - ", 1)
      runs.setdefault(run, {x: at, "run_id": run})[metric] = value
  return list(runs.values())


def _judge(path: str, broken: list, total: int, notes: list[str]) -> list[str]:
  """Returns notes on the broken lines; InputError if they are many.

  Args:
    broken: (line, how many lines, why).
  """
  count = sum(lines for _, lines, _ in broken)
  if count > BROKEN_SHARE * total:
    raise InputError(
        f"{path}:{broken[0][0]}: {broken[0][2]}, and {count} of {total} lines "
        "are broken; expected CSV with a header or one JSON object a line: "
        "check the file and its format")
  return [f"{path}:{number}: {why}: skipped." for number, _, why in broken
          ] + notes
