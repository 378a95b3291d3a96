"""Several processes of one run: they start, exchange values and end together.

Every process runs the same program on its own devices and computes the same
host values. What only one of them knows (a grader's verdict, a signal, the
clock) is gathered before anything depends on it.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import sys
import threading
import time
import traceback

import jax
from jax.experimental import multihost_utils
import numpy as np

from isojax.core import exit_codes, sections
from isojax.errors import InputError
from isojax.runtime import progress

START_SECONDS = 300  # for which a process waits for the others to start
SHUTDOWN_SECONDS = 60  # for which a finished process waits for the others
# Seconds without a heartbeat after which a process counts as dead. Most deaths
# are noticed at once, by a connection that breaks.
HEARTBEAT_SECONDS = 10
# Matches errors of collectives and of jax's coordination service about a
# process that is gone.
_LOST = re.compile(
    "gloo|nccl|coordination|heartbeat|barrier|connection|socket|unavailable|"
    "deadline_exceeded|aborted|cancelled", re.IGNORECASE)
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS",
          "SLURM_PROCID", "SLURM_LOCALID")


def scheduler(environ: dict, *, tpu: bool) -> str | None:
  """The scheduler that started this process as one of several, or None.

  `environ` is os.environ after jax was imported.
  """
  has = lambda *names: all(name in environ for name in names)
  if has(*_SLURM) and int(environ["SLURM_NTASKS"]) > 1:
    return "Slurm"
  if tpu and has("TPU_WORKER_HOSTNAMES"):  # of GKE
    return "TPU" if "," in environ["TPU_WORKER_HOSTNAMES"] or has(
        "MEGASCALE_COORDINATOR_ADDRESS") else None
  if tpu and not has("TPU_SKIP_MDS_QUERY"):  # jax sets it where no TPU is
    return "TPU"
  if has("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"):
    return "Kubernetes"
  return None


def _may_use_tpu() -> bool:
  platforms = jax.config.jax_platforms
  return importlib.util.find_spec("libtpu") is not None and (
      not platforms or "tpu" in platforms.split(","))


def initialize(coordinator: str | None, num_processes: int | None,
               process_id: int | None) -> None:
  """Connects the processes of the run, before anything asks jax for devices.

  A process that waits START_SECONDS in vain ends with exit_codes.BAD_INPUT. The
  arguments are flags of isojax.main; without any the environment of a TPU pod,
  Slurm or Kubernetes decides.
  """
  # `origin`, for messages, is what connects: a coordinator, or a scheduler.
  arguments, origin = (coordinator, num_processes, process_id), coordinator
  alone = arguments == ("none", None, None)
  if arguments == (None, None, None):
    origin = scheduler(os.environ, tpu=_may_use_tpu())
    arguments, alone = (), origin is None
  if alone:
    return
  if arguments and (
      None in arguments or not 0 <= process_id < num_processes
      or num_processes < 2 or not re.fullmatch(r".+:\d+", coordinator)):
    raise InputError(
        f"--coordinator={coordinator} --num_processes={num_processes} "
        f"--process_id={process_id}: expected HOST:PORT of process 0, the "
        "number of all processes, and which one this is, from 0; or none of "
        "the three on a TPU pod, under Slurm or Kubernetes; or only "
        "--coordinator=none, for a run of this process alone")
  hint = (f"start the same command on every host within {START_SECONDS} s, or "
          "give --coordinator=none for a run of this process alone")
  # Before jax's own timeout, which aborts the process with a stack of C++.
  timeout = threading.Timer(START_SECONDS, _end, [exit_codes.BAD_INPUT, (
      f"isojax: {origin}: waited {START_SECONDS} s for the other processes of "
      f"this run; {hint}\n")])
  timeout.daemon = True
  timeout.start()
  progress.say(f"{origin}: waiting for the other processes of this run, at "
               f"most {START_SECONDS} s")
  handler = signal.getsignal(signal.SIGTERM)  # of preemption.listen
  try:
    jax.distributed.initialize(
        *arguments, initialization_timeout=START_SECONDS + 60,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS)
  except (RuntimeError, ValueError, OSError, ImportError) as error:
    why = str(error).splitlines()[0][:200]
    raise InputError(f"{origin}: {why}; {hint}") from error
  finally:
    timeout.cancel()
  # jax has installed its own handler, which would only note the signal.
  signal.signal(signal.SIGTERM, handler)
  say(f"one run of {count()} processes, {jax.device_count()} devices")


class EverywhereError(InputError):
  """An InputError that every process raises at once."""


def count() -> int:
  return jax.process_count() if jax.distributed.is_initialized() else 1


def number() -> int:
  return jax.process_index() if jax.distributed.is_initialized() else 0


def first() -> bool:
  """Whether this is process 0, the one that writes files."""
  return number() == 0


def name() -> str:
  return f"{socket.gethostname()} (process {number()})"


def say(line: str) -> None:
  if first():
    progress.say(line)


def gather(value) -> list:
  """A JSON value of each process, in order; every process must call."""
  if count() == 1:
    return [value]
  text = json.dumps(value).encode()
  size = int(np.max(multihost_utils.process_allgather(np.int32(len(text)))))
  # A power of 2 of at least 1 KiB: few shapes, few programs.
  width = 1 << max(10, (size - 1).bit_length())
  padded = np.frombuffer(text.ljust(width), np.uint8)  # JSON ends in spaces
  return [json.loads(bytes(row))
          for row in multihost_utils.process_allgather(padded)]


def run_on_all_hosts(function):
  """Returns function(), which must not communicate; every process must call.

  If it raises InputError on some hosts, all raise EverywhereError, which names
  them unless the message is the same on all.
  """
  if count() == 1:
    return function()
  result = refused = None
  try:
    result = function()
  except InputError as error:
    refused = str(error)
  errors = gather([name(), refused])
  if refused and all(message == refused for _, message in errors):
    raise EverywhereError(refused)
  if lines := [f"{host}: {message}" for host, message in errors if message]:
    raise EverywhereError("; ".join(lines))
  return result


def assert_same_on_all_hosts(values: dict) -> None:
  """EverywhereError if a JSON object, or the code, differs from process 0's."""
  if count() == 1:
    return
  (host, ours), *others = gather([name(), values | {"code": code()}])
  lines = [sections.differences(ours, theirs, at=(f"on {host}", f"on {other}"))
           for other, theirs in others if theirs != ours]
  if lines:
    raise EverywhereError(
        "the processes of one run differ: " + "; ".join(lines) + "; start the "
        "same command from the same commit on every host; for separate runs, "
        "give each --coordinator=none")


def code() -> dict:
  """The hash of isojax's sources, and versions of Python and libraries."""
  folder, content = pathlib.Path(__file__).parents[1], hashlib.sha256()
  for file in sorted(folder.rglob("*.py")):
    content.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
  return {"isojax": content.hexdigest()[:12], "python": sys.version.split()[0]
          } | {library: importlib.metadata.version(library)
               for library in ("jax", "jaxlib", "numpy", "transformers")}


@contextlib.contextmanager
def fail_together():
  """If this process ends with an error, the others end too, within seconds.

  An error that is not raised on every process would leave the others waiting,
  so it ends this process at once. The others then end with PEER_LOST; or with
  SIGABRT, raised by jax, if their main thread was not in a collective.

  Yields an event, to be set once this process has made more progress than the
  one that it resumes. Until then, what looks like a lost process may happen
  again at every start (a wrong set-up, too little memory), and a scheduler that
  restarts on PEER_LOST would do so without end. So the exit code is that of
  other errors, unless jax misses heartbeats of a process and aborts this one
  while it waits.
  """
  past_first_save = threading.Event()
  if count() == 1:
    yield past_first_save
    return
  try:
    yield past_first_save
  except EverywhereError:
    raise
  except BaseException as error:
    lost = isinstance(error, (ValueError, RuntimeError)) and not isinstance(
        error, InputError) and _LOST.search(str(error))
    if lost and not past_first_save.is_set():
      _say_last(f"{traceback.format_exc()}isojax: {name()}: waiting "
                f"{2 * HEARTBEAT_SECONDS} s, in which jax ends this process if "
                "another one is gone\n")
      time.sleep(2 * HEARTBEAT_SECONDS)
    if isinstance(error, InputError):
      exit_code = exit_codes.exit_code(error)
      text = f"isojax: {name()}: {error}\n"
    elif lost and past_first_save.is_set():
      exit_code, text = exit_codes.PEER_LOST, (
          f"{traceback.format_exc()}isojax: {name()}: stopped, because "
          "another process of this run is gone; its last output is the reason. "
          "Run the same command on every host to resume from the newest "
          "checkpoint\n")
    else:
      exit_code, text = 1, f"{name()}:\n{traceback.format_exc()}"
    if first() and exit_code != exit_codes.PEER_LOST:
      time.sleep(1.0)  # others with the same error may print it first
    _end(exit_code, text)


def _say_last(text: str) -> None:
  sys.stdout.flush()
  sys.stderr.write(text)
  sys.stderr.flush()


def _end(exit_code: int, text: str) -> None:
  _say_last(text)
  os._exit(exit_code)
