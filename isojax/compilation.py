"""What compiling costs: a cache on disk that is on by default, and a count.

Programs are kept in $XDG_CACHE_HOME/isojax/jax (else ~/.cache/isojax/jax).
JAX_COMPILATION_CACHE_DIR names another folder; set but empty, nothing is kept.
"""

import os
import pathlib

import jax

SMALL = 0.1  # seconds; programs that compile faster are not kept
# Events of jax: the first for every program, the second if the cache had it.
COMPILED = "/jax/core/compile/backend_compile_duration"
READ = "/jax/compilation_cache/cache_hits"


def cache_folder() -> str:
  """Where compiled programs are kept by default."""
  root = os.environ["XDG_CACHE_HOME"] if "XDG_CACHE_HOME" in os.environ else ""
  return str(pathlib.Path(root or pathlib.Path.home() / ".cache")
             / "isojax" / "jax")


def keep_programs() -> str | None:
  """Turns the cache on; a note if its folder cannot be written.

  What the user set in the environment, jax has read already and stays.
  """
  if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    # The embedded policy's programs are all below jax's own second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SMALL)
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    if not os.environ["JAX_COMPILATION_CACHE_DIR"]:
      jax.config.update("jax_enable_compilation_cache", False)
    return None
  try:
    folder = cache_folder()
    os.makedirs(folder, exist_ok=True)
    writable = os.access(folder, os.W_OK | os.X_OK)
    reason = "no permission to write"
  except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
    folder, writable, reason = "~/.cache/isojax/jax", False, str(error)
  if not writable:
    return (f"compiled programs are not kept: {folder}: {reason}; set "
            "JAX_COMPILATION_CACHE_DIR to a folder that can be written")
  jax.config.update("jax_compilation_cache_dir", folder)
  return None


class Count:
  """Counts this process's compilations from now on."""

  def __init__(self):
    self.programs, self.seconds, self.read = 0, 0.0, 0
    jax.monitoring.register_event_duration_secs_listener(self._compiled)
    jax.monitoring.register_event_listener(self._read)

  def _compiled(self, event: str, seconds: float, **_) -> None:
    if event == COMPILED:
      self.programs += 1
      self.seconds += seconds

  def _read(self, event: str, **_) -> None:
    self.read += event == READ

  def __str__(self) -> str:
    return (f"compiled {self.programs} programs in {self.seconds:.1f} s "
            f"({self.read} from the cache)")
