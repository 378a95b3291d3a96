"""Runs every row of a plan, on this machine or many: python -m launch.sweep.

  python -m launch.sweep --plan=plan.jsonl --config=configs/hard.py --root=runs
  python -m launch.sweep --root=runs --status

Idempotent: the same command goes on. Finished runs are skipped, partial ones
resumed, failed ones tried again up to --tries with the reason kept. Several of
these commands on one root, also on other machines with the same file system,
share the work and never do a run twice. Ctrl-C saves all runs and ends.
"""

import atexit
import os
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
    "plan", [], "Plans of launch.plan, separated by commas. Without: the runs "
    "that the root holds already.")
_CONFIG = cli.define_config("configs/hard.py", required=False)
_ROOT = flags.DEFINE_string(
    "root", None, "Folder of all runs of the sweep; shared by all machines.",
    required=True)
_BACKEND = flags.DEFINE_enum(
    "backend", "local", ["local", "slurm", "commands"], "local: workers on "
    "this machine; slurm: an array of jobs; commands: print what other "
    "schedulers are to run.")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Runs at once on this machine: by default one for each "
    "accelerator (or as many as config.mesh needs), one on a CPU; they share "
    "its cores.", lower_bound=1)
_DEVICES = flags.DEFINE_list(
    "devices", [], "The accelerators to use, such as 0,1; by default all. Two "
    "sweepers of one machine need different ones.")
_TOGETHER = flags.DEFINE_integer(
    "together", None, "So many runs at once in this process, on one device, "
    "where they differ in seed and in Bp * n = B alone: on an accelerator "
    "their programs are one. Others run alone, after them.", lower_bound=1)
_TRIES = flags.DEFINE_integer(
    "tries", 3, "Failures after which a run is left alone.", lower_bound=1)
_LEASE = flags.DEFINE_float(
    "lease", 60.0, "Seconds without a sign after which sweepers of other "
    "machines take this one for dead, and its runs over.", lower_bound=3.0)
_ONLY = flags.DEFINE_list("only", [], "Only the runs of these ids.")
_WAIT = flags.DEFINE_boolean(
    "wait", True, "Wait for runs that other sweepers are at, to take them over "
    "if those die.")
_FORMAT = flags.DEFINE_enum(
    "format", "shell", ["shell", "json", "jobset"], "With --backend=commands: "
    "a line of a shell or of JSON for each run that is not finished, or a "
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
    "cluster, or processes of this machine in place of it.")
_SLURM = flags.DEFINE_list(
    "slurm", [], "With --backend=slurm: submitit's parameters, such as "
    "timeout_min=60,gpus_per_node=1,slurm_partition=gpu.")
_STATUS = flags.DEFINE_boolean(
    "status", False, "Print how the runs of the root stand, change nothing.")

FAILED = 1  # exit code: some runs failed
EVERY = 30.0  # seconds between status lines where there is no terminal


def planned(root: str) -> tuple[list[runs_lib.Run], list[str]]:
  """(The runs of --plan, registered in the root; what is wrong with others)."""
  config = _CONFIG.value
  if config is None:
    raise InputError("--plan needs --config=FILE, whose values its rows change")
  found, wrong = [], []
  for path in _PLAN.value:
    runs, refused = runs_lib.of_plan(path, config)
    found += runs
    wrong += refused
    if note := runs_lib.other_anchor(path, config):
      progress.say(note)
  found, notes = runs_lib.distinct(found)
  for note in notes:
    progress.say(note)
  kept = []
  for run in found:
    try:
      runs_lib.register(root, run)
      kept.append(run)
    except InputError as error:
      wrong.append(str(error))
  return kept, wrong


def chosen(root: str) -> tuple[list[runs_lib.Run], list[str]]:
  """(The runs to work off, what is wrong with others)."""
  if _PLAN.value and _STATUS.value:
    raise InputError("--status is of what a root holds, and changes nothing: "
                     "leave --plan out")
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
  """A function of list[Seen]: one line that changes, or one now and then."""
  bar = tqdm.tqdm(bar_format="{desc}", dynamic_ncols=True,
                  disable=not sys.stderr.isatty())
  due = 0.0

  def show(standing) -> None:
    nonlocal due
    if not bar.disable:
      bar.set_description_str(status.line(root, standing))
    elif time.monotonic() >= due:
      due = time.monotonic() + EVERY
      progress.say(status.line(root, standing))

  return show


def code_of(standing: list[sweeper.Seen], wrong: list[str],
            stopped: bool) -> int:
  """The exit code, for a scheduler."""
  if stopped:
    return cli.PREEMPTED
  if wrong:
    return cli.BAD_INPUT
  if any(s.state == "failed" for s in standing):
    return FAILED
  # With --nowait a run may be left to another sweeper.
  done = all(s.state in sweeper.FINAL for s in standing)
  return 0 if done else cli.PREEMPTED


def local(root: str, runs: list[runs_lib.Run], rules: sweeper.Rules):
  """Works them off here: (how they stand, whether a signal ended it)."""
  each = max(run.devices for run in runs)
  if _TOGETHER.value is not None:
    return together(root, runs, rules, devices.of_machine(
        1, _DEVICES.value, each)[0])
  places = devices.of_machine(_WORKERS.value, _DEVICES.value, each)

  def start(root, run, slot, number):  # a whole run, also on a pod's host
    command = [*runs_lib.command(root, run, sys.executable),
               "--coordinator=none"]
    return run_process.start(command, root, run, slot, number)

  return sweeper.sweep(root, runs, places, rules, start=start,
                       show=live_line(root))


def together(root: str, runs: list[runs_lib.Run], rules: sweeper.Rules, place):
  """As `local`, in threads of this process."""
  if _WORKERS.value is not None:
    raise InputError("--together is of one process; for more accelerators "
                     "start the same command for each, with other --devices")
  for run, why in runs_lib.lonely(runs):
    progress.say(f"{run.run_id}: {run.source} runs alone: {why}")
  os.environ.update(place.env)  # before jax is there
  # Only here: the sweeper of processes needs no jax.
  from isojax import together as together_lib
  company = together_lib.Company()
  found = sweeper.sweep(
      root, runs, [place] * _TOGETHER.value, rules, start=company.start,
      show=live_line(root), fits=runs_lib.beside)
  stopped = found[1]
  if stopped and company.busy:  # after a second Ctrl-C: Python would crash on
    # its threads
    atexit.register(os._exit, cli.PREEMPTED)
  return found


def slurm_parameters() -> dict:
  return {name: int(value) if value.isdecimal() else value
          for name, value in cli.pairs("slurm", _SLURM.value).items()}


def commanded(root: str, run: runs_lib.Run) -> str:
  """What another scheduler is to do for a run."""
  if _FORMAT.value != "jobset":
    of = {"shell": commands.shell, "json": commands.json_line}[_FORMAT.value]
    return of(root, run, _TRIES.value, _LEASE.value)
  for name in ("topology", "image", "claim"):
    if flags.FLAGS[name].value is None:
      raise InputError(f"--format=jobset needs --{name}")
  text = commands.jobset(
      root, run, slice_of=_TOPOLOGY.value, image=_IMAGE.value,
      claim=_CLAIM.value, tries=_TRIES.value)
  return f"---\n{text}"


def handed_over(root: str, standing: list[sweeper.Seen]) -> None:
  """Prints or queues the runs that want work."""
  runs = [s.run for s in standing
          if s.state in ("waiting", "stopped", "interrupted")]
  if _BACKEND.value == "commands":
    for run in runs:
      print(commanded(root, run))
    return
  jobs = slurm.submit(root, runs, cluster=_CLUSTER.value,
                      parameters=slurm_parameters(), tries=_TRIES.value,
                      lease=_LEASE.value)
  for run, job in zip(runs, jobs, strict=True):
    print(f"{run.run_id}: {run.source}, job {job}")
  print(f"{len(runs)} jobs of {len(standing)} runs; python -m launch.sweep "
        f"--root={root} --status shows how they stand")


def main(_) -> int:
  root = _ROOT.value
  runs_lib.check_root(root)
  runs, wrong = chosen(root)
  rules = sweeper.Rules(_TRIES.value, _LEASE.value, runs_lib.code_version(),
                        _WAIT.value, _TOGETHER.value is not None)
  if _STATUS.value:
    print(status.table(root, sweeper.look(root, runs, rules, {}, {})))
    return code_of([], wrong, False)
  for text in wrong:
    progress.say(f"left out: {text}")
  if not runs:
    raise InputError("nothing is left to run: " + "; ".join(wrong))
  if _BACKEND.value != "local":
    if _TOGETHER.value is not None:
      raise InputError(f"--together goes with --backend=local, not "
                       f"{_BACKEND.value}: others start each run alone")
    handed_over(root, sweeper.look(root, runs, rules, {}, {}))
    return code_of([], wrong, False)
  standing, stopped = local(root, runs, rules)
  print(status.table(root, standing))
  for text in wrong:
    progress.say(f"left out: {text}")
  if any(s.state == "failed" for s in standing):
    progress.say(f"failed runs are tried again by --tries={_TRIES.value + 1}; "
                 f"what they said is in {runs_lib.folder(root)}/RUN.log")
  if stopped:
    progress.say("stopped by a signal; the same command goes on")
  return code_of(standing, wrong, stopped)


if __name__ == "__main__":
  cli.run(main)
