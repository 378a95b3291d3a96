"""Attempts at a run: who holds the run, and how each attempt ended.

Attempt g of a run is the file RUN_ID.g.json. The process that creates the file
holds the run. Creation is atomic, also on shared file systems: a hard link to a
complete file, or O_EXCL. Only the holder writes the file again, and no process
deletes it, so the numbers only grow. The holder rewrites its file every few
seconds (the heartbeat). An attempt that has not ended and whose heartbeat no
longer changes is dead: creating attempt g + 1 takes the run over. A holder that
was only slow finds that file at its next heartbeat and stops its run.
"""

import dataclasses
import json
import os
import re
import socket
import time

from isojax import cli
from isojax.ledger import records
from isojax.sweep import runs as runs_lib

NAME = re.compile(r"([0-9a-f]{12})\.([1-9][0-9]*)\.json")
# A run that was told to stop has not failed. The signals are those that arrive
# before the run can save.
STOPPED = (cli.PREEMPTED, -2, -15)
UNREAD = 60.0  # seconds after which an incomplete file counts as dead


def place() -> str | None:
  """Returns a name for this boot and process table; None without /proc."""
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
      return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return None


def started(pid: int) -> str | None:
  """Returns when a process started, as a process id may be used again."""
  try:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
      return file.read().rpartition(")")[2].split()[19]
  except (OSError, IndexError):
    return None


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One attempt at a run. Times are seconds since 1970 on the holder's clock.
  """

  number: int  # from 1
  host: str
  place: str | None  # boot id and PID namespace to which `pid` belongs
  pid: int  # of the sweeper
  started: str | None  # start time of that process, in kernel ticks
  version: str  # of the code
  lease: float  # seconds without a heartbeat after which the attempt is dead
  begun: float
  beat: float  # the last heartbeat
  ended: float | None
  code: int | None  # exit code of isojax.main; None: not ended, or released
  reason: str | None  # of a failure


class TakenOver(Exception):
  """Another sweeper holds the run now."""


def path_of(root: str, run_id: str, number: int) -> str:
  return os.path.join(runs_lib.folder(root), f"{run_id}.{number}.json")


def read(root: str, run_id: str, number: int) -> Attempt:
  """Returns one attempt. An incomplete file has an unknown, living holder.

  Keys that only earlier versions wrote are ignored.
  """
  names = [field.name for field in dataclasses.fields(Attempt)
           if field.name != "number"]
  try:
    with open(path_of(root, run_id, number), encoding="utf-8") as file:
      found = json.loads(file.read())
    return Attempt(number, **{name: found[name] for name in names})
  except (OSError, ValueError, KeyError, TypeError):
    return Attempt(number, "?", None, 0, None, "?", UNREAD, 0.0, 0.0, None,
                   None, None)


def numbers(root: str) -> dict[str, list[int]]:
  """Returns the numbers of the attempts at each run, in order, by run id."""
  found = {}
  for name in os.listdir(runs_lib.folder(root)):
    if match := NAME.fullmatch(name):
      found.setdefault(match[1], []).append(int(match[2]))
  return {run_id: sorted(each) for run_id, each in found.items()}


def _text(attempt: Attempt) -> bytes:
  values = dataclasses.asdict(attempt)
  del values["number"]
  return (json.dumps(values) + "\n").encode()


def write(root: str, run_id: str, attempt: Attempt) -> None:
  records.replace(path_of(root, run_id, attempt.number), _text(attempt))


def _create(path: str, text: bytes) -> bool:
  """Creates a complete file atomically; returns False if the file exists.

  On a file system without hard links, a kill may leave an empty file. On
  others, it may leave a temporary file under a name that no process reads.
  """
  with records.beside(path, text) as temporary:
    try:
      os.link(temporary, path)
    except FileExistsError:
      # An NFS server may answer so to a repeated request: then it is ours.
      return os.stat(temporary).st_nlink == 2
    except OSError:  # a file system without hard links
      return _create_exclusive(path, text)
    return True


def _create_exclusive(path: str, text: bytes) -> bool:
  try:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
  except FileExistsError:
    return False
  try:
    records.replace(path, text)
  except OSError:
    os.unlink(path)  # safe: no process takes over an attempt this young
    raise
  return True


def begin(root: str, run_id: str, number: int, *, version: str,
          lease: float) -> Attempt | None:
  """Claims a run; returns None if another process was faster.

  Raises:
    OSError: the file cannot be written.
  """
  now, pid = time.time(), os.getpid()
  attempt = Attempt(
      number, socket.gethostname(), place(), pid,
      started(pid), version, lease, now, now, None, None, None)
  created = _create(path_of(root, run_id, number), _text(attempt))
  return attempt if created else None


def beat(root: str, run_id: str, attempt: Attempt) -> Attempt:
  """Writes the heartbeat; raises TakenOver if the run has another holder."""
  if os.path.exists(path_of(root, run_id, attempt.number + 1)):
    raise TakenOver
  attempt = dataclasses.replace(attempt, beat=time.time())
  write(root, run_id, attempt)
  return attempt


def end(root: str, run_id: str, attempt: Attempt, code: int | None,
        reason: str | None) -> Attempt:
  """Writes how an attempt ended."""
  attempt = dataclasses.replace(attempt, ended=time.time(), code=code,
                                reason=reason)
  write(root, run_id, attempt)
  return attempt


def alive(run_id: str, last: Attempt, seen: dict) -> bool:
  """Returns whether an attempt that has not ended still has its holder.

  For a holder in our own PID namespace the kernel knows. For others the
  heartbeat has to change within the attempt's lease, measured by our own clock
  because clocks of two machines cannot be compared.

  Args:
    run_id: of the run.
    last: its last attempt.
    seen: is updated: (run id, number) -> (heartbeat, when it was first seen).
  """
  if last.place is not None and last.place == place():
    return started(last.pid) == last.started
  key = run_id, last.number
  if key not in seen or seen[key][0] != last.beat:
    seen[key] = last.beat, time.monotonic()
  return time.monotonic() - seen[key][1] < last.lease


def failures(attempts: list[Attempt]) -> int:
  return sum(a.code is not None and a.code != 0 and a.code not in STOPPED
             for a in attempts)


def state(attempts: list[Attempt], *, living: bool, max_failures: int) -> str:
  """Returns waiting, running, interrupted, stopped, finished or failed.

  Args:
    attempts: at one run, in order.
    living: whether the last attempt has its holder.
    max_failures: failures after which a run is not started again.
  """
  if not attempts:
    return "waiting"
  last = attempts[-1]
  if last.ended is None:
    return "running" if living else "interrupted"
  if last.code == 0:
    return "finished"
  if last.code == cli.DIVERGED or failures(attempts) >= max_failures:
    return "failed"
  return "stopped" if last.code is None or last.code in STOPPED else "waiting"
