"""What the command line, a path and saved options say of a log.

Values as the types of our fields, and the constants that a file does not hold.
Standard library only.
"""

import difflib
import json
import os
import re
import tomllib

from isojax.errors import InputError
from isojax.frontier.formats import KNOWN, METRICS, Format

TEXT = ("kind", "run_id", "model", "task", "split", "eval_set")
POSITIVE = ("Bp", "n", "k")  # whole numbers from 1, the next ones from 0
WHOLE = ("step", "rollouts", "seed", "prompt_tokens", "sampled_tokens",
         "trained_tokens")
LISTED = 12  # names in an error message
MEANINGS = {"Bp": "problems a step", "n": "rollouts a problem",
            "step": "updates made", "run_id": "name of the run",
            "seed": "of the run", "avg": "pass rate"}


def typed(where: str, value, field: str, column: str | None = None,
          low: int = 0, axis: str | None = None):
  """The value as the field's type; a field that is not ours stays as it is."""
  name = field if column in (None, field) else f"{field} (column {column!r})"
  if field == "correct":
    try:
      value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
      value = None
    if not isinstance(value, list) or not all(
        isinstance(c, int) and 0 <= c < 2**31 for c in value):
      raise InputError(f"{where}: {name}: expected a list of counts from 0 on, "
                       "the correct samples of each problem")
    return value
  if field in TEXT:  # half a surrogate pair cannot be written
    return str(value).encode("utf-8", "replace").decode()
  low = 1 if field in POSITIVE else low
  if field not in KNOWN and field != axis and not low:
    return value
  whole = field in WHOLE or field in POSITIVE or field not in KNOWN and (
      field != axis)
  try:
    if isinstance(value, bool):
      raise ValueError
    number = value if isinstance(value, int) else float(value)
    if not whole:
      return float(number)
    near = round(min(max(low, number), 2**63))  # first, as round(inf) raises
  except (TypeError, ValueError, OverflowError):
    comma = isinstance(value, str) and re.fullmatch(r"-?\d+,\d+", value.strip())
    raise InputError(
        f"{where}: {name} is {value!r:.60}; expected a number, or nothing "
        "where there is none" + ("; write decimal points, not commas" if comma
                           else "")) from None
  if number != near:
    raise InputError(f"{where}: {name} is {value!r:.60}; expected a whole "
                     f"number, at least {low}; the nearest is {near}")
  return near


def nearest(name: str, names) -> str:
  """The names, the most similar first, as text."""
  alike = sorted(names, reverse=True, key=lambda other: difflib.SequenceMatcher(
      None, name.lower(), other.lower()).ratio())
  more = len(alike) - LISTED
  return ", ".join(alike[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _options(form: Format) -> list[str]:
  mine = (form.prompts, form.batch, form.group, *form.options)
  return [option for option in mine if option is not None]


def _groups(from_path: str | None) -> list[str]:
  try:
    groups = list(re.compile(from_path or "").groupindex)
  except re.error as error:
    raise InputError(f"--from_path={from_path}: no regular expression "
                     f"({error})") from error
  if from_path is not None and not groups:
    raise InputError(f"--from_path={from_path}: no named group such as "
                     "(?P<n>\\d+)")
  return groups


def check(path, form, names, columns, fixed, scale, axis, from_path):
  fields, options = KNOWN | {axis}, {*_options(form)}
  for flag, given, known in (
      ("--columns", columns, fields), ("--fixed", fixed, KNOWN | options),
      ("--from_path", _groups(from_path), KNOWN | options),
      ("--scale", scale, {*METRICS, axis})):
    for name in given:
      if name not in known:
        told = [f"{field} ({MEANINGS[field]})" for field in MEANINGS
                if field in known]
        raise InputError(
            f"{flag}: {name} is no field; expected one of "
            + ", ".join(told + [nearest(name, known - MEANINGS.keys())]))
  for one, other, flag in ((columns, fixed, "--fixed"),
                           (columns, _groups(from_path), "--from_path"),
                           (fixed, _groups(from_path), "--from_path")):
    if twice := sorted({*one} & {*other}):
      first = "--columns" if one is columns else "--fixed"
      raise InputError(f"{twice} in {first} and in {flag}: leave one out")
  for field, name in columns.items():
    if name not in names:
      raise InputError(f"{path}: no column {name!r} for {field}; the file has "
                       f"{nearest(name, names)}")


def by_name(path: str, from_path: str | None, runs: list[str],
            notes: list[str]) -> dict:
  """run -> what its name tells; or None -> what the path tells of all."""
  if from_path is None:
    return {None: {}}
  tell = lambda text: (match := re.search(from_path, text)) and {
      name: value for name, value in match.groupdict().items()
      if value is not None}
  by_run = {run: fields for run in runs if (fields := tell(run))}
  if (len(runs) < 2 or not by_run) and (fields := tell(path)):
    return {None: fields}
  if not by_run:
    raise InputError(
        f"{path}: --from_path={from_path} does not match the path" + (
            f", nor a run's name such as {runs[0]!r}" if runs else ""))
  if silent := [run for run in runs if run not in by_run]:
    notes.append(f"{path}: --from_path does not match the runs {silent}; they "
                 "were left out.")
  return by_run


def constants(form: Format, fixed: dict, told: dict, beside: dict):
  """The constants in our names, and the project's options among them."""
  given = {name: ("--fixed", value) for name, value in fixed.items()}
  given |= {name: ("--from_path", value) for name, value in told.items()}
  options = beside | {name: typed(*given[name], name, low=1)
                      for name in _options(form) if name in given}
  ours = {name: typed(flag, value, name) for name, (flag, value)
          in given.items() if name in KNOWN}
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
      raise InputError(f"{name} is {ours[name]} in {given[name][0]}, and "
                       f"{value} by {options}: leave one out")
  ours |= derived
  if "num_generations_eval" in options:
    ours.setdefault("k", options["num_generations_eval"])
  elif form.sampled_by_n and "n" in ours:
    ours.setdefault("k", ours["n"])
  return ours, options


def saved(path: str, notes: list[str]) -> dict[str, int]:
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
