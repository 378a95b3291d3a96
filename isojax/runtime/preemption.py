"""What a process does that gets SIGTERM or SIGINT.

Until a run listens, SIGTERM ends the process. A run stops on all its processes
at once, and is saved. `listen` is called before imports that take seconds, so
this module imports nothing that takes time.
"""

import contextlib
import os
import signal
import threading
import time

from isojax.core import exit_codes

EXCHANGE_SECONDS = 5.0  # between two exchanges of processes that are sampling


def _end(number, frame) -> None:
  del number, frame
  # Not sys.stderr, which may be in the middle of a write.
  os.write(2, b"isojax: stopped by a signal before or after the steps of a "
           b"run; rerun the same command\n")
  os._exit(exit_codes.PREEMPTED)  # an import may be in progress


def listen() -> None:
  """Makes SIGTERM end the process, until a run listens itself."""
  signal.signal(signal.SIGTERM, _end)


class Stopped(Exception):
  """A process of the run was asked to stop, and all of them know it."""


class Stop:
  """Tells the processes of a run that one of them was asked to stop."""

  def __init__(self):
    self._asked = threading.Event()
    self._checked = time.monotonic()
    self._polls, self._interval = 0, 1  # polls so far; polls between two checks

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
      # Uses only gathered values, so that all processes get the same interval.
      reached = int(self._polls * EXCHANGE_SECONDS / max(*seconds, 1e-3))
      self._interval = max(1, min(reached, 2 * self._interval))
    self._polls, self._checked = 0, time.monotonic()

  def poll(self) -> None:
    """Calls `check` if due; all processes must call, equally often.

    Several processes check after about EXCHANGE_SECONDS, by the slowest.
    """
    from isojax.runtime import hosts
    self._polls += 1
    if hosts.count() == 1 or self._polls >= self._interval:
      self.check()


def on_signals():
  """Yields a Stop that the first SIGTERM or SIGINT sets; the second one kills.
  """
  return _set_by((signal.SIGTERM, signal.SIGINT), lambda _: signal.SIG_DFL)


def on_interrupt():
  """Yields a Stop that the first SIGINT sets; the second one interrupts.

  For callers with signal handlers of their own. Outside of the main thread,
  which alone gets signals, nothing sets the Stop.
  """
  main = threading.current_thread() is threading.main_thread()
  return _set_by((signal.SIGINT,) if main else (), signal.getsignal)


@contextlib.contextmanager
def _set_by(numbers: tuple, second):
  """Yields a Stop that signals set; second(number) handles the second one."""
  stop = Stop()
  again = {number: second(number) for number in numbers}

  def install(number, handler):
    # None: a handler that was not installed by Python, which Python cannot set.
    return signal.signal(number, handler or signal.SIG_DFL)

  def handle(number, frame):
    del frame
    stop.ask()
    install(number, again[number])

  before = {number: install(number, handle) for number in numbers}
  try:
    yield stop
  finally:
    for number, handler in before.items():
      install(number, handler)
