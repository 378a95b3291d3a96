"""The loss of given tokens and its gradient, without all logits at once.

The logits of a microbatch, [R, W, V], would need more memory than everything
else in the update. Here they exist for one chunk of positions at a time.
"""

import functools

import jax
import jax.numpy as jnp

from isojax.core import memory
from isojax.models import decoder
from isojax.models.attention import Seen
from isojax.runtime import mesh as mesh_lib
from isojax.types import Batch


def hidden_states(model: decoder.Transformer, params, batch: Batch, dtype):
  """The hidden states that predict a microbatch's tokens: [R, W, D].

  Each prompt slot goes through the model once. Its keys and values are cloned
  to the rows, in front of the rows' own, so the gradients of all rows of a
  prompt are summed in them. Activations are in `dtype`; the gradient of a
  weight is in the dtype of the weight.
  """
  S, W = batch.prompts.tokens_PxS.shape[1], batch.tokens_RxW.shape[1]
  G = mesh_lib.num_blocks(model.mesh)

  def clone(x):
    return cloned(x, batch.slot_R, G)

  cache = jax.tree.map(
      clone, decoder.prompt_cache(model, params, batch.prompts, dtype))
  last_P = batch.prompts.len_P - 1
  last_token_P = jnp.take_along_axis(
      batch.prompts.tokens_PxS, last_P[:, None], axis=1)[:, 0]
  previous_RxW = jnp.pad(batch.tokens_RxW[:, :-1], [(0, 0), (1, 0)])
  inputs_RxW = jnp.where(
      batch.offset_RxW == 0, clone(last_token_P)[:, None], previous_RxW)
  last_R, column_W = clone(last_P), jnp.arange(W)
  # The last token of the prompt is the input of an answer's first token, so the
  # cached prompt ends before it. Each token sees the prompt and its own answer,
  # whose first column is:
  start_RxW = column_W[None] - batch.offset_RxW
  filled_RxW = batch.mask_RxW | (batch.offset_RxW > 0)  # not padding
  count_R = jnp.max(jnp.where(filled_RxW, column_W[None] + 1, 0), axis=1)
  hidden, _ = model.apply(
      {"params": params}, inputs_RxW, last_R[:, None] + batch.offset_RxW,
      Seen(S, prompt_B=last_R, first_BxT=S + start_RxW, tokens_B=count_R),
      cache, None)
  return hidden


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cloned(x_Px, slot_R, G: int):
  """Values of the slots of G blocks, cloned to their rows: [R, ...].

  Row r gets the value of slot slot_R[r] of its block.
  """
  grouped = x_Px.reshape(G, -1, *x_Px.shape[1:])
  picked = jax.vmap(lambda x, slot: x[slot])(grouped, slot_R.reshape(G, -1))
  return picked.reshape(-1, *x_Px.shape[1:])


def _clone_forward(x_Px, slot_R, G):
  return cloned(x_Px, slot_R, G), (slot_R, x_Px.shape[0] // G)


def _clone_backward(G, saved, grad_Rx):
  """Sums over each slot's rows by a product, as a scatter is slow on CPUs."""
  slot_R, slots = saved
  one_hot = slot_R.reshape(G, -1, 1) == jnp.arange(slots)[None, None]
  grad = jnp.einsum("grp,grx->gpx", one_hot.astype(grad_Rx.dtype),
                    grad_Rx.reshape(*one_hot.shape[:2], -1),
                    precision=jax.lax.Precision.HIGHEST)
  return grad.reshape(G * slots, *grad_Rx.shape[1:]), None


cloned.defvjp(_clone_forward, _clone_backward)


def in_chunks(tree, G: int, V: int):
  """Cuts [R, T, ...] along T: [chunks, R, c, ...].

  The logits of a chunk take at most about memory.HEAD_BYTES on a row shard.
  Rows stay on their devices. Zeros fill the last chunk.
  """
  R, T = jax.tree.leaves(tree)[0].shape[:2]
  count = min(T, -(-R * T // (G * memory.head_chunk(V))))
  size = -(-T // count)

  def cut(x):
    pad = [(0, 0), (0, count * size - T), *[(0, 0)] * (x.ndim - 2)]
    return jnp.pad(x, pad).reshape(R, count, size, *x.shape[2:]).swapaxes(0, 1)

  return jax.tree.map(cut, tree)


def per_block(weight_VxD, dtype, mesh):
  """The head's weight for each row shard, [G, V, D], gathered once.

  The gradient of each chunk then stays on its row shard. With one weight for
  all row shards XLA would sum the whole gradient over them for every chunk.
  """
  G, sharding = mesh_lib.num_blocks(mesh), head_sharding(weight_VxD, mesh)
  weight_VxD = jax.lax.with_sharding_constraint(
      weight_VxD.astype(dtype), mesh_lib.without_fsdp(sharding))
  return jax.lax.with_sharding_constraint(
      jnp.broadcast_to(weight_VxD[None], (G, *weight_VxD.shape)),
      mesh_lib.each_block(sharding))


def head_sharding(weight_VxD, mesh):
  """The sharding of the head's weight as a parameter."""
  return mesh_lib.param_sharding(("vocab", "embed"), weight_VxD.shape, mesh)


def mapped(term, hidden_RxTxD, weight_VxD, rest, *, mesh):
  """A tree of [R, T, ...] values of tokens, computed by chunks.

  Arguments are those of `gradient_by_chunks`, but `term` returns a tree of
  [R, c, ...], the values of a chunk's c positions.
  """
  R, T = hidden_RxTxD.shape[:2]
  weight = per_block(weight_VxD, hidden_RxTxD.dtype, mesh)
  chunks = in_chunks((hidden_RxTxD, rest), mesh_lib.num_blocks(mesh),
                     weight_VxD.shape[0])
  out = jax.lax.map(lambda chunk: term(chunk[0], weight, chunk[1]), chunks)
  return jax.tree.map(
      lambda x: x.swapaxes(0, 1).reshape(R, -1, *x.shape[3:])[:, :T], out)


def gradient_by_chunks(term, hidden_RxTxD, weight_VxD, rest, *, mesh):
  """Sums of a loss over all tokens and its gradients, by chunks.

  The gradient of a chunk is computed together with its loss, so its logits are
  computed once and nothing of the size of the vocabulary is kept.

  Args:
    term: (hidden, weight [G, V, D], rest) of a chunk -> (loss, tree of sums).
    hidden_RxTxD: hidden states in the dtype of the head's product.
    weight_VxD: the head's weight. Its gradient is summed over chunks in
      float32, and then over devices in the dtype of the weight.
    rest: a tree of [R, T, ...], cut like the hidden states.
    mesh: its row shards are the G blocks.

  Returns:
    (sums, gradient of the hidden states, gradient of the weight).
  """
  T, sharding = hidden_RxTxD.shape[1], head_sharding(weight_VxD, mesh)
  weight = per_block(weight_VxD, hidden_RxTxD.dtype, mesh)
  grad = jax.grad(term, argnums=(0, 1), has_aux=True)

  def step(carry, chunk):
    hidden, rest = chunk
    (grad_hidden, grad_weight), sums = grad(hidden, weight, rest)
    return jax.tree.map(lambda total, x: total + x.astype(total.dtype), carry,
                        (sums, grad_weight)), grad_hidden

  chunks = in_chunks((hidden_RxTxD, rest), mesh_lib.num_blocks(mesh),
                     weight_VxD.shape[0])
  first = jax.tree.map(lambda x: x[0], chunks)
  sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(
      lambda h, r: term(h, weight, r)[1], *first))
  zeros = jax.lax.with_sharding_constraint(
      jnp.zeros(weight.shape, jnp.float32), mesh_lib.each_block(sharding))
  (sums, grad_GxVxD), grad_hidden = jax.lax.scan(
      step, (sums, zeros), chunks)
  grad_weight = mesh_lib.reduced(
      grad_GxVxD.astype(weight_VxD.dtype), sharding)
  grad_hidden = grad_hidden.swapaxes(0, 1).reshape(
      hidden_RxTxD.shape[0], -1, hidden_RxTxD.shape[2])
  return sums, grad_hidden[:, :T], grad_weight
