"""One experiment, read from top to bottom.

  python -m isojax.main --config=configs/hard.py

problems -> prompts -> rollouts (Bp x n) -> rewards -> advantages -> batch ->
update -> record. Every draw and the data order are functions of (seed, step),
so a run that was killed continues to the same bits.
"""

import contextlib
import dataclasses
import functools
import math
import os
import signal
import threading
import time

import jax
import numpy as np
from absl import flags

from isojax import checkpoint
from isojax import cli
from isojax import compilation
from isojax import evaluate
from isojax import hosts
from isojax import lab as lab_lib
from isojax import mesh as mesh_lib
from isojax import profile
from isojax import progress
from isojax import records
from isojax import rng
from isojax import storage
from isojax import workdir
from isojax.errors import InputError
from isojax.lab import Lab
from isojax.planner import plan as plan_lib
from isojax.rl import advantage
from isojax.rl import update as update_lib
from isojax.tasks import prompts as prompts_lib

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


def train_step(lab: Lab, grade, update, state, base, step: int):
  """One step of the paper's algorithm: (state, what it measured)."""
  e, a = lab.e, lab.e.alloc
  begun = time.perf_counter()
  index = prompts_lib.indices_at(
      seed=e.seed, step=step, Bp=a.Bp, D=len(lab.stratum.train))
  problems = [lab.stratum.train[i] for i in index]
  prompts = jax.tree.map(lambda x: x[index], lab.train)
  rollouts, graded, scoring = profile.stage("sample", lab_lib.graded_rollouts)(
      lab, grade, lab_lib.merged(lab, base, state.params), problems, prompts,
      a.n, rng.stream(e.seed, "rollout", step), e.sampler)
  for line in graded.lost:
    hosts.say(f"step {step + 1}: counted as wrong: {line}")
  reward_Bpxn = (graded.correct_B + e.task.format_coef * graded.formatted_B
                 ).reshape(a.Bp, a.n)
  loss = e.recipe.loss
  advantage_Bpxn = advantage.group_norm(
      reward_Bpxn, ddof=loss.advantage_ddof, eps=loss.advantage_eps)
  weights = advantage.row_weights(
      rollouts.len_R.reshape(a.Bp, a.n), reward_Bpxn,
      aggregation=loss.aggregation, zero_variance=loss.zero_variance)
  sampled = time.perf_counter()
  batches = update_lib.assemble(
      prompts, rollouts, advantage_Bpxn.reshape(-1),
      *(w.reshape(-1) for w in weights), n=a.n,
      G=mesh_lib.blocks(lab.model.mesh), cfg=loss)
  state, metrics = update(
      state, base, [update_lib.place(b, lab.model.mesh) for b in batches],
      np.float32(e.sampler.temperature))
  metrics = {k: float(v) for k, v in jax.device_get(metrics).items()}
  jax.block_until_ready(state)
  return state, lab_lib.measured(
      lab, prompts, rollouts, graded, batches, metrics,
      [sampled - begun - scoring, scoring, time.perf_counter() - sampled])


def evaluation(lab: Lab, grade, params, step: int) -> dict:
  """The fields of an eval record that an evaluation measures."""
  e, problems, k = lab.e, lab.stratum.validation, lab.e.eval.k
  _, graded, _ = lab_lib.graded_rollouts(
      lab, grade, params, problems, lab.validation, k,
      rng.stream(e.seed, "eval", step), e.eval)
  for line in graded.lost:
    hosts.say(f"evaluation: counted as wrong: {line}")
  return {"eval_set": f"{lab.stratum.header['stratum']}/validation",
          **evaluate.at_k(graded.correct_B.reshape(-1, k),
                          np.reshape(graded.vote_B, (-1, k)).tolist())}


@contextlib.contextmanager
def stop_signals():
  """An event that the first SIGTERM or SIGINT sets; a second one kills."""
  stop = threading.Event()

  def handle(number, frame):
    del frame
    stop.set()
    signal.signal(number, signal.SIG_DFL)

  before = {number: signal.signal(number, handle)
            for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def start_or_continue(lab: Lab, tx, ledger: str, store: str):
  """(step, state, records up to it): of the newest checkpoint, else step 0.

  Raises:
    InputError: ledger and checkpoints do not belong together.
  """
  restored = checkpoint.restore_newest(store, lab_lib.abstract_state(lab, tx))
  found = records.read(ledger)
  steps = [r["step"] for r in found if r["kind"] == "train"]
  hosts.agree({"checkpoint": restored and restored[0], "records": len(found)})
  if restored is None:
    # A first save may still have been under way when the second one was due.
    if steps and steps[-1] > 2 * lab.e.checkpoint.every_steps:
      raise InputError(
          f"{ledger} goes up to step {steps[-1]}, but {store} holds no "
          "checkpoint; put the checkpoints back, or choose another --workdir "
          "to start again")
    state = update_lib.init_state(lab.model, tx, lab_lib.first_trained(lab),
                                  lab.e.model.lora)
    return 0, state, kept_up_to(ledger, found, -1)
  start, state = restored
  if steps[:start] != list(range(1, start + 1)):
    raise InputError(
        f"{store} holds step {start}, but {ledger} does not hold each step up "
        "to it; put the records back, or choose another --workdir to start "
        "again")
  if start < lab.e.alloc.M:
    hosts.say(f"continuing from step {start} of {lab.e.alloc.M}")
  return start, state, kept_up_to(ledger, found, start)


def kept_up_to(ledger: str, found: list[dict], step: int) -> list[dict]:
  """Of its records those up to a step; process 0 cuts off what follows."""
  if hosts.first():
    return records.truncate_after(ledger, step)
  return [r for r in found if r["step"] <= step]


def diverged(lab: Lab, step: int, saved: int, fields: dict) -> str:
  last = f"the last good checkpoint is of step {saved}" if saved else (
      "there is no checkpoint yet")
  return (
      f"stopped: loss, gradient or parameters are not finite after step {step} "
      f"(loss {fields['loss']}, grad_norm {fields['grad_norm']}, logp_gap "
      f"{fields['logp_gap']}); {last}, nothing of this step was kept. Try, in "
      "another --workdir, a lower recipe.optimizer.base_lr (now "
      f"{lab.e.recipe.optimizer.base_lr}), a smaller clip_norm, or float32 for "
      "recipe.loss.dtype")


def train(lab: Lab, folder: str, trace: str | None = None) -> int:
  """Runs or continues the experiment in a claimed workdir; the exit code.

  `trace`: the folder of --profile.
  """
  e, M, B = lab.e, lab.e.alloc.M, lab.e.alloc.B
  compiled = compilation.Count()
  ledger = os.path.join(folder, "records.jsonl")
  store = os.path.join(folder, "checkpoints")
  tx, schedule = lab_lib.make_optimizer(lab)
  start, state, kept = start_or_continue(lab, tx, ledger, store)
  totals = lab_lib.totals_of(kept)
  evaluated = {r["step"] for r in kept if r["kind"] == "eval"}
  base = (lab_lib.base_params(lab) if e.recipe.loss.kl_coef
          else lab_lib.frozen_base(lab))
  update = profile.stage("update", update_lib.make_update(
      lab.model, tx, e.recipe.loss, e.model.lora))
  due = evaluate.due_steps(M=M, B=B, first=e.eval.first, growth=e.eval.growth)
  report = progress.reporter(start=start, total=M, rollouts_per_step=B,
                             every_seconds=e.log.every_seconds)

  def record(kind: str, step: int, fields: dict) -> dict:
    line = {"kind": kind, **lab_lib.identity_fields(lab, step), **totals,
            **fields}
    if hosts.first():
      written.append(line)
      summaries.add(line)
    return line

  # At each step: evaluate and save what is due, then take the next one.
  saved, saved_at = start, time.monotonic()
  with (lab_lib.grading(e, lab.stratum.header) as grade,
        progress.summaries(folder, on=e.log.tensorboard and hosts.first(),
                           start=start) as summaries,
        profile.steps(trace if hosts.first() else None) as traced,
        checkpoint.open_manager(store, keep=e.checkpoint.keep) as manager,
        stop_signals() as stop, hosts.shared_fate(),
        records.opened(ledger) if hosts.first() else contextlib.nullcontext(
            ) as written):
    for step in range(start, M + 1):
      # What each process knows for itself: a signal to any, the clock of 0.
      stops, minutes = zip(*hosts.gather(
          [stop.is_set(), (time.monotonic() - saved_at) / 60]))
      stopping = any(stops) and step < M
      if step in due and step not in evaluated and not stopping:
        line = record("eval", step, evaluation(
            lab, grade, lab_lib.merged(lab, base, state.params), step))
        hosts.say(progress.evaluation_line(line))
      if step > saved and (
          step == M or stopping or step % e.checkpoint.every_steps == 0
          or minutes[0] >= e.checkpoint.every_minutes):
        if hosts.first():
          written.sync()
        checkpoint.save(manager, step, state)
        saved, saved_at = step, time.monotonic()
      if step == M:
        break
      if stopping:
        checkpoint.finish(manager)
        hosts.say(f"stopped by a signal at step {step}, which is saved; the "
                  "same command goes on from there")
        return cli.PREEMPTED
      with traced(step + 1):
        state, fields = train_step(lab, profile.stage("score", grade), update,
                                   state, base, step)
      if step == start:
        hosts.say(str(compiled))
      if not fields.pop("finite"):
        hosts.say(diverged(lab, step + 1, saved, fields))
        return cli.DIVERGED
      del fields["loss"]  # of no meaning on-policy: its gradient is the point
      for name in lab_lib.TOTALS:
        totals[name] += fields.pop(name)
      record("train", step + 1, {"lr": float(schedule(step)), **fields})
      if hosts.first():
        report(step + 1, fields["reward"])
  if hosts.first():
    print(progress.table(records.read(ledger), ledger))
  return 0


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
  tx, _ = lab_lib.make_optimizer(lab)
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
              **evaluation(each, grade, params, step), "eval_set": name}
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
  note = compilation.keep_programs()
  if note:
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
    run = functools.partial(train, trace=_PROFILE.value)
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
