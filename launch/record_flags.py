"""The flags that name the logs of runs, and the reading of these logs.

launch.fit and launch.speedup read isojax's records or logs of other trainers.
"""

import collections
import glob
import math
import os
import re
import tempfile

from absl import flags

from isojax import cli
from isojax.errors import InputError, reason
from isojax.frontier.io import field_mapping
from isojax.frontier.io import formats
from isojax.ledger import object_store

METRIC = flags.DEFINE_enum(
    "metric", "avg", formats.METRICS, "avg, best@k or worst@k.")
AT_K = flags.DEFINE_integer(
    "at_k", None, "k of best@k and worst@k; default: all stored samples.")
EVAL_SET = flags.DEFINE_string(
    "eval_set", None, "Evaluation set, if the files have several.")
_FORMAT = flags.DEFINE_enum(
    "format", None, sorted(formats.FORMATS), "Trainer that wrote the files; "
    "table: any CSV, JSON lines or W&B export, with --columns. Default: what "
    "the names in each file tell; the output says what was found.")
_COLUMNS = flags.DEFINE_list(
    "columns", [], "Column of a field: avg=val/acc,step=global_step.")
_FIXED = flags.DEFINE_list(
    "fixed", [], "Values of fields that the files do not have: Bp=32,n=8.")
_FROM_PATH = flags.DEFINE_string(
    "from_path", None, "Regular expression whose named groups are fields, "
    "matched with the path of a file or, if a file has several runs, with "
    "their names: 'n(?P<n>\\d+)-s(?P<seed>\\d+)'.")
_SCALE = flags.DEFINE_list(
    "scale", [], "Factors for metrics or axis, avg=0.01 for percent; or the "
    "rewards of a wrong and a right answer: avg=-1:1.")


def value_of(text: str):
  """Returns an int if the text is one, else the text."""
  return int(text) if text.isdecimal() else text


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


def ranges() -> dict[str, tuple[float, float]]:
  """Returns --scale as the values that become 0 and 1."""
  out = {}
  for name, text in cli.pairs("scale", _SCALE.value).items():
    low, colon, high = text.partition(":")
    try:
      out[name] = (float(low), float(high)) if colon else (0.0, 1 / float(low))
    except (ValueError, ZeroDivisionError):
      out[name] = math.nan, math.nan
    if not -math.inf < out[name][0] < out[name][1] < math.inf:
      raise InputError(f"--scale={name}={text}: expected a number above 0, "
                       "such as 0.01 for percent, or the rewards of a wrong "
                       "and a right answer, such as -1:1")
  return out


def rows_of(patterns: list[str], *, axis: str, flag: str
            ) -> tuple[list[field_mapping.Row], list[str]]:
  """Returns every evaluation in the files, and the notes of the readers.

  Args:
    patterns: paths, also with wildcards or in a bucket.
    axis: the compute, a field or a column.
    flag: the flag with the patterns, for messages.

  Raises:
    InputError: a pattern without a file, or no file that can be read.
  """
  given = dict(
      kind=_FORMAT.value, columns=cli.pairs("columns", _COLUMNS.value),
      fixed={name: value_of(value)
             for name, value in cli.pairs("fixed", _FIXED.value).items()},
      scale=ranges(), axis=axis, from_path=_FROM_PATH.value)
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


def writable(folder: str) -> None:
  """Creates the folder of --out; InputError if it cannot be written."""
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise InputError(f"--out={folder}: cannot be written ({reason(error)}); "
                     "choose another folder") from error
