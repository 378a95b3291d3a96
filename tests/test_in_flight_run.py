"""A run with in-flight updates: its records, a signal, and resuming."""

import os
import signal
import threading
import time

import jax
import numpy as np
import pytest

from configs import hard
from isojax import cli, components, experiment, preemption, training
from isojax import rollouts as rollouts_lib
from isojax.errors import InputError
from isojax.ledger import checkpoint, records, workdir
from isojax.rl import rewards
from isojax.sampling import flight

K, N, M = 2, 6, 6


def config(**updates):
  made = hard.get_config()
  made.update(dict(
      alloc=dict(Bp=4, n=N, C=4 * N * M), eval=dict(k=1),
      sampler=dict(slots=30, max_new_tokens=24),
      checkpoint=dict(every_steps=2, keep=9)))
  made.recipe.loss.update(dict(
      ratio_to="behavior", importance_cap=None, microbatch_tokens=4096))
  made.recipe.filter.solved_rate = 0.15
  made.recipe.optimizer.base_lr = 3e-3
  made.recipe.updates.update(dict(in_flight=K) | updates)
  return made


def run(made, folder) -> tuple[int, list[dict]]:
  """Trains in this process; the exit code and the records."""
  context = components.prepare(made)
  with workdir.claim(str(folder), made.to_dict(), context.run_id,
                     context.model_sha256):
    code = training.train(context, str(folder)).code
  return code, records.read(os.path.join(folder, "records.jsonl"))


def final_state(folder):
  context = components.prepare(config())
  tx, _ = components.make_optimizer(context.e)
  step, state, _ = checkpoint.restore_newest(
      str(folder / "checkpoints"), components.abstract_state(context, tx),
      context.run_id, reach=99, keep=2, host=True)
  assert step == M
  return state


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
  folder = tmp_path_factory.mktemp("calm")
  code, kept = run(config(), folder)
  assert code == 0
  return folder, kept


def test_the_records(calm):
  """C is exact: every rollout is handed over by the last step."""
  _, kept = calm
  train = [r for r in kept if r["kind"] == "train"]
  assert [r["rollouts"] for r in train] == [4 * N * s for s in range(1, M + 1)]
  ages = [r["staleness_max"] for r in train]
  assert ages[0] == 0 and 1 <= max(ages) <= K
  for r in train:
    assert 0 <= r["staleness_mean"] <= r["staleness_max"]
  assert any(r["solved"] for r in train)
  # Tokens of earlier weights: the trainer's log-probs are others by now.
  assert train[0]["logp_gap"] < 1e-5 < max(r["logp_gap"] for r in train)


def test_a_signal_in_a_step_repeats_the_bits(calm, tmp_path):
  def interrupt():
    path = str(tmp_path / "records.jsonl")
    while sum(r["kind"] == "train" for r in records.read(path)) < 3:
      time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=interrupt)
  thread.start()
  code, some = run(config(), tmp_path)
  thread.join()
  assert code == cli.PREEMPTED and len(some) < len(calm[1])
  code, got = run(config(), tmp_path)
  assert code == 0
  assert records.comparable(got) == records.comparable(calm[1])
  jax.tree.map(np.testing.assert_array_equal, final_state(tmp_path),
               final_state(calm[0]))


def test_the_problems_of_a_step_are_those_of_its_order_that_are_not_solved():
  context = components.prepare(config())
  solved_D = np.zeros(len(context.stratum.train), bool)
  groups = lambda step: rollouts_lib.run_source(context, solved_D).groups(step)
  before = groups(2)
  assert before.position_E.tolist() == [8, 9, 10, 11]
  assert before.n_E.tolist() == [N] * 4
  solved_D[before.problem_E[0]] = True
  after = groups(2).problem_E.tolist()
  assert after[1:] == before.problem_E.tolist()[1:]
  assert after[0] != before.problem_E[0] and not solved_D[after].any()


def test_verdicts_are_those_of_the_rollouts():
  """Each rollout is graded once, also those of later batches."""
  context, graded = components.prepare(config()), []
  params = components.base_params(context)
  in_flight = rollouts_lib.opened(None, context.sampler)
  with rollouts_lib.grading(context) as grader:
    def counted(problems, texts, **more):
      graded.extend(zip([p.id for p in problems], texts, strict=True))
      return grader.grade(problems, texts, **more)

    for step in range(2):
      got = rollouts_lib.sample_step(
          context, grader._replace(grade=counted), params, in_flight, step=step,
          n=N, left=1000, solved_D=np.zeros(len(context.stratum.train), bool),
          stop=preemption.Stop())
      in_flight = got.in_flight
      problems = {p.id: p for p in context.stratum.train}
      alone = grader.grade(
          [problems[i] for i in np.repeat(got.prompts.id_P, N)],
          rewards.texts(context.tokenizer, got.sampled.rollouts))
      np.testing.assert_array_equal(got.sampled.graded.correct_B,
                                    alone.correct_B)
  assert len(graded) == 2 * 4 * N + len(in_flight.verdicts)


@pytest.mark.parametrize("changes, message", [
    (dict(updates=dict(in_flight=-1)), "expected the largest staleness"),
    (dict(loss=dict(ratio_to="old")), "set ratio_to='behavior'"),
    (dict(filter=dict(rounds=2)), "recipe.filter.rounds=2"),
    (dict(alloc=dict(schedule=((0, N), (96, 8)))), "use a constant n")])
def test_what_cannot_work_is_refused(changes, message):
  made = config()
  (made if "alloc" in changes else made.recipe).update(changes)
  with pytest.raises(InputError, match=message):
    e = experiment.load(made)
    experiment.check(e, problems=100, max_positions=1000)


def test_other_slots_than_those_of_the_checkpoint_are_refused(calm):
  sampler = components.prepare(config()).sampler
  saved = flight.to_bytes(flight.nothing(sampler.made_by))
  assert rollouts_lib.opened(saved, sampler).flight.steps == 0
  other = flight.to_bytes(flight.nothing((24, 0, 1)))
  with pytest.raises(InputError, match="had 24 slots, 0 pages and 1 row shards"
                     ".* admit 30 slots"):
    rollouts_lib.opened(other, sampler)
