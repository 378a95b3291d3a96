"""The sampler: slots that are refilled from a queue, so that none decodes air.

1. Prompts go through the model once a problem, in batches of like length.
2. A slot takes the next rollout of the queue: it clones its prompt's cache.
3. All slots decode a chunk of tokens in one jitted call. A token is drawn by
   inverse CDF from one uniform number, whose address is (key, problem, rollout,
   position); so neither the number of slots nor their order can change it.
4. On the host, slots whose rollout has ended are refilled. When the queue is
   empty the slots left over are halved, and halved again.

A cache slot is a position, so what a slot may look at is what lies before it.
The cache grows in four steps with the longest rollout alive. Calls have few
shapes, none of which depends on n, Bp, or lengths: a sweep compiles them once.
"""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from isojax import mesh as mesh_lib
from isojax import rng
from isojax.errors import InputError
from isojax.models import attention
from isojax.models import decoder
from isojax.models import int8
from isojax.sampling import cache as cache_lib
from isojax.sampling import draw as draw_lib
from isojax.sampling import prefill
from isojax.sampling import queue as queue_lib
from isojax.types import Drawn
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import Rows


WEIGHTS = ("int8",)  # see models.int8
CACHES = {"float8": jnp.float8_e4m3fn}  # without scales: 3 bits behind the
# leading one, up to 448


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Shapes and distribution of sampling."""

  slots: int  # rollouts decoded at once, if memory admits them
  memory_gib: float  # of a device, for weights, cache and logits of sampling
  max_prompt_tokens: int  # S
  max_new_tokens: int  # T, EOS included
  temperature: float  # 0 is greedy
  top_p: float  # 1 keeps the whole distribution
  dtype: str  # of activations
  weights: str | None  # of matrices: one of WEIGHTS; None: dtype
  cache: str | None  # of keys and values: a key of CACHES; None: dtype
  attention: str  # one of attention.CHOICES, of prompts

  def __post_init__(self):
    for name in ("slots", "max_prompt_tokens", "max_new_tokens"):
      if getattr(self, name) < 1:
        raise InputError(
            f"sampler.{name}={getattr(self, name)}: expected at least 1")
    if self.dtype not in decoder.DTYPES:
      raise InputError(f"sampler.dtype={self.dtype!r}: expected one of "
                       f"{', '.join(decoder.DTYPES)}")
    for name, known in (("weights", WEIGHTS), ("cache", tuple(CACHES))):
      if getattr(self, name) not in (None, *known):
        raise InputError(f"sampler.{name}={getattr(self, name)!r}: expected "
                         f"None, for sampler.dtype, or {', '.join(known)}")
    if self.attention not in attention.CHOICES:
      raise InputError(f"sampler.attention={self.attention!r}: expected one of "
                       f"{', '.join(attention.CHOICES)}")
    if self.temperature < 0:
      raise InputError(f"sampler.temperature={self.temperature}: expected >= 0")
    if not 0 < self.top_p <= 1:
      raise InputError(f"sampler.top_p={self.top_p}: expected in (0, 1]")
    if self.memory_gib <= 0:
      raise InputError(f"sampler.memory_gib={self.memory_gib}: expected > 0")

  @property
  def chunk(self) -> int:
    """Tokens between two looks at which slots have ended.

    A slot idles for half a chunk: an eighth of a mean length of T / 8.
    """
    return min(self.max_new_tokens, max(4, min(64, self.max_new_tokens // 32)))


STEP = 32  # tokens; a smaller step of length saves less than its program costs
FEW = 16  # slots of a block; a step of fewer takes as long, and a program more


class Sampler(typing.NamedTuple):
  """Jitted calls, and their sizes; slots and windows are of all devices."""

  mesh: jax.sharding.Mesh
  chunk: int  # tokens of a call
  max_new_tokens: int  # T
  row_sizes: tuple[int, ...]  # slots of a call
  length_sizes: tuple[int, ...]  # of the cache
  prompt_sizes: tuple[int, ...]  # prompt lengths that are prefilled
  window: int  # prompts prefilled at once in a block
  gathered: bool  # whole weights on each fsdp shard
  casts: dict  # of each parameter, to the dtype and sharding of decoding
  prepare: typing.Callable  # float parameters -> cast; those that are, stay
  empty: typing.Callable  # (R, L) -> cache
  prefill: typing.Callable  # (params, Prompts) -> cache of the window
  insert: typing.Callable  # (cache, window's cache, row, slot) -> cache
  resize: typing.Callable  # (part of a cache, rows to keep, L) -> the same
  decode: typing.Callable  # (params, cache, Rows, key, t, top_p)


def prompt_kernel(model: decoder.Transformer, cfg: SamplerConfig) -> str:
  """Of the attention of prompts; InputError as of attention.choose."""
  return attention.choose(
      cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
      length=cfg.max_prompt_tokens, knob="sampler.attention")


def make_sampler(model: decoder.Transformer, cfg: SamplerConfig,
                 eos: tuple[int, ...], *, gathered: bool = True) -> Sampler:
  """Builds the jitted calls for `cfg.slots` slots, rounded up to the blocks.

  Temperature and top_p are traced values. Slots and prompts are sharded by
  blocks, keys and values also by heads.

  Args:
    eos: tokens that end a rollout.
    gathered: whole weights on each fsdp shard while sampling, gathered once
      and not at every token.
  """
  mesh, T, S = model.mesh, cfg.max_new_tokens, cfg.max_prompt_tokens
  model = model.clone(dtype=cfg.dtype)
  reader = model.clone(attention=prompt_kernel(model, cfg))
  on_tpu = mesh.devices.flat[0].platform == "tpu"
  G, dtype = mesh_lib.blocks(mesh), jnp.dtype(cfg.dtype)
  cache_dtype = CACHES[cfg.cache] if cfg.cache else dtype
  row_sizes = queue_lib.halves(cfg.slots, G, 3, FEW)
  weights = jax.tree.map(
      lambda x: mesh_lib.whole_rows(x.sharding) if gathered else x.sharding,
      decoder.abstract_params(model))
  read, cache = mesh_lib.read_rows(mesh), cache_lib.sharding(model)

  # Functions with names, which traces show.
  def cast(param):
    return param.astype(dtype)

  def empty(R, L):
    return decoder.init_cache(model.cfg, R, L, cache_dtype)

  def prefill_prompts(params, prompts):
    return prefill.prompt_cache(reader, params, prompts, cache_dtype)

  def caster(path, sharding):
    name = path[-1].key
    if cfg.weights is None or name not in int8.INPUTS:
      return jax.jit(cast, out_shardings=sharding)
    return jax.jit(functools.partial(int8.quantized, inputs=int8.INPUTS[name]),
                   out_shardings=int8.shardings(sharding, int8.INPUTS[name]))

  # One after the other: together they are there twice, gathered and laid out.
  casts = jax.tree.map_with_path(caster, weights)
  each = lambda params: jax.tree.map(lambda f, x: f(x), casts, params)
  prepared = lambda params: cfg.weights is None and all(
      jax.tree.leaves(jax.tree.map(
          lambda x, sharding: x.dtype == dtype and x.sharding.is_equivalent_to(
              sharding, x.ndim), params, weights)))
  return Sampler(
      mesh=mesh, chunk=cfg.chunk, max_new_tokens=T, row_sizes=row_sizes,
      length_sizes=queue_lib.shares(4, -(-(S + T - 1) // 16) * 16, STEP),
      prompt_sizes=queue_lib.shares(4, S, STEP),
      window=-(-row_sizes[-1] // (8 * G)), gathered=gathered,
      casts=casts,
      prepare=lambda params: params if prepared(params) else each(params),
      empty=jax.jit(empty, static_argnums=(0, 1), out_shardings=cache),
      prefill=jax.jit(prefill_prompts, out_shardings=cache),
      insert=jax.jit(cache_lib.insert, donate_argnums=0, static_argnames="G",
                     out_shardings=cache),
      resize=jax.jit(cache_lib.resize, static_argnums=(2, 3),
                     out_shardings=cache),
      decode=jax.jit(
          make_decode(model, cfg, eos, on_tpu), donate_argnums=1,
          out_shardings=(cache, read, read)))


def make_decode(model: decoder.Transformer, cfg: SamplerConfig,
                eos: tuple[int, ...], buffered: bool):
  """(params, cache, Rows, key, temperature, top_p) -> (cache, Rows, Drawn).

  Buffered, a chunk's keys and values stand beside the cache until its end, and
  all rows write at one slot: on a TPU, where writes at a slot of each row's own
  are a loop over rows, and values of narrow heads are padded for it.
  """
  C, T = cfg.chunk, cfg.max_new_tokens
  eos_E = jnp.array(eos, jnp.int32)

  def decode(params, cache, row: Rows, key, temperature, top_p):
    key_R = rng.row_keys(key, row.id_R, row.rollout_R)
    R, L = row.token_R.shape[0], cache.v[0].shape[2]
    start_R, past, slot_L = row.position_R, None, jnp.arange(L)[None, None]
    if buffered:
      past, cache = cache, decoder.init_cache(
          model.cfg, R, C, cache.v[0].dtype)

    def seen(i, row):
      if not buffered:
        return slot_L <= row.position_R[:, None, None]
      return jnp.concatenate([
          slot_L < start_R[:, None, None],
          jnp.broadcast_to(jnp.arange(C)[None, None] <= i, (R, 1, C))], axis=2)

    def advance(i, carry):
      row, cache, out = carry
      hidden, cache = model.apply(
          {"params": params}, row.token_R[:, None], row.position_R[:, None],
          seen(i, row), cache, i if buffered else row.position_R, past)
      logits = model.apply({"params": params}, hidden, method="head")[:, 0]
      # Each device draws for some rows from whole logits: sums along a
      # vocabulary in shards would gather it, again and again. Said twice, or
      # XLA makes the logits there, from a gathered head.
      for sharding in (mesh_lib.logits_sharding(model.mesh, logits.shape[1]),
                       mesh_lib.spread_rows(model.mesh, R)):
        logits = jax.lax.with_sharding_constraint(logits, sharding)
      token_R, logp_R, entropy_R = jax.lax.with_sharding_constraint(
          draw_lib.draw(logits, rng.uniform_at(key_R, row.count_R),
                        temperature, top_p),
          mesh_lib.row_sharding(model.mesh))
      ended_R = row.active_R & jnp.any(
          token_R[:, None] == eos_E[None], axis=1)
      count_R = row.count_R + row.active_R
      goes_on_R = row.active_R & ~ended_R & (count_R < T)
      out = Drawn(out.tokens_RxC.at[:, i].set(token_R),
                  out.logp_RxC.at[:, i].set(logp_R),
                  out.entropy_R + jnp.where(row.active_R, entropy_R, 0.0),
                  out.ended_R | ended_R)
      row = row.replace(
          token_R=token_R, position_R=row.position_R + goes_on_R,
          count_R=count_R, active_R=goes_on_R)
      return row, cache, out

    nothing = Drawn(
        jnp.zeros((R, C), jnp.int32), jnp.zeros((R, C), jnp.float32),
        jnp.zeros(R, jnp.float32), jnp.zeros(R, bool))
    # Also when all have ended: to find that out, devices would have to talk.
    row, cache, out = jax.lax.fori_loop(0, C, advance, (row, cache, nothing))
    if buffered:
      cache = cache_lib.flush(past, cache, start_R)
    return cache, row, out

  return decode


def shortened(s: Sampler, prompts: Prompts) -> Prompts:
  """Prompts cut to the least size of the prefill that holds them."""
  S = queue_lib.smallest(s.prompt_sizes, int(prompts.len_P.max()))
  return prompts.replace(tokens_PxS=prompts.tokens_PxS[:, :S])


def _fitting(s: Sampler, q: queue_lib.Queue, cache: decoder.KVCache):
  """A cache that is long enough for the next chunk.

  With fewer rows, if nothing waits and half of them are enough. Part after
  part, so that only one of them is there twice.
  """
  R, L = cache.v[0].shape[0], cache.v[0].shape[2]
  last = q.row.position_R[q.row.active_R].max(initial=0)
  longer = queue_lib.smallest(
      s.length_sizes, min(int(last) + s.chunk, s.length_sizes[-1]))
  fewer = R if q.waiting else queue_lib.smallest(
      s.row_sizes, q.most_active * q.G)
  if longer <= L and fewer == R:
    return cache
  take = mesh_lib.place(queue_lib.compact(q, fewer),
                        mesh_lib.row_sharding(s.mesh))
  parts = {3: list(cache.k), 2: list(cache.v)}
  del cache
  for axis, part in parts.items():
    for i in range(len(part)):
      part[i] = s.resize(part[i], take, longer, axis)
  return decoder.KVCache(tuple(parts[3]), tuple(parts[2]))


def _refilled(s: Sampler, q: queue_lib.Queue, params, cache, window):
  """(cache, window) after free slots took what waits; prefills on the way."""
  rows = mesh_lib.row_sharding(s.mesh)
  while True:
    filled = queue_lib.fill(q)
    cache = _fitting(s, q, cache)
    if filled[0].size:
      cache = s.insert(cache, window, *mesh_lib.place(filled, rows), G=q.G)
    if not q.starving:
      return cache, window
    window = s.prefill(params, mesh_lib.place(
        shortened(s, queue_lib.move_window(q)), rows))


def stream(s: Sampler, params, prompts: Prompts, n: int, key, *,
           temperature, top_p):
  """n rollouts of each prompt, as they end.

  While the caller works on what was yielded, the devices decode on.

  Args:
    prompts: host arrays, one entry a problem.
    key: the stream; rollouts fold in their problem, index and position.

  Yields:
    (items that ended, problem * n + rollout; Rollouts of all items as far as
    they are drawn, host arrays that go on filling).

  Raises:
    InputError: a prompt is longer than the sampler's largest.
  """
  longest = int(prompts.len_P.max())
  if longest > s.prompt_sizes[-1]:
    raise InputError(f"a prompt has {longest} tokens: expected at most sampler."
                     f"max_prompt_tokens={s.prompt_sizes[-1]}")
  G, params = mesh_lib.blocks(s.mesh), s.prepare(params)
  rows = mesh_lib.row_sharding(s.mesh)
  wanted = min(-(-len(prompts.len_P) * n // G) * G, s.row_sizes[-1])
  R = queue_lib.smallest(s.row_sizes, wanted)
  q = queue_lib.start(prompts, n, G=G, R=R, W=s.window, T=s.max_new_tokens)
  cache, window = s.empty(R, s.length_sizes[0]), None
  done = np.zeros(0, np.int64)
  while True:
    cache, window = _refilled(s, q, params, cache, window)
    if not q.row.active_R.any():
      break
    cache, *after = s.decode(params, cache, mesh_lib.place(q.row, rows), key,
                             temperature, top_p)
    if done.size:
      yield done, q.out
    done = queue_lib.harvest(q, *jax.device_get(after))
  yield done, q.out


def sample_all(s: Sampler, params, prompts: Prompts, n: int, key, *,
               temperature, top_p) -> Rollouts:
  """n rollouts of each prompt, problem-major host arrays [problems * n, ...].

  Arguments and errors as of `stream`.
  """
  for _, rollouts in stream(s, params, prompts, n, key,
                            temperature=temperature, top_p=top_p):
    pass
  return rollouts
