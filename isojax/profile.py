"""Traces of a few steps, for TensorBoard or Perfetto."""

import contextlib
import os

import jax

from isojax.errors import InputError

FIRST, LAST = 2, 4  # of this process's steps, from 1: the first one compiles


def check_folder(folder: str) -> None:
  """InputError if a trace cannot be written there."""
  if "://" in folder:
    raise InputError(f"--profile={folder}: expected a folder of this machine")
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise InputError(f"--profile={folder}: cannot be made ({error}); choose "
                     "another folder") from error
  if not os.access(folder, os.W_OK | os.X_OK):
    raise InputError(f"--profile={folder}: cannot be written; choose another "
                     "folder")


def stage(name: str, function):
  """The function, named in traces."""
  return jax.profiler.annotate_function(function, name=name)


def trace(folder: str):
  """One trace: *.xplane.pb for TensorBoard, *.json.gz for ui.perfetto.dev."""
  return jax.profiler.trace(folder, create_perfetto_trace=True)


@contextlib.contextmanager
def steps(folder: str | None):
  """A function that is called before each step and gives the context to run it
  in; steps FIRST .. LAST go into one trace. None: nothing is traced."""
  with contextlib.ExitStack() as stack:
    taken = 0

    def step(number: int):
      nonlocal taken
      taken += 1
      if folder is not None and taken == FIRST:
        stack.enter_context(trace(folder))
      if taken == LAST + 1:
        stack.close()
      return jax.profiler.StepTraceAnnotation("step", step_num=number)

    yield step
