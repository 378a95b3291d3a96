"""Terms of the loss per token: arrays and keyword scalars in, arrays out.

`objective` multiplies each term by the token's weight, masks and sums. Sources:
PPO clip arXiv 1707.06347, dual clip 1912.09729, GSPO 2507.18071, CISPO
2506.13585, KL estimators http://joschu.net/blog/kl-approx.html, truncated
importance sampling as in IsoCompute (arXiv 2603.12151).

A policy loss is a pure function of log-probs, log-ratios and advantages, [R, T]
each. It returns the loss of each token and whether a bound acts on it, [R, T]
each. Its keyword-only arguments are constants of the config
(docs/api.md). The log-ratio has a gradient. It is `token_log_ratio`; GSPO
is `ppo_clip` with `sequence_log_ratio`.
"""

import chex
import jax
import jax.numpy as jnp

LOG_BOUND = 20.0  # nats, of |log-ratio|, as in verl: keeps its exp finite


@jax.named_scope("logp")
def logp_and_entropy(logits_RxTxV, tokens_RxT, *, temperature):
  """Log-prob and entropy (nats) at the sampling temperature: [R, T] each."""
  logp_RxTxV = jax.nn.log_softmax(logits_RxTxV / temperature, axis=-1)
  # A sum, not a gather: a sharded vocabulary stays where it is, and the
  # gradient is no scatter.
  drawn_RxTxV = tokens_RxT[..., None] == jnp.arange(
      logp_RxTxV.shape[-1])[None, None]
  logp_RxT = jnp.sum(jnp.where(drawn_RxTxV, logp_RxTxV, 0.0), axis=-1)
  entropy_RxT = -jnp.sum(jnp.exp(logp_RxTxV) * logp_RxTxV, axis=-1)
  return logp_RxT, entropy_RxT


def token_log_ratio(logp_RxT, old_logp_RxT):
  """logp - old, bounded to +-LOG_BOUND."""
  return jnp.clip(logp_RxT - old_logp_RxT, -LOG_BOUND, LOG_BOUND)


def with_gradient_of(value, source):
  """A value that has no gradient, with that of `source`: straight-through."""
  return value + (source - jax.lax.stop_gradient(source))


def answer_sums(x_RxW, offset_RxW):
  """The sum over each token's answer, at all tokens of the answer.

  A row packs several answers; an answer begins where the offset is 0. Padding
  has offset 0 too, so each of its tokens is summed alone. The bits of a sum do
  not depend on the answers before it in the row, unlike a difference of
  cumulative sums. No operation mixes rows, so rows may be sharded.
  """
  chex.assert_equal_shape([x_RxW, offset_RxW])
  first_RxW = offset_RxW == 0
  last_RxW = jnp.concatenate(
      [first_RxW[:, 1:], jnp.ones_like(first_RxW[:, :1])], axis=1)

  def add(before, after):
    start, total = after
    return before[0] | start, jnp.where(start, total, before[1] + total)

  def spread(after, before):
    end, total = before
    return after[0] | end, jnp.where(end, total, after[1])

  # Sums up to each token of an answer; then the last sum at all its tokens.
  _, sum_RxW = jax.lax.associative_scan(add, (first_RxW, x_RxW), axis=1)
  return jax.lax.associative_scan(
      spread, (last_RxW, sum_RxW), axis=1, reverse=True)[1]


def sequence_log_ratio(logp_RxW, old_logp_RxW, offset_RxW, mask_RxW):
  """log s, with the gradient of logp, bounded to +-LOG_BOUND.

  log s is the mean of logp - old over the answer's tokens in the mask, so s is
  the geometric mean of the tokens' ratios. All tokens of an answer have the
  same value, and each has the gradient of its own logp.
  """
  gap_RxW = jnp.where(mask_RxW, jax.lax.stop_gradient(logp_RxW - old_logp_RxW),
                      0.0)
  mean_RxW = answer_sums(gap_RxW, offset_RxW) / jnp.maximum(
      answer_sums(mask_RxW.astype(gap_RxW.dtype), offset_RxW), 1.0)
  return jnp.clip(with_gradient_of(mean_RxW, logp_RxW), -LOG_BOUND, LOG_BOUND)


def reinforce(logp_RxT, log_ratio_RxT, advantage_RxT):
  """REINFORCE: -A logp; no token is bounded."""
  del log_ratio_RxT
  return -advantage_RxT * logp_RxT, jnp.zeros_like(logp_RxT, bool)


def ppo_clip(logp_RxT, log_ratio_RxT, advantage_RxT, *, clip_low, clip_high):
  """PPO's clipped loss, -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

  r = exp(log-ratio). In a strictly on-policy update r is 1 and the gradient is
  that of REINFORCE, -A grad logp, for any clip. DAPO (arXiv 2503.14476) has
  clip_high > clip_low.
  """
  chex.assert_equal_shape([logp_RxT, log_ratio_RxT, advantage_RxT])
  ratio = jnp.exp(log_ratio_RxT)
  clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
  gain, bound = ratio * advantage_RxT, clipped * advantage_RxT
  # Not jnp.minimum: at a tie jax splits the gradient between both sides, and
  # clip_low = 0 or clip_high = 0 gives a tie at r = 1.
  bounded = bound < gain
  return -jnp.where(bounded, jax.lax.stop_gradient(bound), gain), bounded


def ppo_dual_clip(logp_RxT, log_ratio_RxT, advantage_RxT, *, clip_low,
                  clip_high, dual_clip):
  """The loss of ppo_clip, but at most dual_clip |A| where A < 0.

  Without that bound a token of negative advantage that has become much more
  likely, r > dual_clip, dominates the update. verl has dual_clip = 3.
  """
  loss, bounded = ppo_clip(logp_RxT, log_ratio_RxT, advantage_RxT,
                           clip_low=clip_low, clip_high=clip_high)
  limit = -dual_clip * advantage_RxT
  dual = (advantage_RxT < 0) & (loss > limit)
  return jnp.where(dual, limit, loss), bounded | dual


def cispo(logp_RxT, log_ratio_RxT, advantage_RxT, *, cap):
  """CISPO's loss, -stop_gradient(min(r, cap)) A logp.

  The cap bounds the ratio itself, as in ScaleRL and TRL, where it is 5.
  MiniMax and verl write the bound as 1 + epsilon_high: their 4 is cap = 5. A
  token beyond the cap keeps a gradient; nothing bounds r from below.
  """
  chex.assert_equal_shape([logp_RxT, log_ratio_RxT, advantage_RxT])
  ratio = jax.lax.stop_gradient(jnp.exp(log_ratio_RxT))
  return -jnp.minimum(ratio, cap) * advantage_RxT * logp_RxT, ratio > cap


POLICY_LOSSES = {
    "ppo_clip": ppo_clip,
    "ppo_dual_clip": ppo_dual_clip,
    "cispo": cispo,
    "reinforce": reinforce,
}


def importance(gap_RxT, *, cap):
  """(importance weight trainer / sampler, whether it is capped).

  The weight is stop_gradient(min(exp(gap), cap)). The gap is the log-prob old -
  behavior of each token, or the sum of these over its answer.
  """
  ratio = jax.lax.stop_gradient(jnp.exp(gap_RxT))
  return jnp.minimum(ratio, cap), ratio > cap


def k1(logp_RxT, ref_logp_RxT):
  """logp - ref. For the reward: its expected gradient as a loss is 0.

  Its mean over tokens of the policy is KL(policy || ref).
  """
  return logp_RxT - ref_logp_RxT


def k2(logp_RxT, ref_logp_RxT):
  """(ref - logp)^2 / 2; its expected gradient is that of KL(policy || ref)."""
  return 0.5 * (ref_logp_RxT - logp_RxT)**2


def k3(logp_RxT, ref_logp_RxT):
  """exp(d) - d - 1 with d = ref - logp, bounded to +-LOG_BOUND.

  Its mean over tokens of the policy is KL(policy || ref); it is never negative.
  Its expected gradient is that of KL(ref || policy). verl bounds d likewise and
  bounds the result to 10 as well, beyond which a token has no gradient; TRL
  bounds neither.
  """
  d = jnp.clip(ref_logp_RxT - logp_RxT, -LOG_BOUND, LOG_BOUND)
  return jnp.expm1(d) - d


def k3_k2(logp_RxT, ref_logp_RxT):
  """The value of k3 with the gradient of k2."""
  gradient = k2(logp_RxT, ref_logp_RxT)
  return with_gradient_of(
      jax.lax.stop_gradient(k3(logp_RxT, ref_logp_RxT)), gradient)


KL_ESTIMATORS = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3_k2": k3_k2,
}


def value_loss(value_RxT, old_value_RxT, return_RxT, *, clip):
  """(max((V - G)^2, (clip(V, V_old +- clip) - G)^2) / 2, whether clipped).

  V is the value, V_old that before the step's updates, G the return.
  """
  chex.assert_equal_shape([value_RxT, old_value_RxT, return_RxT])
  # Bounds around V_old, not V_old + clip(V - V_old): within them V keeps its
  # bits, so that rounding cannot stop its gradient.
  clipped = jnp.clip(value_RxT, old_value_RxT - clip, old_value_RxT + clip)
  square, bound = (value_RxT - return_RxT)**2, (clipped - return_RxT)**2
  bounded = bound > square
  return 0.5 * jnp.where(
      bounded, jax.lax.stop_gradient(bound), square), bounded
