"""Logs of trainers become the rows that a person reads off them.

The files in isojax/assets/logs were written by others; those in tests/data/logs
and the texts here have the format of real ones, with values that can be checked
by hand.
"""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import time

import hypothesis
from hypothesis import strategies as st
import pytest
import tensorboardX

from isojax.core import disk
from isojax.errors import InputError
from isojax.ledger import records
from isojax.logs import fields, formats, reading, series
from isojax.report import doctor as report

ROOT = pathlib.Path(__file__).parents[2]
LOGS = ROOT / "tests/data/logs"
REAL = ROOT / "isojax/assets/logs"
OURS = {"Bp": 32, "n": 8}
HEADER = "Bp,n,step,avg\n"
# by default an evaluation of TRL and Tunix draws n a problem
TRL = {"num_generations": 8, "generation_batch_size": 64}
ACC = "eval_rewards/accuracy_reward/mean"
CHART = "table/wandb_chart.csv"


def rows_of(path, kind=None, **how):
  return reading.read_file(str(path), fields.Reading(kind=kind, **how))


def curve(rows, *names, **only):
  return [tuple(row.fields[name] for name in names) for row in rows
          if only.items() <= row.fields.items()]


def check(path, words, kind=None, **how):
  """Checks that a file is refused with these words."""
  with pytest.raises(InputError) as error:
    rows_of(path, kind, **how)
  for word in words:
    assert word in str(error.value)
  return str(error.value)


def lines(*values):
  return "".join(json.dumps(value) + "\n" for value in values)


@pytest.fixture
def write(tmp_path):
  def write(content, name="run.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes)
                     else content.encode())
    return str(path)
  return write


# ---- Files


READ = [  # file, kind, flags, names, some of the rows, words of the notes
    ("verl/gsm8k_grpo.jsonl", "verl", dict(fixed=OURS),
     "step rollouts avg best worst k eval_set", [
         (0, 0, .25, .5, .125, 4, "openai/gsm8k"),
         (4, 1024, .5, .75, .25, 4, "openai/gsm8k")], ["with replacement"]),
    ("verl/gsm8k_grpo.jsonl", "verl", dict(fixed=OURS | {"k": 2}),
     "step avg best worst k", [(0, .25, .4, .225, 2)], []),
    ("verl/gsm8k_grpo.jsonl", "verl", dict(fixed=OURS, columns={
        "avg": "val-aux/openai/gsm8k/reward/mean@4"}), "avg k eval_set",
     [(-.5, 4, "openai/gsm8k"), (-.25, 4, "openai/gsm8k")], []),
    # behind Ray's prefix, with numpy's numbers
    ("verl/console.log", "verl", dict(fixed={
        "data.train_batch_size": 32, "actor_rollout_ref.rollout.n": 8,
        "seed": 0}), "step rollouts avg best worst k seed eval_set",
     [(2, 512, .375, .625, .25, 4, 0, "openai/gsm8k")], []),
    ("trl/trainer_state.json", "trl",
     dict(fixed=TRL | {"num_generations_eval": 2}), "avg epoch k",
     [(.125, 0, 2), (.75, .02, 2), (1.125, .03, 2)],
     ["weighted sum", "steps_per_generation"]),
    ("tunix/wandb_history.jsonl", "tunix",
     dict(fixed={"batch_size": 16, "num_generations": 4}),
     "step rollouts avg k",
     [(0, 0, .75, 4), (2, 128, 1.0, 4), (4, 256, 1.25, 4)],
     ["sum of its reward functions", "step is W&B's _step"]),
    # 136 rollouts in step 1, 130 in step 2, then 128 and 150
    ("prime-rl/metrics.jsonl", "prime-rl", {},
     "step rollouts avg best worst k Bp n eval_set", [
         (0, 0, .25, .5, .125, 4, 16, 8, "math"),
         (2, 266, .375, .75, .25, 4, 16, 8, "math"),
         (4, 544, .5, .75, .25, 4, 16, 8, "math")], ["orchestrator.json"]),
    ("prime-rl/metrics.jsonl", "prime-rl", {}, "step rollouts avg eval_set",
     [(0, 0, 0, "aime"), (3, 394, .0625, "aime")], []),
    # update s is of the policy after s - 1; step 250 is epoch 0.03345 of GSM8K
    (REAL / "trl_trainer_state.json", "trl", dict(
        fixed={"Bp": 1, "n": 6}, scale={"avg": (0, 2)},
        columns={"avg": "rewards/correctness_reward_func/mean"}),
     "step rollouts eval_set avg", [
         (0, 0, "training reward", 0), (1, 6, "training reward", 0),
         (2, 12, "training reward", pytest.approx(1 / 3))], ["noisier"]),
    (REAL / "trl_trainer_state.json", "trl", dict(fixed={"Bp": 1, "n": 6}),
     "step D", [(249, 7473)], ["'rewards/correctness_reward_func', noisier"]),
    # the episodes of a step give Bp
    (REAL / "tinker_metrics.jsonl", "tinker", dict(fixed={"n": 4}),
     "step rollouts Bp avg", [
         (0, 0, 100, .695), (1, 400, 100, .81), (2, 800, 100, .94)],
     ["training reward 'env/all/correct'"]),
    # percent, after an aborted run with an evaluation at its step 1
    (REAL / "rasbt_tracking.csv", "table", dict(fixed={"Bp": 1, "n": 8}),
     "step avg", [(50, .462), (100, .434)], [
         "evaluations in the file, 'eval_acc'", "read as percent",
         "csv:2: a run that ended at step 5"]),
    (REAL / "rasbt_tracking.csv", "table", dict(
        fixed={"Bp": 1, "n": 8}, scale={"avg": (0, 1)},
        columns={"avg": "eval_acc"}), "step avg", [(50, 46.2)], []),
    # 80 and 128 of 16 groups passed a filter that left 64 rollouts a step
    ("openrlhf/train.log", "openrlhf", {}, "step rollouts avg best k Bp n", [
        (2, 128 + 80, .4375, .5625, 4, 16, 4), (6, 464, .6875, .8125, 4, 16, 4)
    ], ["sampled and discarded", "rollout.n_samples_per_prompt=4"]),
    # n is in the name of the pass rate, Bp follows from the sequences of a step
    ("skyrl/console.log", "skyrl", {}, "step rollouts avg best k Bp n", [
        (0, 0, .25, .375, 2, 16, 4), (4, 256, .75, .875, 2, 16, 4)], []),
    ("areal/trainer.log", "areal", {}, "step rollouts avg Bp n",
     [(1, 64, .3125, 16, 4), (3, 192, .5625, 16, 4)], ["n_samples=4"]),
    # rollout 1 is trained on in update 2, then evaluated; eval 0 is the first
    ("slime/train.log", "slime", {}, "step rollouts avg eval_set",
     [(0, 0, .25, "aime"), (2, 128, .375, "aime"), (4, 256, .625, "aime")],
     ["dynamic sampling filter"]),
    # validated before the update of its step, which counts from 0
    ("roll/stdout.log", "roll", {}, "step rollouts avg Bp n",
     [(0, 0, .25, 16, 4), (4, 256, .75, 16, 4)], []),
    ("table/wandb_history.jsonl", "table", dict(fixed=OURS),
     "step rollouts avg", [(0, 0, .25), (10, 2560, .375), (30, 7680, .5)],
     ["'eval/accuracy'"]),
    ("table/curves.csv", "table", {},
     "run_id seed Bp n step rollouts k avg correct", [
         ("a", 0, 32, 8, 0, 0, 4, .25, [0, 1, 1, 2])], []),
    (CHART, "table", dict(fixed=OURS, columns={"avg": "val/acc"}),
     "step avg run_id", [
         (0, .25, "grpo - n16"), (10, .375, "grpo-n8"), (30, .5, "grpo - n16")],
     ["2 runs in the file share", "_step"]),
    (CHART, None, dict(fixed={"Bp": 32}, columns={"avg": "val/acc"},
                       from_path=r"n(?P<n>\d+)"), "run_id n rollouts",
     [("grpo-n8", 8, 5120), ("grpo - n16", 16, 10240)], []),
    (CHART, None, dict(fixed={"Bp": 32}, columns={"avg": "val/acc"},
                       from_path=r"- n(?P<n>\d+)"), "run_id n rollouts",
     [("grpo - n16", 16, 10240)], ["['grpo-n8']; they were left out"]),
]


def test_names_that_anybody_writes_are_of_no_trainer():
  assert formats.detect([
      "policy_loss", "reward/mean", "rollout/reward", "eval/step", "perf/time",
      "system/gpu", "generate/time", "progress/percent", "entropy"]) == (
          "table", None)


@pytest.mark.parametrize("name, value", [
    ("split", "test"), ("device_seconds", "60"), ("prompt_tokens", "100")])
def test_a_table_with_one_name_of_our_records_is_a_table(name, value, write):
  """Percent is read, and of a resumed run the later rows are kept."""
  percent = [(0, 10), (10, 20), (20, 30), (30, 35), (20, 40), (30, 50)]
  path = write(f"{name},Bp,n,step,accuracy\n" + "".join(
      f"{value},4,8,{step},{avg}\n" for step, avg in percent))
  rows, notes = rows_of(path)
  assert curve(rows, "step", "avg") == [(0, .1), (10, .2), (20, .4), (30, .5)]
  assert any("read as table:" in note for note in notes)


@pytest.mark.parametrize("end, noted", [
    ("0.", True), ("0.25", True), ("0.25\n", False), ("0.25\r", False),
    ('"0.25"', False), ("", False)])
def test_a_last_value_that_may_be_cut_is_reported(end, noted, write):
  _, notes = rows_of(write(HEADER + "4,8,1,0.5\n4,8,2," + end))
  assert any("run.csv:3: no end of line" in note for note in notes) == noted


@pytest.mark.parametrize("name, at, names", [
    ("verl/gsm8k_grpo.jsonl", [1, 1, 3, 3, 5, 5], {"avg"}),  # orjson's null
    ("table/curves.csv", [2, 3, 4, 5, 6, 7], {"avg"}),
    ("verl/console.log", [3, 6], set()),
    ("trl/trainer_state.json", [12, 47, 82], set())])
def test_lines_are_numbered_and_nan_is_a_value(name, at, names):
  rows, _ = rows_of(LOGS / name, fixed={} if "csv" in name else OURS)
  assert [int(row.where.rsplit(":", 1)[1]) for row in rows] == at
  assert {field for row in rows for field, value in row.fields.items()
          if value != value} == names


@pytest.mark.parametrize("options, rollouts", [
    ({}, [0, 128, 192]),  # a generation an update
    # 2 micro-steps an update, a generation in 4: updates 1 and 2 share one
    ({"gradient_accumulation_steps": 2, "steps_per_generation": 4},
     [0, 64, 128]),
    # 8 micro-steps an update, a generation in 4: two an update
    ({"gradient_accumulation_steps": 8, "steps_per_generation": 4},
     [0, 256, 384]),
    ({"num_iterations": 2}, [0, 64, 128]),
    ({"gradient_accumulation_steps": 2, "steps_per_generation": 4,
      "num_iterations": 2}, [0, 64, 64]),
])
def test_trl_rollouts_follow_its_generations(options, rollouts):
  rows, notes = rows_of(LOGS / "trl/trainer_state.json", fixed=TRL | options,
                        columns={"avg": ACC})
  assert curve(rows, "step", "avg", "Bp", "n", "k", "rollouts") == [
      (step, avg, 8, 8, 8, C) for step, avg, C in zip(
          (0, 2, 3), (.125, .25, .375), rollouts)]
  assert any("steps_per_generation" in note for note in notes) == (not options)


def test_trl_epochs_count_generations(write):
  """40 problems, 8 a generation of two updates: 5 updates are half an epoch."""
  text = lines(*({"step": step, "eval_reward": step / 9, "epoch": step / 10}
                 for step in (1, 5, 9)))
  rows, _ = rows_of(write(text), fixed=TRL | {"num_iterations": 2},
                    columns={"avg": "eval_reward"})
  assert [row.fields["D"] for row in rows] == pytest.approx([40] * 3)


# ---- Files that others wrote


def test_a_run_without_evaluations_is_left_out_among_others(write):
  paths = [write(lines(*({"step": i, "data": {name: i / 4}}
                         for i in range(4))), f"{at}.jsonl")
           for at, name in enumerate(("critic/score/mean", VAL))]
  rows, notes = reading.read(paths, fields.Reading(fixed=OURS), flag="files")
  assert {row.where.rsplit("/", 1)[1][0] for row in rows} == {"1"}
  assert any("0.jsonl: it has a training reward" in note for note in notes)
  rows, _ = reading.read(paths[:1], fields.Reading(fixed=OURS), flag="files")
  assert len(rows) == 4


# ---- verl


RAY = "\x1b[36m(TaskRunner pid=7)\x1b[0m "
CONFIG = f"""\
{RAY}{{'actor_rollout_ref': {{'actor': {{'clip': 0.2,
{RAY}                                 'w': {{'n': 3}}}},
(WorkerDict pid=9) You are using a model of type {{'n': 99}}
{RAY}                       'model': {{'path': 'Qwen/Qwen3-4B'}},

{RAY}                       'rollout': {{'n': 8, 'name': 'vllm',
{RAY}                                   'val_kwargs': {{'n': 1}}}}}},
{RAY} 'data': {{'gen_batch_size': 48,
{RAY}          'train_batch_size': 16}},
"""  # the end of the dict is missing, as in a real log
VAL = "val-core/math/acc/mean@1"
TRAINED = {"actor/pg_loss": 1}
EVICTED = "training/filter_groups/evicted_samples"
SURPLUS = "training/filter_groups/discarded_surplus_samples"
SCORE = "critic/score/mean"


def verl(*steps):
  return "".join(f"{RAY}step:{step} - " + " - ".join(
      f"{name}:np.float64({value})" for name, value in values.items()) + "\n"
                 for step, values in steps)


VERL = [  # what was printed, (step, values), flags, names, rows, words
    # no flag is needed; a flag overrides
    (CONFIG, [(0, {VAL: 0.25}), (1, TRAINED), (2, TRAINED | {VAL: 0.5})], {},
     "step avg Bp n rollouts model", [
         (0, .25, 16, 8, 0, "Qwen/Qwen3-4B"),
         (2, .5, 16, 8, 256, "Qwen/Qwen3-4B")],
     ["actor_rollout_ref.rollout.n=8"]),
    (CONFIG, [(0, {VAL: 0.25})], dict(fixed={"n": 4}), "Bp n", [(16, 4)], []),
    ("+ python3 -m verl.trainer.main_ppo data.train_batch_size=32 "
     "actor_rollout_ref.rollout.n=5 'trainer.logger=[console]'\n"
     "NCCL on CUDA device: \0\n", [(0, {VAL: 0.5})], {}, "Bp n", [(32, 5)],
     []),
    # DAPO's recipe: 3 and 1 generations of 48 problems, then 16 unfiltered
    (CONFIG, [(1, {"train/num_gen_batches": 3}),
              (2, {"train/num_gen_batches": 1}), (3, TRAINED), (3, {VAL: .5})],
     {}, "step rollouts", [(3, (3 * 48 + 48 + 16) * 8)],
     ["sampled and discarded"]),
    # the size of a minibatch is not that of a generated batch
    ("+ python3 -m verl.trainer.main_ppo data.train_batch_size=16 "
     "data.gen_batch_size=48 actor_rollout_ref.rollout.n=8 "
     "actor_rollout_ref.actor.ppo_mini_batch_size=4\n",
     [(1, {"train/num_gen_batches": 3}), (2, {VAL: .5})], {}, "step rollouts",
     [(2, (3 * 48 + 16) * 8)], ["sampled and discarded"]),
    # the replay buffer of verl counts the discarded problems
    (CONFIG, [(1, {EVICTED: 5, SURPLUS: 2}), (2, {VAL: .5})], {}, "rollouts",
     [((16 + 7 + 16) * 8,)], []),
    (CONFIG, [(1, {SCORE: .25}), (2, {SCORE: .5})],
     dict(columns={"avg": SCORE}), "step rollouts avg",
     [(0, 0, .25), (1, 128, .5)], []),
    # before 0.2 updates count from 0
    ("", [(0, {"test_score/gsm8k": .5}), (0, TRAINED),
          (9, TRAINED | {"val/test_score/gsm8k": .75})],
     dict(fixed={"Bp": 4, "n": 1}), "step avg eval_set",
     [(0, .5, "gsm8k"), (10, .75, "gsm8k")], ["1 was added"]),
    # a prompt that occurs three times has three samples, and its own mean@3
    (CONFIG, [(0, {"val-aux/c/reward/mean@1": .125,
                   "val-core/c/reward/mean@3": 0,
                   "val-core/c/reward/best@3/mean": 0})], {}, "avg k",
     [(.125, 1)], ["different problems"]),
]


# ---- TRL's standard output


def bar(done, total=50):
  return f"  {done}%|###     | {done}/{total} [00:26<21:46, 26.66s/it]"


def printed(**values):
  return str({name.replace("__", "/"): value
              for name, value in values.items()}) + "\n"


ROW = dict(loss="0", rewards__accuracy_reward__mean="0.375", reward="0.375",
           grad_norm="nan", epoch="0.1")
BARS = ("Loading weights:  50%|##  | 199/398 [00:02<00:01, 102.3it/s]\n"
        + bar(0) + "\r" + bar(1) + "\r" + bar(4) + "\r" + bar(5)
        + printed(**ROW) + "| Prompt | {'a': 1} |\n" + bar(6) + bar(10)
        + printed(**ROW | {"rewards__accuracy_reward__mean": "0.5"})
        + bar(1, 3) + bar(3, 3) + printed(
            eval_loss="0", eval_reward="0.5", eval_rewards__x__mean="1",
            epoch="0.2"))
SIZE = {"num_generations": 4, "generation_batch_size": 8}
TRAIN = dict(columns={"avg": "rewards/accuracy_reward"})


PRINTED = [  # content, flags, names, rows, words
    # means over updates 1-5 and 6-10, of the policies after 0-4 and 5-9
    (BARS, dict(fixed=SIZE, **TRAIN), "step rollouts avg",
     [(2, 16, .375), (7, 56, .5)], ["progress bars"]),
    (BARS, dict(fixed=SIZE), "step avg n", [(10, .5, 4)], []),
    # a buffered stream prints several dicts after one bar: steps 2 and 4
    (bar(0, 4) + "\n" + printed(**ROW) * 2 + bar(4, 4) + "\n",
     dict(fixed=SIZE, **TRAIN), "step", [(1,), (3,)], ["logging_steps"]),
    (printed(**ROW) * 2, dict(fixed=SIZE | {"logging_steps": 10}, **TRAIN),
     "step", [(5,), (15,)], []),
    (printed(**ROW, **{"global_step__max_steps": "3/9"}),
     dict(fixed=SIZE, **TRAIN), "step", [(1,)], []),
    ("python train.py --num-generations 4 --lr 1e-6\n"
     "Data Parallel GPUs = 1 | Total batch size (4 x 8 x 1) = 32\n"
     + bar(1) + printed(**ROW), TRAIN, "Bp n", [(8, 4)], []),
    # TRL <= 0.14 counts prompts: 7,473 examples in 1,869 updates are 4 each
    ("  Num examples = 7,473\n  Num Epochs = 1\n  Total train batch size (w. "
     "parallel, distributed & accumulation) = 4\n  Total optimization steps = "
     "1,869\n" + bar(1) + printed(**ROW),
     dict(fixed={"num_generations": 8}, **TRAIN), "Bp n", [(4, 8)], []),
    # 100 in 7, or in 6 without the last; of rollouts 16 are 100 in 13 for n = 2
    *(("  Num examples = 100\n  Num Epochs = 1\n  Total train batch size (w. "
       "parallel, distributed & accumulation) = 16\n  Total optimization steps "
       f"= {steps}\n" + bar(1) + printed(**ROW),
       dict(fixed={"num_generations": 2}, **TRAIN), "Bp n", [(Bp, 2)], [])
      for steps, Bp in ((7, 16), (6, 16), (13, 8))),
    # 70 in 2 updates of 64: of rollouts, since 128 prompts are more than 70
    ("  Num examples = 70\n  Num Epochs = 1\n  Total train batch size (w. "
     "parallel, distributed & accumulation) = 64\n  Total optimization steps = "
     "2\n" + bar(1) + printed(**ROW),
     dict(fixed={"num_generations": 2}, **TRAIN), "Bp n", [(32, 2)], []),
    # an update has 64 rollouts in 2 micro-steps, a generation 8 micro-steps
    ("python train.py --num-generations 8 --steps_per_generation 8\n"
     "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
     "  Gradient Accumulation steps = 2\n"
     + printed(**ROW | {"step": 11}), TRAIN, "step Bp n rollouts",
     [(5, 32, 8, 512)], ["gradient_accumulation_steps=2"]),
    ("  Total train batch size (w. parallel, distributed & accumulation) = "
     "1,024\n" + printed(**ROW | {"step": 1}),
     dict(fixed={"num_generations": 8}, **TRAIN), "Bp", [(128,)], []),
    # 500 of the 1,869 updates of an epoch: the batch counts prompts
    ("  Num examples = 7,473\n  Num Epochs = 1\n  Total train batch size (w. "
     "parallel, distributed & accumulation) = 4\n  Total optimization steps = "
     "500\n  Num update steps per epoch = 1,869\n" + printed(
         **ROW | {"step": 200}), dict(fixed={"num_generations": 2}, **TRAIN),
     "Bp n", [(4, 2)], []),
    # 8 means of 4 rollouts: 1, 2 or 3 right answers that are worth 2
    ("".join(printed(**ROW | {"rewards__accuracy_reward__mean": mean,
                              "step": i}) for i, mean in enumerate(
        (.5, 1, 1.5, .5, 1, .5, 1.5, 1, 0), 1)), dict(fixed={"Bp": 1, "n": 4},
                                                   **TRAIN),
     "avg", [(mean,) for mean in (.25, .5, .75, .25, .5, .25, .75, .5, 0)],
     ["read as 2 for a right answer"]),
]


# ---- Other texts


TABLES = [  # name, content, flags, names, rows, words of the notes
    # small numbers that may be percent
    ("t.csv", "Bp,n,step,acc (%)\n4,8,0,0.1\n4,8,1,0.8\n", {}, "step avg",
     [(0, .1), (1, .8)], ["as a share of 1, not as percent", "=avg=0.01"]),
    ("state.json", json.dumps({"log_history": [  # timings tell the sets apart
        {"eval_reward": .25, "eval_math_runtime": 2., "step": 5},
        {"eval_reward": .5, "eval_code_runtime": 2., "step": 5}]}),
     dict(kind="trl", fixed=OURS), "eval_set avg",
     [("math", .25), ("code", .5)], []),
    ("m.jsonl", lines({
        "step": 3, "eval/x/effective/solver/avg@2": .5,
        "eval/x/all/solver/avg@2": .25, "eval/x/effective/judge/avg@2": 1,
        "eval/y/avg@2": .125, "eval/y/policy_version": 2.,
        "eval/z/effective/agent/reward/mean": .75,
        "eval/z/all/agent/reward/mean": .5}), dict(kind="prime-rl", fixed=OURS),
     "eval_set avg step", [("x/solver", .5, 3), ("x/judge", 1, 3),
                           ("y", .125, 2), ("z", .75, 3)], []),
    ("h.jsonl", lines({"_step": 1, "train/dynamic_sampling_num_gen_batches": 3},
                      {"_step": 2, "train/dynamic_sampling_num_gen_batches": 1},
                      {"_step": 2, "validation/accuracy": .5}),
     dict(fixed={"grpo.num_prompts_per_step": 4,
                 "grpo.num_generations_per_prompt": 2,
                 "grpo.batch_multiplier": "1.5"}), "step avg rollouts",
     [(2, .5, (3 + 1) * 6 * 2)], []),
    # sorted by its accuracy; two runs, of which n tells them apart
    ("t.csv", HEADER + "32,8,20,.1\n32,8,30,.2\n32,4,20,.3\n32,8,10,.4\n"
     "32,4,30,.5\n32,4,10,.6\n", {}, "run_id step avg", [
         ("t-Bp32-n8", 10, .4), ("t-Bp32-n4", 10, .6), ("t-Bp32-n8", 20, .1),
         ("t-Bp32-n4", 20, .3), ("t-Bp32-n8", 30, .2), ("t-Bp32-n4", 30, .5)],
     ["not in the order of 'step'"]),
    ("a.jsonl", lines({"step": 2, "avg": .5}, {"step": 2, "loss": 1},
                      {"step": 2, "best": .75}), dict(fixed=OURS), "avg best",
     [(.5, .75)], []),
    ("v.jsonl", lines(*({"step": step, "data": {"val-core/m/acc/mean@1": avg}}
                        for step, avg in ((2, .5), (4, 1), (4, 0)))),
     dict(fixed=OURS), "step avg", [(2, .5), (4, 0)],
     ["v.jsonl:2: step 4 is evaluated again at"]),
    # it had reached step 30, fell back to 20, and evaluated at 25 and 35
    ("r.csv", HEADER + "".join(f"4,8,{step},{avg}\n" for step, avg in (
        (0, .1), (10, .2), (20, .3), (30, .4), (20, .35), (25, .38), (35, .5))),
     {}, "step avg", [(0, .1), (10, .2), (20, .35), (25, .38), (35, .5)],
     ["a resumed run"]),
    ("c.csv", "p,g,it,C,acc\n4,8,1,99,0.5\n", dict(columns={
        "Bp": "p", "n": "g", "step": "it", "rollouts": "C", "avg": "acc"}),
     "Bp n step rollouts avg run_id", [(4, 8, 1, 99, .5, "c")], []),
    ("a.jsonl", lines({"step": 1, "metrics": {"val": {"acc": 0.5}}}),
     dict(columns={"avg": "metrics.val.acc"}, fixed=OURS), "avg", [(.5,)], []),
    # trackers' steps: from 0 in AReaL, of rollouts in slime, two in OpenRLHF
    ("a.jsonl", lines(*({"_step": i, "ppo_actor/n_seqs": 8.0,
                         "eval-rollout/reward": avg}
                        for i, avg in enumerate((.25, .5)))),
     dict(fixed={"n": 4}), "step rollouts Bp avg",
     [(1, 8, 2, .25), (2, 16, 2, .5)], []),
    ("s.jsonl", lines(
        {"_step": 0, "eval/step": 0, "eval/aime": .25},
        {"_step": 1, "rollout/step": 0, "rollout/raw_reward": .5},
        {"_step": 2, "train/step": 0, "train/pg_loss": 0},
        {"_step": 3, "train/step": 1, "train/pg_loss": 0},
        {"_step": 4, "eval/step": 0, "eval/aime": .5}),
     dict(fixed={"Bp": 2, "n": 4}), "step rollouts avg",
     [(0, 0, .25), (1, 8, .5)], []),
    ("o.jsonl", lines(
        {"train/global_step": 1, "train/actor_lr": 0, "_step": 0,
         "train/rollout/num_samples": 8., "train/dynamic_filtering_pass_rate":
         50.}, {"eval/global_step": 1, "eval/eval_a_pass1": .5, "_step": 1}),
     dict(fixed={"n": 4}), "step rollouts Bp avg", [(1, 16, 2, .5)], []),
    # prime-rl's console, whose orchestrator has no evaluation and no sizes
    ("p.log", "12:00 INFO Starting, a\n" + "".join(
        f"12:01 SUCCESS Step {i} | Time: 9.50s | Reward: {reward} | "
        "Throughput: 12.5 tokens/s | Seq. Length: 212.5 tokens/sample\n"
        for i, reward in enumerate((.25, .5, .75))), dict(fixed=OURS),
     "step rollouts avg", [(0, 0, .25), (1, 256, .5), (2, 512, .75)],
     ["training reward 'Reward'"]),
    # prime-rl's older totals have the step's own; steps count from 0
    ("p.jsonl", lines(
        *({"step": i, "progress/total_samples": 64 * i + 64,
           "progress/total_problems": 16 * i + 16, "reward/mean": .25,
           "completion_len/mean": 9.} for i in range(3)),
        *({"step": i, "eval/math/avg@4": .5} for i in (0, 1, 2))),
     {}, "step rollouts Bp n avg",
     [(i, 64 * i, 16, 4, .5) for i in range(3)], ["group_size=4"]),
    # a text selects the lines that have it
    ("m.csv", "model_name,step,avg\nq,1,0.5\np,1,0.25\n",
     dict(fixed=OURS | {"model": "p"}), "model avg", [("p", .25)], []),
    ("b.csv", "\ufeffBp\tn\tstep\tavg\r\n4\t8\t1.0\t0.5\r\n", {}, "Bp step",
     [(4, 1)], []),
    ("s.csv", "avg\n0.5\n", dict(fixed=OURS | {"step": 3}), "rollouts",
     [(768,)], []),
    ("f.csv", "Bp,n,step,avg,fl\n4,8,1,0.5,1.5e21\n", dict(
        columns={"flops": "fl"}, axis="flops", scale={"flops": (0, 1.5e20)}),
     "flops", [(10,)], []),
    # a custom axis needs no step, and C is then unknown
    ("d.csv", "Bp,n,avg,device_seconds\n4,8,0.25,0\n4,8,0.5,9.5\n",
     dict(axis="device_seconds"), "step device_seconds avg rollouts",
     [(0, 0, .25, None), (1, 9.5, .5, None)], []),
    ("w.csv", "Step,grpo-n4,grpo-n8\n0,0.1,0.2\n10,0.3,\n20,0.5,0.6\n",
     dict(fixed={"Bp": 2}, from_path=r"n(?P<n>\d+)"), "run_id n step avg", [
         ("grpo-n4", 4, 0, .1), ("grpo-n8", 8, 0, .2), ("grpo-n4", 4, 10, .3),
         ("grpo-n4", 4, 20, .5), ("grpo-n8", 8, 20, .6)], []),
    ("chart.csv", '"Step","r-n4 - val/acc","r-n4 - val/acc__MIN"\n0,0.5,0.5\n',
     dict(fixed={"Bp": 2}, from_path=r"n(?P<n>\d+)"), "n avg", [(4, .5)],
     ["only metric of evaluations in the file, 'val/acc'"]),
    ("e.csv", "step,eval_acc,eval_acc_std\n1,0.5,0.1\n", dict(fixed=OURS),
     "avg", [(.5,)], ["'eval_acc'"]),
    # rollouts instead of steps
    ("e.csv", "name,Bp,n,rollouts,avg\na,8,4,640,.2\nb,4,8,1280,.3\n",
     dict(columns={"run_id": "name"}), "run_id step rollouts",
     [("a", 20, 640), ("b", 40, 1280)], []),
    # W&B's histories of TRL and NeMo-RL
    ("h.jsonl", lines({"_step": 7, "train/global_step": 1, "train/reward": .75,
                       "eval/reward": .25}), dict(fixed=OURS),
     "step rollouts avg", [(1, 256, .25)], ["read as trl"]),
    ("h.jsonl", lines({"_step": 1, "train/reward": .75,
                       "validation/accuracy": .25}), dict(fixed=OURS),
     "step rollouts avg", [(1, 256, .25)], ["read as nemo-rl"]),
    # an incomplete last line, and a broken one of ten
    ("a.jsonl", '{"step": 1, "avg": 0.5}\n{"step": 1, "a', dict(fixed=OURS),
     "step", [(1,)], ["a.jsonl:2: the last line is torn"]),
    ("t.csv", HEADER + "4,8,1,0.5\n4,8,2", {}, "step", [(1,)],
     ["t.csv:3: the last line is torn"]),
    ("t.csv", HEADER + "4,8\n" + "".join(
        f"4,8,{step},0.5\n" for step in range(10)), {}, "step",
     [(step,) for step in range(10)],
     ["t.csv:2: 2 values under 4 columns: skipped."]),
]


@pytest.mark.parametrize("source, kind, how, names, expected, words", [
    *READ,
    *((("run.log", head + verl(*steps)), "verl", *rest)
      for head, steps, *rest in VERL),
    *((("run.log", content), "trl", *rest) for content, *rest in PRINTED),
    *(((name, content), None, *rest) for name, content, *rest in TABLES)])
def test_files_are_read_as_a_person_reads_them(
    write, source, kind, how, names, expected, words):
  """`source` is a file, or (name, content); a log has no other torn line."""
  path = write(source[1], source[0]) if isinstance(source, tuple) else (
      LOGS / source)
  rows, notes = rows_of(path, **how)
  assert kind is None or f"read as {kind}:" in "".join(notes), notes
  found = [tuple(row.fields.get(name) for name in names.split())
           for row in rows]
  assert [row for row in found if row in expected] == expected
  assert not isinstance(source, tuple) or len(found) == len(expected)
  for word in words:
    assert any(word in note for note in notes), notes
  for mark in ("torn", "right answer"):
    assert (mark in "".join(words)) == (mark in "".join(notes)), notes


@pytest.mark.parametrize("sums, fixed, words", [
    # 64 rollouts a step, of which n and Bp explain 8
    (range(9, 30), {"Bp": 4, "n": 2}, "Bp = 4 or n = 2 is wrong"),
    (range(9, 30), {"Bp": 8, "n": 8}, None),
    (range(10, 34, 2), {"Bp": 8, "n": 8}, "a right answer is worth 2 (give"),
    (range(10, 32, 2), {"Bp": 8, "n": 8}, None),  # too few to be sure
    (range(10, 34, 2), {"Bp": 8, "n": 4}, None)])
def test_rewards_tell_the_rollouts_that_they_are_means_of(
    sums, fixed, words, write):
  path = write(lines(*({"step": i, "data": {SCORE: round(total / 64, 4)}}
                       for i, total in enumerate(sums, 1))), "run.jsonl")
  for notes in (rows_of(path, fixed=fixed)[1],
                series.read(path, fields.Reading(fixed=fixed)).notes):
    multiples = [note for note in notes if "are multiples of 1/" in note]
    assert len(multiples) == bool(words)
    assert all(words in note for note in multiples)


def test_percent_is_read_after_a_nan(write):
  rows, notes = rows_of(write(
      "Bp,n,step,accuracy\n4,8,0,nan\n4,8,1,10\n4,8,2,50\n"))
  assert curve(rows[1:], "step", "avg") == [(1, .1), (2, .5)]
  assert any("'accuracy' reaches 50: read as percent" in n for n in notes)


def test_trl_mean_over_nothing_is_nan(write):
  path = write(json.dumps({"log_history": [
      {"eval_reward": None, "eval_runtime": 2., "step": 5}]}), "state.json")
  ((row,), _) = rows_of(path, kind="trl", fixed=OURS)
  assert math.isnan(row.fields["avg"]) and "eval_set" not in row.fields


def test_tinker_evaluates_before_its_update(write, tmp_path):
  path = write(lines(*({"step": i, "env/all/total_episodes": sampled,
                        "test/env/all/correct": avg} for i, (sampled, avg)
                       in enumerate([(60, .25), (64, .5)]))), "m.jsonl")
  (tmp_path / "config.json").write_text(json.dumps({
      "model_name": "Qwen/Qwen3-8B", "dataset_builder": {
          "batch_size": 8, "group_size": 8}}))
  rows, notes = rows_of(path)
  # 4 rollouts fewer than 8 x 8 were sampled
  assert curve(rows, "step", "rollouts", "Bp", "n", "model", "eval_set") == [
      (0, 0, 8, 8, "Qwen/Qwen3-8B", "test"),
      (1, 60, 8, 8, "Qwen/Qwen3-8B", "test")]
  assert any("config.json" in note for note in notes)
  (tmp_path / "config.json").write_text(json.dumps({
      "group_size": 8, "groups_per_batch": 8,
      "remove_constant_reward_groups": True}))  # these are not in the count
  assert curve(rows_of(path)[0], "rollouts") == [(0,), (64,)]


def events(folder, *values):
  """A file of TensorBoard with (step, name, value)."""
  with tensorboardX.SummaryWriter(str(folder)) as writer:
    for step, name, value in values:
      writer.add_scalar(name, value, step)
  return next(folder.glob("*tfevents*"))


def test_tensorboard_events(tmp_path):
  """AReaL counts from 0; slime evaluates before and after update 1."""
  path = events(tmp_path / "areal", *(
      (i, name, value) for i, reward in enumerate((.25, .5, .75, .5))
      for name, value in (("ppo_actor/n_seqs", 8), ("rollout/reward", reward),
                          ("eval-rollout/reward", reward + .125))))
  rows, _ = rows_of(path, fixed={"n": 4})
  assert curve(rows, "step", "rollouts", "avg") == [
      (1, 8, .375), (2, 16, .625), (3, 24, .875), (4, 32, .625)]
  rows, _ = rows_of(events(
      tmp_path / "slime", (0, "eval/aime", .25), (0, "rollout/raw_reward", .5),
      (0, "eval/aime", .75)), fixed=OURS)
  assert curve(rows, "step", "avg") == [(0, .25), (1, .75)]
  path.write_bytes(path.read_bytes()[:-9])  # torn
  assert len(rows_of(path, fixed={"n": 4})[0]) == 3
  path.write_bytes(b"")
  check(path, ["tfevents", "no scalars"])
  path.write_bytes(bytes([3, *bytes(11), 255, 255, 255, *bytes(4)]))
  check(path, ["damaged at byte 0"])


def test_prime_rl_without_its_config(tmp_path):
  path = str(tmp_path / "metrics.jsonl")
  shutil.copy(LOGS / "prime-rl/metrics.jsonl", path)
  check(path, ["metrics.jsonl:1: no Bp", "--fixed=Bp=", "--columns=Bp=",
               "--fixed=batch_size="])
  config = tmp_path / "configs/rl.toml"
  config.parent.mkdir()
  config.write_text("[orchestrator]\nbatch_size = 64\ngroup_size = 2\n"
                    "[[orchestrator.train.source]]\nname = 'math'\n")
  assert curve(rows_of(path)[0][:1], "Bp", "n") == [(32, 2)]
  config.write_text("token_batch_size = 9\n")
  check(path, ["no Bp"])


# ---- What is refused


ONE = HEADER + "4,8,1,0.5\n"
BAD = [  # content, flags, words
    # another kind of file
    (b" \n", {}, ["run.csv", "empty"]),
    (b"\x1f\x8b\x08\x00", {}, ["run.csv", "decompress"]),
    (b"a,b,a\n1,2,3\n", {}, ["columns ['a'] occur more than once"]),
    (b"[" * 100_000, {}, ["not a JSON object"]),
    (b'{"step": 1}\nTraceback\n', {}, ["run.csv:2"]),
    (b'{\n "name": "x",\n "version": 1}\n', {},
     ["a JSON document that is no log"]),
    # a quote that is never closed swallows the rest
    (ONE + '"4,8,2,0.5' + "\n4,8,3,0.5" * 8, {}, ["run.csv:3", "9 of 11"]),
    # two runs in one file
    (HEADER + "4,8,1,0.5\n4,8,1,0.25\n", {},
     ["run.csv:3", "run.csv:2", "--columns=run_id="]),
    (lines(*({"Bp": 32, "n": 8, "step": step, "avg": .1}
             for step in (20, 30, 10))), {}, ["the log starts again"]),
    # what is missing, all at once
    ("Bp,n,step,val/accuracy,loss\n4,8,1,0.5,2\n",
     dict(columns={"avg": "val/acuracy"}),
     ["no column 'val/acuracy' for avg; the file has val/accuracy, loss"]),
    ("Bp,n,step,accuracy,train/acc,loss\n4,8,1,0.5,0.5,2\n", {},
     ["no evaluations", "--columns=avg=NAME", "the file has accuracy"]),
    # values that are no numbers
    *((f"step\tval/acc\n0\t{value}\n5\t{value}\n", dict(fixed=OURS),
       ["no evaluations", f"run.csv:2: val/acc is '{value}', no number: left "
        "out, and 1 more"]) for value in ("0,5", "50%")),
    ("val/acc,loss,step\n0.5,2,4\n", {}, [
        "run.csv:2: no Bp (problems per step), no n (rollouts per problem)",
        "--columns=Bp=NAME,n=NAME", "--fixed=Bp=32,n=8",
        "--from_path='Bp(?P<Bp>\\d+)-n(?P<n>\\d+)'"]),
    ("val/acc,loss,n\n0.5,2,4\n", {}, [
        "no Bp (problems per step), no step (updates made)",
        "--fixed=Bp=32,step=100"]),
    ("Step,n4,n8\n0,0.1,0.2\n", dict(fixed={"Bp": 2}),
     ["each column is a run, --from_path"]),
    # values
    (HEADER + "4,8,-1.5,0.5\n", {}, ["run.csv:2: step is '-1.5'", "least 0"]),
    (HEADER + "0,8,1,0.5\n", {}, ["Bp is '0'", "at least 1", "nearest is 1"]),
    (HEADER + "4,1e400,1,0.5\n", {}, ["nearest is 9223372036854775808"]),
    (HEADER + "4,,1,0.5\n", {}, ["no n ", "--fixed=n="]),
    (HEADER + "4,8,1,good\n", {}, ["avg is 'good'", "expected a number"]),
    ("group,avg\n1.5,0.5\n", dict(columns={"n": "group"}, fixed={"Bp": 4}),
     ["n (column 'group') is '1.5'", "nearest is 2"]),
    *((lines({"step": 1, "avg": .5, "correct": value}), dict(fixed=OURS),
       ["correct: expected a list of counts"])
      for value in ("[-0.5]", "[true]", "[" * 5000)),
    # flags
    (ONE, dict(kind="tabel"), ["expected one of", "tabel"]),
    (ONE, dict(columns={"av": "avg"}), ["--columns: av is not a field", "avg"]),
    (ONE, dict(fixed={"k": 0}), ["--fixed: k is 0"]),
    (ONE, dict(scale={"n": (0, 1)}), ["--scale: n is not a field"]),
    (ONE, dict(columns={"n": "n"}, fixed={"n": 8}),
     ["['n'] in --columns and in --fixed"]),
    (ONE, dict(fixed={"n": 4}), ["run.csv:2: n is 8 in the file and 4"]),
    (ONE, dict(from_path=r"test_\D*(?P<n>\d)"),
     ["n is 8 in the file and", "in --from_path"]),
    (lines({"step": 1, VAL: .5, "g": 4}), dict(
        kind="verl", columns={"n": "g"},
        fixed={"actor_rollout_ref.rollout.n": 8, "Bp": 4}),
     ["n is 4 in the file and 8 in", "or the trainer's options"]),
    (ONE, dict(from_path="n4"), ["no named group"]),
    (ONE, dict(from_path="("), ["not a regular expression"]),
    ("model,step,avg\nq,1,0.5\n", dict(fixed=OURS | {"model": "x"}),
     ["no line has a value of ['avg'] with {'model': 'x'}"]),
    # training rewards that are no pass rates, nor 0 and 2
    *((lines(*({"step": i, "rewards/f/mean": (low, high)[i % 2]}
               for i in range(1, 12))), dict(kind="trl", fixed=OURS),
       [f"a training reward from {low} to {high}", "--scale=avg=LOW:HIGH"])
      for low, high in ((.123, 1.7), (-.5, .5), (.5, 2.5))),
    # consoles
    (printed(**ROW) * 2, dict(fixed=SIZE, **TRAIN),
     ["no step", "--fixed=logging_steps="]),
    ("num_generations=4\nnum_generations=16\n"
     "Total batch size (4 x 8 x 1) = 32\n" + bar(1) + printed(**ROW), TRAIN,
     ["no n (rollouts per problem)"]),
    (CONFIG + verl((0, {VAL: .25}), *((i, {SCORE: .5}) for i in range(1, 5))),
     {}, ["1 evaluations", "--columns=avg=critic/score/mean (4 values"]),
]


ASKED = [  # file, flags, words
    ("none.csv", {}, ["none.csv", "No such file"]),
    ("verl", {}, ["verl", "directory"]),
    ("verl/gsm8k_grpo.jsonl", dict(fixed=OURS | {"k": 3}), ["k=3", "[2, 4]"]),
    ("trl/trainer_state.json", dict(fixed=TRL | {"steps_per_generation": 4}),
     ["give both with --fixed"]),
    ("trl/trainer_state.json", dict(fixed=TRL | {"generation_batch_size": 60}),
     ["generation_batch_size=60"]),
    ("trl/trainer_state.json", dict(fixed=TRL | {"n": 4}),
     ["n is 4 in --fixed, and 8"]),
    (CHART, dict(columns={"avg": "val/acc"}, fixed=OURS,
                 from_path=r"seed(?P<seed>\d+)"),
     ["does not match the path", "run's name such as ['grpo-n8']"]),
    (CHART, dict(columns={"avg": "val/acc"}, fixed={"Bp": 32}),
     ["no n (rollouts per problem)", "--from_path='n(?P<n>\\d+)'", "grpo-n8"]),
    (REAL / "tinker_metrics.jsonl", dict(fixed={"n": 3}),
     ["400 rollouts a step", "n=3"]),
    (REAL / "trl_trainer_state.json", dict(
        fixed={"Bp": 1, "n": 6}, columns={"avg": "reward"}),
     ["a training reward from -0.09333 to 1.333", "--scale=avg=LOW"]),
    ("isojax/records.jsonl", dict(columns={"avg": "rewad"}),
     ["no column 'rewad' for avg; the file has reward"]),
]


@pytest.mark.parametrize("source, how, words", [
    *(((content,), how, words) for content, how, words in BAD), *ASKED])
def test_what_cannot_be_read_is_refused(write, source, how, words):
  """`source` is a file, or a tuple with the content of one."""
  path = write(*source) if isinstance(source, tuple) else LOGS / source
  check(path, words, **how)


def test_a_scale_is_a_factor_or_a_range():
  assert fields.span("avg", "-1:1") == fields.span("avg", (-1, 1)) == (-1, 1)
  assert fields.span("avg", "0.01") == fields.span("avg", 0.01) == (0, 100)
  for given in ("1:0", "0:inf", "0:nan", "x", (1, 2, 3), 0, None):
    with pytest.raises(InputError, match="--scale=avg="):
      fields.span("avg", given)


@hypothesis.given(st.binary(max_size=200), st.sampled_from(
    sorted(formats.FORMATS)), st.sampled_from(
        ["csv", "jsonl", "log", "tfevents"]))
def test_nonsense_is_an_input_error(tmp_path_factory, content, kind, suffix):
  path = tmp_path_factory.getbasetemp() / f"any.{suffix}"
  path.write_bytes(HEADER.encode() * (suffix != "tfevents") + content)
  with contextlib.suppress(InputError):
    rows_of(path, kind)


# ---- Records of isojax


def test_records_that_were_changed_are_reported(write, tmp_path):
  """A changed number stays in the line; the checksum tells it."""
  source = LOGS / "isojax/records.jsonl"
  written = [json.loads(line) for line in source.open()]
  rows, notes = rows_of(source)
  assert [row.fields for row in rows] == [
      line for line in written if line["kind"] == "eval"]
  assert [row.where.rsplit(":", 1)[1] for row in rows] == ["1", "4", "6"]
  assert len(notes) == 1 and ":1: " in notes[0]  # no line has a checksum
  path = write("", "records.jsonl")
  disk.replace(path, records.text_of(written)[0])
  assert rows_of(path)[1] == []
  whole = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
  for content, line in ((whole[:2] + whole[3:], 3),  # one is lost
                        ([*whole[:3], whole[3].replace(
                            '"step": 2', '"step": 7'), *whole[4:]], 4)):
    assert content != whole
    rows, notes = rows_of(write("".join(content), "changed.jsonl"))
    assert len(rows) == 3
    assert len(notes) == 1 and f"changed.jsonl:{line}: " in notes[0]


def test_a_checksum_of_digits_alone_is_no_number(write):
  written = (LOGS / "isojax/records.jsonl").read_text().splitlines()
  chained = [json.dumps(json.loads(line) | {"chain": chain}) for line, chain in
             zip(written, ("2ac8015103ec33d6", "1234567890123456") * 3)]
  _, notes = rows_of(write("\n".join(chained) + "\n", "records.jsonl"))
  assert not any("no number" in note for note in notes), notes


def steps(*changes):
  """Training records of a run with Bp=4 and n=8, from changed fields."""
  first = json.loads((LOGS / "isojax/records.jsonl").read_text().split("\n")[1])
  return lines(*(first | change for change in changes))


def test_training_rewards_of_our_records_are_of_the_policy_before(write):
  """Rollouts of a step: 4 * 8, then three rounds of it, then 4 * 16.

  The first step samples from the base policy, after 0 rollouts; the last one
  from the policy after 128 rollouts, 2,560 tokens and 3 seconds.
  """
  path = write(steps(
      dict(step=1, rollouts=32, reward=.25, D=64, shaped_reward=.125),
      dict(step=2, rollouts=128, reward=.5, D=64, extra_rounds=2, epoch=.125,
           sampled_tokens=2560, device_seconds=3.0, shaped_reward=.375),
      dict(step=3, rollouts=192, reward=.75, D=64, n=16, epoch=.1875,
           sampled_tokens=3840, device_seconds=4.5, shaped_reward=.625)),
               "records.jsonl")
  rows, notes = rows_of(path)
  assert curve(rows, "step", "rollouts", "sampled_tokens", "device_seconds",
               "epoch", "avg", "n", "D") == [
      (0, 0, 0, 0, 0, .25, 8, 64), (1, 32, 640, 1.5, .0625, .5, 8, 64),
      (2, 128, 2560, 3., .125, .75, 16, 64)]
  assert {row.fields["eval_set"] for row in rows} == {"training reward"}
  assert any("training reward" in note for note in notes)
  rows, _ = rows_of(path, columns={"avg": "shaped_reward"})
  assert curve(rows, "rollouts", "avg") == [(0, .125), (32, .375), (128, .625)]


def test_counters_before_a_missing_step_are_unknown(write):
  path = write(steps(dict(step=1, rollouts=32),
                     dict(step=3, rollouts=96, alarms=["cut"])),
               "records.jsonl")
  rows, _ = rows_of(path, columns={"avg": "reward"})
  assert curve(rows, "step", "rollouts") == [(0, 0), (2, 64)]
  assert ["sampled_tokens" in row.fields for row in rows] == [True, False]


# ---- Hostile and foreign files


def doctored(path, **how):
  return str(report.report(str(path), fields.Reading(**how)))


LONG = "1" * 5000


@pytest.mark.parametrize("name, content", [
    ("a.jsonl", lines(*({"progress/total_samples": 128 * i, "reward/mean": .5}
                        for i in range(9)))),
    ("a.jsonl", lines(*({"step": i, "data": {
        "response_length/mean": 0., "response_length/max": 0.,
        "timing_s/step": 0., "timing_s/gen": 0., "actor/entropy": 0.,
        SCORE: .5}} for i in range(30)))),
    ("a.jsonl", lines(*({"step": i, "data": {
        SCORE: 1e200 * (-1)**i, "actor/entropy": 1e300}} for i in range(50)))),
    ("a.csv", "step,reward\n" + f"1,{LONG}\n" * 300),
    ("a.log", "".join(f"{{'step': {i}, 'reward': {LONG}}}\n"
                      for i in range(300)))])
def test_hostile_numbers_are_read(name, content, write):
  began = time.monotonic()
  assert "not checked" in doctored(write(content, name))
  assert time.monotonic() - began < 5  # 300 such numbers took 15 s


@pytest.mark.parametrize("name, content, words", [
    ("run-a.wandb", b":W&B\xbe\xad\x00" + bytes(999), "history: wandb.Api()"),
    ("runs.csv", "seed,lr,final_acc\n0,1e-6,.5\n1,1e-6,.4\n0,3e-6,.3\n",
     "rows of several seed: they are not the steps of one run"),
    ("a.csv", "step,reward\n", "a header without rows")])
def test_what_is_no_log_is_refused_by_name(name, content, words, write):
  with pytest.raises(InputError, match=re.escape(words)):
    doctored(write(content, name))


def test_a_pipe_and_a_large_file_are_refused(tmp_path, monkeypatch):
  os.mkfifo(tmp_path / "pipe")
  for path in (tmp_path / "pipe", "/dev/zero"):
    check(path, ["not a regular file"])
  path = tmp_path / "large.log"
  with open(path, "wb") as file:
    file.truncate(formats.text.MAX_BYTES + 1)
  check(path, ["larger than 1,024 MiB"])


def test_the_folder_of_a_run_is_read(tmp_path):
  shutil.copy(LOGS / "isojax/records.jsonl", tmp_path)
  assert "isojax, 3 steps" in " ".join(doctored(tmp_path).split())


def test_endpoints_at_one_compute_are_no_curve(write):
  path = write("G,samples,acc\n4,9,.5\n4,9,.4\n8,9,.3\n")
  check(path, ["rows of several runs"], fixed={"Bp": 8}, axis="samples",
        columns={"n": "G", "avg": "acc"})


def test_a_table_of_rollouts_needs_no_whole_steps(write):
  path = write("rollouts,avg\n0,.1\n100,.2\n150,.3\n700,.4\n")
  rows, _ = rows_of(path, fixed={"Bp": 64, "n": 8})
  assert curve(rows, "rollouts", "avg") == [
      (0, .1), (100, .2), (150, .3), (700, .4)]


@pytest.mark.parametrize("columns, noted", [
    ({"step": "_step"}, True), ({}, False)])
def test_a_named_count_of_log_calls_is_reported(columns, noted, write):
  path = write(lines(*({"_step": i, VAL: .5} for i in range(3))), "h.jsonl")
  _, notes = rows_of(path, fixed=OURS, columns=columns)
  assert any("counts log calls" in note for note in notes) == noted


def nemo_rl(step, accuracy=None, reward=None):
  """The console of NeMo-RL's grpo.py."""
  validation = "" if accuracy is None else (
      f"▶ Starting validation at step {step}...\n\n📊 Validation Results:\n"
      f"    • Accuracy: {accuracy:.4f}\n    • Average response length: 99.0 "
      "tokens\n    • Samples processed: 256\n")
  return validation if reward is None else (
      f"\n{'=' * 25} Step {step}/30 {'=' * 25}\n▶ Preparing batch...\n"
      f"{validation}\n📊 Training Results:\n  • Loss: -0.0123\n"
      f"  • Avg Reward: {reward:.4f}\n  • Mean Generation Length: 212.5000\n"
      "\n⏱️  Timing:\n  • Total step time: 40.12s\n"
      "  • generation: 20.50s (51.1%)\n")


def test_a_header_without_metrics_is_not_of_nemo_rl(write):
  text = "".join(f"===== Step {i}/9 =====\nstep:{i} - {SCORE}:0.{i}\n"
                 for i in range(1, 10))
  assert series.read(write(text, "train.log")).trainer == "verl"


def test_the_console_of_nemo_rl(write):
  path = write(
      "Final config:\n{'grpo': {'max_num_steps': 30,\n          "
      "'num_generations_per_prompt': 8,\n          'num_prompts_per_step': "
      "16},\n 'policy': {'model_name': 'Qwen/Qwen2.5-1.5B'}}\n"
      + nemo_rl(0, .25) + "".join(
          nemo_rl(i, .25 + i / 100 if i % 10 == 0 else None, i / 64)
          for i in range(1, 31)), "slurm.out")
  rows, _ = rows_of(path)
  assert curve(rows, "step", "rollouts", "avg", "Bp", "n", "model") == [
      (i, 128 * i, .25 + i / 100, 16, 8, "Qwen/Qwen2.5-1.5B")
      for i in (0, 10, 20, 30)]
  log = series.read(path)
  assert len(log.train) == 30 and log.train[9].items() >= dict(
      step=10, reward=.1562, loss=-.0123, response_length=212.5, seconds=40.12,
      seconds_sample=20.5, rollouts=1280).items()


# ---- What a file tells against or beside its flags


def shares(*, rollouts=400, groups=100):
  """Steps of tinker-cookbook with whole numbers of groups."""
  return lines(*({
      "step": i, "env/all/total_episodes": rollouts, "env/all/correct": .5,
      "env/all/by_group/frac_all_good": (11 + i) / groups,
      "env/all/by_group/frac_all_bad": .01 * i} for i in range(1, 15)))


def test_the_fit_takes_n_from_the_shares_of_groups(write):
  path = write(shares(), "metrics.jsonl")
  rows, notes = rows_of(path)
  assert curve(rows, "n", "Bp")[0] == (4, 100)
  assert any("n = 4 and Bp = 100 are from" in note for note in notes)
  assert curve(rows_of(path, fixed={"n": 4})[0], "Bp")[0] == (100,)
  messages = ["n is 8, and the shares of groups", "of groups of 4: leave n out"]
  check(path, messages, fixed={"n": 8})
  with pytest.raises(InputError, match=messages[0]):
    series.read(path, fields.Reading(fixed={"n": 8}))


def test_a_column_of_zeros_is_no_training_reward(write):
  path = write(json.dumps({"log_history": [
      {"step": i, "reward": i / 40, "rewards/accuracy": 0.0,
       "rewards/format": i / 40} for i in range(1, 31)]}), "trainer_state.json")
  rows, notes = rows_of(path, fixed={"Bp": 1, "n": 6})
  assert [row.fields["avg"] for row in rows][-1] == .75
  assert any("'reward', noisier" in note and "rewards/format" in note
             and "rewards/accuracy" not in note for note in notes)


def test_only_columns_that_pass_are_proposed_the_longest_first(write):
  path = write(lines(*({"step": i, "data": {
      "val-aux/b/score/mean@16": i / 9, SCORE: -1 + i / 5} | (
          {VAL: .5} if i == 1 else {}) | (
              {"val-aux/a/f1_acc/mean@1": i / 9} if i < 4 else {})}
                       for i in range(6))), "v.jsonl")
  text = check(path, ["1 evaluations", "--columns=avg=val-aux/b/score/mean@16 "
                      "(6 values), --columns=avg=val-aux/a/f1_acc/mean@1 (4"],
               fixed=OURS)
  assert SCORE not in text


def test_a_batch_of_rollouts_without_n_leaves_n_open(write):
  path = write("  Total train batch size (w. parallel, distributed & "
               "accumulation) = 64\n" + "".join(
                   printed(**ROW | {"step": i}) for i in range(1, 9)), "a.log")
  assert "log: n, Bp (n:" in " ".join(doctored(path).split())
  text = check(path, ["no n (rollouts per problem)"], **TRAIN)
  assert "no Bp" not in text
