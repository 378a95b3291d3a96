"""Samples rollouts by continuous batching: finished slots are refilled.

1. Prompts are prefilled in batches, once for all rollouts of a problem.
   `one_batch_source` gives the order: the longest expected rollouts first, or
   without expected lengths the shortest prompts.
2. A slot takes the next rollout of the queue and its prompt's keys and values.
3. All slots decode a chunk of tokens in one jitted call. A token is drawn by
   inverse CDF from one uniform number, which is a function of (key, problem,
   rollout, position), so slots and their order matter by rounding alone.
4. On the host, `_refill` gives free slots the next rollouts: `candidates` and
   `fill` of scheduler.Scheduler say which, `allocate` and `insert` of a cache
   where. When the queue is empty, fewer slots are decoded.

`next_batch` samples until a batch is complete, see `flight`, where k is the
largest staleness. With k = 0 a batch has the rollouts of one step (synchronous
sampling). With k > 0, in-flight updates (PipelineRL), rollouts outside the
batch keep their tokens and the log-probs of the weights that drew them. Prompt
and tokens are prefilled again with the next weights. Which weights draw a token
then depends on the slots.

Programs have the shapes of `Sizes` for any n and any problems of a step, so a
sweep compiles each program once.

Sources: PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786, section 3.
"""

import dataclasses
from dataclasses import field
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core import kernels
from isojax.core.identity import LAST_BITS
from isojax.errors import expect, expect_one_of, InputError
from isojax.models import attention, decoder
from isojax.models import precision as precision_lib
from isojax.runtime import mesh as mesh_lib
from isojax.sampling import cache as cache_lib
from isojax.sampling import decode as decode_lib
from isojax.sampling import draw as draw_lib
from isojax.sampling import flight as flight_lib
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import sizes as sizes_lib
from isojax.sampling.scheduler import Scheduler
from isojax.types import Prompts, Rollouts


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Shapes and distribution of sampling."""

  # Rollouts decoded at once; fewer if memory_gib is too small for them.
  slots: int = field(metadata=LAST_BITS)
  # Memory of each device for the weights, cache and logits of sampling.
  memory_gib: float = field(metadata=LAST_BITS)
  max_prompt_tokens: int  # S
  max_new_tokens: int  # T, EOS included
  temperature: float  # 0 is greedy
  dtype: str  # of activations, weights, keys and values
  # Attention kernel of the prefill, one of attention.CHOICES.
  attention: str = field(metadata=LAST_BITS)
  precision: str  # of float32 products, one of precision.PRECISIONS
  # Dtype of the head, one of decoder.HEAD_DTYPES; None: `dtype`.
  head_dtype: str | None
  # Positions of a page of the cache; None: no pages, slots of equal length.
  page: int | None = field(metadata=LAST_BITS)
  # Mean new tokens, for the number of slots of a paged cache; None: the share
  # memory.MEAN_RESPONSE of max_new_tokens.
  expected_tokens: float | None = field(metadata=LAST_BITS)
  interrupt: interrupt_lib.InterruptConfig = interrupt_lib.OFF

  def __post_init__(self):
    expect_one_of(
        "sampler", self, dtype=decoder.DTYPES, attention=attention.CHOICES,
        precision=precision_lib.PRECISIONS,
        head_dtype=(None, *decoder.HEAD_DTYPES))
    page, mean, T = self.page, self.expected_tokens, self.max_new_tokens
    expect(
        "sampler", self,
        slots=(self.slots >= 1, "at least 1"),
        memory_gib=(self.memory_gib > 0, "> 0"),
        max_prompt_tokens=(self.max_prompt_tokens >= 1, "at least 1"),
        max_new_tokens=(T >= 1, "at least 1"),
        temperature=(self.temperature >= 0, ">= 0"),
        page=(page is None or page >= 1,
              "at least 1 position, or None for a cache without pages"),
        expected_tokens=(mean is None or 1 <= mean <= T,
                         f"None, or from 1 to max_new_tokens={T}"))


class Sampler(typing.NamedTuple):
  """Sizes and jitted functions of the sampler."""

  mesh: jax.sharding.Mesh
  slots: int  # of the config, not rounded up to blocks
  sizes: sizes_lib.Sizes
  page: int | None  # positions of a page; None: no pages
  pages: int | None  # of a block's pool; None: no pages
  weights_gathered: bool  # whether each fsdp shard holds whole weights
  interrupt: interrupt_lib.Interrupt | None  # None: off
  casts: dict  # tree of functions that cast and reshard one parameter each
  prepare: typing.Callable  # applies `casts`, unless all parameters are cast
  place: typing.Callable  # copies host arrays of rows to the devices
  empty: typing.Callable  # makes a cache for (rows or pages, positions)
  prefill: typing.Callable  # makes a window's cache from (params, Prompts)
  insert: typing.Callable  # see cache.insert and cache.insert_pages
  resize: typing.Callable  # see cache.resize
  decode: typing.Callable  # see decode.make_decode

  @property
  def G(self) -> int:
    """Blocks, one for each row shard."""
    return mesh_lib.num_blocks(self.mesh)

  @property
  def layout(self) -> tuple[int, int, int]:
    """See InFlightState.sampler_layout."""
    return self.slots, self.pages or 0, self.G


def kernel(model: decoder.Transformer, cfg: SamplerConfig, length: int) -> str:
  """The attention kernel of a prefill, see attention.choose."""
  return attention.choose(cfg, model, length=length, knob="sampler.attention")


def make_sampler(model: decoder.Transformer, cfg: SamplerConfig,
                 eos: tuple[int, ...], *, weights_gathered: bool = True,
                 interrupt: interrupt_lib.Interrupt | None = None,
                 pages: int | None = None) -> Sampler:
  """Builds a sampler of `cfg.slots` slots, rounded up to a multiple of blocks.

  Slots and prompts are sharded by blocks, keys and values also by heads.

  Args:
    eos: tokens that end a rollout.
    weights_gathered: whether each fsdp shard holds whole weights while
      sampling, gathered once instead of at every token.
    interrupt: cfg.interrupt in tokens; None: off.
    pages: pages of a block, with cfg.page; None: as many as all slots can use.
  """
  mesh, row_sharding = model.mesh, mesh_lib.row_sharding(model.mesh)
  on_tpu = mesh.devices.flat[0].platform == "tpu"
  if cfg.page and on_tpu and cfg.page % kernels.LANES:
    raise InputError(
        f"sampler.page={cfg.page}: TPUs would pad a page to a multiple of "
        f"{kernels.LANES} positions; use such a multiple, or None")
  model = model.clone(dtype=cfg.dtype, head_dtype=cfg.head_dtype)
  kernel(model, cfg, cfg.max_prompt_tokens)  # raises if it is not supported
  readable = mesh_lib.host_readable_rows(mesh)
  cache_sharding = cache_lib.sharding(model)
  G, paged = mesh_lib.num_blocks(mesh), cfg.page is not None
  sizes = sizes_lib.program_sizes(
      cfg.slots, cfg.max_prompt_tokens, cfg.max_new_tokens, G, paged=paged)
  if paged and pages is None:
    pages = sizes.rows[-1] // G * -(-sizes.longest // cfg.page)
  precise = functools.partial(
      precision_lib.traced,
      precision=precision_lib.precision_for(cfg.precision, cfg.dtype))

  # Named functions, because profiles show the names.
  def empty(R, L):
    return decoder.init_cache(model.cfg, R, L, jnp.dtype(cfg.dtype))

  def prefill(params, prompts):
    S, longest = prompts.tokens_PxS.shape[1], cfg.max_prompt_tokens
    if S > longest:  # prompts with drawn tokens, see Sizes.prefill_lengths
      longest += cfg.max_new_tokens
    return decoder.prompt_cache(
        model.clone(attention=kernel(model, cfg, longest)), params, prompts,
        jnp.dtype(cfg.dtype))

  casts, prepare = _casts(model, cfg, weights_gathered)
  decode = decode_lib.make_decode(
      model, C=sizes.chunk, T=cfg.max_new_tokens, eos=eos, buffered=on_tpu,
      interrupt=interrupt)
  return Sampler(
      mesh=mesh, slots=cfg.slots, sizes=sizes, page=cfg.page,
      pages=pages, weights_gathered=weights_gathered, interrupt=interrupt,
      casts=casts, prepare=prepare,
      place=lambda tree: mesh_lib.place(tree, row_sharding),
      empty=jax.jit(empty, static_argnums=(0, 1), out_shardings=cache_sharding),
      prefill=jax.jit(precise(prefill), out_shardings=cache_sharding),
      insert=jax.jit(cache_lib.insert_pages if paged else cache_lib.insert,
                     donate_argnums=0, out_shardings=cache_sharding),
      resize=jax.jit(cache_lib.resize, static_argnums=(2, 3),
                     out_shardings=cache_sharding),
      decode=jax.jit(precise(decode), donate_argnums=1, static_argnames="kind",
                     out_shardings=(cache_sharding, readable, readable)))


def _casts(model: decoder.Transformer, cfg: SamplerConfig,
           weights_gathered: bool):
  """The cast of each parameter for decoding, and `prepare` for all of them.

  Each parameter is cast by itself: a single program would hold all parameters
  twice, gathered and in the layout of decoding.
  """
  shardings = jax.tree.map(
      lambda x: (mesh_lib.without_fsdp(x.sharding) if weights_gathered
                 else x.sharding),
      decoder.abstract_params(model))
  head = decoder.head_name(model.cfg) if cfg.head_dtype else None
  dtype = lambda name: jnp.dtype(
      cfg.head_dtype if name == head else cfg.dtype)

  # Parameters of equal sharding share a function, and of equal shape a program.
  @functools.cache
  def cast_to(target, sharding):
    def cast(param):
      return param.astype(target)

    return jax.jit(cast, out_shardings=sharding)

  def is_cast(path, param, sharding):
    return param.dtype == dtype(path[-1].key) and (
        param.sharding.is_equivalent_to(sharding, param.ndim))

  casts = jax.tree.map_with_path(
      lambda path, sharding: cast_to(dtype(path[-1].key), sharding), shardings)

  def prepare(params):
    if all(jax.tree.leaves(
        jax.tree.map_with_path(is_cast, params, shardings))):
      return params
    return jax.tree.map(lambda cast, x: cast(x), casts, params)

  return casts, prepare


def shortened(sampler: Sampler, prompts: Prompts) -> Prompts:
  """Cuts prompts to the smallest prefill length that fits all of them."""
  S = sizes_lib.smallest(sampler.sizes.prompts, int(prompts.len_P.max()))
  return prompts.replace(tokens_PxS=prompts.tokens_PxS[:, :S])


def _refill(sampler: Sampler, scheduler: Scheduler, params, cache) -> None:
  """Prefills the sequences of waiting rollouts, and gives these free slots.

  Repeats until no slot is free or no rollout waits. The scheduler and the cache
  do not know each other: what one decides is passed to the other here, as
  types.Candidates and arrays of slots. `fill` starts the groups that it takes.
  """
  slots = scheduler.slots
  # Room for the next chunk of those that decode; it may evict some.
  scheduler.evict(cache.reserve(
      slots.row.active_R, slots.row.position_R, slots.row.count_R))
  while True:
    # Waiting rollouts whose prompt is prefilled take free slots.
    candidates = scheduler.candidates()
    scheduler.fill(candidates, cache.allocate(candidates))
    # Longer rows, or fewer slots at the end of a batch.
    old_R = cache.fit(
        scheduler.wanted_slots, slots.row.active_R, slots.row.position_R)
    if old_R is not None:
      slots.keep(old_R)
    cache.insert()  # copies the prompts of the filled slots
    if not scheduler.starving:
      return
    cache.window = None  # frees the memory before the next prefill
    cache.window = sampler.prefill(
        params, sampler.place(scheduler.move_window()))


def next_batch(sampler: Sampler, params, flight: flight_lib.InFlightState,
               source: flight_lib.GroupSource, rule: flight_lib.BatchRule, *,
               version: int, temperature, top_p, on_ended):
  """Samples until a batch is complete.

  Args:
    params: parameters of the policy, before or after `Sampler.prepare`.
    flight: the state after the last batch; not changed.
    version: that of `params`, see `flight`.
    on_ended: called with the (Items, Rollouts) that ended in a chunk, maybe
      none, while the devices decode the next chunk. The first call has the
      complete rollouts of `flight`. If it raises, sampling stops.

  Returns:
    CompletedBatch, and the InFlightState after it.
  """
  longest = int(source.prompts.len_P.max())
  if longest > sampler.sizes.prompts[-1]:
    raise InputError(f"a prompt has {longest} tokens: expected at most sampler."
                     f"max_prompt_tokens={sampler.sizes.prompts[-1]}")
  params = sampler.prepare(params)
  kind = draw_lib.kind_of(temperature, top_p)
  scheduler = Scheduler(
      flight, source, rule, version=version, sizes=sampler.sizes, G=sampler.G,
      interrupt=sampler.interrupt)
  make_cache = cache_lib.Contiguous if sampler.page is None else cache_lib.Paged
  cache = make_cache(sampler, len(scheduler.slots.item_R))
  while (chosen := scheduler.progress.ready()) is None:
    _refill(sampler, scheduler, params, cache)
    cache.kv, *after = sampler.decode(
        params, cache.kv, sampler.place(scheduler.slots.row),
        np.float32(temperature), np.float32(top_p), kind=kind,
        **cache.decode_arguments())
    # Those of the chunk before, while the devices decode this one.
    on_ended(*scheduler.newly_ended())
    scheduler.harvest(*jax.device_get(after))
  on_ended(*scheduler.newly_ended())
  return scheduler.completed_batch(chosen), scheduler.remaining_state(chosen)


def one_batch_source(prompts: Prompts, n: int, key, *, interrupt_after=None,
                     expected_P=None) -> flight_lib.GroupSource:
  """The source of one batch: n rollouts of each prompt.

  The problems with the longest expected rollouts start first. Without
  expected_P, those with the shortest prompts start first, so that prompts of
  similar length are prefilled together. The order changes no token.

  Args:
    prompts: host arrays.
    n: rollouts of a prompt.
    key: the random stream; rollouts fold in problem, index and position.
    interrupt_after: see GroupSource.
    expected_P: expected new tokens of a rollout of each problem.
  """
  order = np.argsort(prompts.len_P if expected_P is None else
                     -np.asarray(expected_P), kind="stable")
  data = np.asarray(jax.random.key_data(key))
  return flight_lib.GroupSource(
      prompts=prompts, steps=1, key=lambda position: data,
      groups_of_step=lambda step: flight_lib.new_groups(
          order, order, n), interrupt_after=interrupt_after)


def sample_all(sampler: Sampler, params, prompts: Prompts, n: int, key, *,
               temperature, top_p, interrupt_after=None, expected_P=None,
               on_ended=lambda *_: None) -> Rollouts:
  """n rollouts of each prompt, problem-major; arguments of one_batch_source."""
  source = one_batch_source(prompts, n, key, interrupt_after=interrupt_after,
                            expected_P=expected_P)
  batch, _ = next_batch(
      sampler, params, flight_lib.empty_state(sampler.layout), source,
      flight_lib.BatchRule(len(prompts.len_P), 0), version=0,
      temperature=temperature, top_p=top_p, on_ended=on_ended)
  return batch.rollouts
