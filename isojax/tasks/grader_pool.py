"""Processes that judge answers, with limits on wall clock and memory.

A process that exceeds a limit is killed and replaced; its answer is lost.
Verdicts depend neither on the number of processes nor on the order of answers.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import subprocess
import sys
import time

from isojax.errors import InputError
from isojax.tasks import base
from isojax.tasks import grader_process

START_SECONDS = 120.0  # for the first processes to import what they need


@dataclasses.dataclass
class _Worker:
  """A process and the job it was given."""

  process: subprocess.Popen
  ready: bool = False  # has imported what it needs
  job: int | None = None
  deadline: float = float("inf")  # of the job, on time.monotonic


class GraderPool:
  """Up to cfg.workers processes; a place whose process failed is None."""

  def __init__(self, cfg, source: dict):
    """Starts nothing yet.

    Args:
      cfg: a grader.GraderConfig.
      source: of the problems, for the task's judge.
    """
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
    process.kill()
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
              f"not start ({why})" + self._remedy())
        self.workers[place].ready = True

  def _remedy(self) -> str:
    """Returns what to do if a process does not start."""
    if self.cfg.file:
      return f"; correct grader.file={self.cfg.file}"
    needs = base.TASKS[self.cfg.name].needs
    return ("; is what it needs installed? "
            f"pip install -e '.[{needs[1]}]'" if needs else "")

  def close(self) -> None:
    """Kills all processes."""
    for place, worker in enumerate(self.workers):
      if worker is not None:
        self.stop(place)
    self.selector.close()

  def judge(self, jobs: list[list], seconds: float) -> list[dict]:
    """Returns {correct, vote} or {lost: why} for each job within `seconds`."""
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

  def _take(self, place: int, message: dict | None, replies: list) -> None:
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
        replies[worker.job] = {"lost": "used too much memory"
                               if code == grader_process.OUT_OF_MEMORY else
                               f"its process died, exit code {code}"}
