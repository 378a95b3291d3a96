"""In-flight updates: tokens, the weights that drew them, and their age."""

import dataclasses
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from isojax import rng
from isojax.models import decoder
from isojax.rl import algorithm
from isojax.sampling import in_flight
from isojax.sampling import in_flight_queue as queue
from isojax.sampling import interrupt
from isojax.sampling import sampler as sampler_lib
from isojax.types import Prompts
from tests.conftest import make_model
from tests.sampling import test_sampler

EOS, T = test_sampler.EOS, test_sampler.T
BP, N, M = 3, 2, 5  # problems of a step, rollouts of each, steps


def index(position: int) -> int:
  """Problem 7, 0, 3, 6, ... of 10: not the order of the prompts."""
  return (7 + 3 * position) % 10


def make_source(size=M * BP, lengths=None) -> queue.Source:
  return queue.Source(
      test_sampler.make_prompts(10), index, lambda position: np.asarray(
          jax.random.key_data(rng.stream(11, "rollout", position // BP))), BP,
      size, lengths)


def make_sampler(model, **changes):
  return test_sampler.make_sampler(model, dataclasses.replace(
      test_sampler.CONFIG, **({"slots": 14} | changes)), EOS)


def run(sampler, weights, *, k=2, caches="recompute", resume_at=(),
        lengths=None):
  """Returns the batches of M steps; version v samples with weights[v]."""
  state, carried, batches = queue.nothing(), None, []
  for version in range(M):
    if version in resume_at:
      state, carried = queue.from_bytes(queue.to_bytes(state, 3)), None
    handed, state, carried = in_flight.next_batch(
        sampler, weights[version], state, make_source(lengths=lengths),
        version=version, Bp=BP, n=N, k=k, temperature=1.0, top_p=1.0,
        ended=lambda *_: None, carried=carried if caches == "stale" else None)
    batches.append(handed)
  assert state.begun == M * BP and not len(state.position_E)
  return batches


def moved(params, version: int):
  """Weights that differ from version to version, as after large updates."""
  return jax.tree.map(lambda x: x * (1 + 0.3 * version), params)


@pytest.fixture(scope="module")
def batches(model, params):
  return run(make_sampler(model), [moved(params, v) for v in range(M)])


@pytest.mark.parametrize("caches", algorithm.CACHES)
def test_without_updates_the_tokens_are_those_of_the_sampler(
    model, params, caches):
  got = run(make_sampler(model), [params] * M, caches=caches)
  order = np.concatenate([handed.position_Bp for handed in got])
  assert sorted(order) == list(range(M * BP)) and sorted(order) != list(order)
  for handed in got:
    for e, position in enumerate(handed.position_Bp):
      prompts = jax.tree.map(lambda x: x[[index(position)]],
                             test_sampler.make_prompts(10))
      want = test_sampler.run(model, params, prompts, N, step=position // BP)
      for name, x in vars(want).items():
        if x is None:
          continue
        np.testing.assert_allclose(
            getattr(handed.rollouts, name)[e * N:(e + 1) * N], x, rtol=1e-5,
            atol=2e-6 * name.startswith("behavior"), err_msg=name)


def interrupt_lengths(position):
  """Addressed by step and problem, as those of the sampler."""
  return interrupt.lengths(
      interrupt.InterruptConfig("x", "y", 1, 5), seed=0, step=position // BP,
      id_P=test_sampler.make_prompts(10).id_P[[index(position)]], n=N)


@pytest.mark.parametrize("caches", algorithm.CACHES)
def test_interruption_is_that_of_the_sampler(model, params, caches):
  """Also of rollouts that are read again in the middle of the phrase."""
  closing = interrupt.Interrupt(phrase=(7, 2, 7), unless=(4,))
  sampler, whole = (sampler_lib.make_sampler(
      model, dataclasses.replace(test_sampler.CONFIG, slots=slots), EOS,
      interrupt=closing) for slots in (14, 30))
  got = run(sampler, [params] * M, caches=caches, lengths=interrupt_lengths)
  forced = np.concatenate([handed.rollouts.forced_RxT for handed in got])
  drawn = np.concatenate([handed.version_RxT for handed in got])
  within = [len(set(v[f])) for v, f in zip(drawn, forced)]
  assert max(within) == 2 and forced.any(axis=1).mean() > 0.2
  for handed in got:
    for e, position in enumerate(handed.position_Bp):
      prompts = jax.tree.map(lambda x: x[[index(position)]],
                             test_sampler.make_prompts(10))
      want = sampler_lib.sample_all(
          whole, params, prompts, N, rng.stream(11, "rollout", position // BP),
          temperature=1.0, top_p=1.0, interrupt_B=interrupt_lengths(position))
      for name in ("tokens_RxT", "len_R", "forced_RxT"):
        np.testing.assert_array_equal(
            getattr(handed.rollouts, name)[e * N:(e + 1) * N],
            getattr(want, name), err_msg=name)


def test_a_rollout_that_is_read_again_knows_what_closed_it():
  """Token 4 within the first L = 3 tokens of rollout 0, behind them in 1."""
  source = make_source(lengths=lambda position: np.array([3, 2]))
  pool = queue.opened(queue.nothing(), n=N, T=T, most=BP)
  items = queue.waiting(pool, source, [], version=0, most=BP).take(N)
  pool.out.tokens_RxT[:N, :3] = [[6, 4, 8], [6, 8, 4]]
  pool.out.len_R[:N] = 3
  slots = queue.free_slots(1, N, interrupted=True)
  queue.hold(slots, pool, source, [0, 1], items,
             interrupt.Interrupt(phrase=(7, 2), unless=(4,)))
  assert slots.row.interrupt_R.tolist() == [3, 2]
  assert slots.row.matched_R.tolist() == [1, 0]


def test_a_token_has_the_logp_of_the_weights_that_drew_it(
    model, params, batches):
  """One plain forward of whole sequences for each version."""
  ages = set()
  for version, handed in enumerate(batches):
    prompts = jax.tree.map(lambda x: x[[index(p) for p in handed.position_Bp]],
                           test_sampler.make_prompts(10))
    drawn = np.arange(T) < handed.rollouts.len_R[:, None]
    for v in range(M):
      want, _ = test_sampler.teacher_forced(
          model, moved(params, v), prompts, handed.rollouts, N)
      of_v = drawn & (handed.version_RxT == v)
      np.testing.assert_allclose(
          handed.rollouts.behavior_logp_RxT[of_v], want[of_v], atol=3e-5)
    ages |= set((version - handed.version_RxT)[drawn].tolist())
    first = handed.version_RxT[:, 0]
    assert (np.diff(np.where(drawn, handed.version_RxT, 99)) >= 0).all()
    mean, most = in_flight.staleness(handed, version)
    assert most == version - first.min() <= 2 and 0 <= mean <= most
  assert ages == {0, 1, 2}


def test_a_rollout_goes_on_with_the_next_weights(batches):
  within = [len(set(row[:length])) for handed in batches for row, length in zip(
      handed.version_RxT.tolist(), handed.rollouts.len_R)]
  assert max(within) >= 2


def same(one, other):
  for a, b in zip(one, other, strict=True):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_saved_state_repeats_the_bits(model, params, batches):
  same(batches, run(make_sampler(model), [moved(params, v) for v in range(M)],
                    resume_at=range(M)))


def test_stale_caches_are_other_numbers(model, params, batches):
  """And the option does what it says: nothing is read again."""
  sampler, reread = make_sampler(model), []
  stale = run(sampler._replace(reread=lambda params, prompts: (
      reread.append(int(prompts.len_P.max())), sampler.reread(params, prompts)
  )[1]), [moved(params, v) for v in range(M)], caches="stale")
  assert max(reread) <= test_sampler.S
  assert any((a.rollouts.behavior_logp_RxT != b.rollouts.behavior_logp_RxT
              ).any() for a, b in zip(stale, batches, strict=True))
  assert max(in_flight.staleness(b, v)[1] for v, b in enumerate(stale)) == 2


def test_mesh_changes_nothing(params, batches):
  sharded = make_model(data=4)
  placed = jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), params,
      decoder.abstract_params(sharded))
  got = run(make_sampler(sharded), [moved(placed, v) for v in range(M)])
  for a, b in zip(got, batches, strict=True):
    for name in ("tokens_RxT", "len_R", "ended_R"):
      np.testing.assert_array_equal(getattr(a.rollouts, name),
                                    getattr(b.rollouts, name))
    np.testing.assert_array_equal(a.version_RxT, b.version_RxT)
    np.testing.assert_array_equal(a.position_Bp, b.position_Bp)


def test_each_rollout_is_told_once_complete(model, params):
  told, state = [], queue.nothing()

  def ended(position, rollout, rollouts):
    assert (rollouts.ended_R | (rollouts.len_R == T)).all()
    told.append(list(zip(position.tolist(), rollout.tolist())))

  for version in range(2):
    handed, state, _ = in_flight.next_batch(
        make_sampler(model), params, state, make_source(), version=version,
        Bp=BP, n=N, k=2, temperature=1.0, top_p=1.0, ended=ended, carried=None)
    mine = set(itertools.product(handed.position_Bp.tolist(), range(N)))
    assert mine <= set(sum(told, []))
    done = state.ended_R | (state.len_R == T)
    items = np.flatnonzero(done)
    left = set(zip(state.position_E[items // N].tolist(),
                   (items % N).tolist()))
    assert mine | left == set(sum(told, []))
    assert len(sum(told, [])) == len(mine | left)
    told.clear()


def test_allocations_compile_nothing_twice(model, params):
  sampler = make_sampler(model, slots=16)
  calls = (sampler.reread, sampler.insert, sampler.resize, sampler.decode)

  def sample(Bp, n, k):
    state = queue.nothing()
    for version in range(3):
      _, state, _ = in_flight.next_batch(
          sampler, params, state, make_source(3 * Bp), version=version, Bp=Bp,
          n=n, k=k, temperature=1.0, top_p=1.0, ended=lambda *_: None,
          carried=None)

  for Bp, n, k in [(1, 1, 1), (2, 5, 1), (3, 8, 2), (1, 16, 2), (5, 3, 1)]:
    sample(Bp, n, k)
  sizes = [call._cache_size() for call in calls]
  sample(4, 6, 3)
  sample(7, 2, 1)
  assert [call._cache_size() for call in calls][3] == sizes[3] <= (
      len(sampler.row_sizes) * len(sampler.length_sizes))
  assert sampler.reread._cache_size() <= len(
      {*sampler.prompt_sizes, *sampler.length_sizes})


def simulated(needs_PxN, *, k, Bp, slots, chunk, longest):
  """Runs the rules alone, with given lengths.

  Yields:
    For each step: version, Pool, the groups handed over, tokens, and slots
    times the tokens of their chunks.
  """
  P, n = needs_PxN.shape
  source = queue.Source(
      Prompts(np.zeros((1, 1), np.int32), np.ones(1, np.int32),
              np.zeros(1, np.uint32)), lambda p: 0, None, Bp, P)
  state, most = queue.nothing(), (k + 1) * Bp
  for version in range(P // Bp):
    pool = queue.opened(state, n=n, T=longest, most=most)
    waiting = queue.waiting(pool, source, [], version=version, most=most)
    active, decoded, before = [], 0, pool.out.len_R.sum()
    while True:
      chosen = queue.handed_over(
          pool.version_E[:pool.groups], pool.complete_E, version=version, k=k,
          Bp=Bp)
      if chosen is not None:
        break
      active += waiting.take(slots - len(active))
      assert active and pool.groups <= most
      for item in active:
        need = needs_PxN[pool.position_E[item // n], item % n]
        start = pool.out.len_R[item]
        end = min(start + chunk, need)
        pool.version_RxT[item, start:end] = version
        pool.out.len_R[item], pool.out.ended_R[item] = end, end == need
      decoded += slots * chunk
      done = pool.done_R
      active = [i for i in active if not done[i]]
    kept = pool.out.len_R.sum() - before
    yield version, pool, chosen, kept, decoded
    state = queue.closed(pool, np.setdiff1d(np.arange(pool.groups), chosen),
                         source)


@hypothesis.given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5),
    st.integers(1, 20), st.randoms(use_true_random=False))
@hypothesis.settings(max_examples=100)
def test_no_token_is_too_old_and_every_rollout_is_used(
    k, Bp, n, M, slots, random):
  """Any lengths."""
  needs = np.array([[random.choice((1, 2, 12)) for _ in range(n)]
                    for _ in range(M * Bp)])
  used = []
  for version, pool, chosen, _, _ in simulated(
      needs, k=k, Bp=Bp, slots=slots, chunk=1, longest=12):
    for item in queue.items_of(chosen, n):
      length = pool.out.len_R[item]
      assert length == needs[pool.position_E[item // n], item % n]
      age = version - pool.version_RxT[item, :length]
      assert (age >= 0).all() and (age <= k).all()
    used.extend(pool.position_E[chosen].tolist())
  assert sorted(used) == list(range(M * Bp))


@pytest.mark.parametrize("slots, k, least, most", [
    (128, 2, 0.5, 0.7), (128, 4, 0.9, 0.94), (32, 1, 0.9, 0.94)])
def test_slots_are_busy_if_enough_may_be_in_flight(slots, k, least, most):
  """Lengths of the bench: 8 x 16, mean 48, at most 256, chunks of 8 tokens.

  A slot waits for half a chunk after each rollout: at most 93 % are useful.
  """
  needs = np.minimum(np.random.default_rng(0).geometric(1 / 48, (160, 16)), 256)
  found = list(simulated(needs, k=k, Bp=8, slots=slots, chunk=8, longest=256))
  steady = found[4:-k - 1]  # without the first and the last steps
  kept, decoded = (sum(x[i] for x in steady) for i in (3, 4))
  assert least < kept / decoded < most


def test_what_is_handed_over_by_hand():
  """k = 1, Bp = 2: what began at version 0 is due at version 1."""
  due = lambda version_E, complete_E, version: queue.handed_over(
      np.array(version_E), np.array(complete_E, bool), version=version, k=1,
      Bp=2)
  assert due([0, 0, 0, 0], [1, 0, 0, 0], 0) is None  # one group is no batch
  assert due([0, 0, 0, 0], [1, 0, 0, 1], 0).tolist() == [0, 3]
  assert due([0, 0, 1, 1], [1, 0, 1, 1], 1) is None  # group 1 is due: wait
  assert due([0, 0, 1, 1], [1, 1, 1, 1], 1).tolist() == [0, 1]
  assert due([0, 1, 1, 1], [1, 0, 0, 1], 1).tolist() == [0, 3]


def test_waiting_rollouts_by_hand():
  """Unfinished ones first, the longest first; then groups in their order."""
  source = queue.Source(
      Prompts(np.arange(6, dtype=np.int32).reshape(2, 3),
              np.array([3, 1], np.int32), np.array([7, 8], np.uint32)),
      lambda position: position % 2, None, 1, 4)
  state = queue.InFlight(
      2, np.array([0, 1]), np.array([0, 1]), np.array([], np.int64),
      np.array([0, 0], np.int32),
      np.array([1, 2, 2, 0], np.int32), np.array([False, True, False, False]),
      np.zeros(4, np.float32), np.array([9, 8, 7, 6, 5], np.int32),
      np.zeros(5, np.float32), np.zeros(5, np.int32))
  pool = queue.opened(state, n=2, T=4, most=3)
  waits = queue.waiting(pool, source, [], version=1, most=3)
  assert list(waits.items) == [0, 2, 3]  # of 3 + 1 and 1 + 2 tokens; nothing
  assert queue.sequence(pool, source, 0).tolist() == [0, 1, 2, 9]
  assert queue.sequence(pool, source, 2).tolist() == [3, 6, 5]
  assert waits.count == 5 and waits.next_positions(4) == [1, 2]
  assert waits.take(9) == [0, 2, 3, 4, 5]
  assert pool.version_E.tolist() == [0, 0, 1] and pool.begun == 3
