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

from isojax import checkpoint
from isojax import cli
from isojax import compilation
from isojax import hosts
from isojax import lab as lab_lib
from isojax import profile
from isojax import progress
from isojax import records
from isojax import storage
from isojax import train as train_lib
from isojax import workdir
from isojax.errors import InputError
from isojax.lab import Lab
from isojax.planner import plan as plan_lib

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


def evaluation_sets(lab: Lab) -> list[tuple[str, Lab]]:
  """(name in the records, lab) of the config's stratum and --eval_sets.

  A set that shares its name with one before has its hash behind it.
  """
  sets = {f"{lab.stratum.header['stratum']}/validation": lab}
  for path in _EVAL_SETS.value:
    each = lab_lib.on_stratum(lab, path)
    for note in each.notes:
      hosts.say(note)
    header = each.stratum.header
    name = f"{header['stratum']}/validation"
    if name in sets:
      name = f"{header['stratum']}-{header['sha256'][:6]}/validation"
    sets[name] = each
  return list(sets.items())


def as_trained(lab: Lab, config: dict, folder: str) -> tuple[Lab, dict]:
  """Lab and config under the run id of a workdir, for evaluation.

  How to evaluate may differ from how the run does while it trains.
  """
  if not workdir.claimed(folder):
    return lab, config
  _, found = workdir.read_config(folder)
  if "eval" not in found:
    return lab, config
  run_id = workdir.run_id(lab.identity | {"eval": found["eval"]})
  return (dataclasses.replace(lab, run_id=run_id),
          config | {"eval": found["eval"]})


def newest(lab: Lab, store: str):
  """(step, parameters) of the newest checkpoint; of the base if none."""
  if not checkpoint.steps(store):
    hosts.say(f"{store} holds no checkpoint: this is the base policy")
    return 0, lab_lib.base_params(lab)
  tx, _ = lab_lib.make_optimizer(lab.e)
  step, trained = checkpoint.restore_params(
      store, None, lab_lib.abstract_state(lab, tx).params)
  return step, lab_lib.merged(lab, lab_lib.frozen_base(lab), trained)


def evaluate_only(lab: Lab, folder: str) -> int:
  """Evaluates the newest checkpoint, or the base policy; adds to eval.jsonl."""
  sets = hosts.together(lambda: evaluation_sets(lab))
  step, params = newest(lab, os.path.join(folder, "checkpoints"))
  known = [r for r in records.read(os.path.join(folder, "records.jsonl"))
           if r["step"] <= step]
  path = os.path.join(folder, "eval.jsonl")
  if hosts.first():
    records.truncate_after(path, math.inf)  # drops a torn last line
  for name, each in sets:
    with lab_lib.grading(each.e, each.stratum.header) as grade:
      line = {"kind": "eval", **lab_lib.identity_fields(lab, step),
              **lab_lib.totals_of(known),
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
  found = plan_lib.read_row(plan_lib.read_lines(path), row, path=path)
  cli.override(config, found["overrides"], f"{path}:{row + 1}")
  return found["lr"]


def prepared() -> Lab:
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
    storage.check(_WORKDIR.value, "workdir")
  if note := compilation.keep_programs():
    progress.say(note)
  lab = lab_lib.prepare(_CONFIG.value)
  for note in lab.notes:
    hosts.say(note)
  if lr is not None and not math.isclose(lr, lab.e.lr, rel_tol=1e-3):
    hosts.say(f"the plan has lr {lr:.3g}, of another anchor; this run takes "
              f"{lab.e.lr:.3g}, of its config's recipe.optimizer")
  return lab


def main(_) -> int:
  hosts.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  with hosts.shared_fate(), contextlib.ExitStack() as stack:
    lab = hosts.together(prepared)
    folder = _WORKDIR.value or os.path.join(
        "runs", f"{lab.e.name}-{lab.run_id}")
    run = functools.partial(train_lib.train, trace=_PROFILE.value)
    config = _CONFIG.value.to_dict()
    if _MODE.value == "eval":
      run = evaluate_only
      lab, config = hosts.together(lambda: as_trained(lab, config, folder))
    hosts.agree(lab.identity | config | {
        "workdir": folder, "mode": _MODE.value, "eval_sets": _EVAL_SETS.value})
    claim = workdir.claim(folder, config, lab.run_id, lab.model_sha256)
    hosts.together(lambda: hosts.first() and stack.enter_context(claim))
    hosts.together(lambda: workdir.check_shared(folder, lab.run_id))
    return run(lab, folder)


if __name__ == "__main__":
  cli.run(main)
