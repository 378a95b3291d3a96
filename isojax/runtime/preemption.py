"""Handles SIGTERM and SIGINT: a run stops, and is saved.

Before a run handles signals, SIGTERM ends the process. A run stops on all its
processes at once. `listen` is called before imports that take seconds, so
this module imports nothing that takes time.
"""

import contextlib
import os
import signal
import sys
import threading
import time

from isojax.core import exit_codes

EXCHANGE_SECONDS = 5.0  # between two exchanges of processes that are sampling
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Part of a file's path -> what the run waits for if its main thread is in it;
# the first one that matches counts.
WORK_IN = {
    "jax/_src/compiler": "XLA, which compiles a program",
    "orbax": "a checkpoint to be written",
    "isojax/rl/": "the forward and backward passes in progress",
    "isojax/sampling/": "the chunk of sampling in progress",
    "isojax/run/rollouts": "the grader",
    "isojax/run/": "the step in progress",
}


def _tell(text: str) -> None:
  start = "\n" if os.isatty(2) else ""  # a terminal has written ^C
  # Not sys.stderr, which may be in the middle of a write.
  os.write(2, f"{start}isojax: {text}\n".encode())


def _end(number, frame) -> None:
  del number, frame
  _tell("stopped by a signal before or after the steps of a run; rerun the "
        "same command")
  os._exit(exit_codes.PREEMPTED)  # an import may be in progress


def listen() -> None:
  """Makes SIGTERM end the process, until a run handles it."""
  signal.signal(signal.SIGTERM, _end)


class Stopped(Exception):
  """A process of the run was asked to stop, and all of them know it."""


class Stop:
  """Tells the processes of a run that one of them was asked to stop."""

  def __init__(self):
    self._asked = threading.Event()
    self._checked = time.monotonic()
    # Polls since the last check; polls between two checks.
    self._polls, self._interval = 0, 1

  def ask(self) -> None:
    self._asked.set()

  @property
  def asked(self) -> bool:
    """Whether this process was asked; the others may not know it yet."""
    return self._asked.is_set()

  def check(self) -> None:
    """Raises Stopped if any process was asked; all of them must call."""
    from isojax.runtime import hosts
    asked, seconds = zip(*hosts.gather(
        [self.asked, time.monotonic() - self._checked]), strict=True)
    if any(asked):
      raise Stopped
    if self._polls:
      # Polls of the slowest process in EXCHANGE_SECONDS; from gathered values,
      # so that all processes get the same interval.
      polls = int(self._polls * EXCHANGE_SECONDS / max(*seconds, 1e-3))
      self._interval = max(1, min(polls, 2 * self._interval))
    self._polls, self._checked = 0, time.monotonic()

  def poll(self) -> None:
    """Calls `check` if due; all processes must call, equally often.

    It is due at each poll of a run of one process, else about EXCHANGE_SECONDS
    after the last check, on the clock of the slowest process.
    """
    from isojax.runtime import hosts
    self._polls += 1
    if hosts.count() == 1 or self._polls >= self._interval:
      self.check()


@contextlib.contextmanager
def on_signals():
  """Yields a Stop that SIGTERM and SIGINT set.

  The second signal prints what the run waits for; the third ends the process.
  """
  stop = Stop()
  with _handled(SIGNALS, lambda *_: stop.ask()), _answered(SIGNALS, end=True):
    yield stop


@contextlib.contextmanager
def _answered(numbers: tuple, *, end: bool):
  """Prints a line at each signal, from a thread, as the main one may compile.

  With `end` the third signal ends the process.
  """
  read, write = os.pipe()
  os.set_blocking(write, False)
  threading.Thread(target=_answer, args=(read, numbers, end),
                   daemon=True).start()
  before = signal.set_wakeup_fd(write)
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    os.close(write)  # ends the thread


def _answer(read: int, numbers: tuple, end: bool) -> None:
  """Prints what each signal does; a pipe `read` has the signals' numbers."""
  count = 0
  while number := os.read(read, 1):
    if number[0] not in numbers:
      continue
    count += 1
    if count == 1:
      _tell("stopping: the last completed step will be saved")
    elif count == 2:
      then = "a third signal ends the process" if end else "the run ends then"
      _tell(f"waiting for {_current_work()}; {then}, and the last checkpoint "
            "is kept")
    elif end:
      os._exit(exit_codes.PREEMPTED)
  os.close(read)


def _current_work() -> str:
  """What the main thread is in, by WORK_IN."""
  frame, files = sys._current_frames()[threading.main_thread().ident], []
  while frame:
    files.append(frame.f_code.co_filename)
    frame = frame.f_back
  return next((what for part, what in WORK_IN.items()
               if any(part in file for file in files)), "the step")


@contextlib.contextmanager
def on_interrupt():
  """Yields a Stop that the first SIGINT sets; the second one interrupts.

  For callers with signal handlers of their own, such as a notebook. Outside of
  the main thread, which alone gets signals, nothing sets the Stop.
  """
  stop, second = Stop(), signal.getsignal(signal.SIGINT)

  def first(number, frame):
    del frame
    stop.ask()
    # None: a handler that Python has not installed and cannot set.
    signal.signal(number, second or signal.SIG_DFL)

  if threading.current_thread() is not threading.main_thread():
    yield stop
    return
  numbers = (signal.SIGINT,)
  with _handled(numbers, first), _answered(numbers, end=False):
    yield stop


@contextlib.contextmanager
def _handled(numbers: tuple, handler):
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)
