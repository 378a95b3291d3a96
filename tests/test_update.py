"""The update does not depend on how it is cut: microbatches, devices, order."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax import mesh as mesh_lib
from isojax.models import decoder
from isojax.rl import update as update_lib
from isojax.sampling import sampler as sampler_lib
from isojax.types import Prompts
from isojax.types import Rollouts
from tests.conftest import TINY
from tests.conftest import make_model

Bp, n, S, T = 6, 4, 7, 5
LOSS = update_lib.LossConfig(
    aggregation="token_mean", zero_variance="off", advantage_ddof=0,
    advantage_eps=1e-6, clip_low=0.2, clip_high=0.2, importance_cap=2.0,
    kl_coef=0.03, entropy_coef=0.01, microbatches=1, dtype="float32")
# SGD of rate 1: the change of the parameters is the gradient, not its sign.
SGD = optax.sgd(1.0)


def make_data():
  random = np.random.default_rng(1)
  B = Bp * n
  prompts = Prompts(random.integers(0, TINY.V, (Bp, S)).astype(np.int32),
                    random.integers(1, S + 1, Bp).astype(np.int32),
                    np.arange(Bp, dtype=np.uint32))
  rollouts = Rollouts(random.integers(0, TINY.V, (B, T)).astype(np.int32),
                      random.integers(1, T + 1, B).astype(np.int32),
                      np.ones(B, bool),
                      random.normal(-3, 0.5, (B, T)).astype(np.float32),
                      np.zeros(B, np.float32))
  weight = np.full(B, 1 / rollouts.len_R.sum())
  return prompts, rollouts, random.normal(size=B), weight


def step(params, *, microbatches=1, tx=SGD, cfg=LOSS, keep=np.ones(Bp),
         **axes):
  """(change of the parameters, metrics) of one update on a mesh."""
  model = make_model(**axes)
  on_mesh = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(model))
  before = jax.device_get(on_mesh)
  ref = jax.tree.map(
      lambda x: jax.device_put(0.9 * np.asarray(x), x.sharding), on_mesh)
  state = update_lib.init_state(model, tx, on_mesh)
  prompts, rollouts, advantage, weight = make_data()
  cfg = dataclasses.replace(cfg, microbatches=microbatches)
  advantage = advantage * keep.repeat(n)
  batch = update_lib.assemble(
      prompts, rollouts, advantage, weight, weight, n=n,
      G=mesh_lib.blocks(model.mesh), cfg=cfg)
  update = update_lib.make_update(model, tx, cfg)
  after, metrics = update(
      state, ref if cfg.kl_coef else None, update_lib.place(batch, model.mesh),
      np.float32(0.8))
  assert int(after.step) == 1
  want = jax.tree.map(lambda x: x.sharding,
                      update_lib.abstract_state(model, tx))
  assert jax.tree.map(lambda x: x.sharding, after) == want
  change = jax.tree.map(lambda a, b: np.asarray(a) - b, after.params, before)
  return change, jax.device_get(metrics)


@pytest.fixture(scope="module")
def whole(params):
  return step(params)


def assert_same(got, want):
  for (path, a), b in zip(jax.tree.leaves_with_path(got[0]),
                          jax.tree.leaves(want[0])):
    np.testing.assert_allclose(a, b, atol=3e-6, err_msg=str(path))
  for name in want[1]:
    np.testing.assert_allclose(got[1][name], want[1][name], rtol=2e-5,
                               err_msg=name)


def test_the_update_is_not_small(whole):
  """Else equality to 3e-6 would prove nothing."""
  assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(whole[0]))
  assert whole[1]["kl"] > 0.01 and whole[1]["clip_fraction"] > 0.1


@pytest.mark.parametrize("k", [2, 4, 8])
def test_microbatches_change_nothing(params, whole, k):
  """8 microbatches of 3 rows cut through the groups of 4."""
  assert_same(step(params, microbatches=k), whole)


@pytest.mark.parametrize("axes", [
    {"data": 2}, {"data": 4}, {"fsdp": 4}, {"fsdp": 2, "tensor": 2},
    {"data": 2, "tensor": 2}])
def test_devices_change_nothing(params, whole, axes):
  assert_same(step(params, **axes), whole)


def test_devices_and_microbatches_together(params, whole):
  assert_same(step(params, microbatches=3, fsdp=2, data=2), whole)


PLAIN = dataclasses.replace(LOSS, kl_coef=0.0, entropy_coef=0.0)
KEEP = np.array([0, 1, 0, 0, 1, 0])


@pytest.fixture(scope="module")
def sparse(params):
  """Two groups of six have an advantage: all computed, in one microbatch."""
  return step(params, cfg=PLAIN, keep=KEEP)


@pytest.mark.parametrize("k, axes", [
    (3, {}), (6, {}), (8, {}), (3, {"fsdp": 2, "tensor": 2})], ids=str)
def test_groups_without_gradient_are_skipped(params, sparse, k, axes):
  """They come last and are not run; neither gradient nor metrics notice."""
  prompts, rollouts, advantage, weight = make_data()
  cfg = dataclasses.replace(PLAIN, microbatches=k)
  batch = update_lib.assemble(
      prompts, rollouts, advantage * KEEP.repeat(n), weight, weight, n=n, G=1,
      cfg=cfg)
  assert batch.count == -(-8 * k // 24)  # 8 rows of 24, rounded up
  assert batch.used_R.sum() == 8
  assert not batch.used_R.reshape(k, -1)[batch.count:].any()
  assert_same(step(params, cfg=PLAIN, keep=KEEP, microbatches=k, **axes), sparse)


def test_no_group_with_gradient_is_no_step(params):
  change, metrics = step(params, cfg=PLAIN, keep=np.zeros(Bp), microbatches=2)
  assert all((x == 0).all() for x in jax.tree.leaves(change))
  assert metrics["grad_norm"] == 0 and metrics["logp_gap"] == 0


def test_regularizers_keep_every_group(params):
  prompts, rollouts, _, weight = make_data()
  batch = update_lib.assemble(
      prompts, rollouts, np.zeros(Bp * n), weight, weight, n=n, G=1,
      cfg=dataclasses.replace(LOSS, microbatches=4))
  assert batch.count == 4 and batch.used_R.all()


def test_what_is_masked_can_not_poison_the_gradient(params):
  """Padding so unlikely that exp(ref - logp) is inf; real tokens are greedy."""
  model = make_model()
  prompts, _, advantage, weight = make_data()
  sampler = sampler_lib.make_sampler(model, sampler_lib.SamplerConfig(
      rows=24, max_prompt_tokens=S, max_new_tokens=T, temperature=0.0,
      top_p=1.0, dtype="float32"), eos=(10,))
  rollouts = sampler_lib.sample_all(
      sampler, params, prompts, n, jax.random.key(0), mesh=model.mesh, R=24,
      slots=Bp, temperature=0.0, top_p=1.0)
  assert (rollouts.len_R < T).any()
  batch = update_lib.assemble(prompts, rollouts, advantage, weight, weight, n=n,
                              G=1, cfg=LOSS)
  ref = jax.tree.map(lambda x: 0.5 * x, params)
  cold = np.float32(1e-4)
  one = jax.tree.map(lambda x: x[0], batch.replace(count=None))
  logp, ref_logp = (update_lib.score_tokens(
      model, p, one, temperature=cold, dtype=jnp.float32)[0]
                    for p in (params, ref))
  padding = np.arange(T) >= rollouts.len_R[:, None]
  assert (ref_logp - logp)[padding].max() > 100  # exp is beyond float32
  assert (ref_logp - logp)[~padding].max() < 80
  state = update_lib.init_state(model, SGD, jax.tree.map(jnp.copy, params))
  _, metrics = update_lib.make_update(model, SGD, LOSS)(state, ref, batch, cold)
  assert metrics["finite"]


def test_overflow_is_reported(params):
  model = make_model()
  prompts, rollouts, advantage, weight = make_data()
  tx = optax.sgd(1e38)
  state = update_lib.init_state(model, tx, jax.tree.map(jnp.copy, params))
  batch = update_lib.assemble(prompts, rollouts, 1e9 * advantage, weight, weight,
                              n=n, G=1, cfg=PLAIN)
  _, metrics = update_lib.make_update(model, tx, PLAIN)(
      state, None, batch, np.float32(0.8))
  assert not metrics["finite"]


def test_gradient_is_the_derivative(params, whole):
  """Central difference of the loss along the gradient's own direction."""
  change, metrics = whole
  length = np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(change)))
  assert metrics["grad_norm"] == pytest.approx(length, rel=1e-4)

  def loss_at(scale):
    moved = jax.tree.map(lambda x, g: np.asarray(x) + scale * g / length,
                         params, change)
    return surrogate(moved, params)

  slope = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3
  assert slope == pytest.approx(-length, rel=2e-2)


def surrogate(params, old_params):
  """The loss written once more, in numpy terms, with old and ref held."""
  model = make_model()
  prompts, rollouts, advantage, weight = make_data()
  batch = jax.tree.map(lambda x: x[0], update_lib.assemble(
      prompts, rollouts, advantage, weight, weight, n=n, G=1,
      cfg=LOSS).replace(count=None))
  score = lambda p: [np.asarray(x, np.float64) for x in
                     update_lib.score_tokens(model, p, batch, temperature=0.8,
                                             dtype=jnp.float32)]
  logp, entropy = score(params)
  old, _ = score(old_params)
  ref, _ = score(jax.tree.map(lambda x: 0.9 * x, old_params))
  mask = np.arange(T) < rollouts.len_R[:, None]
  tis = np.minimum(np.exp(old - rollouts.behavior_logp_RxT), 2.0)
  d = ref - logp
  term = (-np.exp(logp - old) * advantage[:, None] * tis
          + 0.03 * (np.exp(d) - d - 1) - 0.01 * entropy)
  return (term * weight[:, None])[mask].sum()


def test_one_compilation_for_prompts_and_lengths(params):
  model = make_model()
  prompts, rollouts, advantage, weight = make_data()
  update = update_lib.make_update(
      model, SGD, dataclasses.replace(LOSS, kl_coef=0.0))
  state = update_lib.init_state(model, SGD, jax.tree.map(jnp.copy, params))
  for groups, temperature in ((4, 1.0), (4, 0.5), (4, 0.9)):
    shorter = dataclasses.replace(rollouts, len_R=rollouts.len_R // 2 + 1)
    batch = update_lib.assemble(
        prompts, shorter, advantage * (temperature < 1), weight, weight,
        n=groups, G=1, cfg=LOSS)
    old = state
    state, _ = update(state, None, update_lib.place(batch, model.mesh),
                      np.float32(temperature))
    assert old.params["embed"].is_deleted()  # donated
  assert update._cache_size() == 1


def test_optimizer_clips_warms_up_and_then_stays():
  schedule = update_lib.warmup_then_constant(2e-3, 10)
  got = [float(schedule(step)) for step in (0, 4, 9, 10, 5000)]
  np.testing.assert_allclose(got, [2e-4, 1e-3, 2e-3, 2e-3, 2e-3], rtol=1e-6)
  tx = update_lib.make_optimizer(update_lib.OptimizerConfig(
      base_lr=2e-3, base_batch=1, warmup_steps=10, b1=0.0, b2=0.0, eps=1.0,
      weight_decay=0.5, clip_norm=0.5), schedule)
  params = {"w": jnp.array([3.0, 4.0])}
  updates, _ = tx.update({"w": jnp.array([30.0, 40.0])}, tx.init(params), params)
  # The gradient is clipped to (0.3, 0.4); Adam: g / (|g| + 1); decay 0.5 w.
  np.testing.assert_allclose(
      updates["w"], -2e-4 * np.array([0.3 / 1.3 + 1.5, 0.4 / 1.4 + 2.0]),
      rtol=1e-5)


@pytest.mark.parametrize("field, value, message", [
    ("aggregation", "mean", "sample_mean, prompt_mean, token_mean"),
    ("zero_variance", "yes", "off, policy, regularizers, all"),
    ("microbatches", 0, ">= 1")])
def test_bad_config_is_refused(field, value, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(LOSS, **{field: value})
