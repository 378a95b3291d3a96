"""Runs a part of the study and collects the records of its runs in a ledger."""

import importlib.util
import math
import os
import subprocess
import sys

from isojax import cli, config_file, sweeper
from isojax.errors import InputError
from isojax.ledger import records
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


def sweep(config, root: str, workers: int | None) -> str:
  """Runs the part of --config as far as it goes; the same call resumes it.

  Args:
    config: what the runs share.
    root: folder of the runs. Parts that share it share equal runs.
    workers: runs at once; None: as many as the devices allow.

  Returns:
    The path of its ledger, ROOT/PART.jsonl.gz.
  """
  part = read_part(cli.config_path(sys.argv))
  plan = os.path.join(root, f"{part.name}.plan.jsonl")
  os.makedirs(root, exist_ok=True)
  records.replace(plan, arms.plan(arms.planned(part), config).encode())
  if sweeper.sweep(planned_runs(config, root), sweeper.workers_here(
      workers, math.prod(config.mesh.values())), tries=3):
    sys.exit(cli.PREEMPTED)
  return collect(config, root)


def planned_runs(config, root: str) -> list[sweeper.Run]:
  """The runs of the part's plan in a root."""
  part = read_part(cli.config_path(sys.argv))
  runs, wrong = sweeper.of_plan(
      os.path.join(root, f"{part.name}.plan.jsonl"), config, root)
  if wrong:
    raise InputError("; ".join(wrong))
  return runs


def collect(config, root: str) -> str:
  """Writes the ledger of the runs so far; returns its path."""
  part, runs = read_part(cli.config_path(sys.argv)), planned_runs(config, root)
  lines = [ledger.header(part, code_version())]
  for planned, run in zip(arms.planned(part), runs, strict=True):
    path = os.path.join(run.folder, "records.jsonl")
    if os.path.exists(path):
      lines += ledger.of_run(
          planned, run.name, records.read(path),
          diverged=sweeper.last_error(run)[0] == cli.DIVERGED)
  path = os.path.join(root, f"{part.name}.jsonl.gz")
  ledger.write(path, lines)
  return path
