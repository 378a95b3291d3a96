"""Trains one experiment, or evaluates its newest checkpoint.

  python -m isojax.main --config=configs/hard.py
  python -m isojax.main --workdir=runs/hard-0123456789ab --mode=eval

The same command resumes a run, also --workdir alone, with its own config.
--config.alloc.n=16 sets a key of the config: configs/grpo.py has all keys with
their units. The training loop is in isojax/run/training.py.
"""

from isojax.runtime import preemption

if __name__ == "__main__":  # the other imports take seconds
  preemption.listen()

import os
import re

from absl import flags

from isojax.core import cli, config_file, plan_file
from isojax.ledger import bucket
from isojax.run import evaluation, experiment, training
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.runtime import compilation, hosts, progress

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where records and checkpoints go: a folder or "
    "gs://BUCKET/FOLDER. Default: runs/NAME-RUN_ID with the config's name. "
    "Without --config it is the folder of a run, whose config is used.")
_CONFIG = config_file.define_flag("configs/hard.py")
_PLAN = flags.DEFINE_string(
    "plan", None, "A plan.jsonl of launch.plan: one of its rows sets seed and "
    "allocation.")
_ROW = flags.DEFINE_integer(
    "row", None, "With --plan: index of the row, from 0.")
_RUN_ID = flags.DEFINE_string(
    "run_id", None, "Name of the run in its records, if --workdir is new; "
    "default: a hash of the values that decide its results.")
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
    "split", "validation", list(evaluation.SPLITS), "With --mode=eval: "
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
    flags.DEFINE_integer("process_id", None, "With --coordinator: index from 0 "
                         "of this process."))


def prepare_setup() -> setup_lib.Setup:
  """The setup of the run; every check comes before any write."""
  plan, row, run_id, evaluates = (
      _PLAN.value, _ROW.value, _RUN_ID.value, _MODE.value == "eval")
  of_eval = [flags.FLAGS[flag.name].serialize() for flag in (
      _STEP, _SPLIT, _POLICY, _EVAL_SETS) if flag.present]
  experiment.raise_if(
      ((plan is None) != (row is None), f"--plan={plan} --row={row}: expected "
       "both or none of them; the first row is --row=0"),
      (_PROFILE.value is not None and evaluates, "--profile traces steps of "
       "training; leave it out, or give --mode=train"),
      (not evaluates and of_eval, f"{', '.join(of_eval)}: give --mode=eval"),
      (run_id is not None and not re.fullmatch(r"[\w-]+", run_id),
       f"--run_id={run_id}: expected letters, digits, _ and -"))
  if _WORKDIR.value is not None:
    bucket.check(_WORKDIR.value, "workdir")
  if plan is not None:
    config_file.apply_row(_CONFIG.value, plan_file.read_lines(plan), row, plan)
  compilation.enable_cache(progress.say)
  setup = setup_lib.prepare(_CONFIG.value)
  for note in setup.notes:
    hosts.say(note)
  return setup


def main(_) -> int:
  hosts.initialize(*(flag.value for flag in _COORDINATES))
  evaluates, policy = _MODE.value == "eval", _POLICY.value
  with hosts.fail_together():
    setup = hosts.run_on_all_hosts(prepare_setup)
    folder = _WORKDIR.value or os.path.join(
        "runs", f"{setup.config.name}-{_RUN_ID.value or setup.run_id}")
    # Before any branch on a flag: hosts in different branches would deadlock.
    hosts.assert_same_on_all_hosts(setup.identity | setup.values | {
        "workdir": folder, "mode": _MODE.value, "eval_sets": _EVAL_SETS.value,
        "step": _STEP.value, "split": _SPLIT.value, "policy": policy})
    if evaluates:  # before anything is written
      hosts.run_on_all_hosts(
          lambda: evaluation.check_evaluable(setup, folder, policy))
    start = hosts.run_on_all_hosts(lambda: state_lib.start_of(
        setup, folder, run_id=_RUN_ID.value, evaluate=evaluates))
    hosts.assert_same_on_all_hosts({"start": start.text})
    hosts.say(start.text)
    with state_lib.claimed(start) as setup:
      if evaluates:
        evaluation.evaluate_checkpoint(
            setup, folder, _STEP.value, _SPLIT.value, _EVAL_SETS.value,
            policy=policy)
        return 0
      end = training.train(setup, folder, trace=_PROFILE.value)
      if end.why is not None:
        hosts.say(end.why)
      if end.was_complete and not setup.config.recipe.optimizer.decay:
        hosts.say("To train longer: the same command with a larger alloc.C (or "
                  f"alloc.M) and --workdir={folder}")
      return end.code


if __name__ == "__main__":
  cli.run(main, parse=config_file.parse_flags)
