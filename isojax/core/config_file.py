"""Reads ml_collections config files, and overrides their values by name.

An unknown or mistyped key is an InputError that has the nearest key.
"""

import difflib
import os
import re
import sys
import traceback

from ml_collections import config_dict, config_flags

from isojax.core import sections
from isojax.core.shipped import shipped_path
from isojax.errors import InputError

OPEN_SECTIONS = ("constants",)  # other values decide which keys are valid
# Whose get_config(FOLDER) returns the config of a run's folder.
OF_RUN = "isojax/api/configs.py"
RUN_SECTIONS = ("model", "task", "alloc", "sampler", "recipe", "eval", "mesh")


def found(path: str) -> str:
  """FILE or FILE:ARGUMENT, as ml_collections finds it.

  A shipped file has its path here. RUN/config.json is what OF_RUN returns.
  """
  if path.endswith("/config.json"):
    path = f"{OF_RUN}:{path.removesuffix('/config.json')}"
  file, colon, argument = path.partition(":")
  return f"{shipped_path(file)}{colon}{argument}"


def read_config(path: str) -> config_dict.ConfigDict:
  """The config of FILE or FILE:ARGUMENT.

  An InputError begins with the FILE:LINE of the config's code that failed.
  """
  # Otherwise ml_collections runs the file in the module of the previous file.
  sys.modules.pop("config_config", None)
  try:
    config = config_flags.config_flags.ConfigFileFlagParser("config").parse(
        found(path))
  except SyntaxError as error:
    raise InputError(f"{path}: expected a Python file ({error})") from None
  except Exception as error:
    if str(error).startswith("Error whilst parsing"):  # wraps it
      error = error.__context__
    if isinstance(error, InputError):  # of OF_RUN
      raise error from None
    raise InputError(_place(error) + _message(error)) from None
  return checked(path, config)


def _place(error: Exception) -> str:
  """FILE:LINE: of the last frame outside libraries; "" without one."""
  places = [(frame.filename, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if not re.search(  # config_f: config_file.py and config_flag.py
                r"site-packages|importlib|/core/config_f", frame.filename)]
  if not places:
    return ""
  file, line = places[-1]
  return f"{os.path.relpath(file)}:{line}: "


def _message(error: Exception) -> str:
  """The error as text; of a ConfigDict, with the key and what is expected."""
  for frame, _ in traceback.walk_tb(error.__traceback__):
    values = frame.f_locals  # of a method of ConfigDict, if it has a `self`
    section = values["self"] if "self" in values else None
    if not isinstance(section, config_dict.ConfigDict):
      continue
    for name in "attribute", "key":
      if name not in values:
        continue
      key = values[name]
      if wrong := sections.unknown_field(section, key, ""):
        return wrong
      if isinstance(error, TypeError) and "value" in values:
        return wrong_value(section, key, values["value"], key)
  return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _nearest(path: str) -> str:
  """The config file whose name is most like that of a missing one."""
  folder, name = os.path.split(path.partition(":")[0])
  folder = folder or "configs"
  here = shipped_path(f"{folder}/")
  names = [file for file in os.listdir(here) if file.endswith(".py")
           ] if os.path.isdir(here) else []
  near = difflib.get_close_matches(name, names, n=1)
  return os.path.join(folder, near[0]) if near else "configs/hard.py"


def checked(path: str, config) -> config_dict.ConfigDict:
  """`config`, the result of a file's get_config(); InputError if it is none."""
  try:
    getattr(config, "keys", None)  # raises the OSError of a missing file
  except OSError as error:
    raise InputError(
        f"{path}: cannot be read ({str(error).splitlines()[-1].strip()}); "
        f"expected a config file, such as {_nearest(path)}") from None
  if not isinstance(config, config_dict.ConfigDict):
    raise InputError(f"{path}: get_config() returned {config!r:.40}; expected "
                     "an ml_collections.ConfigDict")
  return config


def wrong_value(section, key: str, value, name: str) -> str:
  """The message for a value that a key of a config cannot take."""
  inner = section[key]
  if not hasattr(inner, "keys"):
    expected = section.get_type(key).__name__
  elif inner.keys():
    expected = f"a section, {{{', '.join(inner)}}}; set its keys"
  else:
    expected = "a dict, such as \"{'length': 1.0}\""
  return f"{name}={value!r:.200}: expected {expected}"


def override(section, values: dict, where: str, path: str = "config") -> None:
  """Sets nested values in a config; an InputError begins with `where`.

  A section of OPEN_SECTIONS takes new keys, and None removes a key of it.
  """
  for key, value in values.items():
    name = f"{path}.{key}"
    if wrong := sections.unknown_field(section, key, path):
      raise InputError(f"{where}: {wrong}")
    if key in OPEN_SECTIONS and hasattr(value, "items"):
      if not all(map(str.isidentifier, value)):
        raise InputError(f"{where}: {name}={value!r:.200}: expected names of "
                         "constants as keys")
      merged = {**section[key], **value}
      with section.unlocked(), section.ignore_type():
        section[key] = {k: v for k, v in merged.items() if v is not None}
    elif hasattr(section[key], "keys") and section[key].keys():
      if not hasattr(value, "items"):
        raise InputError(
            f"{where}: {wrong_value(section, key, value, name)}")
      override(section[key], value, where, name)
    else:
      _set(section, key, value, where, name)


def _set(section, key: str, value, where: str, name: str) -> None:
  if hasattr(value, "dtype") and not value.shape:
    value = value.item()  # a number of numpy
  if isinstance(value, float) and value.is_integer() and (
      section.get_type(key) is int):
    value = int(value)  # such as 2e6
  try:
    with section.unlocked():
      section[key] = value
  except (TypeError, ValueError, OverflowError):
    raise InputError(
        f"{where}: {wrong_value(section, key, value, name)}") from None


def check_run(config) -> None:
  """InputError for a config without the sections of a run; loads no jax."""
  for name in RUN_SECTIONS:
    if name not in config:
      raise InputError(f"config.{name} is missing: expected a config of "
                       "isojax.main, such as configs/hard.py")
