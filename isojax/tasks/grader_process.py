"""Judges answers in a process that may be killed:

  python -m isojax.tasks.grader_process NAME SECONDS

One JSON line in, one out; the first one out says that it is ready, or why not.
It ends with its input, so it does not outlive its parent by more than the job
at hand, and that by no more than the kernel's alarm allows. Started by
grader.py; imports no jax.
"""

import hashlib
import json
import logging
import os
import random
import resource
import signal
import sys

from isojax.tasks import gym
from isojax.tasks import math_answers

MEMORY = 2 * 2**30  # bytes of address space; sympy itself takes 0.1 of them
OUT_OF_MEMORY = 3  # exit code
GRACE = 5.0  # seconds that the parent is given to kill first
MAX_VOTE = 500  # characters; so that a reply fits one atomic write to a pipe


def _math(gold: str, answer: str) -> tuple[bool, str]:
  return math_answers.judge(gold, answer), math_answers.vote(answer)


def _reasoning_gym(generator: str, seed: int, index: int,
                   answer: str) -> tuple[bool, str]:
  return gym.score(generator, seed, index, answer) == 1.0, answer


JUDGES = {  # a name, what to run once, what judges
    "math": (lambda: math_answers.judge("x+1", r"1+\frac{2x}{2}"), _math),
    "reasoning_gym": (gym.generators, _reasoning_gym),
}


def _reply(judge, job: list) -> dict:
  """Whether the answer is right and what it votes for, or why not judged."""
  random.seed(0)  # no verdict depends on what was judged before
  try:
    correct, vote = judge(*job)
  except MemoryError:
    os._exit(OUT_OF_MEMORY)  # what was cached on the way may be half made
  except Exception as error:  # any of the judge's
    return {"lost": f"{type(error).__name__}: {error}"[:MAX_VOTE]}
  if len(vote) > MAX_VOTE:
    vote = hashlib.sha256(vote.encode("utf-8", "surrogatepass")).hexdigest()
  return {"correct": bool(correct), "vote": vote}


def main(name: str, seconds: float) -> None:
  """Serves until its input ends."""
  # What libraries print or read must not touch the two pipes.
  jobs, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
  null = os.open(os.devnull, os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  send = lambda reply: os.write(replies, json.dumps(reply).encode() + b"\n")
  logging.disable(logging.CRITICAL)  # formatting a huge number can hang
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, unlike
  load, judge = JUDGES[name]  # Python's handlers even within one C call
  try:
    load()
  except Exception as error:  # any of its imports'
    send({"refused": f"{type(error).__name__}: {error}"[:MAX_VOTE]})
    return
  send({"ready": os.getpid()})
  for line in jobs:
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE)
    reply = _reply(judge, json.loads(line))
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    send(reply)


if __name__ == "__main__":
  main(sys.argv[1], float(sys.argv[2]))
