"""The update does not depend on microbatches, devices or the order of rows."""

import dataclasses
import functools

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.core import memory
from isojax.models import attention, decoder, linear, lora
from isojax.rl import head as head_lib
from isojax.rl import losses, packing
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.runtime import mesh as mesh_lib
from isojax.types import Batch, Prompts, Rollouts
from tests import tolerance
from tests.conftest import (
  assert_close,
  columns,
  make_model,
  random_params,
  RICH,
  TINY,
)
from tests.rl.batches import (
  assembled,
  Bp,
  equations,
  LOSS,
  make_data,
  make_update,
  n,
  PLAIN,
  S,
  scalars,
  SGD,
  step,
  T,
)
from tests.sampling import samples


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
  """Rows of 11 tokens: 2 to 4 answers each."""
  monkeypatch.setattr(packing, "MIN_ROW_TOKENS", 11)


@functools.partial(jax.jit, static_argnums=0)
def scored(model, params, batch, temperature):
  """Log-prob and entropy of a microbatch's tokens, from all logits at once."""
  hidden = head_lib.hidden_states(model, params, batch, jnp.float32)
  logits = decoder.logits(
      hidden, decoder.head_weight(params, model.cfg), model.cfg)
  return losses.logp_and_entropy(logits, batch.tokens_RxW,
                               temperature=temperature)


# A gradient sums over the tokens of a batch what came forward and back.
TERMS = 5 * 7 * T + 2 * tolerance.path(TINY, S + T)


def assert_same(got, want):
  """Changes of the parameters, and metrics, of two divisions of a batch."""
  def close(got, want, param):
    # A change is a difference of parameters, which are rounded.
    atol = tolerance.for_sums(np.abs(want).max(), TERMS) + (
        np.finfo(np.float32).eps * np.abs(param).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)
  jax.tree.map(close, got[0], want[0], random_params(make_model()))
  assert_close(got[1], want[1], rtol=tolerance.for_sums(1.0, TERMS))


def take(tree, index):
  return jax.tree.map(lambda leaf: leaf[index], tree)


def limited(cfg, tokens):
  return dataclasses.replace(cfg, microbatch_tokens=tokens)


def test_packing_order_microbatches_and_devices_change_nothing(
    params, monkeypatch):
  """An answer a row in another order, two rows a microbatch, four devices."""
  change, metrics = whole = step(params)
  # Else equality to a tolerance would prove nothing.
  assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(change))
  assert metrics["kl"] > 0.01 and metrics["clip_fraction"] > 0.1
  length = np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(change)))
  assert metrics["grad_norm"] == pytest.approx(length, rel=1e-4)
  prompts, rollouts, advantage, weight = make_data()
  order = np.random.default_rng(3).permutation(Bp)
  index = (order[:, None] * n + np.array([2, 0, 3, 1])).reshape(-1)
  monkeypatch.setattr(packing, "width", lambda T, n: T)
  assert_same(step(params, rows=(
      take(prompts, order), take(rollouts, index), advantage[index], weight),
      cfg=limited(LOSS, 25), data=2, fsdp=2), whole)


def test_rows_without_gradient_are_not_computed(params):
  """Two groups of six have an advantage."""
  prompts, rollouts, advantage, weight = make_data()
  keep = np.array([0, 1, 0, 0, 1, 0]).repeat(n)
  rows = prompts, rollouts, advantage * keep, weight
  for tokens in (20, 5):
    batches = assembled(limited(PLAIN, tokens), rows=rows)
    assert sum(b.mask_RxW.sum() for b in batches) == (
        rollouts.len_R[keep == 1].sum())
    assert all(b.mask_RxW.any() for b in batches)
  regularized = assembled(LOSS, rows=(prompts, rollouts, 0 * weight, weight))
  assert sum(b.mask_RxW.sum() for b in regularized) == rollouts.len_R.sum()
  assert_same(step(params, cfg=limited(PLAIN, 20), rows=rows),
              step(params, cfg=PLAIN, rows=rows))


ADAMW = optimizer_lib.make(optimizer_lib.OptimizerConfig(
    base_lr=1e-2, base_batch=1, batch="sampled", warmup_steps=5, b1=0.9,
    b2=0.99, eps=1e-8, weight_decay=0.1, clip_norm=1.0, decay=0.0,
    average=1.0))


def after(params, *advantages):
  """(state, metrics) after an update of AdamW with each of the advantages."""
  prompts, rollouts, _, weight = make_data()
  model, cfg = make_model(), limited(PLAIN, 20)
  state = optimizer_lib.init_state(
      model, ADAMW, jax.tree.map(jnp.copy, params), average=True)
  update = update_lib.make_update(model, ADAMW, cfg, average=True)
  for each in advantages:
    batches = assembled(cfg, rows=(prompts, rollouts, each, weight))
    assert len(batches) > 2 or not each.any()
    state, metrics = update(
        state, None, batches, scalars(lr=2e-3, average_weight=0.25))
  return jax.device_get((state, metrics))


ADVANTAGE = make_data()[2]


def test_without_any_gradient_adamw_is_skipped(params):
  """Parameters, average, moments and count stay, also for the next update.

  Equal to the bit on any processor: a skipped update selects the old arrays,
  and one compiled program gives equal results for equal arguments.
  """
  nothing = np.zeros(Bp * n)
  once, metrics = after(params, ADVANTAGE)
  skipped, none = after(params, ADVANTAGE, nothing)
  assert (once.step, skipped.step) == (1, 2)
  assert_close((skipped.params, skipped.average, skipped.opt_state),
               (once.params, once.average, once.opt_state), rtol=0)
  assert none.keys() == metrics.keys()
  assert none.pop("finite") and not any(none.values())
  twice, _ = after(params, ADVANTAGE, ADVANTAGE)
  late, _ = after(params, ADVANTAGE, nothing, ADVANTAGE)
  assert late.step == 3
  assert_close((late.params, late.average, late.opt_state),
               (twice.params, twice.average, twice.opt_state), rtol=0)
  assert any((a != b).any() for a, b in zip(
      jax.tree.leaves(late.params), jax.tree.leaves(once.params)))


def test_packed_by_hand():
  """Longest first, each into the fullest row of its problem with room.

  Of problem 0: 8 | 5 + 3 | 2 beside 5 + 3 has no room, beside 8 neither.
  """
  length = np.array([3, 8, 5, 2, 4, 4])
  problem = np.array([0, 0, 0, 0, 1, 1])
  assert packing.packed(length, problem, 9) == [[1], [2, 0], [3], [4, 5]]
  assert packing.packed(length, problem, 10) == [
      [1, 3], [2, 0], [4, 5]]


def test_cut_by_hand():
  """2 rows a microbatch; 1 token of prompt slots, 4, or 16: 1 slot or 2."""
  got = [[x.tolist() for x in part] for part in packing.cut(
      [0, 0, 1, 3, 3], S=4, W=8, G=1, tokens=16)]
  assert got == [[[0, 1], [0, 0], [0]],
                 [[0, 1], [0, 1], [1, 3]],
                 [[0], [0, 0], [3]]]


def test_assembled_by_hand():
  """Two problems of two answers, rows of 6; the second answer is not used."""
  prompts = Prompts(np.array([[7, 0], [8, 9]], np.int32), np.array([1, 2]),
                    np.array([70, 71], np.uint32))
  rollouts = Rollouts(
      np.array([[1, 2, 0], [3, 0, 0], [4, 5, 6], [1, 1, 0]], np.int32),
      np.array([2, 1, 3, 2], np.int32), np.ones(4, bool),
      -np.arange(12.0).reshape(4, 3), np.zeros(4))
  (batch,) = update_lib.assemble(
      prompts, rollouts, dict(
          advantage=np.array([1.0, 0.0, 2.0, 3.0]),
          policy_weight=np.full(4, 0.25),
          each=10 * np.arange(12).reshape(4, 3)),
      n=2, G=1, cfg=dataclasses.replace(PLAIN, microbatch_tokens=12))
  want = Batch(
      prompts, [0, 1],
      [[1, 2, 0, 0, 0, 0], [4, 5, 6, 1, 1, 0]],
      [[0, 1, 0, 0, 0, 0], [0, 1, 2, 0, 1, 0]],
      np.array([[1] * 2 + [0] * 4, [1] * 5 + [0]], bool), dict(
          behavior_logp=[[0, -1, 0, 0, 0, 0], [-6, -7, -8, -9, -10, 0]],
          advantage=[[1, 1, 0, 0, 0, 0], [2, 2, 2, 3, 3, 0]],
          policy_weight=0.25 * np.array([[1, 1, 0, 0, 0, 0], [1] * 5 + [0]]),
          each=[[0, 10, 0, 0, 0, 0], [60, 70, 80, 90, 100, 0]]))
  jax.tree.map(np.testing.assert_array_equal, batch, jax.tree.map(
      np.asarray, want, is_leaf=lambda x: isinstance(x, list)))


def test_prompt_slots_by_hand():
  """Slots of 5, 3 or 2 tokens: prompts of 3 and 2 take 3, one of 5 takes 5."""
  assert [packing.slot_tokens(5, longest, 3) for longest in range(1, 6)] == [
      2, 2, 3, 5, 5]
  assert packing.slot_tokens(2048, 300, 4) == 512
  assert packing.slot_tokens(2048, 1, 4) == 256
  prompts = Prompts(np.arange(20).reshape(4, 5), np.array([4, 3, 2, 5]),
                    np.arange(4, dtype=np.uint32))
  rollouts = Rollouts(np.ones((4, 3), np.int32), np.array([0, 3, 2, 1]),
                      np.ones(4, bool), np.zeros((4, 3)), np.zeros(4))
  weight = dict.fromkeys(("advantage", "policy_weight"), np.ones(4))
  found = update_lib.assemble(
      prompts, rollouts, weight, n=1, G=1, cfg=dataclasses.replace(
          PLAIN, microbatch_tokens=12, prompt_sizes=3))
  assert [batch.prompts.tokens_PxS.tolist() for batch in found] == [
      [[5, 6, 7], [10, 11, 12]], [[15, 16, 17, 18, 19]]]
  assert [batch.prompts.len_P.tolist() for batch in found] == [[3, 2], [5]]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 30),
       st.integers(1, 30), st.integers(1, 4), st.integers(1, 500),
       st.integers(0, 2**20))
def test_every_answer_once_next_to_its_prompt(Bp, n, S, T, G, tokens, seed):
  random = np.random.default_rng(seed)
  W = packing.width(T, n)
  problem = np.arange(Bp).repeat(n)
  length = random.integers(1, T + 1, Bp * n)
  rows = packing.packed(length, problem, W)
  assert sorted(sum(rows, [])) == list(range(Bp * n))
  assert all(length[row].sum() <= W for row in rows)
  assert all(len(set(problem[row])) == 1 for row in rows)
  of_row, shapes, taken = [problem[row[0]] for row in rows], set(), 0
  for place, slot, held in packing.cut(
      of_row, S=S, W=W, G=G, tokens=tokens):
    shapes.add((len(slot), len(held)))
    block = place // (len(slot) // G)
    at = held.reshape(G, -1)[block, slot[place]]
    assert (at == of_row[taken:taken + len(place)]).all()
    assert len(slot) * W <= max(tokens, G * W)
    taken += len(place)
  assert taken == len(rows)
  assert len(shapes) <= 3


def test_a_batch_that_divides_by_nothing(params):
  """5 problems of 7 rollouts: on one device, and on four."""
  random = np.random.default_rng(5)
  prompts, rollouts, *_ = make_data()
  index = random.integers(0, len(rollouts.len_R), 5 * 7)
  rows = (take(prompts, slice(5)), take(rollouts, index),
          random.normal(size=35), np.full(35, 1e-3))
  assert_same(step(params, rows=rows, n=7, cfg=limited(LOSS, 60), fsdp=4),
              step(params, rows=rows, n=7))


def test_what_is_masked_can_not_poison_the_gradient(model, params):
  """Padding so unlikely that exp(ref - logp) is inf; real tokens are greedy."""
  prompts, cold = samples.make_prompts(Bp), np.float32(1e-4)
  rollouts = samples.run(
      samples.make_sampler(model), params, n, prompts=prompts, temperature=0.0)
  assert (rollouts.len_R < samples.T).any()
  (batch,) = assembled(LOSS, rows=(
      prompts, rollouts, np.ones(Bp * n),
      np.full(Bp * n, 1 / rollouts.len_R.sum())))
  ref = jax.tree.map(lambda x: 0.5 * x, params)
  logp, ref_logp = (scored(model, p, batch, cold)[0] for p in (params, ref))
  padding = ~batch.mask_RxW
  assert (ref_logp - logp)[padding].max() > 100  # exp is beyond float32
  assert (ref_logp - logp)[~padding].max() < 80
  state = optimizer_lib.init_state(model, SGD, jax.tree.map(jnp.copy, params))
  _, metrics = make_update(model, SGD, LOSS)(
      state, ref, [batch], scalars(cold))
  assert metrics["finite"]


def test_overflow_is_reported(params):
  """Also if it is in the average: training drops the state of this update."""
  model, tx = make_model(), optax.sgd(1.0)
  prompts, rollouts, advantage, weight = make_data()
  state = optimizer_lib.init_state(
      model, tx, jax.tree.map(jnp.copy, params), average=True)
  update = update_lib.make_update(model, tx, PLAIN, average=True)
  reported = []
  for scale, lr in (1, 1.0), (1e9, 1e38):
    state, metrics = update(state, None, assembled(PLAIN, rows=(
        prompts, rollouts, scale * advantage, weight)),
                            scalars(lr=lr, average_weight=0.5))
    reported.append((bool(metrics["finite"]), all(
        np.isfinite(x).all() for x in jax.tree.leaves(state.average))))
  assert reported == [(True, True), (False, False)]


def test_a_sweep_compiles_the_few_shapes_and_another_nothing(params):
  """Over Bp, n, lengths and temperatures; the state is donated each time."""
  model = make_model()
  prompts, rollouts, *_ = make_data()
  cfg = limited(PLAIN, 20)
  update = update_lib.make_update(model, SGD, cfg)
  state = optimizer_lib.init_state(model, SGD, jax.tree.map(jnp.copy, params))
  compiled = []
  for seed in (*range(8), *range(7, -1, -1)):
    random = np.random.default_rng(seed)
    Bp, n = ((6, 4), (3, 5), (4, 2), (1, 20))[seed % 4]
    rows = random.integers(0, 24, Bp * n)
    some = dataclasses.replace(
        take(rollouts, rows),
        len_R=random.integers(1, random.integers(2, T + 2), Bp * n))
    batches = assembled(cfg, model, n=n, rows=(
        take(prompts, slice(Bp)), some, np.ones(Bp * n), np.ones(Bp * n)))
    old = state
    state, _ = update(state, None, batches,
                      scalars(random.uniform(0.5, 1.0), random.uniform()))
    assert old.params["embed"].is_deleted()  # donated
    compiled.append([f._cache_size() for f in update.programs])
  start, accumulate, apply = compiled[-1]
  assert start == apply == 1
  assert accumulate <= 3
  assert compiled[7] == compiled[-1]


def plain_logp_and_entropy(hidden, weight, tokens, cfg, temperature):
  """All logits at once, and a gather."""
  logits = jnp.einsum("rtd,vd->rtv", hidden, weight)
  logp = jax.nn.log_softmax(
      attention.soft_cap(logits, cfg.logit_cap) / temperature, axis=-1)
  return (jnp.take_along_axis(logp, tokens[..., None], axis=-1)[..., 0],
          -jnp.sum(jnp.exp(logp) * logp, axis=-1))


@pytest.mark.parametrize("cfg, axes", [
    (dataclasses.replace(RICH, V=24), {"tensor": 4}),
    (TINY, {"data": 2, "fsdp": 2})], ids=str)
def test_chunked_head_is_the_whole_one(cfg, axes, monkeypatch):
  """Value and gradients; 13 positions in chunks of 3, the last one padded."""
  monkeypatch.setattr(memory, "HEAD_BYTES", 4 * cfg.V * 12 // (
      axes.get("data", 1) * axes.get("fsdp", 1)))
  model = make_model(cfg, **axes)
  params = decoder.init_params(model, jax.random.key(1))
  weight = 3.0 * decoder.head_weight(params, cfg)
  key = jax.random.split(jax.random.key(0), 4)
  hidden = jax.random.normal(key[0], (4, 13, cfg.D))
  tokens = jax.random.randint(key[1], (4, 13), 0, cfg.V)
  g_logp, g_entropy = jax.random.normal(key[2], (2, 4, 13))

  def term(measure):
    def value(hidden, weight, rest):
      tokens, *factors = rest
      sums = [jnp.sum(a * b) for a, b in zip(
          factors, measure(hidden, weight, tokens))]
      return sum(sums), {"logp": sums[0], "entropy": sums[1]}
    return value

  chunk = term(lambda hidden, weight, tokens: losses.logp_and_entropy(
      decoder.logits(hidden, weight, cfg), tokens, temperature=0.7))
  plain = term(lambda *args: plain_logp_and_entropy(*args, cfg, 0.7))
  rest = (tokens, g_logp, g_entropy)
  sums, *grads = jax.jit(lambda *args: head_lib.gradient_by_chunks(
      chunk, *args, mesh=model.mesh))(hidden, weight, rest)
  want_grads, want = jax.jit(jax.grad(plain, argnums=(0, 1), has_aux=True))(
      hidden, weight, rest)
  assert_close((sums, tuple(grads)), (want, want_grads), atol=1e-4)
  assert np.abs(want_grads[1]).max() > 0.1


def traced(cfg, R, T, model):
  """The jaxpr of one microbatch's gradient."""
  def shape(dtype, *dims):
    return jax.ShapeDtypeStruct(dims, np.dtype(dtype))

  batch = Batch(
      Prompts(shape("int32", 2, S), shape("int32", 2), shape("uint32", 2)),
      shape("int32", R), shape("int32", R, T), shape("int32", R, T),
      shape("bool", R, T), dict.fromkeys(
          ("behavior_logp", *columns(0, 0)), shape("float32", R, T)))
  params = decoder.abstract_params(model)
  base = params if cfg.kl_coef else None
  return jax.make_jaxpr(update_lib.make_gradient(model, cfg, lora.FULL))(
      (params, None), base, batch, np.float32(1.0))


HALF = dataclasses.replace(PLAIN, dtype="bfloat16")


@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("remat", [False, True])
def test_gradients_are_made_in_the_dtype_that_reduces_them(remat, reduce_dtype):
  """Of a layer's matrices; looped ones, and the head, are sent so to shards."""
  cfg = dataclasses.replace(HALF, remat=remat, reduce_dtype=reduce_dtype)
  matrices = {(60, 20), (20, 20), (20, 60), (28, 20), (20, 28)}  # [out, in]
  made, sent = set(), set()
  for eqn in equations(traced(cfg, 6, T, make_model(fsdp=2, tensor=2)).jaxpr):
    for out in (v.aval for v in eqn.outvars):
      if eqn.primitive.name == "dot_general" and out.shape in matrices:
        made.add((out.shape, out.dtype.name))
      if eqn.primitive.name == "reduce_scatter" or (  # the head's
          eqn.primitive.name == "sharding_constraint"
          and "fsdp" in eqn.params["sharding"].spec):
        sent.add(out.dtype.name)
  assert made == {(shape, reduce_dtype) for shape in matrices}
  assert sent == {reduce_dtype}


@pytest.mark.parametrize("dtype, want", [("float32", 259), ("bfloat16", 260)])
def test_a_reduced_gradient_by_hand(dtype, want):
  """256 + 1 + 1 + 1, a row a device: 9 bits, of which bfloat16 has 8."""
  rows = mesh_lib.row_sharding(make_model(fsdp=4).mesh)
  x, grad = jax.device_put(
      (jnp.ones((4, 1, 1), jnp.bfloat16),
       jnp.array([256, 1, 1, 1], jnp.bfloat16).reshape(4, 1, 1)), rows)
  grad_weight = jax.jit(lambda x, grad: jax.vjp(
      linear.product, x, jnp.ones((1, 1), dtype))[1](grad)[1])(x, grad)
  assert grad_weight.dtype == dtype and float(grad_weight[0, 0]) == want


def test_all_logits_never_exist(monkeypatch):
  """Of 6 rows x 50 tokens x 9973 only chunks of 30 tokens are there."""
  monkeypatch.setattr(memory, "HEAD_BYTES", 30 * 9973 * 4)
  model = make_model(dataclasses.replace(TINY, V=9973))

  def largest(cfg):
    return max(v.aval.size
               for eqn in equations(traced(cfg, 6, 50, model).jaxpr)
               for v in eqn.outvars)

  assert largest(LOSS) == largest(PLAIN) == 30 * 9973


def test_without_kl_there_is_no_reference_forward():
  def products(cfg):
    return sum(eqn.primitive.name == "dot_general"
               for eqn in equations(traced(cfg, 6, T, make_model()).jaxpr))

  no_kl = dataclasses.replace(LOSS, kl_coef=0.0)
  assert products(LOSS) > products(PLAIN) == products(no_kl)


