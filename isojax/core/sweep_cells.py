"""The cells (Bp, n) of a sweep: those within the limits, and their runs."""

import dataclasses
import math

from isojax.core import laws
from isojax.core.allocation import admitted, allocate, sqrt_lr
from isojax.core.plan_file import Row


def cells_within_limits(cells, *, B: int | None, B_max: int, D: int | None
                        ) -> tuple[list[tuple[int, int]], list[str]]:
  """(the distinct cells within the limits, notes on others).

  With a fixed B, n of a cell is B / Bp; a cell where it is a fraction is left
  out. allocation.admitted moves a cell to the nearest within the limits.
  """
  result, notes = {}, []
  for Bp, n in cells:
    reason = None
    if n != int(n):
      near = [x for x in (B // Bp * Bp, -(-B // Bp) * Bp) if x]
      reason = (f"Bp does not divide B = {B}; the nearest --B is "
                f"{' or '.join(map(str, near))}")
    elif n < 2:
      reason = "a group of one rollout has no advantage"
    elif Bp * n > B_max:
      reason = (f"above {B_max} rollouts a step, the least of --B_max and "
                "the least C; a cap can look like saturation")
    else:
      *cell, changes = admitted(Bp, int(n), B_max=B_max, D=D or B_max)
      if B and cell[0] * cell[1] != B:
        reason = f"{changes[0]}, so that Bp * n is not {B}"
    if reason:
      notes.append(f"left out (Bp, n) = ({Bp}, {n:.4g}): {reason}")
    else:
      result[tuple(cell)] = None
      notes += [f"adjusted at ({Bp}, {n:.4g}): {change}" for change in changes]
  return list(result), notes


def reached(C_run: float, C: int) -> bool:
  """Whether a run that ended at C_run rollouts counts as one of budget C."""
  return C_run * laws.C_TOLERANCE >= C


def grid(cells, *, C: int, seeds, base_lr: float, base_batch: int,
         expected) -> list[Row]:
  """The iso-compute grid: a run of budget C for each cell and seed.

  At a constant learning rate a run contains the runs of all smaller budgets:
  the grid needs no axis M. expected(Allocation) is Row.expected.
  """
  rows = []
  for Bp, n in cells:
    allocation = allocate(Bp=Bp, n=n, M=None, C=C)
    lr = sqrt_lr(base_lr, base_batch, allocation.B)
    rows += [Row(allocation, seed, lr, expected(allocation)) for seed in seeds]
  return rows


def branch_step(M: int, decay: float) -> int:
  """The step of a run of M steps up to which its rate is constant."""
  return math.ceil((1 - decay) * M - 1e-9)  # floats: 0.9 * 10 is 9 steps


def with_budgets(rows: list[Row], budgets, *, decay: float, at,
                 ahead: int, expected) -> list[Row]:
  """The runs of several budgets, for each row of a grid to the largest one.

  Without a decay, the row: it contains the smaller budgets. With one, a run for
  each budget. If several have constant steps (0 < decay < 1), these come first
  as a separate run, the trunk, which keeps a checkpoint where each of them
  begins to decay (and at `at`, of the config). It ends `ahead` steps after the
  last of these: its own end, with an evaluation and without steps that are
  sampled ahead, is no part of a longer run. The cost of a decayed run is
  then that of its steps after them.
  """
  if not decay:
    return rows
  out = []
  for row in sorted(rows, key=lambda row: row.seed):
    largest, runs, begins = row.allocation, [], []
    Bp, n, B = largest.Bp, largest.n, largest.B
    ends = dict.fromkeys(  # of which near budgets have one
        allocate(Bp=Bp, n=n, M=None, C=C, m=largest.m)
        for C in sorted(budgets))
    has_trunk = decay < 1 and len(ends) > 1
    for of_C in ends:
      begins.append(branch_step(of_C.M, decay))
      rest = max(1, of_C.M - has_trunk * begins[-1])  # steps
      runs.append(dataclasses.replace(
          row, allocation=of_C,
          expected=expected(dataclasses.replace(of_C, M=rest)),
          settings={"recipe": {"optimizer": {"decay": decay}}}))
    if has_trunk:
      trunk = dataclasses.replace(largest, M=max(begins) + ahead)
      kept = sorted({*at, *(step * B for step in begins)})
      out.append(dataclasses.replace(
          row, allocation=trunk, expected=expected(trunk),
          settings={"recipe": {"optimizer": {"decay": 0.0}},
                    "checkpoint": {"at": kept}}))
    out += runs
  return out


def sampled(rows: list[Row]) -> int:
  """The rollouts that runs sample, if decayed ones begin with their trunk."""
  cell = lambda row: (row.allocation.Bp, row.allocation.n, row.seed)
  trunks = {cell(row) for row in rows if row.decay == 0.0}
  total = 0
  for row in rows:
    total += row.allocation.C
    if row.decay and cell(row) in trunks:
      total -= branch_step(row.allocation.M, row.decay) * row.allocation.B
  return total
