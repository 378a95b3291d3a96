"""Runs a part of the study and collects the records of its runs in a ledger."""

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys

from isojax.core import config_file, config_flag, exit_codes
from isojax.errors import InputError
from isojax.ledger import records
from isojax.sweep import sweeper
from launch.study import arms, ledger


def read_part(path: str) -> arms.Part:
  """The part that --config=FILE:PART names."""
  path, _, name = config_file.shipped(path).partition(":")
  spec = importlib.util.spec_from_file_location("study_config", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not name or not hasattr(module, "get_study"):
    raise InputError(f"--config={path}: no part, or no get_study; expected "
                     "FILE:PART of a study, such as configs/study.py:hard")
  return arms.part_of(name, module.get_study(name))


def code_version() -> str:
  """The commit of this checkout; empty without one."""
  found = subprocess.run(
      ["git", "-C", os.path.dirname(__file__), "describe", "--always",
       "--dirty", "--exclude=*"], capture_output=True, text=True)
  return found.stdout.strip()


def sweep(config, root: str, workers: int | None,
          kept: ledger.Ledger | None) -> str:
  """Runs the part of --config as far as it goes; the same call resumes it.

  Args:
    config: what the runs share.
    root: folder of the runs. Parts that share it share equal runs.
    workers: runs at once; None: as many as the devices allow.
    kept: the part's ledger of another machine, whose complete runs are not
      run again.

  Returns:
    The path of its ledger, ROOT/PART.jsonl.gz.
  """
  part = read_part(config_flag.path(sys.argv))
  plan = os.path.join(root, f"{part.name}.plan.jsonl")
  os.makedirs(root, exist_ok=True)
  records.replace(plan, arms.plan(arms.planned(part), config).encode())
  done = complete(kept, part)
  missing = [run for planned, run in planned_runs(config, root)
             if planned.key not in done]
  if missing and sweeper.sweep(missing, sweeper.workers_here(
      workers, math.prod(config.mesh.values())), tries=3):
    sys.exit(exit_codes.PREEMPTED)
  return collect(config, root, kept)


def complete(kept: ledger.Ledger | None, part: arms.Part) -> dict:
  """The complete runs of a part's ledger, by arm, n and seed."""
  if kept is None:
    return {}
  plain = lambda part: json.dumps(dataclasses.asdict(part))  # no tuples
  if plain(kept.part) != plain(part):
    raise InputError(f"--ledger={kept.path} is of another plan than "
                     f"{part.name}; expected the ledger of this part")
  missing = {planned.key for planned in kept.missing}
  runs = {(r.head["arm"], r.head["n"], r.head["seed"]): r for r in kept.runs}
  return {key: run for key, run in runs.items() if key not in missing}


def planned_runs(config, root: str) -> list[tuple[arms.Planned, sweeper.Run]]:
  """The runs of the part's plan in a root."""
  part = read_part(config_flag.path(sys.argv))
  runs, wrong = sweeper.of_plan(
      os.path.join(root, f"{part.name}.plan.jsonl"), config, root)
  if wrong:
    raise InputError("; ".join(wrong))
  return list(zip(arms.planned(part), runs, strict=True))


def collect(config, root: str, kept: ledger.Ledger | None) -> str:
  """Writes the ledger of the runs so far; returns its path."""
  part = read_part(config_flag.path(sys.argv))
  lines, done = [ledger.header(part, code_version())], complete(kept, part)
  for planned, run in planned_runs(config, root):
    path = os.path.join(run.folder, "records.jsonl")
    if planned.key in done:
      lines += done[planned.key].lines
    elif os.path.exists(path):
      lines += ledger.of_run(
          planned, run.name, records.read(path),
          diverged=sweeper.last_error(run)[0] == exit_codes.DIVERGED)
  path = os.path.join(root, f"{part.name}.jsonl.gz")
  ledger.write(path, lines)
  return path
