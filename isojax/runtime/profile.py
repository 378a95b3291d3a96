"""Traces a few steps for TensorBoard or Perfetto."""

import contextlib

import jax

FIRST, LAST = 2, 4  # traced steps; step 1 of this process compiles


def stage(name: str, function):
  """The function with a name in traces."""
  return jax.profiler.annotate_function(function, name=name)


def trace(folder: str):
  """A context that writes traces for TensorBoard and Perfetto into a folder."""
  return jax.profiler.trace(folder, create_perfetto_trace=True)


@contextlib.contextmanager
def steps(folder: str | None):
  """Yields a function that returns the context in which to run a step.

  Steps FIRST .. LAST are one trace; without a folder none is written.
  """
  with contextlib.ExitStack() as stack:
    count = 0  # steps of this process

    def step(number: int):
      nonlocal count
      count += 1
      if folder is not None and count == FIRST:
        stack.enter_context(trace(folder))
      if count == LAST + 1:
        stack.close()
      return jax.profiler.StepTraceAnnotation("step", step_num=number)

    yield step
