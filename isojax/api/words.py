"""Gives the functions of the interface messages in the words of Python."""

import functools
import importlib
import inspect
import io
import re
import typing

from isojax import installation
from isojax.errors import InputError

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


def of_python(function):
  """Returns the function; its InputErrors name arguments instead of flags."""
  @functools.wraps(function)
  def called(*args, **kwargs):
    try:
      return function(*args, **kwargs)
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
                     f"{installation.pip_install(extra)}") from error
