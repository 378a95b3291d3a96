"""Loads FILE.py:FUNCTION of a config.

The user's file is read once, and its text is run: editing the file does not
change a run that has started.
"""

import ast
import functools
import hashlib
import os
import sys
import traceback
import types

from isojax.errors import InputError, reason

# A grader process gets the text as one argument of its command line.
MAX_BYTES = 64_000
MODULE = "isojax_custom"  # name of the file's module


def read(key: str, name: str) -> dict[str, str]:
  """The path, function and text of `name`, FILE.py:FUNCTION.

  InputError if the file cannot be read or has a syntax error; it names `key`,
  the config key with this value.
  """
  path, _, function = name.rpartition(":")
  if not path or not function.isidentifier():
    raise InputError(f"{key}={name!r}: expected FILE.py:FUNCTION")
  try:
    with open(path, "rb") as file:
      text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
      raise InputError(f"{key}={name}: expected at most {MAX_BYTES:,} bytes")
    text = text.decode()
    compile(text, path, "exec")
  except SyntaxError as error:
    raise InputError(f"{path}:{error.lineno or 1}: {type(error).__name__}: "
                     f"{error.msg}; correct the file") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{key}={name}: cannot be read ({reason(error)}); "
                     "expected a Python file") from error
  return {"path": path, "function": function, "text": text}


def sha256(custom: dict[str, str]) -> str:
  """The hash of the function's name and the file's text, not of its path."""
  content = f"{custom['function']}\n{custom['text']}"
  return hashlib.sha256(content.encode()).hexdigest()


def with_line(custom: dict[str, str], error: BaseException) -> InputError:
  """InputError with the line of the user's file that raised `error`.

  The line of the function's definition if no line of the file raised it.
  """
  path = custom["path"]
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
           if frame.filename == path]
  place = f"{path}:{lines[-1]}" if lines else definition(custom)
  first, *_ = [*str(error).splitlines(), ""]  # jax adds paragraphs
  return InputError(f"{place}: {type(error).__name__}: {first}")


def definition(custom: dict[str, str]) -> str:
  """FILE:LINE of the function; FILE if it has no `def` or `class`."""
  for node in ast.parse(custom["text"]).body:  # `read` has compiled it
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                  ) and node.name == custom["function"]:
      return f"{custom['path']}:{node.lineno}"
  return custom["path"]


@functools.lru_cache(maxsize=8)
def load(path: str, function: str, text: str):
  """Runs the text of `read` once, and returns its function."""
  module = types.ModuleType(MODULE)
  module.__file__ = os.path.abspath(path)
  sys.modules[MODULE] = module  # dataclasses look up annotations there
  try:
    exec(compile(text, path, "exec"), module.__dict__)
  except MemoryError:  # not the fault of the user's code
    raise
  except (Exception, SystemExit) as error:  # of the file's code
    raise with_line(dict(path=path, function=function, text=text),
                    error) from error
  known = [name for name, value in vars(module).items()
           if callable(value) and not name.startswith("__")]
  if function not in known:
    raise InputError(f"{path} has no function {function!r}; it has "
                     f"{', '.join(known) or 'none'}")
  return vars(module)[function]
