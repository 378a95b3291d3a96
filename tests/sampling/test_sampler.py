"""The sampler draws what it says it draws, and addresses are all that matter."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax import mesh as mesh_lib
from isojax import rng
from isojax.errors import InputError
from isojax.models import decoder
from isojax.sampling import draw as draw_lib
from isojax.sampling import queue
from isojax.sampling import sampler as sampler_lib
from isojax.types import Prompts
from tests.conftest import RICH
from tests.conftest import TINY
from tests.conftest import make_model
from tests.conftest import random_params

S, T, EOS = 7, 9, (1, 5)
CONFIG = sampler_lib.SamplerConfig(
    slots=30, memory_gib=1.0, max_prompt_tokens=S, max_new_tokens=T,
    temperature=1.0, top_p=1.0, dtype="float32", weights=None, cache=None,
    attention="auto")


def make_prompts(count, S=S):
  random = np.random.default_rng(0)
  return Prompts(random.integers(0, TINY.V, (count, S)).astype(np.int32),
                 random.integers(1, S + 1, count).astype(np.int32),
                 np.arange(100, 100 + count, dtype=np.uint32))


make_sampler = functools.cache(sampler_lib.make_sampler)


def run(model, params, prompts, n, *, slots=30, temperature=1.0, top_p=1.0,
        step=0, eos=EOS, sampler=None, **changes):
  cfg = dataclasses.replace(CONFIG, slots=slots, **changes)
  return sampler_lib.sample_all(
      sampler or make_sampler(model, cfg, eos), params, prompts,
      n, rng.stream(11, "rollout", step), temperature=np.float32(temperature),
      top_p=np.float32(top_p))


@pytest.fixture(scope="module")
def rollouts(model, params):
  return run(model, params, make_prompts(5), 6)


@functools.partial(jax.jit, static_argnums=0)
def plain_logits(model, params, ids_BxL):
  """One causal forward of whole sequences, without any cache before it."""
  B, L = ids_BxL.shape
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((L, L), bool))[None], (B, L, L))
  hidden, _ = model.apply(
      {"params": params}, ids_BxL, jnp.broadcast_to(jnp.arange(L)[None], (B, L)),
      causal, decoder.init_cache(model.cfg, B, L, jnp.float32), 0)
  return model.apply({"params": params}, hidden, method="head")


def sequences(prompts, tokens_BxT, n):
  """Prompt and answer of each row, and where the answer begins."""
  B, T = tokens_BxT.shape
  start_B = np.repeat(prompts.len_P, n)
  ids = np.zeros((B, prompts.tokens_PxS.shape[1] + T), np.int32)
  for row, (at, new) in enumerate(zip(start_B, tokens_BxT)):
    ids[row, :at] = prompts.tokens_PxS[row // n, :at]
    ids[row, at:at + T] = new
  return ids, start_B


def teacher_forced(model, params, prompts, rollouts, n, temperature=1.0):
  ids, start_B = sequences(prompts, rollouts.tokens_RxT, n)
  logits = plain_logits(model, params, ids) / temperature
  logp = np.asarray(jax.nn.log_softmax(logits))
  at = start_B[:, None] + np.arange(T)[None] - 1
  row = np.arange(len(ids))[:, None]
  entropy = -np.sum(np.exp(logp) * logp, axis=-1)
  return logp[row, at, rollouts.tokens_RxT], entropy[row, at]


def plainly_sampled(model, params, prompts, n, step=0):
  """The plain sampler: every row, no cache, no slots; the same addresses."""
  B = len(prompts.len_P) * n
  key_R = rng.row_keys(
      rng.stream(11, "rollout", step), np.repeat(prompts.id_P, n),
      np.tile(np.arange(n, dtype=np.uint32), len(prompts.len_P)))
  tokens, done = np.zeros((B, T), np.int32), np.zeros(B, bool)
  for t in range(T):
    ids, start_B = sequences(prompts, tokens, n)
    logits = plain_logits(model, params, ids)[np.arange(B), start_B + t - 1]
    drawn, _, _ = draw_lib.draw(
        logits, rng.uniform_at(key_R, jnp.full(B, t)), 1.0, 1.0)
    tokens[~done, t] = np.asarray(drawn)[~done]
    done |= np.isin(tokens[:, t], EOS)
  return tokens


def test_token_for_token_that_of_a_plain_sampler(model, params, rollouts):
  np.testing.assert_array_equal(
      rollouts.tokens_RxT, plainly_sampled(model, params, make_prompts(5), 6))


def test_windows_norms_and_caps_too(model):
  """Everything that a family can add, with slots that are refilled."""
  rich = make_model(RICH)
  params, prompts = random_params(rich), make_prompts(5)
  got = run(rich, params, prompts, 3, slots=4)
  want, _ = teacher_forced(rich, params, prompts, got, 3)
  mask = np.arange(T) < got.len_R[:, None]
  np.testing.assert_allclose(got.behavior_logp_RxT[mask], want[mask], atol=2e-5)
  np.testing.assert_array_equal(
      got.tokens_RxT, run(rich, params, prompts, 3).tokens_RxT)


def test_some_rows_end_early_and_some_do_not(rollouts):
  """Else the tests below would prove little."""
  assert 0 < rollouts.ended_R.sum() < 30
  assert len(np.unique(rollouts.len_R)) > 3


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behavior_logp_is_the_trainers_logp(model, params, temperature):
  prompts = make_prompts(5)
  got = run(model, params, prompts, 6, temperature=temperature)
  want, entropy = teacher_forced(
      model, params, prompts, got, 6, temperature)
  mask = np.arange(T) < got.len_R[:, None]
  np.testing.assert_allclose(
      got.behavior_logp_RxT[mask], want[mask], atol=2e-5)
  assert np.std(want[mask]) > 0.3
  np.testing.assert_allclose(
      got.entropy_R, np.where(mask, entropy, 0).sum(axis=1), rtol=1e-4)


def test_eos_is_kept_and_nothing_comes_after(rollouts):
  for tokens, length, ended in zip(
      rollouts.tokens_RxT, rollouts.len_R, rollouts.ended_R):
    assert not np.isin(tokens[:length - 1], EOS).any()
    assert bool(np.isin(tokens[length - 1], EOS)) == bool(ended)
    assert ended or length == T
    assert (tokens[length:] == 0).all()
  assert set(rollouts.tokens_RxT[
      rollouts.ended_R, rollouts.len_R[rollouts.ended_R] - 1]) == set(EOS)


def test_rollouts_of_n_are_the_first_of_more(model, params, rollouts):
  few = run(model, params, make_prompts(5), 4)
  for name in ("tokens_RxT", "len_R"):
    many = getattr(rollouts, name)
    np.testing.assert_array_equal(
        getattr(few, name).reshape(5, 4, -1), many.reshape(5, 6, -1)[:, :4])


@pytest.mark.parametrize("slots", [1, 4, 7, 12, 64])
def test_slots_change_nothing(model, params, rollouts, slots):
  got = run(model, params, make_prompts(5), 6, slots=slots)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)
  np.testing.assert_array_equal(got.len_R, rollouts.len_R)
  np.testing.assert_array_equal(got.ended_R, rollouts.ended_R)
  np.testing.assert_allclose(got.entropy_R, rollouts.entropy_R, rtol=1e-5)


@pytest.mark.parametrize(
    "axes", [{"data": 4}, {"fsdp": 4}, {"fsdp": 2, "tensor": 2},
             {"data": 2, "tensor": 2}])
def test_mesh_changes_nothing(params, rollouts, axes):
  sharded = make_model(**axes)
  placed = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(sharded))
  for slots in (8, 30):
    got = run(sharded, placed, make_prompts(5), 6, slots=slots)
    np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"fsdp": 2, "tensor": 2}])
def test_weights_that_stay_sharded_change_nothing(params, rollouts, axes):
  sharded = make_model(**axes)
  placed = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(sharded))
  sampler = sampler_lib.make_sampler(
      sharded, dataclasses.replace(CONFIG, slots=8), EOS, gathered=False)
  got = run(sharded, placed, make_prompts(5), 6, sampler=sampler)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)
  kept = lambda params: params["layers_0"]["q"].sharding.spec
  assert kept(sampler.prepare(placed)) == kept(placed)
  whole = sampler_lib.make_sampler(sharded, CONFIG, EOS).prepare(placed)
  assert "fsdp" not in tuple(kept(whole))


def test_a_chunk_beside_the_cache_changes_nothing():
  """As on TPUs: windows, slots refilled, the last chunks cut by the cache."""
  rich = make_model(RICH)
  params, prompts = random_params(rich), make_prompts(5)
  cfg = dataclasses.replace(CONFIG, slots=4)
  sampler = sampler_lib.make_sampler(rich, cfg, EOS)
  plain = run(rich, params, prompts, 3, sampler=sampler)
  buffered = run(rich, params, prompts, 3, sampler=sampler._replace(
      decode=jax.jit(sampler_lib.make_decode(rich, cfg, EOS, buffered=True))))
  assert plain.len_R.max() == T and plain.ended_R.any()
  np.testing.assert_array_equal(buffered.tokens_RxT, plain.tokens_RxT)
  np.testing.assert_allclose(buffered.behavior_logp_RxT,
                             plain.behavior_logp_RxT, atol=2e-5)


COLLECTIVE = re.compile(
    r"= (\S+) (?:all-gather|all-reduce|all-to-all|collective-permute)\(")


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"data": 2, "fsdp": 2}])
def test_nothing_crosses_devices(axes):
  """Of gathered weights: each block decodes, refills and grows by itself."""
  sharded = make_model(**axes)
  s = sampler_lib.make_sampler(
      sharded, dataclasses.replace(CONFIG, slots=16), EOS)
  params = s.prepare(random_params(sharded))
  cache, window = s.empty(16, 16), s.empty(8, S)
  row = mesh_lib.place(
      queue.start(make_prompts(1), 1, G=4, R=16, W=1, T=T).row,
      mesh_lib.row_sharding(sharded.mesh))
  index = np.zeros((4, 3), np.int32)
  crosses = lambda call, *args, **more: COLLECTIVE.findall(
      call.lower(*args, **more).compile().as_text())
  assert crosses(s.decode, params, cache, row, rng.stream(0, "rollout", 0),
                 np.float32(1), np.float32(1)) == []
  assert crosses(s.insert, cache, window, index, index, G=4) == []
  assert crosses(s.resize, cache.k[0], index, 32, 3) == []


def test_stages_of_a_program_are_named(model, params):
  """For traces."""
  s = sampler_lib.make_sampler(model, CONFIG, EOS)
  row = queue.start(make_prompts(1), 1, G=1, R=4, W=1, T=T).row
  text = s.decode.lower(
      params, s.empty(4, 16), row, rng.stream(0, "rollout", 0), np.float32(1),
      np.float32(1)).as_text(debug_info=True)
  for stage in ("layers_0/attention/", "layers_0/mlp/", "head/", "draw/"):
    assert stage in text


def test_fewer_problems_than_devices(params, rollouts):
  """2 problems of 3 rollouts on 4 blocks: a problem is cut."""
  sharded = make_model(data=4)
  placed = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(sharded))
  got = run(sharded, placed, make_prompts(5), 6, slots=30)
  first = jax.tree.map(lambda x: x[:2], make_prompts(5))
  few = run(sharded, placed, first, 3, slots=4)
  np.testing.assert_array_equal(
      few.tokens_RxT.reshape(2, 3, T),
      got.tokens_RxT.reshape(5, 6, T)[:2, :3])


def test_steps_problems_and_rollouts_differ(model, params, rollouts):
  other = run(model, params, make_prompts(5), 6, step=1)
  assert (other.tokens_RxT != rollouts.tokens_RxT).any(axis=1).mean() > 0.9
  long = rollouts.tokens_RxT[rollouts.len_R > 3]
  assert len({tuple(row) for row in long}) == len(long) > 10


def test_a_sweep_compiles_nothing_twice(model, params):
  """What Bp, n, lengths, temperature and top_p could need is a small set."""
  sampler = sampler_lib.make_sampler(
      model, dataclasses.replace(CONFIG, slots=16), EOS)
  sizes = lambda: [call._cache_size() for call in (
      sampler.prefill, sampler.insert, sampler.resize, sampler.decode)]
  sweep = [(Bp, n) for Bp in (1, 2, 3, 5, 8, 13) for n in (1, 2, 5, 16)]
  for Bp, n in sweep:
    run(model, params, make_prompts(Bp), n, sampler=sampler)
  first = sizes()
  for Bp, n in [(21, 3), (4, 11), (1, 40), (2, 23)]:
    for temperature, top_p in ((1.0, 1.0), (0.0, 1.0), (0.3, 0.5)):
      run(model, params, make_prompts(Bp), n, sampler=sampler, step=Bp,
          temperature=temperature, top_p=top_p)
  assert sizes()[-1] == first[-1] <= len(sampler.row_sizes) * len(
      sampler.length_sizes)
  assert sizes()[0] <= len(sampler.prompt_sizes)
  short = dataclasses.replace(CONFIG, slots=16, max_new_tokens=1)
  assert sampler_lib.make_sampler(model, short, EOS).chunk == 1


def test_stream_yields_each_rollout_once_and_complete(model, params, rollouts):
  sampler = sampler_lib.make_sampler(
      model, dataclasses.replace(CONFIG, slots=7), EOS)
  seen, parts = [], 0
  for items, out in sampler_lib.stream(
      sampler, params, make_prompts(5), 6, rng.stream(11, "rollout", 0),
      temperature=np.float32(1), top_p=np.float32(1)):
    seen.extend(items.tolist())
    parts += 1
    np.testing.assert_array_equal(out.tokens_RxT[items],
                                  rollouts.tokens_RxT[items])
    np.testing.assert_array_equal(out.len_R[items], rollouts.len_R[items])
  assert sorted(seen) == list(range(30)) and parts > 4


def test_one_token_and_eos_as_the_first(model, params, rollouts):
  one = run(model, params, make_prompts(5), 6, max_new_tokens=1, slots=7)
  np.testing.assert_array_equal(one.tokens_RxT, rollouts.tokens_RxT[:, :1])
  assert (one.len_R == 1).all()
  all_ids = tuple(range(TINY.V))
  ended = run(model, params, make_prompts(5), 6, eos=all_ids, slots=7)
  assert (ended.len_R == 1).all() and ended.ended_R.all()
  np.testing.assert_array_equal(ended.tokens_RxT[:, 0],
                                rollouts.tokens_RxT[:, 0])


def test_a_prompt_beyond_the_largest_size_is_refused(model, params):
  long = make_prompts(3, S=S + 4)
  long.len_P[1] = S + 3
  with pytest.raises(InputError, match="10 tokens.*max_prompt_tokens=7"):
    run(model, params, long, 2)


def test_temperature_zero_is_argmax_and_certain(model, params):
  prompts = make_prompts(5)
  got = run(model, params, prompts, 2, temperature=0.0)
  np.testing.assert_array_equal(got.tokens_RxT[::2], got.tokens_RxT[1::2])
  assert (got.behavior_logp_RxT == 0).all()
  cold = run(model, params, prompts, 2, temperature=1e-4)
  np.testing.assert_array_equal(got.tokens_RxT, cold.tokens_RxT)


def test_draw_by_hand():
  """p = 1/2, 1/4, 1/8, 1/8: the uniform number names the token."""
  logits = np.log([[4.0, 2.0, 1.0, 1.0]]).repeat(6, 0).astype(np.float32)
  uniform = np.float32([0.0, 0.49, 0.51, 0.74, 0.76, 0.9999999])
  token, logp, entropy = draw_lib.draw(logits, uniform, 1.0, 1.0)
  assert token.tolist() == [0, 0, 1, 1, 2, 3]
  np.testing.assert_allclose(
      np.exp(logp), [0.5, 0.5, 0.25, 0.25, 0.125, 0.125], rtol=1e-6)
  np.testing.assert_allclose(entropy, 1.75 * np.log(2), rtol=1e-6)  # 7/4 bits


def test_top_p_by_hand():
  """top_p = 0.6 keeps 1/2 and 1/4, renormalised to 2/3 and 1/3."""
  logits = np.log([[1.0, 4.0, 1.0, 2.0]]).repeat(3, 0).astype(np.float32)
  token, logp, entropy = draw_lib.draw(
      logits, np.float32([0.0, 0.66, 0.67]), 1.0, 0.6)
  assert token.tolist() == [1, 1, 3]
  np.testing.assert_allclose(np.exp(logp), [2 / 3, 2 / 3, 1 / 3], rtol=1e-6)
  np.testing.assert_allclose(entropy, 1.75 * np.log(2), rtol=1e-6)  # of all four


def test_draw_follows_the_distribution():
  """Chi-square of 20,000 draws over 5 tokens; 23.5 is its 0.01 % point."""
  p = np.array([0.05, 0.4, 0.1, 0.15, 0.3])
  keys = rng.row_keys(rng.stream(0, "rollout"), jnp.arange(20_000, dtype=jnp.uint32),
                      jnp.zeros(20_000, jnp.uint32))
  uniform = rng.uniform_at(keys, jnp.full(20_000, 3))
  logits = jnp.broadcast_to(jnp.log(p.astype(np.float32))[None], (20_000, 5))
  token, _, _ = draw_lib.draw(logits, uniform, 1.0, 1.0)
  count = np.bincount(token, minlength=5)
  assert ((count - 20_000 * p)**2 / (20_000 * p)).sum() < 23.5


@pytest.mark.parametrize("top_p", [1.0, 0.6])
@pytest.mark.parametrize("V", [5, 128, 131, 1000])
def test_draw_against_float64(V, top_p):
  """Several blocks, impossible tokens: numpy sorts and sums in float64."""
  random, R, temperature = np.random.default_rng(V), 200, 0.7
  logits = 3 * random.normal(size=(R, V)).astype(np.float32)
  logits[random.random((R, V)) < 0.3] = -np.inf
  logits[:, 2] = 0.0
  uniform = random.random(R).astype(np.float32)
  got = draw_lib.draw(logits, uniform, temperature, top_p)
  token, logp, entropy = map(np.asarray, got)
  weight = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(float)
                  / temperature)
  p = weight / weight.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(
      entropy, -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1), atol=2e-5)
  if top_p < 1:
    order = np.argsort(-p, axis=1)
    sorted_p = np.take_along_axis(p, order, axis=1)
    above = np.cumsum(sorted_p, axis=1) - sorted_p
    np.put_along_axis(p, order, np.where(above < top_p, sorted_p, 0), axis=1)
    p /= p.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(logp, np.log(p[np.arange(R), token]), atol=1e-5)
  cdf = np.cumsum(p, axis=1)
  want = [np.searchsorted(row, u, side="right") for row, u in zip(cdf, uniform)]
  # Within rounding of a boundary the neighbour is as good.
  assert np.mean(token == want) > 0.98


@pytest.mark.parametrize("V", [5, 128, 131, 1000])
def test_pick_is_the_inverse_of_the_running_sum(V):
  """Blocks of 128 against numpy's float64 sums; zeros are never taken."""
  random = np.random.default_rng(V)
  weight = random.exponential(size=(400, V)) * (random.random((400, V)) < 0.5)
  weight[:, 3] += 0.1
  uniform = random.random(400)
  uniform[:3] = 0, 0.5, 1 - 2**-23
  blocks = draw_lib.in_blocks(jnp.float32(weight), 0.0)
  token, total = draw_lib.pick(
      blocks.sum(axis=-1), lambda block: draw_lib.at(blocks, block),
      jnp.float32(uniform))
  cdf = np.cumsum(weight, axis=1)
  want = [np.searchsorted(row, u * row[-1], side="right")
          for row, u in zip(cdf, uniform)]
  # Within rounding of a boundary the neighbour is as good.
  assert np.mean(np.asarray(token) == want) > 0.99
  assert (weight[np.arange(400), token] > 0).all()
  np.testing.assert_allclose(total, cdf[:, -1], rtol=1e-5)


def test_slots_take_what_waits_by_hand():
  """3 problems of 2 rollouts, 2 blocks of 2 slots, windows of 1 prompt.

  Short prompts first: items 2 3 | 0 1 | 4 5; block 0 has the first three.
  """
  prompts = Prompts(np.arange(9, dtype=np.int32).reshape(3, 3),
                    np.array([2, 1, 3], np.int32),
                    np.array([7, 8, 9], np.uint32))
  q = queue.start(prompts, 2, G=2, R=4, W=1, T=5)
  assert q.starving and queue.fill(q)[0].shape == (2, 0)
  assert queue.move_window(q).id_P.tolist() == [8, 7]
  row, slot = queue.fill(q)
  assert row.tolist() == [[0, 1], [0, 2]] and slot.tolist() == [[0, 0], [0, 0]]
  assert q.item_R[:3].tolist() == [2, 3, 1] and q.starving
  assert queue.move_window(q).id_P.tolist() == [7, 9]
  assert queue.fill(q)[0].tolist() == [[2], [1]]  # block 0 is full
  assert q.item_R.tolist() == [2, 3, 1, 4] and not q.starving and q.waiting
  assert q.row.token_R.tolist() == [3, 3, 1, 8]  # last tokens of the prompts
  assert q.row.rollout_R.tolist() == [0, 1, 1, 0]
  q.row.active_R[:] = [False, True, True, False]
  assert queue.move_window(q).id_P.tolist() == [7, 9]
  assert queue.fill(q)[0].tolist() == [[0], [1]]
  assert q.item_R.tolist() == [0, 3, 1, 5] and not q.waiting


def test_sizes_by_hand():
  assert queue.shares(4, 176, 16) == (48, 96, 144, 176)
  assert queue.shares(4, 176, 32) == (64, 96, 160, 176)
  assert queue.shares(4, 6, 4) == (4, 6)
  assert queue.shares(4, 30, 32) == (30,)
  assert queue.halves(30, 4, 3, 1) == (4, 8, 16, 32)
  assert queue.halves(30, 4, 3, 4) == (16, 32)
  assert queue.halves(30, 4, 3, 9) == (32,)


@pytest.mark.parametrize("field, value", [
    ("slots", 0), ("memory_gib", 0.0), ("max_new_tokens", 0), ("temperature", -0.1), ("top_p", 0.0)])
def test_bad_config_is_refused(field, value):
  with pytest.raises(ValueError, match=field):
    dataclasses.replace(CONFIG, **{field: value})
