"""A token of a distribution, by inverse CDF from one uniform number."""

import jax
import jax.numpy as jnp

BLOCK = 128  # weights summed at once: the running sum of V is short this way
NEVER = -1e4  # log-weight, finite, whose weight is 0


def nucleus(weight_RxV, top_p):
  """Of weights, the smallest set with at least top_p of the mass; 0 elsewhere.
  """
  order = jnp.argsort(-weight_RxV, axis=-1)
  ordered = jnp.take_along_axis(weight_RxV, order, axis=-1)
  mass = jnp.cumsum(ordered, axis=-1)
  kept = jnp.where(mass - ordered < top_p * mass[:, -1:], ordered, 0.0)
  return jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=-1)


def in_blocks(x_RxV, fill: float):
  """[R, V] -> [R, blocks, BLOCK], `fill` behind the last."""
  R, V = x_RxV.shape
  size = min(V, BLOCK)
  return jnp.pad(x_RxV, ((0, 0), (0, -V % size)), constant_values=fill).reshape(
      R, -1, size)


def at(x, i_R):
  """x[r, i_R[r]] of each row r."""
  i = i_R.reshape(-1, *[1] * (x.ndim - 1))
  return jnp.take_along_axis(x, i, axis=1)[:, 0]


def pick(mass_RxK, inside, uniform_R):
  """The token at which the running sum passes uniform * total, and the total.

  Sums of blocks first, then inside one block.

  Args:
    mass_RxK: sums of the weights of each block.
    inside: (block of each row) -> its weights [R, BLOCK].
  """
  mass_RxK = jnp.cumsum(mass_RxK, axis=-1)
  target_R = uniform_R * mass_RxK[:, -1]
  block_R = jnp.sum(mass_RxK <= target_R[:, None], axis=-1, dtype=jnp.int32)
  before_R = jnp.where(
      block_R > 0, at(mass_RxK, jnp.maximum(block_R - 1, 0)), 0.0)
  weight = inside(block_R)
  size = weight.shape[1]
  token_R = jnp.sum(jnp.cumsum(weight, axis=-1) <= (target_R - before_R)[
      :, None], axis=-1, dtype=jnp.int32)
  # By rounding the sum may pass the block's end: then its last weight above 0.
  last_R = jnp.max(jnp.where(weight > 0, jnp.arange(size)[None], 0), axis=-1)
  return block_R * size + jnp.minimum(token_R, last_R), mass_RxK[:, -1]


@jax.named_scope("draw")
def draw(logits_RxV, uniform_R, temperature, top_p):
  """A token per row by inverse CDF: (token, its log-prob, entropy), [R] each.

  The log-prob is of the distribution drawn from, the entropy (nats) of that
  before top_p. Temperature 0 takes the most likely token, whose log-prob is
  then 0. All in float32. The vocabulary is sorted only when top_p < 1; else
  the logits are read twice, and nothing of their size is written.
  """
  scale = jnp.where(temperature > 0, temperature, 1.0)
  top_R = jnp.max(logits_RxV, axis=-1)
  log_weight = lambda x: jnp.maximum(
      (x - top_R.reshape(-1, *[1] * (x.ndim - 1))) / scale, NEVER)
  logits = in_blocks(logits_RxV, -jnp.inf)
  logit = log_weight(logits)
  # Said to be one step, or XLA reads all logits once more for the totals.
  mass_RxK, mean_RxK = jax.lax.optimization_barrier(
      (jnp.sum(jnp.exp(logit), axis=-1),
       jnp.sum(jnp.exp(logit) * logit, axis=-1)))
  total_R = jnp.sum(mass_RxK, axis=-1)
  entropy_R = jnp.log(total_R) - jnp.sum(mean_RxK, axis=-1) / total_R

  def of_all():
    return pick(mass_RxK, lambda block: jnp.exp(log_weight(at(logits, block))),
                uniform_R)

  def of_nucleus():
    weight = in_blocks(nucleus(jnp.exp(log_weight(logits_RxV)), top_p), 0.0)
    return pick(jnp.sum(weight, axis=-1), lambda block: at(weight, block),
                uniform_R)

  token_R, kept_R = jax.lax.cond(top_p < 1, of_nucleus, of_all)
  logp_R = log_weight(at(logits_RxV, token_R)) - jnp.log(kept_R)
  # Only where asked for: XLA's argmax takes three times as long as the rest.
  token_R = jax.lax.cond(
      temperature > 0, lambda: token_R,
      lambda: jnp.argmax(logits_RxV, axis=-1).astype(jnp.int32))
  return token_R, jnp.where(temperature > 0, logp_R, 0.0), entropy_R
