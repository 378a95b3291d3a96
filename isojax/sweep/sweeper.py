"""The loop that works runs off: claim, start, beat, note how it ended."""

import dataclasses
import signal
import time

from isojax.ledger import lease as lease_lib
from isojax import progress
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.sweep import runs as runs_lib
from isojax.sweep import attempts as attempts_lib
from isojax.sweep import run_process
from isojax.sweep.runs import Run
from isojax.sweep.devices import Slot
from isojax.sweep.attempts import Try

POLL = 0.2  # seconds between looks at our own workers
SCAN = 2.0  # seconds between looks at the root
FINAL = ("finished", "failed")


@dataclasses.dataclass(frozen=True)
class Seen:
  """A run and how it stands."""

  run: Run
  tries: list[Try]
  state: str


@dataclasses.dataclass(frozen=True)
class Rules:
  most: int  # failures after which a run is left alone
  lease: float  # seconds without a sign after which others take our runs over
  version: str  # of the code
  wait: bool  # for runs of other sweepers, which may die
  together: bool = False  # runs are made together and share their seconds


@dataclasses.dataclass
class Job:
  """A run that we hold."""

  run: Run
  this: Try
  # As run_process.Worker; None: its folder is not free yet.
  process: object | None = None
  said: str = ""  # the last complaint about it
  unnoted: bool = False  # it has ended, which could not be written

  def complain(self, text: str) -> None:
    """Once, not at every look."""
    if text != self.said:
      progress.say(f"{self.run.run_id}: {self.run.source}: {text}")
    self.said = text


class Stops:
  """What SIGINT, SIGTERM or a closed terminal asked for while it is entered.
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
                    if number != signal.SIGHUP  # of nohup: stays ignored
                    or signal.getsignal(number) != signal.SIG_IGN}
    return self

  def __exit__(self, *_):
    for number, handler in self._before.items():
      signal.signal(number, handler)


def look(root: str, runs: list[Run], rules: Rules, heard: dict, final: dict
         ) -> list[Seen]:
  """How every run stands; `heard` and `final` keep what was seen before."""
  out, there = [], attempts_lib.numbers(root)
  for run in runs:
    numbers = there[run.run_id] if run.run_id in there else []
    if run.run_id in final and len(final[run.run_id].tries) == len(numbers):
      out.append(final[run.run_id])
      continue
    tries = [attempts_lib.read(root, run.run_id, g) for g in numbers]
    living = tries != [] and tries[-1].ended is None and attempts_lib.alive(
        run.run_id, tries[-1], heard)
    seen = Seen(run, tries, attempts_lib.state(tries, living=living,
                                            most=rules.most))
    if seen.state in FINAL:
      final[run.run_id] = seen
    out.append(seen)
  return out


def claim(root: str, standing: list[Seen], rules: Rules) -> Job | None:
  """Takes the first run that wants work: fewest failures, then plan order.

  Raises:
    InputError: the root cannot be written.
  """
  wanting = [s for s in standing
             if s.state in ("waiting", "stopped", "interrupted")]
  for s in sorted(wanting, key=lambda s: attempts_lib.failures(s.tries)):
    number = s.tries[-1].number + 1 if s.tries else 1
    try:
      this = attempts_lib.begin(root, s.run.run_id, number,
                             version=rules.version, lease=rules.lease,
                             together=rules.together)
    except OSError as error:
      raise InputError(f"{s.run.source}: {root} cannot be written ({error}); "
                       "make room, then run the same command again") from error
    if this is None:
      continue  # somebody was faster
    if s.tries and s.tries[-1].version != rules.version:
      progress.say(f"{s.run.run_id}: goes on with code {rules.version}, it was "
                   f"{s.tries[-1].version} before")
    return Job(s.run, this)
  return None


def try_start(start, root: str, job: Job, slot: Slot) -> None:
  """Starts the worker, once its folder is free.

  The worker of a sweeper that was killed may take a moment to die; where the
  kernel does not kill it, it goes on to its end.
  """
  if workdir.held(runs_lib.workdir_of(root, job.run)):
    job.complain("its folder is held by another process; waiting for that")
    return
  try:
    job.process = start(root, job.run, slot, job.this.number)
  except OSError as error:
    job.complain(f"cannot be started ({error}); trying again")
    return
  progress.say(f"{job.run.run_id}: {job.run.source}, try {job.this.number} on "
               f"{slot.name}")


def ended(root: str, job: Job, code: int | None) -> bool:
  """Notes how a try ended; False if that cannot be written now.

  `code` is None where a try is given up though nothing is wrong with it.
  """
  why = None if code is None else run_process.reason(root, job.run.run_id, code)
  try:
    attempts_lib.end(root, job.run.run_id, job.this, code, why)
  except OSError as error:
    job.complain(f"{why or 'finished'}; and this cannot be noted ({error})")
    return False
  if code is not None:
    progress.say(f"{job.run.run_id}: {job.run.source} {why or 'finished'}")
  return True


def keep(root: str, job: Job) -> bool:
  """The heartbeat; False, with the worker killed, if the run is another's."""
  try:
    job.this = attempts_lib.beat(root, job.run.run_id, job.this)
  except attempts_lib.TakenOver:
    if job.process is not None:
      job.process.kill()
    job.complain("another sweeper took it over, as this one gave no sign for "
                 "too long")
    return False
  except OSError as error:
    job.complain(f"its heartbeat cannot be written ({error})")
  return True


def reap(root: str, jobs: dict[int, Job], stops: Stops) -> bool:
  """Drops the jobs whose worker has ended; whether there were any.

  What cannot be noted is kept for later, unless there is no later.
  """
  code = lambda job: None if stops.urgent else job.process.returncode
  done = []
  for slot, job in jobs.items():
    if job.process is not None and job.process.poll() is not None:
      job.unnoted = not ended(root, job, code(job))
      if not job.unnoted or stops.asked:
        done.append(slot)
  for slot in done:
    del jobs[slot]
  return bool(done)


def let_go(root: str, jobs: dict[int, Job]) -> None:
  """Asks the workers to save and end."""
  if jobs:
    progress.say(f"stopping: {len(jobs)} runs save and end; Ctrl-C again kills "
                 "them")
  for slot, job in list(jobs.items()):
    if job.process is not None:
      job.process.stop()
    else:
      ended(root, job, None)
      del jobs[slot]


def fill(root: str, standing: list[Seen], slots: int, jobs: dict[int, Job],
         rules: Rules, fits) -> str | None:
  """A run for each free slot; why none could be claimed, if so.

  Raises:
    InputError: none can be claimed or noted, and nothing is under way.
  """
  taken = {job.run.run_id for job in jobs.values()}
  left = [s for s in standing if s.run.run_id not in taken]
  for slot in range(slots):
    if slot in jobs:
      continue
    held = [job.run for job in jobs.values()]
    try:
      job = claim(root, [s for s in left if fits(s.run, held)], rules)
    except InputError as error:
      if all(job.unnoted for job in jobs.values()):
        raise
      return f"{error}; the other runs go on"
    if job is None:
      break
    jobs[slot] = job
    left = [s for s in left if s.run != job.run]
  if jobs and all(job.unnoted for job in jobs.values()):
    job = next(iter(jobs.values()))
    raise InputError(f"{job.run.source}: {job.said}; make room, then run the "
                     "same command again")
  return None


def sweep(root: str, runs: list[Run], slots: list[Slot], rules: Rules, *,
          start, show, fits=lambda run, held: True) -> tuple[list[Seen], bool]:
  """Works with other sweepers until every run is finished or failed.

  Args:
    root: a folder that all sweepers share.
    runs: registered in it.
    slots: what each worker computes on.
    rules: when a run is left alone, and a holder taken for dead.
    start: (root, run, slot, number of the try) -> a run_process.Worker, or what can
      do the same: its exit codes are those of isojax.main.
    show: called with list[Seen] at every look at the root.
    fits: whether a run may start beside those that we hold.

  Returns:
    (how the runs stand, whether a signal ended it before that).

  Raises:
    InputError: the root cannot be written, and nothing is under way.
  """
  jobs: dict[int, Job] = {}  # by the index of the slot
  heard, final, let_gone, said = {}, {}, False, None
  began, beat_due, scan_due = time.monotonic(), 0.0, 0.0
  with Stops() as stops:
    while True:
      now = time.monotonic()
      if reap(root, jobs, stops):
        scan_due = now
      if now >= beat_due:
        beat_due = now + rules.lease / lease_lib.BEATS
        jobs = {slot: job for slot, job in jobs.items() if keep(root, job)}
      if stops.asked and not let_gone:
        let_gone = True
        let_go(root, jobs)
      if stops.urgent:
        for job in jobs.values():
          job.process.kill()
      if now >= scan_due:
        scan_due = now + SCAN
        try:
          standing = look(root, runs, rules, heard, final)
          show(standing)
        except OSError as error:  # a network file system may come back
          why = f"{root} cannot be read ({error}); looking again"
          if why != said:
            progress.say(why)
          said = why
          time.sleep(POLL)
          continue
        if stops.asked and not jobs:
          return standing, True
        if all(s.state in FINAL for s in standing):
          return standing, False
        if not rules.wait and not jobs and now - began > rules.lease and all(
            s.state in (*FINAL, "running") for s in standing):
          return standing, False
        if not stops.asked:
          why = fill(root, standing, len(slots), jobs, rules, fits)
          if why and why != said:
            progress.say(why)
          said = why
      for slot, job in jobs.items():
        if job.process is None:
          try_start(start, root, job, slots[slot])
      time.sleep(POLL)
