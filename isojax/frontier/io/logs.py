"""Reads the evaluations of many log files, given by paths and patterns."""

import collections
import dataclasses
import glob
import math
import os
import re

from isojax.errors import InputError
from isojax.frontier.io import field_mapping
from isojax.frontier.io.rows import Row
from isojax.ledger import object_store


@dataclasses.dataclass(frozen=True)
class Reading:
  """How log files are read; the arguments of field_mapping.read."""

  kind: str | None = None  # of formats.FORMATS; None: what the names tell
  columns: dict = dataclasses.field(default_factory=dict)
  fixed: dict = dataclasses.field(default_factory=dict)
  scale: dict = dataclasses.field(default_factory=dict)
  from_path: str | None = None
  axis: str = "rollouts"


def span(name: str, low: float, high: float, given: str) -> tuple[float, float]:
  """Returns the values that become 0 and 1; InputError if they are no range.

  Args:
    name: of the metric or axis.
    low, high: these values; NaN for what is not a number.
    given: what the user gave, for the message.
  """
  if not -math.inf < low < high < math.inf:
    raise InputError(f"--scale={name}={given}: expected a number above 0, such "
                     "as 0.01 for percent, or the rewards of a wrong and a "
                     "right answer, such as -1:1")
  return low, high


def folded(notes: list[str], paths: list[str]) -> list[str]:
  """Returns the notes; those that differ only in the file become one."""
  alike = collections.defaultdict(list)
  for note in notes:
    path = next((p for p in paths if p in note), None)
    bare = note if path is None else re.sub(
        r"^(left out: )?" + re.escape(path) + r"(:\d+)?: ", r"\1", note)
    alike[bare].append(note)
  return [each[0] + (f" ({len(each)} files)" if len(each) > 1 else "")
          for each in alike.values()]


def read(patterns: list[str], reading: Reading, *, flag: str
         ) -> tuple[list[Row], list[str]]:
  """Returns every evaluation in the files, and the notes of the readers.

  Args:
    patterns: paths, also with wildcards or in a bucket.
    reading: how the files are read.
    flag: the flag with the patterns, for messages.

  Raises:
    InputError: a pattern without a file, or no file that can be read.
  """
  rows, notes, refused, paths = [], [], [], {}
  for pattern in patterns:
    object_store.check(pattern, flag)
    found = (object_store.glob(pattern) if object_store.remote(pattern)
             else sorted(glob.glob(pattern)))
    if not found:
      raise InputError(f"--{flag}={pattern}: no such file; give the path of "
                       "a log or of records.jsonl")
    for path in found:
      if os.path.realpath(path) in paths:
        notes.append(f"{path}: given twice; read once.")
      paths.setdefault(os.path.realpath(path), path)
  given = {field.name: getattr(reading, field.name)
           for field in dataclasses.fields(reading)}
  for path in paths.values():
    try:
      found, told = field_mapping.read(path, **given)
    except InputError as error:
      refused.append(error)
      notes.append(f"left out: {error}")
      continue
    rows += found
    notes += told
  if refused and not rows:
    raise refused[0]
  return rows, folded(notes, list(paths.values()))
