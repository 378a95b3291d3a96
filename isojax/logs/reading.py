"""Reads the evaluations of logs as rows with isojax's field names.

A `Format` has the names under which a trainer logs its evaluations. The
caller's Reading adds names (`columns`) and constants (`fixed`), under isojax's
name or the trainer's (`data.train_batch_size`).
"""

import collections
import dataclasses
import itertools
import math
import os
import re

from isojax.core.evaluate import MIN_EVALUATIONS
from isojax.errors import InputError
from isojax.ledger import bucket
from isojax.logs import granularity, metrics
from isojax.logs.fields import LogRow, Reading, TEXT, TRAINING
from isojax.logs.formats.base import Format, METRICS, TOTAL
from isojax.logs.log_file import (
  file_of,
  is_number,
  LOG_CALLS,
  LogFile,
  open_log,
)
from isojax.logs.metrics import CurveNames
from isojax.logs.runs import lacking, REQUIRED, Runs

CURVE = "run_id", "seed", "Bp", "n", "eval_set", "k"  # they identify a curve
FALLEN_RATE = 0.9  # of the largest learning rate; above it is constant
FLOAT32_EPS = 2**-23  # relative
MAX_FRACTION = 2.0  # a larger accuracy is in percent


def read(patterns: list[str], reading: Reading, *, flag: str
         ) -> tuple[list[LogRow], list[str]]:
  """Every evaluation in the files, and the notes of the readers.

  A file that cannot be read is left out with a note, unless it is the only one.
  Patterns may have wildcards, also in a bucket; messages name them by `flag`.
  """
  rows, notes, refused, paths = [], [], [], {}
  for pattern in patterns:
    bucket.check(pattern, flag)
    matches = bucket.matching(pattern)
    if not matches:
      raise InputError(f"{flag}={pattern}: no such file; give the path of a "
                       "log or of records.jsonl")
    for path in matches:
      if os.path.realpath(path) in paths:
        notes.append(f"{path}: given twice; read once.")
      paths.setdefault(os.path.realpath(path), path)
  for path in paths.values():
    try:
      more, file_notes = read_file(file_of(path), reading)
    except InputError as error:
      refused.append(error)
      notes.append(f"left out: {error}")
      continue
    rows += more
    notes += file_notes
  if refused and not rows:
    raise refused[0]
  evaluated = [r for r in rows if r.fields.get("eval_set") != TRAINING]
  if 0 < len(evaluated) < len(rows):  # a study compares one kind
    unevaluated = dict.fromkeys(row.path for row in rows
                                if row.fields.get("eval_set") == TRAINING)
    notes += [f"left out: {path}: it has a {TRAINING} and no evaluations, as "
              "other files have" for path in unevaluated]
    rows = evaluated
  return rows, merged(notes, list(paths.values()))


def budgets(rows: list[LogRow]) -> tuple[list[LogRow], list[str]]:
  """The rows that are separate budgets, and notes on the others.

  At a constant learning rate a run contains the runs of smaller C. If its rate
  falls it does not, as each C has its own schedule: only the last evaluation
  counts. Such points of one Bp and n, from runs of several C, are one curve. A
  constant run of their seed, Bp and n is their trunk (isojax/run/branch.py),
  whose last weights are not those of a budget: it is left out.
  """
  last = {tuple(map(row.fields.get, CURVE)): row
          for row in rows if row.falling}
  trunk_of = lambda row: tuple(map(row.fields.get, (
      "seed", "Bp", "n", "eval_set", "k")))
  trunks = {trunk_of(row) for row in last.values()
            if row.fields.get("seed") is not None}
  constant = [row for row in rows if row.falling is None]
  left_out = dict.fromkeys(
      row.path for row in constant if trunk_of(row) in trunks)
  constant = [row for row in constant if trunk_of(row) not in trunks]
  arms = collections.defaultdict(list)  # Bp, n, set, k -> curves
  for row in sorted(last.values(), key=lambda row: row.fields["rollouts"]):
    curves = arms[tuple(map(row.fields.get, ("Bp", "n", "eval_set", "k")))]
    curve = next((curve for curve in curves if curve[-1].fields["rollouts"]
                  < row.fields["rollouts"]), None)
    if curve is None:
      curves.append([row])
    else:
      curve.append(row)
  joined = []
  for (Bp, n, *_), curves in arms.items():
    for number, curve in enumerate(curves, 1):
      if len(curve) > 1:  # without the seed: each point is of its own run
        curve = [dataclasses.replace(row, joined=True, fields={
            name: value for name, value in row.fields.items() if name != "seed"
        } | {"run_id": f"ends-Bp{Bp}-n{n}-{number}"}) for row in curve]
      joined += curve
  return constant + joined, merged(
      [f"{row.path}: {row.falling}: its last evaluation is one point"
       for row in last.values()]
      + [f"{path}: left out, its rate is constant: runs of the same seed, Bp "
         "and n begin with its steps and decay" for path in left_out],
      [*(row.path for row in last.values()), *left_out])


def merged(notes: list[str], paths: list[str]) -> list[str]:
  """One note for all notes that differ only in the file that they name."""
  place = re.compile(f"(?:{'|'.join(map(re.escape, paths))})(?::\\d+)?: ")
  alike = collections.defaultdict(list)
  for note in notes:
    alike[place.sub("", note, count=1)].append(note)
  return [same[0] + (f" ({len(same)} files)" if len(same) > 1 else "")
          for same in alike.values()]


def read_file(path: str, reading: Reading) -> tuple[list[LogRow], list[str]]:
  """The evaluations in a file, and notes on what was skipped or assumed."""
  log = Runs(open_log(path, reading))
  if len(log.constants) == 1 and "n" not in reading.columns:
    granularity.set_group_size(log, next(iter(log.constants.values()))[0])
  file, curves = log.file, metrics.curves_of(log)
  rows = _rows(log, curves)
  if not rows:
    texts = {name: value for name, value in reading.fixed.items()
             if name in TEXT}
    raise InputError(
        f"{path}: no line has a value of {sorted(curves[0].source.values())}"
        + (f" with {texts}" if texts else "") + ": check the file")
  if file.kind != "isojax":
    _from_percent(file, rows, curves)
  if curves[0].train:
    _check_training(file, rows, curves[0].source.get("avg"))
  if file.kind == "isojax":
    return rows, file.notes
  if not file.runs and "run_id" not in log.constants_of(None)[0]:
    _name_runs(rows)
  file.notes.extend(_caveats(log, rows, curves))
  if "avg" not in reading.scale and (note := granularity.contradiction(log)):
    file.note(note)
  rows = _without_repeats(rows, file)
  _check_enough(file, rows, curves)
  return rows, file.notes


# ---- Rows


def _rows(log: Runs, curves: list[CurveNames]) -> list[LogRow]:
  """A row for each line and set that has a metric.

  A line has no row if one of its texts, such as the model, is not the constant.
  """
  rows, previous, file, reading = [], {}, log.file, log.file.reading
  falling = _falling_rates(log)
  reached = {}  # curve -> compute of its last row, if rows have no step
  for where, run, _, set_and_k, values in metrics.curve_lines(log, curves):
    constant, _ = log.constants_of(run)
    numbered = (file.step is None
                and not (values | constant).keys() & {"step", "rollouts"}
                and reading.axis not in ("rollouts", "updates"))
    if numbered:  # the axis needs no step, so the number of the row is used
      values["step"] = len(rows)
    conflict = next((name for name, value in constant.items()
                     if values.get(name, value) != value), None)
    if conflict in TEXT:
      continue
    if conflict:
      source = ("--fixed" if conflict in reading.fixed
                else "--from_path or the trainer's options")
      raise InputError(
          f"{where}: {conflict} is {values[conflict]} in the file and "
          f"{constant[conflict]} in {source}: leave one out")
    fields = {"run_id": file.default_run} | set_and_k | constant | values
    if {"rollouts", "Bp", "n"} <= fields.keys():  # a table may lack the step
      fields.setdefault("step", fields["rollouts"] // (fields["Bp"]
                                                       * fields["n"]))
    absent = [name for name in REQUIRED if name not in fields]
    if {"Bp", "n"} <= {*absent} and (
        log.step_size is not None or log.batch is not None):
      absent.remove("Bp")  # follows from n and the rollouts of a step
    if absent:
      raise InputError(f"{where}: "
                       + lacking(file.form, absent, fields["run_id"]))
    _set_training_problems(fields, log, run)
    if curves[0].train and not file.form.before_update:
      _set_sampling_policy(fields, file.form, previous, run)
    for field, (low, high) in reading.scale.items():
      if field in fields:
        fields[field] = _scaled(fields[field], low, high)
    if numbered:
      _check_order(where, fields, reading.axis, reached)
    else:
      fields["rollouts"] = log.rollouts_after(run, fields)
    rows.append(LogRow(where, fields, falling.get(run)))
  return rows


def _scaled(value: float, low: float, high: float) -> float:
  """The value with low as 0 and high as 1, also if it was stored as float32."""
  scaled = (value - low) / (high - low)
  rounding = FLOAT32_EPS * max(abs(low), abs(high)) / (high - low)
  return next((float(end) for end in (0, 1)
               if abs(scaled - end) <= rounding), scaled)


def _falling_rates(log: Runs) -> dict[str | None, str]:
  """Run -> how its learning rate falls, if it does."""
  file, rates = log.file, collections.defaultdict(list)
  name = next(iter(file.form.columns("lr", file.numbers)), None)
  for _, line in log.lines:
    if is_number(line.get(name)):
      rates[file.run(line)].append(line[name])
  return {run: f"{name} falls from {max(values):g} to {values[-1]:g}"
          for run, values in rates.items()
          if values[-1] < FALLEN_RATE * max(values)}


def _check_order(where: str, fields: dict, axis: str, reached: dict) -> None:
  """Raises InputError if rows without steps cannot be of one run."""
  if axis not in fields:
    return
  curve = tuple(fields.get(name) for name in CURVE)
  if reached.setdefault(curve, -math.inf) >= fields[axis]:
    raise InputError(
        f"{where}: {axis} is {fields[axis]:g}, not more than in the line "
        "before: these are rows of several runs; separate them with "
        "--columns=run_id=NAME, or seed, and name the step")
  reached[curve] = fields[axis]


def _set_training_problems(fields: dict, log: Runs, run) -> None:
  """Sets D by the epoch after a step, in which each problem is sampled once."""
  epoch, form = fields.get("epoch"), log.file.form
  if form.counters or not isinstance(epoch, (int, float)) or epoch <= 0 or (
      fields.keys() >= {"D"} or not fields.keys() >= {"step", "Bp"}):
    return
  problems = log.generations_after(run, fields["step"]) * fields["Bp"]
  fields["D"] = float(problems) / epoch


def _set_sampling_policy(
    fields: dict, form: Format, previous: dict, run) -> None:
  """Sets the step of a training reward to that of the policy that sampled.

  The rollouts of update s are from the policy after s - 1 updates; a mean over
  several updates counts as that of the middle one. The counters at that policy
  are those of the row before; after a gap they are unknown. `previous` has the
  step and the counters of the last row of each run.
  """
  step = fields["step"]
  counted = {name: fields.pop(name) for name in form.counters if name in fields}
  last, before = previous.get(run, (0, dict.fromkeys(counted, 0)))
  previous[run] = step, counted
  fields["step"] = max(0, step - (max(step - last, 1) + 1) // 2
                       if form.averaged else step - 1)
  if last == fields["step"]:
    fields |= before


def _name_runs(rows: list[LogRow]) -> None:
  """Adds Bp, n and seed to the run_id if rows without run_id differ in them."""
  arm = lambda row: tuple((name, row.fields[name]) for name in (
      "Bp", "n", "seed") if name in row.fields)
  if len({arm(row) for row in rows}) > 1:
    for row in rows:
      row.fields["run_id"] += "".join(f"-{name}{v}" for name, v in arm(row))


def _from_percent(file: LogFile, rows: list[LogRow],
                  curves: list[CurveNames]) -> None:
  """Divides percentages by 100, with a note; small ones are only noted."""
  names = {field: name for curve in curves
           for field, name in curve.source.items()
           if field in METRICS and field not in file.reading.scale
           and metrics.ACCURACY.search(name) and "reward" not in name}
  for field, name in names.items():
    having = [row for row in rows if field in row.fields]
    values = _known(having, field)
    if values and min(values) >= 0 and MAX_FRACTION < max(values) <= 100:
      for row in having:
        row.fields[field] /= 100
      file.note(f"{name!r} reaches {max(values):g}: read as percent; "
                f"--scale={field}=1 keeps the numbers.")
    elif values and metrics.PERCENT.search(name) and 0 <= min(values) and (
        0 < max(values) <= 1):
      file.note(f"{name!r} is read as a share of 1, not as percent; if it is "
                f"percent, give --scale={field}=0.01.")


def _known(rows: list[LogRow], field: str) -> list[float]:
  """The values of a field without NaN, which min and max may return."""
  return [row.fields[field] for row in rows
          if field in row.fields and not math.isnan(row.fields[field])]


def _check_training(file: LogFile, rows: list[LogRow], name: str | None
                    ) -> None:
  """Notes that avg is the training reward; halves rewards of 0 and 2.

  Raises InputError for other rewards outside [0, 1].
  """
  others = [f"--columns=avg={other}" for other in metrics.rewards_of(file)
            if other != name and _has_pass_rates(file, other)][:3]
  more = "" if "avg" in file.reading.columns or not others else (
      f" Others: {', '.join(others)}.")
  file.note(f"avg is the {TRAINING} {name!r}, noisier than an evaluation, and "
            "of the training problems. Each is charged to the policy that "
            f"sampled it.{more}")
  values = _known(rows, "avg")
  if "avg" in file.reading.scale or not values:
    return
  low, high = min(values), max(values)
  if 0 <= low and 1 < high <= 2 and _worth_two(rows):
    for row in rows:
      row.fields["avg"] /= 2
    file.note(f"{name!r} reaches {high:.4g}, in multiples of 2 / (Bp * n): "
              "read as 2 for a right answer; else give --scale=avg=1.")
  elif low < 0 or high > 1:
    raise InputError(
        f"{file.path}: {name!r} is a {TRAINING} from {low:.4g} to {high:.4g}; "
        "expected a pass rate: give --scale=avg=LOW:HIGH, the rewards of a "
        "wrong and a right answer"
        + "".join(f", or {other}" for other in others))


def _has_pass_rates(file: LogFile, name: str) -> bool:
  """Whether the values of a name can be pass rates, and are not all 0."""
  values = metrics.numbers(file, name)
  return any(values) and all(0 <= value <= 1 for value in values
                             if not math.isnan(value))


def _worth_two(rows: list[LogRow]) -> bool:
  """Whether the rewards are means of 0 and 2, not of 0 and 1.

  Of at least 8 sums of rewards of 0 and 1, about half would be odd.
  """
  sums = [row.fields["avg"] * row.fields["Bp"] * row.fields["n"]
          for row in rows if row.fields.get("avg", 0) > 0]
  return len(sums) >= 8 and all(
      abs(total - 2 * round(total / 2)) < 0.02 for total in sums)


def _without_repeats(rows: list[LogRow], file: LogFile) -> list[LogRow]:
  """The rows, one per evaluation.

  Two rows with different metrics of one evaluation are joined. If the log of a
  run returns to an earlier step, the run was resumed there: the earlier rows
  from that step on are dropped, with a note. Without `Format.repeats` a return
  to the first or last step is refused, because it may be another run.
  """
  # A table without steps may have several C in one step of Bp * n.
  order = "rollouts" if file.kind == "table" and file.step is None and all(
      "rollouts" in row.fields for row in rows) else "step"
  curves: dict[tuple, dict[int, LogRow]] = {}  # fields of CURVE -> step -> row
  for row in rows:
    curve = curves.setdefault(tuple(map(row.fields.get, CURVE)), {})
    step = row.fields[order]
    if step not in curve:
      curve[step] = row
      continue
    earlier = curve[step]
    if not earlier.fields.keys() & row.fields.keys() & {*METRICS}:
      curve[step] = dataclasses.replace(
          earlier, fields=earlier.fields | row.fields)
      continue
    if not (file.form.repeats
            or next(iter(curve)) < step < next(reversed(curve))):
      raise InputError(
          f"{row.where}: the same run, set and step as {earlier.where}; "
          "separate them with --columns=run_id=NAME, seed or eval_set, or "
          "delete one")
    file.notes.append(
        f"{earlier.where}: step {step} is evaluated again at {row.where}: a "
        "resumed run; the later rows from this step on are kept.")
    for later in [other for other in curve if other >= step]:
      del curve[later]
    curve[step] = row
  position = {row.where: i for i, row in enumerate(rows)}
  return sorted((row for curve in curves.values() for row in curve.values()),
                key=lambda row: position[row.where])


def _check_enough(file: LogFile, rows: list[LogRow], curves: list[CurveNames]
                  ) -> None:
  """Raises InputError if only another metric has enough values for a curve.

  A study leaves out runs that have fewer.
  """
  longest = max(collections.Counter(
      (row.fields["run_id"], row.fields.get("eval_set")) for row in rows
  ).values())
  if longest >= MIN_EVALUATIONS or "avg" in file.reading.columns:
    return
  train = metrics.rewards_of(file)
  count = lambda name: len(metrics.numbers(file, name))
  used = {name for curve in curves for name in curve.source.values()}
  others = sorted((name for name in file.numbers if name not in {*train, *used}
                   and metrics.EVALUATED.search(name)
                   and metrics.ACCURACY.search(name)
                   and not metrics.NO_RATE.search(name)), key=count,
                  reverse=True)
  if more := [f"--columns=avg={name} ({count(name)} values"
              + (f" of the {TRAINING})" if name in train else ")")
              for name in (*others, *train)
              if (count(name) >= MIN_EVALUATIONS
                  and _has_pass_rates(file, name))]:
    raise InputError(f"{file.path}: {longest} evaluations "
                     f"({', '.join(curves[0].source.values())}), a curve "
                     f"needs {MIN_EVALUATIONS}; there are also "
                     f"{', '.join(more[:3])}")


def _caveats(log: Runs, rows: list[LogRow], curves: list[CurveNames]
             ) -> list[str]:
  """Notes on how far the numbers of this format can be trusted."""
  file, form, reading = log.file, log.file.form, log.file.reading
  fields, options = next(iter(log.constants.values()))
  fixed = fields if None in log.constants else {}
  runs = {row.fields["run_id"] for row in rows}
  counted = "rollouts" not in dict(file.field_names())
  steps = sorted({row.fields["step"] for row in rows})
  gaps = [later - step for step, later in itertools.pairwise(steps)]
  return [note for holds, note in (
      (not curves[0].train and "avg" not in file.reading.columns and (
          file.kind != "verl" or curves[0].source.keys() & {"best", "worst"}),
       form.caveat),
      (len(runs) > 1 and fixed.keys() & {"Bp", "n", "seed"},
       f"{len(runs)} runs in the file share the constants {fixed}; if that is "
       "wrong, give each its own file or column."),
      (counted and form.generations and not options.keys() & {
          "gradient_accumulation_steps", "num_iterations"},
       "rollouts are step * Bp * n, which is right if steps_per_generation * "
       "num_iterations = gradient_accumulation_steps; else give all three with "
       "--fixed."),
      (counted and TOTAL in dict(form.sampled).values()
       and TOTAL not in log.units,
       "rollouts are step * Bp * n, without cancelled and stale ones, as the "
       "file has no running total."),
      (counted and log.discarded, f"{file.path}: C includes the rollouts that "
       "the trainer sampled and discarded."),
      ("remove_constant_reward_groups" in options, "rollouts are step * Bp * "
       "n: env/all/* leaves out the groups of constant reward."),
      ("_step" not in (reading.axis, *reading.columns.values())
       and file.step in ("_step", "Step") and (
           file.kind == "table" or min(gaps, default=1) > 1), LOG_CALLS),
  ) if holds and note]
