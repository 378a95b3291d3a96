"""Compilation is counted once, and apart from the work."""

import os
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from isojax import compilation


def test_a_long_compilation_is_announced_and_a_short_one_is_not(monkeypatch):
  said = []
  compilation.announce(said.append)
  jax.jit(lambda x: x + 7)(1.0)
  assert not said
  monkeypatch.setattr(compilation, "LONG", 0.001)

  @jax.jit
  def slow_of_this_test(x):
    for i in range(60):
      x = jnp.sin(x @ x + i)
    return x

  slow_of_this_test(jnp.ones((3, 3)))
  assert "compiling slow_of_this_test: more than 0.001 s so far" in said


def test_the_clock_stands_still_while_programs_are_compiled():
  """Also of a function in a function, whose tracing counts once."""
  count = compilation.Count()

  @jax.jit
  def inner(x):
    return jnp.tanh(x) @ x

  @jax.jit
  def outer_of_this_test(x):
    for _ in range(20):
      x = inner(x) + jnp.sin(x)
    return x

  wall, clock = time.perf_counter(), count.clock()
  x = jnp.ones((3, 3))
  outer_of_this_test(x).block_until_ready()
  wall, clock = time.perf_counter() - wall, count.clock() - clock
  assert 0.01 < count.seconds < wall
  assert abs(clock - (wall - count.seconds)) < 1e-3
  assert "outer_of_this_test" in count.names
  news = count.news()
  assert news.startswith("compiled ") and "outer_of_this_test" in news
  assert count.news() is None
  seconds = count.seconds
  outer_of_this_test(x).block_until_ready()
  assert count.seconds == seconds and count.news() is None


def test_other_threads_do_not_stop_the_clock():
  count = compilation.Count()
  clock, wall = count.clock(), time.perf_counter()

  def behind_of_this_test(x):
    return jnp.tanh(x) * 5

  thread = threading.Thread(
      target=lambda: jax.jit(behind_of_this_test)(jnp.ones(3)))
  thread.start()
  thread.join()
  assert abs(count.clock() - clock - (time.perf_counter() - wall)) < 1e-3
  assert count.seconds == 0 and count.news() is None


KEEP = """
import jax
from isojax import compilation
count = compilation.Count()
print(compilation.keep_programs())
jax.jit(lambda x: x + 1)(1)
print(count.programs > 0, count.seconds > 0, count.read)
print(jax.config.jax_compilation_cache_dir,
      jax.config.jax_enable_compilation_cache)
"""


@pytest.mark.parametrize("environment, note, kept", [
    (dict(JAX_COMPILATION_CACHE_DIR=""), "None", " False"),
    (dict(XDG_CACHE_HOME="{}/x"), "None", "{}/x/isojax/jax True"),
    (dict(XDG_CACHE_HOME="{}/file"), "compiled programs are not cached: ",
     "None True")])
def test_programs_are_kept_unless_told_otherwise(tmp_path, environment, note,
                                                 kept):
  (tmp_path / "file").write_text("")
  inherited = {k: v for k, v in os.environ.items()
               if k != "JAX_COMPILATION_CACHE_DIR"}
  done = subprocess.run(
      [sys.executable, "-c", KEEP], capture_output=True, text=True, check=True,
      timeout=60, env=inherited | {
          k: v.format(tmp_path) for k, v in environment.items()})
  lines = done.stdout.splitlines()
  assert lines[0].startswith(note) and lines[1] == "True True 0"
  assert lines[2] == kept.format(tmp_path)
