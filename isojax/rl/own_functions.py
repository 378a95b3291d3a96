"""Functions of the user's own in a recipe: FILE.py:NAME in place of a name.

The text of the file is part of the run id, so that a changed file is another
run.
"""

import inspect
import typing

from isojax import own_file
from isojax.errors import InputError


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
    InputError: as `own_file.read` and `own_file.function`; or the function
      takes other arguments.
  """
  own = own_file.read(key, name)
  try:
    found = own_file.function(**own)
  except InputError as error:
    raise InputError(f"{key}: {error}; correct the file") from error
  wanted, taken = map(_positional, (like, found))
  if len(wanted) != len(taken):
    raise InputError(
        f"{key}={name}: takes ({', '.join(taken)}); expected "
        f"({', '.join(wanted)}), and constants as keyword-only arguments")
  return Own(found, own_file.sha256(own))


def _positional(function: typing.Callable) -> list[str]:
  """Returns the names of the positional arguments."""
  return [p.name for p in inspect.signature(function).parameters.values()
          if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
