"""The sampler: prefill once per problem, clone the cache, decode to the EOS.

1. Prompts [P, S] go through the model once and leave their keys and values.
2. Each row clones the cache of its prompt, inside its own block.
3. Step t feeds the row's last token (the prompt's last one at t = 0) at slot
   S + t and draws token t by inverse CDF from one uniform number, whose
   address is (key, problem, rollout, t).
4. The loop ends when every row has drawn an EOS, or at T tokens.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from isojax import mesh as mesh_lib
from isojax import rng
from isojax.errors import InputError
from isojax.models import decoder
from isojax.sampling import blocks
from isojax.sampling import prefill
from isojax.types import Prompts, Rollouts, Rows


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Shapes and distribution of sampling."""

  rows: int  # rows decoded at once; bounds the cache, not n
  max_prompt_tokens: int  # S
  max_new_tokens: int  # T, EOS included
  temperature: float  # 0 is greedy
  top_p: float  # 1 keeps the whole distribution
  dtype: str  # of weights and cache while sampling

  def __post_init__(self):
    for name in ("rows", "max_prompt_tokens", "max_new_tokens"):
      if getattr(self, name) < 1:
        raise InputError(
            f"sampler.{name}={getattr(self, name)}: expected at least 1")
    if self.dtype not in decoder.DTYPES:
      raise InputError(f"sampler.dtype={self.dtype!r}: expected one of "
                       f"{', '.join(decoder.DTYPES)}")
    if self.temperature < 0:
      raise InputError(f"sampler.temperature={self.temperature}: expected >= 0")
    if not 0 < self.top_p <= 1:
      raise InputError(f"sampler.top_p={self.top_p}: expected in (0, 1]")


def nucleus(logp_RxV, top_p):
  """Renormalised log-probs of the smallest set of tokens with mass >= top_p."""
  order = jnp.argsort(-logp_RxV, axis=-1)
  ordered = jnp.take_along_axis(logp_RxV, order, axis=-1)
  before = jnp.cumsum(jnp.exp(ordered), axis=-1) - jnp.exp(ordered)
  kept = jnp.where(before < top_p, ordered, -jnp.inf)
  kept = kept - jax.nn.logsumexp(kept, axis=-1, keepdims=True)
  back = jnp.argsort(order, axis=-1)
  return jnp.take_along_axis(kept, back, axis=-1)


def draw(logits_RxV, uniform_R, temperature, top_p):
  """A token per row by inverse CDF: (token, its log-prob, entropy), [R] each.

  The log-prob is of the distribution drawn from, the entropy (nats) of that
  before top_p. Temperature 0 takes the most likely token, whose log-prob is
  then 0. The vocabulary is sorted only when top_p < 1.
  """
  greedy = jnp.argmax(logits_RxV, axis=-1).astype(jnp.int32)
  scale = jnp.where(temperature > 0, temperature, 1.0)
  logp = jax.nn.log_softmax(logits_RxV / scale, axis=-1)
  entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
  logp = jax.lax.cond(top_p < 1, nucleus, lambda x, _: x, logp, top_p)
  cdf = jnp.cumsum(jnp.exp(logp), axis=-1)
  below = cdf <= uniform_R[:, None] * cdf[:, -1:]
  token = jnp.sum(below, axis=-1, dtype=jnp.int32)
  logp = jnp.take_along_axis(logp, token[:, None], axis=-1)[:, 0]
  return (jnp.where(temperature > 0, token, greedy),
          jnp.where(temperature > 0, logp, 0.0), entropy)


def make_sampler(model: decoder.Transformer, cfg: SamplerConfig,
                 eos: tuple[int, ...]):
  """The one jitted sampler: (params, Prompts, Rows, key, t, top_p) -> Rollouts.

  Temperature and top_p are traced values. Prompts and rows are sharded by
  blocks; see `isojax.types`.
  """
  mesh, T = model.mesh, cfg.max_new_tokens
  G, dtype = mesh_lib.blocks(mesh), jnp.dtype(cfg.dtype)
  rows = mesh_lib.row_sharding(mesh)

  def sample(params, prompts, row: Rows, key, temperature, top_p):
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    cache = prefill.prompt_cache(model, params, prompts, dtype)
    cache, token_R, last_R = prefill.start_rows(prompts, row.slot_R, cache, T, G=G)
    key_R = rng.row_keys(key, prefill.clone(prompts.id_P, row.slot_R, G),
                         row.rollout_R)
    S = prompts.tokens_PxS.shape[1]
    R = token_R.shape[0]
    eos_E = jnp.array(eos, jnp.int32)

    def advance(carry):
      t, token_R, done_R, cache, out = carry
      mask = prefill.new_token_mask(last_R, t[None], S=S, L=S + T)
      hidden, cache = model.apply(
          {"params": params}, token_R[:, None], (last_R + t)[:, None], mask,
          cache, S + t)
      logits = model.apply({"params": params}, hidden, method="head")[:, 0]
      token_R, logp_R, entropy_R = draw(
          logits, rng.uniform_at(key_R, t), temperature, top_p)
      token_R = jnp.where(done_R, 0, token_R)
      out = Rollouts(
          out.tokens_RxT.at[:, t].set(token_R),
          out.len_R + ~done_R,
          out.ended_R,
          out.behavior_logp_RxT.at[:, t].set(jnp.where(done_R, 0.0, logp_R)),
          out.entropy_R + jnp.where(done_R, 0.0, entropy_R))
      is_eos = jnp.any(token_R[:, None] == eos_E[None], axis=1) & ~done_R
      out = out.replace(ended_R=out.ended_R | is_eos)
      return t + 1, token_R, done_R | is_eos, cache, out

    def running(carry):
      t, _, done_R, _, _ = carry
      return (t < T) & ~jnp.all(done_R)

    nothing = Rollouts(
        jnp.zeros((R, T), jnp.int32), jnp.zeros(R, jnp.int32),
        jnp.zeros(R, bool), jnp.zeros((R, T), jnp.float32),
        jnp.zeros(R, jnp.float32))
    carry = (jnp.int32(0), token_R, ~row.active_R, cache, nothing)
    return jax.lax.while_loop(running, advance, carry)[-1]

  return jax.jit(sample, out_shardings=rows)


def sample_all(sampler, params, prompts: Prompts, n: int, key, *, mesh, R: int,
               slots: int, temperature: float, top_p: float) -> Rollouts:
  """n rollouts of each prompt, problem-major host arrays [problems * n, ...].

  Args:
    sampler: from `make_sampler`.
    prompts: host arrays, one entry a problem.
    key: the stream; rows fold in their problem and rollout.
    R: rows of a call, divisible by the blocks of the mesh.
    slots: prompt slots of a block, at least `blocks.slots_for(R / G, n)`.
  """
  sharding = mesh_lib.row_sharding(mesh)
  parts = []
  for call in blocks.calls(
      prompts, n, G=mesh_lib.blocks(mesh), R=R, slots=slots):
    placed = mesh_lib.place(call, sharding)
    parts.append(jax.device_get(
        sampler(params, *placed, key, temperature, top_p)))
  total = len(prompts.len_P) * n
  return jax.tree.map(lambda *x: np.concatenate(x)[:total], *parts)

