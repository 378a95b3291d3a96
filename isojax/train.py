"""One run, from step to step: sample, reward, update, record.

problems -> prompts -> rollouts (Bp x n) -> rewards -> advantages -> batch ->
update -> record. Every draw and the data order are functions of (seed, step),
so a run that was killed continues to the same bits.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time

import jax
import numpy as np

from isojax.ledger import checkpoint
from isojax import cli
from isojax import compilation
from isojax import evaluate
from isojax.distributed import hosts
from isojax import run_context
from isojax import mesh as mesh_lib
from isojax import profile
from isojax import progress
from isojax.ledger import records
from isojax import rng
from isojax.errors import InputError
from isojax.run_context import RunContext
from isojax.rl import objective
from isojax.rl import rewards
from isojax.rl import update as update_lib
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.types import Batch, Prompts, Rollouts


def graded_rollouts(context: RunContext, grade, params, problems, prompts: Prompts,
                    n: int, key, section):
  """n rollouts of each problem, at the temperature and top_p of a section.

  Those that have ended are graded while the others decode, each problem by
  one of the processes; all of them get all verdicts.

  Returns:
    Rollouts, problem-major; their verdicts; seconds of grading after the last
    one had ended.
  """
  B, last, spent = len(problems) * n, 0.0, 0.0
  graded = grader_lib.Graded(np.zeros(B), np.zeros(B), [""] * B, [])
  owner_B = np.arange(B) // n % hosts.count()  # of a whole problem
  for items, rollouts in sampler_lib.stream(
      context.sampler, params, prompts, n, key,
      temperature=np.float32(section.temperature),
      top_p=np.float32(section.top_p)):
    begun, at, last = time.monotonic(), time.perf_counter(), 0.0
    items = items[owner_B[items] == hosts.number()]
    if not items.size:
      continue
    texts = rewards.texts(context.tokenizer,
                         jax.tree.map(lambda x: x[items], rollouts))
    part = grade([problems[i // n] for i in items], texts,
                 seconds=max(0.0, context.e.task.grader.step_seconds - spent))
    graded.correct_B[items] = part.correct_B
    graded.formatted_B[items] = part.formatted_B
    for i, vote in zip(items, part.vote_B, strict=True):
      graded.vote_B[i] = vote
    graded.lost.extend(part.lost)
    spent += time.monotonic() - begun
    last = time.perf_counter() - at
  at = time.perf_counter()
  graded = _gathered(graded, owner_B)
  return rollouts, graded, last + time.perf_counter() - at


def _gathered(graded: grader_lib.Graded, owner_B) -> grader_lib.Graded:
  """The verdicts of every process on the rollouts that it owns."""
  if hosts.count() == 1:
    return graded
  ours = np.flatnonzero(owner_B == hosts.number())
  parts = hosts.gather([
      graded.correct_B[ours].tolist(), graded.formatted_B[ours].tolist(),
      [graded.vote_B[i] for i in ours], graded.lost])
  for process, (correct, formatted, vote, _) in enumerate(parts):
    theirs = np.flatnonzero(owner_B == process)
    graded.correct_B[theirs], graded.formatted_B[theirs] = correct, formatted
    for i, each in zip(theirs, vote, strict=True):
      graded.vote_B[i] = each
  return dataclasses.replace(
      graded, lost=[line for *_, lost in parts for line in lost])


def measured(context: RunContext, prompts: Prompts, rollouts: Rollouts,
             graded: grader_lib.Graded, batches: list[Batch], metrics: dict,
             seconds: list[float]) -> dict:
  """The fields of a train record that one step measures."""
  correct_Bpxn = graded.correct_B.reshape(len(prompts.len_P), -1)
  sampled = int(rollouts.len_R.sum())
  return {
      "prompt_tokens": int(prompts.len_P.sum()),
      "sampled_tokens": sampled,
      "trained_tokens": sum(int(batch.len_R.sum()) for batch in batches),
      "skipped_updates": int(not batches),
      "device_seconds": sum(seconds) * context.model.mesh.size,
      "reward": float(correct_Bpxn.mean()),
      "formatted": float(graded.formatted_B.mean()),
      "lost": len(graded.lost),
      "all_wrong": float(np.mean((correct_Bpxn == 0.0).all(axis=1))),
      "all_right": float(np.mean((correct_Bpxn == 1.0).all(axis=1))),
      "entropy": float(rollouts.entropy_R.sum()) / sampled,
      "kl": None,
      "response_length": sampled / len(rollouts.len_R),
      "truncated": float(np.mean(~rollouts.ended_R)),
      **dict(zip(("seconds_sample", "seconds_score", "seconds_update"),
                 seconds, strict=True)),
      **metrics,
  }


def train_step(context: RunContext, grade, update, state, base, step: int):
  """One step of the paper's algorithm: (state, what it measured)."""
  e, a = context.e, context.e.alloc
  begun = time.perf_counter()
  index = prompts_lib.indices_at(
      seed=e.seed, step=step, Bp=a.Bp, D=len(context.stratum.train))
  problems = [context.stratum.train[i] for i in index]
  prompts = jax.tree.map(lambda x: x[index], context.train)
  rollouts, graded, scoring = profile.stage("sample", graded_rollouts)(
      context, grade, run_context.merged(context, base, state.params), problems, prompts,
      a.n, rng.stream(e.seed, "rollout", step), e.sampler)
  for line in graded.lost:
    hosts.say(f"step {step + 1}: counted as wrong: {line}")
  reward_Bpxn = (graded.correct_B + e.task.format_coef * graded.formatted_B
                 ).reshape(a.Bp, a.n)
  terms = objective.rollout_terms(
      reward_Bpxn, rollouts.len_R.reshape(a.Bp, a.n), e.recipe.loss)
  sampled = time.perf_counter()
  batches = update_lib.assemble(
      prompts, rollouts, *(term.reshape(-1) for term in terms), n=a.n,
      G=mesh_lib.blocks(context.model.mesh), cfg=e.recipe.loss)
  state, metrics = update(
      state, base, [update_lib.place(b, context.model.mesh) for b in batches],
      np.float32(e.sampler.temperature))
  metrics = {k: float(v) for k, v in jax.device_get(metrics).items()}
  jax.block_until_ready(state)
  return state, measured(
      context, prompts, rollouts, graded, batches, metrics,
      [sampled - begun - scoring, scoring, time.perf_counter() - sampled])


def evaluation(context: RunContext, grade, params, step: int) -> dict:
  """The fields of an eval record that an evaluation measures."""
  e, problems, k = context.e, context.stratum.validation, context.e.eval.k
  _, graded, _ = graded_rollouts(
      context, grade, params, problems, context.validation, k,
      rng.stream(e.seed, "eval", step), e.eval)
  for line in graded.lost:
    hosts.say(f"evaluation: counted as wrong: {line}")
  return {"eval_set": f"{context.stratum.header['stratum']}/validation",
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


def start_or_continue(context: RunContext, tx, ledger: str, store: str):
  """(step, state, records up to it): of the newest checkpoint, else step 0.

  Raises:
    InputError: ledger and checkpoints do not belong together.
  """
  restored = checkpoint.restore_newest(store, run_context.abstract_state(context, tx))
  found = records.read(ledger)
  steps = [r["step"] for r in found if r["kind"] == "train"]
  hosts.agree({"checkpoint": restored and restored[0], "records": len(found)})
  if restored is None:
    # A first save may still have been under way when the second one was due.
    if steps and steps[-1] > 2 * context.e.checkpoint.every_steps:
      raise InputError(
          f"{ledger} goes up to step {steps[-1]}, but {store} holds no "
          "checkpoint; put the checkpoints back, or choose another --workdir "
          "to start again")
    state = update_lib.init_state(context.model, tx, run_context.first_trained(context),
                                  context.e.model.lora)
    return 0, state, kept_up_to(ledger, found, -1)
  start, state = restored
  if steps[:start] != list(range(1, start + 1)):
    raise InputError(
        f"{store} holds step {start}, but {ledger} does not hold each step up "
        "to it; put the records back, or choose another --workdir to start "
        "again")
  if start < context.e.alloc.M:
    hosts.say(f"continuing from step {start} of {context.e.alloc.M}")
  return start, state, kept_up_to(ledger, found, start)


def kept_up_to(ledger: str, found: list[dict], step: int) -> list[dict]:
  """The records up to a step; process 0 cuts off what follows in the ledger."""
  kept = [r for r in found if r["step"] <= step]
  if hosts.first():
    records.keep(ledger, kept)
  return kept


def diverged(context: RunContext, step: int, saved: int, fields: dict) -> str:
  last = f"the last good checkpoint is of step {saved}" if saved else (
      "there is no checkpoint yet")
  return (
      f"stopped: loss, gradient or parameters are not finite after step {step} "
      f"(loss {fields['loss']}, grad_norm {fields['grad_norm']}, logp_gap "
      f"{fields['logp_gap']}); {last}, nothing of this step was kept. Try, in "
      "another --workdir, a lower recipe.optimizer.base_lr (now "
      f"{context.e.recipe.optimizer.base_lr}), a smaller clip_norm, or float32 for "
      "recipe.loss.dtype")


def train(context: RunContext, folder: str, *,
          trace: str | None = None) -> int:
  """Runs or continues the experiment in a claimed workdir; the exit code.

  Args:
    trace: the folder of --profile.
  """
  e, M, B = context.e, context.e.alloc.M, context.e.alloc.B
  compiled = compilation.Count()
  ledger = os.path.join(folder, "records.jsonl")
  store = os.path.join(folder, "checkpoints")
  tx, schedule = run_context.make_optimizer(e)
  start, state, kept = start_or_continue(context, tx, ledger, store)
  totals = run_context.totals_of(kept)
  evaluated = {r["step"] for r in kept if r["kind"] == "eval"}
  base = (run_context.base_params(context) if e.recipe.loss.kl_coef
          else run_context.frozen_base(context))
  update = profile.stage("update", update_lib.make_update(
      context.model, tx, e.recipe.loss, e.model.lora))
  due = evaluate.due_steps(M=M, B=B, first=e.eval.first, growth=e.eval.growth)
  report = progress.reporter(start=start, total=M, rollouts_per_step=B,
                             every_seconds=e.log.every_seconds)

  def record(kind: str, step: int, fields: dict) -> dict:
    line = {"kind": kind, **run_context.identity_fields(context, step), **totals,
            **fields}
    if hosts.first():
      written.append(line)
      summaries.add(line)
    return line

  # At each step: evaluate and save what is due, then take the next one.
  saved, saved_at = start, time.monotonic()
  with (run_context.grading(e, context.stratum.header) as grade,
        progress.summaries(folder, on=e.log.tensorboard and hosts.first(),
                           start=start) as summaries,
        profile.steps(trace if hosts.first() else None) as traced,
        checkpoint.open_manager(store, keep=e.checkpoint.keep) as manager,
        records.opened(ledger) if hosts.first() else contextlib.nullcontext(
            ) as written,
        stop_signals() as stop, hosts.shared_fate() as further):
    for step in range(start, M + 1):
      if saved > start and not manager.is_saving_in_progress():
        further.set()
      # What each process knows for itself: a signal to any, the clock of 0.
      stops, minutes = zip(*hosts.gather(
          [stop.is_set(), (time.monotonic() - saved_at) / 60]))
      stopping = any(stops) and step < M
      if step in due and step not in evaluated and not stopping:
        line = record("eval", step, evaluation(
            context, grade, run_context.merged(context, base, state.params), step))
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
        state, fields = train_step(context, profile.stage("score", grade), update,
                                   state, base, step)
      if step == start:
        hosts.say(str(compiled))
      if not fields.pop("finite"):
        hosts.say(diverged(context, step + 1, saved, fields))
        return cli.DIVERGED
      del fields["loss"]  # of no meaning on-policy: its gradient is the point
      lr = float(schedule(step - totals["skipped_updates"]))
      for name in run_context.TOTALS:
        totals[name] += fields.pop(name)
      record("train", step + 1, {"lr": lr, **fields})
      if hosts.first():
        report(step + 1, fields["reward"])
  if hosts.first():
    progress.show(progress.table(records.read(ledger), ledger))
  return 0
