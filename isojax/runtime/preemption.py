"""Handles SIGTERM and SIGINT: a run stops, and is saved.

Before a run handles signals, SIGTERM ends the process. A run stops on all its
processes at once. `listen` is called before imports that take seconds, so
this module imports nothing that takes time.
"""

import contextlib
import os
import signal
import threading
import time

from isojax.core import exit_codes

EXCHANGE_SECONDS = 5.0  # between two exchanges of processes that are sampling
SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPING = "stopping: the last completed step will be saved"


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
  """Yields a Stop that SIGTERM and SIGINT set; the third signal ends the run.

  Not the second one: a scheduler may send one to each process of a sweep, and
  then the sweeper sends one, too.
  """
  stop, count = Stop(), 0

  def handler(number, frame):
    nonlocal count
    del number, frame
    count += 1
    stop.ask()
    if count > 2:
      os._exit(exit_codes.PREEMPTED)
    _tell(STOPPING if count == 1 else "still stopping; a third signal ends the "
          "process, and the last checkpoint is kept")

  with _handled(SIGNALS, handler):
    yield stop


@contextlib.contextmanager
def on_interrupt():
  """Yields a Stop that the first SIGINT sets; the second one interrupts.

  For callers with their own signal handlers, such as a notebook. Outside the
  main thread, which alone gets signals, nothing sets the Stop.
  """
  stop, second = Stop(), signal.getsignal(signal.SIGINT)

  def first(number, frame):
    del frame
    stop.ask()
    # None: a handler that Python has not installed and cannot set.
    signal.signal(number, second or signal.SIG_DFL)
    _tell(STOPPING)

  if threading.current_thread() is not threading.main_thread():
    yield stop
    return
  with _handled((signal.SIGINT,), first):
    yield stop


@contextlib.contextmanager
def _handled(numbers: tuple, handler):
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)
