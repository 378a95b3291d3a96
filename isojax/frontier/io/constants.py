"""Values that are not in the lines of a log: from flags, its path, or options.

Also converts values to the types of the fields of isojax.ledger.records.
"""

import difflib
import json
import re

from isojax.errors import InputError
from isojax.frontier.io.formats import KNOWN, METRICS, Format

TEXT = ("kind", "run_id", "model", "task", "split", "eval_set")
POSITIVE = ("Bp", "n", "m", "k")  # integers from 1; those of WHOLE from 0
WHOLE = ("step", "rollouts", "seed", "prompt_tokens", "sampled_tokens",
         "trained_tokens")
FRACTIONS = ("grpo.batch_multiplier",)  # options that need not be whole
LISTED = 12  # names that an error message lists
MEANINGS = {"Bp": "problems per step", "n": "rollouts per problem",
            "step": "updates made", "run_id": "name of the run",
            "seed": "of the run", "avg": "pass rate"}


EXAMPLES = {"Bp": 32, "n": 8, "step": 100}  # of messages


def missing(form: Format, fields: list[str], run_id: str) -> str:
  """Returns the message for fields that neither the file nor the caller gives.

  Args:
    form: whose names of the fields are offered, too.
    fields: of EXAMPLES, at least one.
    run_id: of the run, which may contain the values.
  """
  pairs = lambda items: ",".join(f"{name}={value}" for name, value in items)
  theirs = {"n": (form.group, 8), "step": ("logging_steps", 10),
            "Bp": (form.prompts, 32) if form.prompts else (form.batch, 256)}
  offered = [theirs[field] for field in fields
             if theirs[field][0] in _options(form)]
  ways = [f"--columns={pairs((field, 'NAME') for field in fields)}",
          f"--fixed={pairs((field, EXAMPLES[field]) for field in fields)}"]
  if offered:
    ways.append(f"--fixed={pairs(offered)}")
  if named := [field for field in fields if field != "step"]:
    ways.append("--from_path='" + "-".join(
        f"{field}(?P<{field}>\\d+)" for field in named) + "' if the path or "
        f"the run's name ({run_id}) tells " + ("it" if len(named) == 1
                                               else "them"))
  return ("no " + ", no ".join(f"{field} ({MEANINGS[field]})"
                               for field in fields)
          + "; expected columns or constants, such as "
          + ", or ".join(ways))


def typed(where: str, value, field: str, column: str | None = None,
          low: int = 0, axis: str | None = None):
  """Returns the value as the field's type; unknown fields stay as they are.

  Args:
    where: file and line, for the error message.
    column: the name in the file, if it differs from the field.
    low: smallest value of an option of the trainer.
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
  if field in TEXT:  # a lone surrogate cannot be encoded
    return str(value).encode("utf-8", "replace").decode()
  if field == "alarms":  # a list of names in isojax's records
    return value
  low = 1 if field in POSITIVE else low
  if field not in KNOWN and field != axis and not low:
    return value
  whole = field in WHOLE or field in POSITIVE or field not in KNOWN and (
      field != axis and field not in FRACTIONS)
  try:
    if isinstance(value, bool):
      raise ValueError
    number = value if isinstance(value, int) else float(value)
    if not whole:
      return float(number)
    near = round(min(max(low, number), 2**63))  # clipped: round(inf) raises
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
  """Returns the names as text, the most similar first."""
  alike = sorted(names, reverse=True, key=lambda other: difflib.SequenceMatcher(
      None, name.lower(), other.lower()).ratio())
  more = len(alike) - LISTED
  return ", ".join(alike[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _options(form: Format) -> list[str]:
  """Returns the trainer's own options that `fixed` may contain."""
  mine = (form.prompts, form.batch, form.group, *form.options)
  return [option for option in mine if option is not None]


def groups(from_path: str | None) -> list[str]:
  """Returns the named groups of --from_path; InputError if it has none."""
  try:
    groups = list(re.compile(from_path or "").groupindex)
  except re.error as error:
    raise InputError(f"--from_path={from_path}: not a regular expression "
                     f"({error})") from error
  if from_path is not None and not groups:
    raise InputError(f"--from_path={from_path}: no named group such as "
                     "(?P<n>\\d+)")
  return groups


def check(path, form, names, columns, fixed, scale, axis, from_path):
  """Raises InputError for unknown fields or columns and fields given twice."""
  fields, options = KNOWN | {axis}, {*_options(form)}
  for flag, given, known in (
      ("--columns", columns, fields), ("--fixed", fixed, KNOWN | options),
      ("--from_path", groups(from_path), KNOWN | options),
      ("--scale", scale, {*METRICS, axis})):
    for name in given:
      if name not in known:
        told = [f"{field} ({MEANINGS[field]})" for field in MEANINGS
                if field in known]
        raise InputError(
            f"{flag}: {name} is not a field; expected one of "
            + ", ".join(told + [nearest(name, known - MEANINGS.keys())]))
  for one, other, flag in ((columns, fixed, "--fixed"),
                           (columns, groups(from_path), "--from_path"),
                           (fixed, groups(from_path), "--from_path")):
    if twice := sorted({*one} & {*other}):
      first = "--columns" if one is columns else "--fixed"
      raise InputError(f"{twice} in {first} and in {flag}: leave one out")
  for field, name in columns.items():
    if name not in names:
      raise InputError(f"{path}: no column {name!r} for {field}; the file has "
                       f"{nearest(name, names)}")


def by_name(path: str, from_path: str | None, runs: list[str],
            notes: list[str]) -> dict:
  """Returns run -> fields in its name, or None -> fields in the path."""
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


def resolve(form: Format, fixed: dict, told: dict, beside: dict):
  """Returns the constant fields of a run, and the trainer's options.

  Args:
    told: fields from --from_path.
    beside: options that the trainer printed or saved; the flags override them.
  """
  given = {name: ("--fixed", value) for name, value in fixed.items()}
  given |= {name: ("--from_path", value) for name, value in told.items()}
  hidden = {name for field, names in (
      ("Bp", (form.prompts, form.batch)), ("n", (form.group,)))
            if given.keys() & {field, *names} for name in names}
  options = {name: value for name, value in beside.items()
             if name not in hidden and name != form.model}
  options = {name: typed("the log's config", value, name, low=1)
             if name in _options(form) else value
             for name, value in options.items()}
  options |= {name: typed(*given[name], name, low=1)
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
      raise InputError(f"{form.batch}={batch} counts rollouts; expected n, or "
                       f"{form.group}, that divides it; give it with --fixed")
    derived["Bp"] = batch // n["n"]
  for name, value in derived.items():
    if name in ours and ours[name] != value:
      raise InputError(f"{name} is {ours[name]} in {given[name][0]}, and "
                       f"{value} by {options}: leave one out")
  ours |= derived
  if form.model in beside:
    ours.setdefault("model", str(beside[form.model]))
  if "num_generations_eval" in options:
    ours.setdefault("k", options["num_generations_eval"])
  elif form.sampled_by_n and "n" in ours:
    ours.setdefault("k", ours["n"])
  return ours, options
