"""The loop of a sweep: claim a run, start it, send heartbeats, note its end."""

import dataclasses
import signal
import time

from isojax import progress
from isojax.errors import InputError, reason
from isojax.ledger import lease as lease_lib
from isojax.ledger import workdir
from isojax.sweep import attempts as attempts_lib
from isojax.sweep import run_process
from isojax.sweep import runs as runs_lib
from isojax.sweep.attempts import Attempt
from isojax.sweep.devices import Slot
from isojax.sweep.runs import Run

POLL = 0.2  # seconds between checks of our own processes
SCAN = 2.0  # seconds between reads of the root
FINAL = ("finished", "failed")
OPEN = ("waiting", "stopped", "interrupted")  # states that can be claimed


@dataclasses.dataclass(frozen=True)
class RunState:
  """A run, its attempts, and its state as `attempts.state` names it."""

  run: Run
  attempts: list[Attempt]
  state: str


@dataclasses.dataclass(frozen=True)
class Rules:
  max_failures: int  # after which a run is not started again
  lease: float  # seconds without a heartbeat until others take our runs over
  version: str  # of the code
  wait: bool  # for runs of other sweepers, which may die


@dataclasses.dataclass
class Notice:
  """Prints a message once, not at every check."""

  last: str | None = None

  def say(self, text: str | None) -> None:
    if text and text != self.last:
      progress.say(text)
    self.last = text


@dataclasses.dataclass
class HeldRun:
  """A run that this sweeper has claimed."""

  run: Run
  attempt: Attempt
  # A run_process.RunProcess; None: another process still locks the folder.
  process: object | None = None
  notice: Notice = dataclasses.field(default_factory=Notice)
  unrecorded: bool = False  # has ended, but the end could not be written

  def complain(self, text: str) -> None:
    self.notice.say(f"{self.run.run_id}: {self.run.source}: {text}")


class StopSignals:
  """Records SIGINT, SIGTERM and SIGHUP while it is entered.

  `asked`: save and stop. `urgent`: a second SIGINT, kill the runs.
  """

  def __init__(self):
    self.asked = self.urgent = False

  def _handle(self, number, frame):
    del frame
    self.urgent = self.urgent or self.asked and number == signal.SIGINT
    self.asked = True

  def __enter__(self):
    self._before = {number: signal.signal(number, self._handle)
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                    if number != signal.SIGHUP  # under nohup: stays ignored
                    or signal.getsignal(number) != signal.SIG_IGN}
    return self

  def __exit__(self, *_):
    for number, handler in self._before.items():
      signal.signal(number, handler)


def read_states(root: str, runs: list[Run], rules: Rules, heard: dict,
                final: dict) -> list[RunState]:
  """Returns the state of every run.

  Args:
    root: of the sweep.
    runs: registered in it.
    rules: of this sweeper.
    heard: heartbeats of other machines, as `attempts.alive` keeps them.
    final: is updated: run id -> state of a run that is finished or failed, so
      that its files are not read again.
  """
  out, numbers_of = [], attempts_lib.numbers(root)
  for run in runs:
    numbers = numbers_of[run.run_id] if run.run_id in numbers_of else []
    if run.run_id in final and (
        len(final[run.run_id].attempts) == len(numbers)):
      out.append(final[run.run_id])
      continue
    attempts = [attempts_lib.read(root, run.run_id, g) for g in numbers]
    living = bool(attempts) and attempts[-1].ended is None and (
        attempts_lib.alive(run.run_id, attempts[-1], heard))
    each = RunState(run, attempts, attempts_lib.state(
        attempts, living=living, max_failures=rules.max_failures))
    if each.state in FINAL:
      final[run.run_id] = each
    out.append(each)
  return out


def claim(root: str, states: list[RunState], rules: Rules) -> HeldRun | None:
  """Claims the first open run: fewest failures first, then plan order.

  Raises:
    InputError: the root cannot be written.
  """
  open_runs = [s for s in states if s.state in OPEN]
  for s in sorted(open_runs, key=lambda s: attempts_lib.failures(s.attempts)):
    number = s.attempts[-1].number + 1 if s.attempts else 1
    try:
      attempt = attempts_lib.begin(root, s.run.run_id, number,
                                   version=rules.version, lease=rules.lease)
    except OSError as error:
      raise InputError(f"{s.run.source}: {root} cannot be written "
                       f"({reason(error)}); "
                       "make room, then run the same command again") from error
    if attempt is None:
      continue  # another sweeper was faster
    if s.attempts and s.attempts[-1].version != rules.version:
      progress.say(f"{s.run.run_id}: resumes with code {rules.version}; the "
                   f"attempt before ran {s.attempts[-1].version}")
    return HeldRun(s.run, attempt)
  return None


def start_process(start, root: str, held: HeldRun, slot: Slot) -> None:
  """Starts the process of a run, once no other process locks its folder.

  After its sweeper was killed, a run's process may need a moment to die. Where
  the kernel does not kill it, it continues to its end.
  """
  if workdir.held(runs_lib.workdir_of(root, held.run)):
    held.complain("its folder is held by another process; waiting for that")
    return
  try:
    held.process = start(root, held.run, slot, held.attempt.number)
  except OSError as error:
    held.complain(f"cannot be started ({reason(error)}); trying again")
    return
  progress.say(f"{held.run.run_id}: {held.run.row}, attempt "
               f"{held.attempt.number} on {slot.name}")


def record_end(root: str, held: HeldRun, code: int | None) -> bool:
  """Writes how an attempt ended; returns False if it cannot be written now.

  Args:
    root: of the sweep.
    held: the run.
    code: exit code of its process; None: released without a failure.
  """
  run = held.run
  why = None if code is None else run_process.reason(root, run.run_id, code)
  try:
    attempts_lib.end(root, run.run_id, held.attempt, code, why)
  except OSError as error:
    held.complain(f"{why or 'finished'}; this cannot be recorded "
                  f"({reason(error)})")
    return False
  if code is not None:
    progress.say(f"{run.run_id}: {run.source} {why or 'finished'}")
  return True


def send_heartbeat(root: str, held: HeldRun) -> bool:
  """Writes the heartbeat.

  Returns False, after killing the process, if another sweeper holds the run.
  """
  try:
    held.attempt = attempts_lib.beat(root, held.run.run_id, held.attempt)
  except attempts_lib.TakenOver:
    if held.process is not None:
      held.process.kill()
    held.complain("another sweeper took it over, because this one sent no "
                  "heartbeat for too long")
    return False
  except OSError as error:
    held.complain(f"its heartbeat cannot be written ({reason(error)})")
  return True


def reap(root: str, held_runs: dict[int, HeldRun], stops: StopSignals) -> bool:
  """Removes the runs whose process has ended; returns whether there were any.

  An end that cannot be written now is kept for later, unless we are stopping.
  """
  done = []
  for slot, held in held_runs.items():
    if held.process is not None and held.process.poll() is not None:
      code = None if stops.urgent else held.process.returncode
      held.unrecorded = not record_end(root, held, code)
      if not held.unrecorded or stops.asked:
        done.append(slot)
  for slot in done:
    del held_runs[slot]
  return bool(done)


def stop_all(root: str, held_runs: dict[int, HeldRun]) -> None:
  """Asks every process to save and end; releases runs without a process."""
  if held_runs:
    progress.say(f"stopping: {len(held_runs)} runs save and end; press Ctrl-C "
                 "again to kill them")
  for slot, held in list(held_runs.items()):
    if held.process is not None:
      held.process.stop()
    else:
      record_end(root, held, None)
      del held_runs[slot]


def fill_slots(root: str, states: list[RunState], slots: int,
               held_runs: dict[int, HeldRun], rules: Rules) -> str | None:
  """Claims a run for each free slot; returns why that was not possible, if so.

  Raises:
    InputError: no run can be claimed or recorded, and no run is active.
  """
  taken = {held.run.run_id for held in held_runs.values()}
  for slot in range(slots):
    if slot in held_runs:
      continue
    free = [s for s in states if s.run.run_id not in taken]
    try:
      held = claim(root, free, rules)
    except InputError as error:
      if all(held.unrecorded for held in held_runs.values()):
        raise
      return f"{error}; the other runs continue"
    if held is None:
      break
    held_runs[slot] = held
    taken.add(held.run.run_id)
  if held_runs and all(held.unrecorded for held in held_runs.values()):
    held = next(iter(held_runs.values()))
    raise InputError(f"{held.notice.last}; make room, then run the same "
                     "command again")
  return None


def complete(states: list[RunState], rules: Rules, *, idle: bool) -> bool:
  """Returns whether there is nothing left to do or to wait for.

  Args:
    states: of all runs.
    rules: of this sweeper.
    idle: it holds no run, and has observed others for longer than a lease.
  """
  if all(s.state in FINAL for s in states):
    return True
  return not rules.wait and idle and all(
      s.state in (*FINAL, "running") for s in states)


def sweep(root: str, runs: list[Run], slots: list[Slot], rules: Rules, *,
          start, show) -> tuple[list[RunState], bool]:
  """Runs a sweep, together with other sweepers, to its end.

  Args:
    root: a folder that all sweepers share.
    runs: registered in it.
    slots: the devices of each run that is active at once.
    rules: when to give a run up, and when a holder counts as dead.
    start: (root, run, slot, number of the attempt) -> a RunProcess. Its exit
      codes are those of isojax.main.
    show: called with list[RunState] after every read of the root.

  Returns:
    (the state of every run, whether a signal stopped the sweep).

  Raises:
    InputError: the root cannot be written, and no run is active.
  """
  held_runs: dict[int, HeldRun] = {}  # by the index of the slot
  heard, final, stopping, notice = {}, {}, False, Notice()
  began, beat_due, scan_due = time.monotonic(), 0.0, 0.0
  with StopSignals() as stops:
    while True:
      now = time.monotonic()
      if reap(root, held_runs, stops):
        scan_due = now
      if now >= beat_due:
        beat_due = now + rules.lease / lease_lib.BEATS
        held_runs = {slot: held for slot, held in held_runs.items()
                     if send_heartbeat(root, held)}
      if stops.asked and not stopping:
        stopping = True
        stop_all(root, held_runs)
      if stops.urgent:
        for held in held_runs.values():
          held.process.kill()
      if now >= scan_due:
        scan_due = now + SCAN
        try:
          states = read_states(root, runs, rules, heard, final)
          show(states)
        except OSError as error:  # a network file system may recover
          notice.say(f"{root} cannot be read ({reason(error)}); trying again")
          time.sleep(POLL)
          continue
        if stops.asked and not held_runs:
          return states, True
        idle = not held_runs and now - began > rules.lease
        if complete(states, rules, idle=idle):
          return states, False
        if not stops.asked:
          notice.say(fill_slots(root, states, len(slots), held_runs, rules))
      for slot, held in held_runs.items():
        if held.process is None:
          start_process(start, root, held, slots[slot])
      time.sleep(POLL)
