"""Runs every row of a plan, on this machine or on many.

  python -m launch.sweep --plan=plan.jsonl --config=configs/hard.py --root=runs
  python -m launch.sweep --root=runs --status --follow

The same command resumes a sweep: finished runs are skipped, partial runs
resume, and failed runs are started again until they have failed --tries
times, with the reason kept. Several of these commands on one root share the
work and never do a run twice, also on other machines with the same file system.
Ctrl-C saves all runs and ends the sweep.
"""

import sys
import time

import tqdm
from absl import flags

from isojax import cli
from isojax import progress
from isojax.errors import InputError
from isojax.sweep import commands
from isojax.sweep import runs as runs_lib
from isojax.sweep import devices
from isojax.sweep import slurm
from isojax.sweep import status
from isojax.sweep import sweeper
from isojax.sweep import run_process

_PLAN = flags.DEFINE_list(
    "plan", [], "Plans of launch.plan, separated by commas. Without it: the "
    "runs that the root already holds.")
_CONFIG = cli.define_config("configs/hard.py", required=False)
_ROOT = flags.DEFINE_string(
    "root", None, "Folder of the sweep, which all its machines share.",
    required=True)
_BACKEND = flags.DEFINE_enum(
    "backend", "local", ["local", "slurm", "commands"], "local: run on this "
    "machine; slurm: queue an array of jobs; commands: print what another "
    "scheduler has to run.")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Runs at once on this machine. By default one for each "
    "accelerator, or group of as many as config.mesh needs; one on a CPU, "
    "whose cores they share.", lower_bound=1)
_DEVICES = flags.DEFINE_list(
    "devices", [], "Accelerators to use, such as 0,1; by default all. Two "
    "sweepers on one machine need different ones.")
_MAX_FAILURES = flags.DEFINE_integer(
    "tries", 3, "Failures after which a run is not started again.",
    lower_bound=1)
_LEASE = flags.DEFINE_float(
    "lease", 60.0, "Seconds without a heartbeat after which sweepers on other "
    "machines consider this one dead and take its runs over.", lower_bound=3.0)
_ONLY = flags.DEFINE_list("only", [], "Run ids; only these are run.")
_WAIT = flags.DEFINE_boolean(
    "wait", True, "Wait for the runs of other sweepers, to take them over if "
    "those die.")
_FORMAT = flags.DEFINE_enum(
    "format", "shell", ["shell", "json", "jobset"], "With --backend=commands: "
    "for each run that is not finished a shell line, a JSON line, or a "
    "Kubernetes JobSet for a TPU slice of GKE.")
_TOPOLOGY = flags.DEFINE_string(
    "topology", None, "With --format=jobset: a slice, such as v5e:4x4.")
_IMAGE = flags.DEFINE_string(
    "image", None, "With --format=jobset: a container image with isojax.")
_CLAIM = flags.DEFINE_string(
    "claim", None, "With --format=jobset: the PersistentVolumeClaim that holds "
    "--root.")
_CLUSTER = flags.DEFINE_enum(
    "cluster", "slurm", ["slurm", "local"], "With --backend=slurm: the "
    "cluster, or processes of this machine instead of it.")
_SLURM = flags.DEFINE_list(
    "slurm", [], "With --backend=slurm: parameters of submitit, such as "
    "timeout_min=60,gpus_per_node=1,slurm_partition=gpu.")
_STATUS = flags.DEFINE_boolean(
    "status", False, "Print the state of the root's runs and change nothing.")

_FOLLOW = flags.DEFINE_boolean(
    "follow", False, "With --status: show it again as it changes, until every "
    "run is finished or failed.")

FAILED = 1  # exit code: some runs failed
EVERY = 30.0  # seconds between status lines where there is no terminal
FRESH = 3.0  # seconds between two looks of --follow


def planned(root: str) -> tuple[list[runs_lib.Run], list[str]]:
  """Returns (the runs of --plan, now in the root; what is wrong with others).
  """
  config = _CONFIG.value
  if config is None:
    raise InputError("--plan needs --config=FILE, whose values its rows change")
  return runs_lib.registered(root, _PLAN.value, config, progress.say)


def chosen(root: str) -> tuple[list[runs_lib.Run], list[str]]:
  """Returns (the runs of this sweep, what is wrong with others)."""
  if _FOLLOW.value and not _STATUS.value:
    raise InputError("--follow shows the status of a sweep: give --status too")
  if _PLAN.value and _STATUS.value:
    raise InputError("--status shows the runs that a root holds: leave --plan "
                     "out")
  if _PLAN.value:
    runs_lib.make_root(root)
    runs, wrong = planned(root)
  else:
    if _CONFIG.value is not None:
      raise InputError("--config goes with --plan; the runs of a root have "
                       "their own")
    runs, wrong = runs_lib.all_stored(root)
    if not _STATUS.value:
      runs_lib.make_root(root)
  if _ONLY.value:
    missing = set(_ONLY.value) - {run.run_id for run in runs}
    if missing:
      raise InputError(f"--only={','.join(sorted(missing))}: {root} has no "
                       "such run; see --status")
    runs = [run for run in runs if run.run_id in _ONLY.value]
  return runs, wrong


def live_line(root: str):
  """Returns a function of list[RunState] that updates or prints one line."""
  bar = tqdm.tqdm(bar_format="{desc}", dynamic_ncols=True,
                  disable=not sys.stderr.isatty())
  due = 0.0

  def show(states) -> None:
    nonlocal due
    if not bar.disable:
      bar.set_description_str(status.line(root, states))
    elif time.monotonic() >= due:
      due = time.monotonic() + EVERY
      progress.say(status.line(root, states))

  return show


def read_now(root: str, rules: sweeper.Rules) -> list[sweeper.RunState]:
  """Returns the states of the chosen runs, those registered since included."""
  return sweeper.read_states(root, chosen(root)[0], rules, {}, {})


def show_status(root: str, runs: list[runs_lib.Run],
                rules: sweeper.Rules) -> None:
  """Prints the table of --status, once or with --follow."""
  if not _FOLLOW.value:
    print(status.table(root, sweeper.read_states(root, runs, rules, {}, {})))
    return
  try:
    status.follow(root, lambda: read_now(root, rules), lambda: time.sleep(FRESH))
  except KeyboardInterrupt:
    pass


def code_of(states: list[sweeper.RunState], wrong: list[str],
            stopped: bool) -> int:
  """Returns the exit code, for a scheduler."""
  if stopped:
    return cli.PREEMPTED
  if wrong:
    return cli.BAD_INPUT
  if any(s.state == "failed" for s in states):
    return FAILED
  # With --nowait a run may be left to another sweeper.
  done = all(s.state in sweeper.FINAL for s in states)
  return 0 if done else cli.PREEMPTED


def local(root: str, runs: list[runs_lib.Run], rules: sweeper.Rules):
  """Runs them here; returns (their states, whether a signal stopped it)."""
  each = max(run.devices for run in runs)
  places = devices.of_machine(_WORKERS.value, _DEVICES.value, each)

  return sweeper.sweep(root, runs, places, rules,
                       start=run_process.start_alone, show=live_line(root))


def slurm_parameters() -> dict:
  return {name: int(value) if value.isdecimal() else value
          for name, value in cli.pairs("slurm", _SLURM.value).items()}


def commanded(root: str, run: runs_lib.Run) -> str:
  """Returns what another scheduler has to do for a run."""
  if _FORMAT.value != "jobset":
    of = {"shell": commands.shell, "json": commands.json_line}[_FORMAT.value]
    return of(root, run, _MAX_FAILURES.value, _LEASE.value)
  for name in ("topology", "image", "claim"):
    if flags.FLAGS[name].value is None:
      raise InputError(f"--format=jobset needs --{name}")
  text = commands.jobset(
      root, run, slice_of=_TOPOLOGY.value, image=_IMAGE.value,
      claim=_CLAIM.value, max_failures=_MAX_FAILURES.value)
  return f"---\n{text}"


def handed_over(root: str, states: list[sweeper.RunState]) -> None:
  """Prints or queues the runs that are not finished and have no holder."""
  runs = [s.run for s in states if s.state in sweeper.OPEN]
  if _BACKEND.value == "commands":
    for run in runs:
      print(commanded(root, run))
    return
  jobs = slurm.submit(
      root, runs, cluster=_CLUSTER.value, parameters=slurm_parameters(),
      max_failures=_MAX_FAILURES.value, lease=_LEASE.value)
  for run, job in zip(runs, jobs, strict=True):
    print(f"{run.run_id}: {run.source}, job {job}")
  print(f"{len(runs)} jobs of {len(states)} runs; python -m launch.sweep "
        f"--root={root} --status shows their state")


def main(_) -> int:
  root = _ROOT.value
  runs_lib.check_root(root)
  runs, wrong = chosen(root)
  rules = sweeper.Rules(_MAX_FAILURES.value, _LEASE.value,
                        runs_lib.code_version(), _WAIT.value)
  if _STATUS.value:
    show_status(root, runs, rules)
    return code_of([], wrong, False)
  if not runs:
    raise InputError("nothing is left to run: " + "; ".join(wrong))
  for text in wrong:
    progress.say(f"left out: {text}")
  if _BACKEND.value != "local":
    handed_over(root, sweeper.read_states(root, runs, rules, {}, {}))
    return code_of([], wrong, False)
  states, stopped = local(root, runs, rules)
  print(status.table(root, states))
  for text in wrong:
    progress.say(f"left out: {text}")
  if any(s.state == "failed" for s in states):
    progress.say("--tries="
                 f"{_MAX_FAILURES.value + 1} starts failed runs again; their "
                 f"output is in {runs_lib.folder(root)}/RUN_ID.log")
  if stopped:
    progress.say("stopped by a signal; the same command resumes the sweep")
  return code_of(states, wrong, stopped)


if __name__ == "__main__":
  cli.run(main)
