"""Trains one experiment, or evaluates its newest checkpoint.

  python -m isojax.main --config=configs/hard.py
  python -m isojax.main --config=configs/hard.py --workdir=runs/a --mode=eval

The same command resumes a run. --config.alloc.n=16 sets a key of the config:
configs/grpo.py has all keys with their units, docs/recipes.md explains them.
The training loop is in isojax/run/training.py.
"""

from isojax.runtime import preemption

if __name__ == "__main__":  # the other imports take seconds
  preemption.listen()

import math
import os
import re
import shlex
import sys

from absl import flags

from isojax.core import config_flag, plan_file, sections
from isojax.ledger import bucket, workdir
from isojax.run import evaluation, experiment, training
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.run.setup import Setup
from isojax.runtime import compilation, hosts, progress

_CONFIG = config_flag.define("configs/hard.py")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where records and checkpoints go: a folder or "
    "gs://BUCKET/FOLDER. Default: runs/NAME-RUN_ID with the config's name.")
_PLAN = flags.DEFINE_string(
    "plan", None, "A plan.jsonl of launch.plan: one of its rows sets seed and "
    "allocation.")
_ROW = flags.DEFINE_integer(
    "row", None, "With --plan: index of the row, from 0.")
_RUN_ID = flags.DEFINE_string(
    "run_id", None, "Name of the run in its records, if --workdir is new; "
    "default: a hash of the values that decide its results. launch.sweep sets "
    "it.")
_MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "eval"], "train; or only evaluate the newest "
    "checkpoint of the workdir.")
_STEP = flags.DEFINE_enum(
    "step", "newest", ["newest", "best"], "With --mode=eval: the newest "
    "checkpoint, or that of the best evaluation (checkpoint.keep_best).")
_POLICY = flags.DEFINE_enum(
    "policy", None, list(setup_lib.POLICY_PARTS), "With --mode=eval: the "
    "averaged policy or the current one of a run with recipe.optimizer.average;"
    " default: the average if there is one.")
_SPLIT = flags.DEFINE_enum(
    "split", "validation", ["validation", "test"], "With --mode=eval: "
    "validation problems, which chose the checkpoint, or test problems, which "
    "chose nothing.")
_EVAL_SETS = flags.DEFINE_list(
    "eval_sets", [], "With --mode=eval: stratum files to evaluate, too.")
_PROFILE = flags.DEFINE_string(
    "profile", None, "Folder for a trace of the second to fourth step of this "
    "process, for TensorBoard or ui.perfetto.dev.")
_COORDINATES = (
    flags.DEFINE_string(
        "coordinator", None, "HOST:PORT of process 0 of a run on several "
        "hosts, with the two flags below. Without it a TPU pod, Slurm or "
        "Kubernetes provides all three; elsewhere this process runs alone."),
    flags.DEFINE_integer(
        "num_processes", None, "With --coordinator: processes of the run."),
    flags.DEFINE_integer(
        "process_id", None, "With --coordinator: index of this process, from "
        "0."))


def check_flags() -> None:
  plan, row, mode, run_id = (
      flag.value for flag in (_PLAN, _ROW, _MODE, _RUN_ID))
  experiment.raise_if(
      ((plan is None) != (row is None), f"--plan={plan} --row={row}: expected "
       "both or none of them; the first row is --row=0"),
      (_PROFILE.value is not None and mode == "eval", "--profile traces steps "
       "of training; leave it out, or give --mode=train"),
      (_EVAL_SETS.value and mode != "eval", "--eval_sets needs --mode=eval"),
      ((_STEP.value, _SPLIT.value, _POLICY.value) != (
          "newest", "validation", None) and mode != "eval",
       "--step, --split and --policy need --mode=eval"),
      (run_id is not None and not re.fullmatch(r"[\w-]+", run_id),
       f"--run_id={run_id}: expected letters, digits, _ and -"))
  if _WORKDIR.value is not None:
    bucket.check(_WORKDIR.value, "workdir")


def workdir_of(name: str, run_id: str) -> str:
  return _WORKDIR.value or os.path.join(
      "runs", f"{name}-{_RUN_ID.value or run_id}")


def prepare_setup() -> Setup:
  """The setup of the run; every check comes before any write."""
  check_flags()
  plan_lr = None
  if _PLAN.value is not None:
    plan_lr = config_flag.apply_row(
        _CONFIG.value, plan_file.read_lines(_PLAN.value), _ROW.value,
        _PLAN.value)
  compilation.enable_cache(progress.say)
  setup = setup_lib.prepare(_CONFIG.value)
  for note in setup.notes:
    hosts.say(note)
  # The plan's lr is for batch = "sampled"; other configs count fewer rollouts.
  if plan_lr is not None and setup.e.recipe.optimizer.batch == "sampled" and (
      not math.isclose(plan_lr, setup.e.lr, rel_tol=1e-3)):
    hosts.say(f"the plan has lr {plan_lr:.3g}, of another base_lr or base_batch"
              f"; this run uses {setup.e.lr:.3g}, by its config's "
              "recipe.optimizer")
  return setup


def longer_command(setup: Setup, folder: str) -> str:
  """The command that extends a complete run to twice its C."""
  a, overrides = setup.e.alloc, {}
  if _PLAN.value is not None:
    overrides = sections.flat(plan_file.read_row(
        plan_file.read_lines(_PLAN.value), _ROW.value,
        path=_PLAN.value)["overrides"])
  key, size = "alloc.C", 2 * a.C
  if _CONFIG.value.alloc.M is not None:
    key, size = "alloc.M", 2 * a.M
  arguments = [argument for argument in config_flag.arguments(sys.argv[1:])
               if not argument.startswith(f"--config.{key}=")]
  return shlex.join([
      "python", "-m", "isojax.main", *arguments,
      *(f"--config.{name}={value}" for name, value in (
          overrides | {key: size}).items()), f"--workdir={folder}"])


def extension_hint(setup: Setup, folder: str) -> str | None:
  """The hint that a shorter run can be extended, with the command; or None."""
  if _WORKDIR.value is not None or workdir.is_claimed(folder):
    return None
  runs = state_lib.extendable(setup, folder)
  if not runs:
    return None
  C, other = runs[-1]  # the longest
  return (
      f"{folder} starts at step 0; {other} has this run up to {C:,} rollouts. "
      "To extend it: " + shlex.join([
          "python", "-m", "isojax.main", *sys.argv[1:], f"--workdir={other}"]))


def main(_) -> int:
  hosts.initialize(*(flag.value for flag in _COORDINATES))
  with hosts.fail_together():
    setup = hosts.run_on_all_hosts(prepare_setup)
    folder = workdir_of(setup.e.name, setup.run_id)
    # Before any branch on a flag: hosts in different branches would deadlock.
    hosts.assert_same_on_all_hosts(setup.identity | setup.config | {
        "workdir": folder, "mode": _MODE.value, "eval_sets": _EVAL_SETS.value,
        "step": _STEP.value, "split": _SPLIT.value, "policy": _POLICY.value})
    evaluate = _MODE.value == "eval"
    if evaluate:  # before anything is written
      hosts.run_on_all_hosts(lambda: evaluation.check_evaluable(setup, folder))
    elif hint := hosts.run_on_all_hosts(lambda: extension_hint(setup, folder)):
      hosts.say(hint)
    with state_lib.claimed(setup, folder, run_id=_RUN_ID.value,
                           evaluate=evaluate) as setup:
      if evaluate:
        evaluation.evaluate_checkpoint(
            setup, folder, _STEP.value, _SPLIT.value, _EVAL_SETS.value,
            policy=_POLICY.value)
        return 0
      end = training.train(setup, folder, trace=_PROFILE.value)
      if end.why is not None:
        hosts.say(end.why)
      if end.was_complete and not setup.e.recipe.optimizer.decay:
        hosts.say(f"To train longer: {longer_command(setup, folder)}")
      return end.code


if __name__ == "__main__":
  config_flag.run(main)
