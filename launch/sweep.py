"""Runs every row of a plan, on this machine or on many.

  python -m launch.sweep --plan=plan.jsonl --config=configs/hard.py --root=runs

The same command resumes a sweep. Started several times on one file system, it
shares the work; elsewhere, give each start --shard=I/N. Ctrl-C saves all runs.
"""

import math

from absl import flags

from isojax.core import cli, config_file, exit_codes
from isojax.runtime import progress
from isojax.sweep import sweeper

_PLAN = flags.DEFINE_list(
    "plan", None, "Plans of launch.plan, separated by commas.", required=True)
_CONFIG = config_file.define_flag("configs/hard.py")
_ROOT = flags.DEFINE_string(
    "root", None, "Folder of the runs, which all machines of the sweep share.",
    required=True)
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Runs at once on this machine. By default as many as the "
    "accelerators allow, and one on a CPU, whose cores they share.",
    lower_bound=1)
_TRIES = flags.DEFINE_integer(
    "tries", 3, "Failures of a run after which this command leaves it out. A "
    "run with bad input, or one that diverged, is started once.",
    lower_bound=1)
_SHARD = flags.DEFINE_string(
    "shard", None, "I/N: only every N-th run, from the I-th, counted from 0.")
_STATUS = flags.DEFINE_boolean(
    "status", False, "Print the state of the runs and change nothing.")

FAILED = 1  # exit code: some runs failed


def main(_) -> int:
  by_folder, messages = {}, []
  for path in _PLAN.value:
    planned, refused = sweeper.runs_of_plan(path, _CONFIG.value, _ROOT.value)
    by_folder |= {run.folder: run for run in planned}  # equal runs count once
    messages += refused
  for text in messages:
    progress.say(f"left out: {text}")
  runs = list(by_folder.values())
  runs = sweeper.runs_of_shard(runs, _SHARD.value)
  if runs and not _STATUS.value:
    devices = math.prod(_CONFIG.value.mesh.values())
    stopped = sweeper.sweep(
        runs, sweeper.workers_here(_WORKERS.value, devices), _TRIES.value)
    if stopped:
      progress.say("stopped by a signal; the same command resumes the sweep")
      return exit_codes.PREEMPTED
  print(sweeper.table(runs))
  failed = not _STATUS.value and any(
      sweeper.state_of(run) == "failed" for run in runs)
  if failed:
    progress.say(f"runs failed; their output is in {_ROOT.value}/RUN_ID.log")
  if messages:
    return exit_codes.BAD_INPUT
  return FAILED if failed else 0


if __name__ == "__main__":
  cli.run(main, parse=config_file.parse_flags)
