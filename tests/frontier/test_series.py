"""One run of any trainer is read step by step, under the names of records."""

import csv
import json
import pathlib

import pytest

from isojax.diagnosis import rules
from isojax.errors import InputError
from isojax.logs import formats, series
from isojax.logs.fields import Reading

ROOT = pathlib.Path(__file__).parents[2]
LOGS = ROOT / "tests/data/logs"
REAL = ROOT / "isojax/assets/logs"


@pytest.mark.parametrize("name, trainer, train, evals, last", [
    ("verl/gsm8k_grpo.jsonl", "verl", 5, 6, dict(
        step=5, reward=.2, grad_norm=.31, response_length=410.5,
        seconds_sample=20.5)),
    ("trl/trainer_state.json", "trl", 2, 3, dict(
        step=3, reward=.6, reward_std=.3, zero_std=.25, entropy=.41, lr=1e-6,
        response_length=212.25, seconds=10.5)),
    # three batches of 136, 130 and 128 rollouts, and 150
    ("prime-rl/metrics.jsonl", "prime-rl", 4, 5, dict(
        step=4, Bp=16, n=8, rollouts=544, seconds=88.5)),
    ("skyrl/console.log", "skyrl", 4, 3, dict(
        step=4, Bp=16, n=4, rollouts=256, reward=.5, entropy=.5, kl=.0125,
        grad_norm=.25, response_length=212.5, response_length_max=512,
        seconds=40)),
    ("areal/trainer.log", "areal", 3, 3, dict(
        step=3, Bp=16, n=4, rollouts=192, reward=.5, truncated=.125,
        entropy=.5, seconds_sample=20.5)),
    ("openrlhf/train.log", "openrlhf", 6, 3, dict(
        step=6, Bp=16, n=4, rollouts=464, reward=.75, reward_std=.25,
        truncated=.125, kl=.0125, grad_norm=.25, seconds=37.75)),
    # 6 of 16 groups have equal rewards
    ("slime/train.log", "slime", 4, 3, dict(
        step=4, Bp=16, n=4, rollouts=256, reward=.625, zero_std=.375,
        entropy=.5, logp_gap=.0125, truncated=.125, seconds=30.75)),
    ("roll/stdout.log", "roll", 5, 3, dict(
        step=5, Bp=16, n=4, rollouts=320, reward=.75, all_incorrect=.25,
        all_correct=.125, entropy=.5, grad_norm=.25, response_length=212.5)),
    (REAL / "tinker_metrics.jsonl", "tinker", 4, 0, dict(
        step=4, all_incorrect=0, all_correct=.74, lr=1e-4)),
    # a table of no known trainer, with generic names
    (REAL / "rasbt_tracking.csv", "table", 13, 10, dict(
        step=500, reward=.125, response_length=762.25)),
    ("table/wandb_history.jsonl", "table", 4, 4, dict(step=30, loss=.5)),
    ("isojax/records.jsonl", "isojax", 3, 3, dict(
        step=3, Bp=4, n=8, rollouts=96, all_incorrect=.5)),
])
def test_runs_are_read_without_flags(name, trainer, train, evals, last):
  log = series.read(str(LOGS / name))
  assert (log.trainer, len(log.train), len(log.evals)) == (
      trainer, train, evals)
  assert {field: log.train[-1][field] for field in last} == pytest.approx(last)
  # a console that rounds the learning rate to 0
  assert trainer != "skyrl" or not any("lr" in line for line in log.train)


def test_a_table_that_is_cut_has_the_values_before(tmp_path):
  text = (LOGS / "areal/trainer.log").read_text()
  path = tmp_path / "cut.log"
  path.write_text(text[:text.rindex("├")])
  assert [line["reward"] for line in series.read(str(path)).train] == [
      .25, .375, .5]


def test_a_file_of_several_runs_needs_one():
  path = str(LOGS / "table/curves.csv")
  with pytest.raises(InputError, match="choose one of a, b"):
    series.read(path)
  with pytest.raises(InputError, match="names none, so leave its name out"):
    series.read(str(LOGS / "openrlhf/train.log"), run="b")
  lines = series.read(path, run="b").evals
  assert [line["best"] for line in lines] == [.5, .75, .75]


@pytest.mark.parametrize("column", ["seed", "n"])
def test_one_step_with_rows_of_several_runs_needs_one(column, tmp_path):
  path = tmp_path / "t.csv"
  path.write_text(f"{column},step,avg\n" + "".join(
      f"{value},{step},0.{value}\n" for value in (2, 4) for step in (0, 5)))
  with pytest.raises(InputError, match=f"several {column}: .*run_id={column}"):
    series.read(str(path))
  log = series.read(str(path), Reading(columns={"run_id": column}), run="2")
  assert [line["avg"] for line in log.evals] == [.2, .2]


def test_steps_that_are_made_again_are_noted(tmp_path):
  path = tmp_path / "log.jsonl"
  path.write_text(lines(*({"step": step, "reward": reward} for step, reward in (
      (1, .1), (2, .2), (3, .3), (4, .4), (3, .5), (4, .6)))))
  log = series.read(str(path))
  assert [line["reward"] for line in log.train] == [.1, .2, .5, .6]
  assert any("2 steps were made again from step 3 on" in n for n in log.notes)


def test_evaluations_of_a_table_have_its_sizes(tmp_path):
  path = tmp_path / "t.csv"
  path.write_text("step,Bp,n,avg\n0,4,8,0.5\n5,4,16,0.5\n")
  assert [(line["Bp"], line["n"]) for line in series.read(str(path)).evals] == [
      (4, 8), (4, 16)]


def lines(*rows):
  return "".join(json.dumps(row) + "\n" for row in rows)


DAPO = [{"run_id": run, "step": i, "critic/score/mean": .5,
         "train/num_gen_batches": 3} for run in "ab" for i in range(1, 11)]


@pytest.mark.parametrize("log, how, run, last", [
    # three batches of 8 problems a step
    (lines(*DAPO[:10]), dict(fixed={"Bp": 8, "n": 4}), None,
     dict(step=10, rollouts=960)),
    (lines(*DAPO), dict(fixed={"Bp": 8, "n": 4}), "b", dict(rollouts=960)),
    # a logged C, and sizes in columns
    (lines({"step": 1, "reward": .5, "rollouts": 100}),
     dict(fixed={"Bp": 8, "n": 4}), None, dict(rollouts=100, n=4)),
    (lines({"step": 3, "reward": .5, "Bp": 8, "n": 4}), {}, None,
     dict(rollouts=96)),
    # each run has the n of its name
    (lines(*({"run_id": f"n{n}", "step": 2, "reward": .5} for n in (2, 16))),
     dict(fixed={"Bp": 4}, from_path=r"n(?P<n>\d+)"), "n16",
     dict(n=16, rollouts=128)),
    # W&B's histories of TRL and NeMo-RL
    (lines({"_step": 7, "train/global_step": 1, "train/reward": .75,
            "train/grad_norm": .5, "eval/reward": .25}), {}, None,
     dict(step=1, reward=.75, grad_norm=.5)),
    (lines({"_step": 1, "train/reward": .75, "train/grad_norm": .5,
            "validation/accuracy": .25}), {}, None,
     dict(step=1, reward=.75, grad_norm=.5)),
    # TRL's printed dicts have no step
    ("{'loss': 0.0, 'reward': 0.5, 'reward_std': 0.2}\n" * 3,
     dict(fixed={"logging_steps": 10, "Bp": 8, "n": 4}), None,
     dict(step=30, rollouts=960)),
])
def test_steps_and_rollouts_are_those_of_a_study(log, how, run, last, tmp_path):
  path = tmp_path / "run.log"
  path.write_text(log)
  train = series.read(str(path), Reading(**how), run=run).train
  assert {field: train[-1][field] for field in last} == last


def test_the_evaluations_of_two_sets_are_not_mixed():
  log = series.read(str(LOGS / "prime-rl/metrics.jsonl"))
  evals = [(record["eval_set"], record["step"]) for record in log.evals]
  assert evals == [  # of the policy
      ("math", 0), ("aime", 0), ("math", 2), ("math", 4), ("aime", 3)]


def test_records_as_csv_are_the_records(tmp_path):
  source = LOGS / "isojax/records.jsonl"
  rows = [json.loads(line) for line in source.read_text().splitlines()]
  with open(tmp_path / "records.csv", "w", newline="") as out:
    writer = csv.DictWriter(out, {name: 0 for row in rows for name in row})
    writer.writeheader()
    writer.writerows(rows)
  found, expected = series.read(out.name), series.read(str(source))
  for one, other in zip(found.train + found.evals,
                        expected.train + expected.evals, strict=True):
    assert {name: one[name] for name in other} == other


def test_settings_are_read_by_something():
  known = {"Bp", "batch", "n", "model", "estimator", *rules.WORDS}
  for kind, form in formats.FORMATS.items():
    assert form.settings.keys() <= known, kind
    assert not form.marks or form.settings and form.fields, kind


def test_printed_settings_are_options(tmp_path):
  path = tmp_path / "run.log"
  path.write_text(
      "python3 -m verl.trainer.main_ppo data.train_batch_size=32 "
      "actor_rollout_ref.actor.ppo_mini_batch_size=8 "
      "actor_rollout_ref.actor.optim.lr=1e-6\n"
      "step:1 - critic/score/mean:0.5 - actor/lr:1e-06\n")
  assert series.read(str(path)).options == {
      "data.train_batch_size": 32,
      "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
      "actor_rollout_ref.actor.optim.lr": 1e-6}
