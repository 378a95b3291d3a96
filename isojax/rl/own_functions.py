"""Functions of the user's own in a recipe: FILE.py:NAME in place of a name.

The file is read and run when the config is checked, once. Its text is part of
the run id, so that a changed file is another run.
"""

import hashlib
import inspect
import os
import sys
import traceback
import types
import typing

from isojax.errors import InputError
from isojax.errors import reason


class Own(typing.NamedTuple):
  """A function of a file."""

  function: typing.Callable
  sha256: str  # of its name and the file's text


def is_own(name: str) -> bool:
  """Returns whether a name of a recipe is FILE.py:NAME."""
  return name.partition(":")[0].endswith(".py")


def load(key: str, name: str, like: typing.Callable) -> Own:
  """Returns the function that FILE.py:NAME names.

  Args:
    key: the config's, for messages.
    name: the path of the file and the function's name.
    like: a function of the same kind, whose positional arguments it takes.

  Raises:
    InputError: the file cannot be read, its code fails, it has no such
      function, or the function takes other arguments.
  """
  path, _, function = name.partition(":")
  try:
    with open(path, encoding="utf-8") as file:
      text = file.read()
  except (OSError, ValueError) as error:
    raise InputError(f"{key}={name}: cannot be read ({reason(error)}); expected "
                     "FILE.py:FUNCTION") from error
  module = types.ModuleType("isojax_own")
  module.__file__ = os.path.abspath(path)
  sys.modules[module.__name__] = module  # where dataclasses look names up
  try:
    exec(compile(text, path, "exec"), module.__dict__)
  except Exception as error:  # any of theirs
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == path]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1]
    raise InputError(f"{key}: {path}:{line}: {type(error).__name__}: {error}; "
                     "correct the file") from error
  found = vars(module)[function] if function in vars(module) else None
  if not inspect.isfunction(found):
    there = [each for each, value in vars(module).items()
             if inspect.isfunction(value)]
    raise InputError(f"{key}={name}: {path} has no function {function!r}; it "
                     f"has {', '.join(there) or 'none'}")
  wanted, taken = map(_positional, (like, found))
  if len(wanted) != len(taken):
    raise InputError(
        f"{key}={name}: takes ({', '.join(taken)}); expected "
        f"({', '.join(wanted)}), and constants as keyword-only arguments")
  return Own(found, hashlib.sha256(f"{function}\n{text}".encode()).hexdigest())


def _positional(function: typing.Callable) -> list[str]:
  """Returns the names of the positional arguments."""
  return [p.name for p in inspect.signature(function).parameters.values()
          if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
