"""Locks the folder of a run, and reads and writes its config.json.

A folder in a bucket has no lock: the process that starts last takes its records
over, and an earlier one fails at its next write (bucket.FencedObject).
This module does not interpret the config; isojax.run.experiment does.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import socket
import time

from etils import epath

from isojax.core import disk
from isojax.errors import InputError, reason
from isojax.ledger import bucket

LOCK_SECONDS = 0.5  # to wait for a lock: `is_locked` locks for an instant


def hash_of(values: dict) -> str:
  """12 hex digits of the hash of all inputs of a run's results."""
  canonical = json.dumps(values, sort_keys=True)
  return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Stored:
  """The content of config.json."""

  run_id: str  # of the run's records and checkpoints; kept by an extension
  identity: str  # hash of all inputs of the results; an extension changes it
  model_sha256: str  # of the base policy's weights
  config: dict


def is_claimed(folder: str) -> bool:
  return epath.Path(folder, "config.json").exists()


def read_config(folder: str) -> Stored:
  """The folder's config.json; InputError if it has none, or it is damaged."""
  path = epath.Path(folder, "config.json")
  try:
    with bucket.convert_errors(path, InputError):
      values = json.loads(path.read_text())
    if isinstance(values, dict) and "architectures" in values:
      raise InputError(
          f"{folder}: a Hugging Face model, expected the folder of a "
          f"run; train it with --config=FILE --config.model.path={folder}, or "
          f"ask it with python -m launch.samples {folder} --chat")
    stored = Stored(**values)
    if not isinstance(stored.config, dict):
      raise ValueError("config is not an object")
    return stored
  except FileNotFoundError as error:
    raise InputError(f"{folder}: contains no config.json; expected "
                     "the folder of a run") from error
  except InputError:
    raise
  except (OSError, ValueError, TypeError, RecursionError) as error:
    raise InputError(f"{path}: cannot be read or is damaged ({reason(error)}); "
                     "restore it or choose another --workdir") from error


def siblings(folder: str) -> list[tuple[str, Stored]]:
  """(folder, config.json) of the undamaged runs in a folder's parent."""
  out = []
  with bucket.convert_errors(folder, InputError):
    paths = sorted(epath.Path(folder).parent.glob("*/config.json"))
  for path in paths:
    with contextlib.suppress(InputError):
      out.append((os.fspath(path.parent), read_config(os.fspath(path.parent))))
  return out


def is_locked(path: str) -> bool:
  """Whether a process has locked a file, such as FOLDER/lock of a run."""
  try:
    with open(path, encoding="utf-8") as lock:
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:  # no such file, or an error that its writer will report
    pass
  return False


def check_shared(folder: str, this_id: str) -> None:
  """Raises InputError unless this host sees the folder that the run claimed."""
  if not is_claimed(folder) or read_config(folder).run_id != this_id:
    raise InputError(
        f"--workdir={folder}: not the folder that process 0 has claimed; "
        "choose one on a file system that all hosts share")


@contextlib.contextmanager
def claim(folder: str, ours: Stored, shorter: str | None = None, *,
          conflict: Callable[[Stored], str]):
  """Locks a folder for a run, and writes or checks its config.json.

  The kernel releases the lock of a killed process. `shorter` is the identity of
  the run that this run extends, if there is one. `conflict` gives the message
  for a folder of another run. On an error config.json is as before.
  """
  with contextlib.ExitStack() as stack:
    with disk.writing(f"--workdir={folder}"), bucket.convert_errors(
        folder, InputError):
      _check_is_run_folder(folder)
      if not bucket.remote(folder):
        os.makedirs(folder, exist_ok=True)
        lock = stack.enter_context(
            open(os.path.join(folder, "lock"), "a+", encoding="utf-8"))
        _lock(folder, lock)
      _check_config(folder, ours, shorter, conflict)
    yield


def _check_is_run_folder(folder: str) -> None:
  path = epath.Path(folder)
  names = {file.name for file in path.iterdir()} if path.exists() else set()
  # A killed process may have left the lock and config.json.*.tmp.
  foreign = sorted(name for name in names - {"lock"} if not (
      name.startswith("config.json") and name.endswith(".tmp")))
  if foreign and "config.json" not in names:
    raise InputError(
        f"--workdir={folder}: contains {', '.join(foreign[:3])} but no "
        "config.json, so it is no run's folder; choose another one")


def _lock(folder: str, lock) -> None:
  end = time.monotonic() + LOCK_SECONDS
  while True:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      break
    except BlockingIOError as error:
      if time.monotonic() > end:
        lock.seek(0)
        raise InputError(
            f"--workdir={folder}: in use by {lock.read().strip()}; wait until "
            "it ends, or choose another --workdir") from error
      time.sleep(LOCK_SECONDS / 10)
  os.truncate(lock.fileno(), 0)
  os.write(lock.fileno(),
           f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def _check_config(folder: str, ours: Stored, shorter: str | None,
                  conflict: Callable[[Stored], str]) -> None:
  path = os.path.join(folder, "config.json")
  stored = read_config(folder) if is_claimed(folder) else None
  if stored is None or stored.identity == shorter:
    text = json.dumps(dataclasses.asdict(ours), indent=2) + "\n"
    if bucket.remote(folder):
      epath.Path(path).write_text(text)
    else:
      disk.replace(path, text.encode())
  elif (stored.run_id, stored.identity) != (ours.run_id, ours.identity):
    raise InputError(conflict(stored))
