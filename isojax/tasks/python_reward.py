"""A reward of one's own: a Python function in a file that the config names.

The processes that judge get the text of the file, see
`isojax.core.custom_function`.
"""

from isojax.core import custom_function
from isojax.errors import InputError
from isojax.tasks.problem import Problem

KEY = "task.grader.file"
EXAMPLE = f"{KEY}=my_reward.py:score"


def read(file: str) -> dict[str, str]:
  """FILE.py:FUNCTION as `custom_function.read` does, with its errors."""
  return custom_function.read(KEY, file)


def warm_up(source: dict) -> None:
  """Runs the file once; InputError if it cannot be run."""
  custom_function.function(**source["reward"])


def judge(problem: Problem, answer: str, source: dict) -> tuple[float, str]:
  """The reward of an answer and its vote, the answer itself.

  Raises:
    InputError: the function raised, or did not return a number in [0, 1].
  """
  reward = source["reward"]
  function = custom_function.function(**reward)
  fields = {"id": problem.id, "question": problem.question,
            "answer": problem.answer,
            "source": {k: v for k, v in source.items() if k != "reward"}}
  try:
    value = function(problem.question, answer, fields)
  except MemoryError:
    raise
  except Exception as error:  # any of theirs
    raise custom_function.located(reward["path"], error) from error
  try:
    number = -1.0 if isinstance(value, (str, bytes)) else float(value)
  except Exception:  # of a __float__ of theirs, too
    number = -1.0
  if not 0.0 <= number <= 1.0:  # nor NaN
    raise InputError(
        f"{reward['path']}: {reward['function']} returned {value!r:.40}; "
        "expected a number in [0, 1], or whether the answer is right")
  return number, answer.strip()
