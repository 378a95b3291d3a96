"""Decodes a chunk of tokens in all slots of the sampler, in one program."""

import jax
import jax.numpy as jnp

from isojax.models import decoder, paged_attention
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import rng
from isojax.sampling import cache as cache_lib
from isojax.sampling import draw as draw_lib
from isojax.sampling import interrupt as interrupt_lib
from isojax.types import Drawn, Rows


def make_decode(model: decoder.Transformer, *, C: int, T: int,
                eos: tuple[int, ...], buffered: bool,
                interrupt: interrupt_lib.Interrupt | None):
  """The function that decodes a chunk.

  Its arguments are (params, cache, Rows, temperature, top_p, kind, table), its
  results (cache, Rows without the fields that never change, Drawn). `kind` is
  of draw.kind_of and static. With a page table the cache is a pool of pages.

  Args:
    model: with the dtype of activations.
    C: tokens of a chunk.
    T: new tokens of a rollout, at most.
    eos: tokens that end a rollout.
    buffered: keep the keys and values of the chunk in a buffer beside the
      cache, in which all rows write at the same index. For TPUs: there, writes
      at a different index in each row are a loop over rows, and values of
      narrow heads are padded. Ignored with pages.
    interrupt: the phrase of forced interruption; None: off.
  """
  eos_E = jnp.array(eos, jnp.int32)

  def decode(params, cache, row: Rows, temperature, top_p, kind, table=None):
    key_R = rng.row_keys(
        jax.random.wrap_key_data(row.key_Rx2, impl="threefry2x32"), row.id_R,
        row.rollout_R)
    R, pages = len(row.token_R), 1 if table is None else table.shape[1]
    L = cache.v[0].shape[2] * pages  # positions of a slot
    start_R, past, in_buffer = row.position_R, None, buffered and table is None
    index_1x1xL = jnp.arange(L)[None, None]
    if in_buffer:
      past, cache = cache, decoder.init_cache(
          model.cfg, R, C, jax.tree.leaves(cache)[0].dtype)

    def seen(i, row):
      mask = index_1x1xL <= row.position_R[:, None, None]
      if table is not None:
        return paged_attention.PageTable(
            table, mask, mesh_lib.num_blocks(model.mesh))
      if not in_buffer:
        return mask
      return jnp.concatenate([
          index_1x1xL < start_R[:, None, None],
          jnp.broadcast_to(jnp.arange(C)[None, None] <= i, (R, 1, C))], axis=2)

    def advance(i, carry):
      row, cache, out = carry
      hidden, cache = model.apply(
          {"params": params}, row.token_R[:, None], row.position_R[:, None],
          seen(i, row), cache, i if in_buffer else row.position_R, past)
      logits = model.apply({"params": params}, hidden, method="head")[:, 0]
      # Each device draws for some rows from whole logits: sums along a sharded
      # vocabulary would gather the logits several times. With the second
      # constraint alone XLA would gather the head, to compute whole logits.
      for sharding in (mesh_lib.logits_sharding(model.mesh, logits.shape[1]),
                       mesh_lib.spread_rows(model.mesh, R)):
        logits = jax.lax.with_sharding_constraint(logits, sharding)
      token_R, logp_R, entropy_R = jax.lax.with_sharding_constraint(
          draw_lib.draw(logits, rng.uniform_at(key_R, row.count_R),
                        temperature, top_p, kind=kind),
          mesh_lib.row_sharding(model.mesh))
      matched_R = row.matched_R
      if interrupt is not None:
        forced_R, phrase_R = interrupt_lib.inserted(row, interrupt)
        token_R = jnp.where(forced_R, phrase_R, token_R)
        logp_R = jnp.where(forced_R, 0.0, logp_R)
        entropy_R = jnp.where(forced_R, 0.0, entropy_R)
        if interrupt.unless:
          matched_R = interrupt_lib.matched_next(row, token_R, interrupt)
      ended_R = row.active_R & jnp.any(
          token_R[:, None] == eos_E[None], axis=1)
      count_R = row.count_R + row.active_R
      continues_R = row.active_R & ~ended_R & (count_R < T)
      out = Drawn(out.tokens_RxC.at[:, i].set(token_R),
                  out.logp_RxC.at[:, i].set(logp_R),
                  out.entropy_R + jnp.where(row.active_R, entropy_R, 0.0),
                  out.ended_R | ended_R)
      row = row.replace(
          token_R=token_R, position_R=row.position_R + continues_R,
          count_R=count_R, active_R=continues_R, matched_R=matched_R)
      return row, cache, out

    zeros = Drawn(
        jnp.zeros((R, C), jnp.int32), jnp.zeros((R, C), jnp.float32),
        jnp.zeros(R, jnp.float32), jnp.zeros(R, bool))
    # The loop does not stop early: to find out whether all rollouts have ended,
    # devices would have to communicate.
    row, cache, out = jax.lax.fori_loop(0, C, advance, (row, cache, zeros))
    if in_buffer:
      cache = cache_lib.flush(past, cache, start_R)
    return cache, row.replace(
        id_R=None, rollout_R=None, key_Rx2=None, interrupt_R=None), out

  return decode
