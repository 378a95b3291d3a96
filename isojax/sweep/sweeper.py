"""Starts the runs of a sweep, each in a process with its own devices.

Runs resume and lock themselves, so a sweeper stores only ROOT/RUN_ID.py and
ROOT/RUN_ID.log of each run. It locks the log of a run until the run ends, so
that several sweepers on one file system can share the work.
"""

import collections
import contextlib
import copy
import ctypes
import dataclasses
import fcntl
import json
import os
import pprint
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import typing

from isojax.core import (
  config_file,
  disk,
  evaluate,
  exit_codes,
  plan_file,
  sections,
)
from isojax.core.allocation import allocate, Allocation
from isojax.core.format import aligned
from isojax.errors import InputError
from isojax.ledger import records, workdir
from isojax.run import history
from isojax.runtime import progress

POLL_SECONDS = 0.5  # between checks of the processes
REPORT_SECONDS = 60.0  # between lines about the progress of the runs
ETA_STEPS = 20  # the last training steps, whose speed gives the ETA
TAIL_BYTES = 1 << 20  # at the end of a file; only these are read
MARK = "== "  # begins the lines of a log that the sweeper wrote
# Exit codes of a run that was asked to stop. A negative code is the signal that
# ended the run before it could save.
STOPPED = (exit_codes.PREEMPTED, -signal.SIGINT, -signal.SIGTERM)
# Exit codes after which another try would fail in the same way.
FINAL = (exit_codes.BAD_INPUT, exit_codes.DIVERGED)
PR_SET_PDEATHSIG = 1  # of prctl
CONFIG = '''{source!r}

from math import inf, nan

from ml_collections import config_dict


def get_config():
  return config_dict.ConfigDict({values})
'''


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedRun:
  """One row of a plan, applied to a config."""

  folder: str  # ROOT/RUN_ID; the id is a hash of what decides the results
  source: str  # PLAN:LINE
  config: dict
  alloc: Allocation

  @property
  def log(self) -> str:
    return f"{self.folder}.log"

  @property
  def lock(self) -> str:
    return os.path.join(self.folder, "lock")

  @property
  def name(self) -> str:
    return os.path.basename(self.folder)

  @property
  def is_constant(self) -> bool:
    """Whether its rate is constant, so that decayed runs may begin with it."""
    return self.config["recipe"]["optimizer"]["decay"] == 0


# --- from a plan to runs ---


def _run_of_row(lines: list[str], index: int, path: str, config, root: str
                ) -> PlannedRun:
  from isojax.run import experiment  # loads jax
  where = f"{path}:{index + 1}"
  config = copy.deepcopy(config)
  config_file.apply_row(config, lines, index, path)
  values = config.to_dict()
  try:
    alloc = sections.section(allocate, values["alloc"], "config.alloc")
  except InputError as error:
    raise InputError(f"{where}: {error}") from error
  name = workdir.hash_of(experiment.identity(json.loads(json.dumps(values))))
  return PlannedRun(os.path.join(root, name), where, values, alloc)


def check_root(root: str) -> None:
  if ":" in root:
    raise InputError(f"--root={root}: expected a folder without a colon, on a "
                     "file system that all machines of the sweep share")
  if os.path.isfile(root):
    raise InputError(f"--root={root} is a file; expected a folder")


def runs_of_plan(path: str, config, root: str
                 ) -> tuple[list[PlannedRun], list[str]]:
  """The distinct runs of a plan, and messages about rows that are wrong."""
  check_root(root)
  config_file.check_run(config)
  lines = plan_file.read_lines(path)
  if not lines:
    raise InputError(f"--plan={path}: has no rows; make it with launch.plan")
  runs, messages = {}, []
  for index in range(len(lines)):
    try:
      run = _run_of_row(lines, index, path, config, root)
      runs.setdefault(run.folder, run)
    except InputError as error:
      messages.append(str(error))
  return list(runs.values()), messages


def runs_of_shard(runs: list[PlannedRun], shard: str | None
                  ) -> list[PlannedRun]:
  """The runs of --shard=I/N; all without it."""
  if shard is None:
    return runs
  match = re.fullmatch(r"(\d+)/([1-9]\d*)", shard)
  if match is None or int(match[1]) >= int(match[2]):
    raise InputError(f"--shard={shard}: expected I/N with 0 <= I < N")
  return runs[int(match[1])::int(match[2])]


# --- the state of runs, from their files ---


def _tail(path: str) -> list[str]:
  """The last complete lines of a file; none if it cannot be read."""
  try:
    with open(path, "rb") as file:
      file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
      text = file.read().decode(errors="replace")
  except OSError:
    return []
  return text[:text.rfind("\n") + 1].splitlines()


def is_complete(run: PlannedRun) -> bool:
  """Whether the last evaluation, at C or by eval.patience, is recorded.

  And its checkpoint, which is saved later, unless all of them were deleted.
  """
  lines = _tail(os.path.join(run.folder, history.RECORDS))
  store = os.path.join(run.folder, history.CHECKPOINTS)
  try:
    last = json.loads(lines[-1])
    finished = run.alloc.is_finished(
        last["step"], last["rollouts"],
        rounds=run.config["recipe"]["filter"]["rounds"])
    is_saved = not os.path.isdir(store) or os.path.isdir(
        os.path.join(store, str(last["step"])))
    return last["kind"] == "eval" and is_saved and (
        finished or _out_of_patience(run))
  except (IndexError, KeyError, ValueError):  # damaged: the run prints why
    return False


def _out_of_patience(run: PlannedRun) -> bool:
  patience = run.config["eval"]["patience"]
  if patience is None:
    return False
  run_records, _ = records.sound(os.path.join(run.folder, "records.jsonl"))
  return history.history_of(run_records).stale >= patience


def last_error(run: PlannedRun) -> tuple[int | None, str]:
  """Exit code of the last attempt, and its last line of output.

  (None, "") while the run is going, or before its first attempt.
  """
  # An empty line, because there may be fewer than two.
  lines = ["", *filter(str.strip, _tail(run.log))]
  ended = re.match(rf"{MARK}exit code (-?\d+)", lines[-1])
  if ended is None:
    return None, ""
  code = int(ended[1])
  message = "no output" if lines[-2].startswith(MARK) else lines[-2].strip()
  message = message.removeprefix("isojax: ")
  if code < 0:  # the last line is of no error
    message = f"{signal.strsignal(-code)} (signal {-code}) after: {message}"
  return code, message


def state_of(run: PlannedRun) -> str:
  """finished, running, failed, stopped or waiting."""
  if is_complete(run):
    return "finished"
  if workdir.is_locked(run.log) or workdir.is_locked(run.lock):
    return "running"
  if last_error(run)[0] not in (None, *STOPPED):
    return "failed"
  return "stopped" if os.path.isdir(run.folder) else "waiting"


def _best(run_records: list[dict]) -> str:
  """The best evaluation of a run, as text."""
  judged = [record for record in run_records
            if record["kind"] == "eval" and evaluate.is_judged(record)]
  best = max(judged, key=lambda record: record["avg"], default=None)
  return "-" if best is None else (
      f"{best['avg']:.4f} ± {best['avg_se']:.4f} at {best['step']}")


def _table_row(run: PlannedRun, state: str, run_records: list[dict]
               ) -> list[str]:
  alloc, eta = run.alloc, "-"
  rollouts = run_records[-1]["rollouts"] if run_records else 0
  train = [r for r in run_records if r["kind"] == "train"][-ETA_STEPS:]
  if state == "running" and train:
    sampled = statistics.mean(
        r["Bp"] * r["n"] * (1 + r["extra_rounds"]) for r in train)
    seconds = statistics.median(sum(records.phases(r)) for r in train)
    eta = progress.format_seconds((alloc.C - rollouts) / sampled * seconds)
  return [run.name, state, str(run.config["seed"]), str(alloc.Bp), str(alloc.n),
          f"{rollouts:,}/{alloc.C:,}", _best(run_records), eta]


def _records(run: PlannedRun) -> tuple[list[dict], str | None]:
  """The undamaged records of a run, and what is wrong with its file, if any."""
  try:
    return records.sound(os.path.join(run.folder, "records.jsonl"))
  except InputError as error:
    return [], str(error)


def table(runs: list[PlannedRun]) -> str:
  """A line for each run; below, errors of failed runs and damaged records."""
  states = [state_of(run) for run in runs]
  records_by_run = list(map(_records, runs))
  lines = [["run", "state", "seed", "Bp", "n", "rollouts/C", "best avg", "ETA"],
           *map(_table_row, runs, states, (r for r, _ in records_by_run))]
  return "\n".join([aligned(lines), *(
      f"{run.name} ({run.source}): {last_error(run)[1]}"
      for run, state in zip(runs, states, strict=True) if state == "failed"),
      *(damage for _, damage in records_by_run if damage)])


# --- the devices of this machine ---

# Runs in another process, because a process that lists accelerators takes them.
# Prints the platform and the number of chips: cores of a chip share `coords`.
PROBE = ("import jax; d = jax.local_devices(); print(d[0].platform, "
         "len({str(getattr(x, 'coords', x.id)) for x in d}))")


def workers_here(count: int | None, per_run: int) -> list[dict]:
  """The environment variables of each worker here; see `split_devices`."""
  platform = "cpu"
  if os.environ.get("JAX_PLATFORMS") != "cpu":
    *_, platform, number = subprocess.run(
        [sys.executable, "-c", PROBE], check=True, text=True,
        stdout=subprocess.PIPE, env=os.environ | {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}).stdout.split()
  if platform == "cpu":
    number = len(os.sched_getaffinity(0)) if sys.platform == "linux" else (
        os.cpu_count())
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  ids = visible.split(",") if visible and platform == "gpu" else list(
      range(int(number)))
  return split_devices(platform, ids, count, per_run)


def split_devices(platform: str, ids: list, count: int | None, per_run: int
                  ) -> list[dict]:
  """The environment variables that give each worker its devices or threads.

  count: of the workers; None: as many as the accelerators allow, one on a CPU.
  per_run: devices of each. InputError if there are too few devices.
  """
  if platform == "cpu":
    count = count or 1
    # NPROC: the threads of XLA; isojax/__init__.py sets it for forced devices.
    threads = {} if count == 1 or "NPROC" in os.environ else {
        "NPROC": str(max(1, len(ids) // count))}
    return [{"JAX_PLATFORMS": "cpu"} | threads] * count
  if platform == "tpu" and per_run not in (1, len(ids)):
    raise InputError(f"{per_run} devices a run on a host of {len(ids)} TPU "
                     "chips: expected 1 or all; change config.mesh")
  max_workers = len(ids) // per_run
  if max_workers < (count or 1):
    raise InputError(f"--workers={count or 1} with {per_run} devices each: "
                     f"there are {len(ids)}; lower --workers or config.mesh")
  groups = [ids[i * per_run:(i + 1) * per_run]
            for i in range(count or max_workers)]
  if platform == "gpu":
    return [{"CUDA_VISIBLE_DEVICES": ",".join(map(str, group))}
            for group in groups]
  return [_one_chip(*group) if len(ids) > per_run else {} for group in groups]


def _one_chip(chip: int) -> dict[str, str]:
  """The environment variables of libtpu for a process on one chip of a host."""
  port = 8476 + chip  # 8476 is libtpu's default; each process needs its own
  return {"TPU_VISIBLE_CHIPS": str(chip), "TPU_PROCESS_PORT": str(port),
          "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
          "TPU_PROCESS_BOUNDS": "1,1,1", "CLOUD_TPU_TASK_ID": "0",
          "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
          "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


# --- the loop ---


def command_of(run: PlannedRun) -> list[str]:
  """The command that starts or resumes a run, on this host alone."""
  return [sys.executable, "-m", "isojax.main", f"--config={run.folder}.py",
          f"--workdir={run.folder}", f"--run_id={run.name}",
          "--coordinator=none"]


def make_preexec_fn():
  """A preexec_fn: on Linux the kernel kills the child when its parent ends."""
  libc = ctypes.CDLL(None) if sys.platform == "linux" else None
  parent = os.getpid()

  def prepare():
    if libc is not None:
      libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:
        os._exit(1)  # the parent died in between
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # may be inherited as ignored

  return prepare


class Process(typing.NamedTuple):
  """The process of a run that this sweeper started."""

  run: PlannedRun
  log: typing.BinaryIO  # locked until the run ends
  popen: subprocess.Popen

  def close_log(self) -> int:
    """Writes the exit code to the log and unlocks it; returns the code."""
    with self.log:
      _mark(self.log, f"exit code {self.popen.returncode}")
    return self.popen.returncode

  def kill(self) -> None:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.popen.pid, signal.SIGKILL)
    self.popen.wait()
    with contextlib.suppress(OSError):  # a full disk: `sweep` reports it
      self.close_log()


def _mark(log: typing.BinaryIO, text: str) -> None:
  now = time.strftime("%Y-%m-%d %H:%M:%S")
  # The last line of the output may be incomplete.
  log.write(f"\n{MARK}{text} at {now}\n".encode())
  log.flush()


def start(run: PlannedRun, env: dict, command: list[str]) -> Process | None:
  """Starts a run; None if it is complete or another process has locked it."""
  with contextlib.ExitStack() as stack:
    log = stack.enter_context(open(run.log, "ab"))
    try:
      fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return None
    if workdir.is_locked(run.lock) or is_complete(run):
      return None
    values = pprint.pformat(run.config, sort_dicts=False)
    disk.replace(f"{run.folder}.py", CONFIG.format(
        source=run.source, values=values).encode())
    _mark(log, f"{run.source} on {socket.gethostname()}")
    # Opened again: a child that inherited `log` would keep its lock.
    with open(run.log, "ab") as output:
      popen = subprocess.Popen(
          command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
          env=os.environ | env, process_group=0, preexec_fn=make_preexec_fn())
    stack.pop_all()  # keeps `log` open, and so locked
    return Process(run, log, popen)


def sweep(runs: list[PlannedRun], workers: list[dict], tries: int,
          command=command_of) -> bool:
  """Starts every run that is neither complete nor locked, until none is left.

  Runs at a constant rate come first, and no decayed run starts before they have
  ended, because it may begin with the steps of one (isojax/run/branch.py).
  Waits for runs that another process has locked. A failed run is started again
  after the others, `tries` times in all. Each worker has one run at a time,
  with the worker's environment variables. Returns whether a signal stopped the
  sweep: the first asks the runs to save and stop, the second kills them.
  """
  queue, failures = collections.deque(runs), collections.Counter()
  active: dict[int, Process] = {}  # by worker
  root = os.path.dirname(runs[0].folder)
  asked_to_stop = said_waiting = False
  report = _reporter(runs)
  with _catch_signals() as signals:
    try:
      os.makedirs(root, exist_ok=True)
      while (active or (queue and not signals)) and len(signals) < 2:
        for i, process in list(active.items()):
          if process.popen.poll() is not None:
            del active[i]
            final = _report_end(process, failures, tries)
            if not final:
              queue.append(process.run)
        for i, env in enumerate(workers):
          if i in active or signals:
            continue
          process = _start_next(
              queue, [process.run for process in active.values()], env, command)
          if process is None:
            break  # no other worker would get a run
          active[i] = process
        if queue and not active and not signals and not said_waiting:
          said_waiting = True
          progress.say(f"waiting for {len(queue)} runs that other processes "
                       "have locked")
        if signals and not asked_to_stop:
          asked_to_stop = True
          _ask_to_stop(active.values())
        report([process.run for process in active.values()])
        time.sleep(POLL_SECONDS)
      return bool(signals)
    except OSError as error:
      raise disk.refused(f"--root={root}", error) from error
    finally:
      for process in active.values():
        process.kill()


def _reporter(runs: list[PlannedRun]):
  """A function (active runs) that prints progress every REPORT_SECONDS."""
  last_report = time.monotonic()

  def report(active: list[PlannedRun]) -> None:
    nonlocal last_report
    if time.monotonic() - last_report < REPORT_SECONDS:
      return
    last_report = time.monotonic()
    progress.say("; ".join([
        f"{sum(map(is_complete, runs))} of {len(runs)} runs are finished",
        *map(_progress, active)]))

  return report


def _progress(run: PlannedRun) -> str:
  run_records, _ = records.sound(os.path.join(run.folder, "records.jsonl"))
  *_, rollouts, best, eta = _table_row(run, "running", run_records)
  return f"{run.name}: {rollouts} rollouts, best avg {best}, ETA {eta}"


def _ask_to_stop(active) -> None:
  for process in active:
    process.popen.send_signal(signal.SIGINT)


@contextlib.contextmanager
def _catch_signals():
  """Yields a list to which each signal that asks to stop is appended."""
  signals = []
  append = lambda number, frame: signals.append(number)
  before = {number: signal.signal(number, append)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            # Not one that is ignored, as under nohup.
            if signal.getsignal(number) != signal.SIG_IGN}
  try:
    yield signals
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _start_next(queue: collections.deque, active: list[PlannedRun], env: dict,
                command) -> Process | None:
  """Starts the first run of the queue that no other process has locked.

  A decayed run waits for all constant ones, active and in the queue.
  """
  for _ in range(len(queue)):
    run = queue.popleft()
    if is_complete(run):
      continue
    if not run.is_constant and any(
        other.is_constant and not is_complete(other)
        for other in (*active, *queue)):
      queue.append(run)
      continue
    process = start(run, env, command(run))
    if process is not None:
      progress.say(f"{run.name}: {run.source} starts")
      return process
    queue.append(run)
  return None


def _report_end(process: Process, failures, tries: int) -> bool:
  """Reports the end of a run; returns True if it must not be started again."""
  run, code = process.run, process.close_log()
  if is_complete(run):
    run_records, _ = records.sound(os.path.join(run.folder, "records.jsonl"))
    progress.say(f"{run.name}: finished, best avg {_best(run_records)}")
    return True
  if code not in STOPPED:
    failures[run.name] += 1
    early = " before its last record" if code == 0 else ""
    progress.say(f"{run.name} ({run.source}): exit code {code}{early}: "
                 f"{last_error(run)[1]}")
  return code in FINAL or failures[run.name] >= tries
