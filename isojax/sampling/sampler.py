"""Continuous batching: finished slots are refilled, so no slot sits idle.

1. Each prompt goes through the model once, in batches of similar length.
2. A slot takes the next rollout of the queue and clones its prompt's cache.
3. All slots decode a chunk of tokens in one jitted call. A token is drawn by
   inverse CDF from one uniform number, which is a function of (key, problem,
   rollout, position). The slots and their order therefore change no token.
4. On the host, slots whose rollout has ended are refilled. When the queue is
   empty the number of slots is halved, and halved again, see sampler.shrink.

A cache slot is a position, so a token attends to the slots before its own. The
cache grows in four steps with the longest active rollout. Shapes depend neither
on n nor on Bp nor on lengths: a sweep compiles them once. With sampler.page the
cache is a pool of pages instead, see sampling.paged.
"""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from isojax.models import kernels
from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import attention
from isojax.models import decoder
from isojax.models import int8
from isojax.models import precision as precision_lib
from isojax.sampling import cache as cache_lib
from isojax.sampling import decode as decode_lib
from isojax.sampling import draw as draw_lib
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import paged
from isojax.sampling import paged_cache
from isojax.sampling import pages as pages_lib
from isojax.sampling import sizes as sizes_lib
from isojax.sampling import prefill
from isojax.sampling import queue as queue_lib
from isojax.types import Prompts
from isojax.types import Rollouts


WEIGHTS = ("int8",)  # see models.int8
CACHES = {"float8": jnp.float8_e4m3fn}  # no scales; 3 mantissa bits, up to 448


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
  # Of float32 products, one of precision.PRECISIONS.
  precision: str = dataclasses.field(metadata={"neutral": "highest"})
  # Of the head, one of decoder.HEAD_DTYPES; None: dtype, and weights.
  head_dtype: str | None = dataclasses.field(metadata={"neutral": None})
  # Positions of a page of the cache; None: each slot has the longest length.
  page: int | None = dataclasses.field(metadata={"neutral": None})
  # Mean new tokens, by which slots of a paged cache are admitted; None:
  # sizes.MEAN_RESPONSE of the most.
  expected_tokens: float | None = dataclasses.field(metadata={"neutral": None})
  # Numbers of slots when the queue is empty: one of sizes.SHRINK.
  shrink: str = dataclasses.field(metadata={"neutral": "halves"})
  interrupt: interrupt_lib.InterruptConfig = interrupt_lib.OFF

  def __post_init__(self):
    for name in ("slots", "max_prompt_tokens", "max_new_tokens"):
      if getattr(self, name) < 1:
        raise InputError(
            f"sampler.{name}={getattr(self, name)}: expected at least 1")
    for name, known in (("dtype", decoder.DTYPES),
                        ("attention", attention.CHOICES),
                        ("precision", precision_lib.PRECISIONS)):
      if getattr(self, name) not in known:
        raise InputError(f"sampler.{name}={getattr(self, name)!r}: expected "
                         f"one of {', '.join(known)}")
    for name, known in (("weights", WEIGHTS), ("cache", tuple(CACHES)),
                        ("head_dtype", decoder.HEAD_DTYPES)):
      if getattr(self, name) not in (None, *known):
        raise InputError(f"sampler.{name}={getattr(self, name)!r}: expected "
                         f"None, for sampler.dtype, or {', '.join(known)}")
    if self.temperature < 0:
      raise InputError(f"sampler.temperature={self.temperature}: expected >= 0")
    if not 0 < self.top_p <= 1:
      raise InputError(f"sampler.top_p={self.top_p}: expected in (0, 1]")
    if self.page is not None and self.page < 1:
      raise InputError(f"sampler.page={self.page}: expected at least 1 "
                       "position, or None for a cache without pages")
    if self.expected_tokens is not None and not (
        1 <= self.expected_tokens <= self.max_new_tokens):
      raise InputError(
          f"sampler.expected_tokens={self.expected_tokens}: expected None, or "
          f"from 1 to max_new_tokens={self.max_new_tokens}")
    sizes_lib.check_shrink(self.shrink)
    if self.memory_gib <= 0:
      raise InputError(f"sampler.memory_gib={self.memory_gib}: expected > 0")

  @property
  def chunk(self) -> int:
    """Tokens decoded between two checks for slots that have ended."""
    return sizes_lib.chunk(self.max_new_tokens)


STEP = 32  # tokens; a smaller step of length saves less than its program costs


class Sampler(typing.NamedTuple):
  """Jitted calls and their sizes; slots and windows are those of all devices.
  """

  mesh: jax.sharding.Mesh | None  # None: simulated
  G: int  # blocks, one for each row shard
  chunk: int  # tokens of a call
  max_new_tokens: int  # T
  slots: int  # as in the config, not rounded up to blocks
  row_sizes: tuple[int, ...]  # slots of a call
  length_sizes: tuple[int, ...]  # of the cache
  prompt_sizes: tuple[int, ...]  # prompt lengths that are prefilled
  window: int  # prompts prefilled at once in a block
  gathered: bool  # each fsdp shard holds whole weights
  casts: dict  # of each parameter, to the dtype and sharding of decoding
  prepare: typing.Callable  # float parameters -> cast, if they are not yet
  place: typing.Callable  # host arrays of rows -> of the devices
  empty: typing.Callable  # (R, L) -> cache
  prefill: typing.Callable  # (params, Prompts) -> cache of the window
  reread: typing.Callable  # like prefill, of prompts with tokens behind them
  insert: typing.Callable  # (cache, window's cache, row, slot) -> cache
  resize: typing.Callable  # (part of a cache, rows to keep, L) -> the part
  decode: typing.Callable  # see decode.make_decode
  interrupt: interrupt_lib.Interrupt | None  # None: off
  pool: paged.Pool | None  # of pages; None: a cache of `length_sizes`


def prompt_kernel(model: decoder.Transformer, cfg: SamplerConfig) -> str:
  """Returns the attention kernel of prompts; InputError as attention.choose."""
  return attention.choose(
      cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
      precision=cfg.precision, length=cfg.max_prompt_tokens,
      knob="sampler.attention")


def sequence_kernel(model: decoder.Transformer, cfg: SamplerConfig) -> str:
  """Returns the kernel of prompts with tokens; errors as `prompt_kernel`."""
  return attention.choose(
      cfg.attention, model.cfg, model.mesh, dtype=cfg.dtype,
      precision=cfg.precision,
      length=cfg.max_prompt_tokens + cfg.max_new_tokens,
      knob="sampler.attention")


def sizes(cfg: SamplerConfig, G: int) -> dict:
  """Returns the fields of `Sampler` that are sizes, for G blocks."""
  S, T = cfg.max_prompt_tokens, cfg.max_new_tokens
  row_sizes = sizes_lib.row_sizes(cfg.slots, G, cfg.shrink)
  return dict(
      G=G, chunk=cfg.chunk, max_new_tokens=T, slots=cfg.slots,
      row_sizes=row_sizes,
      length_sizes=queue_lib.shares(4, -(-(S + T - 1) // 16) * 16, STEP),
      prompt_sizes=queue_lib.shares(4, S, STEP),
      window=sizes_lib.prefilled(row_sizes[-1] // G, S,
                                  paged=cfg.page is not None))


def check_page(cfg: SamplerConfig, mesh) -> None:
  """Raises InputError if the page does not suit the layout of the devices."""
  if cfg.page and mesh.devices.flat[0].platform == "tpu" and (
      cfg.page % kernels.LANES):
    raise InputError(
        f"sampler.page={cfg.page}: TPUs would pad a page to a multiple of "
        f"{kernels.LANES} positions; use such a multiple, or None")


def most_pages(cfg: SamplerConfig, G: int) -> int:
  """Returns the pages of a block with which no pool is ever exhausted."""
  return sizes(cfg, G)["row_sizes"][-1] // G * pages_lib.count(
      cfg.max_prompt_tokens + cfg.max_new_tokens - 1, cfg.page)


def make_sampler(model: decoder.Transformer, cfg: SamplerConfig,
                 eos: tuple[int, ...], *, gathered: bool = True,
                 interrupt: interrupt_lib.Interrupt | None = None,
                 pages: int | None = None) -> Sampler:
  """Builds the jitted calls for `cfg.slots` slots, rounded up to the blocks.

  Temperature and top_p are traced values. Slots and prompts are sharded by
  blocks, keys and values also by heads.

  Args:
    model: the policy.
    cfg: shapes and dtypes.
    eos: tokens that end a rollout.
    gathered: whether each fsdp shard holds whole weights while sampling,
      gathered once instead of at every token.
    interrupt: cfg.interrupt in tokens; None: off.
    pages: of a block, if cfg.page is set; None: `most_pages`.
  """
  mesh, rows = model.mesh, mesh_lib.row_sharding(model.mesh)
  check_page(cfg, mesh)
  model = model.clone(dtype=cfg.dtype, head_dtype=cfg.head_dtype)
  reader = model.clone(attention=prompt_kernel(model, cfg))
  on_tpu = mesh.devices.flat[0].platform == "tpu"
  dtype = jnp.dtype(cfg.dtype)
  cache_dtype = CACHES[cfg.cache] if cfg.cache else dtype
  weights = jax.tree.map(
      lambda x: mesh_lib.whole_rows(x.sharding) if gathered else x.sharding,
      decoder.abstract_params(model))
  read, cache = mesh_lib.read_rows(mesh), cache_lib.sharding(model)

  precise = functools.partial(
      precision_lib.traced,
      precision=precision_lib.of_dtype(cfg.precision, cfg.dtype))

  # Named functions, because profiles show the names.
  def cast(param):
    return param.astype(dtype)

  def cast_head(param):
    return param.astype(cfg.head_dtype)

  def empty(R, L):
    return decoder.init_cache(model.cfg, R, L, cache_dtype)

  def prefill_prompts(params, prompts):
    return prefill.prompt_cache(reader, params, prompts, cache_dtype)

  def reread_sequences(params, prompts):
    again = model.clone(attention=sequence_kernel(model, cfg))
    return prefill.prompt_cache(again, params, prompts, cache_dtype)

  def caster(path, sharding):
    name = path[-1].key
    if cfg.head_dtype and name == decoder.head_name(model.cfg):
      return jax.jit(cast_head, out_shardings=sharding)
    if cfg.weights is None or name not in int8.INPUTS:
      return jax.jit(cast, out_shardings=sharding)
    return jax.jit(functools.partial(int8.quantized, inputs=int8.INPUTS[name]),
                   out_shardings=int8.shardings(sharding, int8.INPUTS[name]))

  # One program per parameter: in a single program all of them are there twice,
  # gathered and laid out.
  casts = jax.tree.map_with_path(caster, weights)

  def is_cast(path, param, sharding):
    wanted = dtype
    if cfg.head_dtype and path[-1].key == decoder.head_name(model.cfg):
      wanted = jnp.dtype(cfg.head_dtype)
    return param.dtype == wanted and param.sharding.is_equivalent_to(
        sharding, param.ndim)

  def prepare(params):
    if cfg.weights is None and all(jax.tree.leaves(
        jax.tree.map_with_path(is_cast, params, weights))):
      return params
    return jax.tree.map(lambda each, x: each(x), casts, params)

  pool = None if cfg.page is None else paged.Pool(
      page=cfg.page, pages=pages or most_pages(cfg, mesh_lib.blocks(mesh)),
      longest=cfg.max_prompt_tokens + cfg.max_new_tokens - 1,
      **{name: jax.jit(call, donate_argnums=0, static_argnames="offsets",
                       out_shardings=cache) for name, call in (
                           ("insert", paged_cache.insert),
                           ("move", paged_cache.move))})

  return Sampler(
      mesh=mesh, **sizes(cfg, mesh_lib.blocks(mesh)), gathered=gathered,
      casts=casts, prepare=prepare,
      place=lambda tree: mesh_lib.place(tree, rows),
      empty=jax.jit(empty, static_argnums=(0, 1), out_shardings=cache),
      prefill=jax.jit(precise(prefill_prompts), out_shardings=cache),
      reread=jax.jit(precise(reread_sequences), out_shardings=cache),
      insert=jax.jit(cache_lib.insert, donate_argnums=0, static_argnames="G",
                     out_shardings=cache),
      resize=jax.jit(cache_lib.resize, static_argnums=(2, 3),
                     out_shardings=cache),
      decode=jax.jit(
          precise(decode_lib.make_decode(model, C=cfg.chunk,
                                         T=cfg.max_new_tokens, eos=eos,
                                         buffered=on_tpu, interrupt=interrupt)),
          donate_argnums=1, static_argnames="kind",
          out_shardings=(cache, read, read)),
      interrupt=interrupt, pool=pool)


def shortened(s: Sampler, prompts: Prompts) -> Prompts:
  """Cuts prompts to the smallest prefill size that fits all of them."""
  return prefill.shortened(s.prompt_sizes, prompts)


def check_lengths(s: Sampler, prompts: Prompts) -> None:
  """Raises InputError if a prompt is longer than the sampler's largest."""
  longest = int(prompts.len_P.max())
  if longest > s.prompt_sizes[-1]:
    raise InputError(f"a prompt has {longest} tokens: expected at most sampler."
                     f"max_prompt_tokens={s.prompt_sizes[-1]}")


@dataclasses.dataclass
class _Held:
  """Caches on the devices. The only references: what is dropped is freed."""

  cache: decoder.KVCache  # of the slots
  window: decoder.KVCache | None  # of the prompts prefilled last


def resize_cache(s: Sampler, held, take_GxR, L: int) -> None:
  """Keeps rows of a cache and changes its length.

  Each layer's keys or values are freed before the next are copied, so the peak
  is the new cache and one old part.

  Args:
    s: the sampler.
    held: its attribute `cache` has the only reference to the cache.
    take_GxR: the rows inside their block to keep.
    L: the new length.
  """
  take = s.place(take_GxR)
  k, v = list(held.cache.k), list(held.cache.v)
  held.cache = None  # or the old parts would stay until the last is copied
  for axis, parts in ((3, k), (2, v)):
    for i in range(len(parts)):
      parts[i] = s.resize(parts[i], take, L, axis)
  held.cache = decoder.KVCache(tuple(k), tuple(v))


def _fit(s: Sampler, q: queue_lib.Queue, held: _Held) -> None:
  """Makes the cache long enough for the next chunk.

  Keeps fewer rows if nothing waits and a smaller size is enough.
  """
  R, L = held.cache.v[0].shape[0], held.cache.v[0].shape[2]
  last = q.row.position_R[q.row.active_R].max(initial=0)
  longer = queue_lib.smallest(
      s.length_sizes, min(int(last) + s.chunk, s.length_sizes[-1]))
  fewer = R if q.waiting else queue_lib.smallest(
      s.row_sizes, q.most_active * q.G)
  if longer <= L and fewer == R:
    return
  resize_cache(s, held, queue_lib.compact(q, fewer), longer)


def _refill(s: Sampler, q: queue_lib.Queue, params, held: _Held) -> None:
  """Gives free slots what waits, and prefills prompts for it."""
  while True:
    filled = queue_lib.fill(q)
    _fit(s, q, held)  # filled slots stay where they are, see `fill`
    if filled[0].size:
      held.cache = s.insert(held.cache, held.window,
                            *s.place(filled), G=q.G)
    if not q.starving:
      return
    held.window = None  # freed before the next is made
    held.window = s.prefill(
        params, s.place(shortened(s, queue_lib.move_window(q))))


def _decode(s: Sampler, q: queue_lib.Queue, params, held: _Held, *more,
            kind: str):
  """Decodes a chunk; returns the state of the slots and what they drew."""
  held.cache, *after = s.decode(params, held.cache, s.place(q.row), *more,
                                kind=kind)
  return after


def stream(s: Sampler, params, prompts: Prompts, n: int, key, *,
           temperature, top_p, interrupt_B=None, expected_P=None):
  """Samples n rollouts of each prompt and yields them as they end.

  The devices decode the next chunk while the caller works on what was yielded.
  A caller that stops iterating ends sampling after that chunk.

  Args:
    s: the sampler.
    params: of the policy; cast by `Sampler.prepare`.
    prompts: host arrays, one entry a problem.
    n: rollouts of each prompt.
    key: the random stream; rollouts fold in problem, index and position.
    temperature, top_p: numbers.
    interrupt_B: see interrupt.lengths; None: no rollout is interrupted.
    expected_P: see queue.start; it changes the order, and no token.

  Yields:
    After each chunk: (items that ended, problem * n + rollout, maybe none;
    Rollouts of all items as far as they are drawn, host arrays that go on
    filling; those of ended items are final). Inserted tokens are marked after
    the last chunk.

  Raises:
    InputError: a prompt is longer than the sampler's largest.
  """
  check_lengths(s, prompts)
  G, params = s.G, s.prepare(params)
  kind = draw_lib.kind_of(temperature, top_p)
  wanted = min(-(-len(prompts.len_P) * n // G) * G, s.row_sizes[-1])
  R = queue_lib.smallest(s.row_sizes, wanted)
  if s.interrupt is not None and interrupt_B is None:  # beyond the last token
    interrupt_B = np.full(len(prompts.len_P) * n, s.max_new_tokens, np.int32)
  q = queue_lib.start(prompts, n, G=G, R=R, W=s.window, T=s.max_new_tokens,
                      interrupt_B=interrupt_B, expected_P=expected_P)
  held = (_Held(s.empty(R, s.length_sizes[0]), None) if s.pool is None
          else paged.start(s, q))
  ended = np.zeros(0, np.int64)
  while True:
    (_refill if s.pool is None else paged.refill)(s, q, params, held)
    if not q.row.active_R.any():
      break
    after = (_decode if s.pool is None else paged.decode)(
        s, q, params, held, key, np.float32(temperature), np.float32(top_p),
        kind=kind)
    yield ended, q.out
    ended = queue_lib.harvest(q, *queue_lib.read(*after))
  if s.interrupt is not None:
    q.out = q.out.replace(forced_RxT=interrupt_lib.forced(
        q.out.tokens_RxT, q.out.len_R, interrupt_B, s.interrupt))
  if s.pool is not None:
    q.out = q.out.replace(put_back_R=held.put_back_B)
  yield ended, q.out


def sample_all(s: Sampler, params, prompts: Prompts, n: int, key, *,
               temperature, top_p, interrupt_B=None,
               expected_P=None) -> Rollouts:
  """Samples n rollouts of each prompt: problem-major host arrays [B, ...].

  Arguments and errors are those of `stream`.
  """
  for _, rollouts in stream(s, params, prompts, n, key,
                            temperature=temperature, top_p=top_p,
                            interrupt_B=interrupt_B, expected_P=expected_P):
    pass
  return rollouts
