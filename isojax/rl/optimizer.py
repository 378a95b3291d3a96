"""AdamW, its learning rate, the averaged policy, and their train state.

Without decay the rate is constant after warm-up, so one run to the largest M
contains every smaller C, and a larger alloc.C extends a run.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isojax.core import allocation
from isojax.errors import expect, expect_one_of
from isojax.models import decoder
from isojax.models import lora as lora_lib
from isojax.rl import critic as critic_lib
from isojax.runtime import mesh as mesh_lib
from isojax.types import CriticState, TrainState, UpdateScalars


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a linear warm-up, and how a run ends: decay and average."""

  # The learning rate is base_lr * sqrt(rollouts / base_batch) after warm-up and
  # before the decay.
  base_lr: float
  base_batch: int  # rollouts
  batch: str  # the rollouts that this rule counts, one of allocation.BATCHES
  warmup_steps: int  # updates
  b1: float
  b2: float
  eps: float
  weight_decay: float
  clip_norm: float  # global gradient norm
  decay: float  # share of C over whose end the rate falls to 0, in [0, 1]
  average: float | None  # eta of `average_weight`; None: no averaged policy

  def __post_init__(self):
    expect_one_of("recipe.optimizer", self, batch=allocation.BATCHES)
    expect("recipe.optimizer", self, **{
        name: (getattr(self, name) > 0, "> 0")
        for name in ("base_lr", "base_batch", "eps", "clip_norm")}, **{
        name: (0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("b1", "b2")}, **{
        name: (getattr(self, name) >= 0, ">= 0")
        for name in ("warmup_steps", "weight_decay")},
        decay=(0 <= self.decay <= 1, "in [0, 1], a share of alloc.C"),
        average=(self.average is None or 0 <= self.average < math.inf,
                 "a finite number >= 0; None switches the average off"))


def make(cfg: OptimizerConfig):
  """AdamW of rate 1 behind a clip of the gradient's global norm.

  `stepped` applies the learning rate, a number that no program contains.
  """
  return optax.chain(
      optax.clip_by_global_norm(cfg.clip_norm),
      optax.adamw(1.0, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
                  weight_decay=cfg.weight_decay))


def warmup_factor(updates: int, steps: int) -> np.float32:
  """Factor on the rate of the update after `updates` others: linear, then 1."""
  return np.minimum(np.float32(1), np.float32(updates + 1)
                    * (np.float32(1) / np.float32(max(1, steps))))


def decay_factor(spent: float, decay: float) -> np.float32:
  """Factor on the rate of a step: 1, then linear to 0 at the end of C.

  `spent` is the share of C that was sampled before the step. In rollouts and
  not in steps, because C is what a run is given: resampling may spend it early.
  """
  if decay == 0:
    return np.float32(1)
  return np.float32(min(1.0, max(0.0, (1.0 - spent) / decay)))


def average_weight(updates: int, eta: float) -> np.float32:
  """Weight of the new parameters in the average after `updates` others.

  (1 + eta) / (t + eta) with t = updates + 1: polynomial-decay averaging
  (arXiv 1212.1824, section 3). At every t the average weighs about the last
  1 / (eta + 1) of the path, so a run contains every shorter one, also with its
  average; eta = 0 is the plain mean.
  """
  return np.float32((1 + eta) / (updates + 1 + eta))


def scalars(cfg: OptimizerConfig, *, lr: float, critic_lr: float,
            temperature: float, updates: int, spent: float) -> UpdateScalars:
  """The numbers of the update after `updates` others; `spent`: decay_factor."""
  factor = warmup_factor(updates, cfg.warmup_steps) * decay_factor(
      spent, cfg.decay)
  return UpdateScalars(
      np.float32(temperature), np.float32(lr) * factor,
      np.float32(critic_lr) * factor, np.float32(0) if cfg.average is None
      else average_weight(updates, cfg.average))


def stepped(tx, grad, state, lr):
  """(params, opt_state) after an update of a TrainState or CriticState."""
  updates, opt_state = tx.update(grad, state.opt_state, state.params)
  return optax.apply_updates(
      state.params, jax.tree.map(lambda x: lr * x, updates)), opt_state


def averaged(average, params, weight):
  """The average with new parameters of this weight; None stays None."""
  return average and jax.tree.map(
      lambda mean, x: mean + weight * (x - mean), average, params)


@dataclasses.dataclass(frozen=True)
class Critic:
  """A critic and its optimizer."""

  cfg: critic_lib.CriticConfig
  tx: optax.GradientTransformation

  @property
  def own(self) -> bool:
    """Whether the critic has its own trunk."""
    return self.cfg.kind == "own"


def _abstract_moments(tx, params, mesh):
  def like(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return optax.tree_utils.tree_map_params(
      tx, lambda x, param: like(x, param.sharding),
      jax.eval_shape(tx.init, params), params,
      transform_non_params=lambda x: like(x, mesh_lib.replicated(mesh)))


def abstract_state(model: decoder.Transformer, tx, lora=lora_lib.FULL,
                   critic: Critic | None = None, *,
                   average: bool = False) -> TrainState:
  """Shapes and shardings of the train state, also the target of a restore.

  `average`: the state has an averaged policy.
  """
  params, critic_state = lora_lib.abstract_trained(model, lora), None
  if critic:
    critic_params = critic_lib.abstract_params(model, critic.cfg, lora)
    critic_state = CriticState(critic_params, _abstract_moments(
        critic.tx, critic_params, model.mesh))
  return TrainState(
      jax.ShapeDtypeStruct((), jnp.int32,
                           sharding=mesh_lib.replicated(model.mesh)),
      params, _abstract_moments(tx, params, model.mesh), critic_state,
      params if average else None)


def init_state(model: decoder.Transformer, tx, params, lora=lora_lib.FULL,
               critic: Critic | None = None, trunk=None, *,
               average: bool = False) -> TrainState:
  """The state of step 0; donates `params`, and the `trunk` of an own critic."""
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora, critic,
                                          average=average))
  critic_params = critic and critic_lib.init_params(model, critic.cfg, trunk)

  def make(params, critic_params):
    return TrainState(
        jnp.int32(0), params, tx.init(params),
        critic and CriticState(critic_params, critic.tx.init(critic_params)),
        jax.tree.map(jnp.copy, params) if average else None)

  return jax.jit(make, out_shardings=shardings,
                 donate_argnums=(0, 1))(params, critic_params)
