"""The types of the fields of ledger.records, and a caller's `Reading`."""

import contextlib
import dataclasses
import difflib
import json
import math

from isojax.errors import InputError
from isojax.logs.formats.base import EVAL_FIELDS, parsed_number

TEXT = ("kind", "run_id", "model", "task", "split", "eval_set", "policy")
POSITIVE = ("Bp", "n", "m", "k")  # integers from 1
WHOLE = ("step", "rollouts", "seed", "prompt_tokens", "sampled_tokens",
         "trained_tokens")  # integers from 0
TRAINING = "training reward"  # eval_set of the rewards of training rollouts
LISTED = 12  # names that a message lists


@dataclasses.dataclass(frozen=True)
class LogRow:
  """One evaluation, with the field names of isojax.ledger.records."""

  where: str  # file:line
  fields: dict
  falling: str | None = None  # how the learning rate of its run falls
  joined: bool = False  # a point of a curve of several runs, see budgets

  @property
  def path(self) -> str:
    return self.where.rsplit(":", 1)[0]


@dataclasses.dataclass(frozen=True)
class Reading:
  """The names and constants that a caller gives for log files."""

  kind: str | None = None  # key of FORMATS; None: detected by the names
  # Field -> its name in the file, in place of the format's. If a metric is
  # among the fields, no other metric is searched for.
  columns: dict = dataclasses.field(default_factory=dict)
  # Field or option of the trainer -> a constant. A text, such as a model, drops
  # the lines with another one; `k` selects one of several best@k.
  fixed: dict = dataclasses.field(default_factory=dict)
  # Metric or axis -> the values that become 0 and 1, (0, 100) for percent.
  scale: dict = dataclasses.field(default_factory=dict)
  # Regular expression whose named groups are fields or options, matched with
  # the path or, if the file has several runs, with their names.
  from_path: str | None = None
  axis: str = "rollouts"  # field that is the compute, and its default column


def span(name: str, given) -> tuple[float, float]:
  """The values that become 0 and 1: of a pair, of LOW:HIGH, or by a factor."""
  ends = given.split(":") if ":" in str(given) else given
  try:
    low, high = map(float, ends if isinstance(ends, (list, tuple)) else (
        0, 1 / float(ends)))
  except (TypeError, ValueError, ZeroDivisionError):
    low = high = math.nan
  if not -math.inf < low < high < math.inf:
    raise InputError(
        f"--scale={name}={given}: expected a number above 0, such as 0.01 for "
        "percent, or the rewards of a wrong and a right answer, such as -1:1")
  return low, high


def typed(where: str, value, field: str, column: str | None = None,
          axis: str | None = None):
  """The value as the field's type; an unknown field is a number if it can be.

  `column` is its name in the file, `axis` the field that is the compute.
  """
  name = field if column in (None, field) else f"{field} (column {column!r})"
  if field == "correct":
    with contextlib.suppress(ValueError, RecursionError):
      value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, list) or not all(
        type(c) in (int, float) and 0 <= c < 2**31 for c in value):
      raise InputError(f"{where}: {name}: expected a list of counts from 0 on, "
                       "the correct samples of each problem, or the sums of "
                       "their rewards")
    return value
  if field in TEXT:
    return str(value)
  if field in WHOLE or field in POSITIVE:
    return number(where, name, value, least=int(field in POSITIVE))
  if field == axis or field in EVAL_FIELDS - {"alarms"}:  # alarms: a list
    return number(where, name, value)
  found = parsed_number(value)
  return value if found is None else float(found)


def number(where: str, name: str, value, least: int | None = None):
  """The value as a float or, with `least`, as an integer from `least` on."""
  try:
    if isinstance(value, bool):
      raise ValueError
    given = value if isinstance(value, int) else float(value)
    if least is None:
      return float(given)
    whole = round(min(max(least, given), 2**63))  # clipped: round(inf) raises
  except (TypeError, ValueError, OverflowError):
    raise InputError(f"{where}: {name} is {value!r:.60}; expected a number, or "
                     "nothing where there is none") from None
  if given != whole:
    raise InputError(f"{where}: {name} is {value!r:.60}; expected a whole "
                     f"number, at least {least}; the nearest is {whole}")
  return whole


def nearest(name: str, names) -> str:
  """The LISTED most similar names as text, and the number of the others."""
  first = difflib.get_close_matches(name, names, LISTED, cutoff=0)
  more = len(set(names)) - len(first)
  return ", ".join(first) + (f" and {more} more" if more > 0 else "")
