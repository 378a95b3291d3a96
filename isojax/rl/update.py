"""The sharded update, and the scoring of columns before it.

`base` holds the parameters of the base policy, which adapters are added to and
the KL refers to; it is None if there is neither.
"""

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
from isojax.types import (
  Batch,
  CriticState,
  Prompts,
  Rollouts,
  TrainState,
  UpdateScalars,
)


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

  `length`: tokens of a row and its prompt. Raises the InputError of
  attention.choose.
  """
  return model.clone(
      remat=cfg.remat, head_dtype=cfg.head_dtype, attention=attention.choose(
          cfg, model, length=length, knob="recipe.loss.attention"))


def _for_batch(model: decoder.Transformer, cfg: LossConfig, batch: Batch):
  return with_kernel(model, cfg, batch.prompts.tokens_PxS.shape[1]
                     + batch.tokens_RxW.shape[1])


def make_gradient(bare: decoder.Transformer, cfg: LossConfig, lora,
                  critic: Critic | None = None):
  """Returns gradient(trained, base, batch, temperature) -> (grads, sums).

  `bare` is the model before `with_kernel`. `trained` is the result of
  `policy_and_critic`, and `grads` are a pair like it.

  The gradient has two halves: that of the loss to the hidden states and the
  head, by chunks of tokens (`head_lib.gradient_by_chunks` of `token_loss`), is
  pulled back through the layers.
  """
  dtype = jnp.dtype(cfg.dtype)

  def gradient(trained, base, batch: Batch, temperature):
    policy, critic_params = trained
    model = _for_batch(bare, cfg, batch)
    logp_fn = make_logp_fn(model, temperature)

    def forward(policy):
      params = policy_params(bare, base, policy, cfg, lora)
      return (head_lib.hidden_states(model, params, batch, dtype),
              decoder.head_weight(params, model.cfg))

    (hidden, weight), pull_back = jax.vjp(forward, policy)
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

    def term(hidden_RxcxD, weight_GxVxD, rest):
      chunk, ref_hidden_RxcxD = rest
      logp, entropy = logp_fn(hidden_RxcxD, weight_GxVxD, chunk.tokens_RxW)
      ref_logp = None
      if cfg.kl_in_loss:
        ref_logp, _ = logp_fn(ref_hidden_RxcxD, ref_weight, chunk.tokens_RxW)
      return objective.token_loss(logp, ref_logp, entropy, chunk, cfg)

    # Only arrays with one value per token can be cut into chunks.
    rest = (batch.replace(prompts=None, slot_R=None), ref_hidden)
    sums, grad_hidden, grad_weight = head_lib.gradient_by_chunks(
        term, hidden, weight, rest, mesh=model.mesh)
    grad_critic = None
    if critic:
      grad_critic, grad_shared, critic_sums = critic_lib.value_gradient(
          model, critic_params, hidden, base, batch, cfg, critic.cfg, lora)
      grad_hidden, sums = grad_hidden + grad_shared, sums | critic_sums
    (grad_policy,) = pull_back((grad_hidden, grad_weight))
    return (grad_policy, grad_critic), sums

  return gradient


def policy_params(model: decoder.Transformer, base, params, cfg: LossConfig,
                  lora):
  """All parameters of the policy, from its trained `params`.

  They are in reduce_dtype, the head in head_dtype if that is set, so that the
  backward computes their gradients in the same dtype.
  """
  name = decoder.head_name(model.cfg)

  def cast(path, x):
    wide = cfg.head_dtype and path[-1].key == name
    return x.astype(cfg.head_dtype if wide else cfg.reduce_dtype)

  return jax.tree.map_with_path(cast, lora_lib.merge(
      lora, base, params, compute=cfg.dtype, precision=cfg.precision))


def make_logp_fn(model: decoder.Transformer, temperature):
  """Returns logp_fn(hidden, weight, tokens) -> (logp, entropy), [R, c] each."""
  logits = precision_lib.traced_head(decoder.logits, model.head_dtype)

  def logp_fn(hidden, weight, tokens_RxW):
    return losses.logp_and_entropy(
        logits(hidden, weight, model.cfg), tokens_RxW, temperature=temperature)

  return logp_fn


def make_score(bare: decoder.Transformer, cfg: LossConfig,
               names: tuple[str, ...], lora=lora_lib.FULL,
               critic: Critic | None = None):
  """Returns score(state, base, batch, temperature) -> {name: [R, W]}.

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
      critic_params = state.critic.params
      if critic.own:
        hidden = critic_lib.own_hidden(
            model, critic_params, base, batch, cfg, lora)
      columns["value"] = critic_lib.values(hidden, critic_params["value"])
    return columns

  precision = precision_lib.precision_for(cfg.precision, cfg.dtype)
  return jax.jit(precision_lib.traced(score, precision),
                 out_shardings=mesh_lib.replicated(bare.mesh))


def policy_and_critic(state: TrainState):
  """What an update trains: the parameters of (policy, critic or None)."""
  return state.params, state.critic and state.critic.params


def make_update(model: decoder.Transformer, tx, cfg: LossConfig,
                lora=lora_lib.FULL, critic: Critic | None = None, *,
                average: bool = False):
  """The update, of three programs: zeros, a microbatch, the optimizer.

  Across devices XLA sums the gradients of a microbatch in cfg.reduce_dtype,
  the dtype of the products that make them (on CPUs always in float32). Over
  microbatches, and over chunks of the head, they are summed in float32.

  Returns:
    update(state, base, batches, scalars) -> (state, metrics).
    The state is donated. `batches` are microbatches on the devices, `scalars`
    are UpdateScalars. If no token has a gradient, there is no microbatch, and
    the optimizer is skipped: its state, the parameters and their average stay
    as they are, and only state.step rises. Metrics are means over the
    microbatches' tokens in the loss, but for `loss`, a sum; `grad_norm`, of the
    policy's gradient; and `finite`, whether loss, gradient and new parameters
    are finite.
  """
  gradient = make_gradient(model, cfg, lora, critic)
  abstract = optimizer_lib.abstract_state(model, tx, lora, critic,
                                          average=average)
  # With "tokens" the keys of objective.token_loss's sums and critic.term's.
  names = ["logp", "logp_gap", "clip_fraction", "loss"]
  if cfg.kl_in_loss:
    names.append("kl")
  if critic:
    names.append("value_loss")

  def start():
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                         policy_and_critic(abstract))
    return zeros, dict.fromkeys(("tokens", *names), jnp.float32(0))

  def accumulate(trained, base, grads_and_sums, batch: Batch, temperature):
    return jax.tree.map(jnp.add, grads_and_sums, gradient(
        trained, base, batch, temperature))

  def apply(state: TrainState, grads_and_sums, scalars: UpdateScalars):
    (grad_policy, grad_critic), sums = grads_and_sums
    params, opt_state = optimizer_lib.stepped(
        tx, grad_policy, state, scalars.lr)
    critic_state = critic and CriticState(*optimizer_lib.stepped(
        critic.tx, grad_critic, state.critic, scalars.critic_lr))
    after = TrainState(
        state.step + 1, params, opt_state, critic_state,
        optimizer_lib.averaged(state.average, params, scalars.average_weight))
    tokens, loss = sums.pop("tokens"), sums.pop("loss")
    grad_norm = optax.tree.norm(grad_policy)
    # Finite only if all three are.
    total = loss + grad_norm + optax.tree.norm(policy_and_critic(after))
    return after, jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), sums) | {
        "loss": loss, "grad_norm": grad_norm, "finite": jnp.isfinite(total)}

  replicated = mesh_lib.replicated(model.mesh)
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  sum_shardings = policy_and_critic(shardings), replicated
  jitted_start = jax.jit(start, out_shardings=sum_shardings)
  jitted_accumulate = jax.jit(
      precision_lib.traced(
          accumulate, precision_lib.precision_for(cfg.precision, cfg.dtype)),
      donate_argnums=2, out_shardings=sum_shardings)
  jitted_apply = jax.jit(apply, donate_argnums=0,
                         out_shardings=(shardings, replicated))

  def update(state: TrainState, base, batches: list[Batch],
             scalars: UpdateScalars):
    if not batches:
      zeros = dict.fromkeys((*names, "grad_norm"), np.float32(0))
      return state.replace(step=state.step + 1), zeros | {
          "finite": np.bool_(True)}
    grads_and_sums = jitted_start()
    for batch in batches:
      grads_and_sums = jitted_accumulate(
          policy_and_critic(state), base, grads_and_sums, batch,
          scalars.temperature)
    return jitted_apply(state, grads_and_sums, scalars)

  # For tests and measurements.
  update.programs = jitted_start, jitted_accumulate, jitted_apply
  return update
