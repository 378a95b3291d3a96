"""Reads the evaluations of logs as rows with isojax's field names.

A `Format` says under which names a trainer logs its evaluations. The caller
gives the rest: `columns` the name of a field in the file, `fixed` a constant,
under isojax's name or the trainer's own (`data.train_batch_size`).
"""

import bisect
import collections
import dataclasses
import difflib
import itertools
import json
import math
import os
import re
import tomllib

from isojax.errors import InputError
from isojax.frontier.formats import detect, FORMATS, text
from isojax.frontier.formats.base import (
  BATCHES,
  DISCARDED,
  Format,
  KNOWN,
  METRICS,
  ROLLOUTS,
)
from isojax.frontier.formats.text import has
from isojax.ledger import bucket, records

TEXT = ("kind", "run_id", "model", "task", "split", "eval_set")
POSITIVE = ("Bp", "n", "m", "k")  # integers from 1; those of WHOLE from 0
WHOLE = ("step", "rollouts", "seed", "prompt_tokens", "sampled_tokens",
         "trained_tokens")
NEEDED = {"Bp": "problems per step", "n": "rollouts per problem",
          "step": "updates made"}
EXAMPLES = {"Bp": 32, "n": 8, "step": 100}  # of messages
ACCURACY = re.compile(
    r"%|acc|avg@|correct|mean@|pass|percent|pct|solve|^avg$", re.IGNORECASE)
EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:eval(?:uation)?|val(?:id(?:ation)?)?|test|held.?out)"
    r"(?:[^a-z]|$)", re.IGNORECASE)  # in the name of a column
# A length, a count or a part of a rate, although its name has one of ACCURACY.
NO_RATE = re.compile(
    r"len|seqs|num|count|solve_|initial|(?:^|[^a-z])(?:std|min|max|stderr)",
    re.IGNORECASE)
PERCENT = 2.0  # an accuracy above is one in percent
TRAINING = "training problems"  # eval_set of the rewards of training rollouts
LISTED = 12  # names in a message


@dataclasses.dataclass(frozen=True)
class Row:
  """One evaluation, with the field names of isojax.ledger.records."""

  where: str  # file:line
  fields: dict


@dataclasses.dataclass(frozen=True)
class Reading:
  """How log files are read."""

  kind: str | None = None  # of formats.FORMATS; None: what the names tell
  # Field -> its name in the file, before the names of the format. If it has a
  # metric, no other metric is searched for.
  columns: dict = dataclasses.field(default_factory=dict)
  # Field or option of the trainer -> a constant. `k` also selects one of
  # several best@k.
  fixed: dict = dataclasses.field(default_factory=dict)
  # Metric or axis -> the values that become 0 and 1, (0, 100) for percent.
  scale: dict = dataclasses.field(default_factory=dict)
  # Regular expression whose named groups are fields or options, matched with
  # the path or, if the file has several runs, with their names.
  from_path: str | None = None
  axis: str = "rollouts"  # the compute, which may occur under its own name


def span(name: str, low: float, high: float, given: str) -> tuple[float, float]:
  """The values that become 0 and 1; InputError if they are no range."""
  if not -math.inf < low < high < math.inf:
    raise InputError(f"--scale={name}={given}: expected a number above 0, such "
                     "as 0.01 for percent, or the rewards of a wrong and a "
                     "right answer, such as -1:1")
  return low, high


def read(patterns: list[str], how: Reading, *, flag: str
         ) -> tuple[list[Row], list[str]]:
  """Every evaluation in the files, and the notes of the readers.

  A file that cannot be read is left out with a note, unless it is the only one.

  Args:
    patterns: paths, also with wildcards or in a bucket.
    how: the files are read.
    flag: the flag with the patterns, for messages.
  """
  rows, notes, refused, paths = [], [], [], {}
  for pattern in patterns:
    bucket.check(pattern, flag)
    matches = bucket.matching(pattern)
    if not matches:
      raise InputError(f"--{flag}={pattern}: no such file; give the path of "
                       "a log or of records.jsonl")
    for path in matches:
      if os.path.realpath(path) in paths:
        notes.append(f"{path}: given twice; read once.")
      paths.setdefault(os.path.realpath(path), path)
  for path in paths.values():
    try:
      more, told = read_file(path, how)
    except InputError as error:
      refused.append(error)
      notes.append(f"left out: {error}")
      continue
    rows += more
    notes += told
  if refused and not rows:
    raise refused[0]
  return rows, folded(notes, list(paths.values()))


def folded(notes: list[str], paths: list[str]) -> list[str]:
  """The notes, once where they differ only in the file that they name."""
  alike = collections.defaultdict(list)
  for note in notes:
    path = next((p for p in paths if p in note), None)
    bare = note if path is None else re.sub(
        r"^(left out: )?" + re.escape(path) + r"(:\d+)?: ", r"\1", note)
    alike[bare].append(note)
  return [same[0] + (f" ({len(same)} files)" if len(same) > 1 else "")
          for same in alike.values()]


# ---- One file


@dataclasses.dataclass(frozen=True)
class _File:
  """A log, and what the caller said about it."""

  path: str
  kind: str
  form: Format
  table: list[tuple[int, dict]]
  names: list[str]
  head: str  # what a console printed before its metrics
  how: Reading  # columns as the file writes them
  notes: list[str]  # is extended

  @property
  def run_key(self) -> str:
    """The name of the run's name."""
    return self.how.columns.get("run_id", "run_id")

  @property
  def step(self) -> str | None:
    """The name of the step, or None if the file has none."""
    return self.how.columns.get("step", next(
        (name for name in self.form.step if name in self.names), None))

  @property
  def default_run(self) -> str:
    """The run's name if no line has one."""
    return os.path.splitext(os.path.basename(self.path))[0]

  def run(self, line: dict) -> str | None:
    return str(line[self.run_key]) if has(line, self.run_key) else None

  def places(self) -> list[tuple[str, str]]:
    """(Field, its name in the file), the caller's names last."""
    columns, axis = self.how.columns, self.how.axis
    out = [(field, name) for field, name in (
        *([("step", self.step)] if self.step else []), ("run_id", "run_id"),
        *self.form.names) if field not in columns]
    if axis not in ("rollouts", "updates", *columns):
      out.append((axis, axis))
    return out + [*columns.items()]


@dataclasses.dataclass(frozen=True)
class _Curve:
  """The names of the evaluations of one set in the file."""

  eval_set: str | None
  k: int | None
  source: dict  # field -> name in the file
  train: bool = False  # rewards of the training rollouts, not evaluations


def read_file(path: str, how: Reading) -> tuple[list[Row], list[str]]:
  """The rows of one file, and notes on what was skipped or assumed."""
  if how.kind is not None and how.kind not in FORMATS:
    raise InputError(f"--format={how.kind}: expected one of {sorted(FORMATS)}")
  file = _opened(path, how)
  _check_flags(file)
  runs = list(dict.fromkeys(
      run for _, line in file.table if (run := file.run(line)) is not None))
  told = _told_by_name(file, runs)
  beside = _options_beside(file)
  known = {run: _constants(file, fields, beside)
           for run, fields in told.items()}
  spent = Spent(file)
  for fields, _ in known.values():
    spent.complete(fields)
  fields, options = next(iter(known.values()))
  curves = _curves(file, fields, spent)
  rows = _rows(file, curves, known, spent, told)
  if not rows:
    raise InputError(f"{path}: no line has a value of "
                     f"{sorted(curves[0].source.values())}: check the file")
  if curves[0].train:
    file.notes.append(
        f"{path}: avg is the reward of the training rollouts: noisier than an "
        "evaluation, and of the training problems. Each is charged to the "
        "policy that sampled it. If a right answer is not rewarded with 1, "
        "give --scale=avg=LOW:HIGH.")
    if "avg" not in how.scale and _worth_two(rows):
      file.notes.append(
          f"{path}: every mean is an even multiple of 1 / (Bp * n), as if a "
          "right answer were rewarded with 2: then give --scale=avg=0:2.")
  if file.kind == "isojax":
    if records.CHAIN in file.names and (damage := records.sound(path)[1]):
      file.notes.append(f"{damage}; its values are used as they are: restore "
                        "the file if you did not change it")
    return rows, file.notes
  _from_percent(file, rows, curves)
  if not runs and "run_id" not in how.fixed.keys() | told[None].keys():
    _name_runs(rows)
  if file.step is None and "step" not in how.fixed:
    _join_endpoints(file, rows)
  file.notes.extend(_caveats(
      file, rows, curves, fields if None in known else {}, options, spent))
  return _once(rows, file), file.notes


def _worth_two(rows: list[Row]) -> bool:
  """Whether the means of 0 and 2 explain the rewards, and those of 0 and 1 not.

  Of at least 8 means of 0 and 1 above 0, half would be odd.
  """
  sums = [row.fields["avg"] * row.fields["Bp"] * row.fields["n"]
          for row in rows if row.fields.get("avg", 0) > 0]
  return len(sums) >= 8 and all(
      abs(total - 2 * round(total / 2)) < 0.02 for total in sums)


def _opened(path: str, how: Reading) -> _File:
  """The file with its format, in order, and without aborted runs."""
  log = text.load(path, list(FORMATS.values()))
  notes, table, kind = list(log.notes), log.lines, how.kind
  names_of = lambda table: list(dict.fromkeys(
      name for _, line in table for name in line))
  names = names_of(table)
  if kind is None:
    kind, example = detect(names)
    if kind != "isojax":
      notes.append(f"{path}: read as {kind}: " + (
          "no names of a known trainer" if example is None
          else f"names such as {example!r}") + "; --format=NAME overrides it.")
  if kind == "table" and _groups(how) and "avg" not in how.columns:
    table = _melted(table, names, how.from_path)
    names = names_of(table)
  # nested names are joined by slashes here; users also write dots, and TRL's
  # rewards have /mean in newer versions
  columns = {field: next((other for other in (
      name, name.replace(".", "/"), f"{name}/mean", name.removesuffix("/mean"))
                          if other in names), name)
             for field, name in how.columns.items()}
  file = _File(path, kind, FORMATS[kind], table, names, log.head,
               dataclasses.replace(how, columns=columns), notes)
  if kind == "isojax":
    return file
  keys = [file.run_key, *(columns.get(field, field)
                          for field in ("Bp", "n", "seed", "eval_set", "k"))]
  if not log.appended:
    file = _by_step(file, keys)
  return _last_start(file, keys)


def _melted(table, names: list[str], from_path: str):
  """A table whose columns are runs as one with a line for each run.

  The first name is the step, the others are runs if from_path matches all.
  """
  step, *runs = names
  if len(runs) < 2 or not all(re.search(from_path, run) for run in runs) or any(
      has(line, "run_id") for _, line in table):
    return table
  return [(number, {step: line[step], "run_id": run, "avg": line[run]})
          for number, line in table for run in runs if has(line, run)]


def _steps(file: _File, keys: list[str]):
  """Yields (index, run, step) of the lines that have a step."""
  for at, (_, line) in enumerate(file.table):
    try:
      yield at, tuple(str(line.get(key)) for key in keys), float(
          line[file.step])
    except (KeyError, TypeError, ValueError):
      continue  # reported with the field's name when the line is used


def _by_step(file: _File, keys: list[str]) -> _File:
  """The file in the order of its steps, if each occurs once in a run."""
  known = list(_steps(file, keys))
  by_run = collections.defaultdict(list)
  for _, run, step in known:
    by_run[run].append(step)
  if len(known) < len(file.table) or all(
      steps == sorted(steps) for steps in by_run.values()) or any(
          len({*steps}) < len(steps) for steps in by_run.values()):
    return file
  file.notes.append(f"{file.path}: its rows are not in the order of "
                    f"{file.step!r}; they were sorted by it.")
  return dataclasses.replace(file, table=[
      file.table[at] for at, _, _ in sorted(known, key=lambda row: row[2])])


def _last_start(file: _File, keys: list[str]) -> _File:
  """The file without runs that were aborted and started again.

  A run starts again where the log returns to its first step and writes a name
  a second time. Lines before it are dropped if they end at an earlier step;
  otherwise the earlier run is the longer one, and the file is refused.
  """
  runs = {}  # run -> its parts: (names at the first step, [(at, step)])
  for at, run, step in _steps(file, keys):
    line = file.table[at][1]
    names = {name for name in line if has(line, name)} - {file.step, *keys}
    parts = runs.setdefault(run, [(names, [])])
    first, lines = parts[-1]
    if lines and step <= lines[0][1] < lines[-1][1] and names & first:
      parts.append((names, [(at, step)]))
      continue
    lines.append((at, step))
    if step <= lines[0][1]:
      first |= names
  where = lambda at: f"{file.path}:{file.table[at][0]}"
  dropped = set()
  for *earlier, (_, last) in runs.values():
    (begin, start), (_, end) = last[0], last[-1]
    for _, lines in earlier:
      (first, _), (_, reached) = lines[0], lines[-1]
      if reached >= end:
        raise InputError(
            f"{where(begin)}: the log starts again at step {start:g}, after a "
            f"run from {where(first)} that reached step {reached:g}; expected "
            "one run: delete one, or separate them with --columns=run_id=NAME, "
            "seed or eval_set")
      file.notes.append(
          f"{where(first)}: a run that ended at step {reached:g} and was "
          f"started again at {where(begin)}: left out.")
      dropped |= {at for at, _ in lines}
  return dataclasses.replace(file, table=[
      line for at, line in enumerate(file.table) if at not in dropped])


# ---- Constants: flags, the run's name, the trainer's options


def typed(where: str, value, field: str, column: str | None = None,
          axis: str | None = None):
  """The value as the field's type; unknown fields stay as they are.

  Args:
    where: file and line, or the flag, for the error message.
    value: as the file or the flag has it.
    field: of the records.
    column: the name in the file, if it differs from the field.
    axis: the field that is the compute.
  """
  name = field if column in (None, field) else f"{field} (column {column!r})"
  if field == "correct":
    try:
      value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
      value = None
    if not isinstance(value, list) or not all(
        type(c) in (int, float) and 0 <= c < 2**31 for c in value):
      raise InputError(f"{where}: {name}: expected a list of counts from 0 on, "
                       "the correct samples of each problem, or the sums of "
                       "their rewards")
    return value
  if field in TEXT:
    return str(value)
  if field in WHOLE or field in POSITIVE:
    return _number(where, name, value, least=int(field in POSITIVE))
  if field == axis or field in KNOWN - {"alarms"}:
    return _number(where, name, value)
  return value


def _number(where: str, name: str, value, least: int | None = None):
  """A float, or with `least` a whole number from there on."""
  try:
    if isinstance(value, bool):
      raise ValueError
    number = value if isinstance(value, int) else float(value)
    if least is None:
      return float(number)
    near = round(min(max(least, number), 2**63))  # clipped: round(inf) raises
  except (TypeError, ValueError, OverflowError):
    raise InputError(f"{where}: {name} is {value!r:.60}; expected a number, or "
                     "nothing where there is none") from None
  if number != near:
    raise InputError(f"{where}: {name} is {value!r:.60}; expected a whole "
                     f"number, at least {least}; the nearest is {near}")
  return near


def _option(where: str, name: str, value):
  return _number(where, name, value,
                 None if name.endswith("multiplier") else 1)


def lacking(form: Format, fields: list[str], run_id: str) -> str:
  """The message for fields that neither the file nor the caller gives."""
  theirs = {"n": (form.group, 8), "step": ("logging_steps", 10),
            "Bp": (form.batch, 256) if form.batch else (form.prompts, 32)}
  known = form.known_options()
  pairs = lambda items: ",".join(f"{name}={value}" for name, value in items)
  ways = ["--columns=" + pairs((field, "NAME") for field in fields),
          "--fixed=" + pairs((field, EXAMPLES[field]) for field in fields)]
  if options := [theirs[f] for f in fields if theirs[f][0] in known]:
    ways.append("--fixed=" + pairs(options))
  if named := [field for field in fields if field != "step"]:
    pattern = "-".join(f"{field}(?P<{field}>\\d+)" for field in named)
    ways.append(f"--from_path='{pattern}' if the path or the run's name "
                f"({run_id}) has them")
  return ("no " + ", no ".join(f"{field} ({NEEDED[field]})" for field in fields)
          + "; expected columns or constants, such as " + ", or ".join(ways))


def nearest(name: str, names) -> str:
  """The names as text, the most similar ones first."""
  first = difflib.get_close_matches(name, names, LISTED, cutoff=0)
  more = len(set(names)) - len(first)
  return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _groups(how: Reading) -> list[str]:
  """The named groups of --from_path; InputError if it has none."""
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


def _check_flags(file: _File) -> None:
  """Raises InputError for unknown fields or columns and fields given twice."""
  how, constants = file.how, KNOWN | {*file.form.known_options()}
  given = {"--columns": (how.columns, KNOWN | {how.axis}),
           "--fixed": (how.fixed, constants),
           "--from_path": (_groups(how), constants),
           "--scale": (how.scale, {*METRICS, how.axis})}
  for flag, (names, known) in given.items():
    for name in names:
      if name not in known:
        raise InputError(
            f"{flag}: {name} is not a field; expected one of "
            + ", ".join([*NEEDED, nearest(name, known - NEEDED.keys())]))
  for one, other in itertools.combinations(list(given)[:3], 2):
    if twice := sorted({*given[one][0]} & {*given[other][0]}):
      raise InputError(f"{twice} in {one} and in {other}: leave one out")
  for field, name in how.columns.items():
    if name not in file.names:
      raise InputError(f"{file.path}: no column {name!r} for {field}; the file "
                       f"has {nearest(name, file.names)}")


def _told_by_name(file: _File, runs: list[str]) -> dict:
  """Run -> fields in its name, or None -> fields in the path."""
  pattern = file.how.from_path
  if pattern is None:
    return {None: {}}
  tell = lambda name: (match := re.search(pattern, name)) and {
      field: value for field, value in match.groupdict().items()
      if value is not None}
  by_run = {run: fields for run in runs if (fields := tell(run))}
  if (len(runs) < 2 or not by_run) and (fields := tell(file.path)):
    return {None: fields}
  if not by_run:
    raise InputError(
        f"{file.path}: --from_path={pattern} does not match the path" + (
            f", nor a run's name such as {runs[0]!r}" if runs else ""))
  if silent := [run for run in runs if run not in by_run]:
    file.notes.append(f"{file.path}: --from_path does not match the runs "
                      f"{silent}; they were left out.")
  return by_run


def _options_beside(file: _File) -> dict:
  """The trainer's options that it printed, or saved beside the log."""
  form, found = file.form, {}
  for name, values in text.printed_options(file.head, form).items():
    if len(values) == 1:
      (found[name],) = values
    else:
      file.notes.append(f"{file.path}: {name} is printed as {sorted(values)}: "
                        "give it with --fixed.")
  if form.resolve:
    found = form.resolve(file.head, found)
  if found:
    told = ", ".join(f"{name}={value}" for name, value in found.items())
    file.notes.append(f"{file.path}: {told} were printed in the log; --fixed "
                      "overrides them.")
  if found or {"Bp", "n"} <= file.how.fixed.keys():
    return found
  places = [os.path.join(os.path.dirname(file.path), name)
            for name in form.configs]
  for place in filter(os.path.exists, places):
    try:
      with open(place, "rb") as opened:
        found = form.config(tomllib.load(opened) if place.endswith("toml")
                            else json.load(opened))
    except (OSError, ValueError, KeyError, TypeError) as error:
      file.notes.append(f"{place}: not used; expected one batch size and one "
                        f"group_size ({error!r}).")
      continue
    file.notes.append(", ".join(f"{name} {value}" for name, value
                                in found.items()) + f" are from {place}.")
    return found
  return {}


def _constants(file: _File, told: dict, beside: dict) -> tuple[dict, dict]:
  """The constant fields of a run, and the trainer's options.

  Args:
    file: with --fixed.
    told: fields from --from_path.
    beside: options that the trainer printed or saved; the flags override them.
  """
  form, known = file.form, file.form.known_options()
  given = {name: ("--fixed", value) for name, value in file.how.fixed.items()}
  given |= {name: ("--from_path", value) for name, value in told.items()}
  overridden = {option for field, names in (
      ("Bp", (form.prompts, form.batch)), ("n", (form.group,)))
                if given.keys() & {field, *names} for option in names}
  options = {name: _option("the log's config", name, value)
             for name, value in beside.items()
             if name in known and name not in overridden}
  options |= {name: _option(flag, name, value)
              for name, (flag, value) in given.items() if name in known}
  fields = {name: typed(flag, value, name)
            for name, (flag, value) in given.items() if name in KNOWN}
  derived = {field: options[option] for field, option in (
      ("n", form.group), ("Bp", form.prompts)) if option in options}
  if form.batch in options:
    batch, n = options[form.batch], (fields | derived).get("n")
    if n is None or batch % n:
      raise InputError(f"{form.batch}={batch} counts rollouts; expected n, or "
                       f"{form.group}, that divides it; give it with --fixed")
    derived["Bp"] = batch // n
  for name, value in derived.items():
    if name in fields and fields[name] != value:
      raise InputError(f"{name} is {fields[name]} in {given[name][0]}, and "
                       f"{value} by {options}: leave one out")
  fields |= derived
  if form.model in beside:
    fields.setdefault("model", str(beside[form.model]))
  if "num_generations_eval" in options:
    fields.setdefault("k", options["num_generations_eval"])
  elif form.sampled_by_n and "n" in fields:
    fields.setdefault("k", fields["n"])
  return fields, options


class Spent:
  """The rollouts that the runs of a file had sampled after some updates.

  A trainer that samples again, or discards groups, spends more than Bp * n
  rollouts a step. Where its log counts them, they are charged to C.
  """

  def __init__(self, file: _File):
    self.file, self.sums = file, {}
    self.totals = {}  # step -> C
    self.counts = collections.defaultdict(dict)  # run -> update -> unit
    form, step = file.form, file.step
    for number, line in file.table:
      where = f"{file.path}:{number}"
      if form.total and all(has(line, x) for x in ("step", *form.total)):
        self.totals[typed(where, line["step"], "step")] = sum(
            typed(where, line[name], "rollouts", name) for name in form.total)
      for pattern, unit in form.sampled if step and has(line, step) else ():
        values = [_number(where, name, line[name]) for name in line
                  if re.fullmatch(pattern, name) and has(line, name)]
        if values:
          update = typed(where, line[step], "step", step) + form.before_update
          self.counts[file.run(line)].setdefault(update, {})[unit] = sum(values)
    # The commonest number of rollouts of a step, if it was logged.
    sizes = [round(units[ROLLOUTS]) for counts in self.counts.values()
             for units in counts.values() if ROLLOUTS in units]
    self.step_size = max(sizes, key=sizes.count, default=None)
    # Whether the log counts more than Bp * n rollouts a step.
    self.discarded = any(units.keys() - {ROLLOUTS} for counts in
                         self.counts.values() for units in counts.values())

  def complete(self, fields: dict) -> None:
    """Adds Bp where the rollouts of a step and n tell it."""
    if self.step_size and "n" in fields and "Bp" not in fields:
      fields["Bp"], rest = divmod(self.step_size, fields["n"])
      if rest:
        raise InputError(
            f"{self.file.path}: {self.step_size} rollouts a step are not a "
            f"multiple of n={fields['n']}; expected another n")

  def after(self, run: str | None, fields: dict, options: dict) -> int:
    """C of a row; a step without a count is Bp * n."""
    form, updates = self.file.form, fields["step"]
    Bp, n = fields["Bp"], fields["n"]
    if updates in self.totals:
      return self.totals[updates]
    if form.generated:
      return form.generated(updates, Bp * n, options)
    if (run, Bp, n) not in self.sums:
      counts = ({} if "remove_constant_reward_groups" in options
                else self.counts.get(run, {}))
      known = sorted(u for u in counts if u > 0)
      self.sums[run, Bp, n] = known, [0, *itertools.accumulate(
          self._of_step(counts[u], options, Bp, n) for u in known)]
    known, sums = self.sums[run, Bp, n]
    counted = bisect.bisect_right(known, updates)
    return sums[counted] + (updates - counted) * Bp * n

  def _of_step(self, units: dict, options: dict, Bp: int, n: int) -> int:
    """The rollouts of one step from what the trainer counted in it."""
    if DISCARDED in units:
      return round(Bp + units[DISCARDED]) * n
    if ROLLOUTS in units:
      return round(units[ROLLOUTS])
    batch = Bp
    for name in self.file.form.options:  # gen_batch_size, or a factor of Bp
      if name in options:
        batch = (Bp * options[name] if name.endswith("multiplier")
                 else options[name])
    return round(units[BATCHES] * batch) * n


# ---- Which names are metrics


def _is_reward(form: Format, name: str) -> bool:
  return form.train is not None and re.fullmatch(form.train, name) is not None


def _curves(file: _File, fixed: dict, spent: Spent) -> list[_Curve]:
  """The sets of evaluations in the file."""
  form, columns = file.form, file.how.columns
  chosen = {field: name for field, name in columns.items() if field in METRICS}
  if chosen and all(_is_reward(form, name) for name in chosen.values()):
    return [_Curve(TRAINING, None, chosen, True)]
  sets = {}  # set, who -> rank of the names -> field -> k -> name
  for rank, patterns in enumerate(form.metrics):
    for field, pattern in patterns.items():
      for name in chosen.values() if chosen else file.names:
        if match := re.fullmatch(pattern, name):
          part = {"set": None, "who": None, "k": None} | match.groupdict()
          k = None if part["k"] is None else int(part["k"])
          ranks = sets.setdefault((part["set"], part["who"]), {})
          ranks.setdefault(rank, {}).setdefault(field, {})[k] = name
  if chosen and len(sets) != 1:
    return [_Curve(None, None, chosen)]
  if not sets and (only := _only_metric(file)):
    file.notes.append(f"{file.path}: avg is the only metric of evaluations in "
                      f"the file, {only!r}; --columns=avg=NAME overrides it.")
    return [_Curve(None, None, {"avg": only})]
  if not sets:
    raise InputError(_no_evaluations(file, fixed, spent))
  curves = []
  for (name, who), ranks in sets.items():
    k, source = _at_one_k(file, ranks[min(ranks)], fixed)
    source = chosen or source
    if form.version and name and "step" not in columns:
      source = source | {"step": form.version.format(set=name)}
    several = sum(other == name for other, _ in sets) > 1
    curves.append(_Curve(f"{name}/{who}" if several else name, k, source))
  return curves


def _at_one_k(file: _File, by_field: dict, fixed: dict
              ) -> tuple[int | None, dict]:
  """One k for best and worst, and the names: the given k, else the largest.

  If avg was logged at several k, each is of other problems: verl joins the
  samples of equal prompts. The smallest k is that of the problems that occur
  once.
  """
  avg = by_field["avg"] if "avg" in by_field else {}
  stored = min(avg, key=lambda k: k or 0, default=None)
  at = {k for field, names in by_field.items() if field != "avg"
        for k in names if k is not None and not (len(avg) > 1 and k > stored)}
  k = fixed["k"] if "k" in fixed else max(at, default=None)
  if at and k not in at:
    raise InputError(f"{file.path}: no best or worst at k={k}; expected one of "
                     f"k={sorted(at)}; choose it with --fixed=k={max(at)}")
  source = {field: names[one] for field, names in by_field.items()
            for one in (k, None) if one in names and field != "avg"}
  if avg:
    source["avg"] = avg[stored]
    k = stored if k is None else k
  if len(avg) > 1:
    file.notes.append(
        f"{file.path}: {', '.join(avg.values())} are of different problems "
        f"(equal prompts are joined); {source['avg']} is used.")
  return k, source


def _only_metric(file: _File) -> str | None:
  """The only accuracy of a table, or its only one of evaluations."""
  names = [] if file.kind != "table" else [
      name for name in file.names if name not in (
          file.run_key, file.how.axis, *KNOWN, *file.how.columns.values(),
          *file.form.step)]
  accuracies = [name for name in names
                if ACCURACY.search(name) and not NO_RATE.search(name)]
  only = accuracies if len(names) == 1 else list(
      filter(EVALUATED.search, accuracies))
  return only[0] if len(only) == 1 else None


def _no_evaluations(file: _File, fixed: dict, spent: Spent) -> str:
  """The message for a file without a known metric; names what else it lacks."""
  rewards = [name for name in file.names if _is_reward(file.form, name)]
  rewards.sort(key=lambda name: not re.search("acc|correct", name))
  message = (f"{file.path}: no evaluations; give a metric with "
             "--columns=avg=NAME")
  if rewards:
    message += (". The reward of the training rollouts is a noisier one, of "
                "the training problems: " + " or ".join(
                    f"--columns=avg={name}{_range(file, name)}"
                    for name in rewards[:3]))
  else:
    likely = [name for name in file.names if not NO_RATE.search(name)
              and (ACCURACY.search(name) or "reward" in name)]
    likely.sort(key=lambda name: (not EVALUATED.search(name),
                                  not ACCURACY.search(name)))
    message += (f", such as avg={likely[0]}" if likely else "") + (
        "; or, if each column is a run, --from_path='n(?P<n>\\d+)'"
        if file.kind == "table" else "")
    message += f"; the file has {nearest('eval/accuracy', file.names)}"
  given = fixed.keys() | {field for field, name in file.places()
                          if name in file.names}
  fields = [name for name in ("Bp", "n") if name not in given]
  if len(fields) == 2 and spent.step_size is not None:
    fields.remove("Bp")
  return message + (f". And {lacking(file.form, fields, file.default_run)}"
                    if fields else "")


def _range(file: _File, name: str) -> str:
  """The values of a reward for a message, with the flag they need."""
  try:
    values = [float(line[name]) for _, line in file.table if has(line, name)]
  except (TypeError, ValueError):
    return ""
  low, high = min(values), max(values)
  if 0 <= low <= high <= 1:
    return ""
  return (f" (from {low:.4g} to {high:.4g}: add --scale=avg=LOW:HIGH with the "
          "rewards of a wrong and a right answer)")


# ---- Rows


def _rows(file: _File, curves: list[_Curve], known: dict, spent: Spent,
          told: dict) -> list[Row]:
  """A row for each line and set that has a metric."""
  rows, places, previous = [], file.places(), {}
  form, train = file.form, curves[0].train
  for number, line in file.table:
    run = None if None in known else file.run(line)
    if run not in known or not train and line.get("kind") == "train":
      continue
    constant, options = known[run]
    for curve in curves:
      if not any(field in METRICS and has(line, name)
                 for field, name in curve.source.items()):
        continue
      values = {name: (value, name) for name, value in line.items()
                } if file.kind == "isojax" else {}
      values |= {field: (line[name], name)
                 for field, name in (*places, *curve.source.items())
                 if has(line, name)}
      if "step" not in values and "logged" in line and (
          "logging_steps" in options):
        values["step"] = line["logged"] * options["logging_steps"], "step"
      row = _row(file, number, values, constant, {
          "eval_set": curve.eval_set or _set_of(form, line),
          "k": curve.k, "run_id": file.default_run}, told[run],
                 sized=spent.step_size is not None)
      if train and form.counters:
        _to_step_before(row, form, previous)
      elif train:
        _to_sampling(row.fields, form, previous, file.run(line))
      for field, (low, high) in file.how.scale.items():
        if field in row.fields:
          row.fields[field] = (row.fields[field] - low) / (high - low)
      if "rollouts" not in row.fields:
        row.fields["rollouts"] = spent.after(file.run(line), row.fields,
                                             options)
      rows.append(row)
  return rows


def _set_of(form: Format, line: dict) -> str | None:
  """The eval_set in another name of the line, such as TRL's timing."""
  for name in line if form.set_key else ():
    if has(line, name) and (match := re.fullmatch(form.set_key, name)):
      return match[1]
  return None


def _row(file: _File, number: int, values: dict, fixed: dict, defaults: dict,
         told: dict, *, sized: bool) -> Row:
  """One row from the values of a line and the constants.

  All fields that lack are named at once. With `sized`, n gives Bp.
  """
  where = f"{file.path}:{number}"
  fields = {field: typed(where, value, field, column, axis=file.how.axis)
            for field, (value, column) in values.items()
            if value is not None and value != ""}
  for name, value in fixed.items():
    if fields.setdefault(name, value) != value:
      flag = "--from_path" if name in told else "--fixed"
      raise InputError(f"{where}: {name} is {fields[name]} in the file and "
                       f"{value} in {flag}: leave it out of {flag}")
  fields = {name: value for name, value in defaults.items()
            if value is not None} | fields
  if {"rollouts", "Bp", "n"} <= fields.keys():  # a table of equal C
    fields.setdefault("step", fields["rollouts"] // (fields["Bp"]
                                                     * fields["n"]))
  absent = [name for name in NEEDED if name not in fields]
  if {"Bp", "n"} <= {*absent} and sized:
    absent.remove("Bp")  # follows from n and the rollouts of a step
  if absent:
    raise InputError(f"{where}: {lacking(file.form, absent, fields['run_id'])}")
  return Row(where, fields)


def _to_sampling(fields: dict, form: Format, previous: dict, run) -> None:
  """Sets the step of a training reward to that of the policy that sampled.

  The rollouts of update s are of the policy after s - 1 updates; a mean over
  several updates is that of the middle one.
  """
  if form.before_update:
    return
  step = fields["step"]
  if "epoch" in fields and isinstance(fields["epoch"], (int, float)) and (
      fields["epoch"] > 0):
    fields["D"] = round(step * fields["Bp"] / fields["epoch"])
  every = step - previous[run] if run in previous else step
  previous[run] = step
  fields["step"] = max(0, step - (max(every, 1) + 1) // 2 if form.averaged
                       else step - 1)


def _to_step_before(row: Row, form: Format, previous: dict) -> None:
  """Sets step and counters of a training reward to those before its step.

  The rollouts are those without the step's own. Other counters are those of
  the previous row; they are removed if that row is of another step.

  Args:
    row: of a training line, which is changed.
    form: of the file.
    previous: run -> step and counters of its last row, which is changed.
  """
  fields, run = row.fields, row.fields["run_id"]
  counted = {name: fields[name] for name in form.counters if name in fields}
  step, before = previous[run] if run in previous else (None, {})
  previous[run] = fields["step"], counted
  fields["step"] -= 1
  for name in counted:
    if fields["step"] == 0:
      fields[name] = 0
    elif name == "rollouts":
      refilled = _number(row.where, "refilled", fields.get("refilled", 0))
      fields[name] -= round(fields["Bp"] * fields["n"] * (1 + refilled))
    elif step == fields["step"] and name in before:
      fields[name] = before[name]
    else:
      del fields[name]


def _name_runs(rows: list[Row]) -> None:
  """Adds Bp, n and seed to the run_id if a file without run_ids has several."""
  of = lambda row: tuple((name, row.fields[name]) for name in (
      "Bp", "n", "seed") if name in row.fields)
  if len({of(row) for row in rows}) > 1:
    for row in rows:
      row.fields["run_id"] += "".join(f"-{name}{v}" for name, v in of(row))


def _join_endpoints(file: _File, rows: list[Row]) -> None:
  """Makes one curve per (Bp, n, seed) of runs that have one evaluation each."""
  if len(rows) == 1 or len({row.fields["run_id"] for row in rows}) < len(rows):
    return
  for row in rows:
    row.fields["run_id"] = "endpoints"
  _name_runs(rows)
  file.notes.append(
      f"{file.path}: {len(rows)} runs with one evaluation each: the "
      "evaluations of one (Bp, n, seed) were joined to a curve.")


def _from_percent(file: _File, rows: list[Row], curves: list[_Curve]) -> None:
  """Divides percentages by 100, with a note."""
  names = {field: name for curve in curves
           for field, name in curve.source.items()
           if field in METRICS and field not in file.how.scale}
  for field, name in names.items():
    values = [row.fields[field] for row in rows if field in row.fields]
    if not ACCURACY.search(name) or "reward" in name or not values or (
        min(values) < 0 or not PERCENT < max(values) <= 100):
      continue
    for row in rows:
      if field in row.fields:
        row.fields[field] /= 100
    file.notes.append(
        f"{file.path}: {name!r} reaches {max(values):g}: read as percent; "
        f"--scale={field}=1 keeps the numbers.")


def _once(rows: list[Row], file: _File) -> list[Row]:
  """One row per evaluation.

  Two rows with different metrics of one evaluation are joined. If the log of a
  run returns to an earlier step, other than its first, the run was resumed
  there: the earlier rows from that step on are dropped, with a note. A step
  that occurs twice in another way, as of two runs, is refused.
  """
  kept: dict[tuple, dict[int, Row]] = {}  # run and set -> step -> row
  for row in rows:
    run = kept.setdefault(tuple(row.fields.get(name) for name in (
        "run_id", "seed", "Bp", "n", "eval_set", "k")), {})
    step = row.fields["step"]
    if step not in run:
      run[step] = row
      continue
    one = run[step]
    if not one.fields.keys() & row.fields.keys() & {*METRICS}:
      run[step] = Row(one.where, one.fields | row.fields)
      continue
    if not (file.form.repeats or next(iter(run)) < step < next(reversed(run))):
      raise InputError(
          f"{row.where}: the same run, set and step as {one.where}; expected "
          "one row each; separate runs and sets with --columns=run_id=NAME, "
          "seed or eval_set, or delete one")
    file.notes.append(
        f"{one.where}: step {step} is evaluated again at {row.where}: a "
        "resumed run; the later rows from this step on are kept.")
    for void in [other for other in run if other >= step]:
      del run[void]
    run[step] = row
  order = {row.where: at for at, row in enumerate(rows)}
  return sorted((row for run in kept.values() for row in run.values()),
                key=lambda row: order[row.where])


def _caveats(file: _File, rows: list[Row], curves: list[_Curve], fixed: dict,
             options: dict, spent: Spent) -> list[str]:
  """Notes on how far the numbers of this format can be trusted."""
  form, places = file.form, dict(file.places())
  runs = {row.fields["run_id"] for row in rows}
  counted = "rollouts" not in places
  steps = sorted({row.fields["step"] for row in rows})
  gaps = [later - step for step, later in itertools.pairwise(steps)]
  verl = any(row.fields.keys() & {"best", "worst"} for row in rows)
  return [note for told, note in (
      (not curves[0].train and (verl if file.kind == "verl"
                                else "avg" not in places), form.caveat),
      (len(runs) > 1 and fixed.keys() & {"Bp", "n", "seed"},
       f"{len(runs)} runs in the file share the constants {fixed}; if that is "
       "wrong, give each its own file or column."),
      (counted and form.unsure and not options.keys() & {*form.unsure},
       "rollouts are step * Bp * n, which is right if steps_per_generation * "
       "num_iterations = gradient_accumulation_steps; else give all three with "
       "--fixed."),
      (counted and form.total and not spent.totals,
       f"rollouts are step * Bp * n, as the file has no {form.total[:1]}: "
       "cancelled and stale ones are not counted."),
      (counted and spent.discarded,
       f"{file.path}: C includes the rollouts that the trainer sampled and "
       "discarded, as its log counts them."),
      ("remove_constant_reward_groups" in options,
       f"{file.path}: env/all/* leaves out the groups of constant reward; "
       "rollouts are step * Bp * n."),
      (file.step in ("_step", "Step") and (
          file.kind == "table" or min(gaps, default=1) > 1),
       "step is W&B's _step, which counts log calls in some trainers; check "
       "it, or give --columns=step=NAME.")) if told and note]


