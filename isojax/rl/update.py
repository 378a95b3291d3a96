"""The sharded update: (state, base, microbatches) -> (state, metrics)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isojax.models import attention, decoder
from isojax.models import lora as lora_lib
from isojax.models import precision as precision_lib
from isojax.rl import algorithm, losses, objective, packing
from isojax.rl import critic as critic_lib
from isojax.rl import head as head_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.rl.loss_config import LossConfig
from isojax.rl.optimizer import Critic
from isojax.runtime import mesh as mesh_lib
from isojax.types import Batch, CriticState, Prompts, Rollouts, TrainState


def assemble(prompts: Prompts, rollouts: Rollouts, columns: dict, *, n, G: int,
             cfg: LossConfig, widest: int | None = None) -> list[Batch]:
  """The microbatches of an update; none if no rollout has a gradient.

  Columns are those of isojax.rl.algorithm, [B] or [B, T]; behavior_logp is
  added. For other arguments see packing.layouts.
  """
  columns = {"behavior_logp": rollouts.behavior_logp_RxT, **columns}
  used_B = algorithm.used(
      columns, regularized=cfg.regularized or "value" in columns)
  return [packing.batch(layout, prompts, rollouts, columns)
          for layout in packing.layouts(prompts, rollouts, used_B, n=n, G=G,
                                        cfg=cfg, widest=widest)]


def place(batch: Batch, mesh) -> Batch:
  """A microbatch on the devices, sharded by rows."""
  return mesh_lib.place(batch, mesh_lib.row_sharding(mesh))


def with_kernel(model: decoder.Transformer, cfg: LossConfig, length: int):
  """The model with the update's remat, attention kernel and head.

  InputError as attention.choose, for rows of `length` tokens with their prompt.
  """
  return model.clone(
      remat=cfg.remat, head_dtype=cfg.head_dtype, attention=attention.choose(
          cfg, model, length=length, knob="recipe.loss.attention"))


def _for_batch(model: decoder.Transformer, cfg: LossConfig, batch: Batch):
  return with_kernel(model, cfg, batch.prompts.tokens_PxS.shape[1]
                     + batch.tokens_RxW.shape[1])


def make_gradient(bare: decoder.Transformer, cfg: LossConfig, lora,
                  critic: Critic | None = None):
  """gradient(trainable, base, batch, temperature) -> (gradient, sums).

  `trainable` is the result of `trainable_params`. With a shared critic the
  value loss, times its coefficient, is part of the loss.
  """
  dtype = jnp.dtype(cfg.dtype)

  def gradient(trainable, base, batch: Batch, temperature):
    trained, valued = trainable
    model = _for_batch(bare, cfg, batch)
    logp_fn = make_logp_fn(model, temperature)

    def policy(trained):
      params = policy_params(bare, base, trained, cfg, lora)
      return (head_lib.hidden_states(model, params, batch, dtype),
              decoder.head_weight(params, model.cfg))

    def term(hidden, weight, rest):
      token, ref_hidden = rest
      logp, entropy = logp_fn(hidden, weight, token.tokens_RxW)
      ref_logp = None
      if cfg.kl_in_loss:
        ref_logp, _ = logp_fn(ref_hidden, ref_weight, token.tokens_RxW)
      return objective.token_loss(logp, ref_logp, entropy, token, cfg)

    def value_term(hidden, valued):
      value, sums = critic_lib.term(
          hidden, valued["value"], batch, critic.cfg.clip)
      return critic.cfg.coef * value, sums

    (hidden, weight), pull_back = jax.vjp(policy, trained)
    ref_weight = ref_hidden = None
    if cfg.kl_in_loss:
      ref_weight = head_lib.per_block(
          decoder.head_weight(base, model.cfg), hidden.dtype, model.mesh)
      ref_hidden = head_lib.hidden_states(model, base, batch, dtype)
    if cfg.whole_answers:
      logp, _ = head_lib.mapped(logp_fn, hidden, weight, batch.tokens_RxW,
                                mesh=model.mesh)
      batch = batch.replace(columns=batch.columns | (
          objective.whole_answer_columns(logp, batch, cfg)))
    rest = (batch.replace(prompts=None, slot_R=None), ref_hidden)
    sums, grad_hidden, grad_weight = head_lib.gradient(
        term, hidden, weight, rest, mesh=model.mesh)
    grad_valued = None
    if critic:
      (grad, grad_valued), more = jax.grad(
          value_term, argnums=(0, 1), has_aux=True)(hidden, valued)
      grad_hidden, sums = grad_hidden + grad, sums | more
    return (pull_back((grad_hidden, grad_weight))[0], grad_valued), sums

  return gradient


def policy_params(model: decoder.Transformer, base, trained, cfg: LossConfig,
                  lora):
  """The policy's parameters; gradients are in reduce_dtype or head_dtype."""
  name = decoder.head_name(model.cfg)

  def reduced(path, x):  # casts in a forward cast the gradient in the backward
    wide = cfg.head_dtype and path[-1].key == name
    return x.astype(cfg.head_dtype if wide else cfg.reduce_dtype)

  return jax.tree.map_with_path(reduced, lora_lib.merge(
      lora, base, trained, precision=cfg.precision))


def make_logp_fn(model: decoder.Transformer, temperature):
  """logp_fn(hidden, weight, tokens) -> (logp, entropy), [R, c] each."""
  logits = precision_lib.of_head(decoder.logits, model.head_dtype)

  def logp_fn(hidden, weight, tokens_RxW):
    return losses.logp_and_entropy(
        logits(hidden, weight, model.cfg), tokens_RxW, temperature=temperature)

  return logp_fn


def make_score(bare: decoder.Transformer, cfg: LossConfig,
               names: tuple[str, ...], lora=lora_lib.FULL,
               critic: Critic | None = None):
  """score(state, base, batch, temperature) -> {name: [R, W]}.

  The names are those of isojax.rl.algorithm.scored_columns. One forward pass
  for each name, without gradient; values of a shared critic come from the pass
  of `old_logp`, if there is one. Every process gets whole arrays.
  """
  dtype = jnp.dtype(cfg.dtype)

  def score(state: TrainState, base, batch: Batch, temperature):
    model = _for_batch(bare, cfg, batch)

    def forward(params):
      return head_lib.hidden_states(model, params, batch, dtype)

    def logp(params, hidden):
      return head_lib.mapped(
          make_logp_fn(model, temperature), hidden,
          decoder.head_weight(params, model.cfg), batch.tokens_RxW,
          mesh=model.mesh)[0]

    columns = {}
    if "old_logp" in names or critic and not critic.own:
      policy = policy_params(bare, base, state.params, cfg, lora)
      hidden = forward(policy)
    if "old_logp" in names:
      columns["old_logp"] = logp(policy, hidden)
    if "ref_logp" in names:
      columns["ref_logp"] = logp(base, forward(base))
    if "value" in names:
      valued = state.critic.params
      if critic.own:
        hidden = critic_lib.own_hidden(model, valued, base, batch, cfg, lora)
      columns["value"] = critic_lib.values(hidden, valued["value"])
    return columns

  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  return jax.jit(precision_lib.traced(score, precision),
                 out_shardings=mesh_lib.replicated(bare.mesh))


def trainable_params(state: TrainState, critic: Critic | None):
  """What the policy's program trains: (policy, shared critic or None)."""
  return state.params, (
      state.critic.params if critic and not critic.own else None)


def make_update(model: decoder.Transformer, tx, cfg: LossConfig,
                lora=lora_lib.FULL, critic: Critic | None = None):
  """The update: one program per microbatch, one for the optimizer.

  Across devices XLA sums the gradients of a microbatch in cfg.reduce_dtype,
  the dtype of the products that make them (on CPUs always in float32). Over
  microbatches, and over chunks of the head, they are summed in float32.
  A critic with a trunk of its own is updated after the policy, by programs of
  its own, so that the two never need memory for gradients together.

  Returns:
    update(state, base, batches, temperature) -> (state, metrics).
    The state is donated. `base` holds the base policy's parameters, which
    adapters are added to and KL refers to; None if there is neither. `batches`
    are microbatches on the devices.
    Without any microbatch, which is without any token that has a gradient, the
    optimizer is skipped: its state and the parameters stay as they are, and
    only state.step rises. Metrics are means over the tokens that have a
    gradient; `finite` says whether loss, gradient and new parameters are.
  """
  own = critic if critic and critic.own else None
  shared = None if own else critic
  programs = _policy_programs(model, tx, cfg, lora, shared)
  own_programs = own and _critic_programs(model, cfg, lora, own)

  def run(programs, state, trained, base, batches, *temperature):
    start, accumulate, apply = programs
    carry = start()
    for batch in batches:
      carry = accumulate(trained, base, carry, batch, *temperature)
    return apply(state, carry)

  def update(state: TrainState, base, batches: list[Batch], temperature):
    if not batches:
      zeros = dict.fromkeys((*_sums(cfg, critic), "grad_norm"), np.float32(0))
      return state.replace(step=state.step + 1), zeros | {
          "finite": np.bool_(True)}
    valued = state.critic
    state, metrics = run(
        programs, state.replace(critic=None) if own else state,
        trainable_params(state, shared), base, batches, temperature)
    if own:
      valued, more = run(
          own_programs, valued, valued.params, base, batches)
      state = state.replace(critic=valued)
      metrics |= more | {"finite": metrics["finite"] & more["finite"]}
    return state, metrics

  update.programs, update.own_programs = programs, own_programs
  return update


def _sums(cfg: LossConfig, critic) -> tuple[str, ...]:
  """The sums over tokens that are metrics, beside the number of tokens."""
  return ("logp", "logp_gap", "clip_fraction", "loss",
          *["kl"] * cfg.kl_in_loss, *["value_loss"] * bool(critic))


def _programs(gradient, apply, trained, state, sums, cfg: LossConfig, mesh):
  """The jitted start, accumulate and apply of an update.

  Gradients and sums start at zero, a microbatch is added to them, and the
  optimizer applies them. Carry and state are donated.

  Args:
    gradient: (trained, base, batch, ...) -> (gradients, sums).
    apply: (state, carry) -> (state, metrics).
    trained, state: shapes and shardings of what is trained, and of the state.
    sums: names of the sums.
  """
  def start():
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), trained), (
        dict.fromkeys(("tokens", *sums), jnp.float32(0)))

  def accumulate(trained, base, carry, *batch):
    return jax.tree.map(jnp.add, carry, gradient(trained, base, *batch))

  whole = mesh_lib.replicated(mesh)
  trained_shardings, state_shardings = jax.tree.map(
      lambda x: x.sharding, (trained, state))
  carried = (trained_shardings, whole)
  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  return (jax.jit(start, out_shardings=carried),
          jax.jit(precision_lib.traced(accumulate, precision),
                  donate_argnums=2, out_shardings=carried),
          jax.jit(apply, donate_argnums=0,
                  out_shardings=(state_shardings, whole)))


def _policy_programs(model: decoder.Transformer, tx, cfg: LossConfig, lora,
                     shared: Critic | None):
  """The programs of the policy, and of a critic that shares its trunk."""
  def apply(state: TrainState, carry):
    (grads, grad_valued), sums = carry
    params, opt_state = optimizer_lib.stepped(tx, grads, state)
    tokens, value = sums.pop("tokens"), sums.pop("loss")
    metrics = jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), sums)
    grad_norm = optax.tree.norm(grads)
    finite, valued = value + grad_norm + optax.tree.norm(params), None
    if shared:
      valued = CriticState(*optimizer_lib.stepped(
          shared.tx, grad_valued, state.critic))
      finite += optax.tree.norm(valued.params)
    metrics |= {"loss": value, "grad_norm": grad_norm,
                "finite": jnp.isfinite(finite)}
    return TrainState(state.step + 1, params, opt_state, valued), metrics

  abstract = optimizer_lib.abstract_state(model, tx, lora, shared)
  return _programs(make_gradient(model, cfg, lora, shared), apply,
                   trainable_params(abstract, shared), abstract,
                   _sums(cfg, shared), cfg, model.mesh)


def _critic_programs(model: decoder.Transformer, cfg: LossConfig, lora,
                     critic: Critic):
  """The programs of a critic with a trunk of its own, on its CriticState."""
  def gradient(params, base, batch: Batch):
    grads, sums = critic_lib.gradient(
        _for_batch(model, cfg, batch), params, base, batch, cfg, critic.cfg,
        lora)
    return grads, sums | {
        "tokens": jnp.sum(batch.mask_RxW, dtype=jnp.float32)}

  def apply(state: CriticState, carry):
    grads, sums = carry
    params, opt_state = optimizer_lib.stepped(critic.tx, grads, state)
    loss = sums["value_loss"] / jnp.maximum(sums["tokens"], 1.0)
    return CriticState(params, opt_state), {
        "value_loss": loss, "finite": jnp.isfinite(
            loss + optax.tree.norm(grads) + optax.tree.norm(params))}

  abstract = optimizer_lib.abstract_state(model, critic.tx, lora, critic).critic
  return _programs(gradient, apply, abstract.params, abstract, ("value_loss",),
                   cfg, model.mesh)
