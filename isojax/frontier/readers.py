"""Evaluation curves from the logs of other trainers, as rows of our names.

A `Format` says which names a project writes its evaluations under. What the
file does not hold comes from the caller: `columns` names it in the file,
`fixed` gives the constant, under our name or under the project's own
(`data.train_batch_size`). Standard library only.
"""

import dataclasses
import difflib
import json
import math
import os
import re
import tomllib

from isojax.errors import InputError
from isojax.frontier import lines
from isojax.frontier.formats import FORMATS, KNOWN, METRICS, Format
from isojax.frontier.lines import there

TEXT = ("kind", "run_id", "model", "task", "split", "eval_set")
POSITIVE = ("Bp", "n", "k")  # whole numbers from 1, the next ones from 0
WHOLE = ("step", "rollouts", "seed", "prompt_tokens", "sampled_tokens",
         "trained_tokens")
LISTED = 12  # names in an error message


@dataclasses.dataclass(frozen=True)
class Row:
  """One evaluation, in the names of isojax.records; `where` is "file:line"."""
  where: str
  fields: dict


@dataclasses.dataclass(frozen=True)
class _Curve:
  """Where the evaluations of one set stand."""
  eval_set: str | None
  k: int | None
  source: dict  # our field -> name in the file


def read(path: str, *, kind: str, columns: dict[str, str],
         fixed: dict[str, object]) -> tuple[list[Row], list[str]]:
  """Rows of one file, and notes on what was skipped or is to be known.

  Args:
    path: a log, a table, or an export of W&B (CSV, JSON or JSON lines).
    kind: a key of FORMATS.
    columns: our field -> its name in the file, over the names of the format;
      with a metric among them, no other metric is looked for.
    fixed: our field or the project's option -> a constant. `k` also chooses
      among several best@k.

  Raises:
    InputError: the file is of another kind; a field is missing, there twice,
      or no number.
  """
  if kind not in FORMATS:
    raise InputError(f"format {kind!r}: expected one of {sorted(FORMATS)}")
  form = FORMATS[kind]
  table, notes = lines.load(path)
  names = list(dict.fromkeys(name for _, line in table for name in line))
  _check_flags(path, form, names, columns, fixed)
  fixed, options = _constants(path, form, fixed, notes)
  curves = _curves(path, form, names, columns, fixed)
  steps = [("step", name) for name in form.step if name in names][:1]
  places = [(field, name) for field, name in (
      *steps, ("run_id", "run_id"), *form.names) if field not in columns]
  places += columns.items()
  sampled = _sampled(path, table) if form.version else {}
  rows = []
  for number, line in table:
    if "kind" in line and line["kind"] == "train":
      continue
    for curve in curves:
      if any(field in METRICS and there(line, name)
             for field, name in curve.source.items()):
        found = dict(line) if kind == "isojax" else {}
        for field, name in (*places, *curve.source.items()):
          if there(line, name):
            found[field] = line[name]
        rows.append(_row(f"{path}:{number}", form, found, fixed, {
            "eval_set": curve.eval_set or _set_of(form, line), "k": curve.k,
            "run_id": os.path.splitext(os.path.basename(path))[0]}))
        _spend(rows[-1].fields, options, sampled)
  if not rows:
    raise InputError(f"{path}: no line has a value of "
                     f"{sorted(curves[0].source.values())}: check the file")
  notes += _caveats(kind, rows, names, dict(places), fixed, options, sampled)
  return (rows if kind == "isojax" else _once(rows, form, notes)), notes


def _options(form: Format) -> list[str]:
  mine = (form.prompts, form.batch, form.group, *form.options)
  return [option for option in mine if option is not None]


def _check_flags(path, form, names, columns, fixed) -> None:
  for flag, given, known in (("--columns", columns, KNOWN), (
      "--fixed", fixed, KNOWN.union(_options(form)))):
    for name in given:
      if name not in known:
        raise InputError(f"{flag}={name}=...: no such field; expected one of "
                         f"{_nearest(name, known)}")
  if twice := sorted(columns.keys() & fixed.keys()):
    raise InputError(f"{twice} in --columns and in --fixed: leave one out")
  for field, name in columns.items():
    if name not in names:
      raise InputError(f"{path}: no column {name!r} for {field}; the file has "
                       f"{_nearest(name, names)}")


def _nearest(name: str, names) -> str:
  """The names, the most similar first, as text."""
  alike = sorted(names, reverse=True, key=lambda other: difflib.SequenceMatcher(
      None, name.lower(), other.lower()).ratio())
  more = len(alike) - LISTED
  return ", ".join(alike[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _constants(path: str, form: Format, fixed: dict, notes: list[str]):
  """The constants in our names, and the project's options among them."""
  options = {name: _value("--fixed", name, fixed[name], low=1)
             for name in _options(form) if name in fixed}
  ours = {name: _value("--fixed", name, value) for name, value in fixed.items()
          if name in KNOWN}
  if form.version and not {"Bp", "n"} <= ours.keys():
    options = _beside(path, notes) | options
  derived = {}
  if form.group in options:
    derived["n"] = options[form.group]
  if form.prompts in options:
    derived["Bp"] = options[form.prompts]
  if form.batch in options:
    batch, n = options[form.batch], {**derived, **ours}
    if "n" not in n or batch % n["n"]:
      raise InputError(f"{form.batch}={batch} are rollouts; expected n, or "
                       f"{form.group}, that divides them: give it by --fixed")
    derived["Bp"] = batch // n["n"]
  for name, value in derived.items():
    if name in ours and ours[name] != value:
      raise InputError(f"{name} is {ours[name]} in --fixed, and {value} by "
                       f"{options}: leave one out")
  ours |= derived
  if "num_generations_eval" in options:
    ours.setdefault("k", options["num_generations_eval"])
  elif form.sampled_by_n and "n" in ours:
    ours.setdefault("k", ours["n"])
  return ours, options


def _beside(path: str, notes: list[str]) -> dict[str, int]:
  """batch_size and group_size of the config that prime-rl saves by its log."""
  for name in ("orchestrator.json", "orchestrator.toml", "rl.json", "rl.toml"):
    config = os.path.join(os.path.dirname(path), "configs", name)
    if not os.path.exists(config):
      continue
    try:
      with open(config, "rb") as file:
        value = (tomllib if name.endswith("toml") else json).load(file)
      value = value["orchestrator"] if "orchestrator" in value else value
      batch, sources = value["batch_size"], value["train"]["source"]
      groups = {s["group_size"] if "group_size" in s else value["group_size"]
                for s in sources}
      if not isinstance(batch, int) or len(groups) != 1:
        raise ValueError(f"batch_size {batch}, group_size {sorted(groups)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
      notes.append(f"{config}: not used, as it has not one batch_size and one "
                   f"group_size ({error!r}).")
      continue
    notes.append(f"batch_size {batch} and group_size {max(groups)} are from "
                 f"{config}.")
    return {"batch_size": batch, "group_size": max(groups)}
  return {}


def _curves(path, form: Format, names, columns, fixed) -> list[_Curve]:
  """The sets of evaluations in the file."""
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
    raise InputError(f"{path}: no evaluations; expected names as {sample!r}: "
                     "name a metric by --columns=avg=NAME; the file has "
                     f"{_nearest(sample, names)}")
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
  """One k for best and worst: the given one, else the largest."""
  at = {k for field, by_k in by_field.items() if field != "avg"
        for k in by_k if k is not None}
  k = fixed["k"] if "k" in fixed else max(at, default=None)
  if at and k not in at:
    raise InputError(f"{path}: no best or worst at k={k}; expected one of "
                     f"k={sorted(at)}: choose it by --fixed=k={max(at)}")
  source = {field: by_k[one] for field, by_k in by_field.items()
            for one in (k, None) if one in by_k}
  if "avg" in by_field:  # estimates the same from any number of samples
    stored = max(by_field["avg"], key=lambda k: k or 0)
    source["avg"] = by_field["avg"][stored]
    k = stored if k is None else k
  return _Curve(None, k, source)


def _set_of(form: Format, line: dict) -> str | None:
  """The eval_set that another name of the line tells, as TRL's timing does."""
  for name in line if form.set_key else ():
    if there(line, name) and (match := re.fullmatch(form.set_key, name)):
      return match[1]
  return None


def _sampled(path: str, table) -> dict[int, int]:
  """prime-rl's step -> every rollout that arrived up to its end.

  The running total is logged before the step's own rollouts are added.
  """
  needed = ("step", "progress/total_rollouts", "progress/rollouts")
  sampled = {}
  for number, line in table:
    if all(there(line, name) for name in needed):
      step, before, own = (_value(f"{path}:{number}", "rollouts", line[name])
                           for name in needed)
      sampled[step] = before + own
  return sampled


def _value(where: str, field: str, value, low: int = 0):
  """The value as the field's type; a field that is not ours stays as it is."""
  if field == "correct":
    try:
      value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
      value = None
    if not isinstance(value, list):
      raise InputError(f"{where}: correct: expected a list of counts")
    return [_value(where, "rollouts", count) for count in value]
  if field in TEXT:
    return str(value)
  low = 1 if field in POSITIVE else low
  if field not in KNOWN and not low:
    return value
  try:
    if isinstance(value, bool):
      raise ValueError
    number = value if isinstance(value, int) else float(value)
    if field not in WHOLE and not low:
      return float(number)
  except (TypeError, ValueError, OverflowError):
    raise InputError(f"{where}: {field} is {value!r}; expected a number, or "
                     "nothing where there is none") from None
  if not math.isfinite(number) or number != int(number) or number < low:
    raise InputError(f"{where}: {field} is {value!r}; expected a whole number, "
                     f"at least {low}")
  return int(number)


def _row(where: str, form: Format, found, fixed, defaults) -> Row:
  fields = {name: _value(where, name, value)
            for name, value in found.items() if there(found, name)}
  for name, value in fixed.items():
    if name in fields and fields[name] != value:
      raise InputError(f"{where}: {name} is {fields[name]} in the file and "
                       f"{value} in --fixed: leave it out of --fixed")
    fields[name] = value
  for name, value in defaults.items():
    if name not in fields and value is not None:
      fields[name] = value
  for name, meaning, option in (
      ("Bp", "problems a step", form.prompts or form.batch),
      ("n", "rollouts a problem", form.group),
      ("step", "updates made", None)):
    if name not in fields:
      # a batch that counts rollouts is Bp * n, not Bp
      theirs = f" or --fixed={option}=..." if option else ""
      raise InputError(f"{where}: no {name} ({meaning}); expected a column or "
                       f"a constant: --columns={name}=NAME or "
                       f"--fixed={name}=...{theirs}")
  return Row(where, fields)


def _spend(fields: dict, options: dict, sampled: dict[int, int]) -> None:
  """Adds the cumulative rollouts, if the line has not told them."""
  if "rollouts" in fields:
    return
  generations = step = fields["step"]
  if step in sampled:
    fields["rollouts"] = sampled[step]
    return
  # TRL generates once in steps_per_generation * num_iterations micro-steps,
  # and makes an update of gradient_accumulation_steps of them
  a, s, m = (options[name] if name in options else None for name in (
      "gradient_accumulation_steps", "steps_per_generation", "num_iterations"))
  if s and not a:
    raise InputError("steps_per_generation without gradient_accumulation_steps:"
                     " give both by --fixed")
  if a or m:
    generations = -(-step * (a or 1) // ((s or a or 1) * (m or 1)))
  fields["rollouts"] = generations * fields["Bp"] * fields["n"]


def _caveats(kind, rows, names, places, fixed, options, sampled) -> list[str]:
  """What to know about these numbers."""
  notes, fields = [], {name for row in rows for name in row.fields}
  told = "rollouts" in places
  caveat = FORMATS[kind].caveat
  if caveat and ("avg" not in places if kind != "verl"
                 else fields & {"best", "worst"}):
    notes.append(caveat)
  runs = {row.fields["run_id"] for row in rows}
  if len(runs) > 1 and fixed.keys() & {"Bp", "n", "seed"}:
    notes.append(f"{len(runs)} runs in the file share the constants {fixed}: "
                 "if that is wrong, give each its own file or column.")
  if kind == "trl" and not told and not options.keys() & {
      "gradient_accumulation_steps", "num_iterations"}:
    notes.append("rollouts are step * Bp * n: right if steps_per_generation * "
                 "num_iterations = gradient_accumulation_steps; else give all "
                 "three by --fixed.")
  if kind == "prime-rl" and not told and not sampled:
    notes.append("rollouts are step * Bp * n, as the file has no progress/"
                 "total_rollouts: cancelled and stale ones are not counted.")
  if kind == "verl" and any("/filter_groups/" in name for name in names):
    notes.append("verl filtered groups: what it sampled and dropped is not in "
                 "rollouts, unless --columns=rollouts=NAME tells it.")
  if kind == "table" and {("step", "_step"), ("step", "Step")} & places.items():
    notes.append("step is W&B's _step, which counts log calls in some trainers:"
                 " check it, or give --columns=step=NAME.")
  for field in METRICS:
    for row in rows:
      if field in row.fields and (
          row.fields[field] < 0 or row.fields[field] > 1):
        notes.append(f"{row.where}: {field} is {row.fields[field]}, outside of "
                     "[0, 1]: a reward, not an accuracy.")
        break
  return notes


def _once(rows: list[Row], form: Format, notes: list[str]) -> list[Row]:
  """One row an evaluation: halves are joined, of repeats the later counts."""
  kept = {}
  for row in rows:
    key = tuple(row.fields[name] if name in row.fields else None for name in (
        "run_id", "seed", "Bp", "n", "eval_set", "k", "step"))
    if key not in kept:
      kept[key] = row
      continue
    one = kept[key]
    if not one.fields.keys() & row.fields.keys() & {*METRICS}:
      kept[key] = Row(one.where, one.fields | row.fields)
    elif form.repeats:
      notes.append(f"{one.where}: step {row.fields['step']} is evaluated again "
                   f"at {row.where}: skipped.")
      kept[key] = row
    else:
      raise InputError(
          f"{row.where}: the same run, set and step as {one.where}; expected "
          "one row each: tell runs and sets apart by --columns=run_id=NAME, "
          "seed or eval_set, or delete one")
  return list(kept.values())
