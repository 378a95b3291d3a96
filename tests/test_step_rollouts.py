"""Which problems a step samples, how often it refills, and what is kept."""

import os
import shutil

import jax
import numpy as np

from configs import easy
from isojax import components, preemption, training
from isojax import rollouts as rollouts_lib
from isojax.ledger import records, workdir
from isojax.rl import advantages
from isojax.tasks import prompts as prompts_lib
from tests import few


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
  # All but c and the last one are solved: solved ones fill, none twice.
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


def test_kept_groups_by_hand():
  correct = np.array([[1, 1], [1, 0], [0, 0], [0, 1], [1, 0], [0, 1]])
  found = advantages.informative(correct, correct >= 0)
  assert found.tolist() == [False, True, False, True, True, True]
  kept = lambda found, rounds: rollouts_lib.kept_groups(
      np.array(found, bool), Bp=3, rounds=rounds).tolist()
  assert kept(found, 2) == [0, 1, 0, 1, 1, 0]  # the fourth is not needed
  assert kept(found[:3], 2) == [0, 1, 0]
  assert kept([0] * 6, 2) == [1, 1, 1, 0, 0, 0]  # none: the first round
  assert kept(found[:3], 1) == [1, 1, 1]  # no refill: all


def test_solved_by_hand():
  """At a rate of 0.9, 15 of 16 are enough and 14 are not."""
  correct = np.array([[0] + 15 * [1], 2 * [0] + 14 * [1], 16 * [1]])
  got = rollouts_lib.newly_solved(correct, np.array([30, 10, 20]), rate=0.9)
  assert got == [30, 20]
  assert rollouts_lib.newly_solved(correct, np.arange(3), rate=None) is None


D = 14  # training problems, of 3 steps an epoch


def config():
  out = easy.get_config()
  out.update(task=dict(stratum=few.easy(D, 4)), sampler=dict(slots=24),
             alloc=dict(Bp=4, n=4, schedule=((0, 4), (48, 6)), C=200),
             eval=dict(k=1, first=60, growth=1.0),
             checkpoint=dict(every_steps=2, keep=20),
             recipe=dict(filter=dict(rounds=3, solved_rate=0.75),
                         loss=dict(microbatch_tokens=1024)))
  return out


def test_a_step_samples_unsolved_problems_until_enough_groups_differ():
  context = components.prepare(config())
  params, stop = components.base_params(context), preemption.Stop()
  ids, solved_D = context.train.id_P, np.arange(D) == 5
  with rollouts_lib.grading(context) as grader:
    sample = lambda solved_D, left: rollouts_lib.sample_step(
        context, grader, params, None, step=1, n=4, left=left,
        solved_D=solved_D, stop=stop)
    got, short = sample(solved_D, 1000), sample(solved_D, 31)
    most = sample(np.arange(D) > 6, 1000)  # 7 unsolved: no second round
  correct = got.sampled.graded.correct_B.reshape(-1, 4)
  found = advantages.informative(correct, correct >= 0)
  assert got.rounds > 1 and len(found) == 4 * got.rounds
  assert found[:-4].sum() < 4  # the last round was needed
  assert got.kept_P.sum() == min(4, found.sum())
  got_ids = got.prompts.id_P.tolist()
  assert len(set(got_ids)) == len(got_ids)
  assert not set(got_ids) & set(ids[solved_D].tolist())
  # One round of 16 fits into 31 rollouts: the first, with the same rollouts.
  assert (short.rounds, most.rounds) == (1, 1)
  assert short.prompts.id_P.tolist() == got_ids[:4]
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[:16]),
               short.sampled.rollouts, got.sampled.rollouts)


def run(config, folder) -> list[dict]:
  context = components.prepare(config)
  with workdir.claim(str(folder), config.to_dict(), context.run_id,
                     context.model_sha256):
    assert training.train(context, str(folder)).code == 0
  return records.read(os.path.join(folder, "records.jsonl"))


def test_a_run_spends_its_budget_and_resumes_to_the_bit(tmp_path):
  kept = run(config(), tmp_path / "calm")
  train = [r for r in kept if r["kind"] == "train"]
  before = 0
  for r in train:
    assert r["n"] == (4 if before < 48 else 6)
    before += 4 * r["n"] * (1 + r["refilled"])
    assert r["rollouts"] == before and 0 <= r["refilled"] <= 2
    assert r["selected"] <= 4 * r["n"]
  assert 200 - 24 < before <= 200  # another round of 24 would exceed C
  assert any(r["refilled"] for r in train) and any(r["solved"] for r in train)
  solved = [i for r in train for i in r["solved"]]
  assert len(set(solved)) == len(solved)  # none is sampled again
  evals = [r["rollouts"] for r in kept if r["kind"] == "eval"]
  want = [min(r["rollouts"] for r in train if r["rollouts"] >= due)
          for due in (60, 120, 180) if due <= before]
  assert evals == sorted({0, *want, before})
  spent = 0
  for r in train:
    assert r["n"] == (4 if spent < 48 else 6)
    spent += r["Bp"] * r["n"] * (1 + r["refilled"])
    assert r["rollouts"] == spent
  folder = tmp_path / "killed"
  shutil.copytree(tmp_path / "calm", folder)
  store = folder / "checkpoints"
  saved = sorted(int(p) for p in os.listdir(store) if p.isdigit())
  restored = [s for s in saved if s >= [r["step"] for r in train
                                        if r["solved"]][0]][0]
  # A later step would sample a problem that was solved before the kill.
  ids = components.prepare(config()).train.id_P
  known = np.isin(ids, [i for r in train[:restored] for i in r["solved"]])
  assert known.any() and any(known[prompts_lib.indices_at(
      seed=0, step=step, Bp=4, D=len(ids))].any()
                             for step in range(restored, len(train)))
  for step in [s for s in saved if s > restored]:
    shutil.rmtree(store / str(step))
  assert len(list(store.iterdir())) < len(saved)
  assert records.comparable(run(config(), folder)) == records.comparable(kept)
