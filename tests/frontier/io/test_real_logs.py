"""Logs of other trainers are read without the user editing them.

The files in isojax/assets/logs were written by others; the texts here have
the format of real ones, with values that can be checked by hand.
"""

import json
import pathlib

import pytest

from isojax.errors import InputError
from isojax.frontier.io import field_mapping
from isojax.frontier.io import formats
from isojax.frontier.io import parse

REAL = pathlib.Path(__file__).parents[3] / "isojax/assets/logs"
WRITTEN = pathlib.Path(__file__).parents[2] / "data/logs"


def read(path, kind=None, columns=None, fixed=None, **more):
  return field_mapping.read(str(path), kind=kind, columns=columns or {},
                            fixed=fixed or {}, **{
                                "scale": {}, "axis": "rollouts",
                                "from_path": None, **more})


def curve(rows, *names):
  return [tuple(row.fields[name] for name in names) for row in rows]


@pytest.fixture
def write(tmp_path):
  def write(text, name="run.log"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)
  return write


# ---- files that others wrote


def test_trl_without_evaluations_offers_its_rewards_by_name():
  path = REAL / "trl_trainer_state.json"
  with pytest.raises(InputError) as error:
    read(path)
  text = str(error.value)
  assert "no evaluations" in text and "noisier" in text
  assert "no Bp (problems per step), no n (rollouts per problem)" in text
  assert text.index("avg=rewards/correctness_reward_func") < text.index(
      "avg=reward ")
  assert "avg=reward (from -0.09333 to 1.333: add --scale=avg=LOW:HIGH" in text


def test_trl_training_reward_belongs_to_the_policy_before_the_update():
  rows, notes = read(
      REAL / "trl_trainer_state.json", fixed={"Bp": 1, "n": 6},
      columns={"avg": "rewards/correctness_reward_func/mean"},
      scale={"avg": (0, 2)})
  assert curve(rows, "step", "rollouts", "eval_set")[:3] == [
      (0, 0, "training problems"), (1, 6, "training problems"),
      (2, 12, "training problems")]
  assert rows[2].fields["avg"] == pytest.approx(1 / 3)  # two of six: 0.667 / 2
  assert rows[-1].fields["D"] == 7473  # GSM8K: step 250 is epoch 0.03345
  assert any("read as trl" in note and "--format" in note for note in notes)
  assert any("reward of the training rollouts" in note for note in notes)


def test_tinker_counts_its_episodes():
  path = REAL / "tinker_metrics.jsonl"
  with pytest.raises(InputError, match="avg=env/all/correct .*--fixed=n=8"):
    read(path)  # the episodes of a step give Bp
  rows, notes = read(path, columns={"avg": "env/all/correct"}, fixed={"n": 4})
  assert curve(rows, "step", "rollouts", "Bp", "avg")[:3] == [
      (0, 0, 100, .695), (1, 400, 100, .81), (2, 800, 100, .94)]
  assert any("read as tinker" in note for note in notes)
  with pytest.raises(InputError, match="400 rollouts a step .* n=3"):
    read(path, columns={"avg": "env/all/correct"}, fixed={"n": 3})


def test_percent_after_an_aborted_run():
  """The metric is the only accuracy that is named as one of evaluations."""
  rows, notes = read(REAL / "rasbt_tracking.csv", fixed={"Bp": 1, "n": 8})
  assert any("evaluations in the file, 'eval_acc'" in note for note in notes)
  assert curve(rows, "step", "avg")[:2] == [(50, .462), (100, .434)]
  assert len(rows) == 10  # not the first run's evaluation at step 1
  assert any("csv:2: a run that ended at step 5" in note for note in notes)
  assert any("read as percent" in note for note in notes)
  rows, _ = read(REAL / "rasbt_tracking.csv", columns={"avg": "eval_acc"},
                 fixed={"Bp": 1, "n": 8}, scale={"avg": (0, 1)})
  assert rows[0].fields["avg"] == 46.2


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


def verl(*steps):
  return "".join(f"{RAY}step:{step} - " + " - ".join(
      f"{name}:np.float64({value})" for name, value in values.items()) + "\n"
                 for step, values in steps)


VAL = "val-core/math/acc/mean@1"


def test_verl_console_needs_no_flag(write):
  path = write(CONFIG + verl((0, {VAL: 0.25}), (1, {"actor/pg_loss": 1}),
                             (2, {"actor/pg_loss": 1, VAL: 0.5})))
  rows, notes = read(path)
  assert curve(rows, "step", "avg", "Bp", "n", "rollouts", "model") == [
      (0, .25, 16, 8, 0, "Qwen/Qwen3-4B"), (2, .5, 16, 8, 256, "Qwen/Qwen3-4B")]
  assert any("actor_rollout_ref.rollout.n=8" in note and "--fixed" in note
             for note in notes)
  rows, _ = read(path, fixed={"n": 4})  # overrides
  assert curve(rows, "n") == [(4,), (4,)]


def test_verl_command_line_and_nul_bytes(write):
  path = write("+ python3 -m verl.trainer.main_ppo data.train_batch_size=32 "
               "actor_rollout_ref.rollout.n=5 'trainer.logger=[console]'\n"
               "NCCL on CUDA device: \0\n" + verl((0, {VAL: 0.5})))
  rows, _ = read(path)
  assert curve(rows, "Bp", "n") == [(32, 5)]


def test_verl_charges_what_it_discarded(write):
  """DAPO's recipe: 3 and 1 generations of 48 problems, then 16 unfiltered."""
  path = write(CONFIG + verl(
      (1, {"train/num_gen_batches": 3}), (2, {"train/num_gen_batches": 1}),
      (3, {"actor/pg_loss": 1}), (3, {VAL: 0.5})))
  rows, notes = read(path)
  assert curve(rows, "step", "rollouts") == [(3, (3 * 48 + 48 + 16) * 8)]
  assert any("sampled and discarded" in note for note in notes)
  # the replay buffer of verl counts the discarded problems
  path = write(CONFIG + verl(
      (1, {"training/filter_groups/evicted_samples": 5,
           "training/filter_groups/discarded_surplus_samples": 2}),
      (2, {VAL: 0.5})))
  rows, _ = read(path)
  assert curve(rows, "rollouts") == [((16 + 7 + 16) * 8,)]


def test_verl_resumed_and_evaluated_twice(write):
  path = write(CONFIG + verl(
      (0, {VAL: .1}), (2, {VAL: .2}), (4, {VAL: .3}),
      (2, {VAL: .25}), (4, {VAL: .35}), (6, {VAL: .5})))
  rows, notes = read(path)
  assert curve(rows, "step", "avg") == [
      (0, .1), (2, .25), (4, .35), (6, .5)]
  assert any("a resumed run" in note for note in notes)


def test_verl_training_reward_is_of_the_policy_before(write):
  path = write(CONFIG + verl((1, {"critic/score/mean": .25}),
                             (2, {"critic/score/mean": .5})))
  with pytest.raises(InputError, match="--columns=avg=critic/score/mean"):
    read(path)
  rows, _ = read(path, columns={"avg": "critic/score/mean"})
  assert curve(rows, "step", "rollouts", "avg") == [(0, 0, .25), (1, 128, .5)]


def test_verl_before_0_2_counts_updates_from_zero(write):
  path = write(verl((0, {"test_score/gsm8k": .5}), (0, {"actor/pg_loss": 1}),
                    (9, {"actor/pg_loss": 1, "val/test_score/gsm8k": .75})))
  rows, notes = read(path, fixed={"Bp": 4, "n": 1})
  assert curve(rows, "step", "avg", "eval_set") == [
      (0, .5, "gsm8k"), (10, .75, "gsm8k")]
  assert any("1 was added" in note for note in notes)


def test_verl_repeated_prompts_are_other_problems(write):
  """A prompt that occurs three times has three samples, and its own mean@3."""
  names = {"val-aux/c/reward/mean@1": .125, "val-core/c/reward/mean@3": 0,
           "val-core/c/reward/best@3/mean": 0}
  rows, notes = read(write(CONFIG + verl((0, names))))
  assert curve(rows, "avg", "k") == [(.125, 1)]
  assert "best" not in rows[0].fields
  assert any("different problems" in note for note in notes)


# ---- TRL's standard output


def bar(done, total=50):
  return f"  {done}%|###     | {done}/{total} [00:26<21:46, 26.66s/it]"


def printed(**values):
  return str({name.replace("__", "/"): value
              for name, value in values.items()}) + "\n"


ROW = dict(loss="0", rewards__accuracy_reward__mean="0.375", reward="0.375",
           grad_norm="nan", epoch="0.1")
AVG = {"avg": "rewards/accuracy_reward"}
SIZE = {"num_generations": 4, "generation_batch_size": 8}


def test_trl_stdout_gets_its_steps_from_the_bars(write):
  text = ("Loading weights:  50%|##  | 199/398 [00:02<00:01, 102.3it/s]\n"
          + bar(0) + "\r" + bar(1) + "\r" + bar(4) + "\r" + bar(5)
          + printed(**ROW) + "| Prompt | {'a': 1} |\n" + bar(6) + bar(10)
          + printed(**ROW | {"rewards__accuracy_reward__mean": "0.5"})
          + bar(1, 3) + bar(3, 3) + printed(
              eval_loss="0", eval_reward="0.5", eval_rewards__x__mean="1",
              epoch="0.2"))
  rows, notes = read(write(text), columns=AVG, fixed=SIZE)
  # means over updates 1-5 and 6-10, of the policies after 0-4 and 5-9
  assert curve(rows, "step", "rollouts", "avg") == [
      (2, 16, .375), (7, 56, .5)]
  assert any("progress bars" in note for note in notes)
  rows, _ = read(write(text), fixed=SIZE)
  assert curve(rows, "step", "avg", "n") == [(10, .5, 4)]


def test_trl_stdout_in_blocks(write):
  """A buffered stream prints several dicts after one bar."""
  text = bar(0, 4) + "\n" + printed(**ROW) * 2 + bar(4, 4) + "\n"
  rows, notes = read(write(text), columns=AVG, fixed=SIZE)
  assert curve(rows, "step") == [(1,), (3,)]  # steps 2 and 4, over two updates
  assert any("logging_steps" in note for note in notes)


def test_trl_stdout_without_bars_needs_logging_steps(write):
  path = write(printed(**ROW) * 2)
  with pytest.raises(InputError, match="no step.*--fixed=logging_steps="):
    read(path, columns=AVG, fixed=SIZE)
  rows, _ = read(path, columns=AVG, fixed=SIZE | {"logging_steps": 10})
  assert curve(rows, "step") == [(5,), (15,)]
  path = write(printed(**ROW, **{"global_step__max_steps": "3/9"}))
  assert curve(read(path, columns=AVG, fixed=SIZE)[0], "step") == [(1,)]


def test_trl_sizes_from_unsloth_and_the_command(write):
  head = ("python train.py --num-generations 4 --lr 1e-6\n"
          "Data Parallel GPUs = 1 | Total batch size (4 x 8 x 1) = 32\n")
  text = bar(1) + printed(**ROW)
  rows, _ = read(write(head + text), columns=AVG)
  assert curve(rows, "Bp", "n") == [(8, 4)]
  with pytest.raises(InputError, match="expected n"):
    read(write(head + "num_generations=16\n" + text), columns=AVG)


# ---- tables and other trainers


def test_tinker_evaluates_before_its_update(write, tmp_path):
  lines = [{"step": i, "env/all/total_episodes": sampled,
            "test/env/all/correct": a}
           for i, (sampled, a) in enumerate([(60, .25), (64, .5)])]
  path = write("".join(json.dumps(line) + "\n" for line in lines), "m.jsonl")
  (tmp_path / "config.json").write_text(json.dumps({
      "model_name": "Qwen/Qwen3-8B", "dataset_builder": {
          "batch_size": 8, "group_size": 8}}))
  rows, notes = read(path)
  # 4 rollouts fewer than 8 x 8 were sampled
  assert curve(rows, "step", "rollouts", "Bp", "n", "model", "eval_set") == [
      (0, 0, 8, 8, "Qwen/Qwen3-8B", "test"),
      (1, 60, 8, 8, "Qwen/Qwen3-8B", "test")]
  assert any("config.json" in note for note in notes)
  (tmp_path / "config.json").write_text(json.dumps({
      "group_size": 8, "groups_per_batch": 8,
      "remove_constant_reward_groups": True}))  # these are not in the count
  assert curve(read(path)[0], "rollouts") == [(0,), (64,)]


def test_nemo_rl_charges_its_dynamic_sampling(write):
  lines = [{"_step": 1, "train/dynamic_sampling_num_gen_batches": 3},
           {"_step": 2, "train/dynamic_sampling_num_gen_batches": 1},
           {"_step": 2, "validation/accuracy": .5}]
  rows, _ = read(write("".join(json.dumps(line) + "\n" for line in lines),
                       "h.jsonl"), fixed={
      "grpo.num_prompts_per_step": 4, "grpo.num_generations_per_prompt": 2,
      "grpo.batch_multiplier": "1.5"})
  assert curve(rows, "step", "avg", "rollouts") == [(2, .5, (3 + 1) * 6 * 2)]


def test_each_column_is_a_run(write):
  path = write("Step,grpo-n4,grpo-n8\n0,0.1,0.2\n10,0.3,\n20,0.5,0.6\n",
               "w.csv")
  with pytest.raises(InputError, match="each column is a run, --from_path"):
    read(path, fixed={"Bp": 2})
  rows, _ = read(path, fixed={"Bp": 2}, from_path=r"n(?P<n>\d+)")
  assert sorted(curve(rows, "run_id", "n", "step", "avg")) == [
      ("grpo-n4", 4, 0, .1), ("grpo-n4", 4, 10, .3), ("grpo-n4", 4, 20, .5),
      ("grpo-n8", 8, 0, .2), ("grpo-n8", 8, 20, .6)]


def test_the_only_metric_of_a_chart_is_read(write):
  path = write('"Step","r-n4 - val/acc","r-n4 - val/acc__MIN"\n0,0.5,0.5\n',
               "chart.csv")
  rows, notes = read(path, fixed={"Bp": 2}, from_path=r"n(?P<n>\d+)")
  assert curve(rows, "n", "avg") == [(4, .5)]
  assert any("only metric" in note and "val/acc" in note for note in notes)


def test_endpoints_at_equal_compute(write):
  """Runs with one evaluation each, and rollouts instead of steps."""
  path = write("name,Bp,n,rollouts,avg\na,8,4,640,.2\nb,8,4,1280,.3\n"
               "c,4,8,640,.25\nd,4,8,1280,.4\n", "e.csv")
  rows, notes = read(path, columns={"run_id": "name"})
  assert curve(rows, "run_id", "step", "rollouts") == [
      ("endpoints-Bp8-n4", 20, 640), ("endpoints-Bp8-n4", 40, 1280),
      ("endpoints-Bp4-n8", 20, 640), ("endpoints-Bp4-n8", 40, 1280)]
  assert any("joined to a curve" in note for note in notes)


@pytest.mark.parametrize("name, kind", [
    ("isojax/records.jsonl", "isojax"), ("verl/gsm8k_grpo.jsonl", "verl"),
    ("verl/console.log", "verl"), ("trl/trainer_state.json", "trl"),
    ("tunix/wandb_history.jsonl", "tunix"), ("table/curves.csv", "table"),
    ("prime-rl/metrics.jsonl", "prime-rl"),
    ("table/wandb_chart.csv", "table"),
    ("logs/tinker_metrics.jsonl", "tinker")])
def test_formats_are_detected(name, kind):
  root = REAL.parent if name.startswith("logs/") else WRITTEN
  lines = parse.load(str(root / name)).lines
  assert formats.detect(list(dict.fromkeys(
      name for _, line in lines for name in line)))[0] == kind
