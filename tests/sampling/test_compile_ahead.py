"""Decode programs are compiled in a thread, and the calls find them."""

import dataclasses
import threading

import jax
import numpy as np
import pytest

from isojax import compilation
from isojax.sampling import compile_ahead
from isojax.sampling import sampler as sampler_lib
from tests.sampling.test_sampler import CONFIG
from tests.sampling.test_sampler import make_prompts
from tests.sampling.test_sampler import run


def make_sampler(model, **changes):
  """A cache of 32, then 64 positions; no token ends a rollout."""
  return sampler_lib.make_sampler(model, dataclasses.replace(
      CONFIG, slots=12, max_new_tokens=50, **changes), (model.cfg.V,))


def test_the_next_program_is_compiled_behind_and_found(model, params):
  # A temperature of its own is no other program; bfloat16 is, also for jax's
  # memory of programs of other samplers in this process.
  s, count = make_sampler(model, dtype="bfloat16"), compilation.Count()
  assert s.length_sizes == (32, 64) and len(s.row_sizes) == 1
  prompts, first = make_prompts(4), threading.Event()

  def slow_lower(*args, **static):  # until the first chunk was decoded
    assert first.wait(60)
    return s.decode.lower(*args, **static)

  class Decode:
    lower = staticmethod(slow_lower)

    def __call__(self, *args, **static):
      out = s.decode(*args, **static)
      first.set()
      return out

  with compile_ahead.opened(s._replace(decode=Decode())) as ahead:
    found = run(model, params, prompts, 3, sampler=ahead)
  assert count.names.count("decode") == 1  # of 32 positions, by the call
  assert count.news_behind().startswith("compiled ahead decode in ")
  waited = count.seconds
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(
      run(model, params, prompts, 3, sampler=s)), strict=True):
    np.testing.assert_array_equal(a, b)
  assert count.names.count("decode") == 1 and count.seconds == waited


def test_what_may_follow(model):
  s = make_sampler(model)._replace(
      row_sizes=(4, 8, 16), length_sizes=(32, 64, 96))
  assert compile_ahead.following(s, 16, 32) == [(16, 64), (8, 32), (8, 64)]
  assert compile_ahead.following(s, 8, 96) == [(4, 96)]
  assert compile_ahead.following(s, 4, 96) == []


def test_a_program_that_fails_behind_fails_in_the_call(model, params):
  s = make_sampler(model)

  class Decode:
    def lower(self, *_, **__):
      raise ValueError("behind")

    def __call__(self, params, cache, *args, **static):
      if cache.v[0].shape[2] == 64:
        raise ValueError("in the call")
      return s.decode(params, cache, *args, **static)

  with pytest.raises(ValueError, match="in the call"):
    with compile_ahead.opened(s._replace(decode=Decode())) as ahead:
      run(model, params, make_prompts(4), 3, sampler=ahead)


def test_cpus_compile_when_a_program_is_called(model):
  s = make_sampler(model)
  with compile_ahead.if_it_helps(s) as same:
    assert same is s
