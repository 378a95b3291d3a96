"""Runs prompts through the model once; rows that continue them clone the cache.
"""

import functools

import jax
import jax.numpy as jnp

from isojax.models import decoder
from isojax.models.attention import Seen
from isojax.types import Prompts


@jax.named_scope("prompts")
def prompt_cache(model: decoder.Transformer, params, prompts: Prompts, dtype):
  """Returns the cache [P, S] of prompts; their last tokens are fed later."""
  P, S = prompts.tokens_PxS.shape
  position = jnp.broadcast_to(jnp.arange(S)[None], (P, S))
  cache = decoder.init_cache(model.cfg, P, S, dtype)
  _, cache = model.apply({"params": params}, prompts.tokens_PxS, position,
                         Seen(0, None, None, prompts.len_P), cache, 0)
  return cache


def shortened(sizes: tuple[int, ...], prompts: Prompts) -> Prompts:
  """Cuts prompts to the smallest of the ascending sizes that fits all."""
  S = next(size for size in sizes if size >= int(prompts.len_P.max()))
  return prompts.replace(tokens_PxS=prompts.tokens_PxS[:, :S])


def sequences_at_once(window: int, S: int, L: int) -> int:
  """Returns the sequences of length L that a block prefills at once.

  They have no more tokens than a window of prompts of length S, or are one.
  """
  return min(window, max(1, window * S // L))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def clone(x_Px, slot_R, G: int):
  """Copies slot_R[r] of its own block of G to row r: [P, ...] -> [R, ...]."""
  grouped = x_Px.reshape(G, -1, *x_Px.shape[1:])
  picked = jax.vmap(lambda x, slot: x[slot])(grouped, slot_R.reshape(G, -1))
  return picked.reshape(-1, *x_Px.shape[1:])


def _clone_forward(x_Px, slot_R, G):
  return clone(x_Px, slot_R, G), (slot_R, x_Px.shape[0] // G)


def _clone_backward(G, saved, grad_Rx):
  """Sums over each slot's rows by a product, as a scatter is slow on CPUs."""
  slot_R, slots = saved
  took = (slot_R.reshape(G, -1, 1) == jnp.arange(slots)[None, None])
  grad = jnp.einsum("grp,grx->gpx", took.astype(grad_Rx.dtype),
                    grad_Rx.reshape(*took.shape[:2], -1),
                    precision=jax.lax.Precision.HIGHEST)
  return grad.reshape(G * slots, *grad_Rx.shape[1:]), None


clone.defvjp(_clone_forward, _clone_backward)
