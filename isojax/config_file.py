"""Config files: read, overridden by name, and turned into frozen sections.

Unknown, missing and mistyped keys are errors, with the nearest name.
"""

import dataclasses
import difflib
import re
import sys
import types
import typing

from ml_collections import config_dict, config_flags

from isojax import own_file
from isojax.allocation import Allocation, of_section
from isojax.errors import InputError

FREE = ("constants",)  # sections of a config whose keys its values decide
RUN = ("model", "task", "alloc", "sampler", "recipe", "eval", "mesh")
SOURCES = {Allocation: of_section}  # a section that is not its own constructor


def shipped(path: str) -> str:
  """FILE or FILE:ARGUMENT with the path at which the file is found."""
  file, colon, argument = path.partition(":")
  return f"{own_file.find(file)}{colon}{argument}"


def read_config(path: str) -> config_dict.ConfigDict:
  """The config of FILE or FILE:ARGUMENT; errors of its code are not converted.
  """
  # ml_collections runs each file in the module of the one before, if any.
  sys.modules.pop("config_config", None)
  return checked(path, config_flags.config_flags.ConfigFileFlagParser(
      "config").parse(shipped(path)))


def checked(path: str, config) -> config_dict.ConfigDict:
  """What get_config() of a file returned; InputError if it is no config."""
  try:
    getattr(config, "keys", None)  # of a missing file: raises its OSError
  except OSError as error:
    raise InputError(
        f"{path}: cannot be read ({str(error).splitlines()[-1].strip()}); "
        "expected a config file, such as configs/hard.py") from None
  if not isinstance(config, config_dict.ConfigDict):
    raise InputError(f"{path}: get_config() returned {config!r:.40}; expected "
                     "an ml_collections.ConfigDict")
  return config


def unknown_field(section, key: str, path: str) -> str | None:
  """What is wrong with a key of a config's section; None: nothing."""
  if not hasattr(section, "keys"):
    return f"{path} is a value, not a section"
  if key in section:
    return None
  names = {name.lower(): name for name in section}
  near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0)
  return f"{path}.{key}: no such key; " + (
      f"the nearest is {path}.{names[near[0]]} (there are: "
      f"{', '.join(sorted(section))})" if near else
      f"{path} is empty here; set it as a whole, such as --{path}="
      f"\"{{'{key}': 1.0}}\"")


def override(section, values: dict, where: str, path: str = "config") -> None:
  """Sets nested values in a config; an InputError begins with `where`.

  A section of FREE takes new keys, and loses those that are set to None.
  """
  for key, value in values.items():
    name = f"{path}.{key}"
    if wrong := unknown_field(section, key, path):
      raise InputError(f"{where}: {wrong}")
    if key in FREE and hasattr(value, "items"):
      merged = {**section[key], **value}
      with section.unlocked(), section.ignore_type():
        section[key] = {name: value for name, value in merged.items()
                        if value is not None}
    elif hasattr(section[key], "keys") and section[key].keys():
      if not hasattr(value, "items"):
        raise InputError(f"{where}: {name}={value!r}: expected a section, "
                         "{" + ", ".join(section[key]) + "}")
      override(section[key], value, where, name)
    else:
      _set(section, key, value, f"{where}: {name}")


def _set(section, key: str, value, name: str) -> None:
  if hasattr(value, "dtype") and not value.shape:
    value = value.item()  # of numpy
  if isinstance(value, float) and value.is_integer() and (
      section.get_type(key) is int):
    value = int(value)  # 2e6
  try:
    with section.unlocked():
      section[key] = value
  except (TypeError, ValueError) as error:
    raise InputError(f"{name}={value!r}: {error}") from None


def check_run(config) -> None:
  """InputError for a config without the sections of a run, without jax."""
  for name in RUN:
    if name not in config:
      raise InputError(f"config.{name} is missing: expected a config of "
                       "isojax.main, such as configs/hard.py")


def _fits(value, annotation) -> bool:
  """Whether a config value has the type of a field; an int is a float."""
  if isinstance(annotation, types.UnionType):
    return any(_fits(value, a) for a in typing.get_args(annotation))
  if typing.get_origin(annotation) is tuple:
    return isinstance(value, tuple) and all(
        _fits(v, typing.get_args(annotation)[0]) for v in value)
  if annotation in (float, int):
    return isinstance(value, (int, annotation)) and (
        not isinstance(value, bool) and value == value)  # no nan
  return isinstance(value, annotation)


def _tuples(value):
  """Lists as tuples, also inside: JSON has no tuples."""
  return (tuple(map(_tuples, value)) if isinstance(value, (list, tuple))
          else value)


def section(cls, values, name: str):
  """cls(**values); InputError for unknown, missing or mistyped keys.

  Args:
    cls: a dataclass, or a function whose annotations give the types.
    values: a dict; a dict inside becomes the dataclass of its field.
    name: the place of the keys, such as "config.sampler".
  """
  if not isinstance(values, dict):
    raise InputError(f"{name}={values!r}: expected a section of fields")
  wanted = {key: hint for key, hint in typing.get_type_hints(cls).items()
            if key != "return"}
  for key in values:
    if wrong := unknown_field(wanted, key, name):
      raise InputError(wrong)
  for key in wanted:
    if key not in values:
      raise InputError(f"{name}.{key} is missing; {name} needs "
                       f"{', '.join(wanted)}")
  arguments = {}
  for key, hint in wanted.items():
    value = _tuples(values[key])
    if dataclasses.is_dataclass(hint):
      value = section(SOURCES.get(hint, hint), value, f"{name}.{key}")
    elif not _fits(value, hint):
      expected = hint.__name__ if isinstance(hint, type) else str(hint)
      raise InputError(f"{name}.{key}={value!r}: expected {expected}")
    arguments[key] = value
  try:
    return cls(**arguments)
  except InputError as error:  # which names the last section only
    path = name.removeprefix("config.")
    last = path.rpartition(".")[2]
    if path == last or not str(error).startswith(f"{last}."):
      raise
    keys = "|".join(wanted)  # not of a file, such as mine/loss.py
    raise InputError(re.sub(rf"(?<![\w.]){last}\.(?=({keys})\b)", f"{path}.",
                            str(error))) from None
