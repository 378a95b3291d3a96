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
from isojax.rl import algorithm
from isojax.rl import chunked_head
from isojax.rl import losses
from isojax.rl import objective
from isojax.rl import packing
from isojax.rl.objective import LossConfig
from isojax.types import Batch, Prompts, Rollouts, TrainState


BATCHES = ("sampled", "trained", "update")  # Bp n, Bp m, Bp m / minibatches


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a constant learning rate after a linear warm-up."""

  base_lr: float  # at B = base_batch
  base_batch: int  # rollouts of the anchor; lr ~ sqrt(rollouts / base_batch)
  # Which rollouts of a step the square-root rule counts: a key of BATCHES.
  batch: str = dataclasses.field(metadata={"neutral": "sampled"})
  warmup_steps: int  # updates
  b1: float
  b2: float
  eps: float
  weight_decay: float
  clip_norm: float  # global gradient norm

  def __post_init__(self):
    if self.batch not in BATCHES:
      raise InputError(f"optimizer.batch={self.batch!r}: expected one of "
                       f"{', '.join(BATCHES)}")
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


def assemble(prompts: Prompts, rollouts: Rollouts, columns: dict, *, n: int,
             G: int, cfg: LossConfig) -> list[Batch]:
  """Returns the microbatches of an update; none if no rollout has a gradient.

  Args:
    prompts: host arrays, one prompt per problem.
    rollouts: host arrays, problem-major.
    columns: name -> numbers [B] or [B, T], see isojax.rl.algorithm;
      behavior_logp is added.
    n: rollouts of each problem.
    G: blocks of a microbatch.
    cfg: the loss.
  """
  columns = {"behavior_logp": rollouts.behavior_logp_RxT, **columns}
  return [packing.batch(layout, prompts, rollouts, columns)
          for layout in layouts(
              prompts, rollouts,
              algorithm.used(columns, regularized=cfg.regularized), n=n, G=G,
              cfg=cfg)]


def layouts(prompts: Prompts, rollouts: Rollouts, used_B, *, n: int, G: int,
            cfg: LossConfig) -> list[packing.Layout]:
  """Returns the layouts of the microbatches; see packing.layouts."""
  return packing.layouts(
      rollouts.len_R, used_B, n=n, T=rollouts.tokens_RxT.shape[1],
      S=prompts.tokens_PxS.shape[1], G=G, tokens=cfg.microbatch_tokens)


def place(batch: Batch, mesh) -> Batch:
  """Returns a microbatch on the devices, sharded by rows."""
  return mesh_lib.place(batch, mesh_lib.row_sharding(mesh))


def with_kernel(model: decoder.Transformer, cfg: LossConfig, length: int):
  """Returns the model with the update's remat, attention kernel and head.

  Args:
    length: tokens of a row with its prompt.

  Raises:
    InputError: as attention.choose.
  """
  return model.clone(
      remat=cfg.remat, head_dtype=cfg.head_dtype, attention=attention.choose(
          cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
          precision=cfg.precision, length=length, knob="recipe.loss.attention"))


def make_gradient(bare: decoder.Transformer, cfg: LossConfig, lora):
  """Returns gradient(trained, base, batch, temperature) -> (gradient, sums)."""
  dtype = jnp.dtype(cfg.dtype)

  def gradient(trained, base, batch: Batch, temperature):
    model = with_kernel(bare, cfg, row_length(batch))
    measure = measuring(model, temperature)

    def policy(trained):
      params = policy_params(bare, base, trained, cfg, lora)
      return (chunked_head.hidden_states(model, params, batch, dtype),
              decoder.head_weight(params, model.cfg))

    def term(hidden, weight, rest):
      token, ref_hidden = rest
      logp, entropy = measure(hidden, weight, token.tokens_RxW)
      ref_logp = None
      if cfg.kl_in_loss:
        ref_logp, _ = measure(ref_hidden, ref_weight, token.tokens_RxW)
      return objective.token_loss(logp, ref_logp, entropy, token, cfg)

    (hidden, weight), pull_back = jax.vjp(policy, trained)
    ref_weight = ref_hidden = None
    if cfg.kl_in_loss:
      ref_weight = chunked_head.per_block(
          decoder.head_weight(base, model.cfg), hidden.dtype, model.mesh)
      ref_hidden = chunked_head.hidden_states(model, base, batch, dtype)
    if cfg.whole_answers:
      logp, _ = chunked_head.mapped(measure, hidden, weight, batch.tokens_RxW,
                                    mesh=model.mesh)
      batch = batch.replace(columns=batch.columns | (
          objective.whole_answer_columns(logp, batch, cfg)))
    rest = (batch.replace(prompts=None, slot_R=None), ref_hidden)
    sums, *grads = chunked_head.gradient(
        term, hidden, weight, rest, mesh=model.mesh)
    return pull_back(tuple(grads))[0], sums

  return gradient


def row_length(batch: Batch) -> int:
  """Returns the tokens of a row with its prompt."""
  return batch.prompts.tokens_PxS.shape[1] + batch.tokens_RxW.shape[1]


def policy_params(model: decoder.Transformer, base, trained, cfg: LossConfig,
                  lora):
  """Returns the policy's parameters, whose gradients are in reduce_dtype.

  The gradient of a float32 head is in float32.
  """
  name = decoder.head_name(model.cfg)

  def reduced(path, x):  # casts in a forward cast the gradient in the backward
    wide = cfg.head_dtype and path[-1].key == name
    return x.astype(cfg.head_dtype if wide else cfg.reduce_dtype)

  return jax.tree.map_with_path(reduced, lora_lib.merge(
      lora, base, trained, precision=cfg.precision))


def measuring(model: decoder.Transformer, temperature):
  """Returns measure(hidden, weight, tokens) -> (logp, entropy), [R, c] each."""
  logits = precision_lib.of_head(decoder.logits, model.head_dtype)

  def measure(hidden, weight, tokens_RxW):
    return losses.logp_and_entropy(
        logits(hidden, weight, model.cfg), tokens_RxW, temperature=temperature)

  return measure


def make_score(bare: decoder.Transformer, cfg: LossConfig,
               names: tuple[str, ...], lora=lora_lib.FULL):
  """Returns score(trained, base, batch, temperature) -> {name: [R, W]}.

  One forward pass for each name, without gradient. Every process gets whole
  arrays.

  Args:
    bare: the model.
    cfg: the loss; its dtype, precision and attention are those of the update.
    names: of isojax.rl.algorithm.scored_columns.
    lora: the adapters.
  """
  dtype = jnp.dtype(cfg.dtype)

  def score(trained, base, batch: Batch, temperature):
    model = with_kernel(bare, cfg, row_length(batch))
    params = {"old_logp": lambda: policy_params(bare, base, trained, cfg, lora),
              "ref_logp": lambda: base}

    def logp(name):
      weights = params[name]()
      return chunked_head.mapped(
          measuring(model, temperature),
          chunked_head.hidden_states(model, weights, batch, dtype),
          decoder.head_weight(weights, model.cfg), batch.tokens_RxW,
          mesh=model.mesh)[0]

    return {name: logp(name) for name in names}

  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  return jax.jit(precision_lib.traced(score, precision),
                 out_shardings=mesh_lib.replicated(bare.mesh))


def make_update(model: decoder.Transformer, tx, cfg: LossConfig,
                lora=lora_lib.FULL):
  """Returns the update: one program per microbatch, one for the optimizer.

  Across devices XLA sums the gradients of a microbatch in cfg.reduce_dtype,
  the dtype of the products that make them (on CPUs always in float32). Over
  microbatches, and over chunks of the head, they are summed in float32.

  Returns:
    update(state, base, batches, temperature, lr_factor) -> (state, metrics).
    The state is donated. `base` holds the base policy's parameters, which
    adapters are added to and KL refers to; None if there is neither. `batches`
    are microbatches on the devices. The optimizer's change of the parameters is
    multiplied by the float32 lr_factor; None: no program multiplies it. Without any, which is without any token that has a gradient,
    the optimizer is skipped: its state and the parameters stay as they are,
    and only state.step rises. Metrics are means over the tokens that have a
    gradient; `finite` says whether loss, gradient and new parameters are.
  """
  gradient = make_gradient(model, cfg, lora)
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract_state(model, tx, lora))
  whole = mesh_lib.replicated(model.mesh)
  names = ("tokens", "logp", "logp_gap", "clip_fraction", "loss",
           *["kl"] * cfg.kl_in_loss)

  def start():
    return (jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                         lora_lib.abstract_trained(model, lora)),
            dict.fromkeys(names, jnp.float32(0)))

  def accumulate(trained, base, carry, batch: Batch, temperature):
    return jax.tree.map(
        jnp.add, carry, gradient(trained, base, batch, temperature))

  def apply(state: TrainState, carry, lr_factor=None):
    grads, sums = carry
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    if lr_factor is not None:
      updates = jax.tree.map(lambda x: x * lr_factor, updates)
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

  def update(state: TrainState, base, batches: list[Batch], temperature,
             lr_factor=None):
    if not batches:
      return skip(state)
    carry = start()
    for batch in batches:
      carry = accumulate(state.params, base, carry, batch, temperature)
    return apply(state, carry, lr_factor)

  update.programs = (start, accumulate, apply)
  return update
