"""Samples rollouts and grades them at the same time.

A background thread grades rollouts that have ended while the devices decode the
others.
"""

import concurrent.futures
import contextlib
import time
import typing

import jax
import numpy as np

from isojax import profile
from isojax import progress
from isojax import hosts
from isojax.rl import rewards
from isojax.components import Setup
from isojax.sampling import sampler as sampler_lib
from isojax.preemption import Stop
from isojax.tasks import grader as grader_lib
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts
from isojax.types import Rollouts

WAIT = 0.2  # seconds between two checks for a signal while waiting for verdicts


class Grading(typing.NamedTuple):
  """A grader and the thread that calls it, one call at a time."""

  grade: typing.Callable  # see grader.opened
  thread: concurrent.futures.Executor


@contextlib.contextmanager
def grading(context: Setup):
  """Yields the Grading of a context's problems.

  Calls that have not begun when the context manager ends are cancelled.

  Raises:
    InputError: the grader cannot start.
  """
  source = strata_lib.source(context.stratum.header) | context.reward
  with grader_lib.opened(context.e.task.grader, source) as grade:
    thread = concurrent.futures.ThreadPoolExecutor(1, "grader")
    try:
      yield Grading(profile.stage("score", grade), thread)
    finally:
      thread.shutdown(cancel_futures=True)


def judging(context: Setup, grader: Grading):
  """Returns judged(problems, rollouts) -> Graded, for the grader's thread.

  All calls of it share task.grader.step_seconds.
  """
  left = context.e.task.grader.step_seconds

  def judged(problems, rollouts: Rollouts) -> grader_lib.Graded:
    nonlocal left
    begun = time.monotonic()
    graded = grader.grade(problems, rewards.texts(context.tokenizer, rollouts),
                          seconds=max(0.0, left))
    left -= time.monotonic() - begun
    return graded

  return judged


class Sampled(typing.NamedTuple):
  """Graded rollouts of a step or an evaluation, problem-major."""

  rollouts: Rollouts
  graded: grader_lib.Graded
  seconds_waited: float  # for verdicts, after the last rollout had ended


def graded_rollouts(context: Setup, grader: Grading, params, problems,
                    prompts: Prompts, n: int, key, section, stop: Stop, *,
                    interrupt_B=None, expected_P=None) -> Sampled:
  """Samples and grades n rollouts of each problem.

  Each problem is graded by one process; all processes get all verdicts.

  Args:
    context: of the run.
    grader: its calls share task.grader.step_seconds.
    params: of the policy.
    problems: of the prompts.
    prompts: host arrays.
    n: rollouts of each problem.
    key: the random stream.
    section: of the config, with temperature and top_p.
    stop: checked after each chunk, and while waiting for verdicts.
    interrupt_B, expected_P: see sampler.stream.

  Raises:
    Stopped: a process of the run was asked to stop.
  """
  judged, futures = judging(context, grader), {}
  owner_B = np.arange(len(problems) * n) // n % hosts.count()
  with progress.track(len(owner_B), "sampling", "rollouts",
                      on=hosts.first()) as advance:
    for items, rollouts in sampler_lib.stream(
        context.sampler, params, prompts, n, key,
        temperature=section.temperature, top_p=section.top_p,
        interrupt_B=interrupt_B, expected_P=expected_P):
      stop.poll()
      advance(len(items))
      ours = items[owner_B[items] == hosts.number()]
      if ours.size:
        ended = jax.tree.map(lambda x: x[ours], rollouts)
        futures[grader.thread.submit(
            judged, [problems[i // n] for i in ours], ended)] = ours
  begun = time.perf_counter()
  wait(futures, stop)
  own, lost = [], []
  for future, items in futures.items():
    part = future.result()
    own += zip(items.tolist(), part.correct_B.tolist(),
               part.formatted_B.tolist(), part.vote_B)
    lost += part.lost
  graded = gathered(own, lost, B=len(owner_B))
  return Sampled(rollouts, graded, time.perf_counter() - begun)


def wait(futures, stop: Stop) -> None:
  """Waits for verdicts; raises Stopped if a process was asked to stop."""
  while not stop.asked and concurrent.futures.wait(
      futures, timeout=WAIT).not_done:
    pass
  stop.check()


def gathered(own: list, lost: list[str], *, B: int) -> grader_lib.Graded:
  """Returns the verdicts of all processes.

  Args:
    own: (index, correct, formatted, vote) of each rollout of this process.
    lost: answers that its grader has lost.
    B: rollouts.
  """
  graded = grader_lib.Graded(np.zeros(B), np.zeros(B), [""] * B, [])
  for theirs, lost_there in hosts.gather([own, lost]):
    graded.lost.extend(lost_there)
    for i, correct, formatted, vote in theirs:
      graded.correct_B[i], graded.formatted_B[i] = correct, formatted
      graded.vote_B[i] = vote
  return graded
