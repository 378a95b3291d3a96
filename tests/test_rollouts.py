"""Grading hides behind decoding, and a signal ends both."""

import concurrent.futures
import dataclasses
import threading
import time

import numpy as np
import pytest

from configs import hard
from isojax import components, preemption, rng, training
from isojax import rollouts as rollouts_lib

N = 32  # rollouts of each of 6 problems, in 24 slots: many chunks


@pytest.fixture(scope="module")
def context():
  config = hard.get_config()
  config.sampler.slots = 24
  return components.prepare(config)


@pytest.fixture(scope="module")
def params(context):
  return components.base_params(context)


def sampled(context, params, grader, *, stop=None):
  e = context.e
  return rollouts_lib.sample_problems(
      context, grader, params, context.stratum.train[:6],
      context.train.replace(tokens_PxS=context.train.tokens_PxS[:6],
                            len_P=context.train.len_P[:6],
                            id_P=context.train.id_P[:6]),
      N, rng.stream(0, "rollout", 0), e.sampler, stop or preemption.Stop())


class Inline(concurrent.futures.Executor):
  """Calls at once, in the thread that asks."""

  def submit(self, function, *args):
    done = concurrent.futures.Future()
    done.set_result(function(*args))
    return done


def test_verdicts_do_not_depend_on_the_thread(context, params):
  with rollouts_lib.grading(context) as grader:
    behind = sampled(context, params, grader)
    inline = sampled(context, params, grader._replace(thread=Inline()))
  assert behind.graded.correct_B.sum() > 0
  for name in ("correct_B", "formatted_B", "vote_B"):
    np.testing.assert_array_equal(getattr(behind.graded, name),
                                  getattr(inline.graded, name))
  np.testing.assert_array_equal(behind.rollouts.tokens_RxT,
                                inline.rollouts.tokens_RxT)
  assert behind.graded.lost == inline.graded.lost == []


def test_measured_problems_start_with_the_longest(context, params):
  """The order changes no token."""
  prefilled = []

  def prefill(params, prompts):
    prefilled.extend(prompts.tokens_PxS.tolist())
    return context.sampler.prefill(params, prompts)

  def step(tokens):
    prefilled.clear()
    changed = dataclasses.replace(
        context, sampler=context.sampler._replace(prefill=prefill),
        stratum=dataclasses.replace(context.stratum, tokens=tokens))
    with rollouts_lib.grading(changed) as grader:
      return rollouts_lib.sample_step(
          changed, grader, params, None, step=0, n=4, left=10**6,
          solved_D=np.zeros(len(context.stratum.train), bool),
          stop=preemption.Stop())

  plain, first = step({}), list(prefilled)
  expected = {("train", p.id): 5.0 + p.id % 7 for p in context.stratum.train}
  ordered = step(expected)
  order = np.argsort([-expected["train", i] for i in plain.prompts.id_P],
                     kind="stable")
  tokens = plain.prompts.tokens_PxS[order].tolist()
  assert prefilled[:32] == tokens[:32] != first[:32]
  np.testing.assert_array_equal(plain.sampled.rollouts.tokens_RxT,
                                ordered.sampled.rollouts.tokens_RxT)
  np.testing.assert_array_equal(plain.sampled.graded.correct_B,
                                ordered.sampled.graded.correct_B)


class Chunks:
  """Counts the chunks that the devices are asked to decode."""

  def __init__(self, context, at=None):
    self.count, self.drawn, self._at = 0, threading.Event(), at
    decode = context.sampler.decode

    def counted(*args, **more):
      self.count += 1
      if self.count == self._at:
        self.drawn.set()
      return decode(*args, **more)

    self.context = dataclasses.replace(
        context, sampler=context.sampler._replace(decode=counted))


@pytest.fixture(scope="module")
def count(context, params):
  """Chunks of all rollouts."""
  chunks = Chunks(context)
  with rollouts_lib.grading(context) as grader:
    sampled(chunks.context, params, grader)
  return chunks.count


def test_decoding_does_not_wait_for_the_grader(context, params, count):
  """Its first call does not return before the last chunk is decoded."""
  chunks, calls, LAST = Chunks(context, at=count), [], 0.3

  with rollouts_lib.grading(context) as grader:
    def slow(problems, texts, *, seconds):
      calls.append(seconds)
      assert chunks.drawn.wait(30), "decoding waits for verdicts"
      if len(calls) == 1:
        time.sleep(LAST)
      return grader.grade(problems, texts, seconds=seconds)

    got = sampled(chunks.context, params, grader._replace(grade=slow))
  assert len(calls) > 3 and count > 8
  assert LAST / 2 < got.seconds_waited < 5
  # All calls share task.grader.step_seconds: 120 s, less what they have taken.
  assert calls == sorted(calls, reverse=True) and calls[0] == 120.0 > calls[-1]


def test_a_signal_ends_sampling_after_the_chunk(context, params, count):
  stop, chunks = preemption.Stop(), Chunks(context, at=3)
  threading.Thread(target=lambda: (chunks.drawn.wait(), stop.ask())).start()
  with (rollouts_lib.grading(context) as grader,
        pytest.raises(preemption.Stopped)):
    sampled(chunks.context, params, grader, stop=stop)
  assert 3 <= chunks.count < count


def test_a_signal_ends_an_evaluation(context, params):
  stop = preemption.Stop()
  stop.ask()
  with (rollouts_lib.grading(context) as grader,
        pytest.raises(preemption.Stopped)):
    training.evaluation(context, grader, params, 0, stop)


def test_a_signal_ends_the_wait_for_verdicts(context, params, count):
  stop, chunks, leave = preemption.Stop(), Chunks(context, at=count), (
      threading.Event())
  threading.Thread(target=lambda: (chunks.drawn.wait(), stop.ask())).start()

  def stuck(problems, texts, *, seconds):
    leave.wait(30)
    raise AssertionError("nobody waits for this")

  with rollouts_lib.grading(context) as grader:
    begun = time.monotonic()
    with pytest.raises(preemption.Stopped):
      sampled(chunks.context, params, grader._replace(grade=stuck), stop=stop)
    assert time.monotonic() - begun < 20
    leave.set()
