"""A schedule of n that follows a law n*(C) while C is spent.

n*(C) is the best constant n of a run that ends at C. A run that followed it did
not beat the best constant n in the one study that compared them, docs/study.md.
"""

import bisect
import dataclasses
import itertools
import math

import numpy as np

from isojax.allocation import allocate
from isojax.errors import InputError
from isojax.planner import advice as advice_lib
from isojax.planner.advice import Answer, Question
from isojax.planner.fit_file import Fitted

GRID = 512  # values of C, equally spaced in log C, between which n is searched


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Pieces of constant n, and what they rest on."""

  Bp: int
  pieces: tuple[tuple[int, int], ...]  # (from C, n), rollouts
  end: Answer  # n*(C) at the end of the budget, before rounding
  warnings: tuple[str, ...]


def pieces_of(n_at, *, low: int, high: int,
              step) -> tuple[tuple[int, int], ...]:
  """The pieces of a step function n_at of C, from C = 0.

  Between 0 and `low`, n is n_at(low). The first C of each piece is exact, if n
  does not change twice between two values of the grid. A piece that is shorter
  than one of its own steps is left out; step is n -> rollouts of a step.
  """
  C_G = np.unique(np.geomspace(low, high, GRID).round().astype(np.int64))
  pieces = [(0, n_at(int(C_G[0])))]
  for begun, C in itertools.pairwise(map(int, C_G)):
    old = pieces[-1][1]
    if n_at(C) != old:
      start = begun + bisect.bisect_left(
          range(begun, C), True, key=lambda C: n_at(C) != old)
      pieces.append((start, n_at(start)))
  kept = []
  for (start, n), (end, _) in itertools.pairwise([*pieces, (high, 0)]):
    if not kept or end - start >= step(n) and n != kept[-1][1]:
      kept.append((start, n))
  return tuple(kept)


def _first(q: Question) -> int:
  """The first C, in rollouts, at which the law or the data are known."""
  law = q.law
  if q.from_table or q.fixed:
    raise InputError(
        "--schedule needs a law of n*(C) at a free batch; this is "
        + ("a table of the best n at the largest C" if q.from_table else
           "one of n against Bp at a fixed Bp * n"))
  seen = law.C_seen
  if isinstance(law, Fitted) and not law.identified:
    ranges = law.measured_ranges()
    seen = ranges[0] if ranges else None
  per_rollout = q.tokens_per_rollout if law.unit in (
      "tokens", "sampled_tokens") else 1.0
  if seen is None or per_rollout is None:
    advice_lib.advise(q)  # raises, and says why
    raise InputError("--schedule: nothing is known of n before the budget")
  return max(2, math.ceil(seen[0] / per_rollout))


def follow(q: Question) -> Schedule:
  """The schedule of a run with the budget of the question.

  n is n*(C) to a power of two. A law that is not identified is not followed:
  its measured frontier is, with the tested n, where the best one is resolved.
  InputError if nothing is known of n at some C up to the budget.
  """
  low = min(_first(q), q.C)
  end = advice_lib.ask(q)
  Bp = min(q.Bp or end.measured_Bp or advice_lib.wanted_Bp(q),
           q.D or q.B_max, max(1, q.B_max // 2))
  most = max(2, min(q.B_max, q.C) // Bp)
  if q.C < 2 * Bp:
    raise InputError(f"C={q.C} rollouts: expected at least 2 * Bp = {2 * Bp}, "
                     "one step")

  n_at = lambda C: advice_lib.ask(dataclasses.replace(q, C=C)).near((), most)
  pieces = pieces_of(n_at, low=low, high=q.C, step=lambda n: Bp * n)
  warnings = [f"moved: Bp {q.Bp} -> {Bp}, at most D and half of B_max"
              ] if q.Bp not in (None, Bp) else []
  if end.n > math.sqrt(2) * most:
    warnings.append(f"n is capped at {n_at(q.C)}: Bp * n is at most "
                    f"{min(q.B_max, q.C):,}")
  warnings.append(
      "n*(C) is the best constant n of a run that ends at C; a run that "
      "followed it was not better than the best constant n where this was "
      "measured (docs/study.md): compare with launch.plan without --schedule")
  if low < q.C:
    warnings.append(f"below {low:,} rollouts nothing was measured: the first n "
                    "is that of the first measured C")
  last = allocate(Bp=Bp, n=pieces[-1][1], M=None, C=q.C)
  warnings += advice_lib.law_cautions(q, last, end)
  return Schedule(Bp, pieces, end, tuple(warnings))
