"""Flags for reading the evaluations of many runs, also of other trainers."""

from absl import flags

from isojax.core import cli
from isojax.logs import reading as read_lib
from isojax.logs.fields import LogRow, span
from isojax.logs.formats import base
from launch import log_flags

flags.adopt_module_key_flags(log_flags)
METRIC = flags.DEFINE_enum(
    "metric", "avg", base.METRICS, "avg, best@k or worst@k.")
AT_K = flags.DEFINE_integer(
    "at_k", None, "k of best@k and worst@k; default: all stored samples.")
_SCALE = flags.DEFINE_list(
    "scale", [], "Factors of metrics or axis: avg=0.01 for percent; or the "
    "rewards of an incorrect and a correct answer: avg=-1:1.")


def rows_of(patterns: list[str], *, axis: str, flag: str
            ) -> tuple[list[LogRow], list[str]]:
  """The rows of the files, and notes; error messages name `flag`."""
  scale = {name: span(name, text)
           for name, text in cli.pairs("scale", _SCALE.value).items()}
  return read_lib.read(patterns, log_flags.reading(axis, scale), flag=flag)
