"""Draws one token per row by inverse CDF from one uniform number."""

import jax
import jax.numpy as jnp

# Tokens of a block. The weights of each block are summed first, so that running
# sums are short: over the K blocks, and over the B tokens of one block.
BLOCK = 128
LOG_ZERO = -1e4  # log-weight of weight 0; finite, because 0 times -inf is NaN


def kind_of(temperature: float, top_p: float) -> str:
  """How a token is drawn: "whole", "nucleus" (of top_p) or "greedy".

  The kind is static, so a program has no sort or argmax that it does not run.
  """
  if temperature <= 0:
    return "greedy"
  return "nucleus" if top_p < 1 else "whole"


def nucleus(weight_RxV, top_p):
  """The fewest weights with at least top_p of the mass; the rest are 0."""
  order = jnp.argsort(-weight_RxV, axis=-1)
  ordered = jnp.take_along_axis(weight_RxV, order, axis=-1)
  mass = jnp.cumsum(ordered, axis=-1)
  inside = jnp.where(mass - ordered < top_p * mass[:, -1:], ordered, 0.0)
  return jnp.take_along_axis(inside, jnp.argsort(order, axis=-1), axis=-1)


def in_blocks(x_RxV, fill: float):
  """Cuts [R, V] into blocks, [R, K, B]; `fill` pads the last block."""
  R, V = x_RxV.shape
  size = min(V, BLOCK)
  return jnp.pad(x_RxV, ((0, 0), (0, -V % size)), constant_values=fill).reshape(
      R, -1, size)


def element(x, i_R):
  """x[r, i_R[r]] of each row r."""
  i = i_R.reshape(-1, *[1] * (x.ndim - 1))
  return jnp.take_along_axis(x, i, axis=1)[:, 0]


def pick(mass_RxK, block_weights, uniform_R):
  """The token whose running sum passes uniform * total, and the total.

  Args:
    mass_RxK: sums of the weights of each block.
    block_weights: returns the weights [R, B] of one block of each row, block_R.
    uniform_R: in [0, 1).
  """
  running_RxK = jnp.cumsum(mass_RxK, axis=-1)
  target_R = uniform_R * running_RxK[:, -1]
  block_R = jnp.sum(running_RxK <= target_R[:, None], axis=-1, dtype=jnp.int32)
  before_R = jnp.where(
      block_R > 0, element(running_RxK, jnp.maximum(block_R - 1, 0)), 0.0)
  weight = block_weights(block_R)
  size = weight.shape[1]
  token_R = jnp.sum(jnp.cumsum(weight, axis=-1) <= (target_R - before_R)[
      :, None], axis=-1, dtype=jnp.int32)
  # Rounding may pass the end of the block: then take its last weight above 0.
  last_R = jnp.max(jnp.where(weight > 0, jnp.arange(size)[None], 0), axis=-1)
  return block_R * size + jnp.minimum(token_R, last_R), running_RxK[:, -1]


@jax.named_scope("draw")
def draw(logits_RxV, uniform_R, temperature, top_p, *, kind: str):
  """Draws a token per row: (token, its log-prob, entropy), [R] each.

  Args:
    logits_RxV: float32.
    uniform_R: one number in [0, 1) per row.
    temperature: divides the logits; not read if greedy.
    top_p: mass of the nucleus; read only for kind "nucleus".
    kind: of `kind_of`.

  Returns:
    The token, int32; its log-prob under the distribution that it was drawn from
    (0 if greedy), and the entropy (nats) of the distribution before top_p (at
    temperature 1 if greedy), float32.
  """
  scale = 1.0 if kind == "greedy" else temperature
  max_R = jnp.max(logits_RxV, axis=-1)
  log_weight = lambda x_Rx: jnp.maximum(
      (x_Rx - max_R.reshape(-1, *[1] * (x_Rx.ndim - 1))) / scale, LOG_ZERO)
  logits_RxKxB = in_blocks(logits_RxV, -jnp.inf)
  log_weight_RxKxB = log_weight(logits_RxKxB)
  weight_RxKxB = jnp.exp(log_weight_RxKxB)
  # Without the barrier XLA reads all logits once more for the totals.
  mass_RxK, weighted_log_RxK = jax.lax.optimization_barrier(
      (jnp.sum(weight_RxKxB, axis=-1),
       jnp.sum(weight_RxKxB * log_weight_RxKxB, axis=-1)))
  total_R = jnp.sum(mass_RxK, axis=-1)
  entropy_R = jnp.log(total_R) - jnp.sum(weighted_log_RxK, axis=-1) / total_R
  if kind == "greedy":
    token_R = jnp.argmax(logits_RxV, axis=-1).astype(jnp.int32)
    return token_R, jnp.zeros_like(entropy_R), entropy_R
  if kind == "nucleus":
    nucleus_RxKxB = in_blocks(
        nucleus(jnp.exp(log_weight(logits_RxV)), top_p), 0.0)
    token_R, total_R = pick(
        jnp.sum(nucleus_RxKxB, axis=-1),
        lambda block_R: element(nucleus_RxKxB, block_R), uniform_R)
  else:
    token_R, total_R = pick(mass_RxK, lambda block_R: jnp.exp(
        log_weight(element(logits_RxKxB, block_R))), uniform_R)
  return (token_R, log_weight(element(logits_RxV, token_R)) - jnp.log(total_R),
          entropy_R)
