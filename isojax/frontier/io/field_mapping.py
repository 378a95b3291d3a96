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
from isojax.frontier.io import parse
from isojax.frontier.io.formats import FORMATS, METRICS, Format
from isojax.frontier.io.parse import there
from isojax.frontier.io.rows import Row, name_runs, once


@dataclasses.dataclass(frozen=True)
class _Curve:
  """The names of the evaluations of one set in the file."""
  eval_set: str | None
  k: int | None
  source: dict  # field -> name in the file


def read(path: str, *, kind: str, columns: dict[str, str],
         fixed: dict[str, object], scale: dict[str, float], axis: str,
         from_path: str | None) -> tuple[list[Row], list[str]]:
  """Returns the rows of one file, and notes on what was skipped or assumed.

  Args:
    path: a log, a table, or an export of W&B (CSV, JSON or JSON lines).
    kind: a key of FORMATS.
    columns: field -> its name in the file, before the names of the format; if
      it has a metric, no other metric is searched for.
    fixed: field or option of the trainer -> a constant. `k` also selects one of
      several best@k.
    scale: metric or axis -> a factor, 0.01 for percent.
    axis: the compute, a number that may occur under its own name.
    from_path: regular expression whose named groups are fields or options,
      matched with the path or, if the file has several runs, with their names.

  Raises:
    InputError: the file is of another kind; a field is missing, occurs twice,
      or is no number.
  """
  if kind not in FORMATS:
    raise InputError(f"format {kind!r}: expected one of {sorted(FORMATS)}")
  form = FORMATS[kind]
  table, notes = parse.load(path)
  names = list(dict.fromkeys(name for _, line in table for name in line))
  # nested names are joined by slashes here; users also write dots
  columns = {field: name if name in names else name.replace(".", "/")
             for field, name in columns.items()}
  constants.check(path, form, names, columns, fixed, scale, axis, from_path)
  of_run = columns["run_id"] if "run_id" in columns else "run_id"
  runs = list(dict.fromkeys(str(line[of_run]) for _, line in table
                            if there(line, of_run)))
  told = constants.by_name(path, from_path, runs, notes)
  beside = constants.saved(path, notes) if form.version and not (
      {"Bp", "n"} <= fixed.keys()) else {}
  known = {run: constants.resolve(form, fixed, fields, beside)
           for run, fields in told.items()}
  curves = _curves(path, form, names, columns, next(iter(known.values()))[0])
  steps = [("step", name) for name in form.step if name in names][:1]
  places = [(field, name) for field, name in (
      *steps, ("run_id", "run_id"), *form.names) if field not in columns]
  if axis not in ("rollouts", "updates", *columns):
    places.append((axis, axis))
  places += columns.items()
  sampled = _sampled(path, table) if form.version else {}
  name_of_file = os.path.splitext(os.path.basename(path))[0]
  rows = []
  for number, line in table:
    run = str(line[of_run]) if there(line, of_run) and None not in known else (
        None)
    if run not in known or "kind" in line and line["kind"] == "train":
      continue
    constant, options = known[run]
    for curve in curves:
      if any(field in METRICS and there(line, name)
             for field, name in curve.source.items()):
        found = {name: (line[name], name) for name in line
                 } if kind == "isojax" else {}
        for field, name in (*places, *curve.source.items()):
          if there(line, name):
            found[field] = line[name], name
        rows.append(_row(f"{path}:{number}", form, found, constant, {
            "eval_set": curve.eval_set or _set_of(form, line), "k": curve.k,
            "run_id": name_of_file}, axis, told[run]))
        for field, factor in scale.items():
          if field in rows[-1].fields:
            rows[-1].fields[field] *= factor
        _spend(rows[-1].fields, options, sampled)
  if not rows:
    raise InputError(f"{path}: no line has a value of "
                     f"{sorted(curves[0].source.values())}: check the file")
  if not runs and "run_id" not in fixed.keys() | told[None].keys():
    name_runs(rows)
  constant, options = next(iter(known.values()))
  notes += _caveats(kind, rows, names, dict(places),
                    constant if None in known else {}, options, sampled)
  return (rows if kind == "isojax" else once(rows, form, notes)), notes


def _curves(path, form: Format, names, columns, fixed) -> list[_Curve]:
  """Returns the sets of evaluations in the file."""
  chosen = {field: name for field, name in columns.items() if field in METRICS}
  found = {}  # set, who -> rank of the names -> field -> k -> name
  for rank, patterns in enumerate(form.metrics):
    for field, pattern in patterns.items():
      for name in chosen.values() if chosen else names:
        if match := re.fullmatch(pattern, name):
          part = {"set": None, "who": None, "k": None} | match.groupdict()
          k = None if part["k"] is None else int(part["k"])
          ranks = found.setdefault((part["set"], part["who"]), {})
          ranks.setdefault(rank, {}).setdefault(field, {})[k] = name
  if chosen and len(found) != 1:
    return [_Curve(None, None, chosen)]
  if not found:
    sample = re.sub(r"\(.*?\)|[\\^]", "", form.metrics[0]["avg"])
    raise InputError(f"{path}: no evaluations; expected names such as "
                     f"{sample!r}; give a metric with --columns=avg=NAME; the "
                     "file has "
                     f"{constants.nearest(sample, names)}")
  curves = []
  for (name, who), ranks in found.items():
    curve = _choose(path, ranks[min(ranks)], fixed)
    several = sum(other == name for other, _ in found) > 1
    source = chosen or curve.source
    if form.version and name and "step" not in columns:
      source = source | {"step": form.version.format(set=name)}
    curves.append(_Curve(f"{name}/{who}" if several else name, curve.k, source))
  return curves


def _choose(path: str, by_field: dict, fixed: dict) -> _Curve:
  """Returns one k for best and worst: the given one, else the largest."""
  at = {k for field, by_k in by_field.items() if field != "avg"
        for k in by_k if k is not None}
  k = fixed["k"] if "k" in fixed else max(at, default=None)
  if at and k not in at:
    raise InputError(f"{path}: no best or worst at k={k}; expected one of "
                     f"k={sorted(at)}; choose it with --fixed=k={max(at)}")
  source = {field: by_k[one] for field, by_k in by_field.items()
            for one in (k, None) if one in by_k}
  if "avg" in by_field:  # any number of samples estimates the same mean
    stored = max(by_field["avg"], key=lambda k: k or 0)
    source["avg"] = by_field["avg"][stored]
    k = stored if k is None else k
  return _Curve(None, k, source)


def _set_of(form: Format, line: dict) -> str | None:
  """Returns the eval_set in another name of the line, such as TRL's timing."""
  for name in line if form.set_key else ():
    if there(line, name) and (match := re.fullmatch(form.set_key, name)):
      return match[1]
  return None


def _sampled(path: str, table) -> dict[int, int]:
  """Returns prime-rl's step -> all rollouts received up to the end of the step.

  prime-rl logs the running total before it adds the step's own rollouts.
  """
  needed = ("step", "progress/total_rollouts", "progress/rollouts")
  sampled = {}
  for number, line in table:
    if all(there(line, name) for name in needed):
      step, before, own = (
          constants.typed(f"{path}:{number}", line[name], "rollouts", name)
          for name in needed)
      sampled[step] = before + own
  return sampled


def _row(where: str, form: Format, found, fixed, defaults, axis, told) -> Row:
  """Returns one row from the values of a line and the constants."""
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
  for name, option in (("Bp", form.prompts or form.batch), ("n", form.group),
                       ("step", None)):
    if name not in fields:
      # a batch that counts rollouts is Bp * n, not Bp
      theirs = f" or --fixed={option}=..." if option else ""
      by_name = "" if name == "step" else (
          f", or --from_path='{name}(?P<{name}>\\d+)' if the path or the "
          f"run's name ({fields['run_id']}) tells it")
      raise InputError(
          f"{where}: no {name} ({constants.MEANINGS[name]}); expected a column "
          f"or a constant: --columns={name}=NAME or --fixed={name}=..."
          f"{theirs}{by_name}")
  return Row(where, fields)


def _spend(fields: dict, options: dict, sampled: dict[int, int]) -> None:
  """Sets the cumulative rollouts, if the line does not have them."""
  if "rollouts" in fields:
    return
  generations = step = fields["step"]
  if step in sampled:
    fields["rollouts"] = sampled[step]
    return
  # TRL generates once per steps_per_generation * num_iterations micro-steps and
  # updates once per gradient_accumulation_steps of them
  a, s, m = (options[name] if name in options else None for name in (
      "gradient_accumulation_steps", "steps_per_generation", "num_iterations"))
  if s and not a:
    raise InputError("steps_per_generation without gradient_accumulation_steps;"
                     " give both with --fixed")
  if a or m:
    generations = -(-step * (a or 1) // ((s or a or 1) * (m or 1)))
  fields["rollouts"] = generations * fields["Bp"] * fields["n"]


def _caveats(kind, rows, names, places, fixed, options, sampled) -> list[str]:
  """Returns notes on how far the numbers of this format can be trusted."""
  notes, fields = [], {name for row in rows for name in row.fields}
  told = "rollouts" in places
  caveat = FORMATS[kind].caveat
  if caveat and ("avg" not in places if kind != "verl"
                 else fields & {"best", "worst"}):
    notes.append(caveat)
  runs = {row.fields["run_id"] for row in rows}
  if len(runs) > 1 and fixed.keys() & {"Bp", "n", "seed"}:
    notes.append(f"{len(runs)} runs in the file share the constants {fixed}; "
                 "if that is wrong, give each its own file or column.")
  if kind == "trl" and not told and not options.keys() & {
      "gradient_accumulation_steps", "num_iterations"}:
    notes.append("rollouts are step * Bp * n, which is right if "
                 "steps_per_generation * num_iterations = "
                 "gradient_accumulation_steps; else give all three with "
                 "--fixed.")
  if kind == "prime-rl" and not told and not sampled:
    notes.append("rollouts are step * Bp * n, as the file has no progress/"
                 "total_rollouts: cancelled and stale ones are not counted.")
  if kind == "verl" and any("/filter_groups/" in name for name in names):
    notes.append("verl filtered groups: rollouts that it sampled and dropped "
                 "are counted only with --columns=rollouts=NAME.")
  if kind == "table" and {("step", "_step"), ("step", "Step")} & places.items():
    notes.append("step is W&B's _step, which counts log calls in some trainers;"
                 " check it, or give --columns=step=NAME.")
  for field in METRICS:
    for row in rows:
      if field in row.fields and (
          row.fields[field] < 0 or row.fields[field] > 1):
        notes.append(f"{row.where}: {field} is {row.fields[field]}, outside of "
                     "[0, 1]: a reward, not an accuracy.")
        break
  return notes
