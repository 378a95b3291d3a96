"""The sharded GRPO update: (state, base, microbatches) -> (state, metrics)."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import attention
from isojax.models import decoder
from isojax.models import lora as lora_lib
from isojax.models import precision as precision_lib
from isojax.rl import advantages, losses, packing, chunked_head
from isojax.types import Batch, Prompts, Rollouts, TrainState


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What is minimised."""

  aggregation: str  # a key of advantages.AGGREGATIONS
  zero_variance: str  # a key of advantages.ZERO_VARIANCE
  advantage_ddof: int  # of the group's standard deviation
  advantage_eps: float  # added to it
  clip_low: float  # PPO clip; inert while strictly on-policy
  clip_high: float
  importance_cap: float | None  # of trainer / sampler; None: no weights
  kl_coef: float  # of k3 to the base policy; 0 drops the reference forward
  entropy_coef: float  # of the entropy bonus
  microbatch_tokens: int  # of packed answers, padding too; memory, speed only
  remat: bool  # the backward computes the layers again; memory only
  dtype: str  # of weights and activations in the update; masters are float32
  reduce_dtype: str  # in which gradients of weights are summed over devices
  attention: str  # one of attention.CHOICES
  # Of float32 products, one of precision.PRECISIONS.
  precision: str = dataclasses.field(metadata={"neutral": "highest"})

  def __post_init__(self):
    for name, table in (("aggregation", advantages.AGGREGATIONS),
                        ("zero_variance", advantages.ZERO_VARIANCE)):
      if getattr(self, name) not in table:
        raise InputError(f"loss.{name}={getattr(self, name)!r}: expected one "
                         f"of {', '.join(table)}")
    if self.microbatch_tokens < 1:
      raise InputError(f"loss.microbatch_tokens={self.microbatch_tokens}: "
                       "expected >= 1; fewer than one row has are one row")
    for name in ("dtype", "reduce_dtype"):
      if getattr(self, name) not in decoder.DTYPES:
        raise InputError(f"loss.{name}={getattr(self, name)!r}: expected one "
                         f"of {', '.join(decoder.DTYPES)}")
    if self.reduce_dtype not in ("float32", self.dtype):
      raise InputError(
          f"loss.reduce_dtype={self.reduce_dtype}: expected float32, or "
          f"loss.dtype={self.dtype}, in which the gradients are computed")
    if self.attention not in attention.CHOICES:
      raise InputError(f"loss.attention={self.attention!r}: expected one of "
                       f"{', '.join(attention.CHOICES)}")
    if self.precision not in precision_lib.PRECISIONS:
      raise InputError(f"loss.precision={self.precision!r}: expected one of "
                       f"{', '.join(precision_lib.PRECISIONS)}")
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
             regularizer_weight_B, *, n: int, G: int,
             cfg: LossConfig) -> list[Batch]:
  """Problem-major host rows, n to a problem, to microbatches of G blocks."""
  return packing.assemble(
      prompts, rollouts, advantage_B, policy_weight_B, regularizer_weight_B,
      n=n, G=G, tokens=cfg.microbatch_tokens,
      regularized=bool(cfg.kl_coef or cfg.entropy_coef))


def place(batch: Batch, mesh) -> Batch:
  """A microbatch on the devices, sharded by rows."""
  return mesh_lib.place(batch, mesh_lib.row_sharding(mesh))


def token_loss(logp, ref_logp, entropy, mask, token: Batch, cfg: LossConfig):
  """(loss, sums for the metrics) of some positions [R, c] of all rows.

  `token` has the arrays of a Batch that are one value a token. ref_logp and
  entropy are None where their coefficients are 0.
  """
  total = lambda x: jnp.sum(jnp.where(mask, x, 0.0))
  # Masked before any exp: 0 * inf would be NaN on the way back.
  masked = lambda x: jnp.where(mask, x, 0.0)
  logp, behavior_logp = masked(logp), masked(token.behavior_logp_RxW)
  old = jax.lax.stop_gradient(logp)
  policy, clipped = losses.grpo(logp, old, token.advantage_RxW,
                              clip_low=cfg.clip_low, clip_high=cfg.clip_high)
  if cfg.importance_cap is not None:
    weight, capped = losses.importance(old, behavior_logp, cap=cfg.importance_cap)
    policy, clipped = policy * weight, clipped | capped
  value = policy * token.policy_weight_RxW
  sums = {"tokens": jnp.sum(mask, dtype=jnp.float32),
          "logp": total(logp), "logp_gap": total(jnp.abs(old - behavior_logp)),
          "clip_fraction": total(clipped.astype(jnp.float32))}
  if cfg.entropy_coef:
    value -= cfg.entropy_coef * entropy * token.regularizer_weight_RxW
  if cfg.kl_coef:
    kl = losses.kl_k3(logp, masked(ref_logp))
    value += cfg.kl_coef * kl * token.regularizer_weight_RxW
    sums["kl"] = total(kl)
  return total(value), sums | {"loss": total(value)}


def with_kernel(model: decoder.Transformer, cfg: LossConfig, length: int):
  """The model with the update's remat and kernel of attention.

  `length` is of a row with its prompt. InputError as of attention.choose.
  """
  return model.clone(remat=cfg.remat, attention=attention.choose(
      cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
      precision=cfg.precision, length=length, knob="recipe.loss.attention"))


def make_gradient(bare: decoder.Transformer, cfg: LossConfig, lora):
  """gradient(trained, base, batch, temperature) -> (gradient, sums)."""
  dtype = jnp.dtype(cfg.dtype)
  # A cast in the forward casts the gradient in the backward.
  reduced = lambda x: x.astype(cfg.reduce_dtype)

  def gradient(trained, base, batch: Batch, temperature):
    model = with_kernel(bare, cfg, batch.prompts.tokens_PxS.shape[1]
                        + batch.tokens_RxW.shape[1])

    def policy(trained):
      params = jax.tree.map(reduced, lora_lib.merge(
          lora, base, trained, precision=cfg.precision))
      return (chunked_head.hidden_states(model, params, batch, dtype),
              decoder.head_weight(params, model.cfg))

    def term(hidden, weight, rest):
      mask, token, ref_hidden = rest
      measure = lambda hidden, weight: losses.logp_and_entropy(
          decoder.logits(hidden, weight, model.cfg), token.tokens_RxW,
          temperature=temperature)
      logp, entropy = measure(hidden, weight)
      ref_logp = None
      if cfg.kl_coef:
        ref_logp, _ = measure(ref_hidden, ref_weight)
      return token_loss(logp, ref_logp, entropy, mask, token, cfg)

    (hidden, weight), pull_back = jax.vjp(policy, trained)
    W = batch.tokens_RxW.shape[1]
    ref_weight = cfg.kl_coef and chunked_head.per_block(
        decoder.head_weight(base, model.cfg), dtype, model.mesh)
    rest = (jnp.arange(W)[None] < batch.len_R[:, None],
            batch.replace(prompts=None, slot_R=None, len_R=None),
            chunked_head.hidden_states(model, base, batch, dtype) if cfg.kl_coef
            else None)
    sums, *grads = chunked_head.gradient(term, hidden, weight, rest, mesh=model.mesh)
    return pull_back(tuple(grads))[0], sums

  return gradient


def make_update(model: decoder.Transformer, tx, cfg: LossConfig,
                lora=lora_lib.FULL):
  """The update: a program for a microbatch, one for the optimizer.

  Across devices XLA reduces each microbatch's gradients in cfg.reduce_dtype, in
  which the products that make them are (on CPUs in float32, whatever it is);
  over microbatches, and over chunks of the head, they are summed in float32.

  Returns:
    update(state, base, batches, temperature) -> (state, metrics). The state is
    donated. `base` holds the base policy's parameters, which adapters stand on
    and KL refers to; it is None if there is neither. `batches` are microbatches
    on the devices, maybe none. Metrics are means over the tokens that have a
    gradient, on device; `finite` says whether loss, gradient and new
    parameters are.
  """
  gradient = make_gradient(model, cfg, lora)
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora))
  whole = mesh_lib.replicated(model.mesh)
  names = ("tokens", "logp", "logp_gap", "clip_fraction", "loss",
           *["kl"] * bool(cfg.kl_coef))

  def start():
    zeros = lambda tree: jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), tree)
    return (zeros(lora_lib.abstract_trained(model, lora)),
            dict.fromkeys(names, jnp.float32(0)))

  def accumulate(trained, base, carry, batch: Batch, temperature):
    return jax.tree.map(
        jnp.add, carry, gradient(trained, base, batch, temperature))

  def apply(state: TrainState, carry):
    grads, sums = carry
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    tokens, value = sums.pop("tokens"), sums.pop("loss")
    metrics = jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), sums)
    grad_norm = optax.tree.norm(grads)
    metrics |= {"loss": value, "grad_norm": grad_norm, "finite": jnp.isfinite(
        value + grad_norm + optax.tree.norm(params))}
    return TrainState(state.step + 1, params, opt_state), metrics

  carried = (shardings.params, whole)
  start = jax.jit(start, out_shardings=carried)
  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  accumulate = jax.jit(precision_lib.traced(accumulate, precision),
                       donate_argnums=2, out_shardings=carried)
  apply = jax.jit(apply, donate_argnums=0, out_shardings=(shardings, whole))

  def update(state: TrainState, base, batches: list[Batch], temperature):
    carry = start()
    for batch in batches:
      carry = accumulate(state.params, base, carry, batch, temperature)
    return apply(state, carry)

  update.programs = (start, accumulate, apply)
  return update
