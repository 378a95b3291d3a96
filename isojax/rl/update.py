"""The one sharded GRPO update: (state, ref_params, batch) -> (state, metrics).

The prompt goes through the model once per block slot, not once per rollout;
its cache is cloned to the rows as in the sampler, and gradients of all the
rows meet in it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import decoder
from isojax.rl import advantage, loss
from isojax.sampling import blocks, sampler
from isojax.types import Batch, Prompts, Rollouts, TrainState


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What is minimised."""

  aggregation: str  # a key of advantage.AGGREGATIONS
  zero_variance: str  # a key of advantage.ZERO_VARIANCE
  advantage_ddof: int  # of the group's standard deviation
  advantage_eps: float  # added to it
  clip_low: float  # PPO clip; inert while strictly on-policy
  clip_high: float
  importance_cap: float | None  # of trainer / sampler; None: no weights
  kl_coef: float  # of k3 to the base policy; 0 drops the reference forward
  entropy_coef: float  # of the entropy bonus
  microbatches: int  # gradient accumulation steps; changes memory only
  dtype: str  # of weights and activations in the update; masters are float32

  def __post_init__(self):
    for name, table in (("aggregation", advantage.AGGREGATIONS),
                        ("zero_variance", advantage.ZERO_VARIANCE)):
      if getattr(self, name) not in table:
        raise InputError(f"loss.{name}={getattr(self, name)!r}: expected one "
                         f"of {', '.join(table)}")
    if self.microbatches < 1:
      raise InputError(f"loss.microbatches={self.microbatches}: expected >= 1")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a constant learning rate after a linear warm-up."""

  base_lr: float  # at B = base_batch
  base_batch: int  # rollouts per step of the anchor; lr ~ sqrt(B / base_batch)
  warmup_steps: int  # updates
  b1: float
  b2: float
  eps: float
  weight_decay: float
  clip_norm: float  # global gradient norm


def make_optimizer(cfg: OptimizerConfig, schedule):
  """Clip by global norm, then AdamW; `schedule` maps a step to its lr."""
  return optax.chain(
      optax.clip_by_global_norm(cfg.clip_norm),
      optax.adamw(schedule, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
                  weight_decay=cfg.weight_decay))


def warmup_then_constant(lr: float, steps: int):
  """Linear from lr / steps at the first update to lr, then constant."""
  return lambda step: lr * jnp.minimum(1.0, (step + 1) / max(1, steps))


def abstract_state(model: decoder.Transformer, tx) -> TrainState:
  """Shapes and shardings of the train state; also the restore target."""
  params = decoder.abstract_params(model)
  whole = mesh_lib.replicated(model.mesh)
  like = lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding)
  opt_state = optax.tree_utils.tree_map_params(
      tx, lambda x, param: like(x, param.sharding),
      jax.eval_shape(tx.init, params), params,
      transform_non_params=lambda x: like(x, whole))
  return TrainState(
      jax.ShapeDtypeStruct((), jnp.int32, sharding=whole), params, opt_state)


def init_state(model: decoder.Transformer, tx, params) -> TrainState:
  """Step 0 from parameters, which are donated."""
  shardings = jax.tree.map(lambda x: x.sharding, abstract_state(model, tx))
  return jax.jit(
      lambda params: TrainState(jnp.int32(0), params, tx.init(params)),
      out_shardings=shardings, donate_argnums=0)(params)


def assemble(prompts: Prompts, rollouts: Rollouts, advantage_B,
             policy_weight_B, regularizer_weight_B, *, n: int, G: int,
             microbatches: int) -> Batch:
  """Problem-major host rows cut into microbatches of G blocks each.

  B must divide by G * microbatches; `experiment` has checked it.
  """
  B = len(rollouts.len_R)
  rows = B // (G * microbatches)
  problem, slot, _, _ = blocks.cut(
      n, B, rows=rows, slots=blocks.slots_for(rows, n))
  by_micro = lambda x: np.reshape(x, (microbatches, -1, *np.shape(x)[1:]))
  index = by_micro(problem.reshape(-1))
  f32 = lambda x: by_micro(np.asarray(x, np.float32).reshape(-1))
  return Batch(
      prompts=jax.tree.map(lambda x: np.asarray(x)[index], prompts),
      slot_R=by_micro(slot.reshape(-1)),
      tokens_RxT=by_micro(rollouts.tokens_RxT),
      len_R=by_micro(rollouts.len_R),
      behavior_logp_RxT=by_micro(rollouts.behavior_logp_RxT),
      advantage_R=f32(advantage_B), policy_weight_R=f32(policy_weight_B),
      regularizer_weight_R=f32(regularizer_weight_B))


def score_tokens(model: decoder.Transformer, params, batch: Batch, *,
                 temperature, dtype):
  """Teacher-forced log-prob and entropy of one microbatch's tokens: [R, T]."""
  T = batch.tokens_RxT.shape[1]
  G = mesh_lib.blocks(model.mesh)
  params = jax.tree.map(lambda x: x.astype(dtype), params)
  cache = sampler.prompt_cache(model, params, batch.prompts, dtype)
  cache, token_R, last_R, mask = sampler.start_rows(
      batch.prompts, batch.slot_R, cache, T, G=G)
  inputs_RxT = jnp.concatenate(
      [token_R[:, None], batch.tokens_RxT[:, :-1]], axis=1)
  S = batch.prompts.tokens_PxS.shape[1]
  hidden, _ = model.apply(
      {"params": params}, inputs_RxT, last_R[:, None] + jnp.arange(T)[None],
      mask, cache, S)
  logits = model.apply({"params": params}, hidden, method="head")
  return loss.logp_and_entropy(
      logits, batch.tokens_RxT, temperature=temperature)


def make_update(model: decoder.Transformer, tx, cfg: LossConfig):
  """The one jitted update; the state is donated.

  Returns:
    update(state, ref_params, batch, temperature) -> (state, metrics), where
    ref_params is None if kl_coef is 0. Metrics are means over tokens of the
    whole batch, on device.
  """
  dtype = jnp.dtype(cfg.dtype)

  def microbatch_loss(params, ref_params, batch: Batch, temperature):
    T = batch.tokens_RxT.shape[1]
    mask = jnp.arange(T)[None] < batch.len_R[:, None]
    total = lambda x: jnp.sum(jnp.where(mask, x, 0.0))
    logp, entropy = score_tokens(
        model, params, batch, temperature=temperature, dtype=dtype)
    old = jax.lax.stop_gradient(logp)
    policy, clipped = loss.grpo(logp, old, batch.advantage_R,
                                clip_low=cfg.clip_low, clip_high=cfg.clip_high)
    if cfg.importance_cap is not None:
      weight, capped = loss.importance(old, batch.behavior_logp_RxT,
                                       cap=cfg.importance_cap)
      policy, clipped = policy * weight, clipped | capped
    regularizer = -cfg.entropy_coef * entropy
    sums = {
        "tokens": jnp.sum(mask, dtype=jnp.float32),
        "entropy": total(entropy),
        "logp": total(logp),
        "logp_gap": total(jnp.abs(old - batch.behavior_logp_RxT)),
        "clip_fraction": total(clipped.astype(jnp.float32)),
    }
    if ref_params is not None:
      ref_logp, _ = score_tokens(
          model, ref_params, batch, temperature=temperature, dtype=dtype)
      kl = loss.kl_k3(logp, jax.lax.stop_gradient(ref_logp))
      regularizer += cfg.kl_coef * kl
      sums["kl"] = total(kl)
    value = total(policy * batch.policy_weight_R[:, None]
                  + regularizer * batch.regularizer_weight_R[:, None])
    return value, sums | {"loss": value}

  def update(state: TrainState, ref_params, batch: Batch, temperature):
    def accumulate(carry, batch):
      grads, sums = jax.grad(microbatch_loss, has_aux=True)(
          state.params, ref_params, batch, temperature)
      return jax.tree.map(jnp.add, carry, (grads, sums)), None

    first = jax.tree.map(lambda x: x[0], batch)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(jax.grad(microbatch_loss, has_aux=True),
                       state.params, ref_params, first, temperature))
    (grads, sums), _ = jax.lax.scan(accumulate, zeros, batch)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    tokens, value = sums.pop("tokens"), sums.pop("loss")
    metrics = jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), sums)
    metrics |= {"loss": value, "grad_norm": optax.tree.norm(grads)}
    return TrainState(state.step + 1, params, opt_state), metrics

  shardings = jax.tree.map(lambda x: x.sharding, abstract_state(model, tx))
  return jax.jit(update, donate_argnums=0,
                 out_shardings=(shardings, mesh_lib.replicated(model.mesh)))
