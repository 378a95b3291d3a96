"""The errors of the public interface; commands show them in one line."""

import difflib
import functools
import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# What reading a text file of a user's can raise, such as JSON that is damaged,
# nested too deeply, or a list where an object is expected.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError,
              RecursionError, OverflowError)


class InputError(ValueError):
  """Wrong input; the message says what was expected and what to do."""


class OutOfReachError(InputError):
  """A resource is unavailable for now; rerun the same command later."""


class DivergedError(Exception):
  """A run ended at a step whose loss, gradient or parameters are not finite."""


def unchained(function):
  """Wraps a function: its InputErrors lose the frames of isojax's internals."""
  @functools.wraps(function)
  def wrapper(*args, **kwargs):
    try:
      return function(*args, **kwargs)
    except InputError as error:
      raise error.with_traceback(None) from None

  return wrapper


def reason(error: Exception) -> str:
  """The error's message; of an OSError without its number and path."""
  return str(error.strerror if isinstance(error, OSError) and error.strerror
             else error)


TEXT = "text that UTF-8 can encode"


def is_text(value: str) -> bool:
  """Whether a string is TEXT: JSON and arguments can hold half a character.

  Such a lone surrogate (\\ud83d, or a byte of a path) can be neither printed
  nor tokenized.
  """
  return _LONE_SURROGATE.search(value) is None


def expect(section: str, config, **rules) -> None:
  """Raises InputError for the first field of a config that breaks its rule.

  `rules`: field -> (whether its value is allowed, text of what is expected).
  """
  for name, (allowed, expected) in rules.items():
    if not allowed:
      raise InputError(f"{section}.{name}={getattr(config, name)!r}: expected "
                       f"{expected}")


def expect_one_of(section: str, config, more: str = "", **choices) -> None:
  """Raises InputError if a field's value is not among its choices.

  `choices`: field -> its choices. The message lists them, then has `more`, then
  the choice nearest to the value if one is close.
  """
  for name, known in choices.items():
    value = getattr(config, name)
    near = difflib.get_close_matches(str(value), map(str, known), n=1)
    expect(section, config, **{name: (
        value in known, f"one of {', '.join(map(str, known))}{more}"
        + "".join(f"; the nearest is {choice}" for choice in near))})
