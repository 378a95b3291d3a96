"""AdamW with its warm-up, and the train state that it updates."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from isojax.errors import expect, expect_one_of
from isojax.models import decoder
from isojax.models import lora as lora_lib
from isojax.rl import critic as critic_lib
from isojax.runtime import mesh as mesh_lib
from isojax.types import CriticState, TrainState

# Which rollouts set the learning rate: Bp * n, Bp * m, or Bp * m / minibatches.
BATCHES = ("sampled", "trained", "update")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a constant learning rate after a linear warm-up."""

  # The learning rate is base_lr * sqrt(rollouts / base_batch).
  base_lr: float
  base_batch: int  # rollouts
  batch: str  # the rollouts that this rule counts, one of BATCHES
  warmup_steps: int  # updates
  b1: float
  b2: float
  eps: float
  weight_decay: float
  clip_norm: float  # global gradient norm

  def __post_init__(self):
    expect_one_of("recipe.optimizer", self, batch=BATCHES)
    expect("recipe.optimizer", self, **{
        name: (getattr(self, name) > 0, "> 0")
        for name in ("base_lr", "base_batch", "eps", "clip_norm")}, **{
        name: (0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("b1", "b2")})


def make(cfg: OptimizerConfig, schedule):
  """AdamW behind a clip of the gradient's global norm."""
  return optax.chain(
      optax.clip_by_global_norm(cfg.clip_norm),
      optax.adamw(schedule, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
                  weight_decay=cfg.weight_decay))


def warmup_then_constant(lr: float, steps: int):
  """A schedule: linear from lr / steps to lr, then constant."""
  def schedule(step):
    return lr * jnp.minimum(1.0, (step + 1) / max(1, steps))

  return schedule


def stepped(tx, grads, state):
  """(params, opt_state) after an update of a TrainState or CriticState."""
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  return optax.apply_updates(state.params, updates), opt_state


@dataclasses.dataclass(frozen=True)
class Critic:
  """A critic and its optimizer."""

  cfg: critic_lib.CriticConfig
  tx: optax.GradientTransformation

  @property
  def own(self) -> bool:
    """Whether the critic has a trunk of its own."""
    return self.cfg.kind == "own"


def _abstract_moments(tx, params, mesh):
  def like(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return optax.tree_utils.tree_map_params(
      tx, lambda x, param: like(x, param.sharding),
      jax.eval_shape(tx.init, params), params,
      transform_non_params=lambda x: like(x, mesh_lib.replicated(mesh)))


def abstract_state(model: decoder.Transformer, tx, lora=lora_lib.FULL,
                   critic: Critic | None = None) -> TrainState:
  """Shapes and shardings of the train state, also the target of a restore."""
  params, critic_state = lora_lib.abstract_trained(model, lora), None
  if critic:
    critic_params = critic_lib.abstract_params(model, critic.cfg, lora)
    critic_state = CriticState(critic_params, _abstract_moments(
        critic.tx, critic_params, model.mesh))
  return TrainState(
      jax.ShapeDtypeStruct((), jnp.int32,
                           sharding=mesh_lib.replicated(model.mesh)),
      params, _abstract_moments(tx, params, model.mesh), critic_state)


def init_state(model: decoder.Transformer, tx, params, lora=lora_lib.FULL,
               critic: Critic | None = None, trunk=None) -> TrainState:
  """The state of step 0; donates `params`, and the `trunk` of an own critic."""
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora, critic))
  critic_params = critic and critic_lib.init_params(model, critic.cfg, trunk)

  def make(params, critic_params):
    return TrainState(
        jnp.int32(0), params, tx.init(params),
        critic and CriticState(critic_params, critic.tx.init(critic_params)))

  return jax.jit(make, out_shardings=shardings,
                 donate_argnums=(0, 1))(params, critic_params)
