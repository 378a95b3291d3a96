"""Trains one run, step by step: the loop of an experiment.

problems -> prompts -> rollouts (Bp x n) -> rewards -> advantages -> batch ->
update -> record. All random numbers and the data order are functions of
(seed, step), so a run that was killed resumes with bit-identical results.
"""

import contextlib
import dataclasses
import os
import time
import typing

import jax
import numpy as np

from isojax import alarms
from isojax import cli
from isojax import compilation
from isojax import evaluate
from isojax import mesh as mesh_lib
from isojax import profile
from isojax import progress
from isojax import resume
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax import rollouts_in_flight
from isojax import run_context
from isojax import sampled_texts
from isojax import step_rollouts
from isojax import stopping
from isojax.distributed import hosts
from isojax.ledger import checkpoint
from isojax.ledger import records
from isojax.rl import algorithm
from isojax.rl import critic as critic_lib
from isojax.rl import packing
from isojax.rl import rewards
from isojax.rl import update as update_lib
from isojax.rl.objective import LossConfig
from isojax.run_context import RunContext
from isojax.sampling import in_flight_queue
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import TrainState


def train(context: RunContext, folder: str, *,
          trace: str | None = None) -> int:
  """Runs or resumes the experiment in a claimed workdir.

  Args:
    context: of the run.
    folder: the workdir.
    trace: the folder of --profile.

  Returns:
    The exit code: 0, cli.DIVERGED, or cli.PREEMPTED after a signal.
  """
  with opened(context, folder, trace) as run:
    try:
      while True:
        run.stop.check()
        evaluate_if_due(run)
        save_if_due(run)
        if run.finished:
          break
        if not advance(run):
          return cli.DIVERGED
    except stopping.Stopped:
      return stopped(run)
  if run.step == run.start:
    hosts.say(f"the run was complete: {run.rollouts} rollouts in {run.step} "
              "steps. To train longer, give a larger --config.alloc.C")
  if hosts.first():
    progress.show(progress.table(records.read(run.ledger), run.ledger))
  return 0


@dataclasses.dataclass
class Run:
  """The state of a run that changes from step to step, and its outputs."""

  context: RunContext
  start: int  # steps made before this process began
  step: int  # steps made
  rollouts: int  # sampled in these steps
  solved_D: np.ndarray  # bool, training problems that are not sampled again
  state: TrainState
  flight: rollouts_in_flight.Flight | None  # only for in-flight updates
  base: dict | None  # frozen parameters, for adapters and KL
  totals: dict  # cumulative fields of the records
  evaluated: int | None  # rollouts at the last evaluation
  due: tuple[int, ...]  # rollouts to evaluate at
  saved: int  # step of the newest checkpoint
  saved_at: float  # on time.monotonic
  ledger: str  # path of the records
  update: typing.Callable  # see update.make_update
  scored: tuple[str, ...]  # see algorithm.scored_columns
  score: typing.Callable  # see update.make_score
  schedule: typing.Callable  # step -> learning rate
  report: typing.Callable  # see progress.reporter
  watch: typing.Callable  # see alarms.watcher
  store: typing.Callable  # see sampled_texts.writer
  compiled: compilation.Count
  # Opened for the run and closed at its end:
  grader: rollouts_lib.Grading
  written: typing.Any  # records.File or Bucket; None but on process 0
  manager: typing.Any  # of checkpoints
  summaries: progress.Summaries
  traced: typing.Callable  # see profile.steps
  stop: stopping.Stop
  further: typing.Any  # see hosts.shared_fate

  @property
  def n(self) -> int:
    """Returns the rollouts per problem of the next step."""
    return self.context.e.alloc.n_after(self.rollouts)

  @property
  def finished(self) -> bool:
    """Returns whether another sampling round would exceed the budget."""
    a = self.context.e.alloc
    return self.rollouts + a.rollouts_of_step(self.rollouts) > a.C

  @property
  def policy(self) -> dict:
    """Returns the parameters to sample from."""
    return run_context.merged(self.context, self.base, self.state.params)


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
  hosts.say(progress.evaluation_line(line))


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
      in_flight_queue.to_bytes(run.flight.state) if run.flight else None)
  run.saved, run.saved_at = run.step, time.monotonic()


def stopped(run: Run) -> int:
  """Saves a run that got a signal; the current step is discarded."""
  save(run)
  checkpoint.finish(run.manager)
  hosts.say(f"stopped by a signal at step {run.step}, which is saved; rerun "
            "the same command to resume" if run.step else
            "stopped by a signal before the first step; rerun the same command")
  return cli.PREEMPTED


def advance(run: Run) -> bool:
  """Runs and records one step; returns False if its result is not finite."""
  with run.traced(run.step + 1):
    state, fields = train_step(run)
  news = run.compiled.news()
  if run.step == run.start:
    hosts.say(str(run.compiled))
  elif news:
    hosts.say(f"step {run.step + 1}: {news}, not counted as device time")
  if not fields.pop("finite"):
    hosts.say(diverged(run, fields))
    return False
  del fields["loss"]  # carries no information on-policy: only its gradient does
  e, n = run.context.e, run.n
  if fields["solved"]:
    mark_solved(run, fields["solved"])
  lr = float(run.schedule(run.totals["updates"])) * (e.lr_factor(n) or 1.0)
  for name in run_context.TOTALS:
    run.totals[name] += fields.pop(name)
  run.state, run.step = state, run.step + 1
  run.rollouts += e.alloc.Bp * n * (1 + fields["refilled"])
  line = record(run, "train", n, {"lr": lr, **fields})
  for warning in run.watch(line):
    hosts.say(f"step {run.step}: {warning}")
  if hosts.first():
    run.report(run.step, run.rollouts, fields["reward"])
  return True


def mark_solved(run: Run, ids: list[int]) -> None:
  """Marks problems as solved; says so when fewer than Bp are left."""
  Bp, enough = run.context.e.alloc.Bp, lambda: np.sum(~run.solved_D) >= Bp
  before = enough()
  run.solved_D |= np.isin(run.context.train.id_P, np.array(ids, np.uint32))
  if before and not enough():
    hosts.say(f"step {run.step + 1}: {np.sum(~run.solved_D)} problems are not "
              f"solved, fewer than alloc.Bp={Bp}: solved ones fill the steps "
              "from here on")


def train_step(run: Run) -> tuple[TrainState, dict]:
  """Runs one step of the paper's algorithm; returns the new state and metrics.

  The old state is donated to the first update.
  """
  context, step, clock = run.context, run.step, run.compiled.clock
  e, a, n = context.e, context.e.alloc, run.n
  begun, compiling = clock(), run.compiled.seconds
  taken, flight, staleness = sample(run)
  prompts, sampled, kept_P, rounds = taken
  graded = sampled.graded
  for line in graded.lost:
    hosts.say(f"step {step + 1}: counted as wrong: {line}")
  reward_Bpxn = rewards.shaped(
      graded.correct_B, graded.formatted_B, sampled.rollouts.len_R,
      e.recipe.reward, format_coef=e.task.format_coef).reshape(-1, n)[kept_P]
  prompts = step_rollouts.of_groups(prompts, kept_P, 1)
  rollouts = step_rollouts.of_groups(sampled.rollouts, kept_P, n)
  kept_Bpxm = algorithm.keep(reward_Bpxn, rng.uniforms(
      e.seed, step, prompts.id_P, n), a.m_of(n), e.recipe.loss)
  group = Group(prompts, rollouts, reward_Bpxn, kept_Bpxm)
  scoring = clock()
  scored = score(run, group)
  updating = clock()
  columns = scored.columns | algorithm.advantages(
      reward_Bpxn, kept_Bpxm, rollouts, scored.columns, e.recipe.loss)
  state, fields = updates(run, group, columns)
  jax.block_until_ready(state)
  ended = clock()
  run.store(prompts, rollouts, reward_Bpxn, columns["advantage"], step + 1)
  run.flight = flight
  seconds = {"sample": scoring - begun - sampled.seconds_waited,
             "score": sampled.seconds_waited, "logp": updating - scoring,
             "update": ended - updating}
  return state, {
      **measured(taken.prompts, sampled),
      "refilled": rounds - 1,
      "solved": step_rollouts.newly_solved(
          graded.correct_B.reshape(-1, n), taken.prompts.id_P,
          rate=e.recipe.filter.solved_rate),
      "staleness_mean": staleness[0], "staleness_max": staleness[1],
      "selected": kept_Bpxm.size,
      "scored_tokens": scored.tokens,
      "explained_variance": explained_variance(
          group, columns, e.recipe.loss),
      "device_seconds": sum(seconds.values()) * context.model.mesh.size,
      "seconds_compile": run.compiled.seconds - compiling,
      **{f"seconds_{name}": value for name, value in seconds.items()},
      **fields}


def sample(run: Run):
  """Returns the rollouts of a step.

  Returns:
    StepRollouts, what is in flight after the step, (mean, largest) staleness.
  """
  context, a = run.context, run.context.e.alloc
  if run.flight is None:
    return step_rollouts.sample(
        context, run.grader, run.policy, step=run.step, n=run.n,
        left=a.C - run.rollouts, solved_D=run.solved_D, stop=run.stop
    ), None, (0.0, 0)
  batch = profile.stage("sample", rollouts_in_flight.graded_batch)(
      context, run.grader, run.policy, run.flight, step=run.step,
      solved_D=run.solved_D, stop=run.stop)
  return step_rollouts.StepRollouts(
      jax.tree.map(lambda x: x[batch.index_Bp], context.train), batch.sampled,
      np.ones(a.Bp, bool), 1), batch.flight, batch.staleness


class Group(typing.NamedTuple):
  """The graded rollouts of a step, on the host, problem-major."""

  prompts: Prompts
  rollouts: Rollouts
  reward_Bpxn: np.ndarray
  kept_Bpxm: np.ndarray  # the rollouts to train on, see algorithm.keep


class Scored(typing.NamedTuple):
  columns: dict[str, np.ndarray]  # [B, T] each, 0 where not scored
  tokens: int  # that went through a forward pass, once for each pass


def score(run: Run, group: Group) -> Scored:
  """Returns the columns that need a forward pass before the updates."""
  context, cfg = run.context, run.context.e.recipe.loss
  rollouts = group.rollouts
  out = {name: np.zeros(rollouts.tokens_RxT.shape, np.float32)
         for name in run.scored}
  if not out:
    return Scored({}, 0)
  which_B = algorithm.to_score(group.reward_Bpxn, group.kept_Bpxm, rollouts, cfg)
  layouts = update_lib.layouts(
      group.prompts, rollouts, which_B, n=group.reward_Bpxn.shape[1],
      G=mesh_lib.blocks(context.model.mesh), cfg=cfg)
  found = jax.device_get([
      run.score(run.state, run.base, update_lib.place(
          packing.batch(layout, group.prompts, rollouts, {}),
          context.model.mesh), np.float32(context.e.sampler.temperature))
      for layout in layouts])
  for layout, values in zip(layouts, found, strict=True):
    for name, value_RxW in values.items():
      packing.collect(layout, value_RxW, out[name])
  passes = algorithm.forward_passes(run.scored, context.e.recipe.critic)
  return Scored(out, passes * int(rollouts.len_R[which_B].sum()))


def explained_variance(group: Group, columns: dict,
                       cfg: LossConfig) -> float | None:
  """Returns how well a critic's values predict returns; None without one."""
  if "value" not in columns:
    return None
  which_B = algorithm.to_score(
      group.reward_Bpxn, group.kept_Bpxm, group.rollouts, cfg)
  return critic_lib.explained_variance(
      columns["value"], columns["return"],
      group.rollouts.mask_RxT & which_B[:, None])


def updates(run: Run, group: Group, columns: dict) -> tuple[TrainState, dict]:
  """Makes the updates of a step; returns the state and fields of the record.

  Metrics are means over the updates that were made. `updates` counts them;
  without a gradient an update is skipped.
  """
  context, e, cfg = run.context, run.context.e, run.context.e.recipe.loss
  Bp, n = group.reward_Bpxn.shape
  factor = e.lr_factor(n)
  state, made, found = run.state, [], []
  for epoch in range(e.recipe.updates.epochs):
    for problems in algorithm.minibatches(
        seed=e.seed, step=run.step, epoch=epoch, Bp=Bp,
        count=min(e.recipe.updates.minibatches, Bp)):
      batches = update_lib.assemble(
          group.prompts, group.rollouts, columns | algorithm.weights(
              group.reward_Bpxn, group.kept_Bpxm, group.rollouts.mask_RxT,
              problems, cfg), n=n, G=mesh_lib.blocks(context.model.mesh),
          cfg=cfg)
      state, metrics = run.update(
          state, run.base,
          [update_lib.place(b, context.model.mesh) for b in batches],
          np.float32(e.sampler.temperature),
          lr_factor=factor and np.float32(factor))
      made.append(sum(int(batch.mask_RxW.sum()) for batch in batches))
      found.append(metrics)
  found = jax.device_get(found)
  finite = all(bool(each.pop("finite")) for each in found)
  real = [each for each, tokens in zip(found, made) if tokens] or found[:1]
  return state, {
      "updates": sum(tokens > 0 for tokens in made),
      "trained_tokens": sum(made),
      "skipped_updates": sum(tokens == 0 for tokens in made),
      "finite": finite,
      **{name: float(np.mean([each[name] for each in real]))
         for name in found[0]}}


def measured(prompts: Prompts, sampled: rollouts_lib.Sampled) -> dict:
  """Returns the fields of a train record that follow from graded rollouts."""
  rollouts, graded = sampled.rollouts, sampled.graded
  correct_Bpxn = graded.correct_B.reshape(len(prompts.len_P), -1)
  tokens = int(rollouts.len_R.sum())
  return {
      "prompt_tokens": int(prompts.len_P.sum()),
      "sampled_tokens": tokens,
      "reward": float(correct_Bpxn.mean()),
      "formatted": float(graded.formatted_B.mean()),
      "lost": len(graded.lost),
      "all_wrong": float(np.mean((correct_Bpxn == 0.0).all(axis=1))),
      "all_right": float(np.mean((correct_Bpxn == 1.0).all(axis=1))),
      "entropy": (float(rollouts.entropy_R.sum())
                  / int(rollouts.mask_RxT.sum())),
      "kl": None,  # replaced by the update's metric if KL is on
      "value_loss": None,  # likewise, with a critic
      "response_length": tokens / len(rollouts.len_R),
      "truncated": float(np.mean(~rollouts.ended_R)),
      "interrupted": float(np.mean(rollouts.interrupted_R))}


def evaluation(context: RunContext, grader: rollouts_lib.Grading, params,
               step: int, stop: stopping.Stop) -> dict:
  """Samples the validation problems; returns the fields of an eval record."""
  e, problems, k = context.e, context.stratum.validation, context.e.eval.k
  graded = rollouts_lib.graded_rollouts(
      context, grader, params, problems, context.validation, k,
      rng.stream(e.seed, "eval", step), e.eval, stop).graded
  for line in graded.lost:
    hosts.say(f"evaluation: counted as wrong: {line}")
  return {"eval_set": f"{context.stratum.header['stratum']}/validation",
          **evaluate.at_k(graded.correct_B.reshape(-1, k),
                          np.reshape(graded.vote_B, (-1, k)).tolist())}


def record(run: Run, kind: str, n: int, fields: dict) -> dict:
  """Adds a record of the last completed step; returns it."""
  line = {"kind": kind, **run_context.identity_fields(
      run.context, run.step, run.rollouts, n),
          **run.totals, **fields}
  if hosts.first():
    run.written.append(line)
    run.summaries.add(line)
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
def opened(context: RunContext, folder: str, trace: str | None):
  """Yields the Run of a workdir, resumed from its newest checkpoint."""
  e = context.e
  compiled = compilation.Count()
  ledger = os.path.join(folder, "records.jsonl")
  store = os.path.join(folder, "checkpoints")
  tx, schedule = run_context.make_optimizer(e)
  due = evaluate.due_rollouts(C=e.alloc.C, first=e.eval.first,
                              growth=e.eval.growth)
  start, state, host, kept = resume.start_or_resume(
      context, tx, ledger, store, due)
  base = (run_context.base_params(context) if e.recipe.loss.kl_coef
          else run_context.frozen_base(context))
  # Opened in this order and closed in reverse.
  with (rollouts_lib.grading(context) as grader,
        progress.summaries(folder, on=e.log.tensorboard and hosts.first(),
                           start=start) as summaries,
        profile.steps(trace if hosts.first() else None) as traced,
        checkpoint.open_manager(store, keep=e.checkpoint.keep) as manager,
        records.opened(ledger) if hosts.first() else contextlib.nullcontext(
            ) as written,
        stopping.on_signals() as stop, hosts.shared_fate() as further):
    scored = algorithm.scored_columns(
        e.recipe.loss, e.recipe.updates, e.recipe.critic)
    critic = run_context.make_critic(e)
    yield Run(
        context=context, start=start, step=start,
        rollouts=run_context.rollouts_of(kept),
        solved_D=step_rollouts.solved(kept, context.train.id_P),
        state=state, flight=(
            rollouts_in_flight.opened(host) if e.recipe.updates.in_flight
            else None), base=base,
        totals=run_context.totals_of(kept),
        evaluated=max((r["rollouts"] for r in kept if r["kind"] == "eval"),
                      default=None),
        due=due,
        saved=start, saved_at=time.monotonic(), ledger=ledger,
        update=profile.stage("update", update_lib.make_update(
            context.model, tx, e.recipe.loss, e.model.lora, critic)),
        scored=scored, score=profile.stage("score", update_lib.make_score(
            context.model, e.recipe.loss, scored, e.model.lora, critic)),
        schedule=schedule, report=progress.reporter(
            step=start,
            steps=e.alloc.M if e.recipe.filter.rounds == 1 else None,
            rollouts=run_context.rollouts_of(kept), C=e.alloc.C,
            every_seconds=e.log.every_seconds),
        watch=alarms.watcher(kept), store=sampled_texts.writer(
            folder, context.tokenizer, start=start, count=e.log.samples),
        compiled=compiled, grader=grader, written=written, manager=manager,
        summaries=summaries, traced=traced, stop=stop, further=further)
