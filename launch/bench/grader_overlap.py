"""Shows that a slow grader hides behind decoding.

  python -m launch.bench.grader_overlap --config=configs/hard.py

Samples and grades the rollouts of one step with a grader that takes so many
seconds longer a call: in line, where decoding waits for verdicts, and in the
background thread that training uses. Prints a table; no update is made.
"""

import concurrent.futures
import time

import jax
from absl import flags

from isojax import cli
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax import run_context
from isojax import stopping
from isojax.rollouts import Grading
from isojax.tasks import prompts as prompts_lib

_CONFIG = cli.define_config("configs/hard.py")
_SECONDS = flags.DEFINE_multi_float(
    "seconds", [0.0, 0.02, 0.1], "Seconds that each call of the grader takes "
    "longer; repeat the flag for more rows.")


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
  """Returns the seconds of a step, and those of them waited for verdicts.

  Of the fastest of TIMES steps.
  """
  rows = []
  for _ in range(TIMES):
    begun = time.perf_counter()
    waited = sample(grader).seconds_waited
    rows.append((time.perf_counter() - begun, waited))
  return min(rows)


def main(_) -> None:
  context = run_context.prepare(_CONFIG.value)
  e, params = context.e, run_context.base_params(context)
  index = prompts_lib.indices_at(seed=e.seed, step=0, Bp=e.alloc.Bp,
                                 D=len(context.stratum.train))
  prompts = jax.tree.map(lambda x: x[index], context.train)
  sample = lambda grader: rollouts_lib.graded_rollouts(
      context, grader, params, [context.stratum.train[i] for i in index],
      prompts, e.alloc.n, rng.stream(e.seed, "rollout", 0), e.sampler,
      stopping.Stop())
  print(f"{e.alloc.B} rollouts in {context.sampler.row_sizes[-1]} slots; "
        "seconds")
  print(f"{'a call':>8}{'calls':>8}{'grader':>10}{'in line':>10}"
        f"{'background':>12}{'waited':>10}")
  with rollouts_lib.grading(context) as grader:
    sample(grader)  # compiles
    for seconds in _SECONDS.value:
      calls = []
      slow = slower(grader, seconds, calls)
      inline, _ = timed(sample, slow._replace(thread=Inline()))
      count = len(calls) // TIMES
      behind, waited = timed(sample, slow)
      print(f"{seconds:8.2f}{count:8}{seconds * count:10.2f}{inline:10.2f}"
            f"{behind:12.2f}{waited:10.2f}", flush=True)


if __name__ == "__main__":
  cli.run(main)
