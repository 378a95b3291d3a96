"""plan.jsonl: one run per line, editable, read by isojax.main."""

import dataclasses
import json

from isojax.core.allocation import Allocation, sizes_of
from isojax.core.format import many
from isojax.errors import InputError, reason


@dataclasses.dataclass(frozen=True)
class Row:
  """A run of a plan."""

  allocation: Allocation
  seed: int
  lr: float  # after warm-up; the run computes it from its config's base_lr
  expected: dict | None  # the result of prices.expected; None: not priced
  # Further values of the config by section: what a price assumes, such as mesh.
  settings: dict = dataclasses.field(default_factory=dict)

  def __repr__(self) -> str:
    sizes = self.allocation
    m = "" if sizes.m is None else f", m = {sizes.m}"
    return (f"Bp = {sizes.Bp}, n = {sizes.n}{m}, M = {sizes.M:,}, "
            f"C = {sizes.C:,}, lr {self.lr:.3g}, seed {self.seed}")

  @property
  def config(self) -> dict:
    """The config values that the row sets, by section."""
    return {"seed": self.seed, "alloc": sizes_of(self.allocation)
            } | self.settings

  @property
  def decay(self) -> float | None:
    """recipe.optimizer.decay, if the row sets it."""
    node = self.settings
    for key in ("recipe", "optimizer", "decay"):
      if key not in node:
        return None
      node = node[key]
    return node


def merged(settings: dict, more: dict) -> dict:
  """Two nested dicts as one; a value of the second replaces one of the first.
  """
  return settings | {
      key: merged(settings[key], value)
      if key in settings and isinstance(value, dict) else value
      for key, value in more.items()}


MAX_LR = 10.0  # no optimizer of isojax learns with a larger rate
MAX_LEVELS = 8  # of objects and lists in a row; a config has 4
FIELDS = ("overrides", "C", "lr", "expected")
# The trainers whose options planner.export writes.
TRAINERS = ("areal", "nemo-rl", "openrlhf", "prime-rl", "roll", "skyrl",
            "slime", "trl", "tunix", "verl")


def line(overrides: dict, *, C: int, lr: float, expected: dict | None) -> str:
  """A line of plan.jsonl."""
  return json.dumps({"overrides": overrides, "C": C, "lr": lr,
                     "expected": expected}) + "\n"


def text(rows: list[Row]) -> str:
  """The content of plan.jsonl."""
  return "".join(line(row.config, C=row.allocation.C, lr=row.lr,
                      expected=row.expected) for row in rows)


def read_lines(path: str) -> list[str]:
  """The lines of a plan; InputError if the file cannot be read."""
  try:
    with open(path, encoding="utf-8-sig") as file:  # editors add a BOM
      return file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); expected a "
                     "plan of python -m launch.plan") from error


def _nests(value, levels: int) -> bool:
  """Whether a JSON value has more than so many levels of objects and lists."""
  inner = (value.values() if isinstance(value, dict) else
           value if isinstance(value, list) else None)
  return inner is not None and (
      levels == 0 or any(_nests(x, levels - 1) for x in inner))


def read_row(lines: list[str], index: int, *, path: str) -> dict:
  """The row of a plan with an index from 0, a dict of FIELDS."""
  if not 0 <= index < len(lines):
    raise InputError(f"--row={index}: {path} has {many(len(lines), 'row')}, "
                     "counted from 0")
  where = f"{path}:{index + 1}"
  try:
    row = json.loads(lines[index])
    if not isinstance(row, dict) or row.keys() != set(FIELDS):
      raise ValueError(f"expected an object of {', '.join(FIELDS)}")
    if _nests(row, MAX_LEVELS):
      raise ValueError(f"expected at most {MAX_LEVELS} levels")
    if not isinstance(row["overrides"], dict) or type(row["lr"]) not in (
        int, float):
      raise ValueError("expected an object in overrides, a number in lr")
    if not 0 < row["lr"] <= MAX_LR:
      raise ValueError(f"expected lr in (0, {MAX_LR:g}]")
  except (ValueError, RecursionError) as error:
    raise InputError(f"{where}: not a row of a plan ({error}); make it with "
                     "python -m launch.plan") from error
  return row
