"""Locks a folder in a bucket by a lease: an object that its holder rewrites.

A bucket has no locks. The process that creates the object holds the folder. It
rewrites the object every few seconds, on the condition that no other process
has written it. If the object does not change for the time of a lease, measured
by a waiting process, its holder counts as dead. The waiting process replaces
the object on the same condition, so only one of several succeeds. A holder
exits if its own writes have failed for the time of a lease.

Two processes hold one folder only if the first was suspended for longer than a
lease, and only until its next write, seconds later. Its records are then void
(isojax.ledger.record_parts). A checkpoint that it was saving has the same seed,
step and config, and so the same values.
"""

import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
import uuid

from isojax import cli
from isojax import progress
from isojax.ledger import object_store
from isojax.errors import InputError

SECONDS = 60.0  # lease: a holder without a write for so long counts as dead
BEATS = 6  # writes per lease


@dataclasses.dataclass(frozen=True)
class Holder:
  """A process; `place` names the boot and the process table of `pid`."""

  host: str
  place: str | None
  pid: int
  started: str | None
  lease: float  # seconds

  def __str__(self) -> str:
    return f"process {self.pid} on {self.host}"

  def alive(self) -> bool | None:
    """Returns whether it is alive; None for another host or process table."""
    here = socket.gethostname(), place()
    if self.place is None or (self.host, self.place) != here:
      return None
    return started(self.pid) == self.started


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


def _take(path: str, mine: bytes, writer: str) -> tuple[int, float]:
  """Waits until the lease is free; returns its generation and when it began.

  Raises:
    InputError: another process holds it.
  """
  watched, since = None, 0.0
  while True:
    found, generation = object_store.read(path)
    dead = found is None
    if not dead:
      try:
        holder = Holder(**json.loads(found))
      except (ValueError, TypeError) as error:
        raise InputError(f"{path}: not the lock of a run ({error}); delete it "
                         "if no run uses this folder") from error
      alive, now = holder.alive(), time.monotonic()
      if alive or watched not in (None, generation):
        raise InputError(
            f"--workdir={os.path.dirname(path)}: in use by {holder}; wait "
            "until it ends, or choose another --workdir")
      if watched is None and alive is None:
        progress.say(f"{path} belongs to {holder}: waiting {holder.lease:.0f} "
                     "s to see whether it is alive")
        watched, since = generation, now
      dead = alive is False or now - since > holder.lease
    if dead:
      begun = time.monotonic()
      taken = object_store.write(path, mine, generation=generation,
                                 writer=writer)
      if taken is not None:
        return taken, begun
    else:
      time.sleep(holder.lease / (4 * BEATS))


@contextlib.contextmanager
def hold(path: str, *, seconds: float = SECONDS):
  """Holds the lease `path` of a bucket while the context is open.

  If its holder is on another host, the call waits for up to `seconds`. If the
  lease is lost, the process exits, because its main thread cannot be stopped in
  another way: with cli.BAD_INPUT if another process holds the lease or the
  bucket denies access, with cli.PREEMPTED if the bucket cannot be reached.

  Raises:
    InputError: another process holds it.
  """
  writer = uuid.uuid4().hex
  mine = json.dumps(dataclasses.asdict(Holder(
      socket.gethostname(), place(), os.getpid(), started(os.getpid()),
      seconds))).encode()
  generation, sure = _take(path, mine, writer)
  done, every = threading.Event(), seconds / BEATS
  why, code = "no answer", cli.PREEMPTED

  def beat() -> None:
    nonlocal generation, sure, why, code  # sure: start of the last good write
    while not done.wait(every):
      begun = time.monotonic()
      try:
        found = object_store.write(
            path, mine, generation=generation, writer=writer,
            seconds=every / 2)  # each for connecting and reading
      except Exception as error:  # may be temporary
        why = str(error)
        code = cli.code_of(error) if isinstance(error, InputError) else 1
        continue
      if found is None:
        _end(path, "another process has taken it over", cli.BAD_INPUT)
      generation, sure = found, begun

  def watch() -> None:  # ends the process even if `beat` hangs
    while not done.wait(every / 2):
      if time.monotonic() - sure > seconds - every:
        _end(path, why, code)

  threads = [threading.Thread(target=f, daemon=True) for f in (beat, watch)]
  for thread in threads:
    thread.start()
  try:
    yield
  finally:
    done.set()
    for thread in threads:
      thread.join()
    with contextlib.suppress(InputError):  # then the lease expires
      object_store.delete(path, generation)


def _end(path: str, why: str, code: int) -> None:
  go_on = ("; rerun the same command to resume from the newest checkpoint"
           if code == cli.PREEMPTED else "")
  sys.stderr.write(f"isojax: {path} is no longer held: {why}{go_on}\n")
  sys.stderr.flush()
  os._exit(code)
