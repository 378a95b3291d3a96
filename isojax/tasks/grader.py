"""Grades responses: extracts each answer, and calls the task's judge.

A judge that needs limits on time and memory runs in processes. An answer whose
process dies or is too slow is judged once more, after the other answers. If
that happens again, or if the judge raises there, the answer is incorrect or,
with a custom reward, has no verdict. An error of a judge that runs here ends
the run. Verdicts depend neither on the number of processes nor on the order of
answers.
"""

import collections
from collections.abc import Callable
from concurrent import futures
import contextlib
import dataclasses
import functools
import importlib.util
import json
from multiprocessing import connection
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np

from isojax.core import identity
from isojax.errors import InputError
from isojax.tasks import answer_extraction, base, grader_process, python_reward
from isojax.tasks.problem import Problem


@dataclasses.dataclass(frozen=True)
class Graded:
  """Verdicts on B responses; one without an answer is incorrect, no vote."""

  # float64, 1.0 or 0.0, or a grade in [0, 1] if the task gives grades.
  correct_B: np.ndarray
  formatted_B: np.ndarray  # float64, 1.0 where an answer was found
  vote_B: list[str]  # what maj@k counts, "" is no vote
  judged_B: np.ndarray  # bool, False: no verdict
  raised_B: np.ndarray  # bool, a custom reward raised: no verdict
  parts_B: list[dict]  # name -> part of a custom reward; {}: no parts
  lost: list[str]  # line for each distinct answer with a failure or no verdict

  def take(self, index: np.ndarray) -> "Graded":
    """The verdicts at an array of positions, with all lines of `lost`."""
    return Graded(
        correct_B=self.correct_B[index], formatted_B=self.formatted_B[index],
        vote_B=[self.vote_B[i] for i in index], judged_B=self.judged_B[index],
        raised_B=self.raised_B[index],
        parts_B=[self.parts_B[i] for i in index], lost=self.lost)

  @classmethod
  def concatenate(cls, parts: list["Graded"]) -> "Graded":
    columns = {field.name: [getattr(part, field.name) for part in parts]
               for field in dataclasses.fields(cls)}
    return cls(**{
        name: (np.concatenate(column) if isinstance(column[0], np.ndarray)
               else sum(column, [])) for name, column in columns.items()})


MAX_WORKERS = 1024  # of one host
MAX_SECONDS = 86_400.0  # a day; timers of the system end at 292 years


@dataclasses.dataclass(frozen=True)
class GraderConfig:
  name: str  # of the task that judges, a key of tasks.base.TASKS
  answer: str  # kind of extraction, a key of answer_extraction.KINDS
  # Number of processes, for tasks that need them.
  workers: int = dataclasses.field(metadata=identity.NOTHING)
  seconds: float  # wall time for one try of an answer, which has two tries
  step_seconds: float  # for all answers of a step; the rest has no verdict
  # FILE.py:FUNCTION of a custom reward; "" for other tasks.
  file: str = dataclasses.field(default="", metadata=identity.CONTENT)

  def __post_init__(self):
    for field, known in (("name", base.TASKS),
                         ("answer", answer_extraction.KINDS)):
      value = getattr(self, field)
      if value not in known:
        raise InputError(f"grader.{field}={value!r}: expected one of "
                         f"{', '.join(known)}")
    if (base.TASKS[self.name].read is None) != (not self.file):
      raise InputError(
          f"grader.name={self.name!r} with file={self.file!r}: a file goes "
          f"with name='python', such as {python_reward.EXAMPLE}; set both, or "
          "file=''")
    if not 1 <= self.workers <= MAX_WORKERS:
      raise InputError(f"grader.workers={self.workers}: expected 1 to "
                       f"{MAX_WORKERS:,} processes")
    if not 0 < self.seconds <= self.step_seconds <= MAX_SECONDS:
      raise InputError(
          f"grader.seconds={self.seconds}, step_seconds={self.step_seconds}: "
          f"expected 0 < seconds <= step_seconds <= {MAX_SECONDS:,}")


INCORRECT = {"correct": False, "vote": "", "parts": {}}  # without an answer
# Share of a step's or an evaluation's answers at which a custom reward raises,
# above which the run stops.
MAX_RAISED = 0.1
START_SECONDS = 120.0  # limit for the first processes and their imports
START_POLL_SECONDS = 0.1  # of one wait for a process that starts again


class _Worker:
  """A process with a judge; it is started again after a failure."""

  def __init__(self, cfg: GraderConfig, source: dict):
    self.cfg, self.source = cfg, source
    self.process, self.ready, self.sent = None, False, 0  # sent: jobs

  def start(self) -> None:
    """Starts the process, which sends a message when it is ready."""
    root = str(pathlib.Path(__file__).parents[2])  # of the package
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    self.ready = False
    self.process = subprocess.Popen(
        [sys.executable, "-m", grader_process.__name__, self.cfg.name,
         str(self.cfg.seconds), json.dumps(self.source)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, bufsize=0,
        # A fixed order of sets; no threads, which judges do not need.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path),
                          "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True)  # Ctrl-C is handled by the parent alone

  def stop(self) -> int | None:
    """Kills the process and its children; returns its exit code."""
    process, self.process = self.process, None
    if process is None:
      return None
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    process.stdout.close()
    return process.wait()

  def receive(self, seconds: float) -> dict | None:
    """A message; None after `seconds`; ValueError if the process has ended."""
    stdout = self.process.stdout
    if not connection.wait([stdout], max(0.0, seconds)):
      return None
    # A message is one atomic write, so one read gets all of it.
    return json.loads(os.read(stdout.fileno(), 65536))

  def is_ready(self) -> bool:
    """Whether the process is ready; OSError or ValueError if it has ended."""
    if self.process is None:
      self.start()
    self.ready = self.ready or "ready" in (
        self.receive(START_POLL_SECONDS) or {})
    return self.ready

  def ask(self, job: list, seconds: float) -> dict:
    """The reply to a job, or {"why": why there is none}."""
    self.sent += 1
    try:
      os.write(self.process.stdin.fileno(),
               json.dumps([self.sent, job]).encode() + b"\n")
      reply = self.receive(seconds)
    except (OSError, ValueError):
      code = self.stop()
      return {"why": "used too much memory"
              if code == grader_process.OUT_OF_MEMORY else
              f"its process died, exit code {code}"}
    if reply is None:
      self.stop()
      return {"why": f"took longer than {self.cfg.seconds} s"}
    if not _is_reply(reply, self.sent):
      self.stop()
      return {"why": "something else than the grader wrote to its pipe"}
    return reply


def _is_reply(reply, job: int) -> bool:
  """Whether a message is the verdict on a job, with a reward in [0, 1].

  A custom reward runs in the process that writes to the pipe, so it or its
  children may write other messages there.
  """
  return (isinstance(reply, dict)
          and {"job", "correct", "vote", "parts"} <= reply.keys()
          and reply["job"] == job and isinstance(reply["vote"], str)
          and isinstance(reply["correct"], (bool, float))
          and 0 <= reply["correct"] <= 1 and isinstance(reply["parts"], dict)
          and all(isinstance(part, float) and 0 <= part <= 1
                  for part in reply["parts"].values()))


@contextlib.contextmanager
def _processes(cfg: GraderConfig, source: dict):
  """Yields judge(jobs, seconds) of cfg.workers processes; see `_judge`."""
  workers = [_Worker(cfg, source) for _ in range(cfg.workers)]
  needs = base.TASKS[cfg.name].needs
  remedy = ("; is what it needs installed? "
            f"pip install -e '.[{needs[1]}]'" if needs else
            f"; correct grader.file={cfg.file}" if cfg.file else "")
  end = time.monotonic() + START_SECONDS
  try:
    for worker in workers:
      worker.start()
    for worker in workers:
      try:
        message = worker.receive(end - time.monotonic()) or {
            "refused": f"no answer within {START_SECONDS:g} s"}
      except ValueError:
        message = {"refused": f"exit code {worker.stop()}"}
      if "refused" in message:
        raise InputError(
            f"grader.name={cfg.name!r}: the process that judges does not start "
            f"({message['refused']}){remedy}")
      worker.ready = True
    with futures.ThreadPoolExecutor(cfg.workers) as threads:
      yield functools.partial(_judge, cfg, workers, threads)
  finally:
    for worker in workers:
      worker.stop()


def _judge(cfg: GraderConfig, workers: list[_Worker], threads, jobs: list,
           seconds: float) -> list[dict]:
  """{correct, vote, parts[, failed or lost: why]} for each (problem, answer).

  All answers together take at most `seconds`. Each worker has a thread.
  """
  end = time.monotonic() + seconds
  failure = "lost" if base.TASKS[cfg.name].read else "failed"
  replies = [INCORRECT | {
      "lost": f"not judged within step_seconds={cfg.step_seconds}"}] * len(jobs)

  def work(worker: _Worker) -> None:
    while waiting and time.monotonic() < end:
      try:
        if not worker.is_ready():
          continue
      except (OSError, ValueError):
        worker.stop()  # is started again in the next step
        return
      try:
        job = waiting.popleft()
      except IndexError:
        return
      problem, answer = jobs[job]
      limit = min(cfg.seconds, end - time.monotonic())
      reply = worker.ask([dataclasses.astuple(problem), answer], limit)
      if "why" not in reply:
        replies[job] = reply
      elif time.monotonic() < end:
        retry.append(job)
        replies[job] = INCORRECT | {failure: reply["why"]}

  retry = range(len(jobs))
  for _ in range(2):  # tries
    waiting, retry = collections.deque(retry), []
    try:
      list(threads.map(work, workers))
    finally:
      waiting.clear()  # after Ctrl-C
  for worker in workers:
    if worker.process is None:
      with contextlib.suppress(OSError):
        worker.start()
  return replies


def check_installed(cfg: GraderConfig) -> None:
  """InputError without the library of the judge.

  Not of a config: launch.compile reads one and judges nothing.
  """
  needs = base.TASKS[cfg.name].needs
  if needs and not importlib.util.find_spec(needs[0]):
    raise InputError(f"grader.name={cfg.name!r} needs the extra: "
                     f"pip install -e '.[{needs[1]}]'")


def with_reward(cfg: GraderConfig, source: dict) -> dict:
  """The source with the custom reward of cfg.file, unless it has one."""
  check_installed(cfg)
  read = base.TASKS[cfg.name].read
  if read is None or "reward" in source:
    return source
  return source | {"reward": read(cfg.file)}


def probe(cfg: GraderConfig, source: dict, problem: Problem) -> None:
  """Tries a custom reward on two answers; InputError if it fails."""
  if base.TASKS[cfg.name].read is None:
    return
  answers = (problem.answer, "?")
  with _processes(dataclasses.replace(cfg, workers=1),
                  with_reward(cfg, source)) as judge:
    replies = judge([(problem, answer) for answer in answers],
                    cfg.step_seconds)
  for answer, reply in zip(answers, replies, strict=True):
    if why := _why(reply):
      raise InputError(
          f"task.grader.file={cfg.file}: tried on problem {problem.id} and the "
          f"answer {answer!r:.60}: {why}; correct the function")


def _why(reply: dict) -> str | None:
  """Why an answer has no verdict, or why the judge failed; None: neither."""
  return next((reply[key] for key in ("lost", "failed") if key in reply), None)


@contextlib.contextmanager
def opened(cfg: GraderConfig, source: dict):
  """Yields grade(problems, text_B, seconds=cfg.step_seconds) -> Graded.

  Texts are in the order of the problems, all of one problem together. Answers
  that are not judged within `seconds` have no verdict. `source` is that of the
  problems, see base.Task; cfg.file is read unless `with_reward` has added it.
  """
  task = base.TASKS[cfg.name]
  task.check_source(source)
  source = with_reward(cfg, source)
  if not task.process:
    yield functools.partial(_grade, cfg, functools.partial(
        _judge_here, task, source))
    return
  with _processes(cfg, source) as judge:
    yield functools.partial(_grade, cfg, judge)


def _judge_here(task: base.Task, source: dict, jobs: list, _) -> list[dict]:
  """The replies of a judge that needs no process and no limit."""
  return [grader_process.reply_of(*task.judge(problem, answer, source))
          for problem, answer in jobs]


def _grade(cfg: GraderConfig, judge: Callable, problems: list[Problem],
           text_B: list[str], *, seconds: float | None = None) -> Graded:
  """Judges each distinct job, a (problem id, answer), once."""
  n, by_id = len(text_B) // len(problems), {p.id: p for p in problems}
  job_B = []
  for i, text in enumerate(text_B):
    answer = answer_extraction.extract(text, cfg.answer)
    job_B.append(None if answer is None else (problems[i // n].id, answer))
  limit = base.TASKS[cfg.name].max_characters
  jobs = [job for job in dict.fromkeys(job_B)
          if job is not None and len(job[1]) <= limit]
  replies = judge([(by_id[id_], answer) for id_, answer in jobs],
                  cfg.step_seconds if seconds is None else seconds)
  reply_of = dict(zip(jobs, replies, strict=True))
  reply_B = [reply_of.get(job, INCORRECT) for job in job_B]
  # Where a judge of ours raises, the answer is incorrect.
  custom = base.TASKS[cfg.name].read is not None
  raised_B = np.array([custom and "failed" in reply for reply in reply_B], bool)
  return Graded(
      correct_B=np.array([reply["correct"] for reply in reply_B], np.float64),
      formatted_B=np.array([job is not None for job in job_B], np.float64),
      vote_B=[reply["vote"] for reply in reply_B],
      judged_B=~raised_B & ["lost" not in reply for reply in reply_B],
      raised_B=raised_B,
      parts_B=[reply["parts"] for reply in reply_B],
      lost=[f"problem {id_}: {why}: {answer.strip()[:60]!r}"
            for (id_, answer), reply in reply_of.items()
            if (why := _why(reply))])


def in_one_line(lost: list[str]) -> str:
  """The first line of `Graded.lost`, and the number of the others."""
  more = f"; and {len(lost) - 1} more answers" if len(lost) > 1 else ""
  return f"{lost[0]}{more}" if lost else "said before"


def check_raised(graded: Graded, cfg: GraderConfig) -> None:
  """InputError if a custom reward raised at more than MAX_RAISED of all."""
  raised, B = int(graded.raised_B.sum()), len(graded.raised_B)
  if raised <= MAX_RAISED * B:
    return
  path = cfg.file.rpartition(":")[0]
  lines = [line for line in graded.lost if path in line] or graded.lost
  raise InputError(
      f"task.grader.file={cfg.file}: raised, or returned no number in [0, 1], "
      f"at {raised} of {B} answers: {in_one_line(lines)}; expected at most "
      f"{MAX_RAISED:.0%}. Return a number for every text that a policy may "
      "write, such as 0 for one that cannot be parsed. The file is part of the "
      "run id, so the corrected one needs another --workdir")
