"""Merges the rows of a log to one per evaluation of a run."""

import dataclasses

from isojax.errors import InputError
from isojax.frontier.io.formats import METRICS, Format


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
  return sorted((row for run in kept.values() for row in run.values()),
                key=lambda row: int(row.where.rsplit(":", 1)[1]))
