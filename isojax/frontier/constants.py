"""What is constant during a run: n, Bp and the options of the trainer.

They are from the flags, the run's name, the trainer's output or a config file
beside the log.
"""

import itertools
import json
import os
import re
import tomllib

from isojax.errors import InputError
from isojax.frontier.fields import nearest, number, typed
from isojax.frontier.formats import text
from isojax.frontier.formats.base import Format, KNOWN, METRICS
from isojax.frontier.log_file import groups, LogFile

NEEDED = {"Bp": "problems per step", "n": "rollouts per problem",
          "step": "updates made"}
EXAMPLES = {"Bp": 32, "n": 8, "step": 100}  # of messages


def check_flags(file: LogFile) -> None:
  """Raises InputError for unknown fields and fields given twice."""
  how, constants = file.how, KNOWN | {*file.form.known_options()}
  given = {"--columns": (how.columns, KNOWN | {how.axis}),
           "--fixed": (how.fixed, constants),
           "--from_path": (groups(how), constants),
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


def lacking(form: Format, fields: list[str], run_id: str) -> str:
  """The message for fields that neither the file nor the caller gives."""
  sizes = form.settings
  options = {"n": (sizes.get("n"), 8), "step": ("logging_steps", 10),
             "Bp": (sizes["batch"], 256) if "batch" in sizes
             else (sizes.get("Bp"), 32)}
  pairs = lambda items: ",".join(f"{name}={value}" for name, value in items)
  ways = ["--columns=" + pairs((field, "NAME") for field in fields),
          "--fixed=" + pairs((field, EXAMPLES[field]) for field in fields)]
  if theirs := [options[field] for field in fields
                if options[field][0] in form.known_options()]:
    ways.append("--fixed=" + pairs(theirs))
  if named := [field for field in fields if field != "step"]:
    pattern = "-".join(f"{field}(?P<{field}>\\d+)" for field in named)
    ways.append(f"--from_path='{pattern}' if the path or the run's name "
                f"({run_id}) has them")
  return ("no " + ", no ".join(f"{field} ({NEEDED[field]})" for field in fields)
          + "; expected columns or constants, such as " + ", or ".join(ways))


def in_names(file: LogFile) -> dict:
  """Run -> fields in its name, or None -> fields in the path."""
  pattern, runs = file.how.from_path, file.runs
  if pattern is None:
    return {None: {}}
  fields_of = lambda name: (match := re.search(pattern, name)) and {
      field: value for field, value in match.groupdict().items()
      if value is not None}
  by_run = {run: fields for run in runs if (fields := fields_of(run))}
  if (len(runs) < 2 or not by_run) and (fields := fields_of(file.path)):
    return {None: fields}
  if not by_run:
    raise InputError(
        f"{file.path}: --from_path={pattern} does not match the path" + (
            f", nor a run's name such as {runs[0]!r}" if runs else ""))
  if silent := [run for run in runs if run not in by_run]:
    file.notes.append(f"{file.path}: --from_path does not match the runs "
                      f"{silent}; they were left out.")
  return by_run


def options_of(file: LogFile) -> dict:
  """The trainer's options that it printed, logged, or saved beside the log."""
  form, found = file.form, {}
  known = form.known_options()
  for name, values in text.printed_options(file.head, form).items():
    if len(values) == 1:
      (found[name],) = values
    elif name in known:
      file.notes.append(f"{file.path}: {name} is printed as {sorted(values)}: "
                        "give it with --fixed.")
  if form.resolve:
    found = form.resolve(file.head, found)
  if form.logged:
    found = form.logged([line for _, line in file.table]) | found
  if sizes := [f"{name}={value}" for name, value in found.items()
               if name in known]:
    pairs = ", ".join(sizes)
    file.notes.append(f"{file.path}: {pairs} are in the log; --fixed "
                      "overrides them.")
  if {"Bp", "n"} <= file.how.fixed.keys() or form.config is None or sizes:
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


def constants(file: LogFile, named: dict, beside: dict) -> tuple[dict, dict]:
  """The constant fields of a run, and the trainer's options.

  Args:
    file: with --fixed.
    named: fields from --from_path.
    beside: options that the trainer printed or saved; the flags override them.
  """
  form, known = file.form, file.form.known_options()
  prompts, in_batch, group, model = (
      form.settings.get(name, name) for name in ("Bp", "batch", "n", "model"))
  given = {name: ("--fixed", value) for name, value in file.how.fixed.items()}
  given |= {name: ("--from_path", value) for name, value in named.items()}
  overridden = {option for field, names in (
      ("Bp", (prompts, in_batch)), ("n", (group,)))
                if given.keys() & {field, *names} for option in names}
  whole = lambda flag, name, value: number(
      flag, name, value, None if name.endswith("multiplier") else 1)
  options = {name: whole("the log's config", name, value)
             for name, value in beside.items()
             if name in known and name not in overridden}
  options |= {name: whole(flag, name, value)
              for name, (flag, value) in given.items() if name in known}
  fields = {name: typed(flag, value, name)
            for name, (flag, value) in given.items() if name in KNOWN}
  derived = {field: options[option] for field, option in (
      ("n", group), ("Bp", prompts)) if option in options}
  if in_batch in options:
    batch, n = options[in_batch], (fields | derived).get("n")
    if n is None or batch % n:
      raise InputError(f"{in_batch}={batch} counts rollouts; expected n, or "
                       f"{group}, that divides it; give it with --fixed")
    derived["Bp"] = batch // n
  for name, value in derived.items():
    if name in fields and fields[name] != value:
      raise InputError(f"{name} is {fields[name]} in {given[name][0]}, and "
                       f"{value} by {options}: leave one out")
  fields |= derived
  if model in beside:
    fields.setdefault("model", str(beside[model]))
  if "num_generations_eval" in options:
    fields.setdefault("k", options["num_generations_eval"])
  elif form.sampled_by_n and "n" in fields:
    fields.setdefault("k", fields["n"])
  return fields, options
