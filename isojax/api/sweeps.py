"""isojax.run_sweep: the runs of a plan, on this machine."""

import dataclasses
import os
import threading
import time

from isojax import progress as progress_lib
from isojax.api import configs
from isojax.api import words
from isojax.errors import InputError
from isojax.planner import planning
from isojax.sweep import devices
from isojax.sweep import run_process
from isojax.sweep import runs as runs_lib
from isojax.sweep import status
from isojax.sweep import sweeper

LEASE = 60.0  # seconds without a heartbeat until another sweeper takes over
EVERY = 30.0  # seconds between two lines of progress


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The runs of a sweep, each finished or failed."""

  root: str
  states: tuple[sweeper.RunState, ...] = dataclasses.field(repr=False)

  @property
  def records(self) -> list[str]:
    """The records of the finished runs, which isojax.read takes."""
    return [os.path.join(runs_lib.workdir_of(self.root, each.run),
                         "records.jsonl")
            for each in self.states if each.state == "finished"]

  @property
  def failed(self) -> dict[str, str]:
    """Run id -> why it failed; ROOT/sweep/RUN_ID.log has its output."""
    return {each.run.run_id: each.attempts[-1].reason
            for each in self.states if each.state == "failed"}

  def table(self) -> str:
    """Returns a line for each run: state, allocation, best avg, rate."""
    return status.table(self.root, list(self.states))

  def __repr__(self) -> str:
    return self.table()


def _shown(root: str):
  """Returns a function of the states that prints a line every EVERY seconds."""
  due = time.monotonic() + EVERY

  def show(states) -> None:
    nonlocal due
    if time.monotonic() >= due:
      due = time.monotonic() + EVERY
      progress_lib.say(status.line(root, states))

  return show


@words.of_python
def run_sweep(plan: planning.Plan | words.Path, config, root: words.Path, *,
              workers: int | None = None, tries: int = 3,
              progress: bool = True) -> Sweep:
  """Runs every row of a plan, each in a process of its own.

  An interrupted call saves its runs and raises KeyboardInterrupt; the same call
  resumes them with bit-identical results and skips the finished ones. Several
  calls, or python -m launch.sweep, on one root share the work.

  Args:
    plan: result of isojax.plan, or path of a plan.jsonl.
    config: as isojax.config takes it; the rows change its seed and alloc.
    root: folder of the runs; ROOT/RUN_ID is the folder of one.
    workers: runs at once; None: one for each accelerator, one on a CPU.
    tries: failures after which a run is not started again.
    progress: print starts, ends and the state every half minute; False:
      nothing.

  Returns:
    A Sweep. isojax.read(sweep.records) reads its evaluations.

  Raises:
    InputError: the root cannot be written, a row does not fit the config, or
      the call is not in the main thread, which alone gets signals.
    KeyboardInterrupt: the sweep was interrupted and saved.
  """
  if threading.current_thread() is not threading.main_thread():
    raise InputError("isojax.run_sweep needs the main thread, which gets the "
                     "signals that end its runs; call it there, or use python "
                     "-m launch.sweep")
  for name, value in (("workers", workers), ("tries", tries)):
    if value is not None and value < 1:
      raise InputError(f"{name}={value}: expected at least 1")
  root = os.fspath(root)
  runs_lib.check_root(root)
  runs_lib.make_root(root)
  if isinstance(plan, planning.Plan):
    path = os.path.join(root, "plan.jsonl")
    plan.save(path)
  else:
    path = os.fspath(plan)
  with progress_lib.sent_to(words.Told(progress)):
    runs, wrong = runs_lib.registered(root, [path], configs.config(config),
                                      progress_lib.say)
    if wrong:
      raise InputError("; ".join(wrong))
    places = devices.of_machine(workers, [], max(run.devices for run in runs))
    states, stopped = sweeper.sweep(
        root, runs, places,
        sweeper.Rules(tries, LEASE, runs_lib.code_version(), True),
        start=run_process.start_alone, show=_shown(root))
  if stopped:
    raise KeyboardInterrupt(f"{root} is saved; call isojax.run_sweep again "
                            "with the same arguments to resume")
  return Sweep(root, tuple(states))
