"""Ends a command that gets SIGTERM while no run listens to signals.

isojax.stopping handles the signals of a run. This module imports nothing that
takes time, so a command can call it before its imports, which take seconds.
"""

import os
import signal

CODE = 75  # of a command that should be run again


def _end(number, frame) -> None:
  del number, frame
  # Not sys.stderr, which may be in the middle of a write.
  os.write(2, b"isojax: stopped by a signal before or after the steps of a run; "
           b"rerun the same command\n")
  os._exit(CODE)  # an import may be in progress


def listen() -> None:
  """Makes SIGTERM end the process with CODE, until a run listens itself."""
  signal.signal(signal.SIGTERM, _end)
