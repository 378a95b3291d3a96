"""Caches compiled programs on disk, and measures the compilation time.

The cache is on by default, in $XDG_CACHE_HOME/isojax/jax (else
~/.cache/isojax/jax). JAX_COMPILATION_CACHE_DIR sets another folder; if it is
set but empty, the cache is off.
"""

import collections
import functools
import os
import pathlib
import threading
import time

import jax

ANNOUNCED_SECONDS = 5.0  # after which a compilation is announced
MAX_NAMED_PROGRAMS = 8  # in a line
MIN_CACHED_SECONDS = 0.1  # programs that compile faster are not cached
# Events of jax. COMPILED is also sent for a program read from the cache.
COMPILED = "/jax/core/compile/backend_compile_duration"
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
SPENT = (COMPILED, "/jax/core/compile/jaxpr_trace_duration", LOWERED)


def enable_cache(say) -> None:
  """Turns the cache on, if jax's own environment variables do not decide it.

  Calls say(line) if its folder is not writable.
  """
  if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    # jax's default is 1 s; programs of assets/countdown-tiny compile faster.
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", MIN_CACHED_SECONDS)
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    if not os.environ["JAX_COMPILATION_CACHE_DIR"]:
      jax.config.update("jax_enable_compilation_cache", False)
    return
  root = os.environ["XDG_CACHE_HOME"] if "XDG_CACHE_HOME" in os.environ else ""
  folder = "~/.cache/isojax/jax"
  try:
    folder = os.path.join(root or pathlib.Path.home() / ".cache", "isojax/jax")
    os.makedirs(folder, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
      raise PermissionError("no permission to write")
    jax.config.update("jax_compilation_cache_dir", folder)
  except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
    say(f"compiled programs are not cached: {folder}: {error}; set "
        "JAX_COMPILATION_CACHE_DIR to a writable folder")


@functools.cache  # listeners cannot be removed
def announce(say) -> None:
  """Calls say(line) when a compilation takes more than ANNOUNCED_SECONDS.

  A program that is compiled in several shapes is announced once.
  """
  timers = {}  # thread -> the timer of its compilation
  announced = set()  # names of programs

  def once(name: str) -> None:
    if name not in announced:
      announced.add(name)
      say(f"compiling {name}: more than {ANNOUNCED_SECONDS:g} s so far")

  def on_event(name: str, _, **details) -> None:
    thread = threading.get_ident()
    if name in (COMPILED, LOWERED) and thread in timers:
      timers.pop(thread).cancel()
    if name == LOWERED:  # compilation follows
      timers[thread] = threading.Timer(
          ANNOUNCED_SECONDS, once, [program(details)])
      timers[thread].daemon = True
      timers[thread].start()

  jax.monitoring.register_event_duration_secs_listener(on_event)


def program(details: dict) -> str:
  """The name of the function that an event of jax is about."""
  name = details["fun_name"] if "fun_name" in details else "?"
  return name.removeprefix("jit(").removesuffix(")")


class Count:
  """Counts and times what the thread that created it compiles from then on."""

  def __init__(self):
    self.names = []  # of programs compiled since the last `news`
    self._reported = 0.0  # `seconds` at the last `news`
    self._spans = []  # (begin, end) of tracing and compiling, without overlap
    self._thread = threading.get_ident()
    jax.monitoring.register_event_duration_secs_listener(self._on_event)

  def _on_event(self, event: str, seconds: float, **details) -> None:
    if event not in SPENT or threading.get_ident() != self._thread:
      return
    end = time.perf_counter()
    # Outer functions end after the inner ones that are traced within them. 1 ms
    # is for the time between the end of a span and this call.
    while self._spans and self._spans[-1][0] >= end - seconds - 1e-3:
      self._spans.pop()
    self._spans.append((end - seconds, end))
    if event == COMPILED:
      self.names.append(program(details))

  @property
  def seconds(self) -> float:
    """Seconds spent tracing, lowering, and compiling or reading programs."""
    return sum(end - begin for begin, end in self._spans)

  def clock(self) -> float:
    """A clock in seconds that does not advance during compilation."""
    return time.perf_counter() - self.seconds

  def news(self) -> str | None:
    """A line on programs compiled since the last call, or None."""
    names, self.names = collections.Counter(self.names), []
    seconds, self._reported = self.seconds - self._reported, self.seconds
    if not names:
      return None
    listed = ", ".join(f"{name} x {count}" if count > 1 else name
                       for name, count in names.items())
    if len(names) > MAX_NAMED_PROGRAMS:
      listed = f"{sum(names.values())} programs"
    return f"compiled {listed} in {seconds:.1f} s, not counted as device time"
