"""The command line: --config with overrides, exit codes, one-line errors."""

import contextlib
import itertools
import logging as std_logging
import os
import re
import sys
import threading

from absl import app, flags, logging
from ml_collections import config_flags

from isojax import config_file, plan_file
from isojax.errors import InputError, OutOfReachError

# Exit codes. After PREEMPTED and PEER_LOST the same command resumes.
BAD_INPUT = 2  # of every InputError but OutOfReachError
PREEMPTED = 75  # after a signal (the run was saved), or a bucket out of reach
DIVERGED = 76  # after a NaN or infinite loss, which would happen again
PEER_LOST = 77  # another process ended after this start saved a checkpoint
INTERRUPTED = 130  # by Ctrl-C; the same code as in shells
UNREAD = 141  # the reader of the output is gone; the same code as in shells

# `--help` of a command lists the flags that it defines by this module.
flags.disclaim_key_flags()


class _OrNone(flags.ArgumentParser):
  """Parses `None` as None, and other texts as another parser does."""

  def __init__(self, parser: flags.ArgumentParser):
    self._parser = parser

  def parse(self, argument):
    return None if argument in (None, "None") else self._parser.parse(argument)

  def flag_type(self):
    return self._parser.flag_type()


class _Whole(flags.IntegerParser):
  """Parses whole numbers, also as 2e6."""

  def convert(self, argument):
    if re.fullmatch(r"[\d.]+[eE]\d+|\d+\.0*", str(argument)):
      with contextlib.suppress(ValueError):
        if (value := float(argument)).is_integer():
          return int(value)
    return super().convert(argument)


# --config.alloc.m=None. A field that is never None refuses it when the config
# is read (isojax.experiment).
WHOLE = _OrNone(_Whole())
for _type, _parser in ((int, WHOLE), (float, _OrNone(flags.FloatParser())),
                       (str, _OrNone(flags.ArgumentParser()))):
  config_flags.register_flag_parser_for_type(_type, _parser)


def define_config(example: str, *, required: bool = True):
  """Defines --config=FILE, with --config.section.field=value overrides."""
  holder = config_flags.DEFINE_config_file(
      "config", lock_config=True, help_string=f"Config file, such as {example};"
      " --config.seed=3 overrides a field.")
  if required:
    flags.mark_flag_as_required("config")
  return holder


def config_path(argv: list[str]) -> str:
  """The last --config FILE or --config=FILE, which counts; empty: none."""
  return next((word.partition("=")[2]
               for word in reversed(config_arguments(argv))
               if word.startswith("--config=")), "")


def config_arguments(argv: list[str]) -> list[str]:
  """--config and its overrides, as --name=value, for a command."""
  return [word if "=" in word or after.startswith("-") else f"{word}={after}"
          for word, after in itertools.pairwise([*argv, "-"])
          if word.startswith("--config")]


def pairs(flag: str, items: list[str]) -> dict[str, str]:
  """A list flag of NAME=VALUE as a dict; InputError for others."""
  out = {}
  for item in items:
    name, _, value = item.partition("=")
    if not name or not value or name in out:
      raise InputError(f"--{flag}={item}: expected distinct NAME=VALUE, "
                       "separated by commas")
    out[name] = value
  return out


def given() -> dict:
  """The fields of the config that the command line sets, by dotted name."""
  if "config" not in flags.FLAGS or not flags.FLAGS["config"].present:
    return {}
  return config_flags.get_override_values(flags.FLAGS["config"])


def apply_row(config, lines: list[str], index: int, path: str) -> float:
  """Sets the values of a plan's row in a config; returns its learning rate.

  An InputError begins with PATH:LINE.
  """
  row = plan_file.read_row(lines, index, path=path)
  where = f"{path}:{index + 1}"
  for name, value in given().items():
    planned = row["overrides"]
    for key in name.split("."):
      planned = planned[key] if (
          isinstance(planned, dict) and key in planned) else None
    if planned is not None and planned != value:
      raise InputError(
          f"{where}: the row sets {name} to {planned!r}, the command line to "
          f"{value!r}; leave out --config.{name}, or make another plan")
  config_file.override(config, row["overrides"], where)
  return row["lr"]


def _with_shipped_config(argv: list[str]) -> list[str]:
  """The arguments with the path at which the config file is found."""
  name = "--config="
  return [config_file.shipped(word) if before == "--config" else
          name + config_file.shipped(word.removeprefix(name))
          if word.startswith(name) else word
          for before, word in itertools.pairwise(["", *argv])]


def _parse(argv: list[str], *, words: bool) -> list[str]:
  """The words that are no flags; InputError if a flag is wrong."""
  try:
    rest = flags.FLAGS(_with_shipped_config(argv))
    if "config" in flags.FLAGS and flags.FLAGS["config"].present:
      config_file.checked(config_path(argv), flags.FLAGS["config"].value)
  except flags.Error as error:
    section = re.match(r"flag --(config\.(\w+)=(\w+)): .* as a ConfigDict",
                       str(error))
    if section:
      raise InputError(
          f"--{section[1]}: {section[2]} is a section of the config, not a "
          f"value; a recipe is a config file, such as --config=configs/"
          f"{section[3]}.py") from None
    # ml_collections puts a traceback of the config's code into the message.
    place = re.findall(r'File "(.+)", line (\d+)', str(error))
    at = f"{os.path.relpath(place[-1][0])}:{place[-1][1]}: " if place else ""
    last = str(error).strip().splitlines()[-1].strip()
    raise InputError(f"{at}{last}") from None
  except SyntaxError as error:
    raise InputError(f"{config_path(argv)}: not a config of Python ({error})"
                     ) from None
  except (AttributeError, KeyError, OSError):  # OSError: no such file
    config = config_file.read_config(config_path(argv))  # or its own error
    for name in [word.lstrip("-").partition("=")[0] for word in argv]:
      node, path = config, "config"
      for key in name.split(".")[1:] if name.startswith("config.") else ():
        if wrong := config_file.unknown_field(node, key, path):
          raise InputError(f"--{wrong}") from None
        node, path = node[key], f"{path}.{key}"
    raise
  if rest[1:] and not words:
    raise InputError(f"unexpected argument {rest[1]!r}: expected only flags, "
                     "such as --config=FILE; see --help")
  return rest


def code_of(error: InputError) -> int:
  return PREEMPTED if isinstance(error, OutOfReachError) else BAD_INPUT


def _leave_waiting_threads(code: int) -> None:
  """Exits at once if threads of orbax are left, which wait on a full disk."""
  if any(type(thread).__module__.startswith("orbax.")
         for thread in threading.enumerate()):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _report_unless_late(unraisable) -> None:
  """Reports an error that Python cannot raise, except that of a late write.

  orbax closes its event loop at the first array that was not written. A thread
  of tensorstore that ends later finds the loop closed.
  """
  if str(unraisable.exc_value) != "Event loop is closed":
    sys.__unraisablehook__(unraisable)


def run(main, *, words: bool = False) -> None:
  """Parses the flags and exits with the code of main(words).

  An InputError is one line. Words that are no flags are refused unless `words`.
  """
  def parsed(argv):
    try:
      return _parse(argv, words=words)
    except InputError as error:
      sys.stderr.write(f"isojax: {error}\n")
      sys.exit(BAD_INPUT)

  def guarded(argv):
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # jax and orbax are talkative
      # A full disk fails every array of a checkpoint; orbax raises the first.
      std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)
      sys.unraisablehook = _report_unless_late
    try:
      code = main(argv)
      sys.stdout.flush()  # finds out here, not at exit, if nobody reads it
      return code
    except InputError as error:
      sys.stderr.write(f"isojax: {error}\n")
      _leave_waiting_threads(code_of(error))
      return code_of(error)
    except SystemExit as error:
      if error.code not in (None, 0):
        raise
      sys.stderr.write("isojax: a function called exit() before the end; a "
                       "custom function must return or raise\n")
      return BAD_INPUT
    except KeyboardInterrupt:
      sys.stderr.write("isojax: interrupted; complete files are kept: the same "
                       "command does what is left, or begins again\n")
      return INTERRUPTED
    except BrokenPipeError:  # such as `| head`; exit flushes once more
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return UNREAD

  app.run(guarded, flags_parser=parsed)
