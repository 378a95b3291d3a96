"""In-flight updates (PipelineRL): sampling continues while the weights change.

1. Slots take the rollouts of consecutive problems, also of later steps.
2. As soon as Bp groups are complete, they become the batch of a step. A batch
   waits for a long answer only if that answer would become too old otherwise,
   see `in_flight_queue`.
3. The other rollouts keep their tokens, and the log-probs of the weights that
   drew them. Prompt and tokens are prefilled again with the next weights.

The state between two steps is `InFlight`: tokens without caches. A batch is a
function of (state, weights, version), so a resumed run repeats it exactly. With
caches="stale" the caches are kept and a swap costs nothing. They are not saved:
a resumed run prefills again, and its results differ from then on.

Random numbers have the addresses of `sampler`, so at equal weights the tokens
are those of `sampler`. Which weights draw a token depends on sampler.slots and
on the lengths of all answers, but not on the mesh.

Sources: PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786, section 3.
"""

import dataclasses
import typing

import jax
import numpy as np

from isojax import mesh as mesh_lib
from isojax.models import decoder
from isojax.sampling import draw as draw_lib
from isojax.sampling import in_flight_queue as flight
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import prefill
from isojax.sampling import queue
from isojax.sampling import sampler as sampler_lib
from isojax.types import Prompts
from isojax.types import Rollouts


class Handed(typing.NamedTuple):
  """A batch: Bp complete groups, by position."""

  position_Bp: np.ndarray  # int64, in the data order of the run
  rollouts: Rollouts  # of B = Bp * n
  version_RxT: np.ndarray  # int32, of the weights that drew each token


def staleness(handed: Handed, version: int) -> tuple[float, int]:
  """Returns mean and maximum over tokens of the versions since it was drawn."""
  T = handed.version_RxT.shape[1]
  drawn = np.arange(T)[None] < handed.rollouts.len_R[:, None]
  age_X = version - handed.version_RxT[drawn]
  return float(age_X.mean()), int(age_X.max())


@dataclasses.dataclass
class Carried:
  """Slots and their caches; kept between two steps only for stale caches."""

  slots: flight.Slots
  cache: decoder.KVCache
  window: decoder.KVCache | None = None  # of the sequences read last
  # For each block: (position, rollout or None for a prompt) -> window's slot.
  known: tuple[dict, ...] = ()


@dataclasses.dataclass
class _Call:
  """What stays constant while one batch is sampled."""

  s: sampler_lib.Sampler
  params: dict
  pool: flight.Pool
  waiting: flight.Waiting
  on: Carried


def _rows_needed(s: sampler_lib.Sampler, count: int, G: int) -> int:
  """Returns the slots of the calls that decode `count` rollouts."""
  wanted = -(-min(count, s.slots) // G) * G
  return queue.smallest(s.row_sizes, min(wanted, s.row_sizes[-1]))


def _fit(call: _Call, items: list[int]) -> None:
  """Makes the cache large enough for the next chunk of slots and new items.

  Keeps fewer slots if nothing waits and a smaller size is enough.
  """
  s, slots, on = call.s, call.on.slots, call.on
  R, L = on.cache.v[0].shape[0], on.cache.v[0].shape[2]
  active = slots.row.active_R
  last = max([int(slots.row.position_R[active].max(initial=0))] + [
      len(flight.sequence(call.pool, call.waiting.source, i)) - 1
      for i in items])
  longer = max(L, queue.smallest(
      s.length_sizes, min(last + s.chunk, s.length_sizes[-1])))
  wanted = int(active.sum()) + len(items) + call.waiting.count
  most = int(slots.active_GxR.sum(axis=1).max()) * slots.G
  rows = max(_rows_needed(s, wanted, slots.G),
             queue.smallest(s.row_sizes, most))
  if longer == L and rows == R:
    return
  sampler_lib.resize_cache(s, on, flight.resized(slots, rows), longer)


def _name(pool: flight.Pool, item: int) -> tuple:
  """Returns the key in Carried.known of what an item continues."""
  position = int(pool.position_E[item // pool.n])
  drawn = pool.out.len_R[item] > 0
  return position, item % pool.n if drawn else None


def read_rows(s: sampler_lib.Sampler, L: int) -> int:
  """Returns the sequences of length L that a block reads at once."""
  return prefill.sequences_at_once(s.window, s.prompt_sizes[-1], L)


def _read(call: _Call, pending: list) -> None:
  """Reads the next sequences of each block: the window is replaced.

  Sequences of the pending items come first, then the prompts that follow.
  """
  s, pool, source = call.s, call.pool, call.waiting.source

  def prompt(position):
    i = source.index(position)
    return source.prompts.tokens_PxS[i, :source.prompts.len_P[i]]

  ahead = {(position, None): prompt(position)
           for position in call.waiting.next_positions(s.window)}
  blocks = []
  for block in pending:
    items = {_name(pool, item): item for _, item in block}
    blocks.append({name: flight.sequence(pool, source, items[name])
                   for name in list(items)[:s.window]})
  known = [x for block in blocks for x in block.values()]
  prompts_only = all(number is None for block in blocks for _, number in block)
  L = queue.smallest(
      tuple(sorted({*s.prompt_sizes, *s.length_sizes})),
      max(map(len, known + prompts_only * list(ahead.values()))))
  W = read_rows(s, L)
  tokens = np.zeros((len(pending), W, L), np.int32)
  length = np.ones((len(pending), W), np.int32)
  for g, block in enumerate(blocks):
    short = {name: x for name, x in ahead.items() if len(x) <= L}
    blocks[g] = block = dict(list((block | short).items())[:W])
    for slot, x in enumerate(block.values()):
      tokens[g, slot, :len(x)], length[g, slot] = x, len(x)
  call.on.window = None  # freed before the next is made
  call.on.window = s.reread(call.params, mesh_lib.place(
      Prompts(tokens.reshape(-1, L), length.reshape(-1),
              np.zeros(length.size, np.uint32)),
      mesh_lib.row_sharding(s.mesh)))
  call.on.known = tuple({name: slot for slot, name in enumerate(block)}
                        for block in blocks)


def _insert(call: _Call, pending: list) -> list:
  """Copies what the window has into the slots; returns what is pending."""
  slots, pool, known = call.on.slots, call.pool, call.on.known
  R_b = slots.active_GxR.shape[1]
  found, left = [[] for _ in pending], [[] for _ in pending]
  for g, block in enumerate(pending):
    for row, item in block:
      name = _name(pool, item)
      has = known and name in known[g]
      (found if has else left)[g].append(
          (row, known[g][name] if has else item))
  most = max(len(block) for block in found)
  if most:
    F = queue.smallest((-(-R_b // 8), R_b), most)
    row_GxF = np.full((slots.G, F), R_b, np.int32)
    slot_GxF = np.zeros((slots.G, F), np.int32)
    for g, block in enumerate(found):
      for f, (row, slot) in enumerate(block):
        row_GxF[g, f], slot_GxF[g, f] = row, slot
    call.on.cache = call.s.insert(
        call.on.cache, call.on.window, *mesh_lib.place(
            (row_GxF, slot_GxF), mesh_lib.row_sharding(call.s.mesh)),
        G=slots.G)
  return left


def _fill(call: _Call) -> None:
  """Gives free slots what waits, and reads sequences for it."""
  slots, pool = call.on.slots, call.pool
  items = call.waiting.take(call.s.slots - int(slots.row.active_R.sum()))
  _fit(call, items)
  pending = flight.placed(slots, items)
  R_b = slots.active_GxR.shape[1]
  for g, block in enumerate(pending):
    flight.hold(slots, pool, call.waiting.source,
               [g * R_b + row for row, _ in block], [i for _, i in block],
               call.s.interrupt)
  pending = _insert(call, pending)
  while any(pending):
    _read(call, pending)
    pending = _insert(call, pending)


def _opened(s: sampler_lib.Sampler, params, pool: flight.Pool,
            source: flight.Source, carried: Carried | None, *, version: int,
            most: int) -> _Call:
  """Returns the call of a step: its slots, and what waits for them."""
  G = mesh_lib.blocks(s.mesh)
  held = carried.slots.held if carried else np.zeros(0, np.int64)
  waiting = flight.waiting(pool, source, held, version=version, most=most)
  if carried is None:
    R = _rows_needed(s, waiting.count, G)
    carried = Carried(
        flight.free_slots(G, R, interrupted=s.interrupt is not None),
        s.empty(R, s.length_sizes[0]))
  return _Call(s, s.prepare(params), pool, waiting, carried)


def _handed(call: _Call, chosen) -> Handed:
  """Returns the batch of the chosen groups of the pool."""
  s, pool, source = call.s, call.pool, call.waiting.source
  items = flight.items_of(chosen, pool.n)
  rollouts = jax.tree.map(lambda x: x[items], pool.out)
  if s.interrupt is not None:
    rollouts = rollouts.replace(forced_RxT=interrupt_lib.forced(
        rollouts.tokens_RxT, rollouts.len_R, flight.lengths_of(
            source, pool.position_E[chosen], n=pool.n, T=s.max_new_tokens),
        s.interrupt))
  return Handed(pool.position_E[chosen], rollouts, pool.version_RxT[items])


def next_batch(s: sampler_lib.Sampler, params, state: flight.InFlight,
               source: flight.Source, *, version: int, Bp: int, n: int, k: int,
               temperature, top_p, ended, carried: Carried | None):
  """Samples until Bp groups can be handed over.

  Args:
    s: the sampler.
    params: of the policy; cast by `Sampler.prepare`.
    state: the groups in flight; left as it is.
    source: the problems of the run.
    version: steps that `params` have made.
    Bp, n: groups of a batch, rollouts of a group.
    k: largest staleness, in versions.
    temperature, top_p: numbers.
    ended: called after each chunk, while the devices decode the next one, with
      (positions, rollouts within their groups, Rollouts) of what is complete,
      maybe nothing; at first that of `state`. An error that it raises ends
      sampling.
    carried: the result of the previous call, to continue with stale caches;
      None: unfinished rollouts are read again.

  Returns:
    Handed, the next state, and Carried.

  Raises:
    InputError: a prompt is longer than the sampler's largest.
  """
  sampler_lib.check_lengths(s, source.prompts)
  rows = mesh_lib.row_sharding(s.mesh)
  kind, most = draw_lib.kind_of(temperature, top_p), (k + 1) * Bp
  pool = flight.opened(state, n=n, T=s.max_new_tokens, most=most)
  call = _opened(s, params, pool, source, carried, version=version, most=most)
  carried = call.on
  done = np.flatnonzero(pool.done_R)

  def tell(items):
    ended(pool.position_E[items // n], items % n,
          jax.tree.map(lambda x: x[items], pool.out))

  while True:
    chosen = flight.handed_over(
        pool.version_E[:pool.groups], pool.complete_E, version=version, k=k,
        Bp=Bp)
    if chosen is not None:
      break
    _fill(call)
    slots = carried.slots
    key = jax.random.wrap_key_data(
        mesh_lib.place(slots.key_Rx2, rows), impl="threefry2x32")
    carried.cache, *after = s.decode(
        call.params, carried.cache, mesh_lib.place(slots.row, rows), key,
        np.float32(temperature), np.float32(top_p), kind=kind)
    tell(done)
    done = flight.harvest(slots, pool, *queue.read(*after),
                         version=version)
  tell(done)
  carried.window, carried.known = None, ()  # of these weights
  kept = np.setdiff1d(np.arange(pool.groups), chosen)
  handed = _handed(call, chosen)
  flight.renumber(carried.slots, kept, n)
  return handed, flight.closed(pool, kept, source), carried
