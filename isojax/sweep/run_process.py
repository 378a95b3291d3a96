"""One process of isojax.main, which the kernel ends with its sweeper."""

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
HEADING = "== attempt "


def tied(cores: tuple[int, ...]):
  """Returns a preexec_fn for Popen that ties a child to this thread.

  On Linux the kernel kills the child when this thread ends, also after kill -9.
  SIGINT must reach the child even where a shell ignores it for us. SIGUSR2 must
  not: Slurm sends it to every process of a job, but it is for submitit alone.

  Args:
    cores: to which the child is pinned; empty: all.
  """
  libc = ctypes.CDLL(None) if sys.platform == "linux" else None
  parent = os.getpid()

  def prepare():
    if libc is not None:
      libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:
        os._exit(1)  # the parent died in between
    if cores and hasattr(os, "sched_setaffinity"):
      os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

  return prepare


def log_of(root: str, run_id: str) -> str:
  return os.path.join(runs_lib.folder(root), f"{run_id}.log")


class RunProcess(subprocess.Popen):
  """A process group of its own, which the terminal's Ctrl-C does not reach."""

  def stop(self) -> None:
    """Asks the run to save and end.

    Not by SIGTERM: a scheduler may have sent that to all processes of a job,
    and a second SIGTERM kills.
    """
    self.send_signal(signal.SIGINT)

  def kill(self) -> None:
    """Ends the process and those that it started, at once."""
    try:
      os.killpg(self.pid, signal.SIGKILL)
    except ProcessLookupError:
      pass
    self.wait()


def start(command: list[str], root: str, run: runs_lib.Run, slot: Slot,
          number: int) -> RunProcess:
  """Starts or resumes a run; its output is appended to the run's log."""
  with open(log_of(root, run.run_id), "ab") as log:
    log.write(f"{HEADING}{number}, {slot.name}, "
              f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    log.flush()
    return RunProcess(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=os.environ | slot.env, process_group=0,
        preexec_fn=tied(slot.cores))


def start_alone(root: str, run: runs_lib.Run, slot: Slot,
                number: int) -> RunProcess:
  """Starts or resumes a run on this host alone, also on a host of a pod."""
  command = runs_lib.command(root, run, sys.executable)
  return start([*command, "--coordinator=none"], root, run, slot, number)


def reason(root: str, run_id: str, code: int) -> str | None:
  """Returns why a run ended: its last line of output; None if it finished."""
  if code == 0:
    return None
  try:
    with open(log_of(root, run_id), "rb") as log:
      log.seek(0, os.SEEK_END)
      log.seek(max(0, log.tell() - TAIL))
      text = log.read().decode(errors="replace")
  except OSError as error:
    text = f"its log cannot be read ({error})"
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  last = "no output"
  if lines and not lines[-1].startswith(HEADING):
    last = lines[-1].removeprefix("isojax: ")
  if -code in (signal.SIGINT, signal.SIGTERM):
    return f"ended by {signal.Signals(-code).name} before it could save"
  if code < 0:
    return f"killed by {signal.Signals(-code).name}; last output: {last}"
  return last if code in (cli.BAD_INPUT, cli.PREEMPTED, cli.DIVERGED) else (
      f"exit code {code}: {last}")
