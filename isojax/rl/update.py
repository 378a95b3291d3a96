"""The sharded update: (state, base, microbatches) -> (state, metrics)."""

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
from isojax.rl import chunked_head
from isojax.rl import losses
from isojax.rl import objective
from isojax.rl import packing
from isojax.rl.objective import LossConfig
from isojax.types import Batch, Prompts, Rollouts, TrainState


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
  """Returns AdamW behind a clip of the gradient's global norm.

  Args:
    schedule: the number of optimizer steps made -> learning rate.
  """
  return optax.chain(
      optax.clip_by_global_norm(cfg.clip_norm),
      optax.adamw(schedule, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
                  weight_decay=cfg.weight_decay))


def warmup_then_constant(lr: float, steps: int):
  """Returns a schedule: linear from lr / steps to lr, then constant."""
  def schedule(step):
    return lr * jnp.minimum(1.0, (step + 1) / max(1, steps))

  return schedule


def abstract_state(model: decoder.Transformer, tx,
                   lora=lora_lib.FULL) -> TrainState:
  """Returns shapes and shardings of the train state; also to restore into."""
  params = lora_lib.abstract_trained(model, lora)
  whole = mesh_lib.replicated(model.mesh)

  def like(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  opt_state = optax.tree_utils.tree_map_params(
      tx, lambda x, param: like(x, param.sharding),
      jax.eval_shape(tx.init, params), params,
      transform_non_params=lambda x: like(x, whole))
  return TrainState(
      jax.ShapeDtypeStruct((), jnp.int32, sharding=whole), params, opt_state)


def init_state(model: decoder.Transformer, tx, params,
               lora=lora_lib.FULL) -> TrainState:
  """Returns the state of step 0. The trained parameters are donated."""
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora))
  return jax.jit(
      lambda params: TrainState(jnp.int32(0), params, tx.init(params)),
      out_shardings=shardings, donate_argnums=0)(params)


def assemble(prompts: Prompts, rollouts: Rollouts, advantage_B, policy_weight_B,
             regularizer_weight_B, *, n: int, G: int,
             cfg: LossConfig) -> list[Batch]:
  """Returns the microbatches of an update; see packing.assemble."""
  return packing.assemble(
      prompts, rollouts, advantage_B, policy_weight_B, regularizer_weight_B,
      n=n, G=G, tokens=cfg.microbatch_tokens, regularized=cfg.regularized)


def place(batch: Batch, mesh) -> Batch:
  """Returns a microbatch on the devices, sharded by rows."""
  return mesh_lib.place(batch, mesh_lib.row_sharding(mesh))


def with_kernel(model: decoder.Transformer, cfg: LossConfig, length: int):
  """Returns the model with the update's remat and attention kernel.

  Args:
    length: tokens of a row with its prompt.

  Raises:
    InputError: as attention.choose.
  """
  return model.clone(remat=cfg.remat, attention=attention.choose(
      cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
      precision=cfg.precision, length=length, knob="recipe.loss.attention"))


def make_gradient(bare: decoder.Transformer, cfg: LossConfig, lora):
  """Returns gradient(trained, base, batch, temperature) -> (gradient, sums)."""
  dtype = jnp.dtype(cfg.dtype)

  def reduced(x):  # a cast in the forward casts the gradient in the backward
    return x.astype(cfg.reduce_dtype)

  def gradient(trained, base, batch: Batch, temperature):
    W = batch.tokens_RxW.shape[1]
    model = with_kernel(bare, cfg, batch.prompts.tokens_PxS.shape[1] + W)

    def policy(trained):
      params = jax.tree.map(reduced, lora_lib.merge(
          lora, base, trained, precision=cfg.precision))
      return (chunked_head.hidden_states(model, params, batch, dtype),
              decoder.head_weight(params, model.cfg))

    def measure(hidden, weight, token: Batch):
      return losses.logp_and_entropy(
          decoder.logits(hidden, weight, model.cfg), token.tokens_RxW,
          temperature=temperature)

    def term(hidden, weight, rest):
      mask, token, ref_hidden = rest
      logp, entropy = measure(hidden, weight, token)
      ref_logp = None
      if cfg.kl_coef:
        ref_logp, _ = measure(ref_hidden, ref_weight, token)
      return objective.token_loss(logp, ref_logp, entropy, mask, token, cfg)

    (hidden, weight), pull_back = jax.vjp(policy, trained)
    ref_weight = ref_hidden = None
    if cfg.kl_coef:
      ref_weight = chunked_head.per_block(
          decoder.head_weight(base, model.cfg), dtype, model.mesh)
      ref_hidden = chunked_head.hidden_states(model, base, batch, dtype)
    rest = (jnp.arange(W)[None] < batch.len_R[:, None],
            batch.replace(prompts=None, slot_R=None, len_R=None), ref_hidden)
    sums, *grads = chunked_head.gradient(
        term, hidden, weight, rest, mesh=model.mesh)
    return pull_back(tuple(grads))[0], sums

  return gradient


def make_update(model: decoder.Transformer, tx, cfg: LossConfig,
                lora=lora_lib.FULL):
  """Returns the update: one program per microbatch, one for the optimizer.

  Across devices XLA sums the gradients of a microbatch in cfg.reduce_dtype,
  the dtype of the products that make them (on CPUs always in float32). Over
  microbatches, and over chunks of the head, they are summed in float32.

  Returns:
    update(state, base, batches, temperature) -> (state, metrics). The state is
    donated. `base` holds the base policy's parameters, which adapters are added
    to and KL refers to; None if there is neither. `batches` are microbatches on
    the devices. Without any, which is without any token that has a gradient,
    the optimizer is skipped: its state and the parameters stay as they are,
    and only state.step rises. Metrics are means over the tokens that have a
    gradient; `finite` says whether loss, gradient and new parameters are.
  """
  gradient = make_gradient(model, cfg, lora)
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora))
  whole = mesh_lib.replicated(model.mesh)
  names = ("tokens", "logp", "logp_gap", "clip_fraction", "loss",
           *["kl"] * bool(cfg.kl_coef))

  def start():
    return (jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                         lora_lib.abstract_trained(model, lora)),
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

  def skip(state: TrainState):
    metrics = dict.fromkeys((*names, "grad_norm"), jnp.float32(0))
    del metrics["tokens"]
    return state.replace(step=state.step + 1), metrics | {
        "finite": jnp.bool_(True)}

  carried = (shardings.params, whole)
  start = jax.jit(start, out_shardings=carried)
  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  accumulate = jax.jit(precision_lib.traced(accumulate, precision),
                       donate_argnums=2, out_shardings=carried)
  apply = jax.jit(apply, donate_argnums=0, out_shardings=(shardings, whole))
  skip = jax.jit(skip, donate_argnums=0, out_shardings=(shardings, whole))

  def update(state: TrainState, base, batches: list[Batch], temperature):
    if not batches:
      return skip(state)
    carry = start()
    for batch in batches:
      carry = accumulate(state.params, base, carry, batch, temperature)
    return apply(state, carry)

  update.programs = (start, accumulate, apply)
  return update
