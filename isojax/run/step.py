"""One step of training, in the order of the papers' algorithm boxes."""

from collections.abc import Callable
import math
import typing

import jax
import numpy as np

from isojax.ledger import records
from isojax.rl import advantages, algorithm, packing, rewards
from isojax.rl import critic as critic_lib
from isojax.rl import update as update_lib
from isojax.run import programs
from isojax.run import rollouts as rollouts_lib
from isojax.run import state as state_lib
from isojax.run.history import History
from isojax.run.setup import Setup
from isojax.run.state import State
from isojax.runtime import compilation, hosts, preemption, rng
from isojax.runtime import mesh as mesh_lib
from isojax.tasks import grader as grader_lib
from isojax.types import Prompts, Rollouts, TrainState


class GradedBatch(typing.NamedTuple):
  """The graded rollouts of a step, on the host, problem-major."""

  prompts: Prompts
  rollouts: Rollouts
  groups: algorithm.Groups

  def packing_arguments(self, setup: Setup) -> dict:
    """Keyword arguments of packing, the same for all updates of a step."""
    return dict(n=self.groups.mask_PxN.sum(axis=1),
                widest=setup.config.alloc.n,
                G=mesh_lib.num_blocks(setup.model.mesh),
                cfg=setup.config.recipe.loss)


class PhaseTimer:
  """Seconds of the phases of a step, without compilation."""

  def __init__(self, compiled: compilation.Count):
    self._compiled, self._before = compiled, compiled.seconds
    self._last, self._seconds = compiled.clock(), {}

  def end(self, phase: str) -> None:
    last, self._last = self._last, self._compiled.clock()
    self._seconds[phase] = self._last - last

  @property
  def total(self) -> float:
    """The seconds of all phases that have ended."""
    return sum(self._seconds.values())

  def fields(self, *, waited: float) -> dict:
    """The fields seconds_* of a StepRecord.

    `waited` are the seconds of the phase "sample" spent waiting for the grader.
    """
    seconds = self._seconds | {
        "compile": self._compiled.seconds - self._before,
        "sample": self._seconds["sample"] - waited, "grade": waited}
    return {f"seconds_{phase}": value for phase, value in seconds.items()}


class Step(typing.NamedTuple):
  """What a step gives."""

  state: State  # whose history does not have the record yet
  record: records.StepRecord
  not_finite: str | None  # loss, grad_norm, ... as text; None: all is finite


def train_step(setup: Setup, state: State, *, grader: rollouts_lib.Grading,
               stop: preemption.Stop, timer: PhaseTimer,
               store_texts: Callable) -> Step:
  """Makes one step.

  The old state is donated to the first update; until then a stop leaves it as
  it was. `store_texts` is made by samples.writer.
  """
  loss, history = setup.config.recipe.loss, state.history
  sampled, trained_P, in_flight = sample(setup, state, grader, stop)
  reward_fields, batch = select(setup, sampled, trained_P, history)
  timer.end("sample")
  scored = score(setup, state.train, batch)
  timer.end("score")
  columns = scored.columns | algorithm.advantages(
      batch.groups, batch.rollouts, scored.columns, loss)
  train, outcome = updates(setup, state.train, batch, columns, history)
  jax.block_until_ready(train)
  timer.end("update")
  store_texts("train", history.step + 1, history.rollouts, *batch,
              columns["advantage"])
  # Of the record alone: the state's history is a fold over written records.
  spent = history.spending(
      **sampling_cost(sampled), trained_tokens=sum(outcome.tokens),
      scored_tokens=scored.tokens,
      updates=outcome.count,
      skipped_updates=len(outcome.tokens) - outcome.count,
      device_seconds=timer.total * setup.model.mesh.size)
  metrics = {"kl": None, "value_loss": None} | outcome.metrics
  blanked = {} if setup.config.recipe.loss_informs else {"loss": None}
  record = records.StepRecord(
      **state_lib.run_fields(setup, spent), **rollout_fields(sampled),
      solved=rollouts_lib.newly_solved(
          sampled, rate=setup.config.recipe.filter.solved_rate),
      **reward_fields,
      # trained_P has Bp problems of each round.
      extra_rounds=len(trained_P) // setup.config.alloc.Bp - 1,
      selected=int(batch.groups.selected_PxN.sum()),
      explained_variance=critic_lib.explained_variance(
          columns["value"], columns["return"],
          batch.rollouts.mask_RxT & scored.scored_B[:, None])
      if "value" in scored.columns else None,
      lr=outcome.lr, **metrics | blanked,
      **timer.fields(waited=sampled.seconds_waited))
  # The entropy shows overflowing logits of which no rollout had a gradient.
  numbers = {name: metrics[name] for name in ("loss", "grad_norm", "logp_gap")}
  numbers["entropy"] = record.entropy
  finite = outcome.finite and math.isfinite(record.entropy)
  return Step(State(train, in_flight, history), record, None if finite else
              ", ".join(f"{name} {x}" for name, x in numbers.items()))


def sample(setup: Setup, state: State, grader: rollouts_lib.Grading,
           stop: preemption.Stop) -> tuple[
               rollouts_lib.Sampled, np.ndarray, rollouts_lib.InFlight | None]:
  """Calls rollouts.sample_step; reports the rollouts without a verdict."""
  alloc, history = setup.config.alloc, state.history
  sampled, trained_P, in_flight = rollouts_lib.sample_step(
      setup, grader, setup.policy(state.train, "current"), state.in_flight,
      step=history.step, n=alloc.n, left=alloc.C - history.rollouts,
      solved_D=state_lib.solved_D(setup, history), stop=stop)
  lost, step = sampled.graded.lost, history.step + 1
  if sampled.num_lost:
    hosts.say(f"step {step}: {sampled.num_lost} rollouts without a verdict are "
              f"not trained on: {grader_lib.in_one_line(lost)}")
  elif lost:
    hosts.say(f"step {step}: counted as incorrect: "
              + grader_lib.in_one_line(lost))
  return sampled, trained_P, in_flight


def select(setup: Setup, sampled: rollouts_lib.Sampled, trained_P: np.ndarray,
           history: History) -> tuple[dict, GradedBatch]:
  """The fields of a record on shaped rewards, and the trained groups.

  m of the n rollouts of each of these groups are selected.
  """
  config, graded, rollouts = setup.config, sampled.graded, sampled.rollouts
  shaped_B = rewards.shaped(
      graded.correct_B, graded.formatted_B, rollouts.len_R,
      config.recipe.reward,
      format_coef=config.task.format_coef)
  n_P = sampled.n_P
  reward_PxN, mask_PxN = algorithm.by_problem(shaped_B, n_P)
  differs_P = advantages.informative(reward_PxN, mask_PxN)
  fields = {"shaped_reward": float(shaped_B.mean()),
            "zero_std": float(np.mean(~differs_P[n_P > 0]))}
  reward_PxN, mask_PxN = reward_PxN[trained_P], mask_PxN[trained_P]
  in_trained_B = np.repeat(trained_P, n_P)
  prompts = jax.tree.map(lambda x: x[trained_P], sampled.prompts)
  groups = algorithm.select_rollouts(
      reward_PxN, mask_PxN,
      rng.uniforms(rng.Draw.SELECTION, config.seed, history.step, prompts.id_P,
                   mask_PxN.shape[1]),
      config.alloc.kept_of(n_P[trained_P]), config.recipe.loss)
  return fields, GradedBatch(
      prompts, jax.tree.map(lambda x: x[in_trained_B], rollouts), groups)


class Scored(typing.NamedTuple):
  columns: dict[str, np.ndarray]  # [B, T] each, 0 where not scored
  scored_B: np.ndarray | None  # bool; None if there are no columns
  tokens: int  # of the scored rollouts, counted once for each forward pass


def score(setup: Setup, train: TrainState, batch: GradedBatch) -> Scored:
  """The columns that need a forward pass before the updates."""
  learner, cfg = setup.learner, setup.config.recipe.loss
  prompts, rollouts, groups = batch
  columns = {name: np.zeros(rollouts.tokens_RxT.shape, np.float32)
             for name in learner.scored}
  if not columns:
    return Scored({}, None, 0)
  scored_B = algorithm.to_score(groups, rollouts, cfg)
  layouts = packing.layouts(
      prompts, rollouts, scored_B, **batch.packing_arguments(setup))

  def collect(layout: packing.Layout, values: dict) -> None:
    for name, value_RxW in jax.device_get(values).items():
      packing.collect(layout, value_RxW, columns[name])

  # A microbatch is fetched while the next one is computed.
  previous = None
  for layout in layouts:
    values = learner.score(train, learner.base, update_lib.place(
        packing.batch(layout, prompts, rollouts, {}), setup.model.mesh),
        np.float32(setup.config.sampler.temperature))
    if previous:
      collect(*previous)
    previous = layout, values
  if previous:
    collect(*previous)
  passes = algorithm.forward_passes(learner.scored, setup.config.recipe.critic)
  return Scored(columns, scored_B,
                passes * int(rollouts.len_R[scored_B].sum()))


class Updates(typing.NamedTuple):
  """The updates of a step; one without a gradient is skipped."""

  tokens: list[int]  # trained on by each; 0: it was skipped
  lr: float  # of the first one
  finite: bool  # whether loss, gradient and parameters are
  metrics: dict[str, float]  # of update.make_update; means over those made

  @property
  def count(self) -> int:
    """The updates that were made."""
    return sum(count > 0 for count in self.tokens)


def updates(setup: Setup, train: TrainState, batch: GradedBatch, columns: dict,
            history: History) -> tuple[TrainState, Updates]:
  """Makes the updates of a step; `history` is that before it."""
  config, cfg, mesh = setup.config, setup.config.recipe.loss, setup.model.mesh
  prompts, rollouts, groups = batch
  arguments = batch.packing_arguments(setup)
  scalars_after = lambda made: programs.update_scalars(
      config, updates=history.totals["updates"] + made,
      rollouts=history.rollouts)
  P, made, tokens, metrics = len(groups.mask_PxN), 0, [], []
  for epoch in range(config.recipe.updates.epochs):
    for problems in algorithm.minibatches(
        seed=config.seed, step=history.step, epoch=epoch, Bp=P,
        count=min(config.recipe.updates.minibatches, P)):
      microbatches = update_lib.assemble(
          prompts, rollouts, columns | algorithm.weights(
              groups, rollouts.mask_RxT, problems, cfg), **arguments)
      train, values = setup.learner.update(
          train, setup.learner.base,
          [update_lib.place(b, mesh) for b in microbatches],
          scalars_after(made))
      tokens.append(sum(int(b.mask_RxW.sum()) for b in microbatches))
      made += tokens[-1] > 0
      metrics.append(values)
  metrics = jax.device_get(metrics)
  finite = [bool(values.pop("finite")) for values in metrics]
  # If all updates were skipped, the first one still gives every field a value.
  applied = [values for values, count in zip(metrics, tokens, strict=True)
             if count] or metrics[:1]
  return train, Updates(
      tokens, float(scalars_after(0).lr), all(finite),
      {name: float(np.mean([values[name] for values in applied]))
       for name in metrics[0]})


def sampling_cost(sampled: rollouts_lib.Sampled) -> dict[str, int]:
  """What the sampling of a step adds to the totals of a run."""
  return {
      "rollouts": len(sampled.rollouts.len_R) + sampled.num_lost,
      "prompt_tokens": int(sampled.prompts.len_P.sum()),
      "sampled_tokens": int(
          sampled.rollouts.len_R.sum()) + sampled.lost_tokens}


def rollout_fields(sampled: rollouts_lib.Sampled) -> dict:
  """The fields of a StepRecord that are means over graded rollouts."""
  n_P, rollouts, graded = sampled.n_P, sampled.rollouts, sampled.graded
  correct_PxN, mask_PxN = algorithm.by_problem(graded.correct_B, n_P)
  # A problem whose verdicts are all lost is in no mean.
  share_of = lambda reward: float(np.mean(
      ((correct_PxN == reward) | ~mask_PxN).all(axis=1)[n_P > 0]))
  return {
      "reward": float(graded.correct_B.mean()),
      "reward_parts": rewards.part_means(graded.parts_B),
      "formatted": float(graded.formatted_B.mean()),
      "lost": sampled.num_lost,
      "raised": sampled.num_raised,
      "all_incorrect": share_of(0.0),
      "all_correct": share_of(1.0),
      "entropy": (float(rollouts.entropy_R.sum())
                  / int(rollouts.mask_RxT.sum())),
      "response_length": int(rollouts.len_R.sum()) / len(rollouts.len_R),
      "truncated": float(np.mean(~rollouts.ended_R)),
      "interrupted": float(np.mean(rollouts.interrupted_R)),
      "evicted": sampled.evicted,
      "staleness_mean": sampled.staleness[0],
      "staleness_max": sampled.staleness[1]}
