"""Every way of sampling draws the tokens of one plain loop.

The loop, samples.plainly_sampled, has no cache and no slots. It runs once for
each reference; each variant samples the same 6 rollouts of 5 prompts.
"""

import functools
import typing

import jax
import numpy as np
import pytest

from isojax.runtime import rng
from isojax.sampling import engine, flight
from isojax.sampling import interrupt as interrupt_lib
from isojax.types import Rollouts
from tests.conftest import make_model, placed, random_params, RICH, TINY
from tests.sampling import samples
from tests.sampling.samples import EOS, T

P, N = 5, 6
# The phrase contains the token that closes an answer.
CLOSING = interrupt_lib.Interrupt(phrase=(7, 4, 2), unless=(4,))
CONFIGS = {"tiny": TINY, "rich": RICH, "interrupted": TINY}


def limits(name: str) -> np.ndarray | None:
  """The tokens of each rollout before its interruption."""
  if name != "interrupted":
    return None
  return interrupt_lib.lengths(
      interrupt_lib.InterruptConfig(phrase="x", unless="y", low=1, high=5),
      seed=1, step=0, id_P=samples.make_prompts(P).id_P, n=N)


@functools.cache
def reference(name: str) -> tuple[Rollouts, float]:
  """The rollouts of the plain loop, and how far other log-probs may be."""
  model = make_model(CONFIGS[name])
  params, limits_B = random_params(model), limits(name)
  tokens, forced = samples.plainly_sampled(
      model, params, N, limits_B=limits_B,
      interrupt=None if limits_B is None else CLOSING)
  ends = np.isin(tokens, EOS)
  ended = ends.any(axis=1)
  length = np.where(ended, ends.argmax(axis=1) + 1, T)
  drawn = (np.arange(T)[None] < length[:, None]) & ~forced
  out = Rollouts(tokens, length, ended, None, None,
                 None if limits_B is None else forced)
  logp, entropy, atol = samples.teacher_forced(model, params, out, N)
  return out.replace(
      behavior_logp_RxT=np.where(drawn, logp, 0.0),
      entropy_R=np.where(drawn, entropy, 0.0).sum(axis=1)), atol


class Variant(typing.NamedTuple):
  """A sampler, and what it samples."""

  sampler: dict  # options of samples.make_sampler
  reference: str = "tiny"
  axes: dict = {}  # of the mesh
  buffered: bool = False  # see samples.buffered
  in_flight: bool = False  # a step of one problem, k = 2, equal weights


EXHAUSTED = dict(page=2, pages=8)  # pages of one longest sequence
VARIANTS = {
    "a slot for each rollout": Variant(dict(slots=30)),
    "one slot": Variant(dict(slots=1)),
    "more slots than rollouts": Variant(dict(slots=64)),
    "pages": Variant(dict(slots=7, page=3)),
    "exhausted pages": Variant(dict(slots=7, **EXHAUSTED)),
    "in flight": Variant(dict(slots=14), in_flight=True),
    "in flight, exhausted pages": Variant(
        dict(slots=14, page=2, pages=14), in_flight=True),
    "data and tensor": Variant(dict(slots=8), axes=dict(data=2, tensor=2)),
    "fsdp": Variant(dict(slots=8), axes=dict(fsdp=4)),
    "sharded weights": Variant(dict(slots=8, weights_gathered=False),
                               axes=dict(fsdp=2, tensor=2)),
    "rich": Variant(dict(slots=4), "rich"),
    "rich, buffered as on TPUs": Variant(
        dict(slots=4), "rich", buffered=True),
    "rich, two exhausted pools": Variant(
        dict(slots=8, page=2, pages=9), "rich", dict(fsdp=2, tensor=2)),
    "interrupted": Variant(dict(slots=30), "interrupted"),
    "interrupted, refilled": Variant(dict(slots=4), "interrupted"),
    "interrupted, data": Variant(
        dict(slots=30), "interrupted", dict(data=2)),
    "interrupted, exhausted pages": Variant(
        dict(slots=7, **EXHAUSTED), "interrupted"),
    "interrupted, in flight": Variant(
        dict(slots=14), "interrupted", in_flight=True),
}


def sampled(variant: Variant) -> flight.CompletedBatch:
  """The batches of a variant as one, ordered by problem."""
  limits_B, config = limits(variant.reference), CONFIGS[variant.reference]
  model = make_model(config, **variant.axes)
  params = placed(random_params(make_model(config)), model)
  sampler = samples.make_sampler(
      model, interrupt=None if limits_B is None else CLOSING,
      **variant.sampler)
  if variant.buffered:
    sampler = samples.buffered(sampler, model)
  source = engine.one_batch_source(
      samples.make_prompts(P), N, rng.stream(11, "rollout", 0),
      interrupt_after=samples.interrupt_after(limits_B, N))
  rule, steps = flight.BatchRule(P, 0), 1
  if variant.in_flight:
    rule, steps = flight.BatchRule(1, 2), P
    source = source._replace(
        steps=steps,
        groups_of_step=lambda step: flight.new_groups([step], [step], N))
  state, batches = flight.empty_state(sampler.layout), []
  for version in range(steps):
    batch, state = engine.next_batch(
        sampler, params, state, source, rule, version=version, temperature=1.0,
        top_p=1.0, on_ended=lambda *_: None)
    batches.append(batch)
  problem_R = np.concatenate([batch.items.problem_R for batch in batches])
  order = np.argsort(problem_R, kind="stable")
  merge = lambda *x: np.concatenate(x)[order]
  return batches[0]._replace(
      rollouts=jax.tree.map(merge, *(batch.rollouts for batch in batches)),
      version_RxT=merge(*(batch.version_RxT for batch in batches)),
      evicted=sum(batch.evicted for batch in batches))


@pytest.mark.parametrize("name", VARIANTS)
def test_rollouts_are_those_of_a_plain_loop(name):
  variant = VARIANTS[name]
  want, atol = reference(variant.reference)
  batch = sampled(variant)
  got = batch.rollouts
  for field in ("tokens_RxT", "len_R", "ended_R", "forced_RxT"):
    np.testing.assert_array_equal(
        getattr(got, field), getattr(want, field), err_msg=field)
  # The tokens that the loss counts; others are not read.
  logp = np.where(got.mask_RxT, got.behavior_logp_RxT, 0.0)
  np.testing.assert_allclose(logp, want.behavior_logp_RxT, rtol=0, atol=atol)
  np.testing.assert_allclose(got.entropy_R, want.entropy_R, rtol=1e-4)
  # The variant is what its name says.
  assert (batch.evicted > 0) == ("exhausted" in name)
  versions = [set(v[:length]) for v, length in zip(
      batch.version_RxT.tolist(), got.len_R)]
  assert (max(map(len, versions)) > 1) == variant.in_flight


def test_the_references_have_all_kinds_of_rollouts():
  """Some end by each EOS, some are cut off; some are interrupted, or not."""
  for name in CONFIGS:
    want, _ = reference(name)
    assert 0 < want.ended_R.sum() < P * N and len(set(want.len_R)) > 3
    assert want.len_R.max() == T
  tiny, _ = reference("tiny")
  tokens, logp = tiny.tokens_RxT, tiny.behavior_logp_RxT
  assert set(tokens[np.isin(tokens, EOS)]) == set(EOS)
  assert np.std(logp[tiny.mask_RxT]) > 0.3
  want, _ = reference("interrupted")
  some, forced = want.interrupted_R, want.forced_RxT
  assert 0.2 < some.mean() < 0.9
  # Also some that went on behind the phrase, and some with the closing token.
  end = T - np.argmax(forced[some, ::-1], axis=1)
  assert (want.len_R[some] > end).any()
  assert (~some & (want.tokens_RxT == 4).any(axis=1)
          & (want.len_R > limits("interrupted"))).any()
