"""What a task is, and the table of all tasks.

To add a task, write one file with its functions and add one line to `TASKS`.
The processes that judge answers import this module, so tasks import jax, numpy
and libraries for a single task inside their functions.
"""

from collections.abc import Callable
import dataclasses

from isojax.tasks import countdown, files, gym, math, python_reward
from isojax.tasks.problem import Pool, Problem


def accept(_: Problem | dict) -> None:
  """Does nothing: the default check of problems and sources, and warm-up."""


@dataclasses.dataclass(frozen=True)
class Task:
  """How problems are loaded and judged.

  A source describes the origin of problems: it is the section `source` of a
  config of launch.split, copied to the headers of its files; {} if unknown.
  """

  # source.kind -> the function that loads the problems. Its arguments are the
  # other keys of the source, whose types are checked against its annotations.
  sources: dict[str, Callable[..., Pool]]
  # (problem, answer, source) -> (correct, vote), for an answer of any text.
  # correct: a bool, or a number in [0, 1] that grades the answer. Equal votes
  # are one answer in the majority vote, maj@k; "" is no vote. A third value is
  # optional: name -> part of the grade, for the records.
  judge: Callable[[Problem, str, dict], tuple]
  # Raises InputError for a problem that no answer could be judged against.
  check: Callable[[Problem], None] = accept
  # Raises InputError for a source whose problems cannot be judged.
  check_source: Callable[[dict], None] = accept
  # Whether the judge runs in separate processes, which are killed if an answer
  # takes too much time or memory.
  process: bool = False
  # Called with the source in each of these processes before the first answer,
  # for slow imports.
  warm_up: Callable[[dict], object] = accept
  # Reads task.grader.file, which the judge gets as source["reward"]. Such a
  # task judges problems of every other task. None: the task has no file.
  read: Callable[[str], dict] | None = None
  max_characters: int = 8192  # a longer answer is incorrect without the judge
  # (module that the judge imports, extra of setup.py that installs it).
  needs: tuple[str, str] | None = None


TASKS = {
    "countdown": Task(
        sources={"countdown": countdown.load, **files.SOURCES},
        judge=countdown.judge, check=countdown.check),
    "math": Task(
        sources=files.SOURCES, judge=math.judge, check=math.check,
        process=True, warm_up=math.warm_up, needs=("math_verify", "math")),
    "reasoning_gym": Task(
        sources={"gym": gym.load}, judge=gym.judge,
        check_source=gym.check_source, process=True, warm_up=gym.warm_up,
        needs=("reasoning_gym", "gym")),
    "python": Task(
        sources={"countdown": countdown.load, **files.SOURCES},
        judge=python_reward.judge, process=True, warm_up=python_reward.warm_up,
        read=python_reward.read, max_characters=131_072),
}
