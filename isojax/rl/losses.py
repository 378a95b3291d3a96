"""Terms of the loss per token: arrays and keyword scalars in, arrays out.

`objective` multiplies each term by the token's weight, masks and sums. Sources:
PPO clip arXiv 1707.06347, k3 http://joschu.net/blog/kl-approx.html, truncated
importance sampling as in IsoCompute (arXiv 2603.12151).

A policy loss is a pure function of log-probs, of log-probs at the weights that
sampled, and of advantages, [R, T] each. It returns the loss of each token and
whether a bound acts on it, [R, T] each. Its keyword-only arguments are
constants of the config (docs/extending.md).
"""

import chex
import jax
import jax.numpy as jnp


@jax.named_scope("logp")
def logp_and_entropy(logits_RxTxV, tokens_RxT, *, temperature):
  """Returns log p of the tokens and the entropy in nats: [R, T] each.

  Both are those of the distribution at the sampling temperature.
  """
  logp_RxTxV = jax.nn.log_softmax(logits_RxTxV / temperature, axis=-1)
  # A sum, not a gather: a sharded vocabulary stays where it is, and the
  # gradient is no scatter.
  drawn_RxTxV = tokens_RxT[..., None] == jnp.arange(
      logp_RxTxV.shape[-1])[None, None]
  logp_RxT = jnp.sum(jnp.where(drawn_RxTxV, logp_RxTxV, 0.0), axis=-1)
  entropy_RxT = -jnp.sum(jnp.exp(logp_RxTxV) * logp_RxTxV, axis=-1)
  return logp_RxT, entropy_RxT


def reinforce(logp_RxT, old_logp_RxT, advantage_RxT):
  """Returns -A logp, and that no token is bounded: [R, T] each."""
  del old_logp_RxT
  return -advantage_RxT * logp_RxT, jnp.zeros_like(logp_RxT, bool)


def ppo_clip(logp_RxT, old_logp_RxT, advantage_RxT, *, clip_low, clip_high):
  """Returns -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

  r = exp(logp - old). In a strictly on-policy update old = stop_gradient(logp),
  so r is 1 and the gradient is that of REINFORCE, -A grad logp, for any clip.

  Returns:
    The loss, and whether the clip bounds the token: [R, T] each.
  """
  chex.assert_equal_shape([logp_RxT, old_logp_RxT, advantage_RxT])
  ratio = jnp.exp(logp_RxT - old_logp_RxT)
  clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
  free, bound = ratio * advantage_RxT, clipped * advantage_RxT
  # Not minimum and clip alone: at a tie jax splits the gradient between both
  # sides, which for clip_low = 0 or clip_high = 0 is the case at r = 1.
  bounded = bound < free
  return -jnp.where(bounded, jax.lax.stop_gradient(bound), free), bounded


def importance(old_logp_RxT, behavior_logp_RxT, *, cap):
  """Returns stop_gradient(min(exp(old - behavior), cap)).

  It corrects for the difference between trainer and sampler.

  Returns:
    The weight, and whether the cap bounds the token: [R, T] each.
  """
  ratio = jax.lax.stop_gradient(jnp.exp(old_logp_RxT - behavior_logp_RxT))
  return jnp.minimum(ratio, cap), ratio > cap


def kl_k3(logp_RxT, ref_logp_RxT):
  """Returns exp(d) - d - 1 with d = ref - logp.

  Its mean over tokens of the policy is KL(policy || ref); it is never negative.
  """
  d = ref_logp_RxT - logp_RxT
  return jnp.expm1(d) - d


POLICY_LOSSES = {
    "ppo_clip": ppo_clip,
    "reinforce": reinforce,
}
