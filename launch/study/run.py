"""Runs a part of the study and collects the records of its runs in a ledger."""

import math
import os
import runpy
import subprocess
import sys

from isojax.core import config_file, config_flag, disk, exit_codes
from isojax.errors import InputError
from isojax.ledger import records
from isojax.sweep import sweeper
from launch.study import arms, ledger


def read_part(path: str) -> arms.Part:
  """The part of --config=FILE:PART."""
  path, _, name = config_file.found(path).partition(":")
  module = runpy.run_path(path)
  if not name or "get_study" not in module:
    raise InputError(f"--config={path}: no part, or no get_study; expected "
                     "FILE:PART of a study, such as configs/study.py:hard")
  return arms.part_of(name, module["get_study"](name))


def code_version() -> str:
  """The commit of this checkout; empty without one."""
  return subprocess.run(
      ["git", "-C", os.path.dirname(__file__), "describe", "--always",
       "--dirty", "--exclude=*"], capture_output=True, text=True).stdout.strip()


def complete(earlier: ledger.Ledger | None, part: arms.Part) -> dict:
  """The runs of a ledger that have spent their C, by arm, n and seed."""
  if earlier is None:
    return {}
  if earlier.part != part:
    raise InputError(f"--ledger={earlier.path} is of another plan than "
                     f"{part.name}; expected the ledger of this part")
  missing = {planned.key for planned in earlier.missing}
  return {run.key: run for run in earlier.runs if run.key not in missing}


def collect(config, root: str, earlier: ledger.Ledger | None, *,
            sweep: bool, workers: int | None) -> str:
  """Writes the ledger of the part of --config, and returns its path.

  With `sweep` the runs are run or resumed first, but not those that are
  complete in `earlier`, a ledger of this part.
  """
  part = read_part(config_flag.path(sys.argv))
  planned, completed = arms.planned(part), complete(earlier, part)
  plan = os.path.join(root, f"{part.name}.plan.jsonl")
  if sweep:
    os.makedirs(root, exist_ok=True)
    disk.replace(plan, arms.plan(planned, config).encode())
  runs, messages = sweeper.runs_of_plan(plan, config, root)
  if messages:
    raise InputError("; ".join(messages))
  pairs = list(zip(planned, runs, strict=True))
  missing = [run for spec, run in pairs if spec.key not in completed]
  if sweep and missing:
    devices = math.prod(config.mesh.values())
    stopped = sweeper.sweep(
        missing, sweeper.workers_here(workers, devices), tries=3)
    if stopped:
      sys.exit(exit_codes.PREEMPTED)
  lines = [ledger.header(part, code_version())]
  for spec, run in pairs:
    path = os.path.join(run.folder, "records.jsonl")
    if spec.key in completed:
      lines += completed[spec.key].lines
    elif os.path.exists(path):
      lines += ledger.run_lines(
          spec, run.name, records.read(path),
          diverged=sweeper.last_error(run)[0] == exit_codes.DIVERGED)
  path = os.path.join(root, f"{part.name}.jsonl.gz")
  ledger.write(path, lines)
  return path
