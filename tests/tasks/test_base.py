"""The table of tasks."""

import subprocess
import sys
import typing

import pytest

from isojax.tasks import base
from isojax.tasks.problem import Pool


@pytest.mark.parametrize("name", base.TASKS)
def test_sources_say_the_types_of_their_arguments(name):
  for kind, load in base.TASKS[name].sources.items():
    hints = typing.get_type_hints(load)
    assert hints.pop("return") is Pool, kind
    assert set(hints) == set(load.__code__.co_varnames[
        :load.__code__.co_argcount]), kind


def test_a_judge_s_process_starts_without_jax_numpy_and_libraries():
  code = ("import sys, isojax.tasks.grader_process; print(*{'jax', 'flax', "
          "'numpy', 'sympy', 'pyarrow', 'reasoning_gym', 'math_verify', "
          "'tensorflow_datasets'} & sys.modules.keys())")
  done = subprocess.run([sys.executable, "-c", code], text=True,
                        capture_output=True, check=True)
  assert done.stdout.strip() == ""
