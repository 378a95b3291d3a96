"""The command line: a config file, overrides, and errors in one line."""

import difflib
import json
import logging as std_logging
import os
import sys

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags
from ml_collections.config_flags import config_flags as config_flags_lib

from isojax.errors import InputError
from isojax.errors import OutOfReachError

BAD_INPUT = 2  # exit code of every InputError but OutOfReachError
# Run the same command again: after a signal (saved), or a bucket out of reach.
PREEMPTED = 75
DIVERGED = 76  # after a NaN or infinite loss, which would come again
# Another process of the run ended, after this start had saved a checkpoint: run
# the same command again.
PEER_LOST = 77
UNREAD = 141  # of a command whose output nobody reads on, as shells have it


def define_config(example: str, *, required: bool = True):
  """The flag --config=FILE, with --config.section.field=value overrides."""
  holder = config_flags.DEFINE_config_file(
      "config", lock_config=True, help_string=f"Config file, such as {example};"
      " --config.seed=3 overrides a field.")
  if required:
    flags.mark_flag_as_required("config")
  return holder


def read_config(path: str):
  """The config that --config=PATH would be."""
  return config_flags_lib.ConfigFileFlagParser("config").parse(path)


def pairs(flag: str, items: list[str]) -> dict[str, str]:
  """A list flag of name=value pairs as a dict; InputError for others."""
  out = {}
  for item in items:
    name, equals, value = item.partition("=")
    if not equals or not name or not value or name in out:
      raise InputError(f"--{flag}={item}: expected distinct NAME=VALUE, "
                       "separated by commas")
    out[name] = value
  return out


def unknown_key(config, name: str) -> str | None:
  """What is wrong with a dotted name such as config.alloc.n; None: nothing."""
  node, path = config, "config"
  for key in name.split(".")[1:]:
    if not hasattr(node, "keys"):
      return f"{name}: {path} is a value, not a section"
    if key not in node:
      near = difflib.get_close_matches(key, node.keys(), n=1, cutoff=0)
      return (f"{name}: no such key; the nearest is {path}.{near[0]} "
              f"(there are: {', '.join(sorted(node.keys()))})")
    node, path = node[key], f"{path}.{key}"
  return None


def _names(values: dict, prefix: str):
  """The dotted name of every field in nested overrides."""
  for key, value in values.items():
    if isinstance(value, dict):
      yield from _names(value, f"{prefix}.{key}")
    else:
      yield f"{prefix}.{key}"


def override(config, values: dict, where: str) -> None:
  """Sets nested values in a config.

  Raises:
    InputError: a key that the config has not, or a value of another type; it
      begins with `where` the values come from.
  """
  wrong = (unknown_key(config, name) for name in _names(values, "config"))
  for text in filter(None, wrong):
    raise InputError(f"{where}: {text}")
  try:
    config.update(values)
  except (AttributeError, TypeError, ValueError) as error:
    raise InputError(f"{where}: {json.dumps(values)} is of other types than "
                     f"the config ({error})") from error


def _unknown_override(argv: list[str]) -> str | None:
  """Names the first override that the config has no field for."""
  split = [a.lstrip("-").split("=", 1) for a in argv]  # --config FILE, or =FILE
  path = next((part[1] if len(part) > 1 else after[0]
               for part, after in zip(split, split[1:] + [[""]])
               if part[0] == "config"), "")
  config = read_config(path)
  wrong = (unknown_key(config, name) for name, *_ in split
           if name.startswith("config."))
  return next((f"--{text}" for text in wrong if text), None)


def config_arguments(argv: list[str]) -> list[str]:
  """--config and its overrides, as --name=value, for another command."""
  return [word if "=" in word or after.startswith("--") else f"{word}={after}"
          for word, after in zip(argv, [*argv[1:], "--"])
          if word.startswith("--config")]


def _parse(argv: list[str]) -> list[str]:
  try:
    rest = flags.FLAGS(argv)
    if "config" in flags.FLAGS and flags.FLAGS["config"].present:
      flags.FLAGS["config"].value.keys()  # a missing file is noticed here
    return rest
  except flags.Error as error:
    message = str(error).strip().splitlines()[-1]
  except (AttributeError, KeyError) as error:  # from ml_collections
    message = _unknown_override(argv) or str(error)
  except OSError as error:  # the config file
    message = str(error).strip().splitlines()[-1].strip()
  sys.stderr.write(f"isojax: {message}\n")
  sys.exit(BAD_INPUT)


def code_of(error: InputError) -> int:
  return PREEMPTED if isinstance(error, OutOfReachError) else BAD_INPUT


def run(main) -> None:
  """app.run(main), with an InputError as one line and its exit code."""
  def guarded(argv):
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # jax and orbax are talkative
      # A full disk fails every array of a checkpoint; orbax raises the first.
      std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)
    try:
      code = main(argv)
      sys.stdout.flush()  # a reader that has gone is noticed here, not at exit
      return code
    except InputError as error:
      sys.stderr.write(f"isojax: {error}\n")
      return code_of(error)
    except BrokenPipeError:  # such as `| head`; exit flushes once more
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return UNREAD
  app.run(guarded, flags_parser=_parse)
