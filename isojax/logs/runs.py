"""The runs of a log: their n and Bp, the trainer's options, and C.

Constants are from the flags, the run's name, the trainer's output or a config
file in the log's folder; C is from the rollouts that the log counts.
"""

import bisect
import collections
from fractions import Fraction
import itertools
import json
import math
import os
import re
import tomllib

from isojax.core.format import nearest_divisors
from isojax.errors import InputError, UNREADABLE
from isojax.logs.fields import nearest, number, typed
from isojax.logs.formats import base, text
from isojax.logs.formats.base import EVAL_FIELDS, ROLLOUTS, TOTAL
from isojax.logs.log_file import LogFile, named_groups

REQUIRED = {"Bp": "problems per step", "n": "rollouts per problem",
            "step": "updates made"}
MAX_ROLLOUTS = 1e15  # a larger count is no count
EXAMPLES = {"Bp": 32, "n": 8, "step": 100}  # values in messages


class Runs:
  """The constants, lines and rollouts of the runs in a file.

  A trainer that samples again, or discards groups, spends more than Bp * n
  rollouts a step. If its log counts them, they are charged to C.
  """

  def __init__(self, file: LogFile, only: str | None = None, more=()):
    """Reads all runs or `only` one; --columns may name the fields `more`."""
    check_flags(file, more)
    named, self.log_options = fields_in_names(file), options_of(file)
    if only is not None and None not in named:
      if only not in named:
        raise InputError(f"{file.path}: --from_path does not match the run "
                         f"{only}")
      named = {only: named[only]}
    self.file, self.sums = file, {}  # sums: of `rollouts_after`
    self.constants = {run: constants(file, fields, self.log_options)
                      for run, fields in named.items()}
    self.lines = [(where, line) for where, line in file.table
                  if only in (None, file.run(line))
                  and not {None, file.run(line)}.isdisjoint(named)]
    self.counts = self._counts()
    self.units = {unit for counts in self.counts.values()
                  for units in counts.values() for unit in units}
    # The commonest number of rollouts of a step, if it was logged.
    sizes = [round(units[ROLLOUTS]) for counts in self.counts.values()
             for units in counts.values() if ROLLOUTS in units]
    self.step_size = max(sizes, key=sizes.count, default=None)
    for fields, _ in self.constants.values():
      self.set_Bp(fields)

  @property
  def batch(self) -> int | None:
    """The rollouts of a step by the trainer's option."""
    name = self.file.form.settings.get("batch")
    return next((options[name] for _, options in self.constants.values()
                 if name in options), None)

  @property
  def discarded(self) -> bool:
    """Whether the log counts rollouts that were sampled and discarded."""
    return not self.units <= {ROLLOUTS, TOTAL, base.STEP}

  @property
  def compares_no_groups(self) -> bool:
    """Whether advantages have no baseline by group: a critic, or the option."""
    file = self.file
    estimator = self.log_options.get(file.form.settings.get("estimator"))
    return estimator in base.UNGROUPED or bool(
        file.form.columns("value_loss", file.numbers))

  def constants_of(self, run: str | None) -> tuple[dict, dict]:
    """The constant fields and the options of a run."""
    return self.constants[None if None in self.constants else run]

  def _counts(self) -> dict[str | None, dict]:
    """Run -> update -> unit -> the count in the log."""
    file, runs = self.file, collections.defaultdict(dict)
    units = {name: unit for pattern, unit in file.form.sampled
             for name in file.numbers if re.fullmatch(pattern, name)}
    for where, line in file.table:
      counts = collections.Counter()
      for name in units.keys() & line.keys() if file.step in line else ():
        counts[units[name]] += number(where, name, line[name])
      if counts and abs(sum(counts.values())) < MAX_ROLLOUTS:
        update = typed(where, line[file.step], "step", file.step)
        runs[file.run(line)].setdefault(
            update + file.form.before_update, {}).update(counts)
    return runs

  def set_Bp(self, fields: dict) -> None:
    """Adds Bp to constants that have n, by the rollouts of a step."""
    if self.step_size and "n" in fields and "Bp" not in fields:
      fields["Bp"], rest = divmod(self.step_size, fields["n"])
      if rest:
        raise InputError(
            f"{self.file.path}: {self.step_size} rollouts a step are no "
            f"multiple of n={fields['n']}; give another n")

  def rollouts_after(self, run: str | None, fields: dict) -> int:
    """C after a row's step; a step that the log does not count is Bp * n."""
    if "rollouts" in fields:
      return fields["rollouts"]
    updates, Bp, n = (fields[name] for name in ("step", "Bp", "n"))
    _, options = self.constants_of(run)
    counts = self.counts.get(run, {})
    if TOTAL in counts.get(updates, {}):
      return round(counts[updates][TOTAL] + counts[updates].get(base.STEP, 0))
    if self.file.form.generations:
      return math.ceil(self.generations_after(run, updates)) * Bp * n
    if (run, Bp, n) not in self.sums:
      # tinker's counts lack the groups that this option removes.
      known = ([] if "remove_constant_reward_groups" in options
               else sorted(update for update in counts if update > 0))
      self.sums[run, Bp, n] = known, [0, *itertools.accumulate(
          self._rollouts_of_step(counts[update], options, Bp, n)
          for update in known)]
    known, sums = self.sums[run, Bp, n]
    counted = bisect.bisect_right(known, updates)
    return sums[counted] + (updates - counted) * Bp * n

  def generations_after(self, run: str | None, step: int) -> Fraction | int:
    """How many steps of Bp problems have been sampled after `step`."""
    generations = self.file.form.generations
    return generations(step, self.constants_of(run)[1]) if generations else step

  def _rollouts_of_step(self, units: dict, options: dict, Bp: int, n: int
                        ) -> int:
    """The rollouts of one step by the trainer's counts, unit -> count."""
    if base.DISCARDED in units:
      return round(Bp + units[base.DISCARDED]) * n
    if ROLLOUTS in units:
      return round(units[ROLLOUTS] * 100 / units.get(base.PASSED, 100))
    if base.BATCHES not in units:
      return Bp * n
    form, batch = self.file.form, Bp
    if form.gen_batch_size in options:
      batch = options[form.gen_batch_size]
    elif form.gen_batch_factor in options:
      batch = Bp * options[form.gen_batch_factor]
    return round(units[base.BATCHES] * batch) * n


def check_flags(file: LogFile, more) -> None:
  """Raises InputError for unknown fields and fields given twice."""
  reading, constants = file.reading, EVAL_FIELDS | {*file.form.known_options}
  given = (("--columns", reading.columns, EVAL_FIELDS | {reading.axis, *more}),
           ("--fixed", reading.fixed, constants),
           ("--from_path", named_groups(reading), constants),
           ("--scale", reading.scale, {*base.METRICS, reading.axis}))
  for flag, names, known in given:
    for name in names:
      if name not in known:
        raise InputError(
            f"{flag}: {name} is not a field; expected one of "
            + ", ".join([*REQUIRED, nearest(name, known - REQUIRED.keys())]))
  for (one, first, _), (other, second, _) in itertools.combinations(
      given[:3], 2):
    if twice := sorted({*first} & {*second}):
      raise InputError(f"{twice} in {one} and in {other}: leave one out")


def lacking(form: base.Format, fields: list[str], run_id: str) -> str:
  """The message for fields that neither the file nor the caller gives."""
  option = {"step": "logging_steps"} | form.settings
  option["Bp"] = option.get("batch", option.get("Bp"))
  options = [f"{option[field]}=NUMBER" for field in fields
             if field in option and option[field] in form.known_options]
  groups = [f"{field}(?P<{field}>\\d+)" for field in fields if field != "step"]
  ways = ["--columns=" + ",".join(f"{field}=NAME" for field in fields),
          "--fixed=" + ",".join(f"{field}={EXAMPLES[field]}"
                                for field in fields)]
  if options:
    ways.append(f"--fixed={','.join(options)}")
  if groups:
    ways.append(f"--from_path='{'-'.join(groups)}' if the path or the run's "
                f"name ({run_id}) has them")
  return (", ".join(f"no {field} ({REQUIRED[field]})" for field in fields)
          + f"; give columns or constants, such as {', or '.join(ways)}")


def fields_in_names(file: LogFile) -> dict:
  """Run -> fields in its name; None -> fields in the path, for all runs."""
  pattern, runs = file.reading.from_path, file.runs
  if pattern is None:
    return {None: {}}
  fields_of = lambda name: (match := re.search(pattern, name)) and {
      field: value for field, value in match.groupdict().items()
      if value is not None}
  by_run = {run: fields for run in runs if (fields := fields_of(run))}
  if (len(runs) < 2 or not by_run) and (fields := fields_of(file.path)):
    return {None: fields}
  if not by_run:
    raise InputError(f"{file.path}: --from_path={pattern} does not match the "
                     f"path, nor a run's name such as {runs[:1]}")
  if others := [run for run in runs if run not in by_run]:
    file.note(f"--from_path does not match the runs {others}; they were left "
              "out.")
  return by_run


def options_of(file: LogFile) -> dict:
  """Options that the trainer printed, logged, or saved in the log's folder."""
  form, options = file.form, {}
  for name, values in text.printed_options(file.head, form).items():
    if len(values) == 1:
      (options[name],) = values
    elif name in form.known_options:
      file.note(f"{name} is printed as {sorted(values)}: give it with --fixed.")
  if form.resolve:
    options = form.resolve(file.head, [line for _, line in file.table], options)
  if sizes := [f"{name}={value}" for name, value in options.items()
               if name in form.known_options]:
    file.note(f"{', '.join(sizes)} from the log; --fixed overrides it.")
  if sizes or form.parse_config is None or (
      {"Bp", "n"} <= file.reading.fixed.keys()):
    return options
  for name in form.config_files:
    path = os.path.join(os.path.dirname(file.path), name)
    try:
      with open(path, "rb") as config:
        options = form.parse_config(
            tomllib.load(config) if name.endswith("toml")
            else json.load(config))
    except FileNotFoundError:
      continue
    except UNREADABLE as error:
      file.notes.append(f"{path}: not used; expected a config with one batch "
                        f"size and one group_size ({error!r}).")
      continue
    file.notes.append(f"{path}: used for " + ", ".join(
        f"{name}={value}" for name, value in options.items()) + ".")
    return options
  return {}


def constants(file: LogFile, named: dict, log_options: dict
              ) -> tuple[dict, dict]:
  """The constant fields of a run, and the trainer's options.

  `named` is from --from_path, `log_options` from the trainer; flags win.
  """
  form, known = file.form, file.form.known_options
  batch, group, model = (form.settings.get(name, name)
                         for name in ("batch", "n", "model"))
  field_of = {form.settings.get("Bp", "Bp"): "Bp", batch: "Bp", group: "n"}
  given = {name: ("--fixed", value)
           for name, value in file.reading.fixed.items()}
  given |= {name: ("--from_path", value) for name, value in named.items()}
  taken = {field_of.get(name, name) for name in given}
  options = {name: ("the log's config", value)
             for name, value in log_options.items()
             if field_of.get(name) not in taken} | given
  options = {name: number(flag, name, value,
                          None if name == form.gen_batch_factor else 1)
             for name, (flag, value) in options.items() if name in known}
  if form.derive:
    options = form.derive(options)
  fields = {name: typed(flag, value, name)
            for name, (flag, value) in given.items() if name in EVAL_FIELDS}
  derived = {field_of[name]: value for name, value in options.items()
             if name in field_of and name != batch}
  n = (fields | derived).get("n")
  if batch in options and n is not None:
    derived["Bp"], rest = divmod(options[batch], n)
    if rest:
      near = nearest_divisors(options[batch], n, least=2)
      raise InputError(f"{batch}={options[batch]} counts rollouts; expected n, "
                       f"or {group}, that divides it, such as {near}: give it "
                       "with --fixed")
  for name, value in derived.items():
    if name in fields and fields[name] != value:
      raise InputError(f"{name} is {fields[name]} in {given[name][0]}, and "
                       f"{value} by {options}: leave one out")
  fields |= derived
  if model in log_options:
    fields.setdefault("model", str(log_options[model]))
  if "num_generations_eval" in options:
    fields.setdefault("k", options["num_generations_eval"])
  elif form.sampled_by_n and "n" in fields:
    fields.setdefault("k", fields["n"])
  return fields, options
