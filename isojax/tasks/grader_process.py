"""Judges answers in a process that may be killed; tasks.grader starts it:

  python -m isojax.tasks.grader_process TASK SECONDS SOURCE

It reads one numbered job per line, and writes one reply per line with the
number of the job, both JSON. Its first line is "ready", or "refused" with the
reason. It ends at the end of its input, so it outlives its parent by at most
one job, whose time an alarm limits. Its children are killed when it ends. The
module does not import jax.
"""

import ctypes
import hashlib
import json
import logging
import os
import random
import resource
import signal
import sys

from isojax.errors import InputError
from isojax.tasks import base
from isojax.tasks.problem import Problem

MEMORY = 2 * 2**30  # bytes of address space; sympy itself takes a tenth
OUT_OF_MEMORY = 3  # exit code
KILL_GRACE_SECONDS = 5.0  # after the limit, for the parent to kill first
PR_SET_PDEATHSIG = 1  # option of prctl: a signal at the parent's end
MAX_TEXT = 500  # characters, so that a reply fits one atomic write to a pipe


def _why(error: Exception) -> str:
  name = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
  return f"{name}{error}"[:MAX_TEXT]


def reply_of(correct, vote: str, parts: dict | None = None) -> dict:
  """The reply with the verdict that a judge has returned."""
  return {"correct": correct if isinstance(correct, float) else bool(correct),
          "vote": vote, "parts": parts or {}}


def _reply(judge, source: dict, job: list) -> dict:
  """{correct, vote, parts[, failed: why]}.

  An answer for which the judge raises is incorrect.
  """
  random.seed(0)  # so that no verdict depends on earlier answers
  try:
    problem, answer = job
    correct, vote, *parts = judge(Problem(*problem), answer, source)
  except MemoryError:
    os._exit(OUT_OF_MEMORY)  # caches of libraries may be incomplete
  except Exception as error:  # the judge raises any type
    return {"correct": False, "vote": "", "parts": {}, "failed": _why(error)}
  if len(vote) > MAX_TEXT:
    vote = hashlib.sha256(vote.encode("utf-8", "surrogatepass")).hexdigest()
  return reply_of(correct, vote, *parts)


def _watch() -> None:
  """Starts a process that kills this process' group when this process ends."""
  if sys.platform != "linux" or os.getpgrp() != os.getpid():
    return
  judge, ended = os.getpid(), {signal.SIGUSR1}
  signal.pthread_sigmask(signal.SIG_BLOCK, ended)
  if os.fork() == 0:
    os.closerange(0, 256)  # or its copies of the pipes would keep them open
    # Asks for SIGUSR1 when the judge ends, which may have happened already.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() == judge:
      signal.sigwait(ended)
    os.killpg(0, signal.SIGKILL)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, ended)


def main(name: str, seconds: float, source: dict) -> None:
  """Judges jobs until the input ends."""
  _watch()
  # Libraries that print or read must not use the two pipes.
  jobs, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
  null = os.open(os.devnull, os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)

  def send(reply: dict) -> None:
    os.write(replies, json.dumps(reply).encode() + b"\n")

  logging.disable(logging.CRITICAL)  # formatting a huge number can hang
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  # The default action ends the process even within one C call, unlike a
  # handler of Python's.
  signal.signal(signal.SIGALRM, signal.SIG_DFL)
  task = base.TASKS[name]
  try:
    task.warm_up(source)
  except Exception as error:  # imports raise any type
    send({"refused": _why(error)})
    return
  judge = os.getpid()
  send({"ready": judge})
  for line in jobs:
    number, job = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, seconds + KILL_GRACE_SECONDS)
    reply = _reply(task.judge, source, job)
    if os.getpid() != judge:  # a child that the reward forked came back here
      os._exit(0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    send(reply | {"job": number})


if __name__ == "__main__":
  main(sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3]))
