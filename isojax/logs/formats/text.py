"""Reads files as flat lines of names and values, with line numbers.

A file is CSV, JSON lines, one JSON document, a trainer's console output, or
TensorBoard events; another one is an error. An incomplete last line is dropped,
and a few broken lines are skipped, with a note.
"""

import ast
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import re

from etils import epath

from isojax.core.format import duration
from isojax.errors import InputError, reason
from isojax.logs.formats import events, FORMATS
from isojax.logs.formats.base import Format, parsed_number

MAX_BYTES = 1 << 30  # bytes of a file
# Longer numbers are cut: they are infinite, or their last digits are below the
# precision of a float.
MAX_DIGITS = 320
LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS},}}")
MAX_BROKEN = 0.1  # share of the lines; a file with more is refused
COLOUR_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Scalars as their libraries print them: np.float64(0.5), tensor(0.5).
SCALAR = re.compile(r"\b(?:np\.\w+|tensor)\(([^(),]*)(?:, [^()]*)?\)")
# A progress bar, 12%|###   | 6/50 [00:10<01:20, 1.8s/it]. One with a
# description does not count updates.
BAR = (r"(?P<described>:\s*)?(?<!\d)\d{1,3}%(?:\|[^|]*\|)?\s*"
       r"(?P<done>\d{1,15})/(?P<total>\d{1,15}) \[(?P<elapsed>[\d:]{,15})")
ASSIGNMENT = re.compile(  # an option a.b=value of a command line
    r"(?<![\w.])((?:[a-z_]\w*\.)+\w+)=('[^']*'|[^\s'\"\\]+)")
RAY_PREFIX = re.compile(r"^\([^()]* pid=\d+[^()]*\) ", re.M)
DICT_PART = re.compile(  # a key with a dict's start or a scalar; a dict's end
    r"'(?P<key>[\w.-]+)': (?:(?P<open>\{)|(?P<value>'[^']*'|"
    r"[^\s,{}\[\]'()]+))?|(?P<end>\})")
STEPS = re.compile(  # the number of all updates that TRL prints
    r"(?:max_steps['\"]?|Total (?:optimization )?steps)[=: ]+([\d,]*\d)")


@dataclasses.dataclass(frozen=True)
class Log:
  """The lines of a file, and the text that a console printed before them."""

  lines: list[tuple[str, dict]]  # (file:line, name -> value)
  notes: list[str] = dataclasses.field(default_factory=list)
  head: str = ""  # text before the first line of metrics
  appended: bool = True  # in the order of time; a CSV file need not be


def load(path: str) -> Log:
  """The lines of a file, without null and empty values; NaN is kept."""
  data = _content(path)
  if "tfevents" in os.path.basename(path):
    return Log([(f"{path}:{number}", line) for number, line in enumerate(
        events.lines(path, data), 1)])
  text = LONG_NUMBER.sub(lambda match: match[0][:MAX_DIGITS],
                         data.decode("utf-8-sig", errors="replace"))
  if not text.strip():
    raise InputError(f"{path}: empty; expected a line for each step")
  is_json = text.lstrip()[0] in "{[" or path.endswith((".json", ".jsonl"))
  # Two JSON lines are not one JSON document.
  if (path.endswith(".json") or "\n" in text.strip()) and _is_document(text):
    parsers = _document, _no_log
  else:
    parsers = (_document, _json_lines, _console) if is_json else (
        _console, _csv)
  for parse in parsers:
    try:
      if log := parse(path, text):
        return dataclasses.replace(log, lines=[
            (f"{path}:{number}", _with_step(
                {name: value for name, value in line.items()
                 if value is not None and value != ""}))
            for number, line in log.lines])
    except InputError as error:
      refused = error
  if re.match(r"\s*[{[]\s*\n", text) and not _is_document(text):
    raise InputError(f"{path}: a JSON document that ends early; expected one "
                     "JSON object a line, or a list of them")
  raise refused


def _with_step(line: dict) -> dict:
  """The line with the step of a text such as 5/300, step and total.

  A line of a long table, of TensorBoard or MLflow, has one metric.
  """
  label = next((name for name in ("tag", "key") if name in line), None)
  if label and "value" in line:
    line = {name: value for name, value in line.items() if name not in (
        label, "value", "wall_time", "timestamp")} | {
            str(line[label]): line["value"]}
  for name in ("global_step/max_steps", "global_step", "step", "Step"):
    if match := re.fullmatch(r"\s*(\d+)\s*/\s*\d+\s*", str(line.get(name))):
      line = line | {"step": int(match[1])}
  return line


def _content(path: str) -> bytes:
  """The bytes of a file; InputError if it is not a log."""
  if os.path.exists(path) and not (
      os.path.isfile(path) or os.path.isdir(path)):
    raise InputError(f"{path}: not a regular file, so it may never end; save "
                     "its content as a file")
  try:  # epath's stat looks up the owner, whom a container may lack
    size = (os.path.getsize(path) if os.path.exists(path)
            else epath.Path(path).stat().length)
    if size > MAX_BYTES:
      raise InputError(f"{path}: larger than {MAX_BYTES >> 20:,} MiB; give the "
                       "lines with metrics alone")
    data = epath.Path(path).read_bytes()
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); expected a "
                     "log, a table or an event file") from error
  if path.endswith(".wandb") or data.startswith(b":W&B"):
    raise InputError(f"{path}: the binary file of a W&B run; export its "
                     "history: wandb.Api().run(ID).history(samples=10**6)"
                     ".to_csv('history.csv')")
  return data


def _document(path: str, text: str) -> Log | None:
  """The lines of one JSON list, or of a trainer_state.json."""
  decoder, separator = json.JSONDecoder(), re.compile(r"[\s,]*")
  lines, number, counted = [], 1, 0  # number: of the line at index `counted`
  try:
    is_state = isinstance(json.loads(text), dict)
    index = text.index("[", text.index('"log_history"') if is_state else 0) + 1
    while text[index := separator.match(text, index).end()] != "]":
      number, counted = number + text.count("\n", counted, index), index
      line, index = decoder.raw_decode(text, index)
      if isinstance(line, list) and len(line) == 3:  # TensorBoard's JSON
        line = dict(zip(("Wall time", "Step", "Value"), line))
      # A trainer's state has null where a mean is NaN.
      lines.append((number, _flat(line, null=math.nan if is_state else None)))
  except (AttributeError, ValueError, RecursionError):
    return None
  return Log(lines)


def _json_lines(path: str, text: str) -> Log:
  *whole, last = text.split("\n")
  lines, broken, notes = [], [], []
  for number, line in enumerate((*whole, last), 1):
    if not line.strip():
      continue
    try:
      value = json.loads(line)
      if value.keys() == {"step", "data"} and isinstance(value["data"], dict):
        # verl's file logger writes NaN as null.
        value = {"step": value["step"], **_flat(value["data"], null=math.nan)}
      lines.append((number, _flat(value, null=None)))
    except (AttributeError, ValueError, RecursionError):
      if number > len(whole) > 0:
        notes.append(f"{path}:{number}: the last line is torn: dropped.")
      else:
        broken.append((number, 1, "not a JSON object"))
  notes = broken_notes(path, broken, len(lines) + len(broken)) + notes
  return Log(lines, notes)


def _no_log(path: str, text: str) -> Log:
  raise InputError(f"{path}: a JSON document that is no log; expected one JSON "
                   "object a line, a list of them, or the log_history of a "
                   "trainer_state.json")


def _is_document(text: str) -> bool:
  with contextlib.suppress(ValueError, RecursionError):
    json.loads(text)
    return True
  return False


def _flat(value: dict, *, null) -> dict:
  """A flat line: nested names joined by slashes, nulls as `null`."""
  line = {}
  for name, part in value.items():
    if isinstance(part, dict):
      line |= {f"{name}/{k}": v for k, v in _flat(part, null=null).items()}
    else:
      line[name] = null if part is None else part
  return line


def _csv(path: str, text: str) -> Log:
  if "\0" in text or "\ufffd" in text:
    raise InputError(f"{path}: not UTF-8 text; decompress it, or save it as "
                     "UTF-8; TensorBoard's files have tfevents in their names")
  first = text.lstrip().split("\n", 1)[0]
  reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True,
                      delimiter=max(",\t;", key=first.count))
  rows, end = [], 0
  try:
    for row in reader:
      if row:
        rows.append((end + 1, reader.line_num, row))
      end = reader.line_num
  except csv.Error as error:
    raise InputError(f"{path}:{end + 1}: not CSV ({error}); expected one row "
                     "a line") from error
  header = [name.strip() for name in rows[0][2]]
  if twice := sorted({name for name in header if header.count(name) > 1}):
    raise InputError(f"{path}: columns {twice} occur more than once; rename "
                     "one of each")
  lines, broken, notes = [], [], []
  for start, stop, row in rows[1:]:
    if reader.dialect.delimiter == ";":  # beside commas as decimal points
      # Not 1,100, which may be thousands.
      row = [re.sub(r"^(?!\s*-?[1-9]\d{0,2},\d{3}\s*$)(\s*-?\d+),(\d+\s*)$",
                    r"\1.\2", value) for value in row]
    if len(row) == len(header):
      lines += ((start, line)
                for line in _lines_of_runs(dict(zip(header, row))))
    elif start == end and not text.endswith("\n") and len(row) < len(header):
      notes.append(f"{path}:{start}: the last line is torn: dropped.")
    else:  # an unclosed quote joins lines: all of them are broken
      broken.append((start, stop - start + 1, f"{len(row)} values under "
                     f"{len(header)} columns"))
  if not lines and not broken:
    raise InputError(f"{path}: a header without rows; expected a row for each "
                     "step")
  if len(row) == len(header) and text[-1] not in '\r\n"' and (
      parsed_number(row[-1]) is not None):
    notes.append(f"{path}:{start}: no end of line; if the file is not complete,"
                 f" its last value, {row[-1]}, may be cut.")
  return Log(lines, broken_notes(path, broken, end) + notes, appended=False)


def _lines_of_runs(line: dict) -> list[dict]:
  """One line per run for a line of W&B's chart export, `RUN - metric`."""
  (axis, position), *rest = line.items()
  if " - " in axis or not rest or not all(" - " in name for name, _ in rest):
    return [line]
  runs = {}
  for name, value in rest:
    if not name.endswith(("__MIN", "__MAX")):
      run, metric = name.rsplit(" - ", 1)
      runs.setdefault(run, {axis: position, "run_id": run})[metric] = value
  return list(runs.values())


def broken_notes(path: str, broken: list, total: int) -> list[str]:
  """Notes on broken lines, (first, count, why); InputError if too many."""
  count = sum(lines for _, lines, _ in broken)
  if count > MAX_BROKEN * total:
    raise InputError(
        f"{path}:{broken[0][0]}: {broken[0][2]}, and {count} of {total} lines "
        "are broken; expected CSV with a header or one JSON object a line")
  return [f"{path}:{number}: {why}: skipped." for number, _, why in broken]


def _console(path: str, text: str) -> Log | None:
  """The metrics in a console's output, or None if there are none."""
  text = RAY_PREFIX.sub("", COLOUR_CODE.sub("", text))
  consoles = [form for form in FORMATS.values() if form.console]
  # TRL's pattern is last: it has no step, and matches others' dicts too.
  for form in sorted(consoles, key=lambda form: "<step>" not in form.console):
    lines, start = [], len(text)
    bars, elapsed = [], []  # (done, total) and seconds at each print of a bar
    bars_before = []  # the number of these prints before each line
    number = counted = 0
    for match in re.finditer(f"{BAR}|{form.console}", text, re.M):
      part = match.groupdict()
      if part["done"]:
        if not part["described"]:
          bars.append((int(part["done"]), int(part["total"])))
          elapsed.append(_seconds(part["elapsed"]))
      elif line := _line(part, form):
        start = min(start, match.start())
        begin = match.start("pairs" if "pairs" in part else "values")
        number, counted = number + text.count("\n", counted, begin), begin
        lines.append((number + 1, line))
        bars_before.append(len(bars))
    if lines:
      notes = (_forecast(bars, elapsed, bars_before),
               _add_steps([line for _, line in lines], bars_before, bars,
                          text[:start]))
      return Log(lines, [f"{path}: {note}" for note in notes if note],
                 text[:start])
  return None


def _seconds(clock: str) -> int:
  """Seconds of 1:02:03."""
  return sum(int(part or 0) * 60**i
             for i, part in enumerate(reversed(clock.split(":"))))


def _forecast(bars: list[tuple[int, int]], elapsed: list[int],
              bars_before: list[int]) -> str | None:
  """The time of a run that has not ended, by its bars; None without any."""
  steps = next((bars[count - 1][1] for count in reversed(bars_before) if count),
               None)
  times = sorted({done: seconds for (done, total), seconds in zip(bars, elapsed)
                  if total == steps and seconds}.items())
  if not times or times[-1][0] == steps:
    return None
  done, seconds = times[-1]
  paces = [(after - before) / (last - first) for (first, before), (last, after)
           in itertools.pairwise([(0, 0), *times])]
  low, high = (duration(steps * pace) for pace in (min(paces), max(paces)))
  return (f"all {steps:,} steps take {duration(steps * seconds / done)} at the "
          f"pace of the first {done:,}" + (
              f"; {low} to {high} at their lowest and highest pace"
              if len(times) > 1 else ""))


def _line(part: dict, form: Format) -> dict | None:
  """One line of a console, from the groups of its pattern."""
  if "pairs" in part:
    pairs = {
        pair["name"].strip(): SCALAR.sub(r"\1", pair["value"].strip())
        for pair in re.finditer(form.pair, part["pairs"])}
    return {"step": int(part["step"])} | pairs if pairs else None
  text = SCALAR.sub(r"\1", part["values"])
  text = re.sub(r": (-?)(nan|inf)\b", r": '\1\2'", text)
  line = None
  for parse in (json.loads, ast.literal_eval):
    with contextlib.suppress(ValueError, SyntaxError):
      line = parse(text)
  if not isinstance(line, dict) or not all(isinstance(k, str) for k in line):
    return None
  if part.get("step"):
    line["step"] = int(part["step"])
  return _with_step(line)


def _add_steps(lines: list[dict], bars_before: list[int],
               bars: list[tuple[int, int]], head: str) -> str | None:
  """Adds the step to lines without one by the progress bars; returns a note.

  `bars` has (done, total) of each print of a bar, `bars_before` the number of
  prints before each line. Without bars, `head` may have the number of steps.
  """
  if all("step" in line for line in lines):
    return None
  trained = 0
  for line in lines:
    trained += "loss" in line
    line["logged"] = trained  # log calls so far: step / logging_steps
  totals = [bars[count - 1][1] for line, count in zip(lines, bars_before)
            if "loss" in line and count] or [total for _, total in bars]
  # The commonest total is that of training; evaluations have other bars.
  steps = max(totals, key=totals.count, default=None)
  done = [next((step for step, total in reversed(bars[:count])
                if total == steps), None) for count in bars_before]
  train = [step for step, line in zip(done, lines) if "loss" in line]
  # A step below the one before it is that of a resumed run.
  if None not in done and all(a != b for a, b in itertools.pairwise(train)):
    for step, line in zip(done, lines):
      line["step"] = step
    return "step was read from the progress bars between the lines."
  last, source = max((step for step, total in bars if total == steps),
                     default=0), "of the bar"
  if not bars and _has_ended(lines):
    printed = {int(number.replace(",", "")) for number in STEPS.findall(head)}
    last, source = printed.pop() if len(printed) == 1 else 0, "of the config"
  intervals = [k for k in range(1, last // max(trained, 1) + 1)
               if last // k == trained]
  if len(intervals) != 1:
    return None
  for line in lines:
    line["step"] = line["logged"] * intervals[0]
  return (f"the dicts have no step: {trained} in {last} updates {source} is "
          f"one every {intervals[0]}; else give --fixed=logging_steps=N.")


def _has_ended(lines: list[dict]) -> bool:
  """Whether a run has made all its steps, so that its log has their end.

  The trainer printed its runtime, or its learning rate has fallen to 0.
  """
  rates = [rate for line in lines if (
      rate := parsed_number(line.get("learning_rate"))) is not None]
  return any("train_runtime" in line for line in lines) or (
      len(rates) > 1 and rates[-1] < 2 * max(rates) / len(rates))


def printed_options(head: str, form: Format) -> dict:
  """The options in the text before the metrics: name -> set of its values.

  A value in the printed config overrides one on the command line. Without
  either, all numbers that follow the option's name are its values.
  """
  wanted = dict.fromkeys((*form.settings.values(), *form.known_options))
  is_wanted = lambda name: name in wanted or (
      form.group_sizes and re.fullmatch(form.group_sizes, name))
  options = {name: {_scalar(value) or value.strip("'")}
             for name, value in ASSIGNMENT.findall(head)
             if is_wanted(name)}  # the last assignment counts, as in hydra
  options |= {name: {value} for name, value in _config(head)
              if is_wanted(name) and value is not None}
  # --n-samples-per-prompt 8, 'n': 8, n = 8, Megatron's `n ...... 8`
  numbers = [(name, r"(?<![\w.])" + re.escape(name).replace("_", "[-_]")
              + r"['\"]?(?:[=: ]| \.+ )+([-+\d.e]+)\b") for name in wanted]
  for name, pattern in (*numbers, *form.printed):
    values = {_scalar(value.replace(",", ""))  # 1,024
              for value in re.findall(pattern, head)} - {None}
    if values:
      options.setdefault(name, values)
  return options


def _config(head: str):
  """Yields the dotted name and value of each scalar in a pretty-printed dict.

  Other processes print between the dict's lines, and its end may be missing. So
  the nesting follows from the columns of keys, and within a line from braces.
  """
  stack = []  # (column, key, whether its value is a dict)
  for line in head.split("\n"):
    if not re.match(r"\s*[{']", line):
      continue
    first = True
    for part in DICT_PART.finditer(line):
      if part["end"]:
        while stack and not stack.pop()[2]:
          pass
        continue
      while stack and (stack[-1][0] >= part.start() if first
                       else not stack[-1][2]):
        stack.pop()
      first = False
      stack.append((part.start(), part["key"], bool(part["open"])))
      if part["value"]:
        yield ".".join(key for _, key, _ in stack), _scalar(part["value"])


def _scalar(text: str):
  """The number or text that is printed; None for anything else."""
  with contextlib.suppress(ValueError, SyntaxError):
    value = ast.literal_eval(text.strip())
    if isinstance(value, (int, float, str)):
      return value
  return None
