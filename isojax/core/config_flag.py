"""The flag --config of a command: a config file, with overrides of its keys."""

import contextlib
import itertools
import os
import re

from absl import flags
from etils import epath
from ml_collections import config_flags

from isojax.core import cli, config_file, plan_file, sections
from isojax.errors import InputError

flags.disclaim_key_flags()

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
for _type, _parser in ((int, WHOLE), (float, _OrNone(flags.FloatParser())),
                       (str, _OrNone(flags.ArgumentParser()))):
  config_flags.register_flag_parser_for_type(_type, _parser)


def define(example: str, *, required: bool = True):
  """Defines --config=FILE, with --config.section.field=value overrides.

  A command with the flag --workdir takes the config of this folder if it is
  that of a run and there is no --config.
  """
  holder = config_flags.DEFINE_config_file(
      "config", lock_config=True, help_string=f"Config file, such as {example};"
      " --config.seed=3 sets a key. configs/grpo.py has all keys of a run.")
  if required:
    flags.register_validator(
        "config", lambda value: value is not None,
        f"expected a config file, such as --config={example}")
  return holder


def path(argv: list[str]) -> str:
  """The file of the last --config; "" without one."""
  return next((word.partition("=")[2]
               for word in reversed(arguments(argv))
               if word.startswith("--config=")), "")


def arguments(argv: list[str]) -> list[str]:
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
  config_file.override(config, row["overrides"], where)


def _with_found_config(argv: list[str]) -> list[str]:
  """argv, in which --config has the path at which its file is found."""
  name, folder = "--config=", _workdir(argv)
  if not path(argv) and folder:
    file = os.path.join(folder, "config.json")
    if not epath.Path(file).exists():
      raise InputError(f"--workdir={folder}: {NO_RUN}; give the folder of one, "
                       "or --config=FILE, such as --config=configs/hard.py")
    argv = [*argv[:1], name + file, *argv[1:]]
  return [config_file.found(word) if before == "--config" else
          name + config_file.found(word.removeprefix(name))
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
            config_file.found(file)) else "")
  return config_file.wrong_value(config, key, value, name) + hint


def parse(argv: list[str]) -> list[str]:
  """The arguments that are no flags; InputError if a flag is wrong."""
  found = _with_found_config(argv)
  file = path(argv) or path(found)
  try:
    rest = flags.FLAGS(found)
    if "config" in flags.FLAGS and flags.FLAGS["config"].present:
      config_file.checked(file, flags.FLAGS["config"].value)
  except flags.Error as error:
    if file:
      config = config_file.read_config(file)  # raises with its code's line
      for word in arguments(argv):
        if str(error).startswith(f"flag {word}: "):
          raise InputError(_wrong_override(config, word)) from None
    raise InputError(str(error).strip().splitlines()[-1].strip()) from None
  except BrokenPipeError:  # of --help
    raise
  except Exception:  # of the config's code, or an unknown key
    config = config_file.read_config(file)
    for name in [word.lstrip("-").partition("=")[0] for word in argv]:
      node, place = config, "config"
      for key in name.split(".")[1:] if name.startswith("config.") else ():
        if wrong := sections.unknown_field(node, key, place):
          raise InputError(f"--{wrong}") from None
        node, place = node[key], f"{place}.{key}"
    raise
  return rest


def run(main, *, words: bool = False) -> None:
  """`cli.run` of a command with --config."""
  cli.run(main, words=words, parse=parse)
