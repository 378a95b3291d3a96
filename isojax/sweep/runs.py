"""The runs of a sweep: rows of a plan, stored in the sweep's root.

  ROOT/RUN_ID/            what isojax.main writes
  ROOT/sweep/RUN_ID.json  the run: its whole config, and the row it came from
  ROOT/sweep/RUN_ID.1.json, .2.json, ...  its attempts (attempts.py)
  ROOT/sweep/RUN_ID.log   their output
  ROOT/sweep/config.py    --config=ROOT/sweep/config.py:RUN_ID

A run is defined by its file here alone. The plan and the config file are not
read again, so editing them cannot change a run that has begun.
"""

import copy
import dataclasses
import functools
import importlib.metadata
import json
import math
import os
import re
import subprocess
import tempfile

from isojax import cli
from isojax import config_file
from isojax.ledger import records
from isojax.ledger import workdir
from isojax.errors import InputError, reason
from isojax import plan_file
from isojax.allocation import Allocation, of_section, sqrt_lr

CONFIG = '''\
"""The config of a run of this sweep: --config=THIS_FILE:RUN_ID."""

import json
import pathlib

from isojax import experiment
from ml_collections import config_dict


def get_config(run_id):
  path = pathlib.Path(__file__).parent / f"{run_id}.json"
  return config_dict.ConfigDict(
      json.loads(path.read_text())["config"])
'''
NAME = re.compile(r"([0-9a-f]{12})\.json")


@dataclasses.dataclass(frozen=True)
class Run:
  """One row of a plan, applied to a config."""

  run_id: str  # hash of what decides the results
  source: str  # PLAN:LINE
  config: dict

  @property
  def allocation(self) -> Allocation:
    return of_section(self.config["alloc"])

  @property
  def line(self) -> tuple[str, int]:
    path, _, number = self.source.rpartition(":")
    return path, int(number)

  @property
  def row(self) -> str:
    """The line of the plan, from 1, and its --row, from 0."""
    return f"{self.source}, --row={self.line[1] - 1}"

  @property
  def devices(self) -> int:
    return math.prod(self.config["mesh"].values())


def folder(root: str) -> str:
  return os.path.join(root, "sweep")


def check_root(root: str) -> None:
  """Raises InputError for a root where no run can be claimed."""
  if "://" in root:
    raise InputError(
        f"--root={root}: a sweep claims runs by files that only one process "
        "can create; expected a folder on a file system that all its machines "
        "share. For runs in a bucket, start each row by itself: python -m "
        "isojax.main --plan=PLAN --row=ROW --workdir=gs://BUCKET/ROW")


def config_of(root: str, run: Run) -> str:
  """Returns the value of --config for a run."""
  return f"{os.path.join(folder(root), 'config.py')}:{run.run_id}"


def workdir_of(root: str, run: Run) -> str:
  return os.path.join(root, run.run_id)


def command(root: str, run: Run, python: str) -> list[str]:
  """Returns the command that starts or resumes a run."""
  return [python, "-m", "isojax.main", f"--config={config_of(root, run)}",
          f"--workdir={workdir_of(root, run)}", f"--run_id={run.run_id}"]


def _identity(config: dict) -> dict:
  """Returns what decides the results of a run."""
  # Imported here, because it imports jax: a sweeper without --plan needs none.
  from isojax import experiment
  return experiment.identity(config)


def of_row(lines: list[str], index: int, config, path: str) -> Run:
  """Returns the run of a row of a plan, applied to a config.

  Raises:
    InputError: the row is wrong; the message begins with PLAN:LINE.
  """
  found = plan_file.read_row(lines, index, path=path)
  where = f"{path}:{index + 1}"
  ours = copy.deepcopy(config)
  cli.check_given(found["overrides"], where)
  config_file.override(ours, found["overrides"], where)
  values = json.loads(json.dumps(ours.to_dict()))
  try:
    of_section(values["alloc"])
  except (InputError, TypeError) as error:
    raise InputError(f"{where}: {error}") from error
  return Run(workdir.run_id(_identity(values)), where, values)


def of_plan(path: str, config) -> tuple[list[Run], list[str]]:
  """Returns (runs, what is wrong with the other rows).

  Raises:
    InputError: the file cannot be read.
  """
  lines = plan_file.read_lines(path)
  runs, wrong = [], []
  for index in range(len(lines)):
    try:
      runs.append(of_row(lines, index, config, path))
    except InputError as error:
      wrong.append(str(error))
  if not lines:
    wrong.append(f"--plan={path}: has no rows; make it with python -m "
                 "launch.plan")
  return runs, wrong


def other_anchor(path: str, config) -> str | None:
  """Returns a note if a plan's learning rates are not those of the config."""
  optimizer = config.recipe.optimizer
  if optimizer.batch != "sampled":
    return None  # a plan counts the sampled rollouts
  for line in plan_file.read_lines(path):
    try:
      row = json.loads(line)
      alloc = row["overrides"]["alloc"]
      lr = sqrt_lr(optimizer.base_lr, optimizer.base_batch,
                   int(alloc["Bp"]) * int(alloc["n"]))
      if not math.isclose(row["lr"], lr, rel_tol=1e-3):
        return (f"{path} has lr {row['lr']:.3g}, this config's "
                f"recipe.optimizer gives {lr:.3g}: the plan was made with "
                "another anchor; runs use the config's")
    except (ArithmeticError, ValueError, KeyError, TypeError):
      pass  # of_row refuses this row, or it was not made by launch.plan
  return None


def distinct(runs: list[Run]) -> tuple[list[Run], list[str]]:
  """Returns (each run once, notes on rows that are the same run)."""
  kept, notes = {}, []
  for run in runs:
    if run.run_id in kept:
      notes.append(f"{run.source} is the same run as "
                   f"{kept[run.run_id].source}, {run.run_id}: it is run once")
    else:
      kept[run.run_id] = run
  return list(kept.values()), notes


def make_root(root: str) -> None:
  """Makes a root; raises InputError if it cannot be written."""
  if ":" in root:
    raise InputError(f"--root={root}: contains a colon, which --config=FILE:"
                     "RUN_ID does not allow; choose another folder")
  path = os.path.join(folder(root), "config.py")
  try:
    os.makedirs(folder(root), exist_ok=True)
    with tempfile.TemporaryFile(dir=folder(root)) as file:
      file.write(b"x" * 4096)
      file.flush()
    if True:
      records.replace(path, CONFIG.encode())
  except OSError as error:
    raise InputError(f"--root={root}: cannot be written ({reason(error)}); "
                     "make room, or choose another folder") from error


def register(root: str, run: Run) -> None:
  """Writes a run into the root, where every sweeper finds it.

  What is not part of the run id (mesh, checkpoints, logging) may differ from an
  earlier registration; the newest values are used.

  Raises:
    InputError: the root holds another run of this id, or cannot be written.
  """
  path = os.path.join(folder(root), f"{run.run_id}.json")
  if os.path.exists(path):
    there = stored(root, run.run_id)
    if _identity(there.config) != _identity(run.config):
      raise InputError(
          f"{run.source}: {path} has the same id {run.run_id} but is another "
          f"run (of {there.source}); was that file edited? Choose another --root")
    if there.config == run.config:
      return
  try:
    records.replace(path, (json.dumps(
        {"run_id": run.run_id, "source": run.source, "config": run.config},
        indent=1) + "\n").encode())
  except OSError as error:
    raise InputError(f"{run.source}: {path} cannot be written "
                     f"({reason(error)}); make room") from error


def stored(root: str, run_id: str) -> Run:
  """Returns the run of an id; raises InputError if missing or damaged."""
  path = os.path.join(folder(root), f"{run_id}.json")
  try:
    with open(path, encoding="utf-8") as file:
      found = json.loads(file.read())
    run = Run(found["run_id"], found["source"], found["config"])
    # Fail here rather than where these are used.
    _ = run.allocation, run.devices, run.line
    _ = run.config["task"]["grader"], run.config["recipe"]["loss"]
    return run
  except FileNotFoundError as error:
    raise InputError(f"{path}: no such run; expected a run id of {root}, see "
                     "--status") from error
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise InputError(f"{path}: not a run ({type(error).__name__}: {error}); "
                     "delete it and sweep its plan again") from error


def all_stored(root: str) -> tuple[list[Run], list[str]]:
  """Returns (every run of a root in the order of its plans, damaged files)."""
  try:
    names = sorted(os.listdir(folder(root)))
  except OSError as error:
    raise InputError(f"--root={root}: holds no sweep ({reason(error)}); start "
                     "one with --plan and --config") from error
  runs, wrong = [], []
  for name in names:
    if match := NAME.fullmatch(name):
      try:
        runs.append(stored(root, match[1]))
      except InputError as error:
        wrong.append(str(error))
  return sorted(runs, key=lambda run: run.line), wrong


def other_values(root: str, runs: list[Run]) -> str | None:
  """Returns a note if a root has runs that differ from these in the config.

  Args:
    root: a folder that `make_root` made.
    runs: of the plans that are to be swept now.
  """
  def cell(run: Run) -> str:
    budgets = dict.fromkeys(("C", "M"))
    return json.dumps([run.config["alloc"] | budgets, run.config["seed"]])

  ids, now = {run.run_id for run in runs}, {cell(run): run for run in runs}
  others = [run for run in all_stored(root)[0]
            if run.run_id not in ids and cell(run) in now]
  differ = [(run, text) for run in others if (text := workdir.differences(
      *(_identity(each.config) | {"alloc": None} for each in (
          run, now[cell(run)])), at=("there", "now")))]
  if not differ:
    return None
  first, text = differ[0]
  some = text.split("; ")
  text = "; ".join(some[:2]) + f"; and {len(some) - 2} more" * (len(some) > 2)
  return (f"--root={root} has {len(differ)} runs of the same allocations and "
          f"seeds with another config, such as {first.run_id}: {text}. They "
          "stay there, and launch.fit refuses to join the two; choose another "
          "--root for this config")


def registered(root: str, plans: list[str], config, say
               ) -> tuple[list[Run], list[str]]:
  """Returns (the runs of plans, now in a root; what is wrong with other rows).

  Args:
    root: a folder that `make_root` made.
    plans: files of launch.plan.
    config: whose values the rows change.
    say: called with each note.

  Raises:
    InputError: a plan cannot be read, or the config is no run's.
  """
  config_file.check_run(config)
  found, wrong, kept = [], [], []
  for path in plans:
    runs, refused = of_plan(path, config)
    found += runs
    wrong += refused
    if note := other_anchor(path, config):
      say(note)
  found, notes = distinct(found)
  for note in notes:
    say(note)
  if note := other_values(root, found):
    say(note)
  for run in found:
    try:
      register(root, run)
      kept.append(run)
    except InputError as error:
      wrong.append(str(error))
  return kept, wrong


@functools.cache  # of the code that runs, whatever is written later
def code_version() -> str:
  """Returns the commit of a checkout, else the installed version."""
  here = os.path.dirname(os.path.abspath(__file__))
  git = lambda *words: subprocess.run(
      ["git", "-C", here, *words], capture_output=True, text=True, check=True)
  try:
    git("ls-files", "--error-unmatch", os.path.basename(__file__))
    return git("describe", "--always", "--dirty", "--exclude=*").stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    pass  # no git, or it does not track this file
  try:
    return importlib.metadata.version("isojax")
  except importlib.metadata.PackageNotFoundError:
    return "unknown"
