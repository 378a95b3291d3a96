"""isojax.run_sweep: the runs of a plan, and their table.

isojax.sweeper starts them.
"""

import copy
import dataclasses
import json
import os
import re
import statistics

from isojax import cli, config_file, plan_file, sweeper
from isojax import format as format_lib
from isojax import progress as progress_lib
from isojax.allocation import of_section
from isojax.api import configs
from isojax.api.configs import Path
from isojax.errors import InputError, unchained
from isojax.ledger import records, workdir
from isojax.planner import planning
from isojax.sweeper import Run

RECENT = 20  # training steps that give the rate


def of_row(lines: list[str], index: int, path: str, config, root: str) -> Run:
  """Applies a row of a plan to a config; InputError begins with PLAN:LINE."""
  from isojax import experiment  # loads jax
  where = f"{path}:{index + 1}"
  row = plan_file.read_row(lines, index, path=path)
  config = copy.deepcopy(config)
  cli.check_given(row["overrides"], where)
  config_file.override(config, row["overrides"], where)
  values = config.to_dict()
  try:
    alloc = of_section(values["alloc"])
  except (InputError, TypeError) as error:
    raise InputError(f"{where}: {error}") from error
  name = workdir.run_id(experiment.identity(json.loads(json.dumps(values))))
  return Run(os.path.join(root, name), where, values, alloc)


def of_plan(path: str, config, root: str) -> tuple[list[Run], list[str]]:
  """The runs of a plan, each once, and what is wrong with other rows.

  Raises:
    InputError: the plan or the root cannot be used, or the config is no run's.
  """
  if "://" in root or ":" in root:
    raise InputError(f"--root={root}: expected a folder without a colon, on a "
                     "file system that all machines of the sweep share")
  config_file.check_run(config)
  lines = plan_file.read_lines(path)
  if not lines:
    raise InputError(f"--plan={path}: has no rows; make it with launch.plan")
  runs, wrong = {}, []
  for index in range(len(lines)):
    try:
      run = of_row(lines, index, path, config, root)
      runs.setdefault(run.folder, run)
    except InputError as error:
      wrong.append(str(error))
  return list(runs.values()), wrong


def of_shard(runs: list[Run], shard: str | None) -> list[Run]:
  """The runs of --shard=I/N; all without it."""
  if shard is None:
    return runs
  match = re.fullmatch(r"(\d+)/([1-9]\d*)", shard)
  if match is None or int(match[1]) >= int(match[2]):
    raise InputError(f"--shard={shard}: expected I/N with 0 <= I < N")
  return runs[int(match[1])::int(match[2])]


def _cells(run: Run, state: str) -> list[str]:
  a, kept = run.alloc, records.sound(
      os.path.join(run.folder, "records.jsonl"))[0]
  evals = [r for r in kept if r["kind"] == "eval"]
  best = max(evals, key=lambda r: r["avg"], default=None)
  rollouts, eta = kept[-1]["rollouts"] if kept else 0, "-"
  if state == "running" and (
      train := [r for r in kept if r["kind"] == "train"][-RECENT:]):
    sampled = statistics.mean(
        r["Bp"] * r["n"] * (1 + r["refilled"]) for r in train)
    seconds = statistics.median(sum(records.phases(r)) for r in train)
    eta = progress_lib.clock((a.C - rollouts) / sampled * seconds)
  return [run.name, state, str(run.config["seed"]), str(a.Bp), str(a.n),
          f"{rollouts:,}/{a.C:,}", "-" if best is None else (
              f"{best['avg']:.4f} ± {best['avg_se']:.4f} at {best['step']}"),
          eta]


def table(runs: list[Run]) -> str:
  """A line for each run; below it, the last error of each failed run."""
  states = [sweeper.state_of(run) for run in runs]
  lines = [["run", "state", "seed", "Bp", "n", "rollouts/C", "best avg", "ETA"],
           *map(_cells, runs, states)]
  failed = [run for run, state in zip(runs, states, strict=True)
            if state == "failed"]
  return "\n".join([format_lib.aligned(lines), *(
      f"{run.name} ({run.source}): {sweeper.last_error(run)[1]}"
      for run in failed)])


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The runs of a sweep, each finished or failed."""

  runs: tuple[Run, ...] = dataclasses.field(repr=False)

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
    """A line for each run: state, allocation, best avg, rate."""
    return table(list(self.runs))

  def __repr__(self) -> str:
    return self.table()


@unchained
def run_sweep(plan: planning.Plan | Path, config, root: Path, *,
              workers: int | None = None, tries: int = 3,
              progress: bool = True) -> Sweep:
  """Runs every row of a plan, each in a process of its own.

  An interrupted call saves its runs and raises KeyboardInterrupt; the same call
  resumes them with bit-identical results and skips the finished ones. Several
  calls, or python -m launch.sweep, on one root share the work. It needs the
  main thread, which gets the signals that end its runs.

  Args:
    plan: result of isojax.plan, or path of a plan.jsonl.
    config: as isojax.config takes it; the rows change its seed and alloc.
    root: folder of the runs; ROOT/RUN_ID is the folder of one.
    workers: runs at once; None: one for each group of accelerators that
      config.mesh needs, one on a CPU.
    tries: of a run that fails.
    progress: print starts, ends and the state every half minute; False:
      nothing.

  Returns:
    A Sweep. isojax.read(sweep.records) reads its evaluations.

  Raises:
    InputError: the root cannot be written, or a row does not fit the config.
    KeyboardInterrupt: the sweep was interrupted and saved.
  """
  for name, value in (("workers", workers), ("tries", tries)):
    if value is not None and value < 1:
      raise InputError(f"{name}={value}: expected at least 1")
  root = os.fspath(root)
  path = plan if isinstance(plan, Path) else os.path.join(
      root, "plan.jsonl")
  config = configs.config(config)
  if path is not plan:
    os.makedirs(root, exist_ok=True)
    plan.save(path)
  runs, wrong = of_plan(os.fspath(path), config, root)
  if wrong:
    raise InputError("; ".join(wrong))
  with progress_lib.printed(progress):
    per_run = devices_of_mesh(config)
    if sweeper.sweep(runs, sweeper.workers_here(workers, per_run), tries):
      raise KeyboardInterrupt(f"{root} is saved; call isojax.run_sweep again "
                              "with the same arguments to resume")
  return Sweep(tuple(runs))


def devices_of_mesh(config) -> int:
  """Devices of a run."""
  return config.mesh.data * config.mesh.fsdp * config.mesh.tensor
