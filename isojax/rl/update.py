"""The one sharded GRPO update: (state, base, batch) -> (state, metrics).

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
from isojax.models import lora as lora_lib
from isojax.rl import advantage, loss
from isojax.sampling import blocks, prefill
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
  microbatches: int  # gradient accumulation steps; memory and speed only
  dtype: str  # of weights and activations in the update; masters are float32

  def __post_init__(self):
    for name, table in (("aggregation", advantage.AGGREGATIONS),
                        ("zero_variance", advantage.ZERO_VARIANCE)):
      if getattr(self, name) not in table:
        raise InputError(f"loss.{name}={getattr(self, name)!r}: expected one "
                         f"of {', '.join(table)}")
    if self.microbatches < 1:
      raise InputError(f"loss.microbatches={self.microbatches}: expected >= 1")
    if self.dtype not in decoder.DTYPES:
      raise InputError(f"loss.dtype={self.dtype!r}: expected one of "
                       f"{', '.join(decoder.DTYPES)}")
    if self.importance_cap is not None and self.importance_cap <= 0:
      raise InputError(f"loss.importance_cap={self.importance_cap}: expected "
                       "> 0, or None for no weights")
    for name in ("kl_coef", "entropy_coef", "clip_low", "clip_high",
                 "advantage_eps"):
      if getattr(self, name) < 0:
        raise InputError(f"loss.{name}={getattr(self, name)}: expected >= 0")


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

  def __post_init__(self):
    for name in ("base_lr", "base_batch", "eps", "clip_norm"):
      if getattr(self, name) <= 0:
        raise InputError(f"optimizer.{name}={getattr(self, name)}: expected "
                         "> 0")
    if not (0 <= self.b1 < 1 and 0 <= self.b2 < 1):
      raise InputError(f"optimizer: b1={self.b1}, b2={self.b2}: expected in "
                       "[0, 1)")


def make_optimizer(cfg: OptimizerConfig, schedule):
  """Clip by global norm, then AdamW; `schedule` maps a step to its lr."""
  return optax.chain(
      optax.clip_by_global_norm(cfg.clip_norm),
      optax.adamw(schedule, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
                  weight_decay=cfg.weight_decay))


def warmup_then_constant(lr: float, steps: int):
  """Linear from lr / steps at the first update to lr, then constant."""
  return lambda step: lr * jnp.minimum(1.0, (step + 1) / max(1, steps))


def abstract_state(model: decoder.Transformer, tx,
                   lora=lora_lib.FULL) -> TrainState:
  """Shapes and shardings of the train state; also the restore target."""
  params = lora_lib.abstract_trained(model, lora)
  whole = mesh_lib.replicated(model.mesh)
  like = lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding)
  opt_state = optax.tree_utils.tree_map_params(
      tx, lambda x, param: like(x, param.sharding),
      jax.eval_shape(tx.init, params), params,
      transform_non_params=lambda x: like(x, whole))
  return TrainState(
      jax.ShapeDtypeStruct((), jnp.int32, sharding=whole), params, opt_state)


def init_state(model: decoder.Transformer, tx, params,
               lora=lora_lib.FULL) -> TrainState:
  """Step 0 from what is trained, which is donated."""
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora))
  return jax.jit(
      lambda params: TrainState(jnp.int32(0), params, tx.init(params)),
      out_shardings=shardings, donate_argnums=0)(params)


def assemble(prompts: Prompts, rollouts: Rollouts, advantage_B, policy_weight_B,
             regularizer_weight_B, *, n: int, G: int, cfg: LossConfig) -> Batch:
  """Problem-major host rows cut into microbatches of G blocks each.

  Groups without any gradient, such as all-wrong ones where neither KL nor
  entropy bonus is on, come last, so that they need not be computed.
  B must divide by G * microbatches; `experiment` has checked it.
  """
  B, k = len(rollouts.len_R), cfg.microbatches
  used = (np.asarray(advantage_B) != 0) & (np.asarray(policy_weight_B) > 0)
  if cfg.kl_coef or cfg.entropy_coef:
    used |= np.asarray(regularizer_weight_B) > 0
  useful = used.reshape(-1, n).any(axis=1)
  order = np.argsort(~useful, kind="stable")
  row_order = (order[:, None] * n + np.arange(n)).reshape(-1)
  problem, slot, _, _ = blocks.cut(
      n, B, rows=B // (G * k), slots=blocks.slots_for(B // (G * k), n))
  prompt_order = order[problem].reshape(k, -1)
  by_micro = lambda x, dtype: np.asarray(x, dtype)[row_order].reshape(
      k, -1, *np.shape(x)[1:])
  return Batch(
      count=np.int32(-(-useful.sum() * n * k // B)),
      prompts=jax.tree.map(lambda x: np.asarray(x)[prompt_order], prompts),
      slot_R=slot.reshape(k, -1),
      tokens_RxT=by_micro(rollouts.tokens_RxT, np.int32),
      len_R=by_micro(rollouts.len_R, np.int32),
      behavior_logp_RxT=by_micro(rollouts.behavior_logp_RxT, np.float32),
      used_R=by_micro(used, bool),
      advantage_R=by_micro(advantage_B, np.float32),
      policy_weight_R=by_micro(policy_weight_B, np.float32),
      regularizer_weight_R=by_micro(regularizer_weight_B, np.float32))


def place(batch: Batch, mesh) -> Batch:
  """A batch on the devices: rows sharded, the count replicated."""
  count = mesh_lib.place(batch.count, mesh_lib.replicated(mesh))
  rows = mesh_lib.place(batch.replace(count=None),
                        mesh_lib.row_sharding(mesh, 1))
  return rows.replace(count=count)


def score_tokens(model: decoder.Transformer, params, batch: Batch, *,
                 temperature, dtype):
  """Teacher-forced log-prob and entropy of one microbatch's tokens: [R, T]."""
  T = batch.tokens_RxT.shape[1]
  G = mesh_lib.blocks(model.mesh)
  params = jax.tree.map(lambda x: x.astype(dtype), params)
  cache = prefill.prompt_cache(model, params, batch.prompts, dtype)
  cache, token_R, last_R = prefill.start_rows(
      batch.prompts, batch.slot_R, cache, T, G=G)
  inputs_RxT = jnp.concatenate(
      [token_R[:, None], batch.tokens_RxT[:, :-1]], axis=1)
  S, t_T = batch.prompts.tokens_PxS.shape[1], jnp.arange(T)
  mask = prefill.new_token_mask(last_R, t_T, S=S, L=S + T)
  hidden, _ = model.apply(
      {"params": params}, inputs_RxT, last_R[:, None] + t_T[None],
      mask, cache, S)
  logits = model.apply({"params": params}, hidden, method="head")
  return loss.logp_and_entropy(
      logits, batch.tokens_RxT, temperature=temperature)


def make_update(model: decoder.Transformer, tx, cfg: LossConfig,
                lora=lora_lib.FULL):
  """The one jitted update; the state is donated.

  Returns:
    update(state, base, batch, temperature) -> (state, metrics). `base` holds
    the base policy's parameters, which adapters stand on and KL refers to; it
    is None if there is neither. Metrics are means over the tokens that have a
    gradient, on device; `finite` says whether loss, gradient and new
    parameters are.
  """
  dtype = jnp.dtype(cfg.dtype)
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora))

  def microbatch_loss(trained, base, batch: Batch, temperature):
    params = lora_lib.merge(lora, base, trained, dtype)
    T = batch.tokens_RxT.shape[1]
    mask = ((jnp.arange(T)[None] < batch.len_R[:, None])
            & batch.used_R[:, None])
    total = lambda x: jnp.sum(jnp.where(mask, x, 0.0))
    # Masked before any exp: 0 * inf would be NaN on the way back.
    masked = lambda x: jnp.where(mask, x, 0.0)
    logp, entropy = score_tokens(
        model, params, batch, temperature=temperature, dtype=dtype)
    logp, behavior_logp = masked(logp), masked(batch.behavior_logp_RxT)
    old = jax.lax.stop_gradient(logp)
    policy, clipped = loss.grpo(logp, old, batch.advantage_R,
                                clip_low=cfg.clip_low, clip_high=cfg.clip_high)
    if cfg.importance_cap is not None:
      weight, capped = loss.importance(old, behavior_logp,
                                       cap=cfg.importance_cap)
      policy, clipped = policy * weight, clipped | capped
    regularizer = -cfg.entropy_coef * entropy
    sums = {
        "tokens": jnp.sum(mask, dtype=jnp.float32),
        "logp": total(logp),
        "logp_gap": total(jnp.abs(old - behavior_logp)),
        "clip_fraction": total(clipped.astype(jnp.float32)),
    }
    if cfg.kl_coef:
      ref_logp, _ = score_tokens(
          model, base, batch, temperature=temperature, dtype=dtype)
      kl = loss.kl_k3(logp, masked(jax.lax.stop_gradient(ref_logp)))
      regularizer += cfg.kl_coef * kl
      sums["kl"] = total(kl)
    value = total(policy * batch.policy_weight_R[:, None]
                  + regularizer * batch.regularizer_weight_R[:, None])
    return value, sums | {"loss": value}

  def update(state: TrainState, base, batch: Batch, temperature):
    count, micro = batch.count, batch.replace(count=None)
    gradient = jax.grad(microbatch_loss, has_aux=True)

    def accumulate(i, carry):
      part = jax.tree.map(
          lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), micro)
      return jax.tree.map(
          jnp.add, carry,
          gradient(state.params, base, part, temperature))

    zeros = lambda tree: jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), tree)
    _, sums = jax.eval_shape(
        gradient, state.params, base,
        jax.tree.map(lambda x: x[0], micro), temperature)
    start = jax.lax.with_sharding_constraint(
        zeros(state.params), shardings.params), zeros(sums)
    grads, sums = jax.lax.fori_loop(0, count, accumulate, start)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    tokens, value = sums.pop("tokens"), sums.pop("loss")
    metrics = jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), sums)
    grad_norm = optax.tree.norm(grads)
    metrics |= {"loss": value, "grad_norm": grad_norm, "finite": jnp.isfinite(
        value + grad_norm + optax.tree.norm(params))}
    return TrainState(state.step + 1, params, opt_state), metrics

  return jax.jit(update, donate_argnums=0,
                 out_shardings=(shardings, mesh_lib.replicated(model.mesh)))
