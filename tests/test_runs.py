"""Runs of several recipes: their records, and their resume to the bit."""

import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from isojax.core import exit_codes
from isojax.run import history as history_lib
from isojax.run import setup as setup_lib
from isojax.run import training
from isojax.sweep import sweeper
from isojax.tasks import prompts as prompts_lib
from tests import processes, short_runs
from tests import record as record_lib
from tests.short_runs import steps

# What a sum in another order changes in the last bits.
ROUNDED = {"entropy", "grad_norm", "kl", "logp", "logp_gap", "loss"}


def kept(name: str) -> list[dict]:
  return short_runs.read(short_runs.finished(name))


@pytest.mark.parametrize("name, step", [("ppo", 2), ("paged", 2),
                                        ("refill", 2), ("in_flight", 4)])
def test_a_run_resumes_to_the_bit(name, step, tmp_path):
  """From a checkpoint before its last one, with more than one step to go."""
  calm, folder = short_runs.finished(name), tmp_path / "run"
  shutil.copytree(calm, folder)
  for path in (folder / "checkpoints").glob("[0-9]*"):
    if int(path.name) > step:
      shutil.rmtree(path)
  assert (folder / f"checkpoints/{step}").is_dir()
  assert steps(kept(name))[-1]["step"] > step + 1
  assert short_runs.train(short_runs.config(name), folder).end.code == 0
  assert processes.result(folder) == processes.result(calm)


def test_a_critic_is_scored_and_learns():
  train = steps(kept("ppo"))
  assert train[-1]["updates"] == 8
  # A forward pass of the critic and one of the policy.
  assert train[-1]["scored_tokens"] == 2 * train[-1]["sampled_tokens"]
  assert all(r["value_loss"] > 0 and r["explained_variance"] is not None
             for r in train if r["reward"] > 0)


def test_pages_change_no_record():
  assert sum(r["evicted"] for r in steps(kept("paged"))) > 3
  for one, other in zip(*(record_lib.comparable(kept(name))
                          for name in ("plain", "paged")), strict=True):
    assert one.keys() == other.keys()
    for name in {*one} - {"run_id", "evicted"}:
      if name in ROUNDED:
        assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6)
      else:
        assert other[name] == one[name], name


def test_a_run_that_refills_spends_its_budget():
  whole = kept("refill")
  train, spent = steps(whole), 0
  for r in train:
    assert r["n"] == 4
    spent += 4 * r["n"] * (1 + r["extra_rounds"])
    assert r["rollouts"] == spent and 0 <= r["extra_rounds"] <= 2
    assert r["selected"] <= 4 * r["n"]
  history = history_lib.history_of(whole)
  assert history.solved == {i for r in train for i in r["solved"]}
  assert (history.rollouts, history.evaluated_at) == (spent, spent)
  assert 144 - 16 < spent <= 144  # another round of 16 would exceed C
  assert any(r["extra_rounds"] for r in train)
  solved = [i for r in train for i in r["solved"]]
  assert solved and len(set(solved)) == len(solved)  # none is sampled again
  evals = [r["rollouts"] for r in whole if r["kind"] == "eval"]
  want = [min(r["rollouts"] for r in train if r["rollouts"] >= due)
          for due in (60, 120, 180) if due <= spent]
  assert evals == sorted({0, *want, spent})
  # The resume above would sample a problem that was solved before it.
  ids = setup_lib.prepare(short_runs.config("refill")).train.id_P
  known = np.isin(ids, [i for r in train[:2] for i in r["solved"]])
  assert known.any() and any(known[prompts_lib.indices_at(
      seed=0, step=step, Bp=4, D=len(ids))].any()
                             for step in range(2, len(train)))


def test_the_trainer_scores_at_the_temperature_of_the_sampler():
  assert short_runs.config("refill").sampler.temperature != 1
  assert all(r["logp_gap"] < 1e-5 for r in steps(kept("refill")))


def test_in_flight_updates_spend_exactly_C():
  """Every rollout is handed over by the last step."""
  train = steps(kept("in_flight"))
  assert [r["rollouts"] for r in train] == [24 * s for s in range(1, 7)]
  ages = [r["staleness_max"] for r in train]
  assert ages[0] == 0 and 1 <= max(ages) <= 2
  assert all(0 <= r["staleness_mean"] <= r["staleness_max"] for r in train)
  assert any(r["solved"] for r in train)
  # Tokens of earlier weights: the trainer's log-probs are others by now.
  assert train[0]["logp_gap"] < 1e-5 < max(r["logp_gap"] for r in train)


def test_patience_that_was_lowered_is_named_as_it_is():
  history = history_lib.History(step=9, best=(0.5, 4), stale=3)
  text = training.patience_message(2, history)
  assert "eval.patience=2)" in text and "eval.patience=4 or None" in text


def test_patience_ends_a_run_and_a_larger_one_goes_on(tmp_path, capfd):
  """A resumed run knows; the sweep and the trainer agree."""
  config = lambda patience: short_runs.config("hard", eval=dict(
      k=2, first=24, growth=1.0, patience=patience))
  got = short_runs.train(config(1), tmp_path)
  evals = [r for r in got.records if r["kind"] == "eval"]
  avg = [r["avg"] for r in evals]
  assert got.end.code == 0 and got.records[-1]["rollouts"] < 120
  assert avg[-1] <= max(avg[:-1]) and avg[:-1] == sorted(set(avg[:-1]))
  assert ["patience" in r["alarms"] for r in evals] == (
      [False] * (len(evals) - 1) + [True])
  said = capfd.readouterr().err
  assert "eval.patience=1)" in said
  again = short_runs.train(config(1), tmp_path)
  assert again.end.was_complete and again.records == got.records
  run = lambda patience: sweeper.PlannedRun(
      str(tmp_path), "", config(patience).to_dict(), got.setup.config.alloc)
  assert [sweeper.is_complete(run(p)) for p in (1, None)] == [True, False]
  longer = short_runs.train(config(None), tmp_path).records
  assert longer[:len(got.records)] == got.records
  assert longer[-1]["rollouts"] == 120 and longer[-1]["kind"] == "eval"


def test_a_signal_in_a_step_repeats_the_bits(tmp_path):
  def interrupt():
    while len(steps(short_runs.read(tmp_path))) < 3:
      time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=interrupt)
  thread.start()
  config = short_runs.config("in_flight")
  some = short_runs.train(config, tmp_path)
  thread.join()
  assert some.end.code == exit_codes.PREEMPTED
  assert len(some.records) < len(kept("in_flight"))
  assert short_runs.train(config, tmp_path).end.code == 0
  assert processes.result(tmp_path) == processes.result(
      short_runs.finished("in_flight"))
