"""The flags that name the logs of runs, and the reading of these logs.

launch.fit and launch.speedup read isojax's records or logs of other trainers.
"""

import math
import os
import tempfile

from absl import flags

from isojax import cli
from isojax.errors import InputError, reason
from isojax.frontier import formats
from isojax.frontier import read as read_lib
from isojax.frontier.fields import Reading, Row, span
from isojax.frontier.formats import base

METRIC = flags.DEFINE_enum(
    "metric", "avg", base.METRICS, "avg, best@k or worst@k.")
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
  """An int if the text is one, else the text."""
  return int(text) if text.isdecimal() else text


def ranges() -> dict[str, tuple[float, float]]:
  """--scale as the values that become 0 and 1."""
  out = {}
  for name, text in cli.pairs("scale", _SCALE.value).items():
    low, colon, high = text.partition(":")
    try:
      ends = (float(low), float(high)) if colon else (0.0, 1 / float(low))
    except (ValueError, ZeroDivisionError):
      ends = math.nan, math.nan
    out[name] = span(name, *ends, text)
  return out


def reading(axis: str = Reading.axis) -> Reading:
  """How the flags say that a log is read, with the compute `axis`."""
  return Reading(
      kind=_FORMAT.value, columns=cli.pairs("columns", _COLUMNS.value),
      fixed={name: value_of(value)
             for name, value in cli.pairs("fixed", _FIXED.value).items()},
      scale=ranges(), axis=axis, from_path=_FROM_PATH.value)


def rows_of(patterns: list[str], *, axis: str, flag: str
            ) -> tuple[list[Row], list[str]]:
  """read_lib.read of the files, read as the flags say.

  Args:
    patterns: paths, also with wildcards or in a bucket.
    axis: the compute, a field or a column.
    flag: the flag with the patterns, for messages.
  """
  return read_lib.read(patterns, reading(axis), flag=flag)


def writable(folder: str) -> None:
  """Creates the folder of --out; InputError if it cannot be written."""
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise InputError(f"--out={folder}: cannot be written ({reason(error)}); "
                     "choose another folder") from error
