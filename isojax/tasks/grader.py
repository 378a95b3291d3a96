"""Grades responses: finds the answer in each text and has the task judge it.

A task whose judge runs other people's code judges in processes with limits on
wall clock and memory. A process that exceeds a limit is killed and replaced,
with all that it started; its answer is judged once more, after the others. If
that fails too, the answer is wrong: it is one that the judge cannot read. A
reward of one's own may have failed itself, so its answer is lost: it has no
verdict, and neither has an answer that step_seconds did not suffice for.
Verdicts depend neither on the number of processes nor on the order of answers.
"""

import collections
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time

import numpy as np

from isojax.errors import InputError
from isojax.tasks import answer_extraction, base, grader_process, python_reward
from isojax.tasks.problem import Problem


@dataclasses.dataclass(frozen=True)
class Graded:
  """Verdicts on B responses; without an answer: wrong, and no vote."""

  # float64, 1.0 or 0.0; the reward in [0, 1] of a task that grades answers.
  correct_B: np.ndarray
  formatted_B: np.ndarray  # float64, 1.0 where an answer was found
  vote_B: list[str]  # what maj@k counts, "" is no vote
  judged_B: np.ndarray  # bool, False without a verdict
  # A line for each distinct answer that was not judged, or by a failure.
  lost: list[str]


@dataclasses.dataclass(frozen=True)
class GraderConfig:
  name: str  # of the task that judges, a key of tasks.base.TASKS
  answer: str  # where answers are: whole, boxed, hash or tags
  workers: int  # processes that judge; countdown needs none
  seconds: float  # wall clock for one answer, of which there are two tries
  step_seconds: float  # for all answers of a step; the rest is then lost
  # FILE.py:FUNCTION of a reward of one's own; "" for the other tasks.
  file: str = ""

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
          f"goes with name='python', such as {python_reward.EXAMPLE}; set "
          "both, or file=''")
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


SHOWN = 5  # lines about answers that were not judged, of a step
START_SECONDS = 120.0  # for the first processes to import what they need


@dataclasses.dataclass
class _Worker:
  """A process and the job it was given."""

  process: subprocess.Popen
  ready: bool = False  # has imported what it needs
  job: int | None = None
  deadline: float = float("inf")  # of the job, on time.monotonic


class Pool:
  """Up to cfg.workers processes; a place whose process failed is None."""

  def __init__(self, cfg: GraderConfig, source: dict):
    self.cfg, self.source = cfg, source
    self.selector = selectors.DefaultSelector()
    self.workers = [None] * cfg.workers

  def start(self, place: int) -> None:
    """Starts a process, which sends a message when it is ready."""
    ours = str(pathlib.Path(__file__).parents[2])
    path = [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", grader_process.__name__, self.cfg.name,
         str(self.cfg.seconds), json.dumps(self.source)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, bufsize=0,
        # A fixed order of sets; arithmetic needs no threads.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path),
                          "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True)  # Ctrl-C is handled by the parent alone
    self.workers[place] = _Worker(process)
    self.selector.register(process.stdout, selectors.EVENT_READ, place)

  def stop(self, place: int) -> int:
    """Kills a process, frees its place and returns its exit code."""
    process = self.workers[place].process
    self.workers[place] = None
    self.selector.unregister(process.stdout)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)  # its session: what it started
    process.stdin.close()
    process.stdout.close()
    return process.wait()

  def replace(self, place: int) -> int:
    """Stops a process, starts another one if possible; the old exit code."""
    code = self.stop(place)
    with contextlib.suppress(OSError):
      self.start(place)
    return code

  def receive(self, seconds: float):
    """Yields (place, message) of each process that wrote within `seconds`.

    The message is None if a process ended or wrote something else.
    """
    for key, _ in self.selector.select(max(0.0, seconds)):
      try:
        # A reply is one atomic write, so a part of one is no reply.
        message = json.loads(os.read(key.fd, 65536))
      except ValueError:
        message = None
      yield key.data, message if isinstance(message, dict) else None

  def open(self) -> None:
    """Waits until all processes are ready; InputError if one cannot start."""
    end = time.monotonic() + START_SECONDS
    needs = base.TASKS[self.cfg.name].needs
    remedy = ("; is what it needs installed? "
              f"pip install -e '.[{needs[1]}]'" if needs else
              f"; correct grader.file={self.cfg.file}" if self.cfg.file else "")
    for place in range(self.cfg.workers):
      self.start(place)
    while not all(worker.ready for worker in self.workers):
      heard = list(self.receive(end - time.monotonic()))
      for place, message in heard or [(0, {
          "refused": f"no answer within {START_SECONDS:g} s"})]:
        if message is None or "ready" not in message:
          why = message["refused"] if message else (
              f"exit code {self.stop(place)}")
          raise InputError(
              f"grader.name={self.cfg.name!r}: the process that judges does "
              f"not start ({why}){remedy}")
        self.workers[place].ready = True

  def close(self) -> None:
    """Kills all processes."""
    for place, worker in enumerate(self.workers):
      if worker is not None:
        self.stop(place)
    self.selector.close()

  def judge(self, jobs: list[list], seconds: float) -> list[dict]:
    """{correct, vote, failed: why}, or {lost: why}, for each job.

    Args:
      jobs: of the processes.
      seconds: for all of them.
    """
    cfg, end = self.cfg, time.monotonic() + seconds
    late = f"not judged within step_seconds={cfg.step_seconds}"
    replies = [{"lost": late}] * len(jobs)
    waiting, tried = collections.deque(range(len(jobs))), set()

    def fail(job: int, why: str) -> None:
      """Tries a job once more, after the others."""
      replies[job] = ({"lost": why} if base.TASKS[cfg.name].read else
                      {"correct": False, "vote": "", "failed": why})
      if job not in tried:
        tried.add(job)
        waiting.append(job)

    self._free()  # of a call that was interrupted
    while True:
      for place in range(cfg.workers):
        self._hand_out(place, jobs, waiting)
      at_work = [worker for worker in self.workers if worker is not None
                 and (worker.job is not None or waiting)]
      now = time.monotonic()
      if not at_work or now >= end:
        break
      until = min([end, *(worker.deadline for worker in at_work)])
      for place, message in self.receive(until - now):
        self._take(place, message, replies, fail)
      now = min(time.monotonic(), end)
      for place, worker in enumerate(self.workers):
        if worker is not None and now >= worker.deadline:
          fail(worker.job, f"took longer than {cfg.seconds} s")
          self.replace(place)
    self._free()
    return replies

  def _free(self) -> None:
    """Replaces the processes that have a job, and starts those that ended."""
    for place, worker in enumerate(self.workers):
      if worker is None:
        with contextlib.suppress(OSError):
          self.start(place)
      elif worker.job is not None:
        self.replace(place)

  def _hand_out(self, place: int, jobs: list[list], waiting) -> None:
    """Gives the next job to a process that is ready and has none."""
    worker = self.workers[place]
    if worker is None or not worker.ready or worker.job is not None:
      return
    if waiting:
      line = json.dumps(jobs[waiting[0]]).encode() + b"\n"
      try:
        os.write(worker.process.stdin.fileno(), line)
      except BrokenPipeError:  # it died idle; receive() will notice
        return
      worker.job = waiting.popleft()
      worker.deadline = time.monotonic() + self.cfg.seconds

  def _take(self, place: int, message: dict | None, replies: list,
            fail) -> None:
    """Stores what a process wrote; replaces the process if it is no reply."""
    worker = self.workers[place]
    if message is not None and not worker.ready and "ready" in message:
      worker.ready = True
    elif message is not None and worker.job is not None:
      replies[worker.job] = message
      worker.job, worker.deadline = None, float("inf")
    else:
      # One that cannot start now is started again in the next step.
      code = (self.replace if worker.ready else self.stop)(place)
      if worker.job is not None:
        fail(worker.job, "used too much memory"
             if code == grader_process.OUT_OF_MEMORY else
             f"its process died, exit code {code}")


def with_reward(cfg: GraderConfig, source: dict) -> dict:
  """The source with the file of cfg, if the task has one.

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
  pool = Pool(dataclasses.replace(cfg, workers=1), with_reward(cfg, source))
  try:
    pool.open()
    replies = _judge_in_pool(pool, [(problem, answer) for answer in answers],
                             cfg.step_seconds)
  finally:
    pool.close()
  for answer, reply in zip(answers, replies, strict=True):
    if why := _why(reply):
      raise InputError(
          f"task.grader.file={cfg.file}: tried on problem {problem.id} and the "
          f"answer {answer!r:.60}: {why}; correct the function")


def _why(reply: dict) -> str | None:
  """Why an answer was not judged as it should be."""
  return next((reply[key] for key in ("lost", "failed") if key in reply), None)


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
  pool = Pool(cfg, source)
  try:
    pool.open()
    yield functools.partial(_grade, cfg, functools.partial(
        _judge_in_pool, pool))
  finally:
    pool.close()


def _judge_here(task: base.Task, source: dict, jobs: list, _) -> list[dict]:
  """The replies of a judge that needs no process and no limit."""
  replies = []
  for problem, answer in jobs:
    correct, vote = task.judge(problem, answer, source)
    replies.append({"correct": correct, "vote": vote})
  return replies


def _judge_in_pool(pool: Pool, jobs: list,
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
  judged_B = np.array(["lost" not in reply for reply in reply_B], bool)
  verdict_B = [reply if judged else wrong
               for reply, judged in zip(reply_B, judged_B, strict=True)]
  return Graded(
      correct_B=np.array([reply["correct"] for reply in verdict_B], np.float64),
      formatted_B=np.array([job is not None for job in job_B], np.float64),
      vote_B=[reply["vote"] for reply in verdict_B], judged_B=judged_B,
      lost=[f"problem {key}: {why}: {answer.strip()[:60]!r}"
            for (key, answer), reply in reply_of.items()
            if (why := _why(reply))])


def shown(lost: list[str]) -> list[str]:
  """The first lines of `Graded.lost`, which may have thousands."""
  more = len(lost) - SHOWN
  return lost[:SHOWN] + ([f"and {more} more answers"] if more > 0 else [])
