"""A reward of one's own: a Python function in a file that the config names.

The file is read once, when a run starts. The processes that judge get its text,
so that editing the file does not change a run that has begun.
"""

import functools
import hashlib
import os
import sys
import traceback
import types

from isojax.errors import InputError
from isojax.errors import reason
from isojax.tasks.problem import Problem

BYTES = 64_000  # of a file; its text is an argument of each process
EXAMPLE = "task.grader.file=my_reward.py:score"
MODULE = "isojax_reward"  # name of the file's module


def read(file: str) -> dict:
  """Returns the path, the function's name and the text of FILE.py:FUNCTION.

  Raises:
    InputError: not of this form, or the file cannot be read.
  """
  path, _, function = file.rpartition(":")
  if not path or not function.isidentifier():
    raise InputError(f"task.grader.file={file!r}: expected FILE.py:FUNCTION, "
                     f"such as {EXAMPLE}")
  try:
    with open(path, "rb") as opened:
      text = opened.read(BYTES + 1)
    if len(text) > BYTES:
      raise InputError(f"task.grader.file={file}: expected at most {BYTES:,} "
                       "bytes; put data into the answers of the problems")
    text = text.decode()
    compile(text, path, "exec")
  except (OSError, ValueError) as error:
    raise InputError(f"task.grader.file={file}: cannot be read "
                     f"({reason(error) if isinstance(error, OSError) else error}"
                     f"); expected a Python file, such as {EXAMPLE}") from error
  except SyntaxError as error:
    raise InputError(f"{path}:{error.lineno or 1}: {type(error).__name__}: "
                     f"{error.msg}; correct the file") from error
  return {"path": path, "function": function, "text": text}


def sha256(reward: dict) -> str:
  """Returns the hash of what `read` has read, wherever the file lies."""
  content = f"{reward['function']}\n{reward['text']}"
  return hashlib.sha256(content.encode()).hexdigest()


def located(path: str, error: Exception) -> InputError:
  """Returns an error of the file's code with the line that caused it."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
           if frame.filename == path]
  at = f"{path}:{lines[-1]}" if lines else path
  return InputError(f"{at}: {type(error).__name__}: {error}")


@functools.lru_cache(maxsize=1)
def _loaded(path: str, function: str, text: str):
  """Returns the function of a file's text, and runs the file once."""
  module = types.ModuleType(MODULE)
  module.__file__ = os.path.abspath(path)
  sys.modules[MODULE] = module  # where dataclasses look up annotations
  try:
    exec(compile(text, path, "exec"), module.__dict__)
  except MemoryError:
    raise
  except Exception as error:  # any of theirs
    raise located(path, error) from error
  known = [name for name, value in vars(module).items()
           if callable(value) and not name.startswith("__")]
  if function not in known:
    raise InputError(f"{path}: no function {function!r}; it has "
                     f"{', '.join(known) or 'none'}")
  return vars(module)[function]


def warm_up(source: dict) -> None:
  """Runs the file once; InputError if it cannot be run."""
  _loaded(**source["reward"])


def judge(problem: Problem, answer: str, source: dict) -> tuple[float, str]:
  """Returns the reward of an answer and its vote, the answer itself.

  Raises:
    InputError: the function raised, or did not return a number in [0, 1].
  """
  reward = source["reward"]
  function = _loaded(**reward)
  fields = {"id": problem.id, "question": problem.question,
            "answer": problem.answer,
            "source": {k: v for k, v in source.items() if k != "reward"}}
  try:
    value = function(problem.question, answer, fields)
  except MemoryError:
    raise
  except Exception as error:  # any of theirs
    raise located(reward["path"], error) from error
  try:
    number = -1.0 if isinstance(value, (str, bytes)) else float(value)
  except Exception:  # of a __float__ of theirs, too
    number = -1.0
  if not 0.0 <= number <= 1.0:  # nor NaN
    raise InputError(
        f"{reward['path']}: {reward['function']} returned {value!r:.40}; "
        "expected a number in [0, 1], or whether the answer is right")
  return number, answer.strip()
