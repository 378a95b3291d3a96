"""Who is at a run, and how it went: one file a try, written by its holder.

Try g of a run is the file RUN_ID.g.json. Whoever creates it (a hard link to a
whole file, or O_EXCL: both atomic on shared file systems too) holds the run;
nobody else ever writes it, and it is never deleted, so numbers only grow. The
holder writes it again every few seconds. A try that has not ended and whose
heartbeat stands still is dead: creating g + 1 takes the run over, and a holder
that was only slow sees that file at its next heartbeat and lets go.
"""

import contextlib
import dataclasses
import json
import os
import re
import socket
import time
import uuid

from isojax import cli
from isojax.ledger import lease as lease_lib
from isojax.ledger import records
from isojax.sweep import runs as runs_lib

NAME = re.compile(r"([0-9a-f]{12})\.([1-9][0-9]*)\.json")
# A run that was told to stop goes on from there; it has not failed. The
# signals are those that reach it before it can save.
STOPPED = (cli.PREEMPTED, -2, -15)
UNREAD = 60.0  # seconds until a try that nobody wrote down is dead


@dataclasses.dataclass(frozen=True)
class Try:
  """One attempt at a run. Times are of the holder's clock, from 1970."""

  number: int  # from 1
  host: str
  place: str | None  # the boot and the process table that pid is of
  pid: int  # of the sweeper
  started: str | None  # when that process started, in its kernel's ticks
  version: str  # of the code
  lease: float  # seconds without a heartbeat after which it is dead
  begun: float
  beat: float  # the last heartbeat
  ended: float | None
  code: int | None  # exit code of isojax.main; None: not ended, or let go
  reason: str | None  # of a failure
  together: bool = False  # its seconds are shares; old files do not say it


class TakenOver(Exception):
  """Another sweeper holds the run now."""


def path_of(root: str, run_id: str, number: int) -> str:
  return os.path.join(runs_lib.folder(root), f"{run_id}.{number}.json")


def read(root: str, run_id: str, number: int) -> Try:
  """One try. A file that is not whole yet is of an unknown, living holder."""
  try:
    with open(path_of(root, run_id, number), encoding="utf-8") as file:
      return Try(number=number, **json.load(file))
  except (OSError, ValueError, TypeError):
    return Try(number, "?", None, 0, None, "?", UNREAD, 0.0, 0.0, None, None,
               None)


def numbers(root: str) -> dict[str, list[int]]:
  """run id -> its tries, in order."""
  found = {}
  for name in os.listdir(runs_lib.folder(root)):
    if match := NAME.fullmatch(name):
      found.setdefault(match[1], []).append(int(match[2]))
  return {run_id: sorted(each) for run_id, each in found.items()}


def _text(this: Try) -> bytes:
  values = dataclasses.asdict(this)
  del values["number"]
  return (json.dumps(values) + "\n").encode()


def write(root: str, run_id: str, this: Try) -> None:
  records.replace(path_of(root, run_id, this.number), _text(this))


def _create(path: str, text: bytes) -> bool:
  """Creates a file that is whole at once; False if it is there already.

  Where there are no hard links, a kill may leave an empty one; elsewhere one
  beside it, under a name that nobody reads.
  """
  beside = f"{path}.{uuid.uuid4().hex}"
  try:
    with open(beside, "xb") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    try:
      os.link(beside, path)
    except FileExistsError:
      # A server may answer so to a request that was sent again: it is ours.
      return os.stat(beside).st_nlink == 2
    except OSError:  # a file system without hard links
      return _create_alone(path, text)
    return True
  finally:
    with contextlib.suppress(OSError):
      os.unlink(beside)


def _create_alone(path: str, text: bytes) -> bool:
  try:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
  except FileExistsError:
    return False
  try:
    records.replace(path, text)
  except OSError:
    os.unlink(path)  # nobody takes a try over that has just begun
    raise
  return True


def begin(root: str, run_id: str, number: int, *, version: str,
          lease: float, together: bool = False) -> Try | None:
  """Claims a run; None if somebody else was faster. OSError: cannot write."""
  now = time.time()
  this = Try(number, socket.gethostname(), lease_lib.place(), os.getpid(),
             lease_lib.started(os.getpid()), version, lease, now, now, None,
             None, None, together)
  created = _create(path_of(root, run_id, number), _text(this))
  return this if created else None


def beat(root: str, run_id: str, this: Try) -> Try:
  """The heartbeat; TakenOver if another sweeper holds the run now."""
  if os.path.exists(path_of(root, run_id, this.number + 1)):
    raise TakenOver
  this = dataclasses.replace(this, beat=time.time())
  write(root, run_id, this)
  return this


def end(root: str, run_id: str, this: Try, code: int | None,
        reason: str | None) -> Try:
  """The last write of a try."""
  this = dataclasses.replace(this, ended=time.time(), code=code, reason=reason)
  write(root, run_id, this)
  return this


def alive(run_id: str, last: Try, seen: dict) -> bool:
  """Whether a try that has not ended still has its holder.

  Of a holder in our own process table the kernel knows. Of others: whether the
  heartbeat changed within its lease by our own clock, since clocks of two
  machines cannot be compared; `seen` keeps what was seen when.
  """
  if last.place is not None and last.place == lease_lib.place():
    return lease_lib.started(last.pid) == last.started
  beat_before, since = (seen[run_id, last.number]
                        if (run_id, last.number) in seen else (None, 0.0))
  if beat_before != last.beat:
    since = time.monotonic()
    seen[run_id, last.number] = last.beat, since
  return time.monotonic() - since < last.lease


def failures(tries: list[Try]) -> int:
  return sum(t.code is not None and t.code != 0 and t.code not in STOPPED
             for t in tries)


def state(tries: list[Try], *, living: bool, most: int) -> str:
  """waiting, running, interrupted, stopped, finished or failed.

  Args:
    tries: of one run, in order.
    living: whether the last one has its holder.
    most: failures after which a run is left alone.
  """
  if not tries:
    return "waiting"
  last = tries[-1]
  if last.ended is None:
    return "running" if living else "interrupted"
  if last.code == 0:
    return "finished"
  if last.code == cli.DIVERGED or failures(tries) >= most:
    return "failed"
  return "stopped" if last.code is None or last.code in STOPPED else "waiting"
