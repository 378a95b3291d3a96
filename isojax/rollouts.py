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
from isojax.distributed import hosts
from isojax.rl import rewards
from isojax.run_context import RunContext
from isojax.sampling import sampler as sampler_lib
from isojax.stopping import Stop
from isojax.tasks import grader as grader_lib
from isojax.tasks import stratum_file
from isojax.types import Prompts
from isojax.types import Rollouts

WAIT = 0.2  # seconds between two checks for a signal while waiting for verdicts


class Grading(typing.NamedTuple):
  """A grader and the thread that calls it, one call at a time."""

  grade: typing.Callable  # see grader.opened
  thread: concurrent.futures.Executor


@contextlib.contextmanager
def grading(context: RunContext):
  """Yields the Grading of a context's problems.

  Calls that have not begun when the context manager ends are cancelled.

  Raises:
    InputError: the grader cannot start.
  """
  source = stratum_file.source(context.stratum.header) | context.reward
  with grader_lib.opened(context.e.task.grader, source) as grade:
    thread = concurrent.futures.ThreadPoolExecutor(1, "grader")
    try:
      yield Grading(profile.stage("score", grade), thread)
    finally:
      thread.shutdown(cancel_futures=True)


def judging(context: RunContext, grader: Grading):
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


def graded_rollouts(context: RunContext, grader: Grading, params, problems,
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
  while not stop.asked and concurrent.futures.wait(
      futures, timeout=WAIT).not_done:
    pass
  stop.check()
  graded = _joined(futures, owner_B)
  return Sampled(rollouts, graded, time.perf_counter() - begun)


def _joined(futures: dict, owner_B) -> grader_lib.Graded:
  """Returns all verdicts; each process provides those of its own rollouts."""
  B = len(owner_B)
  graded = grader_lib.Graded(np.zeros(B), np.zeros(B), [""] * B, [])

  def put(items, correct, formatted, vote, lost):
    graded.correct_B[items], graded.formatted_B[items] = correct, formatted
    for i, each in zip(items, vote, strict=True):
      graded.vote_B[i] = each
    graded.lost.extend(lost)

  for future, items in futures.items():
    part = future.result()
    put(items, part.correct_B, part.formatted_B, part.vote_B, part.lost)
  if hosts.count() == 1:
    return graded
  items = np.flatnonzero(owner_B == hosts.number())
  parts = hosts.gather([
      graded.correct_B[items].tolist(), graded.formatted_B[items].tolist(),
      [graded.vote_B[i] for i in items], graded.lost])
  graded.lost.clear()
  for process, part in enumerate(parts):
    put(np.flatnonzero(owner_B == process), *part)
  return graded
