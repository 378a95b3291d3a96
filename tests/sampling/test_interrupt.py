"""Forced interruption: where the phrase is inserted, and what it leaves alone.
"""

import dataclasses
import functools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.errors import InputError
from isojax.models import tokenizer as tokenizer_lib
from isojax.rl import algorithm
from isojax.rl import update as update_lib
from isojax.sampling import interrupt
from isojax.types import Rollouts
from tests.rl.batches import PLAIN
from tests.sampling import samples

T, EOS, n = samples.T, samples.EOS, 6
# The phrase contains the token that closes an answer.
CLOSING = interrupt.Interrupt(phrase=(7, 4, 2), unless=(4,))
CFG = interrupt.InterruptConfig(phrase="x", unless="y", low=1, high=5)


def test_the_automaton_by_hand():
  """Of "a b a c": after a, b, a another b leaves the state "a b"."""
  a, b, c, rest = 7, 8, 9, 5
  assert interrupt.transitions((a, b, a, c)) == ([7, 8, 9], [
      [1, 0, 0, 0], [1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 4, 0], [4, 4, 4, 4]])
  assert interrupt.matched([rest, a, b, a, b, a], (a, b, a, c)) == 3
  assert interrupt.matched([a, b, a, b, a, c, rest], (a, b, a, c)) == 4


@given(st.lists(st.integers(0, 2), max_size=12),
       st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_the_automaton_finds_what_a_search_finds(tokens, unless):
  unless, U = tuple(unless), len(unless)
  found = any(tuple(tokens[i:i + U]) == unless
              for i in range(len(tokens) - U + 1))
  assert (interrupt.matched(tokens, unless) == U) == found


def test_lengths_are_addressed_and_uniform():
  cfg = dataclasses.replace(CFG, low=3, high=6)
  make = functools.partial(interrupt.lengths, cfg, seed=5)
  eight = make(step=2, id_P=[40, 9], n=8).reshape(2, 8)
  assert eight.dtype == np.int32
  np.testing.assert_array_equal(
      make(step=2, id_P=[9, 40], n=4).reshape(2, 4), eight[::-1, :4])
  assert (make(step=3, id_P=[40, 9], n=8) != eight.reshape(-1)).any()
  many = np.bincount(make(step=0, id_P=range(100), n=40), minlength=8)
  assert (many[[0, 1, 2, 7]] == 0).all()
  assert (np.abs(many[3:7] - 1000) < 5 * 28).all()  # a deviation is 27.4
  # Not the bits that order the problems of a step.
  found = make(step=2, id_P=[0, 1], n=8).reshape(2, 8)
  bits = np.random.Philox(key=[5, 2], counter=[0, 0, 0, 3]).random_raw(8)
  assert (found != 3 + (bits % np.uint64(4)).astype(np.int32)).any(axis=1).all()


def sample(model, params, L_B, *, slots=30, n=n):
  return samples.run(samples.make_sampler(
      model, slots=slots, interrupt=CLOSING), params, n,
      interrupt_after=samples.interrupt_after(L_B, n))


def lengths(n=n):
  return interrupt.lengths(
      CFG, seed=1, step=0, id_P=samples.make_prompts(5).id_P, n=n)


@pytest.fixture(scope="module")
def interrupted(model, params):
  return sample(model, params, lengths())


def test_log_probs_and_entropy_are_of_drawn_tokens(model, params, interrupted):
  logp, entropy, atol = samples.teacher_forced(model, params, interrupted)
  drawn = interrupted.mask_RxT
  assert (drawn | interrupted.forced_RxT).sum() == interrupted.len_R.sum()
  got = interrupted.behavior_logp_RxT
  np.testing.assert_allclose(got[drawn], logp[drawn], rtol=0, atol=atol)
  assert (got[~drawn] == 0).all() and interrupted.forced_RxT.sum() > 10
  np.testing.assert_allclose(
      interrupted.entropy_R, (entropy * drawn).sum(axis=1), rtol=1e-5)


def test_n_changes_nothing(model, params, interrupted):
  two = sample(model, params, lengths(2), n=2)
  np.testing.assert_array_equal(
      two.tokens_RxT.reshape(5, 2, T),
      interrupted.tokens_RxT.reshape(5, n, T)[:, :2])


def test_without_lengths_nothing_is_inserted_and_nothing_compiled(
    model, params, interrupted):
  """As in evaluations; other lengths are no other program either."""
  decode = samples.make_sampler(model, slots=30, interrupt=CLOSING).decode
  before = decode._cache_size()
  plain = samples.run(samples.make_sampler(model), params)
  never = sample(model, params, None)
  np.testing.assert_array_equal(never.tokens_RxT, plain.tokens_RxT)
  np.testing.assert_array_equal(never.behavior_logp_RxT,
                                plain.behavior_logp_RxT)
  assert not never.interrupted_R.any()
  sample(model, params, np.full(5 * n, 2, np.int32))
  assert decode._cache_size() == before
  assert (interrupted.tokens_RxT != plain.tokens_RxT).any()
  assert plain.forced_RxT is None and not plain.interrupted_R.any()


def test_inserted_tokens_are_not_in_the_loss():
  """Two rollouts of 4 and 3 tokens; the first has two inserted tokens."""
  forced = np.array([[0, 1, 1, 0], [0, 0, 0, 0]], bool)
  rollouts = Rollouts(
      np.array([[2, 7, 7, 3], [4, 5, 6, 0]], np.int32), np.array([4, 3]),
      np.ones(2, bool), -np.ones((2, 4), np.float32), np.zeros(2, np.float32),
      forced)
  np.testing.assert_array_equal(
      rollouts.mask_RxT, [[1, 0, 0, 1], [1, 1, 1, 0]])
  columns = algorithm.single_update_columns(
      np.array([[1.0, 0.0]]), rollouts, PLAIN)
  np.testing.assert_allclose(columns["policy_weight"], [1 / 5, 1 / 5])
  (batch,) = update_lib.assemble(
      samples.make_prompts(1), rollouts, columns, n=2, G=1, cfg=PLAIN)
  assert batch.mask_RxW.sum() == 5 and (batch.tokens_RxW == 7).sum() == 2
  assert not batch.mask_RxW[batch.tokens_RxW == 7].any()


@pytest.fixture(scope="module")
def tokenizer():
  return tokenizer_lib.load("isojax/assets/countdown-tiny")


def test_text_becomes_tokens(tokenizer):
  cfg = interrupt.InterruptConfig(phrase="-1", unless="=", low=2, high=5)
  got = interrupt.encoded(cfg, tokenizer, eos=(0,), V=100, T=16)
  assert tokenizer.decode(got.phrase) == "-1"
  assert tokenizer.decode(got.unless) == "="
  assert interrupt.encoded(interrupt.OFF, tokenizer, eos=(0,), V=1,
                           T=1) is None


@pytest.mark.parametrize("changes, message", [
    (dict(T=7), "high=5 and a phrase of 2 tokens: expected less than"),
    (dict(V=2), "contains the token .*, but the model has 2"),
    (dict(eos=range(100)), "which ends an answer"),
    (dict(phrase="\N{SNOWMAN}"), "no token|contains the token")])
def test_phrases_that_cannot_be_inserted(tokenizer, changes, message):
  cfg = interrupt.InterruptConfig(
      phrase=changes.pop("phrase", "-1"), unless="", low=2, high=5)
  with pytest.raises(InputError, match=message):
    interrupt.encoded(cfg, tokenizer, **dict(
        eos=(tokenizer.eos_token_id, tokenizer.unk_token_id), V=100, T=16)
        | changes)


@pytest.mark.parametrize("fields, message", [
    (dict(phrase="x", high=3), "expected 1 <= low <= high"),
    (dict(phrase="x", low=4, high=3), "expected 1 <= low <= high"),
    (dict(low=1, high=3), "phrase='': expected a text"),
    (dict(unless="x"), "phrase='': expected a text")])
def test_sections_that_say_nothing_are_refused(fields, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(interrupt.OFF, **fields)
