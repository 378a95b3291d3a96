"""One run, one folder: a lock, and the config that the folder belongs to.

The folder may be one of a bucket (gs://), where a lease takes the lock's place.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import socket

from isojax.ledger import lease
from isojax.ledger import records
from isojax.ledger import object_store
from isojax.errors import InputError


def run_id(values: dict) -> str:
  """12 hex digits of the hash of what decides a run's results."""
  canonical = json.dumps(values, sort_keys=True)
  return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _flat(tree: dict, prefix: str = "") -> dict:
  out = {}
  for key, value in tree.items():
    name = f"{prefix}{key}"
    out.update(_flat(value, f"{name}.") if isinstance(value, dict)
               else {name: value})
  return out


def differences(one: dict, other: dict, *, at=("here", "there")) -> str:
  """The keys whose values differ, and both values; `at` says where they are.
  """
  a, b = _flat(one), _flat(other)
  return "; ".join(
      f"{key}: {a[key] if key in a else 'absent'} {at[0]}, "
      f"{b[key] if key in b else 'absent'} {at[1]}"
      for key in sorted(a.keys() | b.keys())
      if key not in a or key not in b or a[key] != b[key])


def _check_ours(folder: str) -> None:
  """Refuses a folder that holds other things and no config.json."""
  if object_store.remote(folder):
    names = set(object_store.names(folder))
  else:
    names = set(os.listdir(folder)) if os.path.lexists(folder) else set()
  foreign = sorted(names - {"lock", "config.json.tmp"})
  if foreign and "config.json" not in names:
    raise InputError(
        f"--workdir={folder}: holds {', '.join(foreign[:3])} but no "
        "config.json, so it is no run's folder; choose another one")


def claimed(folder: str) -> bool:
  """Whether a folder is that of a run."""
  return object_store.content(os.path.join(folder, "config.json")) is not None


def read_config(folder: str) -> tuple[str, dict]:
  """(run id, config) of a run's folder; InputError if none, or damaged."""
  path = os.path.join(folder, "config.json")
  content = object_store.content(path)
  if content is None:
    raise InputError(f"--workdir={folder}: holds no config.json; expected the "
                     "folder of a run")
  try:
    found = json.loads(content)
    if not isinstance(found["config"], dict):
      raise ValueError("config is not an object")
    return found["run_id"], found["config"]
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: damaged ({error}); restore it or choose another "
                     "--workdir") from error


def _check_config(folder: str, config: dict, this_id: str,
                  model_sha256: str) -> None:
  """Writes config.json into a new folder, or checks it in an old one."""
  path = os.path.join(folder, "config.json")
  if not claimed(folder):
    text = json.dumps({"run_id": this_id, "model_sha256": model_sha256,
                       "config": config}, indent=2)
    if object_store.remote(folder):
      object_store.write(path, (text + "\n").encode())
    else:
      records.replace(path, (text + "\n").encode())
    return
  found_id, found_config = read_config(folder)
  if found_id != this_id:
    differ = differences(json.loads(json.dumps(config)), found_config) or (
        "the same config, but the files of the model, the stratum or the "
        "prompts' tokens are others")
    raise InputError(
        f"--workdir={folder} belongs to run {found_id}, this one is {this_id}: "
        f"{differ}; choose another --workdir, or give the same config to "
        "continue that run")


def held(folder: str) -> bool:
  """Whether a process holds a run's folder at this moment."""
  try:
    with open(os.path.join(folder, "lock"), encoding="utf-8") as lock:
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except FileNotFoundError:
    return False
  except BlockingIOError:
    return True
  return False


def check_shared(folder: str, this_id: str) -> None:
  """InputError unless a run has claimed the folder as it is seen from here."""
  if not claimed(folder) or read_config(folder)[0] != this_id:
    raise InputError(
        f"--workdir={folder}: not the folder that process 0 has claimed; "
        "choose one on a file system that all hosts share")


@contextlib.contextmanager
def claim(folder: str, config: dict, this_id: str, model_sha256: str):
  """Holds a folder for one run and one process; makes it if need be.

  The hash of the base policy's weights is kept beside the config, for who
  adds adapters to them later. The lock is the kernel's, so a killed process
  leaves none behind; that of a bucket is waited out (isojax.ledger.lease).

  Raises:
    InputError: the folder cannot be made or written, another process holds
      it, or it belongs to another config. Nothing of a run in it was changed.
  """
  if object_store.remote(folder):
    _check_ours(folder)
    with lease.hold(os.path.join(folder, "lock")):
      _check_config(folder, config, this_id, model_sha256)
      yield
    return
  try:
    _check_ours(folder)
    os.makedirs(folder, exist_ok=True)
    lock = open(os.path.join(folder, "lock"), "a+", encoding="utf-8")
  except OSError as error:
    raise InputError(f"--workdir={folder}: cannot be made or written "
                     f"({error}); choose another one") from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      lock.seek(0)
      raise InputError(
          f"--workdir={folder}: in use by {lock.read().strip()}; wait for it, "
          "or choose another one") from error
    except OSError as error:  # a file system without locks
      raise InputError(f"--workdir={folder}: cannot be locked ({error}); "
                       "choose one on another file system") from error
    try:
      os.truncate(lock.fileno(), 0)
      holder = f"process {os.getpid()} on {socket.gethostname()}\n"
      os.write(lock.fileno(), holder.encode())
      _check_config(folder, config, this_id, model_sha256)
    except OSError as error:
      raise InputError(f"--workdir={folder}: cannot be written ({error}); make "
                       "room or choose another one") from error
    yield
