"""One process of isojax.main, which ends with its sweeper."""

import ctypes
import os
import signal
import subprocess
import sys
import time

from isojax import cli
from isojax.sweep import runs as runs_lib
from isojax.sweep.devices import Slot

PR_SET_PDEATHSIG = 1
TAIL = 16_384  # bytes of a log that are searched for a reason


def tied(cores: tuple[int, ...]):
  """What a child does before it becomes a worker, as Popen's preexec_fn.

  The kernel kills it when this thread ends, kill -9 included (Linux). SIGINT
  must reach it even where a shell ignores it for us; Slurm sends SIGUSR2 to
  every process of a job, and it is meant for submitit alone.
  """
  libc = ctypes.CDLL(None) if sys.platform == "linux" else None
  parent = os.getpid()

  def prepare():
    if libc is not None:
      libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:
        os._exit(1)  # it died in between
    if cores and hasattr(os, "sched_setaffinity"):
      os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

  return prepare


def log_of(root: str, run_id: str) -> str:
  return os.path.join(runs_lib.folder(root), f"{run_id}.log")


def heading(number: int, slot: Slot) -> str:
  """The line of a log that a try begins with."""
  return (f"== try {number}, {slot.name}, "
          f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n")


class Worker(subprocess.Popen):
  """A process of its own, apart from the terminal's Ctrl-C."""

  def stop(self) -> None:
    """Asks it to save and end.

    Not by SIGTERM: a scheduler may have sent that to all processes of a job,
    and a second one of a kind kills.
    """
    self.send_signal(signal.SIGINT)

  def kill(self) -> None:
    """Ends it and what it started, at once."""
    try:
      os.killpg(self.pid, signal.SIGKILL)
    except ProcessLookupError:
      pass
    self.wait()


def start(command: list[str], root: str, run: runs_lib.Run, slot: Slot,
          number: int) -> Worker:
  """Starts or continues a run."""
  with open(log_of(root, run.run_id), "ab") as log:
    log.write(heading(number, slot).encode())
    log.flush()
    return Worker(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=os.environ | slot.env, process_group=0,
        preexec_fn=tied(slot.cores))


def reason(root: str, run_id: str, code: int) -> str | None:
  """Why a run ended, for people: the last line that it said; None: finished."""
  if code == 0:
    return None
  try:
    with open(log_of(root, run_id), "rb") as log:
      log.seek(0, os.SEEK_END)
      log.seek(max(0, log.tell() - TAIL))
      text = log.read().decode(errors="replace")
  except OSError as error:
    text = f"its log cannot be read ({error})"
  said = [line.strip() for line in text.splitlines() if line.strip()]
  last = said[-1].removeprefix("isojax: ") if said and not said[-1].startswith(
      "== try ") else "it said nothing"
  if -code in (signal.SIGINT, signal.SIGTERM):
    return f"ended by {signal.Signals(-code).name} before it could save"
  if code < 0:
    return f"killed by {signal.Signals(-code).name}; the last it said: {last}"
  return last if code in (cli.BAD_INPUT, cli.PREEMPTED, cli.DIVERGED) else (
      f"exit code {code}: {last}")
