"""The command line: flags, exit codes, one-line errors."""

import logging as std_logging
import os
import sys
import threading

from absl import app, flags, logging

from isojax.core import disk, exit_codes
from isojax.errors import InputError, is_text, TEXT

# So --help of a command lists flags defined through this module as its own.
flags.disclaim_key_flags()


def pairs(flag: str, items: list[str]) -> dict[str, str]:
  """A list flag of NAME=VALUE as a dict; InputError for other items."""
  out = {}
  for item in items:
    name, _, value = item.partition("=")
    if not name or not value or name in out:
      raise InputError(f"--{flag}={item}: expected distinct NAME=VALUE, "
                       "separated by commas")
    out[name] = value
  return out


def _check_lists(argv: list[str]) -> None:
  """InputError for a list flag given twice: absl takes the last alone."""
  names = [word.lstrip("-").partition("=")[0] for word in argv
           if word.startswith("-")]
  for name in {name for name in names if names.count(name) > 1}:
    if name in flags.FLAGS and isinstance(
        flags.FLAGS[name].parser, flags.ListParser):
      raise InputError(f"--{name} is given twice; give its values once, "
                       "separated by commas")


def _parsed(argv: list[str], parse, *, words: bool) -> list[str]:
  """The arguments that are no flags; InputError for a wrong argument, too."""
  for word in argv:
    if not is_text(word):
      raise InputError(f"argument {word!r:.100}: expected {TEXT}")
  _check_lists(argv)
  try:
    rest = parse(argv)
  except flags.Error as error:
    raise InputError(str(error).strip().splitlines()[-1].strip()) from None
  if rest[1:] and not words:
    raise InputError(f"unexpected argument {rest[1]!r}: expected only flags, "
                     "such as --config=FILE; see --help")
  return rest


def _leave_waiting_threads(code: int) -> None:
  """Exits now if threads of orbax are left, which wait while a disk is full."""
  if any(type(thread).__module__.startswith("orbax.")
         for thread in threading.enumerate()):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _without_output(code: int) -> int:
  """The exit code if stdout takes no more: exit flushes it once more."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return code


def _end(error: BaseException) -> int | None:
  """The exit code after an error, which is said; None: it is unexpected."""
  code, text = exit_codes.BAD_INPUT, str(error)
  if isinstance(error, InputError):
    code = exit_codes.exit_code(error)
  elif isinstance(error, SystemExit):
    if error.code not in (None, 0):
      return None
    text = ("a function called exit() before the end; a custom function must "
            "return or raise")
  elif isinstance(error, KeyboardInterrupt):
    code, text = exit_codes.INTERRUPTED, (
        "interrupted; complete files are kept: the same command does what is "
        "left, or begins again")
  elif isinstance(error, BrokenPipeError):  # as of `| head`
    return _without_output(exit_codes.UNREAD)
  elif isinstance(error, OSError) and error.errno in disk.FULL:
    # A failed write of an open file has no name.
    text = str(disk.refused(error.filename or "a file or the output", error))
    code = _without_output(code)
  else:
    return None
  sys.stderr.write(f"isojax: {text}\n")
  return code


def run(main, *, words: bool = False, parse=flags.FLAGS) -> None:
  """Parses the flags and exits with the code that main(argv) returns.

  An InputError is printed as one line. `words`: allow arguments that are no
  flags. `parse` is config_file.parse_flags for a command with --config.
  """
  def parsed(argv):
    try:
      return _parsed(argv, parse, words=words)
    except (InputError, BrokenPipeError) as error:  # the latter of --help
      sys.exit(_end(error))
    except SystemExit:  # of absl's help, with exit code 1
      sys.exit(0)

  def guarded(argv):
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # jax and orbax are talkative
      # On a full disk every array of a checkpoint fails; orbax raises the first
      # error, and asyncio would log the others.
      std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)
    try:
      code = main(argv)
      sys.stdout.flush()  # raises BrokenPipeError here instead of at exit
      return code
    except (Exception, SystemExit, KeyboardInterrupt) as error:
      code = _end(error)
      if code is None:
        raise
      if isinstance(error, InputError):
        _leave_waiting_threads(code)
      return code

  # What a log or a policy wrote may be no text; stderr has this default.
  sys.stdout.reconfigure(errors="backslashreplace")
  app.run(guarded, flags_parser=parsed)
