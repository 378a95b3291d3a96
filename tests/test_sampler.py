"""The sampler draws what it says it draws, and addresses are all that matter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax import mesh as mesh_lib
from isojax import rng
from isojax.models import decoder
from isojax.rl import score
from isojax.sampling import blocks
from isojax.sampling import sampler as sampler_lib
from isojax.types import Batch
from isojax.types import Prompts
from tests.conftest import TINY
from tests.conftest import make_model

S, T, EOS = 7, 9, (1, 5)
CONFIG = sampler_lib.SamplerConfig(
    rows=30, max_prompt_tokens=S, max_new_tokens=T, temperature=1.0, top_p=1.0,
    dtype="float32")


def make_prompts(count):
  random = np.random.default_rng(0)
  return Prompts(random.integers(0, TINY.V, (count, S)).astype(np.int32),
                 random.integers(1, S + 1, count).astype(np.int32),
                 np.arange(100, 100 + count, dtype=np.uint32))


def run(model, params, prompts, n, *, R, temperature=1.0, top_p=1.0, step=0,
        sampler=None):
  G = mesh_lib.blocks(model.mesh)
  return sampler_lib.sample_all(
      sampler or sampler_lib.make_sampler(model, CONFIG, EOS), params, prompts,
      n, rng.stream(11, "rollout", step), mesh=model.mesh, R=R,
      slots=blocks.slots_for(R // G, n), temperature=np.float32(temperature),
      top_p=np.float32(top_p))


@pytest.fixture(scope="module")
def rollouts(model, params):
  return run(model, params, make_prompts(5), 6, R=30)


def teacher_forced(model, params, prompts, rollouts, n, temperature=1.0):
  B = len(rollouts.len_R)
  batch = Batch(prompts, np.arange(B) // n, rollouts.tokens_RxT, rollouts.len_R,
                rollouts.behavior_logp_RxT, *np.zeros((3, B)))
  score_tokens = lambda params, batch: score.score_tokens(
      model, params, batch, temperature=temperature, dtype=jnp.float32)
  return tuple(map(np.asarray, jax.jit(score_tokens)(params, batch)))


def test_some_rows_end_early_and_some_do_not(rollouts):
  """Else the tests below would prove little."""
  assert 0 < rollouts.ended_R.sum() < 30
  assert len(np.unique(rollouts.len_R)) > 3


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behavior_logp_is_the_trainers_logp(model, params, temperature):
  prompts = make_prompts(5)
  got = run(model, params, prompts, 6, R=30, temperature=temperature)
  want, entropy = teacher_forced(
      model, params, prompts, got, 6, temperature)
  mask = np.arange(T) < got.len_R[:, None]
  np.testing.assert_allclose(
      got.behavior_logp_RxT[mask], want[mask], atol=2e-5)
  assert np.std(want[mask]) > 0.3
  np.testing.assert_allclose(
      got.entropy_R, np.where(mask, entropy, 0).sum(axis=1), rtol=1e-4)


def test_logp_without_any_cache(model, params, rollouts):
  """A plain causal forward of prompt and answer, one row at a time."""
  prompts = make_prompts(5)
  for row in (0, 7, 29):
    length, new = int(prompts.len_P[row // 6]), int(rollouts.len_R[row])
    ids = np.concatenate([prompts.tokens_PxS[row // 6, :length],
                          rollouts.tokens_RxT[row, :new]])[None]
    L = ids.shape[1]
    hidden, _ = model.apply(
        {"params": params}, ids, np.arange(L)[None],
        np.tril(np.ones((L, L), bool))[None],
        decoder.init_cache(TINY, 1, L, jnp.float32), 0)
    logits = model.apply({"params": params}, hidden, method="head")
    logp = np.asarray(jax.nn.log_softmax(logits))[0]
    want = logp[np.arange(length - 1, L - 1), ids[0, length:]]
    np.testing.assert_allclose(
        rollouts.behavior_logp_RxT[row, :new], want, atol=2e-5)


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
  few = run(model, params, make_prompts(5), 4, R=20)
  for name in ("tokens_RxT", "len_R"):
    many = getattr(rollouts, name)
    np.testing.assert_array_equal(
        getattr(few, name).reshape(5, 4, -1), many.reshape(5, 6, -1)[:, :4])


@pytest.mark.parametrize("R", [4, 7, 12, 30])
def test_rows_per_call_change_nothing(model, params, rollouts, R):
  got = run(model, params, make_prompts(5), 6, R=R)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)
  np.testing.assert_array_equal(got.ended_R, rollouts.ended_R)


@pytest.mark.parametrize(
    "axes", [{"data": 4}, {"fsdp": 4}, {"fsdp": 2, "tensor": 2},
             {"data": 2, "tensor": 2}])
def test_mesh_changes_nothing(params, rollouts, axes):
  sharded = make_model(**axes)
  placed = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(sharded))
  got = run(sharded, placed, make_prompts(5), 6, R=20)
  np.testing.assert_array_equal(got.tokens_RxT, rollouts.tokens_RxT)


def test_steps_problems_and_rollouts_differ(model, params, rollouts):
  other = run(model, params, make_prompts(5), 6, R=30, step=1)
  assert (other.tokens_RxT != rollouts.tokens_RxT).any(axis=1).mean() > 0.9
  long = rollouts.tokens_RxT[rollouts.len_R > 3]
  assert len({tuple(row) for row in long}) == len(long) > 10


def test_one_compilation_for_n_lengths_temperature_and_top_p(model, params):
  sampler = sampler_lib.make_sampler(model, CONFIG, EOS)
  for count, n, temperature, top_p in (
      (5, 6, 1.0, 1.0), (3, 6, 0.0, 1.0), (7, 6, 0.3, 0.5)):
    run(model, params, make_prompts(count), n, R=12, sampler=sampler,
        temperature=temperature, top_p=top_p)
  assert sampler._cache_size() == 1


def test_temperature_zero_is_argmax_and_certain(model, params):
  prompts = make_prompts(5)
  got = run(model, params, prompts, 2, R=10, temperature=0.0)
  np.testing.assert_array_equal(got.tokens_RxT[::2], got.tokens_RxT[1::2])
  assert (got.behavior_logp_RxT == 0).all()
  cold = run(model, params, prompts, 2, R=10, temperature=1e-4)
  np.testing.assert_array_equal(got.tokens_RxT, cold.tokens_RxT)


def test_draw_by_hand():
  """p = 1/2, 1/4, 1/8, 1/8: the uniform number names the token."""
  logits = np.log([[4.0, 2.0, 1.0, 1.0]]).repeat(6, 0).astype(np.float32)
  uniform = np.float32([0.0, 0.49, 0.51, 0.74, 0.76, 0.9999999])
  token, logp, entropy = sampler_lib.draw(logits, uniform, 1.0, 1.0)
  assert token.tolist() == [0, 0, 1, 1, 2, 3]
  np.testing.assert_allclose(
      np.exp(logp), [0.5, 0.5, 0.25, 0.25, 0.125, 0.125], rtol=1e-6)
  np.testing.assert_allclose(entropy, 1.75 * np.log(2), rtol=1e-6)  # 7/4 bits


def test_top_p_by_hand():
  """top_p = 0.6 keeps 1/2 and 1/4, renormalised to 2/3 and 1/3."""
  logits = np.log([[1.0, 4.0, 1.0, 2.0]]).repeat(3, 0).astype(np.float32)
  token, logp, entropy = sampler_lib.draw(
      logits, np.float32([0.0, 0.66, 0.67]), 1.0, 0.6)
  assert token.tolist() == [1, 1, 3]
  np.testing.assert_allclose(np.exp(logp), [2 / 3, 2 / 3, 1 / 3], rtol=1e-6)
  np.testing.assert_allclose(entropy, 1.75 * np.log(2), rtol=1e-6)  # of all four


def test_draw_follows_the_distribution():
  """Chi-square of 20,000 draws over 5 tokens; 23.5 is its 0.01 % point."""
  p = np.array([0.05, 0.4, 0.1, 0.15, 0.3])
  keys = rng.row_keys(rng.stream(0, "rollout"), jnp.arange(20_000, dtype=jnp.uint32),
                      jnp.zeros(20_000, jnp.uint32))
  uniform = rng.uniform_at(keys, 3)
  logits = jnp.broadcast_to(jnp.log(p.astype(np.float32))[None], (20_000, 5))
  token, _, _ = sampler_lib.draw(logits, uniform, 1.0, 1.0)
  count = np.bincount(token, minlength=5)
  assert ((count - 20_000 * p)**2 / (20_000 * p)).sum() < 23.5


def test_cut_by_hand():
  """3 problems of 4 rows in blocks of 5: rows straddle problems."""
  problem, slot, rollout, active = blocks.cut(
      4, 12, rows=5, slots=blocks.slots_for(5, 4))
  assert problem.tolist() == [[0, 1], [1, 2], [2, 0]]
  assert slot.tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
  assert rollout.tolist() == [[0, 1, 2, 3, 0], [1, 2, 3, 0, 1], [2, 3, 0, 0, 0]]
  assert active.tolist() == [[True] * 5] * 2 + [[True, True] + [False] * 3]


@pytest.mark.parametrize("rows, n", [(5, 4), (1, 9), (13, 2), (6, 3), (3, 6)])
def test_slots_are_enough_and_needed(rows, n):
  slots = blocks.slots_for(rows, n)
  _, slot, _, active = blocks.cut(n, 10 * n * rows, rows=rows, slots=slots)
  assert slot[active].max() == slots - 1


@pytest.mark.parametrize("field, value", [
    ("rows", 0), ("max_new_tokens", 0), ("temperature", -0.1), ("top_p", 0.0)])
def test_bad_config_is_refused(field, value):
  with pytest.raises(ValueError, match=field):
    dataclasses.replace(CONFIG, **{field: value})
