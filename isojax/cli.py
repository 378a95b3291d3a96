"""The command line: --help, a config file with overrides, one-line errors."""

import contextlib
import difflib
import logging as std_logging
import os
import re
import sys
import threading
import traceback

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_dict
from ml_collections import config_flags
from ml_collections.config_flags import config_flags as config_flags_lib

from isojax import config_overrides
from isojax import help_text
from isojax import own_file
from isojax import preemption
from isojax.errors import InputError
from isojax.errors import OutOfReachError

BAD_INPUT = 2  # exit code of every InputError but OutOfReachError
# Run the same command again: after a signal (the run was saved), or when a
# bucket was out of reach.
PREEMPTED = preemption.CODE
DIVERGED = 76  # after a NaN or infinite loss, which would happen again
# Another process of the run ended after this start had saved a checkpoint: run
# the same command again.
PEER_LOST = 77
INTERRUPTED = 130  # by Ctrl-C; the same code as in shells
UNREAD = 141  # the reader of the output is gone; the same code as in shells


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
    try:
      return super().convert(argument)
    except ValueError:
      with contextlib.suppress(ValueError):
        if (value := float(argument)).is_integer():
          return int(value)
      raise


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


def read_config(path: str):
  """Returns the config that --config=PATH gives."""
  # ml_collections runs each file in the module of the one before, if any.
  sys.modules.pop("config_config", None)
  return config_flags_lib.ConfigFileFlagParser("config").parse(shipped(path))


def config_of(path: str):
  """Returns the config of FILE or FILE:ARGUMENT, without a command line.

  Raises:
    InputError: the file is missing, its code fails, or it has no get_config.
  """
  file = shipped(path).partition(":")[0]
  try:
    return _checked(path, read_config(path))
  except OSError as error:
    raise InputError(f"--config={path}: cannot be read ({_last_line(error)}); "
                     "give a config file, such as configs/hard.py") from error
  except Exception as error:  # of ml_collections, or of the config's own code
    if (message := _wrong_file(file, error)) is None:
      raise
    raise InputError(message) from error


def _checked(path: str, config):
  """Returns what get_config() returned, if it is a config.

  Raises:
    InputError: it is something else.
    IOError: of ml_collections, the file is missing.
  """
  if not isinstance(config, config_dict.ConfigDict):
    getattr(config, "keys", None)  # raises if the file is missing
    raise InputError(_no_config(path, config))
  return config


def _no_config(path: str, returned) -> str:
  return (f"--config={path}: get_config() returned {returned!r:.40}; expected "
          "an ml_collections.ConfigDict, as in configs/hard.py")


def _wrong_file(path: str, error: BaseException) -> str | None:
  """Returns what is wrong with a config file that raised an error, if known."""
  if str(error).endswith("no attribute 'get_config'"):
    return (f"--config={path}: defines no get_config(); expected a config file, "
            "such as configs/hard.py")
  return broken_config(path, error)


def config_path(argv: list[str]) -> str:
  """Returns the value of --config FILE or --config=FILE; empty without it."""
  split = [a.lstrip("-").split("=", 1) for a in argv]
  return next((part[1] if len(part) > 1 else after[0]
               for part, after in zip(split, split[1:] + [[""]])
               if part[0] == "config"), "")


def _config_file(argv: list[str]) -> str:
  """Returns the path of the config file, without its argument."""
  return shipped(config_path(argv)).partition(":")[0]


def broken_config(path: str, error: BaseException | None) -> str | None:
  """Returns FILE:LINE and the error of the code in a config file.

  Args:
    path: the config file; an error that no line of its folder raised is not
      one of the config.
    error: what loading it raised, perhaps from another error.
  """
  folder = os.path.dirname(os.path.abspath(path))
  while error is not None:
    places = [(frame.filename, frame.lineno)
              for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
      places.append((error.filename, error.lineno))
    for file, line in reversed(places):
      if os.path.dirname(os.path.abspath(file)) == folder:
        text = error.msg if isinstance(error, SyntaxError) else _last_line(
            error)
        return (f"--config: {os.path.relpath(file)}:{line}: "
                f"{type(error).__name__}: {text}; correct the config file")
    error = error.__context__
  return None


def shipped(path: str) -> str:
  """Returns FILE or FILE:ARGUMENT with the path at which the file is found."""
  file, colon, argument = path.partition(":")
  return f"{own_file.find(file)}{colon}{argument}"


def pairs(flag: str, items: list[str]) -> dict[str, str]:
  """Returns a list flag of NAME=VALUE as a dict; InputError for others."""
  out = {}
  for item in items:
    name, equals, value = item.partition("=")
    if not equals or not name or not value or name in out:
      raise InputError(f"--{flag}={item}: expected distinct NAME=VALUE, "
                       "separated by commas")
    out[name] = value
  return out


def _unknown_override(argv: list[str]) -> str | None:
  """Returns what is wrong with the first override of an unknown field."""
  config = read_config(config_path(argv))
  split = [a.lstrip("-").split("=", 1) for a in argv]
  wrong = (config_overrides.unknown_key(config, name) for name, *_ in split
           if name.startswith("config."))
  return next((f"--{text}" for text in wrong if text), None)


def config_arguments(argv: list[str]) -> list[str]:
  """Returns --config and its overrides, as --name=value, for a command."""
  return [word if "=" in word or after.startswith("--") else f"{word}={after}"
          for word, after in zip(argv, [*argv[1:], "--"])
          if word.startswith("--config")]


def _with_shipped_config(argv: list[str]) -> list[str]:
  """Returns the arguments with the path at which the config file is found."""
  out, after = [], ""
  for word in argv:
    name, equals, value = word.partition("=")
    if name.lstrip("-") == "config" and equals and name.startswith("-"):
      word = f"{name}={shipped(value)}"
    elif after in ("--config", "-config"):
      word = shipped(word)
    out.append(word)
    after = word
  return out


def _missing_flag(name: str) -> str:
  """Returns the message for a required flag that was not given."""
  example = help_text.example_of(sys.modules["__main__"].__doc__)
  return f"--{name} is missing: {flags.FLAGS[name].help} Example: {example}"


def _unknown_flag(name: str, message: str) -> str:
  """Returns the message for an unknown flag, which may be a config field."""
  if "config" in flags.FLAGS and flags.FLAGS["config"].present:
    config = flags.FLAGS["config"].value
    near = config_overrides.fields_named(name, config)
    if not near and "Did you mean" not in message:
      near = [field for close in difflib.get_close_matches(
          name, {field.rpartition(".")[2] for field in config_overrides.names(
              config.to_dict(), "config", config)}, n=1, cutoff=0.7)
              for field in config_overrides.fields_named(close, config)]
    if near:
      return (f"Unknown command line flag '{name}'. Fields of the config are "
              f"set by {' or '.join(f'--{field}' for field in near[:3])}")
  return message


def _parse(argv: list[str], *, words: bool) -> list[str]:
  """Returns the words that are no flags; InputError if a flag is wrong.

  Args:
    argv: the command line.
    words: whether the command takes words that are no flags.
  """
  try:
    rest = flags.FLAGS(_with_shipped_config(argv))
    if rest[1:] and not words:
      raise InputError(f"unexpected argument {rest[1]!r}: expected only flags, "
                       "such as --config=FILE; see --help")
    if "config" in flags.FLAGS and flags.FLAGS["config"].present:
      _checked(config_path(argv), flags.FLAGS["config"].value)
    return rest
  except flags.UnrecognizedFlagError as error:
    message = _unknown_flag(error.flagname, _last_line(error))
  except flags.Error as error:
    message = _expected(_last_line(error))
    if _last_line(error).startswith("TypeError: "):  # of a config's code
      message = broken_config(_config_file(argv), error) or message
    if found := re.search(r"Flag --(\w+) must have a value other", message):
      message = (_no_config(config_path(argv), None)
                 if found[1] == "config" and config_path(argv)
                 else _missing_flag(found[1]))
  except OSError as error:  # the config file
    message = (f"--config cannot be read: {_last_line(error)}; give a config "
               "file, such as configs/hard.py")
  except Exception as error:  # of ml_collections, or of the config's own code
    message = _wrong_file(_config_file(argv), error)
    if message is None and not isinstance(error, (AttributeError, KeyError)):
      raise
    message = message or _unknown_override(argv) or str(error)
  raise InputError(message)


def _expected(message: str) -> str:
  """Returns a message of absl or Python in the words of other messages."""
  for pattern, words in (
      (r"invalid literal for int\(\).*", "expected a whole number"),
      (r"could not convert string to float.*", "expected a number"),
      (r"^\w+Error: ", "")):  # from a config file
    message = re.sub(pattern, words, message)
  return message


def _last_line(error: Exception) -> str:
  return str(error).strip().splitlines()[-1].strip()


def code_of(error: InputError) -> int:
  return PREEMPTED if isinstance(error, OutOfReachError) else BAD_INPUT


def _print_help(*, full: bool) -> None:
  try:
    print(help_text.help_text(sys.modules["__main__"].__doc__, full=full))
    sys.stdout.flush()
  except BrokenPipeError:
    _discard_output()


def _discard_output() -> None:
  """Keeps Python from failing when it flushes the output at exit."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_waiting_threads(code: int) -> None:
  """Exits at once if threads of orbax are left, for which Python would wait.

  On a full disk they wait ten minutes for a folder that could not be made.
  """
  if any(type(thread).__module__.startswith("orbax.")
         for thread in threading.enumerate()):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(main, on_bad_flags=None, *, words: bool = False) -> None:
  """Parses the flags and exits with the code of main(words).

  --help is printed, and an InputError is one line with an exit code of its own.

  Args:
    main: of a command, whose docstring `help_text` describes.
    on_bad_flags: called with the message after wrong flags were reported.
    words: whether the command takes words that are no flags.
  """
  def parsed(argv):
    if asked := help_text.asked(argv):
      _print_help(full=asked == "--helpfull")
      sys.exit(0)
    try:
      return _parse(argv, words=words)
    except InputError as error:
      sys.stderr.write(f"isojax: {error}\n")
      if on_bad_flags is not None:
        on_bad_flags(str(error))
      sys.exit(BAD_INPUT)

  def guarded(argv):
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # jax and orbax are talkative
      # A full disk fails every array of a checkpoint; orbax raises the first.
      std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)
    try:
      code = main(argv)
      sys.stdout.flush()  # finds out here, not at exit, if nobody reads it
      return code
    except InputError as error:
      sys.stderr.write(f"isojax: {error}\n")
      _leave_waiting_threads(code_of(error))
      return code_of(error)
    except KeyboardInterrupt:
      sys.stderr.write("isojax: interrupted; complete files are kept: the same "
                       "command does what is left, or begins again\n")
      return INTERRUPTED
    except BrokenPipeError:  # such as `| head`; exit flushes once more
      _discard_output()
      return UNREAD

  app.run(guarded, flags_parser=parsed)
