"""Checks n and Bp against the mean rewards in a log, or finds them from it.

A mean of N rewards of 0 and 1 is a multiple of 1 / N, with N = Bp * n. The
shares of all-correct and all-incorrect groups are multiples of 1 / Bp.
"""

import math
import re

from isojax.errors import InputError
from isojax.logs.fields import number
from isojax.logs.formats.base import ROLLOUTS
from isojax.logs.metrics import rewards_of
from isojax.logs.runs import Runs

MAX_ROLLOUTS = 4096  # rollouts of a mean, N
MIN_SHARES = 12  # shares of groups between 0 and 1, to infer n from them
MIN_MEANS = 8  # means other than 0 and 1
MIN_EVEN = 12  # means that are all even multiples; by chance half would be odd
MIN_SIGNED = 1e-3  # a smaller advantage counts as 0
MIN_DIGITS = 7  # characters of a mean of five digits or more, 0.12345
TOLERANCE = 0.05  # distance of a mean from a multiple, in multiples


def denominator(values: list[float]) -> int | None:
  """The smallest N such that all values are multiples of 1 / N, if one fits.

  N is at most 10^(d - 1), as all values of d decimals are multiples of 10^-d.
  """
  means = [abs(value) for value in values
           if math.isfinite(value) and value not in (0, 1)]
  if len(means) < MIN_MEANS or len({*means}) < 2:
    return None
  digits = max(len(f"{mean:.7g}".partition(".")[2]) for mean in means)
  largest = min(MAX_ROLLOUTS, int(10**(digits - 1)))
  error = 10.0**-digits  # of a rounded value
  return next((N for N in range(1, largest + 1) if all(
      abs(mean * N - round(mean * N)) < min(TOLERANCE, 1e-3 + error * N)
      for mean in means)), None)


def are_graded(means: list[tuple[float, float]], known: bool) -> bool:
  """Whether means of N rewards, (mean, N), are surely not of rewards 0 and 1.

  They are multiples of another fraction and not of 1 / N, which is `known`. Or
  they have many digits and are multiples neither of 1 / N, where N is 1 or
  another wrong number, nor of any 1 / N.
  """
  if known and denominator([value for value, _ in means]):
    return sum(not _is_whole(value * N) for value, N in means
               if math.isfinite(value)) >= MIN_MEANS
  values = {value for value, _ in means
            if math.isfinite(value) and value not in (0, 1)}
  precise = [value for value in values if len(f"{value:.7g}") > MIN_DIGITS]
  if len(precise) < MIN_MEANS or all(
      abs(value * N - round(value * N)) < TOLERANCE for value, N in means
      if value in values):
    return False
  return denominator(precise) is None


def set_group_size(log: Runs, fields: dict) -> None:
  """Sets n and Bp by the shares of groups; InputError if a given n differs."""
  _drop_contradicted_n(log, fields)
  n, given = _group_size(log), fields.get("n")
  if n is None:
    return
  if given not in (None, n):
    raise InputError(f"{log.file.path}: n is {given}, and the shares of groups "
                     f"in the file are of groups of {n}: leave n out")
  fields["n"] = n
  log.set_Bp(fields)
  if given is None:
    log.file.note(f"n = {n} and Bp = {fields['Bp']} are from the rollouts and "
                  "the shares of groups of each step.")


def _drop_contradicted_n(log: Runs, fields: dict) -> None:
  """Drops n = 1 of the trainer's config if a group has different rewards.

  In a group of one rollout every advantage is 0, unless the estimator compares
  no groups. Forks of a trainer sample a group by an option of another name.
  """
  file = log.file
  if fields.get("n") != 1 or "n" in file.reading.fixed or (
      log.compares_no_groups
      or not (_both_signs(file) or _groups_differ(file))):
    return
  del fields["n"]
  for options in (log.log_options, *(more for _, more in
                                     log.constants.values())):
    options.pop(file.form.settings["n"], None)
  file.note("n = 1 in the log's config is not used, as a step has advantages "
            "above and below 0, or a group with different rewards: groups are "
            "larger; --fixed=n=N gives n.")


def _both_signs(file) -> bool:
  names = [file.form.columns(field, file.numbers)
           for field in ("advantage_max", "advantage_min")]
  return all(names) and any(
      line.get(names[0][0], 0) > MIN_SIGNED
      and line.get(names[1][0], 0) < -MIN_SIGNED for line in (
          line for _, line in file.table))


def _groups_differ(file) -> bool:
  """Whether fewer than all groups of a step have equal rewards."""
  return any(0 <= line[name] < 1 for name in file.form.columns(
      "zero_std", file.numbers) for _, line in file.table if name in line)


def _group_size(log: Runs) -> int | None:
  """The largest n at which the shares of groups are whole numbers of groups.

  With few shares between 0 and 1, a multiple of n may fit by chance: None.
  """
  file = log.file
  counts = [name for pattern, unit in file.form.sampled if unit == ROLLOUTS
            for name in file.numbers if re.fullmatch(pattern, name)]
  shares = [name for field in ("all_incorrect", "all_correct")
            for name in file.form.columns(field, file.numbers)]
  steps = [(number(where, count, line[count], 1), float(line[share]))
           for where, line in log.lines for count in counts for share in shares
           if {count, share} <= line.keys() and 0 < float(line[share]) < 1]
  if len(steps) < MIN_SHARES:
    return None
  size = math.gcd(*(rollouts for rollouts, _ in steps))
  return next((n for n in range(size, 1, -1) if size % n == 0 and all(
      abs(share * rollouts / n - round(share * rollouts / n)) < 1e-3
      for rollouts, share in steps)), None)


def contradiction(log: Runs) -> str | None:
  """A note if the mean rewards do not fit rewards of 0 and 1 with n and Bp."""
  file, (constant, _) = log.file, next(iter(log.constants.values()))
  # Nothing to check: unknown rewards, exact ones, several runs, larger steps.
  if file.kind in ("table", "isojax") or not {"Bp", "n"} <= constant.keys() or (
      len(log.constants) > 1 or log.discarded):
    return None
  by_name = {}  # name of a reward -> (denominator of its means, means)
  for name in rewards_of(file):
    if (means := _means(log, name, constant)) and (
        size := denominator([value for value, _ in means])):
      by_name[name] = size, means
  if not by_name:
    return None
  name, (size, means) = min(by_name.items(), key=lambda item: item[1][0])
  expected = math.gcd(*(N for _, N in means))
  finer = size // math.gcd(size, expected)  # above 1: not explained by Bp * n
  text = (f"the means of {name!r} are multiples of 1/{size}, and Bp * n says "
          f"1/{expected}")
  if finer > 1 and not all(_is_whole(value * N) for value, N in means):
    return (f"{text}: Bp = {constant['Bp']} or n = {constant['n']} is wrong, "
            f"or a right answer is worth a multiple of 1/{finer}; --fixed "
            "gives others.")
  values = [value for value, _ in means]
  if expected == 2 * size and len(means) >= MIN_EVEN and max(values) <= 1:
    rewards = ("a right answer is worth 2 (give --scale=avg=0:2)"
               if min(values) >= 0 else
               "rewards are -1 and 1 (give --scale=avg=-1:1)")
    return f"{text}: {rewards}, or Bp * n is half of it."
  return None


def _is_whole(total: float) -> bool:
  return abs(total - round(total)) < TOLERANCE


def _means(log: Runs, name: str, constant: dict) -> list[tuple[float, int]]:
  """(mean, its number of rollouts) of each line; empty if a step is unknown."""
  file, C, means = log.file, 0, []
  for _, line in log.lines:
    if name not in line:
      continue
    try:
      value, step = float(line[name]), int(float(line[file.step]))
    except (KeyError, TypeError, ValueError, OverflowError):
      return []
    N = constant["Bp"] * constant["n"]
    if file.form.averaged:  # over the rollouts since the last line
      before = C
      C = log.rollouts_after(file.run(line), constant | {"step": step})
      N = C - before
    if N > 0 and math.isfinite(value):
      means.append((value, N))
  return means
