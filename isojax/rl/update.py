"""The sharded update: (state, base, microbatches) -> (state, metrics)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isojax import mesh as mesh_lib
from isojax.models import attention, decoder
from isojax.models import lora as lora_lib
from isojax.models import precision as precision_lib
from isojax.rl import algorithm, losses, objective, packing
from isojax.rl import critic as critic_lib
from isojax.rl import head as head_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.rl.objective import LossConfig
from isojax.rl.optimizer import Critic
from isojax.types import Batch, CriticState, Prompts, Rollouts, TrainState


def assemble(prompts: Prompts, rollouts: Rollouts, columns: dict, *, n, G: int,
             cfg: LossConfig, widest: int | None = None) -> list[Batch]:
  """The microbatches of an update; none if no rollout has a gradient.

  Args:
    prompts: host arrays, one prompt per problem.
    rollouts: host arrays, problem-major.
    columns: name -> numbers [B] or [B, T], see isojax.rl.algorithm;
      behavior_logp is added.
    n, widest: rollouts of problems, see packing.layouts.
    G: blocks of a microbatch.
    cfg: the loss.
  """
  columns = {"behavior_logp": rollouts.behavior_logp_RxT, **columns}
  return [packing.batch(layout, prompts, rollouts, columns)
          for layout in layouts(
              prompts, rollouts,
              algorithm.used(columns, regularized=(
                  cfg.regularized or "value" in columns)), n=n, G=G, cfg=cfg,
              widest=widest)]


def layouts(prompts: Prompts, rollouts: Rollouts, used_B, *, n, G: int,
            cfg: LossConfig, widest: int | None = None
            ) -> list[packing.Layout]:
  """The layouts of the microbatches; see packing.layouts."""
  return packing.layouts(
      rollouts.len_R, used_B, prompts.len_P, n=n,
      T=rollouts.tokens_RxT.shape[1], S=prompts.tokens_PxS.shape[1], G=G,
      tokens=cfg.microbatch_tokens, prompt_sizes=cfg.prompt_sizes,
      widest=widest)


def place(batch: Batch, mesh) -> Batch:
  """A microbatch on the devices, sharded by rows."""
  return mesh_lib.place(batch, mesh_lib.row_sharding(mesh))


def with_kernel(model: decoder.Transformer, cfg: LossConfig, length: int):
  """The model with the update's remat, attention kernel and head.

  Args:
    length: tokens of a row with its prompt.

  Raises:
    InputError: as attention.choose.
  """
  return model.clone(
      remat=cfg.remat, head_dtype=cfg.head_dtype, attention=attention.choose(
          cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
          precision=cfg.precision, length=length, knob="recipe.loss.attention"))


def make_gradient(bare: decoder.Transformer, cfg: LossConfig, lora,
                  critic: Critic | None = None):
  """gradient(learned, base, batch, temperature) -> (gradient, sums).

  `learned` is what the policy's program trains, see `learned`. With a shared
  critic the value loss, times its coefficient, is part of the loss.
  """
  dtype = jnp.dtype(cfg.dtype)

  def gradient(trained, base, batch: Batch, temperature):
    trained, valued = trained
    model = with_kernel(bare, cfg, row_length(batch))
    measure = measuring(model, temperature)

    def policy(trained):
      params = policy_params(bare, base, trained, cfg, lora)
      return (head_lib.hidden_states(model, params, batch, dtype),
              decoder.head_weight(params, model.cfg))

    def term(hidden, weight, rest):
      token, ref_hidden = rest
      logp, entropy = measure(hidden, weight, token.tokens_RxW)
      ref_logp = None
      if cfg.kl_in_loss:
        ref_logp, _ = measure(ref_hidden, ref_weight, token.tokens_RxW)
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
      logp, _ = head_lib.mapped(measure, hidden, weight, batch.tokens_RxW,
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


def row_length(batch: Batch) -> int:
  """The tokens of a row with its prompt."""
  return batch.prompts.tokens_PxS.shape[1] + batch.tokens_RxW.shape[1]


def policy_params(model: decoder.Transformer, base, trained, cfg: LossConfig,
                  lora):
  """The policy's parameters, whose gradients are in reduce_dtype.

  The gradient of a float32 head is in float32.
  """
  name = decoder.head_name(model.cfg)

  def reduced(path, x):  # casts in a forward cast the gradient in the backward
    wide = cfg.head_dtype and path[-1].key == name
    return x.astype(cfg.head_dtype if wide else cfg.reduce_dtype)

  return jax.tree.map_with_path(reduced, lora_lib.merge(
      lora, base, trained, precision=cfg.precision))


def measuring(model: decoder.Transformer, temperature):
  """measure(hidden, weight, tokens) -> (logp, entropy), [R, c] each."""
  logits = precision_lib.of_head(decoder.logits, model.head_dtype)

  def measure(hidden, weight, tokens_RxW):
    return losses.logp_and_entropy(
        logits(hidden, weight, model.cfg), tokens_RxW, temperature=temperature)

  return measure


def make_score(bare: decoder.Transformer, cfg: LossConfig,
               names: tuple[str, ...], lora=lora_lib.FULL,
               critic: Critic | None = None):
  """score(state, base, batch, temperature) -> {name: [R, W]}.

  One forward pass for each name, without gradient; values of a shared critic
  come from the pass of `old_logp` if there is one. Every process gets whole
  arrays.

  Args:
    bare: the model.
    cfg: the loss; its dtype, precision and attention are those of the update.
    names: of isojax.rl.algorithm.scored_columns.
    lora: the adapters.
    critic: for the name `value`.
  """
  dtype = jnp.dtype(cfg.dtype)

  def score(state: TrainState, base, batch: Batch, temperature):
    model = with_kernel(bare, cfg, row_length(batch))
    policy = lambda: policy_params(bare, base, state.params, cfg, lora)

    @functools.cache
    def forward(decoder_of):
      weights = {"policy": policy, "base": lambda: base}[decoder_of]()
      return weights, head_lib.hidden_states(model, weights, batch, dtype)

    def logp(decoder_of):
      weights, hidden = forward(decoder_of)
      return head_lib.mapped(
          measuring(model, temperature), hidden,
          decoder.head_weight(weights, model.cfg), batch.tokens_RxW,
          mesh=model.mesh)[0]

    def value():
      valued = state.critic.params
      if critic.own:
        return critic_lib.own_values(model, valued, base, batch, cfg, lora)
      return critic_lib.values(forward("policy")[1], valued["value"])

    columns = {"old_logp": lambda: logp("policy"),
               "ref_logp": lambda: logp("base"), "value": value}
    return {name: columns[name]() for name in names}

  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  return jax.jit(precision_lib.traced(score, precision),
                 out_shardings=mesh_lib.replicated(bare.mesh))


def learned(state: TrainState, critic: Critic | None):
  """What the policy's program trains: (policy, shared critic or None).
  """
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
    update(state, base, batches, temperature, lr_factor) -> (state, metrics).
    The state is donated. `base` holds the base policy's parameters, which
    adapters are added to and KL refers to; None if there is neither. `batches`
    are microbatches on the devices. The optimizer's change of the parameters is
    multiplied by the float32 lr_factor; None: no program multiplies it.
    Without any microbatch, which is without any token that has a gradient, the
    optimizer is skipped: its state and the parameters stay as they are, and
    only state.step rises. Metrics are means over the tokens that have a
    gradient; `finite` says whether loss, gradient and new parameters are.
  """
  shared = critic if critic and not critic.own else None
  own = make_own_update(model, cfg, lora, critic) if (
      critic and critic.own) else None
  start, accumulate, apply, skip = _programs(model, tx, cfg, lora, shared)

  def update(state: TrainState, base, batches: list[Batch], temperature,
             lr_factor=None):
    if not batches:
      return skip(state)
    carry = start()
    for batch in batches:
      carry = accumulate(
          learned(state, shared), base, carry, batch, temperature)
    return apply(state, carry, lr_factor)

  def update_both(state: TrainState, base, batches: list[Batch], temperature,
                  lr_factor=None):
    valued = state.critic
    state, metrics = update(
        state.replace(critic=None), base, batches, temperature, lr_factor)
    valued, more = own(valued, base, batches, lr_factor)
    return state.replace(critic=valued), metrics | more | {
        "finite": metrics["finite"] & more["finite"]}

  out = update_both if own else update
  out.programs = (start, accumulate, apply)
  out.own_programs = own and own.programs
  return out


def _programs(model: decoder.Transformer, tx, cfg: LossConfig, lora,
              shared: Critic | None):
  """The programs of `make_update`: start, accumulate, apply, skip.

  Gradients and sums start at zero, a microbatch is added to them, and the
  optimizer applies them; or the optimizer is skipped.

  Args:
    shared: the critic, if the policy's program trains it.
  """
  gradient = make_gradient(model, cfg, lora, shared)
  abstract = optimizer_lib.abstract_state(model, tx, lora, shared)
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  whole = mesh_lib.replicated(model.mesh)
  names = ("tokens", "logp", "logp_gap", "clip_fraction", "loss",
           *["kl"] * cfg.kl_in_loss, *["value_loss"] * bool(shared))

  def start():
    return zeros(learned(abstract, shared)), dict.fromkeys(
        names, jnp.float32(0))

  def accumulate(trained, base, carry, batch: Batch, temperature):
    return jax.tree.map(
        jnp.add, carry, gradient(trained, base, batch, temperature))

  def apply(state: TrainState, carry, lr_factor=None):
    (grads, grad_valued), sums = carry
    params, opt_state = optimizer_lib.stepped(tx, grads, state, lr_factor)
    tokens, value = sums.pop("tokens"), sums.pop("loss")
    metrics = jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), sums)
    grad_norm = optax.tree.norm(grads)
    finite, valued = value + grad_norm + optax.tree.norm(params), None
    if shared:
      valued = CriticState(*optimizer_lib.stepped(
          shared.tx, grad_valued, state.critic, lr_factor))
      finite += optax.tree.norm(valued.params)
    metrics |= {"loss": value, "grad_norm": grad_norm,
                "finite": jnp.isfinite(finite)}
    return TrainState(state.step + 1, params, opt_state, valued), metrics

  def skip(state: TrainState):
    metrics = dict.fromkeys((*names, "grad_norm"), jnp.float32(0))
    del metrics["tokens"]
    return state.replace(step=state.step + 1), metrics | {
        "finite": jnp.bool_(True)}

  return *_jitted(
      start, accumulate, apply, cfg, learned=learned(shardings, shared),
      state=shardings, whole=whole), jax.jit(
          skip, donate_argnums=0, out_shardings=(shardings, whole))


def _jitted(start, accumulate, apply, cfg: LossConfig, *, learned, state,
            whole):
  """The three programs of an update; carry and state are donated.

  Args:
    learned, state: shardings of what is trained, and of the whole state.
    whole: sharding of sums and metrics.
  """
  carried = (learned, whole)
  precision = precision_lib.of_dtype(cfg.precision, cfg.dtype)
  return (jax.jit(start, out_shardings=carried),
          jax.jit(precision_lib.traced(accumulate, precision),
                  donate_argnums=2, out_shardings=carried),
          jax.jit(apply, donate_argnums=0, out_shardings=(state, whole)))


def make_own_update(model: decoder.Transformer, cfg: LossConfig, lora,
                    critic: Critic):
  """update(state, base, batches, lr_factor) -> (state, metrics).

  As `make_update`, for the CriticState of a critic with its own trunk.
  """
  abstract = optimizer_lib.abstract_state(model, critic.tx, lora, critic).critic
  shardings = jax.tree.map(lambda x: x.sharding, abstract)

  def start():
    return zeros(abstract.params), dict.fromkeys(
        ("tokens", "value_loss"), jnp.float32(0))

  def accumulate(params, base, carry, batch: Batch):
    grads, sums = critic_lib.gradient(
        with_kernel(model, cfg, row_length(batch)), params, base, batch, cfg,
        critic.cfg, lora)
    sums["tokens"] = jnp.sum(batch.mask_RxW, dtype=jnp.float32)
    return jax.tree.map(jnp.add, carry, (grads, sums))

  def apply(state: CriticState, carry, lr_factor=None):
    grads, sums = carry
    params, opt_state = optimizer_lib.stepped(
        critic.tx, grads, state, lr_factor)
    loss = sums["value_loss"] / jnp.maximum(sums["tokens"], 1.0)
    return CriticState(params, opt_state), {
        "value_loss": loss, "finite": jnp.isfinite(
            loss + optax.tree.norm(grads) + optax.tree.norm(params))}

  start, accumulate, apply = _jitted(
      start, accumulate, apply, cfg, learned=shardings.params, state=shardings,
      whole=mesh_lib.replicated(model.mesh))

  def update(state: CriticState, base, batches: list[Batch], lr_factor=None):
    if not batches:
      return state, {"value_loss": np.float32(0), "finite": np.bool_(True)}
    carry = start()
    for batch in batches:
      carry = accumulate(state.params, base, carry, batch)
    return apply(state, carry, lr_factor)

  update.programs = (start, accumulate, apply)
  return update


def zeros(abstract):
  """Arrays of zeros with these shapes and dtypes."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), abstract)
