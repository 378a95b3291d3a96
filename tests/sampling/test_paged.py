"""A paged cache changes no token, also when its pool is exhausted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax import mesh as mesh_lib
from isojax import rng
from isojax.errors import InputError
from isojax.models import decoder
from isojax.sampling import sizes as slots_lib
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import paged
from isojax.sampling import paged_cache
from isojax.sampling import pages as pages_lib
from isojax.sampling import queue
from isojax.sampling import sampler as sampler_lib
from tests.conftest import RICH
from tests.conftest import TINY
from tests.conftest import make_model
from tests.conftest import random_params
from tests.sampling import test_sampler as sampling

S, T, EOS = sampling.S, sampling.T, sampling.EOS


@functools.cache
def make_sampler(model, *, pages=None, interrupt=None, **changes):
  cfg = dataclasses.replace(sampling.CONFIG, **changes)
  return sampler_lib.make_sampler(model, cfg, EOS, pages=pages,
                                  interrupt=interrupt)


def run(sampler, params, *, n=6, Bp=5, interrupt_B=None, temperature=1.0):
  return sampler_lib.sample_all(
      sampler, params, sampling.make_prompts(Bp), n,
      rng.stream(11, "rollout", 0), temperature=np.float32(temperature),
      top_p=np.float32(1), interrupt_B=interrupt_B)


def assert_equal_texts(got, want):
  np.testing.assert_array_equal(got.tokens_RxT, want.tokens_RxT)
  np.testing.assert_array_equal(got.len_R, want.len_R)
  np.testing.assert_array_equal(got.ended_R, want.ended_R)


def assert_equal(got, want):
  assert_equal_texts(got, want)
  # Of 1e-6, and of two roundings of a float32 log-prob.
  np.testing.assert_allclose(got.behavior_logp_RxT, want.behavior_logp_RxT,
                             rtol=2.0**-22, atol=1e-6)
  np.testing.assert_allclose(got.entropy_R, want.entropy_R, rtol=1e-5)


@pytest.fixture(scope="module")
def rollouts(model, params):
  """Those of 30 slots without pages."""
  return run(make_sampler(model), params)


@pytest.mark.parametrize("page, pages, put_back", [(3, None, False),
                                                   (2, 8, True)])
def test_pages_change_no_token(model, params, rollouts, page, pages, put_back):
  """8 pages of 2 positions hold one sequence of the longest."""
  got = run(make_sampler(model, slots=7, page=page, **(
      {"pages": pages} if pages else {})), params)
  assert_equal(got, rollouts)
  assert rollouts.put_back_R is None and (got.put_back > 3) == put_back
  # The rollouts that were put back are complete too.
  lost = got.put_back_R > 0
  assert (got.ended_R | (got.len_R == T))[lost].all()


@pytest.mark.parametrize("changes", [
    {}, {"dtype": "bfloat16"}, {"weights": "int8", "cache": "float8"}])
def test_greedy_texts_are_equal(model, params, changes):
  """Those of an exhausted pool too."""
  greedy = functools.partial(run, params=params, n=4, temperature=0.0)
  got = greedy(make_sampler(model, slots=7, page=2, pages=8, **changes))
  assert_equal_texts(got, greedy(make_sampler(model, **changes)))
  assert got.put_back and len({*got.len_R[::4].tolist()}) > 1


def test_bfloat16(model, params):
  """Rounding may change a token, whose rollout is another from there on."""
  got = run(make_sampler(model, slots=7, page=2, pages=8, dtype="bfloat16"),
            params)
  want = run(make_sampler(model, dtype="bfloat16"), params)
  differ = got.tokens_RxT != want.tokens_RxT
  before = np.cumsum(differ, axis=1) == 0
  # bfloat16 has 8 bits; logits are up to 6.
  np.testing.assert_allclose(
      got.behavior_logp_RxT[before], want.behavior_logp_RxT[before], atol=0.06)
  assert got.put_back and differ.any(axis=1).mean() < 0.2
  # What the pool holds is what the rollouts say that they have seen.
  forced, _ = sampling.teacher_forced(
      model, params, sampling.make_prompts(5), got, 6)
  drawn = np.arange(T)[None] < got.len_R[:, None]
  np.testing.assert_allclose(got.behavior_logp_RxT[drawn], forced[drawn],
                             atol=0.1)


def placed(model, params):
  return jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(model))


def test_each_shard_has_a_pool(params):
  """Two exhausted pools; heads over tensor; windows, norms and caps."""
  rich, sharded = make_model(RICH), make_model(RICH, fsdp=2, tensor=2)
  params = random_params(rich)
  want = run(make_sampler(rich, slots=15), params, n=3)
  got = run(make_sampler(sharded, slots=8, page=2, pages=9),
            placed(sharded, params), n=3)
  assert_equal(got, want)
  assert got.put_back


def test_int8_weights_and_a_float8_cache(model, params):
  changes = dict(slots=7, weights="int8", cache="float8")
  assert_equal(run(make_sampler(model, page=4, **changes), params),
               run(make_sampler(model, **changes), params))


def test_an_exhausted_pool_in_float8(model, params):
  """A rollout that was put back is read again as it was written."""
  changes = dict(weights="int8", cache="float8")
  want = run(make_sampler(model, **changes), params)
  got = run(make_sampler(model, slots=7, page=2, pages=8, **changes), params)
  assert got.put_back > 3
  assert_equal(got, want)


def test_an_interruption_goes_on_where_it_was(model, params):
  """A phrase of three tokens, and a text that prevents it."""
  it = interrupt_lib.Interrupt(phrase=(7, 4, 2), unless=(4, 9))
  lengths = np.random.default_rng(1).integers(1, 6, 30).astype(np.int32)
  each = functools.partial(run, params=params, interrupt_B=lengths)
  want = each(make_sampler(model, slots=7, interrupt=it))
  got = each(make_sampler(model, slots=7, interrupt=it, page=2, pages=8))
  assert_equal(got, want)
  np.testing.assert_array_equal(got.forced_RxT, want.forced_RxT)
  assert got.put_back and want.forced_RxT.any()


def test_arenas_are_made_and_dropped_as_pages_are_used(model, params, rollouts):
  """100 pages of one position: an eighth that may be shared, and two arenas.

  13 slots read all of them; the last 2, the first two arenas.
  """
  assert slots_lib.offsets(100) == (0, 13, 57, 100)
  s = make_sampler(model, slots=13, page=1, pages=100)
  seen, moved = [], []

  def decode(params, pool, *args, **more):
    seen.append([len(arena.k[0]) for arena in pool])
    return s.decode(params, pool, *args, **more)

  def move(*args, **more):
    moved.append(args)
    return s.pool.move(*args, **more)

  got = run(s._replace(decode=decode, pool=s.pool._replace(move=move)), params)
  assert_equal(got, rollouts)
  assert seen[0] == [13, 44, 43] and seen[-1] == [13, 44] and moved


def test_a_chunk_is_written_to_the_pages_of_its_rows():
  """3 tokens from positions 6 and 5 on; pages of 4, the first read by both."""
  none = 2  # the number of rows
  pages = paged_cache.Pages(
      (jnp.array([[0, 1], [none, none]]), jnp.array([[0], [0], [1]])),
      (jnp.array([0, 0]), jnp.array([4, 8, 4])))
  old = lambda P, *shape: (jnp.full((P, 1, *shape), -1.0),)
  pool = tuple(decoder.KVCache(old(P, 1, 4), old(P, 4, 1)) for P in (2, 3))
  new = jnp.array([[10.0, 11, 12], [20, 21, 22]])
  recent = decoder.KVCache((new[:, None, None],), (100 + new[:, None, :, None],))
  first, rest = paged_cache.flush(pool, recent, pages, jnp.array([6, 5]), G=1)
  assert (first.k[0] == -1).all() and (first.v[0] == -1).all()
  assert rest.k[0][:, 0, 0].tolist() == [
      [-1, -1, 10, 11], [12, -1, -1, -1], [-1, 20, 21, 22]]
  assert rest.v[0][:, 0, :, 0].tolist() == [
      [-1, -1, 110, 111], [112, -1, -1, -1], [-1, 120, 121, 122]]


def test_with_many_tokens_another_one_is_drawn_only_at_an_edge():
  """Of 8,192 tokens as good as equal, the next one, by rounding."""
  cfg = dataclasses.replace(TINY, V=8192)
  model, prompts, n = make_model(cfg), sampling.make_prompts(20), 20
  params = decoder.init_params(model, jax.random.key(3))
  params["head"] *= 0.1
  got, want = (run(make_sampler(model, **changes), params, Bp=20, n=n)
               for changes in ({"slots": 200}, {"slots": 200, "page": 2}))
  differ = got.tokens_RxT != want.tokens_RxT
  before = np.cumsum(differ, axis=1) == 0
  np.testing.assert_allclose(
      got.behavior_logp_RxT[before], want.behavior_logp_RxT[before],
      rtol=2.0**-22, atol=1e-6)
  row = np.flatnonzero(differ.any(axis=1))
  t = differ[row].argmax(axis=1)
  low, high = np.sort([got.tokens_RxT[row, t], want.tokens_RxT[row, t]], axis=0)
  np.testing.assert_array_equal(high, low + 1)
  ids, start_B = sampling.sequences(prompts, got.tokens_RxT, n)
  logits = np.float64(sampling.plain_logits(model, params, ids[row])[
      np.arange(len(row)), start_B[row] + t - 1])
  mass = np.cumsum(np.exp(logits), axis=1)
  edge = mass[np.arange(len(row)), low] / mass[:, -1]
  key_R = rng.row_keys(rng.stream(11, "rollout", 0), prompts.id_P[row // n],
                       np.uint32(row % n))
  drawn = np.asarray(rng.uniform_at(key_R, jnp.array(t)))
  np.testing.assert_allclose(drawn, edge, rtol=0, atol=1e-6)


def test_nothing_crosses_devices():
  """Each block reads, fills, writes and moves pages of its own pool."""
  sharded = make_model(data=4)
  s = make_sampler(sharded, slots=16, page=4, pages=20)
  params = s.prepare(random_params(sharded))
  q = queue.start(sampling.make_prompts(4), 4, G=4, R=16, W=1, T=T)
  held = paged.start(s, q)
  for row in range(16):
    pages_lib.give(held.table, row, problem=0, prompt=7, known=6, length=12)
  held.arenas = {a: s.empty(4 * size, 4) for a, size in ((0, 3), (1, 17))}
  pool, index = tuple(held.arenas.values()), np.zeros((4, 3), np.int32)
  crosses = lambda call, *args, **more: sampling.COLLECTIVE.findall(
      call.lower(*args, **more).compile().as_text())
  assert crosses(
      s.decode, params, pool,
      mesh_lib.place(q.row, mesh_lib.row_sharding(sharded.mesh)),
      rng.stream(0, "rollout", 0), np.float32(1), np.float32(1), kind="whole",
      pages=paged.pages_of(s, held)) == []
  assert crosses(s.pool.insert, pool, s.empty(8, S), index, index, index,
                 offsets=(0, 3)) == []
  assert crosses(s.pool.move, pool, index, index, offsets=(0, 3)) == []


def test_a_sweep_compiles_nothing_twice(model, params):
  s = make_sampler(model, slots=7, page=3)
  sizes = lambda: [call._cache_size() for call in (
      s.prefill, s.pool.insert, s.decode)]
  for Bp, n in ((1, 1), (3, 2), (13, 5), (1, 20)):
    run(s, params, Bp=Bp, n=n)
  first = sizes()
  for Bp, n in ((2, 23), (8, 1), (5, 3)):
    run(s, params, Bp=Bp, n=n)
  # With and without the shared part, two sizes of the rest.
  assert sizes() == first and first[-1] <= 4


def test_bad_pages_are_refused(model):
  with pytest.raises(InputError, match="sampler.page=0: expected at least 1"):
    dataclasses.replace(sampling.CONFIG, page=0)
