"""Tells the runs in a table apart: runs as columns, and aborted first runs."""

import re

from isojax.errors import InputError
from isojax.frontier.io.parse import there


def melted(table, names: list[str], from_path: str):
  """Returns a table whose columns are runs as one with a line for each run.

  Args:
    table: (line number, name -> value) of each line; the first name is the
      step, the others are runs if from_path matches all of them.
    names: the columns.
    from_path: regular expression for the name of a run.
  """
  step, *runs = names
  if len(runs) < 2 or not all(re.search(from_path, run) for run in runs) or any(
      there(line, "run_id") for _, line in table):
    return table
  return [(number, {step: line[step], "run_id": run, "avg": line[run]})
          for number, line in table for run in runs if there(line, run)]


def by_step(path: str, table, step: str | None, keys: list[str],
            notes: list[str]):
  """Returns a table in the order of its steps if each occurs once in a run.

  Args:
    keys: names that tell runs apart.
  """
  try:
    steps = [float(line[step]) for _, line in table]
  except (KeyError, TypeError, ValueError):
    return table  # no step, or one that is reported when the line is used
  runs = [tuple(str(line[key]) if key in line else None for key in keys)
          for _, line in table]
  order = sorted(range(len(table)), key=lambda at: steps[at])
  by_run = {run: [] for run in runs}
  for at, run in enumerate(runs):
    by_run[run].append(steps[at])
  if all(each == sorted(each) for each in by_run.values()) or any(
      len({*each}) < len(each) for each in by_run.values()):
    return table
  notes.append(f"{path}: its rows are not in the order of {step!r}; they were "
               "sorted by it.")
  return [table[at] for at in order]


def last_start(path: str, table, step: str | None, keys: list[str],
               notes: list[str]):
  """Returns the table without runs that were aborted and started again.

  A run starts again where the log returns to its first step and writes a name
  a second time. Lines before it are dropped if they end at an earlier step.

  Args:
    keys: names that tell runs apart.

  Raises:
    InputError: the earlier run is the longer one.
  """
  runs = {}  # run -> its parts: (names at the first step, [(at, step)])
  for at, (_, line) in enumerate(table):
    if step is None or not there(line, step):
      continue
    try:
      now = float(line[step])
    except (TypeError, ValueError):
      continue  # reported with the field's name when the line is used
    run = tuple(str(line[key]) if key in line else None for key in keys)
    names = {name for name in line if there(line, name)} - {step, *keys}
    parts = runs.setdefault(run, [(names, [])])
    known, lines = parts[-1]
    if lines and now <= lines[0][1] < lines[-1][1] and names & known:
      parts.append((names, [(at, now)]))
    else:
      lines.append((at, now))
      if now <= lines[0][1]:
        known |= names
  dropped = set()
  for *earlier, (_, last) in runs.values():
    for _, lines in earlier:
      dropped |= _aborted(path, table, lines, last, notes)
  return [line for at, line in enumerate(table) if at not in dropped]


def _aborted(path: str, table, lines, last, notes: list[str]) -> set[int]:
  """Returns the lines of an aborted run; InputError if it is the longer one."""
  first, end = (f"{path}:{table[at][0]}" for at in (lines[0][0], last[0][0]))
  if lines[-1][1] >= last[-1][1]:
    raise InputError(
        f"{end}: the log starts again at step {last[0][1]:g}, after a run from "
        f"{first} that reached step {lines[-1][1]:g}; expected one run: delete "
        "one, or separate them with --columns=run_id=NAME, seed or eval_set")
  notes.append(f"{first}: a run that ended at step {lines[-1][1]:g} and was "
               f"started again at {end}: left out.")
  return {at for at, _ in lines}
