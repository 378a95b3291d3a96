"""Chooses strata and mixtures by pass rate, and the recipe for each."""

import collections
import dataclasses
import fractions
import math

from isojax.errors import InputError
from isojax.tasks.problem import Pool
from isojax.tasks.problem import Problem
from isojax.tasks.stratum_file import SPLITS

EASY = (0.3, 0.6)  # avg@n of the playbook's Easy set


@dataclasses.dataclass(frozen=True)
class Wanted:
  """The problems that a stratum holds."""

  low: float  # smallest avg@n
  high: float  # largest avg@n
  again: int | None  # low, high: of so many new samples of problems with 0 of n
  train: int | None  # problems; None: all
  validation: int | None  # problems; None: all

  def __post_init__(self):
    if not 0 <= self.low <= self.high <= 1:
      raise InputError(f"stratum low={self.low}, high={self.high}: expected "
                       "0 <= low <= high <= 1")
    if min(x for x in (self.again, self.train, self.validation, 1)
           if x is not None) < 1:
      raise InputError(f"stratum {self}: expected at least 1")


@dataclasses.dataclass(frozen=True)
class Mixture:
  """A set of problems in which each stratum has a given share."""

  shares: dict  # stratum -> its share; they add up to 1
  train: int  # problems
  validation: int  # problems

  def __post_init__(self):
    if not self.shares or not all(
        isinstance(x, (int, float)) and 0 < x <= 1
        for x in self.shares.values()) or not math.isclose(
            sum(self.shares.values()), 1):
      raise InputError(f"mixture shares={self.shares}: expected shares in "
                       "(0, 1] that add up to 1")
    if min(self.train, self.validation) < 1:
      raise InputError(f"mixture train={self.train}, validation="
                       f"{self.validation}: expected at least 1")


def chosen(wanted: Wanted, name: str, split: str, problems: list[Problem],
           correct: dict, n: int, again: dict) -> list[dict]:
  """Returns the rows of one split of a stratum, ordered as the problems.

  Args:
    name, split: for messages.
    correct: problem id -> how many of n samples are correct.
    again: id -> how many of `wanted.again` new samples are correct; only
      problems with 0 of n correct.

  Raises:
    InputError: there are fewer problems than wanted.
  """
  rate = (lambda p: correct[p.id] / n) if wanted.again is None else (
      lambda p: again[p.id] / wanted.again if p.id in again else math.inf)
  rows = [{"split": split, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": correct[p.id]}
          for p in problems if wanted.low <= rate(p) <= wanted.high]
  most = getattr(wanted, split)
  if len(rows) < (1 if most is None else most):
    raise InputError(
        f"{name}: {len(rows)} of {len(problems)} {split} problems have avg@"
        f"{wanted.again or n} in [{wanted.low}, {wanted.high}], {most or 1} "
        "were asked for; measure more problems or ask for fewer")
  return rows[:most]


def parts_of(count: int, shares: dict) -> dict:
  """Returns name -> part of `count`, by the largest-remainder method."""
  exact = {name: fractions.Fraction(share) * count
           for name, share in shares.items()}
  parts = {name: int(x) for name, x in exact.items()}
  short = sorted(shares, key=lambda name: parts[name] - exact[name])
  for name in short[:count - sum(parts.values())]:
    parts[name] += 1
  return parts


def mixed(mixture: Mixture, name: str, split: str, strata: dict) -> list[dict]:
  """Returns the distinct rows of one split of a mixture.

  Args:
    strata: name -> its rows of that split.

  Raises:
    InputError: a stratum has too few rows.
  """
  rows, taken = [], set()
  for part, count in parts_of(getattr(mixture, split), mixture.shares).items():
    free = [row for row in strata[part] if row["id"] not in taken]
    if len(free) < count:
      raise InputError(
          f"{name}: {count} {split} problems of {part} were asked for, it has "
          f"{len(free)}" + (" that other parts have not taken"
                            if len(free) < len(strata[part]) else "")
          + "; ask for fewer or make it larger")
    rows += free[:count]
    taken.update(row["id"] for row in free[:count])
  return rows


def assembled(strata: dict, mixtures: dict, pool: Pool, counts: dict,
              n: int) -> tuple[dict, list[str]]:
  """Returns name -> rows of strata and mixtures, and errors of the rest.

  Args:
    strata: name -> Wanted.
    mixtures: name -> Mixture of the strata.
    counts: (split, samples) -> {problem id: correct}.
    n: samples of every problem.
  """
  rows, errors = {}, []
  for name, wanted in strata.items():
    try:
      rows[name] = {split: chosen(
          wanted, name, split, getattr(pool, split), counts[split, n], n,
          counts[split, wanted.again] if (split, wanted.again) in counts
          else {}) for split in SPLITS}
    except InputError as error:
      errors.append(str(error))
  for name, mixture in mixtures.items():
    lacking = [part for part in mixture.shares if part not in rows]
    try:
      if lacking:
        raise InputError(f"{name}: without {', '.join(lacking)}")
      rows[name] = {split: mixed(mixture, name, split, {
          part: rows[part][split] for part in mixture.shares})
                    for split in SPLITS}
    except InputError as error:
      errors.append(str(error))
  return {name: [row for split in SPLITS for row in of[split]]
          for name, of in rows.items()}, errors


def histogram(counts, n: int) -> str:
  """Returns a text histogram of the number of correct samples per problem."""
  of = collections.Counter(counts)
  most = max(of.values())
  return "\n".join(f"{c:3d}/{n} {of[c]:6d} {'#' * (50 * of[c] // most)}"
                   for c in range(n + 1))


def recipe(rows: list[dict], n: int, *, mixture: bool) -> tuple[str, str]:
  """Returns (easy or hard, why): the recipe that suits a stratum.

  The playbook uses KL and entropy terms on Easy problems, and neither on hard
  ones and on mixtures.
  """
  if not n:
    return "hard", "not measured, so without KL and entropy"
  rate = sum(row["correct"] for row in rows) / (n * len(rows))
  if mixture:
    return "hard", f"avg@{n} {rate:.2f}, a mixture: no KL, no entropy"
  if rate > EASY[1]:
    return "easy", (f"avg@{n} {rate:.2f}: KL and entropy, as for Easy (the "
                    "playbook does not train on such a set alone)")
  if rate >= EASY[0]:
    return "easy", f"avg@{n} {rate:.2f}: KL and entropy"
  return "hard", f"avg@{n} {rate:.2f}: no KL, no entropy"
