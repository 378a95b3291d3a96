"""Locks the folder of a run, and reads and writes its config.json.

In a bucket (gs://) a lease replaces the lock. This module does not interpret
the config; isojax.experiment does.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import socket

from isojax.ledger import lease
from isojax.ledger import records
from isojax.ledger import object_store
from isojax.errors import InputError, reason


def run_id(values: dict) -> str:
  """Returns 12 hex digits of the hash of all inputs of a run's results."""
  canonical = json.dumps(values, sort_keys=True)
  return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _flat(tree: dict, prefix: str = "") -> dict:
  out = {}
  for key, value in tree.items():
    name = f"{prefix}{key}"
    out.update(_flat(value, f"{name}.") if isinstance(value, dict)
               else {name: value})
  return out


def differences(one: dict, other: dict, *, at: tuple[str, str]) -> str:
  """Returns the keys whose values differ, and both values.

  Args:
    one: a config.
    other: another one.
    at: names of the two in the text.
  """
  a, b = _flat(one), _flat(other)
  return "; ".join(
      f"{key}: {a[key] if key in a else 'absent'} {at[0]}, "
      f"{b[key] if key in b else 'absent'} {at[1]}"
      for key in sorted(a.keys() | b.keys())
      if key not in a or key not in b or a[key] != b[key])


def _check_ours(folder: str) -> None:
  """Raises InputError for a folder with other files and no config.json."""
  if object_store.remote(folder):
    names = set(object_store.names(folder))
  else:
    try:
      names = set(os.listdir(folder)) if os.path.lexists(folder) else set()
    except OSError as error:
      raise InputError(f"--workdir={folder}: cannot be read ({reason(error)}); "
                       "expected a folder; choose another one") from error
  foreign = sorted(name for name in names - {"lock"} if not (
      name.startswith("config.json") and name.endswith(".tmp")))
  if foreign and "config.json" not in names:
    raise InputError(
        f"--workdir={folder}: contains {', '.join(foreign[:3])} but no "
        "config.json, so it is no run's folder; choose another one")


def claimed(folder: str) -> bool:
  """Returns whether a folder belongs to a run, that is, has a config.json."""
  return object_store.content(os.path.join(folder, "config.json")) is not None


@dataclasses.dataclass(frozen=True)
class Stored:
  """The content of config.json."""

  run_id: str  # of its records, its checkpoints and its reports
  identity: str  # hash of all inputs of its results
  model_sha256: str | None  # of the base policy's weights; old runs: None
  config: dict  # may lack keys that were added since
  # alloc.C of the given config, which the identity contains, where alloc.M
  # makes it void: `config` has the rollouts of these M steps. None elsewhere.
  given_C: int | None = None


def read_config(folder: str) -> Stored:
  """Returns config.json of a run's folder.

  Raises:
    InputError: the folder has none, or it is damaged.
  """
  path = os.path.join(folder, "config.json")
  try:
    content = object_store.content(path)
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); expected a "
                     "file") from error
  if content is None:
    raise InputError(f"--workdir={folder}: contains no config.json; expected "
                     "the folder of a run")
  try:
    # In earlier versions the run id was always the identity.
    found = {"model_sha256": None, "given_C": None} | json.loads(content)
    found = {"identity": found["run_id"]} | found
    if not isinstance(found["config"], dict):
      raise ValueError("config is not an object")
    return Stored(*(found[field.name] for field in dataclasses.fields(Stored)))
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: damaged ({error}); restore it or choose another "
                     "--workdir") from error


def _check_config(folder: str, here: Stored, shorter: str | None) -> None:
  """Writes config.json into a new folder, or checks an existing one.

  Args:
    folder: of the run.
    here: the run that claims it.
    shorter: the identity of a run that `here` extends, or None.
  """
  path = os.path.join(folder, "config.json")
  if not claimed(folder) or read_config(folder).identity == shorter:
    values = dataclasses.asdict(here)
    if here.given_C is None:
      del values["given_C"]
    text = json.dumps(values, indent=2) + "\n"
    if object_store.remote(folder):
      object_store.write(path, text.encode())
    else:
      records.replace(path, text.encode())
    return
  there = read_config(folder)
  if (there.run_id, there.identity) != (here.run_id, here.identity):
    differ = differences(
        json.loads(json.dumps(here.config)), there.config,
        at=("in this config", "in the workdir")) or (
            "the same config, but the files of the model, the stratum, the "
            "reward (task.grader.file), a function of recipe.loss or the "
            "prompts' tokens differ")
    whose = (f"holds run {there.run_id} with other values, such as those it was "
             "extended to" if there.run_id == here.run_id else
             f"belongs to run {there.run_id}, expected run {here.run_id}")
    raise InputError(
        f"--workdir={folder} {whose}: {differ}; choose another --workdir, or "
        "give the values in the workdir to resume that run")


def held(folder: str) -> bool:
  """Returns whether a process currently holds a run's folder."""
  try:
    with open(os.path.join(folder, "lock"), encoding="utf-8") as lock:
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except FileNotFoundError:
    return False
  except BlockingIOError:
    return True
  return False


def check_shared(folder: str, this_id: str) -> None:
  """Raises InputError unless this host sees the folder that the run claimed."""
  if not claimed(folder) or read_config(folder).run_id != this_id:
    raise InputError(
        f"--workdir={folder}: not the folder that process 0 has claimed; "
        "choose one on a file system that all hosts share")


@contextlib.contextmanager
def hold(folder: str):
  """Locks the folder of a run for one process; creates a missing folder.

  The kernel releases the lock of a killed process. In a bucket a lease is used
  instead; the lease of a killed process first has to expire.

  Raises:
    InputError: the folder cannot be made or written, or another process holds
      it.
  """
  if object_store.remote(folder):
    with lease.hold(os.path.join(folder, "lock")):
      yield
    return
  try:
    os.makedirs(folder, exist_ok=True)
    lock = open(os.path.join(folder, "lock"), "a+", encoding="utf-8")
  except OSError as error:
    raise InputError(f"--workdir={folder}: cannot be made or written "
                     f"({reason(error)}); choose another one") from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      lock.seek(0)
      raise InputError(
          f"--workdir={folder}: in use by {lock.read().strip()}; wait until it "
          "ends, or choose another --workdir") from error
    except OSError as error:  # a file system without locks
      raise InputError(f"--workdir={folder}: cannot be locked "
                       f"({reason(error)}); "
                       "choose one on another file system") from error
    with _writing(folder):
      os.truncate(lock.fileno(), 0)
      holder = f"process {os.getpid()} on {socket.gethostname()}\n"
      os.write(lock.fileno(), holder.encode())
    yield


@contextlib.contextmanager
def _writing(folder: str):
  """Converts errors of the disk into an InputError."""
  try:
    yield
  except OSError as error:
    raise InputError(f"--workdir={folder}: cannot be written "
                     f"({reason(error)}); free "
                     "disk space or choose another one") from error


@contextlib.contextmanager
def claim(folder: str, config: dict, this_id: str, model_sha256: str, *,
          identity: str | None = None, shorter: str | None = None,
          given_C: int | None = None):
  """Locks a folder for one run, and writes or checks its config.json.

  Args:
    folder: of the run.
    config: of the run.
    this_id: the run id.
    model_sha256: of the base policy's weights, for launch.convert, which merges
      adapters into them.
    identity: hash of all inputs of the results, if it is not the run id.
    shorter: the identity of a run in the folder that this run extends.
    given_C: see Stored.

  Raises:
    InputError: as `hold`, or the folder belongs to another run, which was not
      changed.
  """
  _check_ours(folder)
  with hold(folder):
    with _writing(folder):
      _check_config(folder, Stored(this_id, identity or this_id, model_sha256,
                                   config, given_C), shorter)
    yield
