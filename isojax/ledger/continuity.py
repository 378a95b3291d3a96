"""Checks that records are those of one run, each step once and in order.

The checksums of isojax.ledger.records show that a file was changed. These
checks also cover records of earlier versions, which have no checksums, and
lines of another run. They do not check the measured values.
"""

from collections.abc import Callable

from isojax import evaluate
from isojax.errors import InputError
from isojax.ledger import records

_NEEDED = ("kind", "run_id", "step", "rollouts", "Bp", "n", "refilled",
           *records.TOTALS)


def problem(kept: list[dict], run_id: str, n_after: Callable[[int], int],
            due: tuple[int, ...]) -> tuple[int, str] | None:
  """Returns the index of the first record that breaks the order, and why.

  Args:
    kept: the records of a run.
    run_id: of that run.
    n_after: rollouts sampled before a step -> n of the step.
    due: the rollouts at which the run evaluates.
  """
  before = {"step": 0, "rollouts": 0} | dict.fromkeys(records.TOTALS, 0)
  evaluated = None
  for index, record in enumerate(map(records.completed, kept)):
    if why := _problem(record, before, run_id, n_after, due, evaluated):
      return index, why
    if record["kind"] == "eval":
      evaluated = record["rollouts"]
    else:
      before = record
  return None


def _problem(record: dict, before: dict, run_id: str,
             n_after: Callable[[int], int], due: tuple[int, ...],
             evaluated: int | None) -> str | None:
  """Returns why a record cannot follow.

  Args:
    record: that should follow.
    before: the last train record.
    run_id, n_after, due: as for `problem`.
    evaluated: rollouts of the last evaluation, if there is one.
  """
  if absent := [name for name in _NEEDED if name not in record]:
    return f"has no field {absent[0]}"
  if record["run_id"] != run_id:
    return f"is of run {record['run_id']}, not of {run_id}"
  if wrong := [name for name in _NEEDED[2:]
               if type(record[name]) not in (int, float) or record[name] < 0]:
    return f"has {wrong[0]} = {record[wrong[0]]!r}"
  train = record["kind"] == "train"
  step = before["step"] + train
  if record["step"] != step:
    return (f"is of {record['kind']} step {record['step']}, where step {step} "
            "comes next")
  if record["n"] != (n := n_after(before["rollouts"])):
    return f"has n = {record['n']}, where alloc gives {n}"
  sampled = train * record["Bp"] * n * (1 + record["refilled"])
  rollouts = before["rollouts"] + sampled
  if record["rollouts"] != rollouts:
    return f"has rollouts = {record['rollouts']}, where {rollouts} were sampled"
  if train and evaluate.is_due(due, evaluated, before["rollouts"]):
    return f"follows step {step - 1}, whose evaluation is missing"
  if not train and evaluated == rollouts:
    return f"is a second evaluation of step {step}"
  for name in records.TOTALS:
    if record[name] < before[name] or (
        not train and record[name] != before[name]):
      return f"has {name} = {record[name]} after {before[name]}"
  if train and "response_length" in record:
    tokens = round(record["response_length"] * sampled)
    if record["sampled_tokens"] != before["sampled_tokens"] + tokens:
      return (f"has sampled_tokens = {record['sampled_tokens']} after "
              f"{before['sampled_tokens']} and {tokens} more")
  return None


def check(path: str, kept: list[dict], run_id: str,
          n_after: Callable[[int], int], due: tuple[int, ...]) -> None:
  """Raises InputError, naming the line, unless records are those of a run."""
  if found := problem(kept, run_id, n_after, due):
    index, why = found
    raise InputError(f"{path}:{index + 1}: this record {why}; "
                     f"{records.repair_hint(path)}")
