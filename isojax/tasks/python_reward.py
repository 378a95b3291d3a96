"""Custom rewards: a Python function in a file that the config names.

The processes of the grader get the file's text, see core/custom_function.py.
"""

import math
import re

from isojax.core import custom_function
from isojax.errors import InputError
from isojax.tasks.problem import Problem

KEY = "task.grader.file"
MAX_PARTS = 8  # so that a reply fits one atomic write to a pipe
EXAMPLE = f"{KEY}=my_reward.py:score"


def read(file: str) -> dict[str, str]:
  """The path, function and text of FILE.py:FUNCTION; see custom_function."""
  return custom_function.read(KEY, file)


def warm_up(source: dict) -> None:
  """Runs the file once; InputError if it cannot be run."""
  custom_function.load(**source["reward"])


def judge(problem: Problem, answer: str, source: dict
          ) -> tuple[float, str, dict]:
  """(reward, vote, parts of the reward) of an answer, which is its own vote.

  A function may return {name: (part, weight)}: the reward is the weighted sum.

  Raises:
    InputError: the function raised, or did not return a number in [0, 1].
  """
  reward = source["reward"]
  function = custom_function.load(**reward)
  fields = {"id": problem.id, "question": problem.question,
            "answer": problem.answer,
            "source": {k: v for k, v in source.items() if k != "reward"}}
  try:
    value = function(problem.question, answer, fields)
  except MemoryError:
    raise
  except (Exception, SystemExit) as error:  # users raise any type
    raise custom_function.with_line(reward, error) from error
  try:
    number, parts = weighted(value) if isinstance(value, dict) else (
        _number(value), {})
    valid = all(0.0 <= x <= 1.0 for x in (number, *parts.values()))  # not NaN
  except Exception:  # a value's own __float__ raises any type
    valid = False
  if not valid:
    raise InputError(
        f"{custom_function.definition(reward)}: {reward['function']} returned "
        f"{value!r:.60}; expected a number in [0, 1], a bool, or at most "
        f"{MAX_PARTS} parts as {{'name': (part, weight)}}, where parts and "
        "their weighted sum are in [0, 1]")
  return number, answer.strip(), parts


def _number(value) -> float:
  if isinstance(value, (str, bytes)):
    raise TypeError("a text is no number")
  return float(value)


def weighted(value: dict) -> tuple[float, dict[str, float]]:
  """The weighted sum of {name: (part, weight)}, and the parts."""
  if not 0 < len(value) <= MAX_PARTS or any(
      not re.fullmatch(r"\w{1,40}", name, re.ASCII) for name in value):
    raise ValueError("too many parts, or a name that is no word")
  total = math.fsum(_number(part) * _number(weight)
                    for part, weight in value.values())
  # Rounded, because a sum of floats may exceed 1 by 2e-16.
  return round(total, 12), {name: _number(part)
                            for name, (part, _) in value.items()}
