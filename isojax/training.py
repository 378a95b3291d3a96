"""Trains one run, step by step: the loop of an experiment.

isojax.step makes a step. All random numbers and the data order are functions of
(seed, step) and of the records, so a run that was killed resumes with
bit-identical results.
"""

import contextlib
import dataclasses
import os
import time
import typing

import numpy as np

from isojax import diagnosis
from isojax import cli
from isojax import compilation
from isojax import evaluate
from isojax import experiment
from isojax import final_table
from isojax import opening
from isojax import profile
from isojax import progress
from isojax import resume
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax import rollouts_in_flight
from isojax import run_context
from isojax import sampled_texts
from isojax import step as step_lib
from isojax import step_rollouts
from isojax import stopping
from isojax import summaries as summaries_lib
from isojax import hosts
from isojax.ledger import checkpoint
from isojax.ledger import records
from isojax.rl import algorithm
from isojax.rl import update as update_lib
from isojax.run_context import RunContext
from isojax.run_state import Run
from isojax.sampling import compile_ahead
from isojax.sampling import in_flight_queue
from isojax.tasks import strata as strata_lib


class End(typing.NamedTuple):
  """How a run ended."""

  code: int  # 0, cli.DIVERGED, or cli.PREEMPTED after a signal
  why: str | None  # of a run that is not complete


def train(context: RunContext, folder: str, *, trace: str | None = None) -> int:
  """Runs or resumes the experiment in a claimed workdir.

  Args:
    context: of the run.
    folder: the workdir.
    trace: the folder of --profile.

  Returns:
    The exit code of `End`.
  """
  end = to_end(context, folder, trace, stopping.on_signals)
  if end.why is not None:
    hosts.say(end.why)
  return end.code


def to_end(context: RunContext, folder: str, trace: str | None, signals) -> End:
  """Runs or resumes the experiment in a claimed workdir.

  Args:
    context: of the run.
    folder: the workdir.
    trace: the folder of --profile.
    signals: makes the context manager of a Stop, such as stopping.on_signals.
  """
  hosts.say(opening.opening(context))
  compilation.announce(hosts.say)
  with opened(context, folder, trace, signals) as run:
    try:
      while True:
        run.stop.check()
        evaluate_if_due(run)
        save_if_due(run)
        if run.finished:
          checkpoint.finish(run.manager)  # while the run listens to signals
          break
        if (why := advance(run)) is not None:
          return End(cli.DIVERGED, why)
    except stopping.Stopped:
      return End(cli.PREEMPTED, stopped(run))
  if run.step == run.start:
    hosts.say(f"the run was complete: {run.rollouts} rollouts in {run.step} "
              "steps. To train longer, give a larger --config.alloc.C")
  if hosts.first():
    progress.show(final_table.table(records.read(run.ledger), run.ledger))
  return End(0, None)


def evaluate_if_due(run: Run) -> None:
  """Evaluates the policy and records it, if due after this step and not done.
  """
  due = evaluate.is_due(run.due, run.evaluated, run.rollouts) or (
      run.finished and run.evaluated != run.rollouts)
  if not due:
    return
  line = record(run, "eval", run.n, evaluation(
      run.context, run.grader, run.policy, run.step, run.stop))
  run.evaluated = run.rollouts
  hosts.say(final_table.evaluation_line(line))


def save_if_due(run: Run) -> None:
  """Saves a checkpoint at the last step and when the config's interval is over.
  """
  cfg = run.context.e.checkpoint
  if run.saved > run.start and not run.manager.is_saving_in_progress():
    run.further.set()
  # The clock of process 0 decides for all.
  minutes, *_ = hosts.gather((time.monotonic() - run.saved_at) / 60)
  if (run.finished or run.step % cfg.every_steps == 0
      or minutes >= cfg.every_minutes):
    save(run)


def save(run: Run) -> None:
  """Saves a checkpoint of the last completed step, unless it is saved."""
  if run.step == run.saved:
    return
  if hosts.first():
    run.written.sync()
  checkpoint.save(
      run.manager, run.step, run.state, run.context.run_id,
      in_flight_queue.to_bytes(run.flight.state, run.context.sampler.slots)
      if run.flight else None)
  run.saved, run.saved_at = run.step, time.monotonic()


def stopped(run: Run) -> str:
  """Saves a run that got a signal; returns how to resume it.

  The current step is discarded.
  """
  save(run)
  checkpoint.finish(run.manager)
  return (f"stopped by a signal at step {run.step}, which is saved; rerun the "
          "same command to resume" if run.step else
          "stopped by a signal before the first step; rerun the same command")


def advance(run: Run) -> str | None:
  """Runs and records one step; returns what is wrong if it is not finite."""
  with run.traced(run.step + 1):
    state, fields = step_lib.train_step(run)
  news = run.compiled.news()
  if run.step == run.start:
    hosts.say(str(run.compiled))
  elif news:
    hosts.say(f"step {run.step + 1}: {news}, not counted as device time")
  if news := run.compiled.news_behind():
    hosts.say(f"step {run.step + 1}: {news}, while the devices computed")
  if not fields.pop("finite"):
    return diverged(run, fields)
  del fields["loss"]  # carries no information on-policy: only its gradient does
  e, n = run.context.e, run.n
  if fields["solved"]:
    mark_solved(run, fields["solved"])
  lr = float(run.schedule(run.totals["updates"])) * (e.lr_factor(n) or 1.0)
  for name in run_context.TOTALS:
    run.totals[name] += fields.pop(name)
  run.state, run.step = state, run.step + 1
  run.rollouts += e.alloc.Bp * n * (1 + fields["refilled"])
  record(run, "train", n, {"lr": lr, **fields})
  if hosts.first():
    run.report(run.step, run.rollouts, fields["reward"])
  return None


def mark_solved(run: Run, ids: list[int]) -> None:
  """Marks problems as solved; says so when fewer than Bp are left."""
  Bp, enough = run.context.e.alloc.Bp, lambda: np.sum(~run.solved_D) >= Bp
  before = enough()
  run.solved_D |= np.isin(run.context.train.id_P, np.array(ids, np.uint32))
  if before and not enough():
    hosts.say(f"step {run.step + 1}: {np.sum(~run.solved_D)} problems are not "
              f"solved, fewer than alloc.Bp={Bp}: solved ones fill the steps "
              "from here on")


def evaluation(context: RunContext, grader: rollouts_lib.Grading, params,
               step: int, stop: stopping.Stop) -> dict:
  """Samples the validation problems; returns the fields of an eval record."""
  e, problems, k = context.e, context.stratum.validation, context.e.eval.k
  graded = rollouts_lib.graded_rollouts(
      context, grader, params, problems, context.validation, k,
      rng.stream(e.seed, "eval", step), e.eval, stop,
      expected_P=strata_lib.expected_tokens(
          context.stratum, "validation", problems)).graded
  for line in graded.lost:
    hosts.say(f"evaluation: counted as wrong: {line}")
  return {"eval_set": f"{context.stratum.header['stratum']}/validation",
          **evaluate.at_k(graded.correct_B.reshape(-1, k),
                          np.reshape(graded.vote_B, (-1, k)).tolist())}


def record(run: Run, kind: str, n: int, fields: dict) -> dict:
  """Adds a record of the last completed step; returns it.

  Says what is wrong with the run, if that is new.
  """
  line = {"kind": kind, **run_context.identity_fields(
      run.context, run.step, run.rollouts, n),
          **run.totals, **fields}
  for warning in run.watch(line):
    hosts.say(f"step {run.step}: {warning}")
  line["alarms"] = run.watch.on
  if hosts.first():
    run.written.append(line)
    run.summaries(line)
  return line


def diverged(run: Run, fields: dict) -> str:
  """Returns the error message for a step that is not finite."""
  saved = f"the newest checkpoint is of step {run.saved}" if run.saved else (
      "there is no checkpoint yet")
  return (
      "stopped: loss, gradient or parameters are not finite after step "
      f"{run.step + 1} (loss {fields['loss']}, grad_norm "
      f"{fields['grad_norm']}, logp_gap {fields['logp_gap']}); {saved}, and "
      "this step was discarded. Try, in another --workdir, a lower "
      "recipe.optimizer.base_lr (now "
      f"{run.context.e.recipe.optimizer.base_lr}), a smaller clip_norm, or "
      "float32 for recipe.loss.dtype")


@contextlib.contextmanager
def opened(context: RunContext, folder: str, trace: str | None, signals):
  """Yields the Run of a workdir, resumed from its newest checkpoint."""
  path = os.path.join(folder, "records.jsonl")
  with (records.opened(path) if hosts.first() else contextlib.nullcontext()
        as written, _resumed(context, folder, trace, signals, written) as run):
    yield run


@contextlib.contextmanager
def _resumed(context: RunContext, folder: str, trace: str | None, signals,
             written):
  """As `opened`, for an opened ledger."""
  e = context.e
  compiled = compilation.Count()
  ledger = os.path.join(folder, "records.jsonl")
  store = os.path.join(folder, "checkpoints")
  tx, schedule = run_context.make_optimizer(e)
  due = evaluate.due_rollouts(C=e.alloc.C, first=e.eval.first,
                              growth=e.eval.growth)
  start, state, host, kept = resume.start_or_resume(
      context, tx, written, ledger, store)
  rollouts = run_context.rollouts_of(kept)
  evaluated = max((r["rollouts"] for r in kept if r["kind"] == "eval"),
                  default=None)
  # Then nothing is recorded, and no writer leaves an empty file.
  complete = evaluated == rollouts and e.alloc.is_spent(rollouts)
  base = (run_context.base_params(context) if e.recipe.loss.kl_coef
          else run_context.frozen_base(context))
  # Opened in this order and closed in reverse.
  with (compile_ahead.if_it_helps(context.sampler) as sampler,
        rollouts_lib.grading(context) as grader,
        contextlib.nullcontext() if complete or not hosts.first() else
        summaries_lib.opened(
            folder, e.log, run_id=context.run_id, config=context.identity,
            kept=kept) as summaries,
        profile.steps(trace if hosts.first() else None) as traced,
        checkpoint.open_manager(store, keep=e.checkpoint.keep) as manager,
        signals() as stop, hosts.shared_fate() as further):
    scored = algorithm.scored_columns(
        e.recipe.loss, e.recipe.updates, e.recipe.critic)
    critic = run_context.make_critic(e)
    yield Run(
        context=dataclasses.replace(context, sampler=sampler), start=start,
        step=start, rollouts=rollouts,
        solved_D=step_rollouts.solved(kept, context.train.id_P),
        state=state, flight=(
            rollouts_in_flight.opened(host, context.sampler.slots)
            if e.recipe.updates.in_flight else None), base=base,
        totals=run_context.totals_of(kept),
        evaluated=evaluated, due=due,
        saved=start, saved_at=time.monotonic(), ledger=ledger,
        update=profile.stage("update", update_lib.make_update(
            context.model, tx, e.recipe.loss, e.model.lora, critic)),
        scored=scored, score=profile.stage("score", update_lib.make_score(
            context.model, e.recipe.loss, scored, e.model.lora, critic)),
        schedule=schedule, report=progress.reporter(
            step=start,
            steps=e.alloc.M if e.recipe.filter.rounds == 1 else None,
            rollouts=rollouts, C=e.alloc.C,
            every_seconds=e.log.every_seconds),
        watch=diagnosis.Watcher(
            kept, grouped=experiment.compares(e.recipe.loss)),
        store=sampled_texts.writer(
            folder, context.tokenizer, start=start, count=e.log.samples),
        compiled=compiled, grader=grader, written=written, manager=manager,
        summaries=summaries, traced=traced, stop=stop, further=further)
