"""The objective of an update, as a sum over tokens.

loss = sum over tokens of policy_weight * importance * policy_loss
                        + regularizer_weight * (kl_coef * KL
                                                - entropy_coef * entropy)

The policy loss is a function of isojax.rl.losses or of the user, see
loss_config. The weights already divide by the whole batch, see aggregation.
"""

import jax
import jax.numpy as jnp

from isojax.rl import losses
from isojax.rl.loss_config import LossConfig
from isojax.types import Batch


def token_loss(logp, ref_logp, entropy, token: Batch, cfg: LossConfig):
  """(loss, sums for the metrics) of c positions of all rows.

  Args:
    logp: of the policy, with gradient; this and the other arrays are [R, c],
      also those whose suffix is RxW.
    ref_logp, entropy: read only if the loss has a KL or entropy term.
    token: the arrays of a Batch that have one value per token; its columns
      include those of `whole_answer_columns` if the config needs them.
  """
  mask, columns = token.mask_RxW, token.columns

  # Masked before any exp: 0 * inf would be NaN in the backward.
  def masked(x):
    return jnp.where(mask, x, 0.0)

  def total(x):
    return jnp.sum(masked(x))

  logp = masked(logp)
  old, behavior = old_and_behavior(logp, mask, columns, cfg)
  log_ratio = losses.token_log_ratio(logp, old)
  if cfg.ratio == "sequence":
    log_ratio = losses.with_gradient_of(columns["sequence_log_ratio"], logp)
  policy_loss = cfg.function("policy_loss", clip_low=cfg.clip_low,
                             clip_high=cfg.clip_high)
  policy, bounded = policy_loss(logp, log_ratio, columns["advantage"])
  if cfg.importance_cap is not None:
    gap = (columns["sequence_gap"] if cfg.importance_level == "sequence"
           else old - behavior)
    weight, capped = losses.importance(gap, cap=cfg.importance_cap)
    policy, bounded = policy * weight, bounded | capped
  loss = policy * columns["policy_weight"]
  sums = {"tokens": jnp.sum(mask, dtype=jnp.float32),
          "logp": total(logp),
          "logp_gap": total(jnp.abs(jax.lax.stop_gradient(logp) - behavior)),
          "clip_fraction": total(bounded.astype(jnp.float32))}
  if cfg.entropy_coef:
    loss -= cfg.entropy_coef * entropy * columns["regularizer_weight"]
  if cfg.kl_in_loss:
    kl = losses.KL_ESTIMATORS[cfg.kl_estimator](logp, masked(ref_logp))
    loss += cfg.kl_coef * kl * columns["regularizer_weight"]
    sums["kl"] = total(kl)
  return total(loss), sums | {"loss": total(loss)}


def old_and_behavior(logp, mask, columns: dict, cfg: LossConfig):
  """The log-probs (old, behavior) of ratios and importance weights.

  Both are 0 outside the mask. With ratio_to="behavior" both are the sampler's.
  Else `old` is the scored column; without that column this is the only update
  of the step, and `old` is logp.
  """
  behavior = jnp.where(mask, columns["behavior_logp"], 0.0)
  if cfg.ratio_to == "behavior":
    return behavior, behavior
  if "old_logp" in columns:
    return jnp.where(mask, columns["old_logp"], 0.0), behavior
  return jax.lax.stop_gradient(logp), behavior


def whole_answer_columns(logp, batch: Batch, cfg: LossConfig) -> dict:
  """The columns that depend on all tokens of an answer, [R, W] each."""
  logp = jnp.where(batch.mask_RxW, logp, 0.0)
  old, behavior = old_and_behavior(logp, batch.mask_RxW, batch.columns, cfg)
  columns = {}
  if cfg.ratio == "sequence":
    columns["sequence_log_ratio"] = losses.sequence_log_ratio(
        logp, old, batch.offset_RxW, batch.mask_RxW)
  if cfg.importance_cap is not None and cfg.importance_level == "sequence":
    columns["sequence_gap"] = losses.answer_sums(
        old - behavior, batch.offset_RxW)
  return columns
