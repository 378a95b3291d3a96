"""A plan: one allocation a line, for people to edit and isojax.main to run."""

import dataclasses
import hashlib
import json

from isojax.errors import InputError
from isojax.planner.allocation import Allocation, admitted, allocate, sqrt_lr


@dataclasses.dataclass(frozen=True)
class Row:
  """One run."""

  allocation: Allocation
  seed: int
  lr: float  # after warm-up; the run makes it again from its own anchor
  expected: dict | None  # seconds, device_hours, usd, basis


FIELDS = ("id", "overrides", "C", "lr", "expected")


def overrides(row: Row) -> dict:
  """The sections of a config that a row sets."""
  return {"seed": row.seed, "alloc": dataclasses.asdict(row.allocation)}


def row_id(values: dict) -> str:
  """12 hex digits of the content: the same row has the same id anywhere."""
  text = json.dumps(values, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def text(rows: list[Row]) -> str:
  """plan.jsonl."""
  lines = []
  for row in rows:
    values = overrides(row)
    lines.append(json.dumps({
        "id": row_id(values), "overrides": values, "C": row.allocation.C,
        "lr": row.lr, "expected": row.expected}) + "\n")
  return "".join(lines)


def read_lines(path: str) -> list[str]:
  """The lines of a plan; InputError if the file cannot be read."""
  try:
    with open(path, encoding="utf-8") as file:
      return file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"--plan={path}: cannot be read ({error}); make it with "
                     "python -m launch.plan") from error


def read_row(lines: list[str], index: int, *, path: str) -> dict:
  """One row of a plan, counted from 0, with the fields FIELDS.

  Raises:
    InputError: no such row, the line is not of a plan, or its id is not that
      of its overrides.
  """
  if not 0 <= index < len(lines):
    raise InputError(f"--row={index}: {path} has {len(lines)} "
                     f"row{'s' * (len(lines) != 1)}, counted from 0")
  where = f"{path}:{index + 1}"
  try:
    row = json.loads(lines[index])
    if not isinstance(row, dict) or row.keys() != set(FIELDS):
      raise ValueError(f"expected an object of {', '.join(FIELDS)}")
    if not isinstance(row["overrides"], dict) or type(row["lr"]) not in (
        int, float):
      raise ValueError("expected an object in overrides, a number in lr")
  except ValueError as error:
    raise InputError(f"{where}: not a row of a plan ({error}); make it with "
                     "python -m launch.plan") from error
  this = row_id(row["overrides"])
  if row["id"] != this:
    raise InputError(
        f"{where}: its id {row['id']!r} is of other overrides, was it edited? "
        f"The id of these is {this!r}: write that, or plan again")
  return row


def kept_cells(cells, *, B: int | None, B_max: int, D: int | None
               ) -> tuple[list[tuple[int, int]], list[str]]:
  """(The cells that are admitted, each once; what was moved or left out, why).

  Args:
    cells: (Bp, n) pairs; n may be a fraction where B is fixed.
    B: Bp * n of every cell if that is fixed.
    B_max, D: as for `allocation.admitted`.
  """
  kept, words = {}, []
  for Bp, n in cells:
    why = None
    if n != int(n):
      why = f"Bp does not divide B = {B}"
    elif n < 2:
      why = "a group of one rollout has no advantage"
    elif Bp * n > B_max:
      why = (f"above {B_max} rollouts a step, the least of --B_max, memory and "
             "--rollouts; a cap can look like saturation")
    else:
      *at, moved = admitted(Bp, int(n), B_max=B_max, D=D or B_max)
      if B and at[0] * at[1] != B:
        why = f"{moved[0]}, which leaves B = {B}"
    if why:
      words.append(f"left out (Bp, n) = ({Bp}, {n:.4g}): {why}")
    else:
      kept[tuple(at)] = None
      words += [f"moved at ({Bp}, {n:.4g}): {change}" for change in moved]
  return list(kept), words


def sweep(cells, *, C: int, seeds, base_lr: float, base_batch: int,
          cost) -> list[Row]:
  """The iso-compute grid: each cell once a seed, to the largest C only.

  The learning rate is constant after warm-up, so a run's evaluation at any
  smaller C is that of the run with this smaller budget: M is no axis.

  Args:
    cells: (Bp, n) pairs.
    C: rollouts of each run, at most.
    seeds: of each cell.
    base_lr, base_batch: anchor of the square-root rule.
    cost: Allocation -> dict of what it is expected to cost, or None.
  """
  rows = []
  for Bp, n in cells:
    a = allocate(Bp=Bp, n=n, M=None, C=C)
    rows += [Row(a, seed, sqrt_lr(base_lr, base_batch, a.B), cost(a))
             for seed in seeds]
  return rows
