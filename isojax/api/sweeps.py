"""isojax.run_sweep: the runs of a plan, and their table."""

import dataclasses
import math
import os

from isojax.api import configs
from isojax.api.configs import Path
from isojax.core import disk
from isojax.errors import InputError, unchained
from isojax.planner import planning
from isojax.runtime import progress as progress_lib
from isojax.sweep import sweeper
from isojax.sweep.sweeper import PlannedRun


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The runs of a sweep, each finished or failed."""

  runs: tuple[PlannedRun, ...] = dataclasses.field(repr=False)

  @property
  def records(self) -> list[str]:
    """The records of the finished runs, which isojax.read takes."""
    return [os.path.join(run.folder, "records.jsonl") for run in self.runs
            if sweeper.is_complete(run)]

  @property
  def failed(self) -> dict[str, str]:
    """Run id -> its last error; ROOT/RUN_ID.log has its output."""
    return {run.name: sweeper.last_error(run)[1] for run in self.runs
            if sweeper.state_of(run) == "failed"}

  def table(self) -> str:
    """A line for each run: state, allocation, rollouts, best avg, ETA."""
    return sweeper.table(list(self.runs))

  def __repr__(self) -> str:
    return self.table()


@unchained
def run_sweep(plan: planning.Plan | Path, config, root: Path, *,
              workers: int | None = None, tries: int = 3,
              progress: bool = True) -> Sweep:
  """Runs every row of a plan, each in a separate process.

  An interrupted call saves its runs and raises KeyboardInterrupt; the same call
  resumes them with bit-identical results. Several calls, or python -m
  launch.sweep, on one root share the work. Only the main thread may call it.

  Args:
    plan: result of isojax.plan, or path of a plan.jsonl.
    config: as isojax.config takes it; the rows change its seed and alloc.
    root: folder of the runs; ROOT/RUN_ID is the folder of one.
    workers: runs at once; None: as many meshes as the accelerators suffice for,
      one on a CPU.
    tries: how often a run is started before it counts as failed.
    progress: print when runs start and end.

  Returns:
    A Sweep. isojax.read(sweep.records) reads its evaluations.

  Raises:
    InputError: the root cannot be written, or a row does not fit the config.
    KeyboardInterrupt: the sweep was interrupted and saved.
  """
  for name, value in (("workers", workers), ("tries", tries)):
    if value is not None and value < 1:
      raise InputError(f"{name}={value}: expected at least 1")
  root, config = os.fspath(root), configs.config(config)
  sweeper.check_root(root)
  if isinstance(plan, planning.Plan):
    with disk.writing(f"root={root}"):
      os.makedirs(root, exist_ok=True)
    path = os.path.join(root, "plan.jsonl")
    plan.save(path)
  else:
    path = os.fspath(plan)
  runs, messages = sweeper.runs_of_plan(path, config, root)
  if messages:
    raise InputError("; ".join(messages))
  with progress_lib.printed(progress):
    devices_per_run = math.prod(config.mesh.values())
    stopped = sweeper.sweep(
        runs, sweeper.workers_here(workers, devices_per_run), tries)
    if stopped:
      raise KeyboardInterrupt(f"{root} is saved; call isojax.run_sweep again "
                              "with the same arguments to resume")
  return Sweep(tuple(runs))
