"""Config files, overrides of their keys, and the flag --config of a command.

An unknown or mistyped key is an InputError that has the nearest key.
"""

import contextlib
import difflib
import itertools
import os
import re
import sys
import traceback

from absl import flags
from etils import epath
from ml_collections import config_dict, config_flags

from isojax.core import plan_file, sections
from isojax.core.shipped import shipped_path
from isojax.errors import InputError

flags.disclaim_key_flags()

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
  except (Exception, SystemExit) as error:
    if str(error).startswith("Error whilst parsing"):  # wraps it
      error = error.__context__
    if isinstance(error, InputError):  # of OF_RUN
      raise error from None
    raise InputError(_place(error) + _message(error)) from None
  return checked(path, config)


def _place(error: BaseException) -> str:
  """FILE:LINE: of the last frame outside libraries; "" without one."""
  places = [(frame.filename, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if not re.search(r"site-packages|importlib|/core/config_file",
                             frame.filename)]
  if not places:
    return ""
  file, line = places[-1]
  return f"{os.path.relpath(file)}:{line}: "


def _message(error: BaseException) -> str:
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


# ---- The flag --config

NO_RUN = "holds no run"  # in a message


class _OrNone(flags.ArgumentParser):
  """Parses `None` as None, and other texts as another parser does."""

  def __init__(self, parser: flags.ArgumentParser):
    self._parser = parser

  def parse(self, argument):
    return None if argument in (None, "None") else self._parser.parse(argument)

  def flag_type(self):
    return self._parser.flag_type()


class Whole(flags.IntegerParser):
  """Parses whole numbers, also as 2e6."""

  def convert(self, argument):
    if re.fullmatch(r"[\d.]+[eE]\d+|\d+\.0*", str(argument)):  # 2e6 or 64.0
      with contextlib.suppress(ValueError):
        if (value := float(argument)).is_integer():
          return int(value)
    return super().convert(argument)


# None is parsed for each type: --config.alloc.m=None. isojax.run.experiment
# refuses it for a field that is never None.
WHOLE = _OrNone(Whole())
PARSERS = {int: WHOLE, float: _OrNone(flags.FloatParser()),
           str: _OrNone(flags.ArgumentParser())}


def define_flag(example: str, *, required: bool = True):
  """Defines --config=FILE, with --config.section.field=value overrides.

  A command with the flag --workdir takes the config of this folder if it is
  that of a run and there is no --config.
  """
  for kind, parser in PARSERS.items():
    config_flags.register_flag_parser_for_type(kind, parser)
  holder = config_flags.DEFINE_config_file(
      "config", lock_config=True, help_string=f"Config file, such as {example};"
      " --config.seed=3 sets a key. configs/grpo.py has all keys of a run.")
  if required:
    flags.register_validator(
        "config", lambda value: value is not None,
        f"expected a config file, such as --config={example}")
  return holder


def flag_path(argv: list[str]) -> str:
  """The file of the last --config; "" without one."""
  return next((word.partition("=")[2]
               for word in reversed(flag_words(argv))
               if word.startswith("--config=")), "")


def flag_words(argv: list[str]) -> list[str]:
  """The words of --config and its overrides, each as --name=value."""
  return [word if "=" in word or after.startswith("-") else f"{word}={after}"
          for word, after in itertools.pairwise([*argv, "-"])
          if word.startswith("--config")]


def command_line_values() -> dict:
  """The config values that the command line sets, by dotted name."""
  if "config" not in flags.FLAGS or not flags.FLAGS["config"].present:
    return {}
  return config_flags.get_override_values(flags.FLAGS["config"])


def apply_row(config, lines: list[str], index: int, path: str) -> None:
  """Sets the values of a plan's row in a config.

  An InputError begins with PATH:LINE.
  """
  row = plan_file.read_row(lines, index, path=path)
  where = f"{path}:{index + 1}"
  for name, value in command_line_values().items():
    planned = row["overrides"]
    for key in name.split("."):
      planned = planned[key] if (
          isinstance(planned, dict) and key in planned) else None
    if planned is not None and planned != value:
      raise InputError(
          f"{where}: the row sets {name} to {planned!r}, the command line to "
          f"{value!r}; leave out --config.{name}, or make another plan")
  override(config, row["overrides"], where)


def _with_found_config(argv: list[str]) -> list[str]:
  """argv, in which --config has the path at which its file is found."""
  name, folder = "--config=", _workdir(argv)
  if not flag_path(argv) and folder:
    file = os.path.join(folder, "config.json")
    if not epath.Path(file).exists():
      raise InputError(f"--workdir={folder}: {NO_RUN}; give the folder of one, "
                       "or --config=FILE, such as --config=configs/hard.py")
    argv = [*argv[:1], name + file, *argv[1:]]
  return [found(word) if before == "--config" else
          name + found(word.removeprefix(name))
          if word.startswith(name) else word
          for before, word in itertools.pairwise(["", *argv])]


def _workdir(argv: list[str]) -> str | None:
  """The value of --workdir; None without it."""
  if "workdir" not in flags.FLAGS or "config" not in flags.FLAGS:
    return None
  words = [word.removeprefix("--workdir=") if word.startswith("--workdir=")
           else after for word, after in itertools.pairwise([*argv, ""])
           if word.startswith("--workdir=") or word == "--workdir"]
  return words[-1] if words else None


def _wrong_override(config, word: str) -> str:
  """The message for --config.NAME=VALUE whose value is of another type."""
  name, _, value = word.partition("=")
  *path, key = name.removeprefix("--config.").split(".")
  for part in path:
    config = config[part]
  file, hint = f"configs/{value}.py", ""
  if hasattr(config[key], "keys"):
    hint = ", or give another file as --config" + (
        f", such as --config={file}" if os.path.isfile(
            found(file)) else "")
  return wrong_value(config, key, value, name) + hint


def parse_flags(argv: list[str]) -> list[str]:
  """The arguments that are no flags; InputError if a flag is wrong."""
  words = _with_found_config(argv)
  file = flag_path(argv) or flag_path(words)
  try:
    rest = flags.FLAGS(words)
    if "config" in flags.FLAGS and flags.FLAGS["config"].present:
      checked(file, flags.FLAGS["config"].value)
  except flags.Error as error:
    if file:
      config = read_config(file)  # raises with its code's line
      for word in flag_words(argv):
        if str(error).startswith(f"flag {word}: "):
          raise InputError(_wrong_override(config, word)) from None
    raise InputError(str(error).strip().splitlines()[-1].strip()) from None
  except BrokenPipeError:  # of --help
    raise
  except (Exception, SystemExit) as error:
    if isinstance(error, SystemExit) and not _place(error):
      raise  # of --help
    # Of the config's code, or an unknown key.
    config = read_config(file)
    for name in [word.lstrip("-").partition("=")[0] for word in argv]:
      node, place = config, "config"
      for key in name.split(".")[1:] if name.startswith("config.") else ():
        if wrong := sections.unknown_field(node, key, place):
          raise InputError(f"--{wrong}") from None
        node, place = node[key], f"{place}.{key}"
    raise
  return rest
