"""Several processes of one run: they gather, agree, and end together.

Every process runs the same program on its own devices and computes the same
host values. What only one of them knows (a grader's verdict, a signal, the
clock) is gathered before anything depends on it. With one process nothing here
costs time.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import socket
import sys
import threading
import time
import traceback

import jax
import numpy as np
from jax.experimental import multihost_utils

from isojax import cli
from isojax import progress
from isojax.ledger import workdir
from isojax.errors import InputError

# Seconds without a heartbeat after which a process counts as dead. Most deaths
# are noticed at once, by a connection that breaks.
HEARTBEAT = 10
# In the messages of collectives and of jax's coordination service about a
# process that is gone.
_LOST = re.compile(
    "gloo|nccl|coordination|heartbeat|barrier|connection|socket|unavailable|"
    "deadline_exceeded|aborted|cancelled", re.IGNORECASE)


class EverywhereError(InputError):
  """An InputError that every process raises at once."""


def count() -> int:
  """Returns the number of processes of this run."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def number() -> int:
  """Returns the index of this process, from 0."""
  return jax.process_index() if jax.distributed.is_initialized() else 0


def first() -> bool:
  """Returns whether this is process 0, the one that writes files."""
  return number() == 0


def name() -> str:
  return f"{socket.gethostname()} (process {number()})"


def say(line: str) -> None:
  """Prints a line on the terminal of process 0."""
  if first():
    progress.say(line)


def gather(value) -> list:
  """Returns a JSON value of each process, in order; every process must call."""
  if count() == 1:
    return [value]
  text = json.dumps(value).encode()
  size = int(np.max(multihost_utils.process_allgather(np.int32(len(text)))))
  width = 1 << max(10, (size - 1).bit_length())  # few shapes, few programs
  padded = np.frombuffer(text.ljust(width), np.uint8)  # JSON ends in spaces
  return [json.loads(bytes(row))
          for row in multihost_utils.process_allgather(padded)]


def run_on_all_hosts(function):
  """Returns function(), called on every process at once.

  Args:
    function: must not communicate with the other processes.

  Raises:
    EverywhereError: the function raised InputError on some process; the message
      names those hosts.
  """
  if count() == 1:
    return function()
  result = refused = None
  try:
    result = function()
  except InputError as error:
    refused = str(error)
  errors = gather([name(), refused])
  if all(message == errors[0][1] for _, message in errors):
    lines = [refused] if refused else []
  else:
    lines = [f"{host}: {message}" for host, message in errors if message]
  if lines:
    raise EverywhereError("; ".join(lines))
  return result


def agree(values: dict) -> None:
  """Compares a JSON object, and the code that runs, with those of process 0.

  Raises:
    EverywhereError: some differ; the message names the hosts and the keys.
  """
  if count() == 1:
    return
  (host, theirs), *others = gather([name(), values | {"code": code()}])
  lines = [workdir.differences(theirs, found, at=(f"on {host}", f"on {other}"))
           for other, found in others if found != theirs]
  if lines:
    raise EverywhereError(
        "the processes of one run differ: " + "; ".join(lines) + "; start the "
        "same command from the same commit on every host; for separate runs, "
        "give each --coordinator=none")


def code() -> dict:
  """Returns the hash of our sources and the versions of libraries."""
  folder, content = pathlib.Path(__file__).parents[1], hashlib.sha256()
  for file in sorted(folder.rglob("*.py")):
    content.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
  return {"isojax": content.hexdigest()[:12], "python": sys.version.split()[0]
          } | {library: importlib.metadata.version(library)
               for library in ("jax", "jaxlib", "numpy", "transformers")}


@contextlib.contextmanager
def shared_fate():
  """What ends this process ends the others too, within seconds.

  An error that is not raised on every process would leave the others waiting.
  So it ends this process at once, before anything waits for an answer. The
  others then end with cli.PEER_LOST; or with SIGABRT, raised by jax, if their
  main thread was not in a collective when it noticed.

  Yields an event, to be set once this start has made more progress than the one
  before. Until then, what looks like a lost process may happen again at every
  start (a wrong set-up, a process that runs out of memory), and a scheduler
  that restarts on cli.PEER_LOST would do so without end. So it is an error like
  others, unless jax's coordination service misses heartbeats of a process and
  aborts this one while it waits for that.
  """
  further = threading.Event()
  if count() == 1:
    yield further
    return
  try:
    yield further
  except EverywhereError:
    raise
  except BaseException as error:
    lost = isinstance(error, (ValueError, RuntimeError)) and not isinstance(
        error, InputError) and _LOST.search(str(error))
    if lost and not further.is_set():
      complain(f"{traceback.format_exc()}isojax: {name()}: waiting "
                f"{2 * HEARTBEAT} s, in which jax ends this process if another "
                "one is gone\n")
      time.sleep(2 * HEARTBEAT)
    if isinstance(error, InputError):
      code_, text = cli.code_of(error), f"isojax: {name()}: {error}\n"
    elif lost and further.is_set():
      code_, text = cli.PEER_LOST, (
          f"{traceback.format_exc()}isojax: {name()}: stopped, because "
          "another process of this run is gone; its last output is the reason. "
          "Run the same command on every host to resume from the newest "
          "checkpoint\n")
    else:
      code_, text = 1, f"{name()}:\n{traceback.format_exc()}"
    complain(text)
    if first() and code_ != cli.PEER_LOST:
      time.sleep(1.0)  # others with the same error may print it first
    os._exit(code_)


def complain(text: str) -> None:
  """Writes to standard error, after what was printed so far."""
  sys.stdout.flush()
  sys.stderr.write(text)
  sys.stderr.flush()
