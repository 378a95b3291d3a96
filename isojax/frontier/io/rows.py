"""Merges the rows of a log to one per evaluation of a run."""

import dataclasses
import re

from isojax.errors import InputError
from isojax.frontier.io.formats import METRICS, Format


ACCURACY = re.compile(
    r"%|acc|avg@|correct|mean@|pass|percent|pct|solve|^avg$", re.IGNORECASE)
PERCENT = 2.0  # an accuracy above is one in percent


@dataclasses.dataclass(frozen=True)
class Row:
  """One evaluation, with the field names of isojax.ledger.records."""
  where: str  # file:line
  fields: dict


def name_runs(rows: list[Row]) -> None:
  """Adds Bp, n and seed to the run_id if a file without run_ids has several."""
  of = lambda row: tuple((name, row.fields[name]) for name in (
      "Bp", "n", "seed") if name in row.fields)
  if len({of(row) for row in rows}) > 1:
    for row in rows:
      row.fields["run_id"] += "".join(f"-{name}{v}" for name, v in of(row))


def join_endpoints(path: str, rows: list[Row], notes: list[str]) -> None:
  """Makes one curve per (Bp, n, seed) of runs that have one evaluation each."""
  runs = [row.fields["run_id"] for row in rows]
  if len(rows) == 1 or len({*runs}) < len(rows):
    return
  for row in rows:
    row.fields["run_id"] = "endpoints"
  name_runs(rows)
  notes.append(f"{path}: {len(rows)} runs with one evaluation each: the "
               "evaluations of one (Bp, n, seed) were joined to a curve.")


def from_percent(path: str, rows: list[Row], names: dict[str, str],
                 notes: list[str]) -> None:
  """Divides percentages by 100, with a note.

  Args:
    names: field -> its name in the file, which tells accuracies from rewards.
  """
  for field, name in names.items():
    values = [row.fields[field] for row in rows if field in row.fields]
    if not ACCURACY.search(name) or "reward" in name or not values or (
        min(values) < 0 or not PERCENT < max(values) <= 100):
      continue
    for row in rows:
      if field in row.fields:
        row.fields[field] /= 100
    notes.append(f"{path}: {name!r} reaches {max(values):g}: read as percent; "
                 f"--scale={field}=1 keeps the numbers.")


def once(rows: list[Row], form: Format, notes: list[str]) -> list[Row]:
  """Returns one row per evaluation.

  Two rows with different metrics of one evaluation are joined. If the log of a
  run returns to an earlier step, other than its first, the run was resumed
  there: the earlier rows from that step on are dropped, with a note.

  Raises:
    InputError: a step occurs twice in another way, for example in two runs.
  """
  kept: dict[tuple, dict[int, Row]] = {}  # run and set -> step -> row
  for row in rows:
    run = kept.setdefault(tuple(
        row.fields[name] if name in row.fields else None for name in (
            "run_id", "seed", "Bp", "n", "eval_set", "k")), {})
    step = row.fields["step"]
    if step not in run:
      run[step] = row
      continue
    one = run[step]
    if not one.fields.keys() & row.fields.keys() & {*METRICS}:
      run[step] = Row(one.where, one.fields | row.fields)
      continue
    if not (form.repeats or next(iter(run)) < step < next(reversed(run))):
      raise InputError(
          f"{row.where}: the same run, set and step as {one.where}; expected "
          "one row each; separate runs and sets with --columns=run_id=NAME, "
          "seed or eval_set, or delete one")
    notes.append(f"{one.where}: step {step} is evaluated again at {row.where}: "
                 "a resumed run; the later rows from this step on are kept.")
    for void in [other for other in run if other >= step]:
      del run[void]
    run[step] = row
  order = {row.where: at for at, row in enumerate(rows)}
  return sorted((row for run in kept.values() for row in run.values()),
                key=lambda row: order[row.where])
