"""Shows that a slow grader hides behind decoding.

Samples and grades the rollouts of one step of configs/hard.py, with a grader
whose calls take longer: in line, where decoding waits for verdicts, and in the
background thread that training uses. There is no update.
"""

import concurrent.futures
import time

import jax

from isojax import config_file
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax import run_context
from isojax import stopping
from isojax.rollouts import Grading
from isojax.tasks import prompts as prompts_lib

SECONDS = (0.0, 0.02, 0.1)  # that each call of the grader takes longer
TIMES = 3


class Inline(concurrent.futures.Executor):
  """Calls a function at once, in the thread that submits it."""

  def submit(self, function, *args):
    future = concurrent.futures.Future()
    future.set_result(function(*args))
    return future


def slower(grader: Grading, seconds: float, calls: list) -> Grading:
  """Returns a grader whose calls take longer and are counted."""
  def grade(problems, texts, **more):
    calls.append(len(texts))
    time.sleep(seconds)
    return grader.grade(problems, texts, **more)

  return grader._replace(grade=grade)


def timed(sample, grader: Grading) -> tuple[float, float]:
  """Returns (seconds, of these waited for verdicts) of the fastest step."""
  rows = []
  for _ in range(TIMES):
    begun = time.perf_counter()
    waited = sample(grader).seconds_waited
    rows.append((time.perf_counter() - begun, waited))
  return min(rows)


def rows():
  """Yields a row for each delay; in line and background are wall time."""
  context = run_context.prepare(config_file.read_config("configs/hard.py"))
  e, params = context.e, run_context.base_params(context)
  index = prompts_lib.indices_at(seed=e.seed, step=0, Bp=e.alloc.Bp,
                                 D=len(context.stratum.train))
  prompts = jax.tree.map(lambda x: x[index], context.train)
  sample = lambda grader: rollouts_lib.graded_rollouts(
      context, grader, params, [context.stratum.train[i] for i in index],
      prompts, e.alloc.n, rng.stream(e.seed, "rollout", 0), e.sampler,
      stopping.Stop())
  with rollouts_lib.grading(context) as grader:
    sample(grader)  # compiles
    for seconds in SECONDS:
      calls = []
      slow = slower(grader, seconds, calls)
      inline, _ = timed(sample, slow._replace(thread=Inline()))
      count = len(calls) // TIMES
      behind, waited = timed(sample, slow)
      yield {"rollouts": e.alloc.B, "calls": count, "s/call": seconds,
             "grader s": seconds * count, "in line s": inline,
             "background s": behind, "of it waited s": waited}
