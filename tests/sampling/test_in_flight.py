"""In-flight updates: tokens, the weights that drew them, and their age."""

import functools
import hashlib
import itertools

import jax
import numpy as np
import pytest

from isojax.runtime import rng
from isojax.sampling import engine, flight
from tests.sampling import samples

T = samples.T
BP, N, M = 3, 2, 5  # problems of a step, rollouts of each, steps


def index(position: int) -> int:
  """Problem 7, 0, 3, 6, ... of 10: not the order of the prompts."""
  return (7 + 3 * position) % 10


def make_source(n=N, Bp=BP, steps=M) -> flight.GroupSource:
  return flight.GroupSource(
      samples.make_prompts(10), lambda step: flight.new_groups(
          step * Bp + np.arange(Bp), index(step * Bp + np.arange(Bp)), n),
      lambda position: np.asarray(jax.random.key_data(
          rng.stream(11, "rollout", position // Bp))), steps)


make_sampler = functools.partial(samples.make_sampler, slots=14)


def next_batch(sampler, params, state, version, *, k=2, source=None,
               ended=lambda *_: None):
  return engine.next_batch(
      sampler, params, state, source or make_source(), flight.BatchRule(BP, k),
      version=version, temperature=1.0, top_p=1.0, on_ended=ended)


def run(sampler, weights, *, saved=False, **options):
  """The batches of M steps; version v samples with weights[v]."""
  state, batches = flight.empty_state(sampler.layout), []
  for version in range(M):
    if saved:
      state = flight.from_bytes(flight.to_bytes(state))
    batch, state = next_batch(
        sampler, weights[version], state, version, **options)
    batches.append(batch)
  assert state.steps == M and not len(state.groups.n_E)
  return batches


def moved(params, version: int):
  """Weights that differ from version to version, as after large updates."""
  return jax.tree.map(lambda x: x * (1 + 0.3 * version), params)


@pytest.fixture(scope="module")
def batches(model, params):
  return run(make_sampler(model), [moved(params, v) for v in range(M)])


@pytest.mark.parametrize("slots, k, n, digest", [
    (14, 2, 2, "345766a354ef83dc"), (4, 1, 2, "a170707b4000e746"),
    (9, 2, 7, "c3308555fa172acf")])
def test_batches_are_those_recorded(model, params, slots, k, n, digest):
  """By in-flight updates with their own loop and queue.

  Equal tokens on any processor: a token changes only if its uniform number lies
  between the two roundings of a cumulative probability.
  """
  got, content = run(
      make_sampler(model, slots=slots), [moved(params, v) for v in range(M)],
      k=k, source=make_source(n)), hashlib.sha256()
  for batch in got:
    for x in (batch.groups.position_E, batch.rollouts.len_R,
              batch.rollouts.tokens_RxT[batch.rollouts.mask_RxT],
              batch.version_RxT[batch.rollouts.mask_RxT]):
      content.update(np.asarray(x, np.int64).tobytes())
  assert content.hexdigest()[:16] == digest


def test_a_token_has_the_logp_of_the_weights_that_drew_it(
    model, params, batches):
  """One plain forward of whole sequences for each version."""
  ages = set()
  for version, batch in enumerate(batches):
    prompts = jax.tree.map(lambda x: x[batch.groups.problem_E],
                           samples.make_prompts(10))
    for v in range(M):
      want = samples.teacher_forced(
          model, moved(params, v), batch.rollouts, N, prompts=prompts)
      of_v = batch.rollouts.mask_RxT & (batch.version_RxT == v)
      np.testing.assert_allclose(
          batch.rollouts.behavior_logp_RxT[of_v], want.logp_RxT[of_v], rtol=0,
          atol=want.atol)
    ages |= {*(version - batch.version_RxT)[batch.rollouts.mask_RxT].tolist()}
    assert (np.diff(batch.version_RxT) >= 0).all()
    mean, most = batch.staleness(version)
    assert most == version - batch.version_RxT[:, 0].min() <= 2
    assert 0 <= mean <= most
  assert ages == {0, 1, 2}
  order = np.concatenate([batch.groups.position_E for batch in batches])
  assert sorted(order) != list(order)
  within = [len(set(row[:length])) for batch in batches for row, length in zip(
      batch.version_RxT.tolist(), batch.rollouts.len_R)]
  assert max(within) >= 2  # a rollout goes on with the next weights


def test_a_saved_state_repeats_the_bits(model, params, batches):
  again = run(make_sampler(model), [moved(params, v) for v in range(M)],
              saved=True)
  jax.tree.map(np.testing.assert_array_equal, again, batches)


def test_each_rollout_is_reported_once_complete(model, params):
  sampler, reported = make_sampler(model), []
  state = flight.empty_state(sampler.layout)

  def ended(items, rollouts):
    assert (rollouts.ended_R | (rollouts.len_R == T)).all()
    reported.extend(zip(items.position_R.tolist(), items.number_R.tolist()))

  for version in range(2):
    batch, state = next_batch(sampler, params, state, version, ended=ended)
    mine = set(itertools.product(batch.groups.position_E.tolist(), range(N)))
    done = np.flatnonzero(state.ended_R | (state.len_R == T))
    left = set(zip(state.groups.position_E[done // N].tolist(),
                   (done % N).tolist()))
    assert sorted(reported) == sorted(mine | left) and mine <= set(reported)
    reported.clear()


def test_an_error_leaves_the_flight_as_it_is(model, params, batches):
  sampler, calls = make_sampler(model), itertools.count()
  new = moved(params, 1)

  def ended(*_):
    if next(calls) == 2:
      raise KeyboardInterrupt

  _, state = next_batch(sampler, params, flight.empty_state(sampler.layout), 0)
  with pytest.raises(KeyboardInterrupt):
    next_batch(sampler, new, state, 1, ended=ended)
  jax.tree.map(np.testing.assert_array_equal,
               next_batch(sampler, new, state, 1)[0], batches[1])
