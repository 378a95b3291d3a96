"""A paged cache: its rounding, tables, shards and programs.

That pages change no token is in test_variants.py.
"""


import numpy as np

from isojax.runtime import mesh as mesh_lib
from isojax.runtime import rng
from isojax.sampling import engine, flight
from tests.conftest import make_model, random_params
from tests.sampling import samples
from tests.sampling.samples import make_sampler, S


def run(sampler, params, *, n=6, Bp=5, temperature=1.0):
  """The rollouts, and how often one lost its slot."""
  source = engine.one_batch_source(
      samples.make_prompts(Bp), n, rng.stream(11, "rollout", 0))
  batch, _ = engine.next_batch(
      sampler, params, flight.empty_state(sampler.layout), source,
      flight.BatchRule(Bp, 0), version=0, temperature=temperature, top_p=1.0,
      on_ended=lambda *_: None)
  return batch.rollouts, batch.evicted


def assert_equal_texts(got, want):
  np.testing.assert_array_equal(got.tokens_RxT, want.tokens_RxT)
  np.testing.assert_array_equal(got.len_R, want.len_R)
  np.testing.assert_array_equal(got.ended_R, want.ended_R)


def test_bfloat16(model, params):
  """Rounding may change a token, whose rollout is another from there on."""
  paged = make_sampler(model, slots=7, page=2, pages=8, dtype="bfloat16")
  plain = make_sampler(model, dtype="bfloat16")
  greedy, count = run(paged, params, n=4, temperature=0.0)
  assert_equal_texts(greedy, run(plain, params, n=4, temperature=0.0)[0])
  assert count and len({*greedy.len_R[::4].tolist()}) > 1
  (got, count), (want, _) = run(paged, params), run(plain, params)
  differ = got.tokens_RxT != want.tokens_RxT
  before = np.cumsum(differ, axis=1) == 0
  # bfloat16 has 8 bits; logits are up to 6.
  np.testing.assert_allclose(
      got.behavior_logp_RxT[before], want.behavior_logp_RxT[before], atol=0.06)
  assert count and differ.any(axis=1).mean() < 0.2
  # What the pool holds is what the rollouts say that they have seen.
  forced = samples.teacher_forced(model, params, got).logp_RxT
  drawn = got.mask_RxT
  np.testing.assert_allclose(got.behavior_logp_RxT[drawn], forced[drawn],
                             atol=0.1)


def test_tables_are_as_long_as_the_longest_sequence_needs(model, params):
  """Columns of the table, and fewer slots when nothing waits."""
  sampler, seen = make_sampler(
      model, slots=40, page=1, max_new_tokens=60, eos=(3, 4)), []
  assert sampler.sizes.lengths == (32, 64, 80) and sampler.sizes.rows[0] == 5

  def decode(*args, table, **more):
    seen.append(table.shape)
    return sampler.decode(*args, table=table, **more)

  got, _ = run(sampler._replace(decode=decode), params, Bp=5, n=9)
  assert seen[0] == (40, 32) and seen[-1][0] < 40
  longest = samples.make_prompts(5).len_P.repeat(9) + got.len_R - 1
  assert seen[-1][1] == (32 if longest.max() <= 32 else
                         64 if longest.max() <= 64 else 66)
  assert {R for R, _ in seen} <= set(sampler.sizes.rows)


def test_nothing_crosses_devices():
  """Each block reads, fills and writes pages of its own pool."""
  sharded = make_model(data=4)
  sampler = make_sampler(sharded, slots=16, page=4, pages=20)
  params = sampler.prepare(random_params(sharded))
  pool = sampler.empty(4 * 20, 4)
  index = np.zeros((4, 3), np.int32)
  row, table = mesh_lib.place(
      (samples.free_slots(16), np.zeros((16, 3), np.int32)),
      mesh_lib.row_sharding(sharded.mesh))
  assert samples.collectives(
      sampler.decode, params, pool, row, np.float32(1), np.float32(1),
      kind="whole", table=table) == []
  assert samples.collectives(
      sampler.insert, pool, sampler.empty(8, S), index, index, index) == []


def test_a_sweep_compiles_nothing_twice(model, params):
  sampler = make_sampler(model, slots=7, page=3)
  sizes = lambda: [call._cache_size() for call in (
      sampler.prefill, sampler.insert, sampler.decode)]
  for Bp, n in ((1, 1), (3, 2), (13, 5), (1, 20)):
    run(sampler, params, Bp=Bp, n=n)
  first = sizes()
  for Bp, n in ((2, 23), (8, 1), (5, 3)):
    run(sampler, params, Bp=Bp, n=n)
  assert sizes() == first and first[-1] <= len(sampler.sizes.lengths)
