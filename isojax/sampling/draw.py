"""A token of a distribution, by inverse CDF from one uniform number."""

import jax
import jax.numpy as jnp

BLOCK = 128  # weights summed at once: the running sum of V is short this way


def nucleus(weight_RxV, top_p):
  """Of weights, the smallest set with at least top_p of the mass; 0 elsewhere.
  """
  order = jnp.argsort(-weight_RxV, axis=-1)
  ordered = jnp.take_along_axis(weight_RxV, order, axis=-1)
  mass = jnp.cumsum(ordered, axis=-1)
  kept = jnp.where(mass - ordered < top_p * mass[:, -1:], ordered, 0.0)
  return jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=-1)


def pick(weight_RxV, uniform_R):
  """The token at which the running sum passes uniform * total, and the total.

  Sums of blocks first, then inside one block, so V is read once.
  """
  R, V = weight_RxV.shape
  size = min(V, BLOCK)
  weight = jnp.pad(weight_RxV, ((0, 0), (0, -V % size))).reshape(R, -1, size)
  mass = jnp.cumsum(jnp.sum(weight, axis=-1), axis=-1)
  target = uniform_R * mass[:, -1]
  block = jnp.sum(mass <= target[:, None], axis=-1, dtype=jnp.int32)
  at = lambda x, i: jnp.take_along_axis(x, i[:, None], axis=1)[:, 0]
  before = jnp.where(block > 0, at(mass, jnp.maximum(block - 1, 0)), 0.0)
  inside = jnp.take_along_axis(weight, block[:, None, None], axis=1)[:, 0]
  token = jnp.sum(jnp.cumsum(inside, axis=-1) <= (target - before)[:, None],
                  axis=-1, dtype=jnp.int32)
  # By rounding the sum may pass the block's end: then its last weight above 0.
  last = jnp.max(jnp.where(inside > 0, jnp.arange(size)[None], 0), axis=-1)
  return block * size + jnp.minimum(token, last), mass[:, -1]


@jax.named_scope("draw")
def draw(logits_RxV, uniform_R, temperature, top_p):
  """A token per row by inverse CDF: (token, its log-prob, entropy), [R] each.

  The log-prob is of the distribution drawn from, the entropy (nats) of that
  before top_p. Temperature 0 takes the most likely token, whose log-prob is
  then 0. The vocabulary is sorted only when top_p < 1. All in float32.
  """
  scale = jnp.where(temperature > 0, temperature, 1.0)
  logit = logits_RxV / scale
  logit = logit - jnp.max(logit, axis=-1, keepdims=True)
  weight = jnp.exp(logit)
  total = jnp.sum(weight, axis=-1)
  entropy = jnp.log(total) - jnp.sum(weight * logit, axis=-1) / total
  weight = jax.lax.cond(top_p < 1, nucleus, lambda x, _: x, weight, top_p)
  token, kept = pick(weight, uniform_R)
  logp = jnp.take_along_axis(logit, token[:, None], axis=-1)[:, 0] - jnp.log(
      kept)
  # Only where asked for: XLA's argmax takes three times as long as the rest.
  token = jax.lax.cond(
      temperature > 0, lambda: token,
      lambda: jnp.argmax(logits_RxV, axis=-1).astype(jnp.int32))
  return token, jnp.where(temperature > 0, logp, 0.0), entropy
