"""The sampler draws what it says, and addresses are all that matter."""

import dataclasses

import jax
import numpy as np
import pytest

from isojax.errors import InputError
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import rng
from isojax.sampling import engine
from isojax.types import Prompts
from tests.conftest import make_model, placed, random_params, TINY
from tests.sampling.samples import (
  collectives,
  CONFIG,
  EOS,
  free_slots,
  make_prompts,
  make_sampler,
  run,
  S,
  T,
  teacher_forced,
)


@pytest.fixture(scope="module")
def rollouts(model, params):
  return run(make_sampler(model), params)


def test_the_trainers_logp_at_another_temperature(model, params):
  got = run(make_sampler(model), params, temperature=0.7)
  want, _, atol = teacher_forced(model, params, got, temperature=0.7)
  mask = got.mask_RxT
  np.testing.assert_allclose(
      got.behavior_logp_RxT[mask], want[mask], rtol=0, atol=atol)


@pytest.mark.parametrize("weights_gathered", [True, False])
def test_weights_are_gathered_or_stay_sharded(params, weights_gathered):
  sharded = make_model(fsdp=2, tensor=2)
  sampler = make_sampler(sharded, slots=8, weights_gathered=weights_gathered)
  weights = sampler.prepare(placed(params, sharded))
  spec = weights["layers_0"]["q"].sharding.spec
  assert ("fsdp" in tuple(spec)) != weights_gathered


def test_fewer_problems_than_devices(params, rollouts):
  """2 problems of 3 rollouts on 4 blocks: a problem is cut."""
  sharded = make_model(data=4)
  first = jax.tree.map(lambda x: x[:2], make_prompts(5))
  few = run(make_sampler(sharded, slots=4), placed(params, sharded), 3,
            prompts=first)
  np.testing.assert_array_equal(
      few.tokens_RxT.reshape(2, 3, T),
      rollouts.tokens_RxT.reshape(5, 6, T)[:2, :3])


def test_nothing_crosses_devices():
  """Of gathered weights: each block decodes, refills and grows by itself."""
  sharded = make_model(data=2, fsdp=2)
  sampler = make_sampler(sharded, slots=16)
  params = sampler.prepare(random_params(sharded))
  cache, window = sampler.empty(16, 16), sampler.empty(8, S)
  row = mesh_lib.place(free_slots(16), mesh_lib.row_sharding(sharded.mesh))
  index = np.zeros((4, 3), np.int32)
  assert collectives(sampler.decode, params, cache, row, np.float32(1),
                     np.float32(1), kind="nucleus") == []
  assert collectives(sampler.insert, cache, window, index, index) == []
  assert collectives(sampler.resize, cache.k[0], index, 32, 3) == []


def test_steps_problems_and_rollouts_differ(model, params, rollouts):
  other = run(make_sampler(model), params, step=1)
  assert (other.tokens_RxT != rollouts.tokens_RxT).any(axis=1).mean() > 0.9
  long = rollouts.tokens_RxT[rollouts.len_R > 3]
  assert len({tuple(row) for row in long}) == len(long) > 10


def test_a_sweep_compiles_nothing_twice(model, params):
  """What Bp, n, lengths, temperature and top_p could need is a small set."""
  sampler = engine.make_sampler(
      model, dataclasses.replace(CONFIG, slots=16), EOS)
  sizes = lambda: [call._cache_size() for call in (
      sampler.prefill, sampler.insert, sampler.resize, sampler.decode)]
  sweep = [(Bp, n) for Bp in (1, 2, 3, 5, 8, 13) for n in (1, 2, 5, 16)]
  for Bp, n in sweep:
    run(sampler, params, n, prompts=make_prompts(Bp))
  first = sizes()
  shapes = len(sampler.sizes.rows) * len(sampler.sizes.lengths)
  for Bp, n in [(21, 3), (4, 11), (1, 40), (2, 23)]:
    for temperature in (1.0, 0.3):
      run(sampler, params, n, prompts=make_prompts(Bp), step=Bp,
          temperature=temperature)
  assert sizes()[-1] == first[-1] <= shapes
  # A kind of draw is another program; its temperature and top_p are not.
  for temperature, top_p in ((0.3, 0.5), (0.0, 1.0), (0.7, 0.9), (0.0, 0.5)):
    run(sampler, params, 23, prompts=make_prompts(2), temperature=temperature,
        top_p=top_p)
  assert sizes()[-1] <= 3 * shapes and sizes()[-1] == first[-1] + 2
  assert sizes()[0] <= len(sampler.sizes.prompts)
  assert make_sampler(model, slots=16, max_new_tokens=1).sizes.chunk == 1


def test_a_growing_cache_is_there_once_and_one_part(model, params):
  """64 -> 128 slots of a position: old parts are freed one by one."""
  sampler = make_sampler(model, slots=4, max_new_tokens=250, eos=())
  peaks = {}

  def resize(part, take, L, axis):  # the real one, and what is alive behind it
    grown = sampler.resize(part, take, L, axis)
    alive = sum(x.nbytes for x in jax.live_arrays() if x.ndim == 4)
    peaks[L] = max(alive, peaks[L] if L in peaks else 0)
    return grown

  alive = sum(x.nbytes for x in jax.live_arrays() if x.ndim == 4)
  run(sampler._replace(resize=resize), params, 1, prompts=make_prompts(4))
  part = lambda L: 4 * TINY.K * TINY.H * L * 4  # rows, heads, numbers, bytes
  window = 2 * TINY.Z * part(S) // 4  # one prompt a block
  for old, new in ((64, 128), (128, 192), (192, 256)):
    assert peaks[new] - alive <= 2 * TINY.Z * part(new) + part(old) + window
    assert peaks[new] - alive > 2 * TINY.Z * part(new)


def test_each_rollout_is_reported_once_and_complete(model, params, rollouts):
  seen, calls = [], 0

  def ended(items, out):
    nonlocal calls
    calls += 1
    index = items.problem_R * 6 + items.number_R
    seen.extend(index.tolist())
    np.testing.assert_array_equal(out.tokens_RxT, rollouts.tokens_RxT[index])
    np.testing.assert_array_equal(out.len_R, rollouts.len_R[index])

  run(make_sampler(model, slots=7), params, on_ended=ended)
  assert sorted(seen) == list(range(30)) and calls > 4


def test_the_longest_expected_are_first():
  prompts = Prompts(np.zeros((4, 3), np.int32),
                    np.array([1, 3, 2, 3], np.int32), None)
  order = lambda **more: engine.one_batch_source(
      prompts, 1, rng.stream(0, "rollout"), **more
  ).groups_of_step(0).position_E.tolist()
  assert order() == [0, 2, 1, 3]
  assert order(expected_P=[5.0, 7.5, 5.0, 9.0]) == [3, 1, 0, 2]


def test_one_token_and_eos_as_the_first(model, params, rollouts):
  one = run(make_sampler(model, slots=7, max_new_tokens=1), params)
  np.testing.assert_array_equal(one.tokens_RxT, rollouts.tokens_RxT[:, :1])
  assert (one.len_R == 1).all()
  ended = run(make_sampler(model, slots=7, eos=tuple(range(TINY.V))), params)
  assert (ended.len_R == 1).all() and ended.ended_R.all()
  np.testing.assert_array_equal(ended.tokens_RxT[:, 0],
                                rollouts.tokens_RxT[:, 0])


def test_a_prompt_beyond_the_largest_size_is_refused(model, params):
  long = make_prompts(3, S=S + 4)
  long.len_P[1] = S + 3
  with pytest.raises(InputError, match="10 tokens.*max_prompt_tokens=7"):
    run(make_sampler(model), params, 2, prompts=long)


def test_temperature_zero_is_argmax_and_certain(model, params):
  got = run(make_sampler(model), params, 2, temperature=0.0)
  np.testing.assert_array_equal(got.tokens_RxT[::2], got.tokens_RxT[1::2])
  assert (got.behavior_logp_RxT == 0).all()
  cold = run(make_sampler(model), params, 2, temperature=1e-4)
  np.testing.assert_array_equal(got.tokens_RxT, cold.tokens_RxT)


@pytest.mark.parametrize("field, value", [
    ("slots", 0), ("memory_gib", 0.0), ("max_new_tokens", 0),
    ("temperature", -0.1), ("page", 0),
    ("head_dtype", "bfloat16")])
def test_bad_config_is_refused(field, value):
  with pytest.raises(InputError, match=f"sampler.{field}={value!r}: expected"):
    dataclasses.replace(CONFIG, **{field: value})


def test_one_queue_for_all_devices_changes_no_token(params):
  """Skewed lengths on 1 and 4 devices; no device idles while others wait."""
  prompts, found, decoded = make_prompts(7), [], {}
  for data in (1, 4):
    sharded = make_model(data=data)
    sampler = make_sampler(sharded, slots=8, max_new_tokens=40, eos=(1,))
    decoded[data] = 0  # slots, times tokens

    def decode(params, cache, row, *more, sampler=sampler, data=data, **kind):
      decoded[data] += row.token_R.size * sampler.sizes.chunk
      return sampler.decode(params, cache, row, *more, **kind)

    found.append(run(sampler._replace(decode=decode), placed(params, sharded),
                     9, prompts=prompts))
  found.append(run(sampler, placed(params, sharded), 9, prompts=prompts,
                   expected_P=[3, 9, 1, 4, 4, 7, 2]))
  for each in found:
    np.testing.assert_array_equal(each.tokens_RxT, found[0].tokens_RxT)
    np.testing.assert_array_equal(each.len_R, found[0].len_R)
  lengths = found[0].len_R
  assert lengths.min() < 4 and lengths.max() == 40
  # With the queue cut into equal blocks, 4 devices decoded 1,792.
  assert lengths.sum() == 1483 and decoded == {1: 1728, 4: 1696}
