"""How the processes of one run connect at its start, or say why they cannot.

What they do once they are connected is in hosts.py.
"""

import collections
import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import socket
import threading
import time

import jax
import numpy as np

from isojax import cli
from isojax import progress
from isojax.distributed import hosts
from isojax.errors import InputError

MEET = 300  # seconds that a process waits for the others to start
REPORT = 30  # seconds between messages about who is missing
TELL = 30  # seconds in which a process with a wrong flag tells the others
LEAVE = 60  # seconds that a finished process waits for the others
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS",
          "SLURM_PROCID", "SLURM_LOCALID")


def scheduler(environ: dict, *, tpu: bool) -> str | None:
  """Returns what has started this process as one of several; None: nothing.

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


def _is_here(host: str) -> bool:
  """Returns whether a name or address is one of this machine."""
  try:
    for family, *_, address in socket.getaddrinfo(host, 0,
                                                  type=socket.SOCK_DGRAM):
      with contextlib.suppress(OSError), socket.socket(
          family, socket.SOCK_DGRAM) as one:
        one.bind(address)
        return True
  except OSError:
    pass  # the name has no address: jax reports that
  return False


def _connected(port: int) -> list[str]:
  """Returns the remote addresses of connections to a TCP port of this machine.

  Linux only; elsewhere none. Addresses in /proc are 32-bit words in the byte
  order of the machine.
  """
  found = []
  for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
    try:
      lines = pathlib.Path("/proc/net", name).read_text().splitlines()[1:]
    except OSError:
      continue
    for local, remote, state in (line.split()[1:4] for line in lines):
      if int(local.rpartition(":")[2], 16) == port and state == "01":
        words = np.frombuffer(bytes.fromhex(remote.partition(":")[0]), ">u4")
        found.append(socket.inet_ntop(family, words.astype("=u4").tobytes())
                     .removeprefix("::ffff:"))
  return found


def _missing(coordinator: str | None, num_processes: int | None,
             process_id: int | None) -> str:
  """Returns what this process can tell about those that are missing."""
  if coordinator is None:
    return "look at the output of the other processes"
  host, _, port = coordinator.rpartition(":")
  if process_id == 0:
    there = _connected(int(port))
    return (f"of {num_processes} processes {len(there)} are connected, from "
            f"{', '.join(sorted(set(there))) or 'nowhere'}; look at the output "
            "of the others")
  try:
    socket.create_connection((host.strip("[]"), int(port)), 2).close()
  except OSError as error:
    return (f"process 0 does not answer at {coordinator} ({error}); is it "
            "started there, and is the port open?")
  return "process 0 answers, another process is missing"


def _report_waiting(coordinates: tuple, met: threading.Event) -> None:
  """Prints who is missing until all have met; ends this process after MEET."""
  began = time.monotonic()
  while not met.wait(min(REPORT, max(0.0, MEET + began - time.monotonic()))):
    waited = time.monotonic() - began
    text = (f"waited {waited:.0f} of {MEET} s for the other processes of this "
            f"run: {_missing(*coordinates)}")
    if waited < MEET - 1:
      progress.say(text)
      continue
    hosts.complain(
        f"isojax: {text}; start the same command on every host within {MEET} "
        "s, or give --coordinator=none for a run of this process alone\n")
    os._exit(cli.BAD_INPUT)


def check_flags(coordinator: str | None, num_processes: int | None,
                process_id: int | None) -> None:
  """Raises InputError unless the three flags go together."""
  given = f"--coordinator={coordinator} --num_processes={num_processes} " + (
      f"--process_id={process_id}")
  if None in (coordinator, num_processes, process_id) or not (
      0 <= process_id < num_processes) or not re.fullmatch(
          r".+:\d+", coordinator):
    raise InputError(
        f"{given}: expected HOST:PORT of process 0, how many processes there "
        "are, and which one this is, from 0; or none of the three where a TPU "
        "pod, Slurm or Kubernetes provides them; or only --coordinator=none, "
        "for a run of this process alone")
  if num_processes == 1:
    raise InputError(
        f"{given}: a run of one process does not meet others, and several such "
        "processes would be separate runs; give the number of all processes, "
        "or only --coordinator=none for a run of this process alone")


def initialize(coordinator: str | None, num_processes: int | None,
               process_id: int | None) -> None:
  """Connects the processes of the run, if there are several.

  Must be called before anything asks jax for devices. A process that waits in
  vain ends with cli.BAD_INPUT and says who is missing.

  Args:
    coordinator: HOST:PORT of process 0; None: all three are taken from the
      environment of a TPU pod, Slurm or Kubernetes; "none": a run of this
      process alone.
    num_processes: of the run.
    process_id: of this process, from 0.

  Raises:
    InputError: the flags do not go together, the processes cannot connect, or
      they have different numbers of devices.
  """
  given, found = (coordinator, num_processes, process_id), None
  if given == (None, None, None):
    found = scheduler(os.environ, tpu=_may_use_tpu())
    if found is None:
      return
  elif given == ("none", None, None):
    return
  else:
    check_flags(*given)
    if process_id == 0 and not _is_here(
        coordinator.rpartition(":")[0].strip("[]")):
      progress.say(f"note: --coordinator={coordinator} is not an address of "
                   "this machine, although --process_id=0 has to run there")
  progress.say(f"{found or coordinator}: waiting for the other processes of "
               f"this run, at most {MEET} s")
  met = threading.Event()
  threading.Thread(target=_report_waiting, args=(given, met),
                   daemon=True).start()
  try:
    jax.distributed.initialize(
        *(given if found is None else ()), initialization_timeout=MEET + 60,
        heartbeat_timeout_seconds=hosts.HEARTBEAT,
        shutdown_timeout_seconds=LEAVE)
  except (RuntimeError, ValueError, OSError) as error:
    needs = "pip install 'jax[k8s]', " if found == "Kubernetes" else ""
    raise InputError(
        f"{found or coordinator}: the processes of this run cannot connect "
        f"({str(error).splitlines()[0][:200]}); {needs}start the same command "
        f"on every host within {MEET} s, or give --coordinator=none for a run "
        "of this process alone") from error
  finally:
    met.set()
  # jax has installed its own SIGTERM handler, which would only note it.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  held = collections.Counter(x.process_index for x in jax.devices())
  if len(set(held.values())) > 1:  # every process sees this
    raise InputError(
        "the processes of this run have different numbers of devices, "
        + ", ".join(f"process {i} has {n}" for i, n in sorted(held.items()))
        + "; give each the same")
  hosts.say(f"one run of {len(held)} processes, {sum(held.values())} devices")


def refuse(coordinator: str | None, num_processes: int | None,
           process_id: int | None, message: str) -> None:
  """Ends every process of the run with the error of this one.

  For an error before the processes have met. Without it, the others would wait
  for this process in vain. Returns if there are no others.

  Args:
    coordinator: as for `initialize`, as the next two.
    num_processes: of the run.
    process_id: of this process.
    message: the error, which this process has printed already.
  """
  late = threading.Timer(TELL, os._exit, [cli.BAD_INPUT])
  late.daemon = True
  late.start()
  initialize(coordinator, num_processes, process_id)

  def fail():
    raise InputError(message)

  if hosts.count() > 1:
    with hosts.shared_fate():
      hosts.run_on_all_hosts(fail)
  late.cancel()
