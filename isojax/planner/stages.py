"""Divides a budget that goes far beyond a law: a sweep, then a final run.

A law says little about runs much longer than those that it was fitted to. The
sweep measures a law on the problems of the user, and the final run is REACH
times as long as its runs.
"""

from collections.abc import Callable

REACH = 4  # C of the final run over that of the sweep's runs
SEEDS = (0, 1)  # of each n: fewer do not separate noise from the effect of n
BELOW, ABOVE = 3, 1  # powers of two around n* in the sweep


def beyond(C: float, end: float) -> bool:
  """Returns whether C is too far beyond the end of a law's data."""
  return C > REACH * end


def sweep_n(n: int) -> tuple[int, ...]:
  """Returns the n of a sweep around a power of two."""
  return tuple(n * 2**i if i >= 0 else n // 2**-i
               for i in range(-BELOW, ABOVE + 1) if n * 2.0**i >= 2)


def sweep_budget(hours: float, first: float,
                 hours_of: Callable[[int], float]) -> int:
  """Returns the C of a sweep's runs so that all runs fit into the hours.

  Args:
    hours: of the sweep and the final run, one after the other.
    first: a guess of C.
    hours_of: C of the sweep's runs -> hours of all runs, the final one too.

  Returns:
    C with three digits, rounded down.
  """
  low, high = 0.0, first
  while hours_of(round(high)) <= hours:
    low, high = high, 2 * high
  for _ in range(40):
    middle = (low + high) / 2
    low, high = ((middle, high) if hours_of(round(middle)) <= hours
                 else (low, middle))
  digit = 10 ** max(0, len(str(int(low))) - 3)
  return int(low) // digit * digit
