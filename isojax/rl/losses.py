"""Token terms of the loss: arrays and keyword scalars in, arrays out.

Every term is per token; `update` multiplies by the row's weight, masks and
sums. Sources and constants in the wild: PPO clip arXiv 1707.06347, k3
http://joschu.net/blog/kl-approx.html, truncated importance sampling as in
IsoCompute (arXiv 2603.12151).
"""

import chex
import jax
import jax.numpy as jnp


@jax.named_scope("logp")
def logp_and_entropy(logits_RxTxV, tokens_RxT, *, temperature):
  """log p of the tokens and the entropy, at the sampling temperature: [R, T].

  The entropy is sum p * (-log p), in nats.
  """
  logp_RxTxV = jax.nn.log_softmax(logits_RxTxV / temperature, axis=-1)
  # A sum, not a gather: a sharded vocabulary stays where it is, and the
  # gradient is no scatter.
  drawn_RxTxV = tokens_RxT[..., None] == jnp.arange(
      logp_RxTxV.shape[-1])[None, None]
  logp_RxT = jnp.sum(jnp.where(drawn_RxTxV, logp_RxTxV, 0.0), axis=-1)
  entropy_RxT = -jnp.sum(jnp.exp(logp_RxTxV) * logp_RxTxV, axis=-1)
  return logp_RxT, entropy_RxT


def grpo(logp_RxT, old_logp_RxT, advantage_RxT, *, clip_low, clip_high):
  """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(logp - old).

  Strictly on-policy old = stop_gradient(logp): r is 1 and the gradient is that
  of REINFORCE, -A grad logp.

  Returns:
    The term, and whether the clip bounds the token: [R, T] each.
  """
  chex.assert_equal_shape([logp_RxT, old_logp_RxT, advantage_RxT])
  ratio = jnp.exp(logp_RxT - old_logp_RxT)
  clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
  free, bounded = ratio * advantage_RxT, clipped * advantage_RxT
  return -jnp.minimum(free, bounded), bounded < free


def importance(old_logp_RxT, behavior_logp_RxT, *, cap):
  """stop_gradient(min(exp(old - behavior), cap)): trainer against sampler.

  Returns:
    The weight, and whether the cap bounds the token: [R, T] each.
  """
  ratio = jax.lax.stop_gradient(jnp.exp(old_logp_RxT - behavior_logp_RxT))
  return jnp.minimum(ratio, cap), ratio > cap


def kl_k3(logp_RxT, ref_logp_RxT):
  """exp(d) - d - 1 with d = ref - logp: estimates KL(policy || ref), >= 0."""
  d = ref_logp_RxT - logp_RxT
  return jnp.expm1(d) - d
