"""Grades responses: finds the answer in each text and has the task judge it.

A task whose judge runs other people's code judges in processes (grader_pool).
An answer that is not judged in time is wrong and is reported as lost.
"""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Callable

import numpy as np

from isojax.errors import InputError
from isojax.tasks import answer_extraction
from isojax.tasks import base
from isojax.tasks import grader_pool
from isojax.tasks import python_reward
from isojax.tasks.problem import Problem


@dataclasses.dataclass(frozen=True)
class Graded:
  """Verdicts on B responses; without an answer: wrong, and no vote."""

  # float64, 1.0 or 0.0; the reward in [0, 1] of a task that grades answers.
  correct_B: np.ndarray
  formatted_B: np.ndarray  # float64, 1.0 where an answer was found
  vote_B: list[str]  # what maj@k counts, "" is no vote
  lost: list[str]  # a line for each distinct answer that was not judged


@dataclasses.dataclass(frozen=True)
class GraderConfig:
  name: str  # of the task that judges, a key of tasks.base.TASKS
  answer: str  # where answers are: whole, boxed, hash or tags
  workers: int  # processes that judge; countdown needs none
  seconds: float  # wall clock for one answer, which is wrong after it
  step_seconds: float  # for all answers of a step; the rest is then wrong
  # FILE.py:FUNCTION of a reward of one's own; "" for the other tasks.
  file: str = dataclasses.field(default="", metadata={"neutral": ""})

  def __post_init__(self):
    for field, known in (("name", base.TASKS),
                         ("answer", answer_extraction.KINDS)):
      value = getattr(self, field)
      if value not in known:
        raise InputError(f"grader.{field}={value!r}: expected one of "
                         f"{', '.join(known)}")
    if (base.TASKS[self.name].read is None) != (not self.file):
      raise InputError(
          f"grader.name={self.name!r} with grader.file={self.file!r}: a file "
          f"goes with name='python', such as {python_reward.EXAMPLE}; set both, "
          "or file=''")
    needs = base.TASKS[self.name].needs
    if needs and not importlib.util.find_spec(needs[0]):
      raise InputError(f"grader.name={self.name!r} needs the extra: "
                       f"pip install -e '.[{needs[1]}]'")
    if self.workers < 1:
      raise InputError(f"grader.workers={self.workers}: expected at least 1")
    if not 0 < self.seconds <= self.step_seconds < float("inf"):
      raise InputError(
          f"grader: seconds={self.seconds}, step_seconds={self.step_seconds}: "
          "expected 0 < seconds <= step_seconds, both finite")


def with_reward(cfg: GraderConfig, source: dict) -> dict:
  """Returns the source with the file of cfg, if the task has one.

  Raises:
    InputError: the file cannot be read.
  """
  read = base.TASKS[cfg.name].read
  if read is None or "reward" in source:
    return source
  return source | {"reward": read(cfg.file)}


def probe(cfg: GraderConfig, source: dict, problem: Problem) -> None:
  """Judges two answers to a problem, if the judge is a file of the user's.

  Args:
    cfg: how to judge.
    source: as for `opened`.
    problem: whose own answer is judged, and another one.

  Raises:
    InputError: the file cannot be run, or its function fails.
  """
  if base.TASKS[cfg.name].read is None:
    return
  answers = (problem.answer, "?")
  pool = grader_pool.GraderPool(dataclasses.replace(cfg, workers=1),
                                with_reward(cfg, source))
  try:
    pool.open()
    replies = _judge_in_pool(pool, [(problem, answer) for answer in answers],
                             cfg.step_seconds)
  finally:
    pool.close()
  for answer, reply in zip(answers, replies, strict=True):
    if "lost" in reply:
      raise InputError(
          f"task.grader.file={cfg.file}: tried on problem {problem.id} and the "
          f"answer {answer!r:.60}: {reply['lost']}; correct the function")


@contextlib.contextmanager
def opened(cfg: GraderConfig, source: dict):
  """Gives grade(problems, text_B) -> Graded while the context is open.

  Args:
    cfg: how to judge.
    source: of the problems, see base.Task; {} if it is not known. The file of
      cfg is read unless `with_reward` has.

  Yields:
    grade(problems, text_B, seconds): judges the texts of problems, problem-
      major. Answers that are not judged within `seconds`, by default
      cfg.step_seconds, are lost.

  Raises:
    InputError: the task cannot judge problems of this source, or what its
      judge needs is not installed.
  """
  task = base.TASKS[cfg.name]
  task.check_source(source)
  source = with_reward(cfg, source)
  if not task.process:
    yield functools.partial(_grade, cfg, functools.partial(
        _judge_here, task, source))
    return
  pool = grader_pool.GraderPool(cfg, source)
  try:
    pool.open()
    yield functools.partial(_grade, cfg, functools.partial(
        _judge_in_pool, pool))
  finally:
    pool.close()


def _judge_here(task: base.Task, source: dict, jobs: list, _) -> list[dict]:
  """Returns the replies of a judge that needs no process and no limit."""
  replies = []
  for problem, answer in jobs:
    correct, vote = task.judge(problem, answer, source)
    replies.append({"correct": correct, "vote": vote})
  return replies


def _judge_in_pool(pool: grader_pool.GraderPool, jobs: list,
                   seconds: float) -> list[dict]:
  return pool.judge([[dataclasses.astuple(problem), answer]
                     for problem, answer in jobs], seconds)


def _grade(cfg: GraderConfig, judge: Callable, problems: list[Problem],
           text_B: list[str], *, seconds: float | None = None) -> Graded:
  """Judges each distinct (problem, answer) once."""
  n, by_id = len(text_B) // len(problems), {p.id: p for p in problems}
  job_B = []
  for i, text in enumerate(text_B):
    answer = answer_extraction.extract(text, cfg.answer)
    job_B.append(None if answer is None else (problems[i // n].id, answer))
  short = [job for job in dict.fromkeys(job_B)
           if job is not None and len(job[1]) <= base.TASKS[cfg.name].longest]
  replies = judge([(by_id[key], answer) for key, answer in short],
                  cfg.step_seconds if seconds is None else seconds)
  reply_of = dict(zip(short, replies, strict=True))
  wrong = {"correct": False, "vote": ""}
  reply_B = [reply_of.get(job, wrong) for job in job_B]
  verdict_B = [wrong if "lost" in reply else reply for reply in reply_B]
  return Graded(
      correct_B=np.array([reply["correct"] for reply in verdict_B], np.float64),
      formatted_B=np.array([job is not None for job in job_B], np.float64),
      vote_B=[reply["vote"] for reply in verdict_B],
      lost=[f"problem {key}: {reply['lost']}: {answer.strip()[:60]!r}"
            for (key, answer), reply in reply_of.items() if "lost" in reply])
