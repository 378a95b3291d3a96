"""The cells (Bp, n) of a sweep: those within the limits, and their runs."""

from isojax.core import laws
from isojax.core.allocation import admitted, allocate, sqrt_lr
from isojax.core.plan_file import Row


def admitted_cells(cells, *, B: int | None, B_max: int, D: int | None
                   ) -> tuple[list[tuple[int, int]], list[str]]:
  """(the distinct admitted cells, notes on cells adjusted or left out).

  With a fixed B, n of a cell is B / Bp; a cell where it is a fraction is left
  out. allocation.admitted adjusts cells and describes the limits.
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
                "--rollouts; a cap can look like saturation")
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

  The learning rate is constant after warm-up, so a run contains the runs of all
  smaller budgets: the grid needs no axis M. expected(Allocation) is
  Row.expected.
  """
  rows = []
  for Bp, n in cells:
    a = allocate(Bp=Bp, n=n, M=None, C=C)
    rows += [Row(a, seed, sqrt_lr(base_lr, base_batch, a.B), expected(a))
             for seed in seeds]
  return rows
