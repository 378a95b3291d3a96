"""Which problems a step samples, what is kept of them, and when it is judged.
"""

import dataclasses
import shutil
import threading
import time

import jax
import numpy as np
import pytest

from configs import hard
from isojax.errors import InputError
from isojax.rl import advantages, rewards
from isojax.run import evaluation
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.runtime import preemption, rng
from isojax.sampling import flight, interrupt
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks.grader import Graded
from isojax.types import Prompts
from tests import few, short_runs


@pytest.fixture(scope="module")
def flight_setup():
  return setup_lib.prepare(short_runs.config("in_flight"))


def order(*solved, step=5, D=11, Bp=3):
  return prompts_lib.order_at(
      seed=7, step=step, Bp=Bp, solved_D=np.isin(np.arange(D), solved)).tolist()


def test_without_history_a_step_has_its_problems_and_then_all_others():
  got = order()
  assert got[:3] == prompts_lib.indices_at(seed=7, step=5, Bp=3, D=11).tolist()
  assert sorted(got) == list(range(11))
  assert order(step=4)[3:] != got[3:] != sorted(got[3:])


def test_solved_problems_are_replaced_in_their_places():
  a, b, c, *others = order()
  # b and the second of the others are solved: b's place goes to the first
  # unsolved one, and the solved ones come last.
  got = order(b, others[1])
  assert got == [a, others[0], c, *others[2:], b, others[1]]
  # All but c and the last one are solved, so solved problems are sampled again.
  got = order(a, b, *others[:-1])
  assert got[0] == others[-1] and got[2] == c and got[1] == a
  assert sorted(got) == list(range(11))


def test_rounds_by_hand():
  """B = 12 rollouts a round; 40 are left: 3 rounds, if unsolved ones suffice.
  """
  most = lambda **more: rollouts_lib.most_rounds(
      **dict(rounds=9, Bp=3, B=12, left=40, unsolved=100) | more)
  assert most() == 3
  assert most(rounds=2) == 2 and most(left=23) == 1 and most(left=24) == 2
  assert most(unsolved=8) == 2 and most(unsolved=0) == 1


def test_trained_groups_by_hand():
  correct = np.array([[1, 1], [1, 0], [0, 0], [0, 1], [1, 0], [0, 1]])
  found = advantages.informative(correct, correct >= 0)
  assert found.tolist() == [False, True, False, True, True, True]
  trained = lambda found, rounds: rollouts_lib.trained_groups(
      np.array(found, bool), Bp=3, rounds=rounds).tolist()
  assert trained(found, 2) == [0, 1, 0, 1, 1, 0]  # the fourth is not needed
  assert trained(found[:3], 2) == [0, 1, 0]
  assert trained([0] * 6, 2) == [1, 1, 1, 0, 0, 0]  # none: the first round
  assert trained(found[:3], 1) == [1, 1, 1]  # no resampling: all


def test_solved_by_hand():
  """At a rate of 0.9, 15 of 16 are enough and 14 are not."""
  correct = [0] + 15 * [1] + 2 * [0] + 14 * [1] + 16 * [1]
  solved = lambda rate: rollouts_lib.newly_solved(rollouts_lib.Sampled(
      Prompts(np.zeros((4, 5)), np.full(4, 5), np.array([30, 10, 20, 40])),
      np.array([16, 16, 16, 0]), None,
      Graded(np.array(correct, float), *[None] * 6),
      (0.0, 0), 0.0, 0), rate=rate)
  assert solved(0.9) == [30, 20]  # and not 40, which has no verdict
  assert solved(15 / 16) == [30, 20]
  assert solved(None) is None


def test_a_step_samples_unsolved_problems_until_enough_groups_differ():
  context = setup_lib.prepare(short_runs.config("refill"))
  params, stop = setup_lib.base_params(context), preemption.Stop()
  ids, solved_D = context.train.id_P, np.arange(short_runs.D) == 5
  with rollouts_lib.grading(context) as grader:
    sample = lambda solved_D, left: rollouts_lib.sample_step(
        context, grader, params, None, step=1, n=4, left=left,
        solved_D=solved_D, stop=stop)
    (got, trained_P, _), (short, *_) = (
        sample(solved_D, 1000), sample(solved_D, 31))
    # 7 unsolved problems: no second round.
    most, *_ = sample(np.arange(short_runs.D) > 6, 1000)
  correct = got.graded.correct_B.reshape(-1, 4)
  found = advantages.informative(correct, correct >= 0)
  assert len(found) > 4 and len(found) % 4 == 0
  assert found[:-4].sum() < 4  # the last round was needed
  assert trained_P.sum() == min(4, found.sum())
  got_ids = got.prompts.id_P.tolist()
  assert len(set(got_ids)) == len(got_ids)
  assert not set(got_ids) & set(ids[solved_D].tolist())
  # One round of 16 fits into 31 rollouts: the first, with the same rollouts.
  assert len(short.n_P) == len(most.n_P) == 4
  assert short.prompts.id_P.tolist() == got_ids[:4]
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[:16]),
               short.rollouts, got.rollouts)


# --- in-flight updates ---


def test_the_problems_of_a_step_are_those_of_its_order_that_are_not_solved(
    flight_setup):
  context = flight_setup
  solved_D = np.zeros(len(context.stratum.train), bool)
  groups = lambda step: rollouts_lib.run_source(
      context, solved_D).groups_of_step(step)
  before = groups(2)
  assert before.position_E.tolist() == [8, 9, 10, 11]
  assert before.n_E.tolist() == [6] * 4  # alloc.n
  solved_D[before.problem_E[0]] = True
  after = groups(2).problem_E.tolist()
  assert after[1:] == before.problem_E.tolist()[1:]
  assert after[0] != before.problem_E[0] and not solved_D[after].any()


def test_verdicts_are_those_of_the_rollouts(flight_setup):
  """Each rollout is graded once, also those of later batches."""
  n, graded, context = 6, [], flight_setup
  params = setup_lib.base_params(context)
  in_flight = rollouts_lib.restored_in_flight(None, context.sampler)
  with rollouts_lib.grading(context) as grader:
    def counted(problems, texts, **more):
      graded.extend(zip([p.id for p in problems], texts, strict=True))
      return grader.grade(problems, texts, **more)

    for step in range(2):
      got, _, in_flight = rollouts_lib.sample_step(
          context, grader._replace(grade=counted), params, in_flight, step=step,
          n=n, left=1000, solved_D=np.zeros(len(context.stratum.train), bool),
          stop=preemption.Stop())
      problems = {p.id: p for p in context.stratum.train}
      alone = grader.grade(
          [problems[i] for i in np.repeat(got.prompts.id_P, n)],
          rewards.texts(context.tokenizer, got.rollouts))
      np.testing.assert_array_equal(got.graded.correct_B, alone.correct_B)
  assert len(graded) == 2 * 4 * n + len(in_flight.verdicts)


def test_other_slots_than_those_of_the_checkpoint_are_refused(flight_setup):
  sampler = flight_setup.sampler
  saved = flight.to_bytes(flight.empty_state(sampler.layout))
  assert rollouts_lib.restored_in_flight(saved, sampler).flight.steps == 0
  other = flight.to_bytes(flight.empty_state((24, 0, 1)))
  with pytest.raises(InputError, match="24 slots, 0 pages.* 30 slots"):
    rollouts_lib.restored_in_flight(other, sampler)


def test_a_rollout_is_interrupted_at_the_length_of_its_problem():
  """In flight, where the problems of a step are not sorted."""
  setup = setup_lib.prepare(short_runs.config("in_flight", sampler=dict(
      interrupt=dict(phrase="-1", low=2, high=12))))
  config, D, count = setup.config, len(setup.train.id_P), 0
  step_of = {int(setup.train.id_P[i]): step for step in range(config.alloc.M)
             for i in prompts_lib.indices_at(
                 seed=config.seed, step=step, Bp=config.alloc.Bp, D=D)}
  in_flight = rollouts_lib.restored_in_flight(None, setup.sampler)
  params = setup_lib.base_params(setup)
  with rollouts_lib.grading(setup) as grader:
    for step in range(3):
      got, _, in_flight = rollouts_lib.sample_step(
          setup, grader, params, in_flight, step=step, n=config.alloc.n,
          left=config.alloc.C, solved_D=np.zeros(D, bool),
          stop=preemption.Stop())
      length_B = np.concatenate([
          interrupt.lengths(config.sampler.interrupt, seed=config.seed,
                            step=step_of[int(i)], id_P=[i], n=config.alloc.n)
          for i in got.prompts.id_P])
      cut_B = got.rollouts.interrupted_R
      first_B = np.asarray(got.rollouts.forced_RxT).argmax(axis=1)
      assert (first_B == length_B)[cut_B].all()
      assert (got.rollouts.len_R <= length_B)[~cut_B].all()  # ended before
      count += cut_B.sum()
  assert count > 20


def test_a_test_split_says_what_it_drops_and_is_no_problem_of_the_run(
    tmp_path, capfd):
  def on_test(rows):
    strata_lib.write_test(path, header, [
        {"split": "test", "id": i, "question": question, "answer": answer,
         "correct": 0} for i, (question, answer) in enumerate(rows)])
    return evaluation.on_split(setup, "test")

  path = str(shutil.copy(few.hard(), tmp_path / "s.jsonl"))
  setup = setup_lib.prepare(short_runs.config("hard", task=dict(stratum=path)))
  header = {name: setup.stratum.header[name] for name in (
      "stratum", "task", "n")}
  fits, known = ("1 2 3=6", "1+2+3"), setup.stratum.train[0]
  long = ("1 2 3 4 5 6 7=28", "1+2+3+4+5+6+7")
  assert [p.question for p in on_test([fits, long]).stratum.validation] == [
      fits[0]]
  assert "dropped 1 of 2 test problems" in capfd.readouterr().err
  with pytest.raises(InputError, match="1 of 2 questions are training or val"):
    on_test([fits, (known.question, known.answer)])


# --- grading behind decoding ---

N = 32  # rollouts of each of 6 problems, in 24 slots: many chunks


@pytest.fixture(scope="module")
def context():
  config = hard.get_config()
  config.sampler.slots = 24
  return setup_lib.prepare(config)


@pytest.fixture(scope="module")
def params(context):
  return setup_lib.base_params(context)


def sampled(context, params, grader, *, stop=None):
  return rollouts_lib.sample_problems(
      context, grader, params, "train", np.arange(6), N,
      rng.stream(0, "rollout", 0), stop or preemption.Stop(),
      temperature=context.config.sampler.temperature, top_p=1.0)


def test_the_sampler_gets_the_measured_lengths(context, monkeypatch):
  """It begins with the longest, see tests/sampling/test_engine.py."""
  expected = {("train", p.id): 5.0 + p.id % 7 for p in context.stratum.train}
  measured = dataclasses.replace(context, stratum=dataclasses.replace(
      context.stratum, tokens=expected))

  def one_batch_source(prompts, n, key, *, interrupt_after, expected_P):
    assert expected_P == [5.0 + int(i) % 7 for i in prompts.id_P]
    raise preemption.Stopped

  monkeypatch.setattr(rollouts_lib.engine, "one_batch_source", one_batch_source)
  with pytest.raises(preemption.Stopped):
    sampled(measured, None, None)


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
