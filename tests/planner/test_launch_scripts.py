"""Launch scripts and config files of other trainers, read by --from.

They are written for these tests, in the manner of the trainers' own examples.
"""

import random

import pytest

from isojax.core import plan_file
from isojax.core.allocation import allocate
from isojax.errors import InputError
from isojax.planner import conversion, export, launch_script

VERL = """
BS=${TRAIN_BSZ:-64}
max_response_length=$((1024 * 8))
clip_low=0.2; clip_high=0.28
: "${NUM_GPUS:=8}"
ray job submit --no-wait -- python3 -m recipe.main_dapo \\
    data.train_batch_size=$BS \\
    `# data.train_batch_size=1` \\
    data.max_prompt_length=$((max_response_length / 4)) \\
    data.max_response_length=${max_response_length} \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.rollout.n=${1:-16} \\
    actor_rollout_ref.rollout.temperature=0.9 \\
    actor_rollout_ref.actor.clip_ratio_low=${clip_low} \\
    actor_rollout_ref.actor.clip_ratio_high=${clip_high} \\
    actor_rollout_ref.actor.ppo_mini_batch_size=${BS} \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.optim.lr=${LR:=1e-6} \\
    actor_rollout_ref.actor.optim.lr_warmup_steps=-1 \\
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \\
    +actor_rollout_ref.actor.optim.foo=3 \\
    trainer.n_gpus_per_node=$NUM_GPUS \\
    trainer.total_training_steps=$((10 * 20)) "$@"
"""
VERL_YAML = """
sizes: &size 128
data: {train_batch_size: *size, seed: null}
algorithm: {adv_estimator: grpo}
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: ${data.train_batch_size}
    optim: {lr: 1e-6, lr_warmup_steps: null}
    clip_ratio_low: 0.1
    clip_ratio_high: ${.clip_ratio_low}
  rollout: {n: 8, val_kwargs: {n: 16}}
trainer: {total_epochs: 3, total_training_steps: null}
"""
TRL_YAML = """
num_processes: 7
gradient_accumulation_steps: 16
learning_rate: 2.0e-05
lr_scheduler_type: constant_with_warmup
max_completion_length: 1024
max_steps: -1
num_generations: 7
num_train_epochs: 1
per_device_train_batch_size: 16
warmup_ratio: 0.1
"""
TRL_PYTHON = """
NUM_GEN = 8
args = GRPOConfig(
    learning_rate=1e-6,  # the rate
    num_generations=NUM_GEN, per_device_train_batch_size=8,
    gradient_accumulation_steps=4, max_steps=200, scale_rewards=False,
    epsilon_high=0.28)
"""
TRL = ("accelerate launch --num_processes 4 train.py --learning_rate 1e-6 "
       "--max_steps=300 --per_device_train_batch_size 8")
RLHF = """
read -r -d '' commands <<EOF
openrlhf.cli.train_ppo_ray \\
   --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 --max_epochs 1 \\
   --train_batch_size 1024 --rollout_batch_size 128 --n_samples_per_prompt 8 \\
   --num_episodes 2 --prompt_max_len 1024 --generate_max_len 2048 \\
   --actor_learning_rate 5e-7 --lr_warmup_ratio 0.05 --lr_scheduler linear
EOF
deepspeed --module $commands
"""
ROLL = """
max_steps: 1000
rollout_batch_size: 64
num_return_sequences_in_group: 8
ppo_epochs: 1
norm_std_type: null
actor_train:
  training_args: {learning_rate: 2.0e-6, per_device_train_batch_size: 1,
    gradient_accumulation_steps: 32, warmup_steps: 20, num_train_epochs: 3}
"""
SLIME = """
ROLLOUT_ARGS=(
   --num-rollout 3000
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-temperature 0.8

   --global-batch-size 256
)
ARGS=(
   --eps-clip-high 0.28 --kl-loss-coef 0.01
   --lr 1e-6
   # --lr 5e-6
)
CUDA_VISIBLE_DEVICES=0 python3 train.py ${ROLLOUT_ARGS[@]} ${ARGS[@]}
"""
SKYRL = """
: "${BS:=256}"
uv run --isolated -m skyrl.train.entrypoints.main_base \\
  trainer.epochs=20 trainer.train_batch_size=$BS \\
  trainer.policy_mini_batch_size=$BS trainer.max_training_steps=null \\
  trainer.policy.optimizer_config.lr=1.0e-6 generator.n_samples_per_prompt=5 $@
"""
PRIME = """
max_steps = 5000
[orchestrator]
batch_size = 128
group_size = 8
[orchestrator.train.sampling]
max_completion_tokens = 2048
[trainer.optim]
lr = 3e-6
"""
AREAL = """
gconfig: {n_samples: 4}
actor:
  optimizer: {lr: 1e-5}
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  reward_norm: {std_level: group, group_size: "${gconfig.n_samples}"}
train_dataset: {batch_size: 256}
total_train_epochs: 2
"""
TUNIX = """
batch_size="${batch_size:-8}"
python3 -m tunix.cli.grpo_main base.yaml batch_size=$batch_size \\
  rl_training_config.actor_optimizer_config.learning_rate=3e-6 \\
  grpo_config.num_generations=2 rl_training_config.max_steps=100
"""
NEMO = """
uv run python run_grpo.py --config grpo.yaml grpo.num_prompts_per_step=64 \\
  grpo.num_generations_per_prompt=32 policy.train_global_batch_size=2048 \\
  policy.optimizer.kwargs.lr=3e-7 grpo.max_num_steps=1000000 \\
  grpo.max_num_epochs=1 ++loss_fn.ratio_clip_max=0.28 cluster.num_nodes=4
"""


@pytest.mark.parametrize("trainer, suffix, text, head, target, parts, absent", [
    ("verl", "sh", VERL, "Bp = 64, n = 16, M = 200, C = 204,800, lr 1e-06, "
     "warm-up 10\n", "trl", [
         "# assumed: actor_rollout_ref.actor.kl_loss_coef=0.001, the default",
         "# not carried: actor_rollout_ref.actor.optim.foo=3\n",
         "--beta 0.001 ", "--epsilon 0.2 ", "--epsilon_high 0.28 ",
         "--temperature 0.9 ", "--max_completion_length 8192 "],
     ["BS=", "TRAIN_BSZ", "clip_low", "lr_warmup"]),
    ("verl", "yaml", VERL_YAML, "Bp = 128, n = 8, M = 180, C = 184,320, lr 1e-0"
     "6, warm-up 0\n", "trl", ["--epsilon 0.1 ", "--epsilon_high 0.1 ",
                               "--beta 0.0 ", "constant_with_warmup",
                               "# not carried: actor_rollout_ref.rollout.val_k"
                               "wargs.n=16\n"], ["null", "seed", "kl_loss"]),
    ("verl", "sh", VERL.replace("algorithm.adv_estimator=grpo", ""), "Bp = 64,",
     "trl", ["# assumed: algorithm.adv_estimator=gae, the default of verl\n",
             "# not carried: algorithm.adv_estimator=gae\n"], []),
    # 16 * 16 * 7 = 1,792 rollouts are 256 problems; 7,680 are 30 steps.
    ("trl", "yaml", TRL_YAML, "Bp = 256, n = 7, M = 30, C = 53,760, lr 2e-05, "
     "warm-up 3\n", "verl", ["data.train_batch_size=256 "], ["warmup_ratio"]),
    ("trl", "py", TRL_PYTHON, "Bp = 32, n = 8, M = 200,", "verl", [
        "norm_adv_by_std_in_grpo=False ", "clip_ratio_low=0.2 ",
        "clip_ratio_high=0.28 "], []),
    ("trl", "sh", TRL, "Bp = 4, n = 8, M = 300,", "verl", [
        "# assumed: num_generations=8, the default of trl\n",
        "# not carried: recipe.optimizer.decay=1\n"], ["num_processes"]),
    ("trl", "sh", TRL + " --epsilon 0.1", "Bp = 4,", "verl", [
        "clip_ratio_low=0.1 ", "clip_ratio_high=0.1 "], []),
    # transformers' constant rate has no warm-up.
    ("trl", "sh", TRL + " --lr_scheduler_type constant --warmup_ratio .1 "
     "--num_train_epochs 2 --gpu-ids 0,1\nif [ $X ]; then\n  A=1; fi",
     "Bp = 4, n = 8, M = 300, C = 9,600, lr 1e-06, warm-up 0\n", "verl", [
         "# not carried: gpu_ids=0,1\n", "# not carried: if=[ $X ]\n"],
     ["scheduler", "train_epochs", "not carried: lr"]),
    ("trl", "py", "rate = 1e-6\n" + TRL_PYTHON.replace(
        "rate=1e-6", "rate=rate") + 'a.add_argument("--max_steps")',
     "Bp = 32, n = 8, M = 200,", "verl", [],
     ["rate=1e-6\n"]),
    ("openrlhf", "sh", RLHF, "Bp = 128, n = 8, M = 120, C = 122,880, lr 5e-07, "
     "warm-up 6\n", "trl", ["--beta 0.001 ", "--lr_scheduler_type linear ",
                            "--max_completion_length 2048 "], ["assumed"]),
    ("openrlhf", "sh", RLHF.replace("--use_kl_loss ", ""), "Bp = 128,", "trl",
     ["--beta 0.0 ", "# not carried: algo.kl.init_coef=1e-3\n"], []),
    ("roll", "yaml", ROLL, "Bp = 64, n = 8, M = 1,000, C = 512,000, lr 2e-06, "
     "warm-up 20\n", "verl", [
         "# assumed: one update a step: 1 x 32 x devices = 512 rollouts\n",
         "norm_adv_by_std_in_grpo=False "],
     ["not carried: learning_rate", "carried: recipe"]),
    ("slime", "sh", SLIME, "Bp = 32, n = 8, M = 3,000, C = 768,000, lr 1e-06, ",
     "trl", ["--epsilon 0.2 ", "--epsilon_high 0.28 ", "--temperature 0.8 ",
             "--beta 0.0 ", "# not carried: kl_loss_coef=0.01\n",
             "# assumed: lr_decay_style=linear, the default of slime\n"],
     ["ARGS=", "CUDA"]),
    ("slime", "sh", SLIME + " --num-steps-per-rollout 1", "Bp = 32,", "trl", [],
     ["steps_per_rollout"]),
    ("skyrl", "sh", SKYRL, "Bp = 256, n = 5, M = 600, C = 768,000, lr 1e-06, ",
     "trl", ["--beta 0.001 ", "# assumed: trainer.algorithm.use_kl_loss=True"],
     ["BS="]),
    ("prime-rl", "toml", PRIME, "Bp = 16, n = 8, M = 5,000, C = 640,000, lr 3e-"
     "06, ", "trl", ["--max_completion_length 2048 "], []),
    ("areal", "yaml", AREAL, "Bp = 256, n = 4, M = 60, C = 61,440, lr 1e-05, ",
     "trl", ["--beta 0.0 "], []),
    ("tunix", "sh", TUNIX, "Bp = 8, n = 2, M = 100, C = 1,600, lr 3e-06, ",
     "trl", [], []),
    # The problems end before the steps.
    ("nemo-rl", "sh", NEMO, "Bp = 64, n = 32, M = 120,", "verl",
     ["clip_ratio_low=0.2 ", "clip_ratio_high=0.28 "], []),
])
def test_a_launch_script(trainer, suffix, text, head, target, parts, absent,
                         tmp_path):
  path = tmp_path / f"train.{suffix}"
  path.write_text(text)
  said = conversion.convert(f"{trainer}:{path}", target, devices=8, D=7680)
  assert said.startswith(f"# {head}"), said
  for part in parts:
    assert part in said, (part, said)
  for part in absent:
    assert part not in said, (part, said)


MINI = ("python3 main_ppo.py data.train_batch_size=1024 trainer.total_training_"
        "steps=9 actor_rollout_ref.rollout.n=5")


@pytest.mark.parametrize("trainer, suffix, text, message", [
    ("verl", "sh", MINI, "ppo_mini_batch_size=256 with data.train_batch_size="
     "1024: several updates .*_size=256 is a default of verl"),
    ("skyrl", "sh", SKYRL.replace("mini_batch_size=$BS", "mini_batch_size=64"),
     "policy_mini_batch_size=64 with trainer.train_batch_size=256: several"),
    ("areal", "yaml", AREAL.replace("  ppo_n_minibatches: 1\n", ""),
     "ppo_n_minibatches=4: several updates .* is a default of areal"),
    ("slime", "sh", SLIME.replace("--global-batch-size 256",
                                  "--num-steps-per-rollout 4"),
     "num_steps_per_rollout=4: several updates"),
    ("verl", "sh", VERL + VERL.replace("algorithm", "data.train_batch_size=32 "
                                       "algorithm"),
     "data.train_batch_size=64 or 32: several updates"),
    ("verl", "sh", f"for LR in 1e-6 2e-6; do\n{VERL}\ndone".replace(
        "{LR:=1e-6}", "LR"), ".LR, for lr, as it is in this text: expec"),
    ("verl", "sh", VERL.replace("=1e-6}", "=1e-6} \\\n  actor_rollout_ref.actor"
                                ".optim.lr=2e-6"),
     "1e-6 or 2e-6, for lr, as it"),
    ("tunix", "sh", TUNIX.replace("=100", '=$(printf "%.0f" "$STEPS")'),
     r".\(printf .*, for M, as it is"),
    ("trl", "sh", TRL.replace("300", "$((1 / 0))"), r"\(1 / 0\)\), for M, as"),
    ("prime-rl", "toml", PRIME + "[", "no toml: "),
    ("trl", "py", TRL_PYTHON.replace("size=8", "size=2 * 4"),
     r"2 \* 4, for per_device, as it is"),
    ("trl", "py", TRL_PYTHON.replace("1e-6,", "1e-6 if big else 2e-6,"),
     "1e-6 if big else 2e, for lr, as it is"),
    ("trl", "py", TRL_PYTHON.replace("1e-6,", "-1e-6,"), "-1e-6, for lr, .*: "
     "expected one number from 0"),
    ("prime-rl", "toml", PRIME.replace("group_size = 8", ""),
     "no orchestrator.group-size in the options"),
    ("trl", "sh", TRL + " --max_prompt_length 9 --num_generations 3",
     "32 rollouts are not whole groups"),
])
def test_a_launch_script_that_is_refused(trainer, suffix, text, message,
                                         tmp_path):
  path = tmp_path / f"train.{suffix}"
  path.write_text(text)
  with pytest.raises(InputError, match=message):
    conversion.convert(f"{trainer}:{path}", "trl", devices=8, D=7680)


@pytest.mark.parametrize("text, option", [
    ("A0=xxxxxxxxxx\n" + "".join(f"A{i + 1}=$A{i}$A{i}\n" for i in range(60))
     + "lr=$A60", "lr"),  # 2 ** 60 times as long
    ("x=1," + "a" * 100_000 + "==", "x"),
    ("n=2\nif x" + ";" * 100_000 + "y", "n"),
    ('bash -c "train.py --kl 0.01 --use-kl-loss"', "use_kl_loss"),
    ("lr=${lr:=$((1if))} a=${a}", "lr"), ("n=$((3j + 'a'))", "n"),
    ("n=" + "$((" * 500, "n"), ("x=" + "aa=" * 3000 + "!", "x")])
def test_a_hostile_text_has_options(text, option):
  assert option in launch_script.options_of(text)


def random_run(trainer: str, rng: random.Random):
  """A run that the options of a trainer can say, with the setting of it."""
  Bp, n = rng.choice([4, 32, 96]), rng.choice([2, 6, 64])
  M = rng.randint(20, 999)
  D = rng.choice([None, 300, 5000])
  decay = rng.choice([0.0, 1.0])
  warmup = rng.choice([0, 10, 17])
  if export.TRAINERS[trainer].by_epochs:  # a schedule of whole epochs
    D = Bp * 40
    M = 40 * rng.randint(1, 9)
  if export.TRAINERS[trainer].schedules[export.schedule_of(decay)] is None:
    decay = 0.0
  if not export.TRAINERS[trainer].warmup:
    warmup = 0
  loss = {name: value for name, value in dict(
      clip_low=0.2, clip_high=0.28, temperature=0.7).items()
          if f"{{{name}}}" in export.TRAINERS[trainer].options}
  if names := export.AGGREGATIONS.get(trainer):
    loss["aggregation"] = rng.choice([*names])
  one = {"prime-rl": "centered", "tunix": "group_norm"}  # their notes say so
  prompt, response = rng.choice([(64, 512), (1024, 8192)])
  return (plan_file.Row(
      allocate(Bp=Bp, n=n, M=M, C=Bp * n * M), expected=None,
      seed=0 if trainer == "prime-rl" else rng.randint(0, 99),
      lr=rng.choice([1e-6, 3.33e-7, 2.5e-5])), export.Setting(
          one.get(trainer) or rng.choice([*export.DIVIDES_BY_STD]),
          0.0 if trainer == "prime-rl" else rng.choice([0.0, 1e-3, 0.04]),
          None if trainer == "trl" else prompt, response, D,
          loss=rng.choice([{}, loss]), devices=rng.choice([None, 8]),
          warmup=warmup, decay=decay, has_seed=trainer != "prime-rl",
          lora_rank=rng.choice([0, 16 * bool(export.TRAINERS[trainer].lora)])))


@pytest.mark.parametrize("schedule, lr, decay, left", [
    ("linear_schedule, init_value: 1e-6, end_value: 0, transition_steps: 30,"
     " transition_begin: 70", 1e-6, 0.3, []),
    # It does not end at 0, or not with the run: no decay, at the given rate.
    ("linear_schedule, init_value: 0, end_value: 1e-5, transition_steps: 100",
     1e-5, 0.0, ["schedule_type", "init_value", "end_value",
                 "transition_steps"]),
    ("linear_schedule, init_value: 1e-6, end_value: 0, transition_steps: 30",
     1e-5, 0.0, ["schedule_type", "init_value", "end_value",
                 "transition_steps"]),
    ("warmup_cosine_decay_schedule, init_value: 1e-7", 1e-5, 0.0,
     ["schedule_type", "init_value"])])
def test_a_schedule_of_tunix(schedule, lr, decay, left, tmp_path):
  path = tmp_path / "run.yaml"
  path.write_text(
      "batch_size: 8\ngrpo_config: {num_generations: 2}\nrl_training_config:\n"
      "  max_steps: 100\n  actor_optimizer_config: {learning_rate: 1e-5, "
      f"schedule_type: {schedule}}}\n")
  row, setting, ignored, _ = conversion.read(
      "tunix", launch_script.options_in(str(path)), devices=None, D=None)
  assert (row.lr, setting.decay) == (lr, pytest.approx(decay))
  assert [name.partition("=")[0].rpartition(".")[2] for name in ignored] == left


@pytest.mark.parametrize("trainer", export.TRAINERS)
def test_what_is_exported_is_read_as_it_was(trainer):
  rng = random.Random(trainer)
  for _ in range(30):
    row, setting = random_run(trainer, rng)
    text = export.text(trainer, row, setting)
    if trainer == "roll":  # its note has these
      note = text.partition("\n")[0].replace(", ", "\n")
      text += "\n" + note.partition("training_args: ")[2].partition(";")[0]
    read, got, ignored, _ = conversion.read(
        trainer, launch_script.options_of(text), devices=setting.devices,
        D=setting.D)
    assert (read.allocation, read.seed, read.lr) == (
        row.allocation, row.seed, row.lr), text
    assert got == setting, text
    assert not ignored
