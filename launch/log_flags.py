"""Flags for reading the log of a run, and the check of --out."""

import os
import tempfile

from absl import flags

from isojax.core import cli, disk
from isojax.logs import formats
from isojax.logs.fields import Reading

EVAL_SET = flags.DEFINE_string(
    "eval_set", None, "Evaluation set, if the files have several.")
_FORMAT = flags.DEFINE_enum(
    "format", None, sorted(formats.FORMATS), "Trainer that wrote the files; "
    "table: any CSV, JSON lines or W&B export, with --columns. Default: "
    "detected from the names in each file; the output says what was found.")
_COLUMNS = flags.DEFINE_list(
    "columns", [], "Column of a field: avg=val/acc,step=global_step.")
_FIXED = flags.DEFINE_list(
    "fixed", [], "Values of fields that the files do not have: Bp=32,n=8.")
_FROM_PATH = flags.DEFINE_string(
    "from_path", None, "Regular expression whose named groups are fields, "
    "matched with the path of a file or, if a file has several runs, with "
    "their names: 'n(?P<n>\\d+)-s(?P<seed>\\d+)'.")


def reading(axis: str = Reading.axis, scale: dict | None = None) -> Reading:
  """The options of the readers from the flags."""
  return Reading(
      kind=_FORMAT.value, columns=cli.pairs("columns", _COLUMNS.value),
      fixed={name: int(value) if value.isdecimal() else value
             for name, value in cli.pairs("fixed", _FIXED.value).items()},
      scale=scale or {}, axis=axis, from_path=_FROM_PATH.value)


def make_writable(folder: str) -> None:
  """Creates the folder of --out; InputError if it cannot be written."""
  with disk.writing(f"--out={folder}"):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
