"""Responses to rewards: extract the answer, judge it, never wait for long.

Mathematics and reasoning-gym run other people's code on whatever a policy
writes, so they judge in processes with a limit on wall clock and memory. One
that exceeds it is killed and replaced; its answer is wrong and is reported.
Verdicts depend neither on the number of processes nor on the order, as long as
no answer is lost.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import selectors
import subprocess
import sys
import time
from typing import Callable

import numpy as np

from isojax.errors import InputError
from isojax.tasks import countdown
from isojax.tasks import answer_extraction as answer_extraction_lib
from isojax.tasks import gym
from isojax.tasks import grader_process as grader_process_lib
from isojax.tasks.problem import Problem

EXTRAS = {"math": "math", "reasoning_gym": "gym"}  # of setup.py; need a worker
MODULES = {"math": "math_verify", "reasoning_gym": "reasoning_gym"}
NAMES = ("countdown", *EXTRAS)
START_SECONDS = 120.0  # for the first workers to import what they need
MAX_CHARACTERS = 8192  # a longer answer is wrong, unread: a job fits a pipe


@dataclasses.dataclass(frozen=True)
class Graded:
  """B responses; a response without an answer is wrong and has no vote."""

  correct_B: np.ndarray  # float64, 1.0 or 0.0
  formatted_B: np.ndarray  # float64, 1.0 where an answer stood where it should
  vote_B: list[str]  # what maj@k counts, "" is no vote
  lost: list[str]  # a line for each distinct answer that was not judged


@dataclasses.dataclass(frozen=True)
class GraderConfig:
  name: str  # how answers are judged: countdown, math or reasoning_gym
  answer: str  # where they stand: whole, boxed, hash or tags
  workers: int  # processes that judge; countdown needs none
  seconds: float  # wall clock that an answer may take, then it is wrong
  step_seconds: float  # that all of a step may take, the rest is then wrong

  def __post_init__(self):
    for field, known in (("name", NAMES), ("answer", answer_extraction_lib.KINDS)):
      value = getattr(self, field)
      if value not in known:
        raise InputError(f"grader.{field}={value!r}: expected one of "
                         f"{', '.join(known)}")
    if self.name in MODULES and not importlib.util.find_spec(
        MODULES[self.name]):
      raise InputError(f"grader.name={self.name!r} needs the extra: pip "
                       f"install 'isojax[{EXTRAS[self.name]}]'")
    if self.workers < 1:
      raise InputError(f"grader.workers={self.workers}: expected at least 1")
    if not 0 < self.seconds <= self.step_seconds < float("inf"):
      raise InputError(
          f"grader: seconds={self.seconds}, step_seconds={self.step_seconds}: "
          "expected 0 < seconds <= step_seconds, both finite")


@dataclasses.dataclass
class _Worker:
  """A process, and what it is at."""

  process: subprocess.Popen
  ready: bool = False  # has imported what it needs
  job: int | None = None
  deadline: float = float("inf")  # of the job, on time.monotonic


class _Pool:
  """cfg.workers processes; a place is None after one that did not start."""

  def __init__(self, cfg: GraderConfig):
    self.cfg = cfg
    self.selector = selectors.DefaultSelector()
    self.workers = [None] * cfg.workers

  def start(self, place: int) -> None:
    """Starts a process; when it is ready it will say so."""
    ours = str(pathlib.Path(__file__).parents[2])
    path = [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", grader_process_lib.__name__, self.cfg.name,
         str(self.cfg.seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, bufsize=0,
        # Sets are then walked in one order; arithmetic needs no threads.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path),
                          "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True)  # Ctrl-C is for the parent to deal with
    self.workers[place] = _Worker(process)
    self.selector.register(process.stdout, selectors.EVENT_READ, place)

  def stop(self, place: int) -> int:
    """Kills a process, frees its place; the exit code, as subprocess has it."""
    process = self.workers[place].process
    self.workers[place] = None
    self.selector.unregister(process.stdout)
    process.kill()
    process.stdin.close()
    process.stdout.close()
    return process.wait()

  def replace(self, place: int) -> int:
    """Stops a process, and starts another one if the machine lets us."""
    code = self.stop(place)
    with contextlib.suppress(OSError):
      self.start(place)
    return code

  def receive(self, seconds: float):
    """(place, message) of those that spoke in time; None is no message."""
    for key, _ in self.selector.select(max(0.0, seconds)):
      try:
        # A reply is one atomic write, so a part of one is no reply.
        message = json.loads(os.read(key.fd, 65536))
      except ValueError:
        message = None
      yield key.data, message if isinstance(message, dict) else None

  def open(self) -> None:
    """Waits until each process is ready; InputError if one never will be."""
    end = time.monotonic() + START_SECONDS
    for place in range(self.cfg.workers):
      self.start(place)
    while not all(worker.ready for worker in self.workers):
      heard = list(self.receive(end - time.monotonic()))
      for place, message in heard or [(0, {"refused": "it says nothing"})]:
        if message is None or "ready" not in message:
          why = message["refused"] if message else (
              f"exit code {self.stop(place)}")
          raise InputError(
              f"grader.name={self.cfg.name!r}: the process that judges does "
              f"not start ({why}); is what it needs installed? pip install "
              f"'isojax[{EXTRAS[self.cfg.name]}]'")
        self.workers[place].ready = True

  def close(self) -> None:
    for place, worker in enumerate(self.workers):
      if worker is not None:
        self.stop(place)
    self.selector.close()

  def judge(self, jobs: list[list], seconds: float) -> list[dict]:
    """A reply {correct, vote} or {lost: why} to each, within `seconds`."""
    cfg, end = self.cfg, time.monotonic() + seconds
    late = f"not judged within step_seconds={cfg.step_seconds}"
    replies = [{"lost": late}] * len(jobs)
    waiting = collections.deque(range(len(jobs)))
    for place, worker in enumerate(self.workers):
      if worker is None:
        with contextlib.suppress(OSError):
          self.start(place)
      elif worker.job is not None:  # by a call that was interrupted
        self.replace(place)
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
        self._take(place, message, replies)
      now = min(time.monotonic(), end)
      for place, worker in enumerate(self.workers):
        if worker is not None and now >= worker.deadline:
          replies[worker.job] = {"lost": f"took longer than {cfg.seconds} s"}
          self.replace(place)
    for place, worker in enumerate(self.workers):
      if worker is not None and worker.job is not None:
        self.replace(place)
    return replies

  def _hand_out(self, place: int, jobs: list[list], waiting) -> None:
    """Gives the next job to a process that waits for one."""
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

  def _take(self, place: int, message: dict | None, replies: list) -> None:
    """Files what a process said; replaces it if it said nothing sensible."""
    worker = self.workers[place]
    if message is not None and not worker.ready and "ready" in message:
      worker.ready = True
    elif message is not None and worker.job is not None:
      replies[worker.job] = message
      worker.job, worker.deadline = None, float("inf")
    else:
      # One that cannot start now is left to the next step.
      code = (self.replace if worker.ready else self.stop)(place)
      if worker.job is not None:
        replies[worker.job] = {"lost": "used too much memory"
                               if code == grader_process_lib.OUT_OF_MEMORY else
                               f"its process died, exit code {code}"}


def _countdown(jobs: list[tuple[Problem, str]], seconds: float) -> list[dict]:
  del seconds  # microseconds an answer
  return [dict(zip(("correct", "vote"), countdown.judge(*job)))
          for job in jobs]


@contextlib.contextmanager
def opened(cfg: GraderConfig, source: dict):
  """grade(problems, text_B) -> Graded, as long as the context lasts.

  Args:
    cfg: how to judge.
    source: of the problems; of reasoning-gym it has generator and seed.

  Yields:
    grade(problems, text_B, seconds): of problems and their texts, problem-
      major; what is not judged within so many seconds is lost, by default
      cfg.step_seconds.

  Raises:
    InputError: what judges is not installed, or refuses the generator.
  """
  address = []
  if cfg.name == "reasoning_gym":
    if "generator" not in source:
      raise InputError("grader.name='reasoning_gym' judges only problems of a "
                       "generator of reasoning-gym; choose one as the source "
                       "of problems, or another grader")
    gym.check(source["generator"])
    address = [source["generator"], source["seed"]]
  if cfg.name == "countdown":
    yield functools.partial(_grade, cfg, _countdown)
    return

  def judge(jobs, seconds):
    return pool.judge([
        [*address, problem.id if address else problem.answer, answer]
        for problem, answer in jobs], seconds)

  pool = _Pool(cfg)
  try:
    pool.open()
    yield functools.partial(_grade, cfg, judge)
  finally:
    pool.close()


def _grade(cfg: GraderConfig, judge: Callable, problems: list[Problem],
           text_B: list[str], *, seconds: float | None = None) -> Graded:
  """Judges each distinct (problem, answer) once."""
  n, by_id = len(text_B) // len(problems), {p.id: p for p in problems}
  job_B = []
  for i, text in enumerate(text_B):
    answer = answer_extraction_lib.extract(text, cfg.answer)
    if answer is not None and cfg.name != "countdown":  # has rules on space
      answer = answer.strip()
    job_B.append(None if answer is None else (problems[i // n].id, answer))
  short = [job for job in dict.fromkeys(job_B)
           if job is not None and len(job[1]) <= MAX_CHARACTERS]
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
      lost=[f"problem {key}: {reply['lost']}: {answer[:60]!r}"
            for (key, answer), reply in reply_of.items() if "lost" in reply])
