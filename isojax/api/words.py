"""Checks the arguments of the interface, and words its messages in Python."""

import contextlib
import functools
import importlib
import inspect
import io
import numbers
import os
import re
import types
import typing

from isojax.errors import InputError
from isojax.planner import planning

Path = str | os.PathLike
# What an argument of a type is called in a message.
EXPECTED = {int: "a whole number", float: "a number", str: "a text",
            bool: "True or False", dict: "a dict", types.NoneType: "None",
            os.PathLike: "a path", list: "a list", tuple: "a tuple",
            planning.Plan: "the result of isojax.plan"}

_PAIR = r"[\w.@%-]+=[^\s,;)]*[^\s,;):.]"  # the end is no end of a sentence
_PAIRS = re.compile(rf"--(columns|fixed|scale)=({_PAIR}(?:,{_PAIR})*)")


def _dict(found: re.Match) -> str:
  """Returns --fixed=Bp=32,n=8 as fixed={'Bp': 32, 'n': 8}."""
  items = []
  for item in found[2].split(","):
    name, _, value = item.partition("=")
    low, colon, high = value.partition(":")
    number = re.fullmatch(r"-?[\d.]+", value)
    items.append(f"{name!r}: " + (
        f"({low}, {high})" if colon and found[1] == "scale"
        else value if number else repr(value)))
  return f"{found[1]}={{{', '.join(items)}}}"


def plain(text: str, function) -> str:
  """Returns a message about flags as one about a function's arguments.

  The modules below serve commands, too, and write --rollouts=2e6. Only names
  of the function's own arguments lose their dashes, and a command keeps them.
  """
  names = [*inspect.signature(function).parameters, "config"]
  text, *command = re.split(r"(?=python -m )", text, maxsplit=1)
  if "columns" in names:
    text = _PAIRS.sub(_dict, text)
  return "".join(
      [re.sub(rf"--(?=(?:{'|'.join(names)})\b)", "", text), *command])


def _as(value, kind: type):
  """Returns an argument as a type of EXPECTED; TypeError if it is no such."""
  if kind is int and isinstance(value, numbers.Real) and value == int(value) and (
      not isinstance(value, bool)):
    return int(value)  # numpy's, and 2e6
  if kind is float and isinstance(value, numbers.Real) and (
      not isinstance(value, bool)):
    return value if type(value) in (int, float) else float(value)
  if isinstance(value, kind) and kind not in (int, float):
    return value
  raise TypeError


def checked(name: str, value, annotation):
  """Returns an argument as its annotation says.

  Args:
    name: of the argument.
    value: given.
    annotation: one of EXPECTED, or several joined by |.

  Raises:
    InputError: the value is of another type.
  """
  kinds = typing.get_args(annotation) or (annotation,)
  for kind in kinds:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
      return _as(value, kind)
  expected = " or ".join(EXPECTED[kind] for kind in kinds
                         if not (kind is str and os.PathLike in kinds))
  raise InputError(f"{name}={value!r:.60}: expected {expected}")


def of_python(function):
  """Returns the function with checks of the arguments that have annotations.

  Its InputErrors name arguments instead of flags.
  """
  signature = inspect.signature(function)
  hints = {name: hint for name, hint in typing.get_type_hints(function).items()
           if name in signature.parameters}

  @functools.wraps(function)
  def called(*args, **kwargs):
    given = signature.bind(*args, **kwargs)
    for name in hints.keys() & given.arguments.keys():
      given.arguments[name] = checked(name, given.arguments[name], hints[name])
    try:
      return function(*given.args, **given.kwargs)
    except InputError as error:
      raise type(error)(plain(str(error), function)) from error

  return called


class Told(typing.NamedTuple):
  """Shows the lines of a long task, or discards them."""

  on: bool

  def __call__(self, text: str) -> None:
    if self.on:
      print(text, flush=True)


def shown(figure):
  """Returns a matplotlib figure that a notebook shows, without pyplot."""
  def png() -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()

  figure._repr_png_ = png
  return figure


def library(name: str, extra: str, what: str):
  """Imports an optional library; InputError names the extra that has it."""
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise InputError(f"{what} needs {name}: "
                     f"pip install -e '.[{extra}]'") from error
