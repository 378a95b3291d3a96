"""Who holds a folder in a bucket: an object that its holder writes again.

A bucket has no locks. Whoever creates the object holds the folder, and writes
it every few seconds on the condition that nobody else has written it. If it
stands still for a lease, by the clock of the one who waits, its holder is
dead, and is replaced on that same condition: of two who try, one succeeds. A
holder whose writes have not succeeded for a lease, by its own clock, ends
itself at once.

So two processes hold one folder only if the first one was frozen as a whole
for longer than a lease, and until it notices: at its next write, within
seconds. Its records are then void (isojax.ledger.records); a checkpoint that it was
saving is of the same seed, step and config, so of the same values.
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
from isojax import json_text
from isojax import progress
from isojax.ledger import object_store
from isojax.errors import InputError

SECONDS = 60.0  # without a sign of life after which a holder is dead
BEATS = 6  # signs of life in that time


@dataclasses.dataclass(frozen=True)
class Holder:
  """A process. `place` is the boot and the process table that `pid` is of."""

  host: str
  place: str | None
  pid: int
  started: str | None
  lease: float  # seconds

  def __str__(self) -> str:
    return f"process {self.pid} on {self.host}"

  def alive(self) -> bool | None:
    """Returns whether it is alive; None: unknown, of another process table."""
    here = socket.gethostname(), place()
    if self.place is None or (self.host, self.place) != here:
      return None
    return started(self.pid) == self.started


def place() -> str | None:
  """Returns a name of this boot and process table; None without /proc."""
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
      return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return None


def started(pid: int) -> str | None:
  """Returns when a process started: a later one may have the same number."""
  try:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
      return file.read().rpartition(")")[2].split()[19]
  except (OSError, IndexError):
    return None


def _take(path: str, mine: bytes, writer: str) -> tuple[int, float]:
  """(Generation that is ours, by when it was) once it may be replaced.

  Raises:
    InputError: another process holds it.
  """
  watched, since = None, 0.0
  while True:
    found, generation = object_store.read(path)
    dead = found is None
    if not dead:
      try:
        holder = Holder(**json_text.loads(found))
      except (ValueError, TypeError) as error:
        raise InputError(f"{path}: not a lock of a run ({error}); delete it if "
                         "no run is under way there") from error
      alive, now = holder.alive(), time.monotonic()
      if alive or watched not in (None, generation):
        raise InputError(
            f"--workdir={os.path.dirname(path)}: in use by {holder}; wait for "
            "it, or choose another one")
      if watched is None and alive is None:
        progress.say(f"{path} is of {holder}: waiting {holder.lease:.0f} s for "
                     "a sign of life")
        watched, since = generation, now
      dead = alive is False or now - since > holder.lease
    if dead:
      begun = time.monotonic()
      taken = object_store.write(path, mine, generation=generation, writer=writer)
      if taken is not None:
        return taken, begun
    else:
      time.sleep(holder.lease / (4 * BEATS))


@contextlib.contextmanager
def hold(path: str, *, seconds: float = SECONDS):
  """Holds an object of a bucket; another process's holding it is InputError.

  It may take a lease to see that a holder of another machine is dead. The loss
  of it ends this process, as nothing else would stop what its main thread is
  in: cli.BAD_INPUT if another holds it or the bucket refuses, cli.PREEMPTED if
  that is out of reach.
  """
  writer = uuid.uuid4().hex
  mine = json.dumps(dataclasses.asdict(Holder(
      socket.gethostname(), place(), os.getpid(), started(os.getpid()),
      seconds))).encode()
  generation, sure = _take(path, mine, writer)
  done, every = threading.Event(), seconds / BEATS
  why, code = "no answer", cli.PREEMPTED

  def beat() -> None:
    nonlocal generation, sure, why, code  # held since a write begun then
    while not done.wait(every):
      begun = time.monotonic()
      try:
        found = object_store.write(path, mine, generation=generation, writer=writer,
                              seconds=every / 2)  # to connect, and to read
      except Exception as error:  # perhaps for a moment
        why = str(error)
        code = cli.code_of(error) if isinstance(error, InputError) else 1
        continue
      if found is None:
        _end(path, "another process has taken it over", cli.BAD_INPUT)
      generation, sure = found, begun

  def watch() -> None:  # whatever the beat is waiting for
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
    with contextlib.suppress(InputError):  # it will be waited out
      object_store.delete(path, generation)


def _end(path: str, why: str, code: int) -> None:
  go_on = ("; the same command goes on from the newest checkpoint"
           if code == cli.PREEMPTED else "")
  sys.stderr.write(f"isojax: {path} is no longer held: {why}{go_on}\n")
  sys.stderr.flush()
  os._exit(code)
