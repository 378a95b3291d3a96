"""One step of training.

sample -> judge -> select -> score -> advantage -> weights -> updates
"""

import typing

import jax
import numpy as np

from isojax import mesh as mesh_lib
from isojax import profile
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax import rollouts_in_flight
from isojax import step_rollouts
from isojax import hosts
from isojax.rl import algorithm
from isojax.rl import critic as critic_lib
from isojax.rl import packing
from isojax.rl import rewards
from isojax.rl import update as update_lib
from isojax.run_state import Run
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import TrainState


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
  shaped_B = rewards.shaped(
      graded.correct_B, graded.formatted_B, sampled.rollouts.len_R,
      e.recipe.reward, format_coef=e.task.format_coef)
  reward_PxN = shaped_B.reshape(-1, n)[kept_P]
  prompts = step_rollouts.of_groups(prompts, kept_P, 1)
  rollouts = step_rollouts.of_groups(sampled.rollouts, kept_P, n)
  groups = algorithm.keep(
      reward_PxN, np.ones(reward_PxN.shape, bool),
      rng.uniforms(e.seed, step, prompts.id_P, n), a.m_of(n), e.recipe.loss)
  group = Group(prompts, rollouts, groups)
  scoring = clock()
  scored = score(run, group)
  updating = clock()
  columns = scored.columns | algorithm.advantages(
      groups, rollouts, scored.columns, e.recipe.loss)
  state, fields = updates(run, group, columns)
  jax.block_until_ready(state)
  ended = clock()
  run.store(prompts, rollouts, reward_PxN, columns["advantage"], step + 1)
  run.flight = flight
  seconds = {"sample": scoring - begun - sampled.seconds_waited,
             "score": sampled.seconds_waited, "logp": updating - scoring,
             "update": ended - updating}
  return state, {
      **measured(taken.prompts, sampled),
      "shaped_reward": float(shaped_B.mean()),
      "refilled": rounds - 1,
      "solved": step_rollouts.newly_solved(
          graded.correct_B.reshape(-1, n), taken.prompts.id_P,
          rate=e.recipe.filter.solved_rate),
      "staleness_mean": staleness[0], "staleness_max": staleness[1],
      "selected": int(groups.kept_PxN.sum()),
      "scored_tokens": scored.tokens,
      "explained_variance": explained_variance(rollouts, scored, columns),
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
  groups: algorithm.Groups


class Scored(typing.NamedTuple):
  columns: dict[str, np.ndarray]  # [B, T] each, 0 where not scored
  which_B: np.ndarray | None  # bool, the rollouts that were scored
  tokens: int  # that went through a forward pass, once for each pass


def score(run: Run, group: Group) -> Scored:
  """Returns the columns that need a forward pass before the updates."""
  context, cfg = run.context, run.context.e.recipe.loss
  rollouts = group.rollouts
  out = {name: np.zeros(rollouts.tokens_RxT.shape, np.float32)
         for name in run.scored}
  if not out:
    return Scored({}, None, 0)
  which_B = algorithm.to_score(group.groups, rollouts, cfg)
  layouts = update_lib.layouts(
      group.prompts, rollouts, which_B, n=group.groups.mask_PxN.shape[1],
      G=mesh_lib.blocks(context.model.mesh), cfg=cfg)
  before = None  # read while the next microbatch is computed; two are held
  for layout in layouts:
    values = run.score(run.state, run.base, update_lib.place(
        packing.batch(layout, group.prompts, rollouts, {}),
        context.model.mesh), np.float32(context.e.sampler.temperature))
    if before:
      collect(*before, out)
    before = layout, values
  if before:
    collect(*before, out)
  passes = algorithm.forward_passes(run.scored, context.e.recipe.critic)
  return Scored(out, which_B, passes * int(rollouts.len_R[which_B].sum()))


def collect(layout: packing.Layout, values: dict, out: dict) -> None:
  """Adds the scored columns of a microbatch to those of all rollouts, `out`."""
  for name, value_RxW in jax.device_get(values).items():
    packing.collect(layout, value_RxW, out[name])


def explained_variance(rollouts: Rollouts, scored: Scored,
                       columns: dict) -> float | None:
  """Returns how well a critic's values predict returns; None without one."""
  if "value" not in scored.columns:
    return None
  return critic_lib.explained_variance(
      columns["value"], columns["return"],
      rollouts.mask_RxT & scored.which_B[:, None])


def updates(run: Run, group: Group, columns: dict) -> tuple[TrainState, dict]:
  """Makes the updates of a step; returns the state and fields of the record.

  Metrics are means over the updates that were made. `updates` counts them;
  without a gradient an update is skipped.
  """
  context, e, cfg = run.context, run.context.e, run.context.e.recipe.loss
  Bp, n = group.groups.mask_PxN.shape
  factor = e.lr_factor(n)
  state, made, found = run.state, [], []
  for epoch in range(e.recipe.updates.epochs):
    for problems in algorithm.minibatches(
        seed=e.seed, step=run.step, epoch=epoch, Bp=Bp,
        count=min(e.recipe.updates.minibatches, Bp)):
      batches = update_lib.assemble(
          group.prompts, group.rollouts, columns | algorithm.weights(
              group.groups, group.rollouts.mask_RxT, problems, cfg), n=n,
          G=mesh_lib.blocks(context.model.mesh), cfg=cfg)
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
      "interrupted": float(np.mean(rollouts.interrupted_R)),
      "put_back": rollouts.put_back}
