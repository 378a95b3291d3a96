"""The table of tasks, and a task that is added to it."""

import subprocess
import sys
import typing

import pytest

from isojax.errors import InputError
from isojax.tasks import base, grader
from isojax.tasks.problem import Pool, Problem
from launch import split as split_lib


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


def load(words: int) -> Pool:
  made = [Problem(i, "ab" * (i + 1), "ba" * (i + 1)) for i in range(words)]
  return Pool(made[1:], made[:1], ())


@pytest.fixture
def reverse(monkeypatch):
  monkeypatch.setitem(base.TASKS, "reverse", base.Task(
      sources={"words": load}, judge=lambda *_: (True, "")))


def config(answer="whole"):
  return grader.GraderConfig("reverse", answer, 1, 5.0, 60.0)


def section(**source):
  """A split's config, as far as its source is read."""
  return typing.cast(split_lib.Split, type("Cfg", (), dict(
      source=source, grader=config()))())


def test_an_added_task_is_loaded(reverse):
  assert split_lib.read_pool(section(kind="words", words=4)) == load(4)
  with pytest.raises(InputError, match="kind='files': .* words, .*'reverse'"):
    split_lib.read_pool(section(kind="files", words=4))
  with pytest.raises(InputError, match="config.source.words='4': expected int"):
    split_lib.read_pool(section(kind="words", words="4"))


def test_an_unknown_task_is_refused():
  with pytest.raises(InputError, match="grader.name='reverse': expected one of "
                     "countdown, math, reasoning_gym"):
    config()
