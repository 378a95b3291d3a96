"""Reads the evaluations of a log as rows with isojax's field names.

A `Format` says under which names a trainer logs its evaluations. The caller
gives the rest: `columns` the name of a field in the file, `fixed` a constant,
under isojax's name or the trainer's own (`data.train_batch_size`).
"""

import dataclasses
import os
import re

from isojax.errors import InputError
from isojax.frontier.io import constants
from isojax.frontier.io import options as trainer_options
from isojax.frontier.io import parse
from isojax.frontier.io import rows as log_rows
from isojax.frontier.io import runs as log_runs
from isojax.frontier.io import spend
from isojax.frontier.io.formats import FORMATS, METRICS, Format, detect
from isojax.frontier.io.parse import there
from isojax.frontier.io.rows import Row
from isojax.ledger import records

EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:eval(?:uation)?|val(?:id(?:ation)?)?|test|held.?out)"
    r"(?:[^a-z]|$)", re.IGNORECASE)  # in the name of a column
TRAINING = "training problems"  # eval_set of the rewards of training rollouts


@dataclasses.dataclass(frozen=True)
class _Curve:
  """The names of the evaluations of one set in the file."""
  eval_set: str | None
  k: int | None
  source: dict  # field -> name in the file
  train: bool  # rewards of the training rollouts, not evaluations


@dataclasses.dataclass(frozen=True)
class _File:
  """A log, and what the caller said about it."""
  path: str
  kind: str
  form: Format
  table: list[tuple[int, dict]]
  names: list[str]
  columns: dict[str, str]
  axis: str
  notes: list[str]

  @property
  def of_run(self) -> str:
    return self.columns["run_id"] if "run_id" in self.columns else "run_id"

  @property
  def step(self) -> str | None:
    """The name of the step, or None if the file has none."""
    if "step" in self.columns:
      return self.columns["step"]
    return next((name for name in self.form.step if name in self.names), None)

  def run(self, line: dict) -> str | None:
    return str(line[self.of_run]) if there(line, self.of_run) else None


def read(path: str, *, kind: str | None, columns: dict[str, str],
         fixed: dict[str, object], scale: dict[str, tuple[float, float]],
         axis: str, from_path: str | None) -> tuple[list[Row], list[str]]:
  """Returns the rows of one file, and notes on what was skipped or assumed.

  Args:
    path: a log, a table, or an export of W&B (CSV, JSON or JSON lines).
    kind: a key of FORMATS; None: the one that the names in the file tell.
    columns: field -> its name in the file, before the names of the format; if
      it has a metric, no other metric is searched for.
    fixed: field or option of the trainer -> a constant. `k` also selects one of
      several best@k.
    scale: metric or axis -> the values that become 0 and 1, (0, 100) for
      percent.
    axis: the compute, a number that may occur under its own name.
    from_path: regular expression whose named groups are fields or options,
      matched with the path or, if the file has several runs, with their names.

  Raises:
    InputError: the file is of another kind; a field is missing, occurs twice,
      or is no number.
  """
  if kind is not None and kind not in FORMATS:
    raise InputError(f"format {kind!r}: expected one of {sorted(FORMATS)}")
  log = parse.load(path)
  file = _opened(path, kind, log, columns, axis, from_path)
  constants.check(path, file.form, file.names, file.columns, fixed, scale, axis,
                  from_path)
  runs = list(dict.fromkeys(
      run for _, line in file.table if (run := file.run(line)) is not None))
  told = constants.by_name(path, from_path, runs, file.notes)
  beside = _beside(file, log.head, fixed)
  known = {run: constants.resolve(file.form, fixed, fields, beside)
           for run, fields in told.items()}
  spent = _spent(file, known)
  curves = _curves(file, next(iter(known.values()))[0], spent)
  rows = _rows(file, curves, known, spent, told, scale)
  if not rows:
    raise InputError(f"{path}: no line has a value of "
                     f"{sorted(curves[0].source.values())}: check the file")
  if file.kind == "isojax":
    damage = records.sound(path)[1] if records.CHAIN in file.names else None
    return rows, file.notes + [_training_note(path)] * curves[0].train + [
        f"{damage}; its values are used as they are: restore the file if you "
        "did not change it"] * bool(damage)
  log_rows.from_percent(path, rows, {
      field: name for curve in curves for field, name in curve.source.items()
      if field in METRICS and field not in scale}, file.notes)
  if not runs and "run_id" not in fixed.keys() | told[None].keys():
    log_rows.name_runs(rows)
  if file.step is None and "step" not in fixed:
    log_rows.join_endpoints(path, rows, file.notes)
  constant, options = next(iter(known.values()))
  _caveats(file, rows, curves, constant if None in known else {}, options,
           spent)
  return log_rows.once(rows, file.form, file.notes), file.notes


def _opened(path, kind, log: parse.Log, columns, axis, from_path) -> _File:
  """Returns the file with its format and without aborted runs."""
  notes, table = list(log.notes), log.lines
  names = list(dict.fromkeys(name for _, line in table for name in line))
  if kind is None:
    kind, example = detect(names)
    if kind != "isojax":
      found = "no names of a known trainer" if example is None else (
          f"names such as {example!r}")
      notes.append(f"{path}: read as {kind}: {found}; --format=NAME overrides "
                   "it.")
  if kind == "table" and constants.groups(from_path) and "avg" not in columns:
    table = log_runs.melted(table, names, from_path)
    names = list(dict.fromkeys(name for _, line in table for name in line))
  # nested names are joined by slashes here; users also write dots, and TRL's
  # rewards have /mean in newer versions
  columns = {field: next((other for other in (
      name, name.replace(".", "/"), f"{name}/mean", name.removesuffix("/mean"))
                          if other in names), name)
             for field, name in columns.items()}
  file = _File(path, kind, FORMATS[kind], table, names, columns, axis, notes)
  if kind == "isojax":
    return file
  keys = [file.of_run, *(columns[field] if field in columns else field
                         for field in ("Bp", "n", "seed", "eval_set", "k"))]
  if not log.appended:
    table = log_runs.by_step(path, table, file.step, keys, notes)
  return dataclasses.replace(file, table=log_runs.last_start(
      path, table, file.step, keys, notes))


def _beside(file: _File, head: str, fixed: dict) -> dict:
  """Returns the trainer's options in the log's own text or a file beside it."""
  found = trainer_options.printed(head, file.form, file.path, file.notes)
  if found:
    told = ", ".join(f"{name}={value}" for name, value in found.items())
    file.notes.append(f"{file.path}: {told} were printed in the log; --fixed "
                      "overrides them.")
  if found or {"Bp", "n"} <= fixed.keys():
    return found
  return trainer_options.saved(file.path, file.kind, file.notes)


def _spent(file: _File, known: dict) -> spend.Spent:
  """Returns what the trainer counted; completes Bp in `known`.

  The number of rollouts of a step tells Bp, if n is known.
  """
  lines = {}
  for at, line in file.table:
    lines.setdefault(file.run(line), []).append((at, line))
  spent = spend.Spent(file.form, spend.totals(file.path, file.table, file.form),
                      {run: spend.counted(file.path, part, file.form, file.step)
                       for run, part in lines.items()})
  for fields, _ in known.values():
    size = spent.step_size()
    if size and "n" in fields and "Bp" not in fields:
      if size % fields["n"]:
        raise InputError(f"{file.path}: {size} rollouts a step are not a "
                         f"multiple of n={fields['n']}; expected another n")
      fields["Bp"] = size // fields["n"]
  return spent


def _places(file: _File) -> list[tuple[str, str]]:
  """Returns (field, its name in the file), the caller's names last."""
  places = [(field, name) for field, name in (
      *([("step", file.step)] if file.step else []), ("run_id", "run_id"),
      *file.form.names) if field not in file.columns]
  if file.axis not in ("rollouts", "updates", *file.columns):
    places.append((file.axis, file.axis))
  return places + [*file.columns.items()]


def _rows(file: _File, curves, known, spent, told, scale) -> list[Row]:
  """Returns a row for each line and set that has a metric."""
  rows, places, previous = [], _places(file), {}
  default = os.path.splitext(os.path.basename(file.path))[0]
  for number, line in file.table:
    run = None if None in known else file.run(line)
    if run not in known or not curves[0].train and (
        "kind" in line and line["kind"] == "train"):
      continue
    constant, options = known[run]
    for curve in curves:
      if not any(field in METRICS and there(line, name)
                 for field, name in curve.source.items()):
        continue
      found = {name: (line[name], name) for name in line
               } if file.kind == "isojax" else {}
      for field, name in (*places, *curve.source.items()):
        if there(line, name):
          found[field] = line[name], name
      if "step" not in found and {"logged", "logging_steps"} <= (
          line.keys() | options.keys()):
        found["step"] = line["logged"] * options["logging_steps"], "step"
      row = _row(f"{file.path}:{number}", file.form, found, constant, {
          "eval_set": curve.eval_set or _set_of(file.form, line),
          "k": curve.k, "run_id": default}, file.axis, told[run],
                 sized=spent.step_size() is not None)
      if curve.train and file.form.counters:
        _to_step_before(row, file.form, previous)
      elif curve.train:
        _to_sampling(row.fields, file.form, previous, file.run(line))
      for field, (low, high) in scale.items():
        if field in row.fields:
          row.fields[field] = (row.fields[field] - low) / (high - low)
      if "rollouts" not in row.fields:
        row.fields["rollouts"] = spent.after(file.run(line), row.fields,
                                             options)
      rows.append(row)
  return rows


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
      refilled = constants.typed(row.where, fields["refilled"], "refilled",
                                 axis="refilled") if "refilled" in fields else 0
      fields[name] -= round(fields["Bp"] * fields["n"] * (1 + refilled))
    elif step == fields["step"] and name in before:
      fields[name] = before[name]
    else:
      del fields[name]


def _curves(file: _File, fixed: dict, spent: spend.Spent) -> list[_Curve]:
  """Returns the sets of evaluations in the file."""
  form, columns = file.form, file.columns
  chosen = {field: name for field, name in columns.items() if field in METRICS}
  if chosen and all(_of_training(form, name) for name in chosen.values()):
    return [_Curve(TRAINING, None, chosen, True)]
  found = {}  # set, who -> rank of the names -> field -> k -> name
  for rank, patterns in enumerate(form.metrics):
    for field, pattern in patterns.items():
      for name in chosen.values() if chosen else file.names:
        if match := re.fullmatch(pattern, name):
          part = {"set": None, "who": None, "k": None} | match.groupdict()
          k = None if part["k"] is None else int(part["k"])
          ranks = found.setdefault((part["set"], part["who"]), {})
          ranks.setdefault(rank, {}).setdefault(field, {})[k] = name
  if chosen and len(found) != 1:
    return [_Curve(None, None, chosen, False)]
  if not found and (only := _only_metric(file)):
    file.notes.append(f"{file.path}: avg is the only metric of evaluations in "
                      f"the file, {only!r}; --columns=avg=NAME overrides it.")
    return [_Curve(None, None, {"avg": only}, False)]
  if not found:
    raise InputError(_no_evaluations(file) + _also_missing(file, fixed, spent))
  curves = []
  for (name, who), ranks in found.items():
    curve = _choose(file, ranks[min(ranks)], fixed)
    several = sum(other == name for other, _ in found) > 1
    source = chosen or curve.source
    if form.version and name and "step" not in columns:
      source = source | {"step": form.version.format(set=name)}
    curves.append(_Curve(f"{name}/{who}" if several else name, curve.k, source,
                         False))
  return curves


def _metrics_of_table(file: _File) -> list[str]:
  """Returns the columns of a table that are neither the step nor a field."""
  known = {file.step, file.of_run, *constants.KNOWN, *file.columns.values(),
           *file.form.step}
  return [name for name in file.names if name not in known
          and name != file.axis] if file.kind == "table" else []


def _only_metric(file: _File) -> str | None:
  """Returns the only accuracy of a table, or its only one of evaluations."""
  names = _metrics_of_table(file)
  accuracies = [name for name in names if log_rows.ACCURACY.search(name)]
  evaluated = [name for name in accuracies if EVALUATED.search(name)]
  only = accuracies if len(names) == 1 else evaluated
  return only[0] if len(only) == 1 else None


def _also_missing(file: _File, fixed: dict, spent: spend.Spent) -> str:
  """Returns what a file without evaluations lacks, too; empty if nothing."""
  given = fixed.keys() | {field for field, name in _places(file)
                          if name in file.names}
  fields = [name for name in ("Bp", "n") if name not in given]
  if len(fields) == 2 and spent.step_size() is not None:
    fields.remove("Bp")
  if not fields:
    return ""
  run_id = os.path.splitext(os.path.basename(file.path))[0]
  return f". And {constants.missing(file.form, fields, run_id)}"


def _of_training(form: Format, name: str) -> bool:
  return form.train is not None and re.fullmatch(form.train, name) is not None


def _no_evaluations(file: _File) -> str:
  """Returns the message for a file without a known metric."""
  sample = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda part: part[1].upper(),
                  file.form.metrics[0]["avg"])
  sample = re.sub(r"\[(.).*?\]|\(\?:([^|)]*)[^)]*\)\??", r"\1\2", sample)
  rewards = [name for name in file.names if _of_training(file.form, name)]
  rewards.sort(key=lambda name: not re.search("acc|correct", name))
  text = (f"{file.path}: no evaluations; expected names such as {sample!r}; "
          "give a metric with --columns=avg=NAME")
  if not rewards:
    likely = [name for name in file.names if log_rows.ACCURACY.search(name)]
    text += f", such as avg={likely[0]}" if likely else ""
    if len(_metrics_of_table(file)) > 1:
      text += "; or, if each column is a run, --from_path='n(?P<n>\\d+)'"
    return f"{text}; the file has {constants.nearest(sample, file.names)}"
  return (f"{text}. The reward of the training rollouts is a noisier one, of "
          "the training problems: " + " or ".join(
              f"--columns=avg={name}{_range(file, name)}"
              for name in rewards[:3]))


def _range(file: _File, name: str) -> str:
  """Returns the values of a reward for a message, with the flag they need."""
  values = []
  for _, line in file.table:
    try:
      values += [float(line[name])] if there(line, name) else []
    except (TypeError, ValueError):
      return ""
  low, high = min(values), max(values)
  if 0 <= low <= high <= 1:
    return ""
  return (f" (from {low:.4g} to {high:.4g}: add --scale=avg=LOW:HIGH with the "
          "rewards of a wrong and a right answer)")


def _choose(file: _File, by_field: dict, fixed: dict) -> _Curve:
  """Returns one k for best and worst: the given one, else the largest.

  If avg was logged at several k, each is of other problems: verl joins the
  samples of equal prompts. The smallest k is that of the problems that occur
  once.
  """
  stored = min(by_field["avg"], key=lambda k: k or 0, default=None
               ) if "avg" in by_field else None
  several = "avg" in by_field and len(by_field["avg"]) > 1
  at = {k for field, by_k in by_field.items() if field != "avg"
        for k in by_k if k is not None and not (several and k > stored)}
  k = fixed["k"] if "k" in fixed else max(at, default=None)
  if at and k not in at:
    raise InputError(f"{file.path}: no best or worst at k={k}; expected one of "
                     f"k={sorted(at)}; choose it with --fixed=k={max(at)}")
  source = {field: by_k[one] for field, by_k in by_field.items()
            for one in (k, None) if one in by_k and field != "avg"}
  if "avg" in by_field:
    source["avg"] = by_field["avg"][stored]
    k = stored if k is None else k
  if several:
    file.notes.append(
        f"{file.path}: {', '.join(by_field['avg'].values())} are of different "
        f"problems (equal prompts are joined); {source['avg']} is used.")
  return _Curve(None, k, source, False)


def _set_of(form: Format, line: dict) -> str | None:
  """Returns the eval_set in another name of the line, such as TRL's timing."""
  for name in line if form.set_key else ():
    if there(line, name) and (match := re.fullmatch(form.set_key, name)):
      return match[1]
  return None


def _row(where: str, form: Format, found, fixed, defaults, axis, told, *,
         sized: bool) -> Row:
  """Returns one row from the values of a line and the constants.

  Raises:
    InputError: a value is of another type, or given twice; or fields lack, and
      the message names all of them. With `sized`, n gives Bp.
  """
  fields = {field: constants.typed(where, value, field, column, axis=axis)
            for field, (value, column) in found.items()
            if value is not None and value != ""}
  for name, value in fixed.items():
    if name in fields and fields[name] != value:
      flag = "--from_path" if name in told else "--fixed"
      raise InputError(f"{where}: {name} is {fields[name]} in the file and "
                       f"{value} in {flag}: leave it out of {flag}")
    fields[name] = value
  for name, value in defaults.items():
    if name not in fields and value is not None:
      fields[name] = value
  if {"rollouts", "Bp", "n"} <= fields.keys():  # a table of equal C
    fields.setdefault("step", fields["rollouts"] // (fields["Bp"]
                                                     * fields["n"]))
  lacking = [name for name in constants.EXAMPLES if name not in fields]
  if {"Bp", "n"} <= {*lacking} and sized:
    lacking.remove("Bp")  # follows from n and the rollouts of a step
  if lacking:
    told = constants.missing(form, lacking, fields["run_id"])
    raise InputError(f"{where}: {told}")
  return Row(where, fields)


def _training_note(path: str) -> str:
  """Returns the note on training rewards."""
  return (f"{path}: avg is the reward of the training rollouts: noisier than "
          "an evaluation, and of the training problems. Each is charged to the "
          "policy that sampled it. If a right answer is not rewarded with 1, "
          "give --scale=avg=LOW:HIGH.")


def _caveats(file: _File, rows, curves, fixed, options,
             spent: spend.Spent) -> None:
  """Adds notes on how far the numbers of this format can be trusted."""
  notes, fields = file.notes, {name for row in rows for name in row.fields}
  places = dict(_places(file))
  told, form = "rollouts" in places, file.form
  if curves[0].train:
    notes.append(_training_note(file.path))
  elif form.caveat and ("avg" not in places if file.kind != "verl"
                        else fields & {"best", "worst"}):
    notes.append(form.caveat)
  runs = {row.fields["run_id"] for row in rows}
  if len(runs) > 1 and fixed.keys() & {"Bp", "n", "seed"}:
    notes.append(f"{len(runs)} runs in the file share the constants {fixed}; "
                 "if that is wrong, give each its own file or column.")
  if file.kind == "trl" and not told and not options.keys() & {
      "gradient_accumulation_steps", "num_iterations"}:
    notes.append("rollouts are step * Bp * n, which is right if "
                 "steps_per_generation * num_iterations = "
                 "gradient_accumulation_steps; else give all three with "
                 "--fixed.")
  if file.kind == "prime-rl" and not told and not spent.totals:
    notes.append("rollouts are step * Bp * n, as the file has no progress/"
                 "total_rollouts: cancelled and stale ones are not counted.")
  if not told and spent.discarded():
    notes.append(f"{file.path}: C includes the rollouts that the trainer "
                 "sampled and discarded, as its log counts them.")
  if "remove_constant_reward_groups" in options:
    notes.append(f"{file.path}: env/all/* leaves out the groups of constant "
                 "reward; rollouts are step * Bp * n.")
  if file.kind == "table" and file.step in ("_step", "Step"):
    notes.append("step is W&B's _step, which counts log calls in some trainers;"
                 " check it, or give --columns=step=NAME.")
  for field in METRICS:
    for row in rows:
      if field in row.fields and (
          row.fields[field] < 0 or row.fields[field] > 1):
        notes.append(f"{row.where}: {field} is {row.fields[field]}, outside of "
                     "[0, 1]: a reward, not an accuracy.")
        break
