"""A paged cache changes no token, also when its pool is exhausted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from isojax import mesh as mesh_lib
from isojax import rng
from isojax.errors import InputError
from isojax.models import decoder
from isojax.planner.cost import slots as slots_lib
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import paged
from isojax.sampling import pages as pages_lib
from isojax.sampling import queue
from isojax.sampling import sampler as sampler_lib
from tests.conftest import RICH
from tests.conftest import make_model
from tests.conftest import random_params
from tests.sampling import test_sampler as sampling

S, T, EOS = sampling.S, sampling.T, sampling.EOS


@functools.cache
def make_sampler(model, *, pages=None, interrupt=None, **changes):
  cfg = dataclasses.replace(sampling.CONFIG, **changes)
  return sampler_lib.make_sampler(model, cfg, EOS, pages=pages,
                                  interrupt=interrupt)


def run(sampler, params, *, n=6, Bp=5, interrupt_B=None):
  return sampler_lib.sample_all(
      sampler, params, sampling.make_prompts(Bp), n,
      rng.stream(11, "rollout", 0), temperature=np.float32(1),
      top_p=np.float32(1), interrupt_B=interrupt_B)


def assert_equal(got, want):
  np.testing.assert_array_equal(got.tokens_RxT, want.tokens_RxT)
  np.testing.assert_array_equal(got.len_R, want.len_R)
  np.testing.assert_array_equal(got.ended_R, want.ended_R)
  np.testing.assert_allclose(got.behavior_logp_RxT, want.behavior_logp_RxT,
                             rtol=1e-6, atol=2e-6)
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

  def decode(*args, offsets, **more):
    seen.append(offsets)
    return s.decode(*args, offsets=offsets, **more)

  def move(*args, **more):
    moved.append(args)
    return s.pool.move(*args, **more)

  got = run(s._replace(decode=decode, pool=s.pool._replace(move=move)), params)
  assert_equal(got, rollouts)
  assert seen[0] == (0, 13, 57) and seen[-1] == (0, 13) and moved


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
      **paged.arguments(s, q, held)) == []
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
