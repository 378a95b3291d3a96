"""Several processes that make one run: they meet, agree, and end together.

Every process runs the same program over its own devices, and computes the same
host values. What only one of them knows (a verdict, a signal, the clock) is
gathered before it decides anything. With one process all of this is free.
"""

import collections
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
import numpy as np
from jax.experimental import multihost_utils

from isojax import cli
from isojax import progress
from isojax.ledger import workdir
from isojax.errors import InputError

# Seconds without a sign of life after which a process counts as dead. Most
# deaths are noticed at once, by a connection that breaks.
HEARTBEAT = 10
MEET = 300  # seconds that a process waits for the others to start
LEAVE = 60  # seconds that a process that is done waits for the others
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS",
          "SLURM_PROCID", "SLURM_LOCALID")
# What collectives and jax's coordination service say of a peer that is gone.
_LOST = re.compile(
    "gloo|nccl|coordination|heartbeat|barrier|connection|socket|unavailable|"
    "deadline_exceeded|aborted|cancelled", re.IGNORECASE)


class EverywhereError(InputError):
  """An InputError that every process raises at once."""


def scheduler(environ: dict, *, tpu: bool) -> str | None:
  """Whose environment says that this is one of several processes, if any's.

  Args:
    environ: os.environ, after jax was imported.
    tpu: whether jax may use the TPUs of this machine.
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
  """Meets the other processes of the run, if there are any.

  Must come before anything asks jax for devices.

  Args:
    coordinator: HOST:PORT of process 0, with the other two; None: found in the
      environment of a TPU pod, Slurm or Kubernetes; "none": there is no other.

  Raises:
    InputError: flags that do not go together, no way to meet, or different
      numbers of devices. Whoever waits in vain is aborted by jax (SIGABRT).
  """
  given, found = (coordinator, num_processes, process_id), None
  if given == (None, None, None):
    found = scheduler(os.environ, tpu=_may_use_tpu())
    if found is None:
      return
  elif given == ("none", None, None):
    return
  elif None in given or not 0 <= process_id < num_processes or not re.fullmatch(
      r".+:\d+", coordinator):
    raise InputError(
        f"--coordinator={coordinator} --num_processes={num_processes} "
        f"--process_id={process_id}: expected HOST:PORT of process 0, how many "
        "processes there are, and which one this is, from 0; or none of the "
        "three where a TPU pod, Slurm or Kubernetes tells them; or only "
        "--coordinator=none, for a run of this process alone")
  progress.say(f"{found or coordinator}: waiting for the other processes of "
               f"this run, at most {MEET} s")
  try:
    jax.distributed.initialize(
        *(given if found is None else ()), initialization_timeout=MEET,
        heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=LEAVE)
  except (RuntimeError, ValueError, OSError) as error:
    needs = "pip install 'jax[k8s]', " if found == "Kubernetes" else ""
    raise InputError(
        f"{found or coordinator}: the processes of this run did not meet "
        f"({str(error).splitlines()[0][:200]}); {needs}start the same command "
        f"on every host within {MEET} s, or give --coordinator=none for a run "
        "of this process alone") from error
  # jax has taken SIGTERM for itself, and would only note it.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  held = collections.Counter(x.process_index for x in jax.devices())
  if len(set(held.values())) > 1:  # each of them sees this
    raise InputError(
        "the processes of this run have different numbers of devices, "
        + ", ".join(f"process {i} has {n}" for i, n in sorted(held.items()))
        + "; give each the same")
  say(f"one run of {len(held)} process(es), {sum(held.values())} devices")


def count() -> int:
  """How many processes make this run."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def number() -> int:
  """Which of them this is, from 0."""
  return jax.process_index() if jax.distributed.is_initialized() else 0


def first() -> bool:
  """Whether this is process 0, which writes what is written once."""
  return number() == 0


def name() -> str:
  return f"{socket.gethostname()} (process {number()})"


def say(line: str) -> None:
  """One line to the terminal of process 0."""
  if first():
    progress.say(line)


def gather(value) -> list:
  """A JSON value of each process, in their order; all of them must call."""
  if count() == 1:
    return [value]
  text = json.dumps(value).encode()
  size = int(np.max(multihost_utils.process_allgather(np.int32(len(text)))))
  width = 1 << max(10, (size - 1).bit_length())  # few shapes, few programs
  padded = np.frombuffer(text.ljust(width), np.uint8)  # JSON ends in spaces
  return [json.loads(bytes(row))
          for row in multihost_utils.process_allgather(padded)]


def run_on_all_hosts(function):
  """function() on every process, which must not talk to the others itself.

  Raises:
    EverywhereError: it raised InputError on some of them; names those hosts.
  """
  if count() == 1:
    return function()
  result = refused = None
  try:
    result = function()
  except InputError as error:
    refused = str(error)
  said = gather([name(), refused])
  if all(message == said[0][1] for _, message in said):
    lines = [said[0][1]] if refused else []
  else:
    lines = [f"{host}: {message}" for host, message in said if message]
  if lines:
    raise EverywhereError("; ".join(lines))
  return result


def agree(values: dict) -> None:
  """Holds a JSON object, and the code that runs, against those of process 0.

  Raises:
    EverywhereError: names the hosts whose object differs, and what differs.
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
  """What this process would run: hash of our sources, versions of libraries."""
  folder, content = pathlib.Path(__file__).parents[1], hashlib.sha256()
  for file in sorted(folder.rglob("*.py")):
    content.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
  return {"isojax": content.hexdigest()[:12], "python": sys.version.split()[0]
          } | {library: importlib.metadata.version(library)
               for library in ("jax", "jaxlib", "numpy", "transformers")}


@contextlib.contextmanager
def shared_fate():
  """What ends this process ends the others too, within seconds.

  An error that is not raised everywhere would leave them waiting: it ends this
  process here and now, before anything waits for a peer that will not answer.
  Theirs then end with cli.PEER_LOST; or with SIGABRT of jax's own, if their
  main thread was not in a collective when it noticed.

  Yields an event, to be set once this start has got further than the one
  before. Until then what looks like a lost peer may come again at every start
  (a wrong set-up, a peer that runs out of memory), and whoever starts again on
  cli.PEER_LOST would do so without end. So it is an error like others, unless
  jax's coordination service misses the heartbeats of a peer, and aborts this
  process while it waits for that.
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
      _complain(f"{traceback.format_exc()}isojax: {name()}: waiting "
                f"{2 * HEARTBEAT} s, in which jax ends this process if another "
                "one is gone\n")
      time.sleep(2 * HEARTBEAT)
    if isinstance(error, InputError):
      code_, text = cli.code_of(error), f"isojax: {name()}: {error}\n"
    elif lost and further.is_set():
      code_, text = cli.PEER_LOST, (
          f"{traceback.format_exc()}isojax: {name()}: stopped, as another "
          "process of this run is gone; what it said last is the reason; the "
          "same command on every host goes on from the newest checkpoint\n")
    else:
      code_, text = 1, f"{name()}:\n{traceback.format_exc()}"
    _complain(text)
    if first() and code_ != cli.PEER_LOST:
      time.sleep(1.0)  # others with the same error may say so before jax goes
    os._exit(code_)


def _complain(text: str) -> None:
  sys.stdout.flush()
  sys.stderr.write(text)
  sys.stderr.flush()
