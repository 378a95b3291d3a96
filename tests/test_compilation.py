"""Compilation is counted once, and apart from the work."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest

from isojax.runtime import compilation


def test_a_long_compilation_is_announced_and_a_short_one_is_not(monkeypatch):
  said = []
  compilation.announce(said.append)
  jax.jit(lambda x: x + 7)(1.0)
  assert not said
  monkeypatch.setattr(compilation, "ANNOUNCED_SECONDS", 0.001)

  @jax.jit
  def slow_of_this_test(x):
    for i in range(60):
      x = jnp.sin(x @ x + i)
    return x

  slow_of_this_test(jnp.ones((3, 3)))
  slow_of_this_test(jnp.ones((4, 4)))
  assert said.count(
      "compiling slow_of_this_test: more than 0.001 s so far") == 1


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


@pytest.mark.parametrize("environment, note, kept", [
    (dict(JAX_COMPILATION_CACHE_DIR=""), "", (None, False)),
    (dict(XDG_CACHE_HOME="x"), "", ("x/isojax/jax", True)),
    (dict(XDG_CACHE_HOME="file"), "compiled programs are not cached: ",
     (None, True))])
def test_programs_are_kept_unless_told_otherwise(
    tmp_path, monkeypatch, environment, note, kept):
  """Given the configuration of jax without its own variables."""
  settings = {"jax_compilation_cache_dir": None,
              "jax_enable_compilation_cache": True,
              "jax_persistent_cache_min_compile_time_secs": 1.0}
  before = {name: getattr(jax.config, name) for name in settings}
  (tmp_path / "file").touch()
  monkeypatch.chdir(tmp_path)
  for name in ("JAX_COMPILATION_CACHE_DIR",
               "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
    monkeypatch.delenv(name)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  try:
    for name, value in settings.items():
      jax.config.update(name, value)
    said = []
    compilation.enable_cache(said.append)
    assert [line[:len(note)] for line in said] == [note] * bool(note)
    assert tuple(getattr(jax.config, name) for name in settings) == (
        *kept, compilation.MIN_CACHED_SECONDS)
  finally:
    for name, value in before.items():
      jax.config.update(name, value)
