"""One experiment: what is said on the command line, and how to evaluate it.

  python -m isojax.main --config=configs/hard.py

The run itself is isojax/train.py, read from top to bottom.
"""

import contextlib
import dataclasses
import functools
import math
import os

from absl import flags

from isojax.ledger import checkpoint
from isojax import cli
from isojax import compilation
from isojax import experiment
from isojax.distributed import hosts
from isojax import run_context
from isojax import profile
from isojax import progress
from isojax.ledger import records
from isojax.ledger import object_store
from isojax import train as train_lib
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.run_context import RunContext
from isojax.planner import plan_file as plan_file_lib

_CONFIG = cli.define_config("configs/hard.py")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where records and checkpoints go, a folder or "
    "gs://BUCKET/FOLDER; by default under runs/, named by config and run id.")
_PLAN = flags.DEFINE_string(
    "plan", None, "A plan.jsonl of launch.plan: one of its rows sets seed and "
    "allocation.")
_ROW = flags.DEFINE_integer(
    "row", None, "Which row of --plan, counted from 0.")
_MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "eval"], "train, or only evaluate the newest "
    "checkpoint of the workdir (the base policy if there is none).")
_EVAL_SETS = flags.DEFINE_list(
    "eval_sets", [], "With --mode=eval: strata files beside that of the "
    "config.")
_PROFILE = flags.DEFINE_string(
    "profile", None, "Folder for a trace of the second to fourth step that "
    "this process makes, for TensorBoard or ui.perfetto.dev.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0 of a run on several hosts, "
    "with the two below; left out, a TPU pod, Slurm or Kubernetes tells them; "
    "none: a run of this process alone.")
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "With --coordinator: processes of the run.")
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "With --coordinator: which one this is, from 0.")


def evaluation_sets(context: RunContext) -> list[tuple[str, RunContext]]:
  """(name in the records, context) of the config's stratum and --eval_sets.

  A set that shares its name with one before has its hash behind it.
  """
  sets = {f"{context.stratum.header['stratum']}/validation": context}
  for path in _EVAL_SETS.value:
    each = run_context.on_stratum(context, path)
    for note in each.notes:
      hosts.say(note)
    header = each.stratum.header
    name = f"{header['stratum']}/validation"
    if name in sets:
      name = f"{header['stratum']}-{header['sha256'][:6]}/validation"
    sets[name] = each
  return list(sets.items())


def as_trained(context: RunContext, config: dict,
               folder: str) -> tuple[RunContext, dict]:
  """RunContext and config under the run id of a workdir, for evaluation.

  How to evaluate may differ from how the run does while it trains.
  """
  if not workdir.claimed(folder):
    return context, config
  found = experiment.completed(workdir.read_config(folder)[1])
  if "eval" not in found:
    return context, config
  run_id = workdir.run_id(context.identity | {"eval": found["eval"]})
  return (dataclasses.replace(context, run_id=run_id),
          config | {"eval": found["eval"]})


def newest(context: RunContext, store: str):
  """(step, parameters) of the newest checkpoint; of the base if none."""
  if not checkpoint.steps(store):
    hosts.say(f"{store} holds no checkpoint: this is the base policy")
    return 0, run_context.base_params(context)
  tx, _ = run_context.make_optimizer(context.e)
  step, trained = checkpoint.restore_params(
      store, None, run_context.abstract_state(context, tx).params)
  return step, run_context.merged(context, run_context.frozen_base(context), trained)


def evaluate_only(context: RunContext, folder: str) -> int:
  """Evaluates the newest checkpoint, or the base policy; adds to eval.jsonl."""
  sets = hosts.run_on_all_hosts(lambda: evaluation_sets(context))
  step, params = newest(context, os.path.join(folder, "checkpoints"))
  known = [r for r in records.read(os.path.join(folder, "records.jsonl"))
           if r["step"] <= step]
  path = os.path.join(folder, "eval.jsonl")
  if hosts.first():
    records.truncate_after(path, math.inf)  # drops a torn last line
  for name, each in sets:
    with run_context.grading(each.e, each.stratum.header) as grade:
      line = {"kind": "eval", **run_context.identity_fields(context, step),
              **run_context.totals_of(known),
              **train_lib.evaluation(each, grade, params, step),
              "eval_set": name}
    if hosts.first():
      with records.opened(path) as written:
        written.append(line)
      print(f"{line['eval_set']}: {progress.evaluation_line(line)}")
  return 0


def planned(config, path: str, row: int | None) -> float:
  """Sets what a row of a plan says in the config; the row's learning rate.

  Raises:
    InputError: no such file or row, or a key that the config has not.
  """
  if row is None:
    raise InputError(f"--plan={path}: say which row, --row=0 for the first")
  found = plan_file_lib.read_row(plan_file_lib.read_lines(path), row, path=path)
  cli.override(config, found["overrides"], f"{path}:{row + 1}")
  return found["lr"]


def prepared() -> RunContext:
  """What the flags and the config say; every check comes before any write."""
  lr = None
  if _PLAN.value is not None:
    lr = planned(_CONFIG.value, _PLAN.value, _ROW.value)
  elif _ROW.value is not None:
    raise InputError(f"--row={_ROW.value}: of which plan? give --plan=FILE")
  if _PROFILE.value is not None and _MODE.value == "eval":
    raise InputError("--profile goes with --mode=train, whose steps it traces")
  if _EVAL_SETS.value and _MODE.value != "eval":
    raise InputError("--eval_sets goes with --mode=eval")
  if _PROFILE.value is not None:
    profile.check_folder(_PROFILE.value)
  if _WORKDIR.value is not None:
    object_store.check(_WORKDIR.value, "workdir")
  if note := compilation.keep_programs():
    progress.say(note)
  context = run_context.prepare(_CONFIG.value)
  for note in context.notes:
    hosts.say(note)
  if lr is not None and not math.isclose(lr, context.e.lr, rel_tol=1e-3):
    hosts.say(f"the plan has lr {lr:.3g}, of another anchor; this run takes "
              f"{context.e.lr:.3g}, of its config's recipe.optimizer")
  return context


def main(_) -> int:
  hosts.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  with hosts.shared_fate(), contextlib.ExitStack() as stack:
    context = hosts.run_on_all_hosts(prepared)
    folder = _WORKDIR.value or os.path.join(
        "runs", f"{context.e.name}-{context.run_id}")
    run = functools.partial(train_lib.train, trace=_PROFILE.value)
    config = _CONFIG.value.to_dict()
    if _MODE.value == "eval":
      run = evaluate_only
      context, config = hosts.run_on_all_hosts(
          lambda: as_trained(context, config, folder))
    hosts.agree(context.identity | config | {
        "workdir": folder, "mode": _MODE.value, "eval_sets": _EVAL_SETS.value})
    claim = workdir.claim(folder, config, context.run_id, context.model_sha256)
    hosts.run_on_all_hosts(lambda: hosts.first() and stack.enter_context(claim))
    hosts.run_on_all_hosts(lambda: workdir.check_shared(folder, context.run_id))
    return run(context, folder)


if __name__ == "__main__":
  cli.run(main)
