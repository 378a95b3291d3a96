"""Sections of a config as frozen dataclasses, and back.

A section has the keys of one dataclass. Unknown, missing and mistyped keys are
errors, with the nearest name.
"""

import dataclasses
import difflib
import math
import re
import types
import typing

from isojax.errors import InputError
from isojax.allocation import Allocation, Pieces, allocate

SOURCES = {Allocation: allocate}  # a section that is not its own constructor


def _fits(value, annotation) -> bool:
  """Whether a config value may stand for an annotated field; int is a float."""
  if isinstance(annotation, types.UnionType):
    return any(_fits(value, a) for a in typing.get_args(annotation))
  if typing.get_origin(annotation) is tuple:
    return isinstance(value, tuple) and all(
        _fits(v, typing.get_args(annotation)[0]) for v in value)
  if annotation is float:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
  if annotation is int:
    return isinstance(value, int) and not isinstance(value, bool)
  return isinstance(value, annotation)


def _tuples(value):
  """Returns lists as tuples, also inside: JSON has no tuples."""
  return (tuple(map(_tuples, value)) if isinstance(value, (list, tuple))
          else value)


def _check_extent(name: str, value) -> None:
  """Raises InputError for numbers and texts that no file or array can hold."""
  if isinstance(value, float) and math.isnan(value):
    raise InputError(f"{name}=nan: expected a number")
  if isinstance(value, int) and abs(value) >= 2**63:
    raise InputError(f"{name}: {len(str(value))} digits are too many; expected "
                     "less than 2**63")
  if isinstance(value, str) and (
      "\0" in value or value != value.encode(errors="replace").decode()):
    raise InputError(f"{name}={value!a}: expected text without NUL and without "
                     "lone surrogates")


RUN = ("model", "task", "alloc", "sampler", "recipe", "eval", "mesh")
# Sections that only the configs of a command have.
CONFIGS = {"isojax.main": {"alloc", "recipe"},
           "launch.split": {"source", "strata"},
           "launch.pretrain": {"characters", "steps"}}


def _other_command(values: dict, wanted) -> str | None:
  """Returns the message for a config of another command, or None."""
  for command, sections in CONFIGS.items():
    if sections <= values.keys() and not sections <= wanted.keys():
      ours = next((name for name, its in CONFIGS.items()
                   if its <= wanted.keys()), "another command")
      return (f"--config is a config of {command} (it has "
              f"{' and '.join(sorted(sections))}), expected one of {ours}; run "
              f"python -m {command} --config=FILE, or give another file")
  return None


def check_run(config) -> None:
  """Raises InputError for a config that lacks a section of isojax.main's.

  The planner and the sweeps read a few of its fields without loading jax, which
  the check of all of them (`section`) needs.
  """
  lacking = [name for name in RUN if name not in config]
  if lacking:
    raise InputError(_other_command(
        dict.fromkeys(config.keys()), dict.fromkeys(RUN)) or (
        f"config.{lacking[0]} is missing: expected a config of isojax.main, "
        "such as configs/hard.py"))


def section(cls, values, name: str):
  """cls(**values); InputError for unknown, missing or mistyped keys.

  Args:
    cls: a dataclass or a function whose annotations say the types.
    values: a dict; a dict inside becomes the dataclass of its field.
    name: where the keys stand, such as "config.sampler".
  """
  if not isinstance(values, dict):
    raise InputError(f"{name}={values!r}: expected a section of fields")
  wanted = {key: hint for key, hint in typing.get_type_hints(cls).items()
            if key != "return"}
  unknown = [key for key in values if key not in wanted]
  missing = [key for key in wanted if key not in values]
  if name == "config" and (other := _other_command(values, wanted)):
    raise InputError(other)
  if unknown:
    near = difflib.get_close_matches(unknown[0], wanted, n=1, cutoff=0)
    raise InputError(f"{name}.{unknown[0]}: no such key; the nearest is "
                     f"{name}.{near[0]} (there are: {', '.join(wanted)})")
  if missing:
    raise InputError(f"{name}.{missing[0]} is missing; {name} needs "
                     f"{', '.join(wanted)}")
  arguments = {}
  for key, hint in wanted.items():
    value = values[key]
    if dataclasses.is_dataclass(hint):
      value = section(SOURCES[hint] if hint in SOURCES else hint, value,
                      f"{name}.{key}")
    elif typing.get_origin(hint) is tuple:
      value = _tuples(value)
    if not dataclasses.is_dataclass(hint) and not _fits(value, hint):
      expected = hint.__name__ if isinstance(hint, type) else str(hint)
      if hint == Pieces:
        raise InputError(f"{name}.{key}={value!r}: expected pieces (from C, n) "
                         "of integers, such as ((0, 4), (65536, 8))")
      raise InputError(f"{name}.{key}={value!r}: expected {expected}, not "
                       f"{type(value).__name__}")
    _check_extent(f"{name}.{key}", value)
    arguments[key] = value
  try:
    return cls(**arguments)
  except InputError as error:  # which names the last section only
    path = name.removeprefix("config.")
    last = path.rpartition(".")[2]
    if path == last or not str(error).startswith(f"{last}."):
      raise
    raise InputError(re.sub(rf"(?<![\w.]){last}\.(?=\w)", f"{path}.",
                            str(error))) from error


def _neutral(cls) -> dict:
  """Returns the neutral values that the fields of a dataclass declare."""
  return {field.name: field.metadata["neutral"]
          for field in dataclasses.fields(cls) if "neutral" in field.metadata}


def completed(values, cls):
  """Returns a stored config with the keys that it lacks at their neutral value.

  A key that is added to the schema is declared as
  `x: T = dataclasses.field(metadata={"neutral": VALUE})`, where VALUE gives the
  results of the code before the key existed. This is for configs that a run or
  a sweep has stored. In a config file a missing key is an error of `section`.

  Args:
    values: a config, or one section of it.
    cls: the dataclass of these values.
  """
  if not isinstance(values, dict):
    return values  # `section` refuses it
  out = _neutral(cls) | values
  for key, hint in typing.get_type_hints(cls).items():
    if dataclasses.is_dataclass(hint):
      inside = completed(values[key] if key in values else {}, hint)
      if key in values or len(inside) == len(dataclasses.fields(hint)):
        out[key] = inside
  return out


def without_neutral(values: dict, cls) -> dict:
  """Returns a config without the keys that have their neutral value."""
  neutral, hints, out = _neutral(cls), typing.get_type_hints(cls), {}
  for key, value in values.items():
    if key in hints and dataclasses.is_dataclass(hints[key]):
      value = without_neutral(value, hints[key])
      if not value:
        continue  # a section that was added later
    elif key in neutral and neutral[key] == (
        tuple(value) if isinstance(value, list) else value):  # of JSON
      continue
    out[key] = value
  return out
