"""The sampler draws what it says, and addresses are all that matter."""

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
from isojax.sampling import decode as decode_lib
from isojax.sampling import draw as draw_lib
from isojax.sampling import engine, flight
from isojax.types import Prompts
from tests.conftest import make_model, placed, random_params, RICH, TINY

S, T, EOS = 7, 9, (1, 5)
CONFIG = engine.SamplerConfig(
    slots=30, memory_gib=1.0, max_prompt_tokens=S, max_new_tokens=T,
    temperature=1.0, top_p=1.0, dtype="float32", weights=None, cache=None,
    attention="auto", precision="highest", head_dtype=None, page=None,
    expected_tokens=None)


def make_prompts(count, S=S):
  random = np.random.default_rng(0)
  return Prompts(random.integers(0, TINY.V, (count, S)).astype(np.int32),
                 random.integers(1, S + 1, count).astype(np.int32),
                 np.arange(100, 100 + count, dtype=np.uint32))


make_sampler = functools.cache(engine.make_sampler)


def run(model, params, prompts, n, *, slots=30, temperature=1.0, top_p=1.0,
        step=0, eos=EOS, sampler=None, **changes):
  cfg = dataclasses.replace(CONFIG, slots=slots, **changes)
  return engine.sample_all(
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
      {"params": params}, ids_BxL,
      jnp.broadcast_to(jnp.arange(L)[None], (B, L)), causal,
      decoder.init_cache(model.cfg, B, L, jnp.float32), 0)
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
        logits, rng.uniform_at(key_R, jnp.full(B, t)), 1.0, 1.0, kind="whole")
    tokens[~done, t] = np.asarray(drawn)[~done]
    done |= np.isin(tokens[:, t], EOS)
  return tokens


def test_token_for_token_that_of_a_plain_sampler(model, params, rollouts):
  np.testing.assert_array_equal(
      rollouts.tokens_RxT, plainly_sampled(model, params, make_prompts(5), 6))


def test_windows_norms_and_caps_too():
  """Everything that a family can add, with slots that are refilled.

  Also with a chunk beside the cache, as on TPUs.
  """
  rich, cfg = make_model(RICH), dataclasses.replace(CONFIG, slots=4)
  params, prompts = random_params(rich), make_prompts(5)
  sampler = make_sampler(rich, cfg, EOS)
  buffered = sampler._replace(decode=jax.jit(decode_lib.make_decode(
      rich.clone(dtype="float32"), C=cfg.chunk, T=T, eos=EOS, buffered=True,
      interrupt=None), static_argnames="kind"))
  got, other = (run(rich, params, prompts, 3, sampler=s)
                for s in (sampler, buffered))
  want, _ = teacher_forced(rich, params, prompts, got, 3)
  mask = np.arange(T) < got.len_R[:, None]
  np.testing.assert_allclose(got.behavior_logp_RxT[mask], want[mask], atol=2e-5)
  assert got.len_R.max() == T and got.ended_R.any()
  np.testing.assert_array_equal(got.tokens_RxT, other.tokens_RxT)
  np.testing.assert_allclose(
      got.behavior_logp_RxT, other.behavior_logp_RxT, atol=2e-5)


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


@pytest.mark.parametrize("slots", [1, 64])
def test_slots_change_nothing(model, params, rollouts, slots):
  got = run(model, params, make_prompts(5), 6, slots=slots)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)
  np.testing.assert_array_equal(got.len_R, rollouts.len_R)
  np.testing.assert_array_equal(got.ended_R, rollouts.ended_R)
  np.testing.assert_allclose(got.entropy_R, rollouts.entropy_R, rtol=1e-5)


@pytest.mark.parametrize("axes, gathered", [
    ({"data": 2, "tensor": 2}, True), ({"fsdp": 4}, True),
    ({"fsdp": 2, "tensor": 2}, False)], ids=str)
def test_mesh_changes_nothing(params, rollouts, axes, gathered):
  """Neither do weights that stay sharded."""
  sharded = make_model(**axes)
  params = placed(params, sharded)
  sampler = engine.make_sampler(
      sharded, dataclasses.replace(CONFIG, slots=8), EOS, gathered=gathered)
  got = run(sharded, params, make_prompts(5), 6, sampler=sampler)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)
  if "fsdp" in axes:
    spec = sampler.prepare(params)["layers_0"]["q"].sharding.spec
    assert ("fsdp" in tuple(spec)) != gathered


def free_slots(R):
  q = flight.Queue(flight.nothing((R, 0, 1)), flight.Source(
      make_prompts(1), None, None, 0), flight.Rule(0, 0), version=0, G=1, W=1,
                   T=T, interrupt=None)
  q.open_slots(R)
  return q.row


COLLECTIVE = re.compile(
    r"= (\S+) (?:all-gather|all-reduce|all-to-all|collective-permute)\(")


def test_nothing_crosses_devices():
  """Of gathered weights: each block decodes, refills and grows by itself."""
  sharded = make_model(data=2, fsdp=2)
  s = engine.make_sampler(
      sharded, dataclasses.replace(CONFIG, slots=16), EOS)
  params = s.prepare(random_params(sharded))
  cache, window = s.empty(16, 16), s.empty(8, S)
  row = mesh_lib.place(free_slots(16), mesh_lib.row_sharding(sharded.mesh))
  index = np.zeros((4, 3), np.int32)
  crosses = lambda call, *args, **more: COLLECTIVE.findall(
      call.lower(*args, **more).compile().as_text())
  assert crosses(s.decode, params, cache, row, np.float32(1), np.float32(1),
                 kind="nucleus") == []
  assert crosses(s.insert, cache, window, index, index, G=4) == []
  assert crosses(s.resize, cache.k[0], index, 32, 3) == []


def test_stages_of_a_program_are_named(model, params):
  """For traces."""
  s = make_sampler(model, CONFIG, EOS)
  text = s.decode.lower(
      params, s.empty(4, 16), free_slots(4), np.float32(1), np.float32(1),
      kind="whole").as_text(debug_info=True)
  for stage in ("layers_0/attention/", "layers_0/mlp/", "head/", "draw/"):
    assert stage in text


def test_fewer_problems_than_devices(params, rollouts):
  """2 problems of 3 rollouts on 4 blocks: a problem is cut."""
  sharded = make_model(data=4)
  params = placed(params, sharded)
  got = run(sharded, params, make_prompts(5), 6)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)
  first = jax.tree.map(lambda x: x[:2], make_prompts(5))
  few = run(sharded, params, first, 3, slots=4)
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
  sampler = engine.make_sampler(
      model, dataclasses.replace(CONFIG, slots=16), EOS)
  sizes = lambda: [call._cache_size() for call in (
      sampler.prefill, sampler.insert, sampler.resize, sampler.decode)]
  sweep = [(Bp, n) for Bp in (1, 2, 3, 5, 8, 13) for n in (1, 2, 5, 16)]
  for Bp, n in sweep:
    run(model, params, make_prompts(Bp), n, sampler=sampler)
  first = sizes()
  shapes = len(sampler.sizes.rows) * len(sampler.sizes.lengths)
  for Bp, n in [(21, 3), (4, 11), (1, 40), (2, 23)]:
    for temperature in (1.0, 0.3):
      run(model, params, make_prompts(Bp), n, sampler=sampler, step=Bp,
          temperature=temperature)
  assert sizes()[-1] == first[-1] <= shapes
  # A kind of draw is another program; its temperature and top_p are not.
  for temperature, top_p in ((0.3, 0.5), (0.0, 1.0), (0.7, 0.9), (0.0, 0.5)):
    run(model, params, make_prompts(2), 23, sampler=sampler,
        temperature=temperature, top_p=top_p)
  assert sizes()[-1] <= 3 * shapes and sizes()[-1] == first[-1] + 2
  assert sizes()[0] <= len(sampler.sizes.prompts)
  short = dataclasses.replace(CONFIG, slots=16, max_new_tokens=1)
  assert engine.make_sampler(model, short, EOS).sizes.chunk == 1


def test_a_growing_cache_is_there_once_and_one_part(model, params):
  """64 -> 128 slots of a position: old parts are freed one by one."""
  s = engine.make_sampler(
      model, dataclasses.replace(CONFIG, slots=4, max_new_tokens=250), ())
  peaks = {}

  def resize(part, take, L, axis):  # the real one, and what is alive behind it
    grown = s.resize(part, take, L, axis)
    alive = sum(x.nbytes for x in jax.live_arrays() if x.ndim == 4)
    peaks[L] = max(alive, peaks[L] if L in peaks else 0)
    return grown

  alive = sum(x.nbytes for x in jax.live_arrays() if x.ndim == 4)
  run(model, params, make_prompts(4), 1, sampler=s._replace(resize=resize))
  part = lambda L: 4 * TINY.K * TINY.H * L * 4  # rows, heads, numbers, bytes
  window = 2 * TINY.Z * part(S) // 4  # one prompt a block
  for old, new in ((64, 128), (128, 192), (192, 256)):
    assert peaks[new] - alive <= 2 * TINY.Z * part(new) + part(old) + window
    assert peaks[new] - alive > 2 * TINY.Z * part(new)


def test_each_rollout_is_told_once_and_complete(model, params, rollouts):
  sampler = make_sampler(model, dataclasses.replace(CONFIG, slots=7), EOS)
  seen, calls = [], 0

  def ended(items, out):
    nonlocal calls
    calls += 1
    index = items.problem_R * 6 + items.number_R
    seen.extend(index.tolist())
    np.testing.assert_array_equal(out.tokens_RxT, rollouts.tokens_RxT[index])
    np.testing.assert_array_equal(out.len_R, rollouts.len_R[index])

  engine.sample_all(
      sampler, params, make_prompts(5), 6, rng.stream(11, "rollout", 0),
      temperature=1.0, top_p=1.0, ended=ended)
  assert sorted(seen) == list(range(30)) and calls > 4


def test_any_number_of_rollouts_of_each_problem(model, params, rollouts):
  """Also none."""
  n_P = np.array([2, 0, 6, 1, 3])
  sampler = make_sampler(model, dataclasses.replace(CONFIG, slots=7), EOS)
  got = engine.sample_all(
      sampler, params, make_prompts(5), n_P, rng.stream(11, "rollout", 0),
      temperature=1.0, top_p=1.0)
  first = np.arange(6)[None] < n_P[:, None]
  np.testing.assert_array_equal(
      got.tokens_RxT, rollouts.tokens_RxT[first.reshape(-1)])


def test_the_longest_expected_are_first():
  prompts = Prompts(np.zeros((4, 3), np.int32),
                    np.array([1, 3, 2, 3], np.int32), None)
  order = lambda **more: engine.one_step(
      prompts, 1, rng.stream(0, "rollout"), **more
  ).groups(0).position_E.tolist()
  assert order() == [0, 2, 1, 3]
  assert order(expected_P=[5.0, 7.5, 5.0, 9.0]) == [3, 1, 0, 2]


def test_sizes_by_hand():
  assert engine.shares(4, 176, 16) == (48, 96, 144, 176)
  assert engine.shares(4, 176, 32) == (64, 96, 160, 176)
  assert engine.shares(4, 6, 4) == (4, 6)
  assert engine.shares(4, 30, 32) == (30,)
  sizes = engine.Sizes(
      chunk=4, max_new_tokens=60, longest=99, rows=(16,), lengths=(32, 64, 112),
      prompts=(32, 40), window=8)
  assert sizes.sequences == (32, 40, 64, 112)
  assert [sizes.at_once(L) for L in sizes.sequences] == [8, 8, 5, 2]


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


@pytest.mark.parametrize("field, value", [
    ("slots", 0), ("memory_gib", 0.0), ("max_new_tokens", 0),
    ("temperature", -0.1), ("top_p", 0.0)])
def test_bad_config_is_refused(field, value):
  with pytest.raises(ValueError, match=field):
    dataclasses.replace(CONFIG, **{field: value})


def test_one_queue_for_all_devices_changes_no_token(params):
  """Skewed lengths on 1 and 4 devices; no device idles while others wait."""
  prompts, found, decoded = make_prompts(7), [], {}
  for data in (1, 4):
    sharded = make_model(data=data)
    s = engine.make_sampler(
        sharded, dataclasses.replace(CONFIG, slots=8, max_new_tokens=40), (1,))
    decoded[data] = 0  # slots, times tokens

    def decode(params, cache, row, *more, s=s, data=data, **kind):
      decoded[data] += row.token_R.size * s.sizes.chunk
      return s.decode(params, cache, row, *more, **kind)

    found.append(run(sharded, placed(params, sharded), prompts, 9,
                     sampler=s._replace(decode=decode)))
  found.append(engine.sample_all(
      s, placed(params, sharded), prompts, 9, rng.stream(11, "rollout", 0),
      temperature=np.float32(1), top_p=np.float32(1),
      expected_P=[3, 9, 1, 4, 4, 7, 2]))
  for each in found:
    np.testing.assert_array_equal(each.tokens_RxT, found[0].tokens_RxT)
    np.testing.assert_array_equal(each.len_R, found[0].len_R)
  lengths = found[0].len_R
  assert lengths.min() < 4 and lengths.max() == 40
  # With the queue cut into equal blocks, 4 devices decoded 1,792.
  assert lengths.sum() == 1483 and decoded == {1: 1728, 4: 1696}
