"""Plans in the option names of other trainers, by the projects' own examples.

None of the trainers is installed: docs/planning.md says how their names were
checked.
"""

import dataclasses
import json
import pathlib

import optax
import pytest
import yaml

from configs import dapo, dr_grpo, hard, ppo
from isojax.core import plan_file
from isojax.core.allocation import allocate
from isojax.errors import InputError
from isojax.planner import conversion, export, launch_script
from isojax.planner.export import Setting, TRAINERS
from isojax.rl import optimizer

HARD = Setting("group_norm", 0.0, prompt=64, response=512, D=90)
EASY = Setting("centered", 0.01, prompt=64, response=512, D=None)
DAPO = HARD._replace(
    loss=dict(clip_low=0.2, clip_high=0.28, aggregation="sample_mean",
              temperature=0.6), uncarried=("recipe.updates.minibatches=4",))


def run(setting, **changes):
  sizes = dict(Bp=32, n=8, C=2560, M=None) | changes  # 10 steps
  row = plan_file.Row(allocate(**sizes), seed=3, lr=1e-6, expected=None)
  return row, setting


VERL = """\
algorithm.adv_estimator=grpo
algorithm.norm_adv_by_std_in_grpo=True
algorithm.use_kl_in_reward=False
data.train_batch_size=32
actor_rollout_ref.rollout.n=8
actor_rollout_ref.actor.ppo_mini_batch_size=32
actor_rollout_ref.actor.ppo_epochs=1
data.max_prompt_length=64
data.max_response_length=512
actor_rollout_ref.actor.use_kl_loss=False
actor_rollout_ref.actor.kl_loss_coef=0.0
actor_rollout_ref.actor.optim.lr=1e-06
actor_rollout_ref.actor.optim.lr_warmup_steps=10
trainer.total_training_steps=10
trainer.total_epochs=5
data.seed=3"""


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_trainer_gets_the_run(trainer):
  """One update of 32 problems x 8 rollouts; 90 problems are 2 whole steps."""
  values = list(export.options(trainer, *run(HARD)).values())
  assert 8 in values and "1e-06" in export.text(trainer, *run(HARD))
  assert {32, 256} & set(values) and {512, 576} & set(values)
  assert 10 in values or 5 in values  # steps, or epochs
  assert (3 in values) == (trainer != "prime-rl")  # the seed
  assert (0.0 in values) == (trainer not in ("prime-rl", "slime"))  # the KL


@pytest.mark.parametrize("devices, Bp, n, expected", [
    (8, 32, 8, (8, 4)), (None, 32, 8, (8, 32)), (8, 4, 6, (1, 3)),
    (16, 32, 4, (8, 1))])
def test_one_update_a_generation_of_trl(devices, Bp, n, expected):
  """Without it 8 processes make 4 updates of a generation of 256."""
  row, setting = run(HARD._replace(devices=devices), Bp=Bp, n=n)
  options = export.options("trl", row, setting)
  at_once, accumulation = (options[name] for name in (
      "per_device_train_batch_size", "gradient_accumulation_steps"))
  assert (at_once, accumulation) == expected
  assert at_once * accumulation * (devices or 1) == (
      options["generation_batch_size"])


def test_devices_that_do_not_share_a_batch_of_trl():
  with pytest.raises(InputError, match="8 devices .* 20 .*--Bp=4 or 6"):
    export.options("trl", *run(HARD._replace(devices=8), Bp=5, n=4))


def test_whose_times_a_priced_plan_has():
  said = lambda trainer: export.text(trainer, *run(HARD._replace(priced=True)))
  assert "NeMo-RL and prime-rl, not on verl, which is slower\n" in said("verl")
  assert "calibrated" not in said("nemo-rl")
  assert "not on trl\n" in said("trl")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_names_of_each_trainer_are_in_the_docs(trainer):
  docs = pathlib.Path("docs/planning.md").read_text("utf-8")
  line, = [line for line in docs.splitlines()
           if line.startswith(f"| {trainer} |")]
  cells = line.replace("`", "").strip("| ").split(" | ")[1:]
  assert cells == [export.names(trainer)[field] if field in export.names(
      trainer) else "–" for field in ("Bp", "n", "B", "M")]


def test_a_run_of_verl():
  assert export.text("verl", *run(HARD)).replace(" \\\n", "\n") == VERL


def test_kl_and_advantages_without_a_deviation():
  """Dr. GRPO with KL; D is not known, so an epoch may be one step."""
  verl = export.options("verl", *run(EASY))
  assert verl["algorithm.norm_adv_by_std_in_grpo"] is False
  assert verl["actor_rollout_ref.actor.kl_loss_coef"] == 0.01
  assert verl["trainer.total_epochs"] == 10
  roll = export.text("roll", *run(EASY))
  assert "norm_std_type: null\n" in roll and "use_kl_loss: true\n" in roll
  text = export.text("openrlhf", *run(EASY))
  assert text.startswith("# it has no limit of steps: stop it after 10\n")
  assert "\n--algo.advantage.estimator dr_grpo \\\n" in text
  assert "--algo.kl.use_loss \\\n--algo.kl.estimator k3 \\\n" in text
  assert "--disable-grpo-std-normalization \\\n" in export.text(
      "slime", *run(EASY))


def test_what_their_config_files_and_commands_refuse():
  """AReaL's examples lack total_train_steps, NeMo-RL's Megatron kwargs."""
  areal = export.text("areal", *run(HARD))
  assert "\n++total_train_steps=10 \\\n" in areal
  assert "\n++train_dataset.max_length=64 \\\n" in areal
  assert export.text("nemo-rl", *run(HARD)).startswith(
      "# Megatron has policy.megatron_cfg.optimizer.lr and policy.megatron_cfg")
  assert export.text("tunix", *run(EASY)).startswith(
      "# its advantage is always divided by the group's deviation\n")


def test_the_loss_of_a_config_where_its_names_are_known():
  verl = export.options("verl", *run(DAPO))
  actor = "actor_rollout_ref.actor."
  assert (verl[actor + "clip_ratio_low"], verl[actor + "clip_ratio_high"],
          verl[actor + "loss_agg_mode"]) == (0.2, 0.28, "seq-mean-token-mean")
  assert verl["actor_rollout_ref.rollout.temperature"] == 0.6
  trl = export.options("trl", *run(DAPO))
  assert (trl["epsilon"], trl["epsilon_high"], trl["loss_type"],
          trl["temperature"]) == (0.2, 0.28, "grpo", 0.6)
  assert "# not carried: recipe.updates.minibatches=4\n" in export.text(
      "trl", *run(DAPO))
  assert ("# not carried: recipe.loss.aggregation='sample_mean', recipe.loss."
          "clip_low=0.2, recipe.loss.clip_high=0.28, sampler.temperature=0.6, "
          "recipe.updates.minibatches=4\n") in export.text("areal", *run(DAPO))
  slime = export.options("slime", *run(DAPO))
  assert (slime["eps-clip"], slime["eps-clip-high"],
          slime["rollout-temperature"]) == (0.2, 0.28, 0.6)
  constant = DAPO._replace(
      loss=DAPO.loss | dict(aggregation="constant_length"))
  text = export.text("verl", *run(constant))
  assert "carried: recipe.loss.aggregation='constant_length', " in text
  assert "loss_agg_mode" not in text
  # One update of a step instead of four: twice the rate of a minibatch.
  whole = export.text("verl", *run(DAPO._replace(lr_factor=2.0)))
  assert "optim.lr=2e-06" in whole


@pytest.mark.parametrize("config, changed, names", [
    (hard, {}, ["loss.importance_cap=2.0"]),
    (dapo, {}, ["updates.minibatches=4", "reward.overlong='all'",
                "filter.rounds=3"]),
    (dr_grpo, dict(kl_coef=0.1, kl_in="reward", kl_estimator="k1"),
     ["loss.importance_cap=2.0", "loss.kl_in='reward'",
      "loss.kl_estimator='k1'"]),
    (ppo, dict(policy_loss="cispo", constants={"cap": 5.0}),
     ["loss.policy_loss='cispo'", "loss.importance_cap=2.0", "updates.epochs=2",
      "updates.minibatches=2"])])
def test_what_of_a_recipe_is_not_carried(config, changed, names):
  recipe = config.get_config().recipe
  recipe.loss.update(changed)
  assert export.uncarried_keys(recipe) == tuple(
      f"recipe.{name}" for name in names)


def test_lengths_that_are_not_known_are_left_out():
  text = export.text("verl", *run(Setting("group_norm", 0.0, None, None, None)))
  assert text.startswith("# no lengths: set them") and "length" not in (
      text.partition("\n")[2])


@pytest.mark.parametrize("setting, more, message", [
    (HARD, dict(m=4), "it has no training on m"),
    (Setting("gae", 0.0, 64, 512, None), {}, "recipe.loss.advantage='gae'")])
def test_what_they_do_not_have_is_refused(setting, more, message):
  with pytest.raises(InputError, match=message):
    export.options("verl", *run(setting, **more))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_options_are_read_as_they_are_written(trainer):
  """Also a bare flag, nested names, and the rate of ROLL in a comment."""
  text = export.text(trainer, *run(EASY._replace(devices=8, D=90)))
  if trainer == "roll":
    text += "\nlearning_rate: 1e-06\nwarmup_steps: 10"
  row, setting, others, _ = read(trainer, text, devices=8, D=90)
  assert (row.allocation, row.lr) == (run(EASY)[0].allocation, 1e-6)
  assert others == []
  said = [x for x in export.text(trainer, row, setting).splitlines()
          if "warmup_steps=10" not in x]
  assert [x for x in text.splitlines() if x in said] == said


def test_a_run_of_verl_in_the_names_of_trl(tmp_path):
  (tmp_path / "train.sh").write_text(
      VERL.replace("\n", " \\\n    ") + " \\\n    "
      "data.train_files=[a.parquet, b.parquet]\n# data.train_batch_size=1 \n")
  said = conversion.convert(f"verl:{tmp_path}/train.sh", "trl", devices=8, D=90)
  assert said.startswith(
      "# Bp = 32, n = 8, M = 10, C = 2,560, lr 1e-06, warm-up 10, seed 3\n"
      "# not carried: data.train_files=[a.parquet, b.parquet]\n# per_device")
  assert "--generation_batch_size 256 \\\n" in said
  assert "--gradient_accumulation_steps 4 \\\n" in said


CALL = ("GRPOConfig(num_generations=8, per_device_train_batch_size=4, "
        "gradient_accumulation_steps=3, learning_rate=2e-6, max_steps=500)")


def test_the_batch_of_trl_follows_from_its_devices():
  said = conversion.convert(f"trl:{CALL}", "verl", devices=8, D=None)
  assert "data.train_batch_size=12 \\\n" in said  # 4 * 3 * 8 / 8
  steps = CALL.replace("num_", "steps_per_generation=3, num_", 1)
  said = conversion.convert(f"trl:{steps}", "verl", devices=8, D=None)
  assert "data.train_batch_size=12 \\\n" in said


def test_what_a_trainer_does_without_an_option():
  other = dict(devices=None, D=None)
  off = VERL.replace("use_kl_loss=False", "").replace("coef=0.0", "coef=0.1")
  row, setting, *_ = read("verl", off, **other)
  assert (setting.kl, setting.advantage) == (0.0, "group_norm")
  text = export.text("prime-rl", row, setting)
  assert read("prime-rl", text, **other)[1].advantage == "centered"


def read(trainer, text, **more):
  return conversion.read(trainer, launch_script.options_of(text), **more)


def converted(trainer, text, target="verl", D=None):
  return conversion.convert(f"{trainer}:{text}", target, devices=8, D=D)


def test_variables_of_a_shell_and_of_yaml():
  script = """
N=8
export STEPS=${STEPS:-500}
BATCH="64"
python train.py data.train_batch_size=$BATCH actor_rollout_ref.rollout.n=${N} \\
  actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size} \\
  actor_rollout_ref.actor.optim.lr=1e-6 trainer.total_training_steps=$STEPS
"""
  said = converted("verl", script, "trl")
  assert said.startswith("# Bp = 64, n = 8, M = 500, C = 256,000, lr 1e-06")


NESTED = """
defaults: base.yaml
batch: {size: 64}
grpo:
  num_prompts_per_step: 32  # Bp
  num_generations_per_prompt: 16
  max_num_steps: 500
policy:
  train_global_batch_size: 512
  tokenizer: {stop: ["</s>", "<end>"]}
  optimizer:
    kwargs: {lr: 5.0e-6}
"""


def test_nested_yaml(tmp_path):
  (tmp_path / "grpo.yaml").write_text(NESTED)
  said = converted("nemo-rl", f"{tmp_path}/grpo.yaml", "trl")
  assert said.startswith("# Bp = 32, n = 16, M = 500, C = 256,000, lr 5e-06")
  assert "# not carried: batch.size=64\n" in said
  assert '# not carried: policy.tokenizer.stop=["</s>", "<end>"]\n' in said
  (tmp_path / "grpo.yaml").write_text(NESTED.replace(
      "num_prompts_per_step: 32", "num_prompts_per_step: ${batch.size}")
      .replace("512", "1024"))
  said = converted("nemo-rl", f"{tmp_path}/grpo.yaml", "trl")
  assert said.startswith("# Bp = 64, n = 16, M = 500,")


def test_options_within_a_text_of_yaml_are_none(tmp_path):
  (tmp_path / "grpo.yaml").write_text(NESTED + (
      "prompt: 'Say \"policy.optimizer.kwargs.lr: 3\" # or not'\n"))
  said = converted("nemo-rl", f"{tmp_path}/grpo.yaml", "trl")
  assert said.startswith("# Bp = 32, n = 16, M = 500, C = 256,000, lr 5e-06")
  assert '# not carried: prompt=Say "policy.optimizer.kwargs.lr: 3" # o' in said


@pytest.mark.parametrize("text", [
    "a: [1, 2", "a: b: c", "\t- x", "? {", "a: &x [*x]", "", "- 1\n- 2"])
def test_a_file_that_is_no_yaml_or_has_no_options(text, tmp_path):
  path = tmp_path / "broken.yml"
  path.write_text(text)
  with pytest.raises(InputError, match="--from="):
    converted("verl", str(path))


def test_defaults_of_a_trainer_are_said_and_nothing_is_added():
  said = converted("trl", CALL.replace("learning_rate=2e-6, ", ""))
  assert "# assumed: learning_rate=1e-06, the default of trl\n" in said
  assert "# assumed: lr_scheduler_type=linear, the default of trl\n" in said
  assert "# assumed: warmup_steps=0, the default of trl\n" in said
  assert "seed" not in said and "lr_warmup_steps=0 \\\n" in said
  assert "# not carried: recipe.optimizer.decay=1\n" in said  # verl has none
  rlhf = converted("openrlhf", "--rollout.batch_size 8 --train.batch_size 32 "
                   "--rollout.n_samples_per_prompt 4 --train.num_episodes 2",
                   D=80)
  assert "# assumed: actor.lr_scheduler=cosine_with_min_lr, the default" in rlhf
  assert "# not carried: actor.lr_scheduler=cosine_with_min_lr\n" in rlhf
  assert "M = 20, C = 640, lr 1e-06, warm-up 1\n" in rlhf  # 3 % of 20


def test_epochs_of_trl():
  """Two epochs of 96 problems in steps of 12."""
  text = CALL.replace("max_steps=500", "num_train_epochs=2")
  assert "M = 16," in converted("trl", text, D=96)


def test_lists_are_named_whole():
  said = converted("trl", "--num_generations 8 --generation_batch_size 64 "
                   "--max_steps 9 --lora_target_modules q_proj v_proj --x 1")
  assert "# not carried: lora_target_modules=q_proj v_proj\n" in said
  said = converted("trl", CALL.replace("max_", "modules=['q', 'v'], max_"))
  assert "# not carried: modules=['q', 'v']\n" in said


LORA = HARD._replace(lora_rank=16, lora_alpha=32.0)


@pytest.mark.parametrize("trainer, decay, options, left", [
    ("trl", 0.3, dict(lr_scheduler_type="warmup_stable_decay", warmup_steps=10,
                      lr_scheduler_kwargs='{"num_decay_steps":3,'
                      '"decay_type":"linear"}'), ""),
    ("trl", 1.0, dict(lr_scheduler_type="linear"), ""),
    ("prime-rl", 0.0, {"trainer.scheduler.type": "constant"},
     "recipe.optimizer.warmup_steps=10"),
    ("slime", 0.3, {"lr-decay-style": "WSD", "lr-wsd-decay-iters": 3}, ""),
    ("openrlhf", 1.0, {"actor.lr_scheduler": "linear",
                       "actor.lr_warmup_ratio": "1"}, ""),
    ("openrlhf", 0.3, {"actor.lr_scheduler": "constant_with_warmup"},
     "recipe.optimizer.decay=0.3"),
    ("skyrl", 1.0, {"trainer.policy.optimizer_config.scheduler": "linear"}, ""),
    ("areal", 1.0, {"actor.optimizer.lr_scheduler_type": "linear"}, ""),
    ("verl", 1.0, {"actor_rollout_ref.actor.optim.lr_warmup_steps": 10},
     "recipe.optimizer.decay=1"),
    ("tunix", 0.3, {f"rl_training_config.actor_optimizer_config.{name}": value
                    for name, value in dict(
                        schedule_type="linear_schedule", end_value="0.0",
                        transition_begin=7, transition_steps=3).items()},
     "recipe.optimizer.warmup_steps=10")])
def test_the_end_of_a_run_in_each_trainer(trainer, decay, options, left):
  """10 steps, of which the last 30 % are 3."""
  row, setting = run(HARD._replace(decay=decay))
  made = export.options(trainer, row, setting)
  assert {name: made[name] for name in options} == options
  text = export.text(trainer, row, setting)
  assert ("# not carried: " + left + "\n" if left else "") in text
  assert left or "not carried" not in text
  if "decay=" not in left and trainer != "areal":
    assert read(trainer, text, devices=None, D=90)[1].decay == (
        pytest.approx(decay))


@pytest.mark.parametrize("decay, steps", [(0.3, 3), (0.9, 8), (1.0, 8)])
def test_prime_rl_falls_after_its_warm_up(decay, steps):
  """Of 10 steps 2 are of the warm-up; a fall that begins before is refused."""
  row, setting = run(HARD._replace(decay=decay, warmup=2))
  made = export.options("prime-rl", row, setting)
  assert made["trainer.scheduler.type"] == "linear"
  assert (made["trainer.scheduler.warmup-steps"],
          made["trainer.scheduler.decay-steps"]) == (2, steps)
  _, again, left, assumed = read(
      "prime-rl", export.text("prime-rl", row, setting), devices=None, D=90)
  assert (again.warmup, again.decay) == (2, 0.3 if steps == 3 else 1.0)
  assert not left and not assumed


@pytest.mark.parametrize("trainer, options, schedule, decay, assumed", [
    # Its classes have 10 and 10; a constant rate has neither.
    ("prime-rl", "orchestrator.batch-size=64 orchestrator.group-size=8 "
     "max-steps=100 trainer.optim.lr=1e-6 trainer.scheduler.type=", "linear",
     0.1, ["trainer.scheduler.warmup_steps=10",
           "trainer.scheduler.decay_steps=10"]),
    ("prime-rl", "orchestrator.batch-size=64 orchestrator.group-size=8 "
     "max-steps=100 trainer.optim.lr=1e-6 trainer.scheduler.type=", "constant",
     0.0, []),
    # Megatron's WSD falls exponentially.
    ("slime", "rollout-batch-size=8 n-samples-per-prompt=8 num-rollout=100 "
     "global-batch-size=64 lr=1e-6 lr-wsd-decay-iters=30 lr-decay-style=",
     "WSD", 0.3, ["lr_wsd_decay_style=exponential"]),
    ("slime", "rollout-batch-size=8 n-samples-per-prompt=8 num-rollout=100 "
     "global-batch-size=64 lr=1e-6 lr-decay-style=", "linear", 1.0, [])])
def test_the_defaults_of_a_schedule(trainer, options, schedule, decay, assumed):
  flags = " ".join(f"--{x}" for x in (options + schedule).split())
  _, setting, left, found = read(trainer, flags, devices=None, D=None)
  assert setting.decay == pytest.approx(decay)
  assert found == [f"{x}, the default of {trainer}" for x in assumed]
  assert left == (["lr_wsd_decay_style=exponential"]
                  if schedule == "WSD" else [])


@pytest.mark.parametrize("trainer, share", [
    ("openrlhf", "actor.lr_warmup_ratio"),
    ("areal", "actor.optimizer.warmup_steps_proportion")])
def test_a_schedule_of_all_epochs(trainer, share):
  """10 steps of 32 of 130 problems: 3 epochs of 4 steps, 12 in all.

  The schedules of OpenRLHF 0.11.2 and AReaL 1.0.4 have no other length.
  """
  row, setting = run(HARD._replace(D=130, warmup=3, decay=1.0))
  text = export.text(trainer, row, setting)
  assert export.options(trainer, row, setting)[share] == "0.25"
  assert "# not carried: recipe.optimizer.decay=1\n" in text
  got = read(trainer, text, devices=None, D=130)
  assert (got[1].warmup, got[1].decay) == (3, 0.0)
  # Without D the epochs are only a bound of the steps.
  row, setting = run(HARD._replace(D=None, warmup=3))
  assert export.options(trainer, row, setting)[share] == "0"
  assert "warmup_steps=3, a share of the steps of all epochs: give --D\n" in (
      export.text(trainer, row, setting))


@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_a_schedule_of_optax_falls_as_a_run_s(decay):
  """Tunix calls the function of optax with the options of its name."""
  row, setting = run(HARD._replace(decay=decay, warmup=0))
  values = {name.rsplit(".", 1)[-1]: value
            for name, value in export.options("tunix", row, setting).items()}
  schedule = getattr(optax.schedules, values["schedule_type"])
  rate = schedule(**{name: float(values[name]) for name in (
      "init_value", "end_value", "transition_begin", "transition_steps")})
  M = row.allocation.M
  assert [float(rate(step)) for step in range(M)] == pytest.approx([
      row.lr * optimizer.decay_factor(step / M, decay) for step in range(M)])


LINEAR = "torch.optim.lr_scheduler.LinearLR"


@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_schedulers_of_torch_give_the_rates_of_a_run(warmup, decay):
  """LinearLR by the formula of torch's documentation.

  With a warm-up the rate of decay = 1 falls from its end, as in transformers.
  """
  row, setting = run(HARD._replace(decay=decay, warmup=warmup))
  M, text = row.allocation.M, export.text("nemo-rl", row, setting)
  [line] = [line for line in text.splitlines() if "policy.scheduler=" in line]
  *parts, ends = yaml.safe_load(line.split("=", 1)[1].strip(" \\").strip("'"))
  assert {part["name"] for part in parts} == {LINEAR}

  def rate(step):
    [milestone] = ends["milestones"]
    begin, kwargs = (milestone, parts[1]["kwargs"]) if step >= milestone else (
        0, parts[0]["kwargs"])
    start, end, total = (kwargs[name] for name in (
        "start_factor", "end_factor", "total_iters"))
    return start + (end - start) * min(total, step - begin) / total

  begin = max(0, warmup - 1) if decay == 1 else 0
  expected = [optimizer.warmup_factor(step, warmup) * (
      optimizer.decay_factor((step - begin) / (M - begin), decay)
      if step >= begin else 1) for step in range(M)]
  assert [rate(step) for step in range(M)] == pytest.approx(expected, abs=1e-5)
  got = read("nemo-rl", text, devices=None, D=90)
  assert got[1].decay == pytest.approx(decay)
  assert got[1].warmup == (warmup if warmup > 1 else 0)  # 1 is none
  assert "not carried" not in text and not got[2]


def schedulers(*parts, milestones):
  return json.dumps([
      *({"name": f"torch.optim.lr_scheduler.{name}", "kwargs": kwargs}
        for name, kwargs in parts), {"milestones": milestones}])


RISE = ("LinearLR", dict(start_factor=0.1, end_factor=1.0, total_iters=13))
LEVEL = ("ConstantLR", dict(factor=1.0, total_iters=10**10))
FALL = ("LinearLR", dict(start_factor=1.0, end_factor=0.0, total_iters=100))


@pytest.mark.parametrize("value, expected", [
    (schedulers(RISE, LEVEL, milestones=[13]), (14, 0.0)),  # grpo_math_8B.yaml
    (schedulers(RISE, LEVEL, FALL, milestones=[13, 400]), (14, 0.2)),
    (schedulers(RISE, LEVEL, FALL, milestones=[13, 300]), None),  # ends at 400
    (schedulers(LEVEL, RISE, milestones=[13]), None),
    (schedulers(RISE, LEVEL, milestones=[]), None),
    (schedulers(("CosineAnnealingLR", dict(T_max=500)), milestones=[]), None),
    ("{name: LinearLR}", None), ("[", None), ("${a}", None), ("3", None)])
def test_schedulers_of_a_yaml_file_of_nemo_rl(value, expected, tmp_path):
  """500 steps; another list is named as not carried."""
  path = tmp_path / "grpo.yaml"
  path.write_text(NESTED + f"  scheduler: {json.dumps(value)}\n")
  _, setting, ignored, _ = conversion.read(
      "nemo-rl", launch_script.options_in(str(path)), devices=None, D=None)
  assert (setting.warmup, setting.decay) == (expected or (0, 0.0))
  assert (f"policy.scheduler={value}" in ignored) == (expected is None)


@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_a_warmup_of_nemo_rl_that_fills_the_run(decay):
  """10 steps: the rate never falls."""
  text = export.text("nemo-rl", *run(HARD._replace(decay=decay, warmup=17)))
  _, setting, ignored, _ = read("nemo-rl", text, devices=None, D=90)
  assert (setting.warmup, setting.decay, ignored) == (17, 0.0, [])


def test_a_row_has_its_own_decay():
  """The trunk of a decayed sweep is constant."""
  row, setting = run(HARD._replace(decay=1.0))
  trunk = dataclasses.replace(
      row, settings={"recipe": {"optimizer": {"decay": 0.0}}})
  assert export.options("trl", trunk, setting)["lr_scheduler_type"] == (
      "constant_with_warmup")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_adapters_in_each_trainer(trainer):
  text = export.text(trainer, *run(LORA))
  if trainer in ("roll", "openrlhf", "slime"):
    assert "model.lora.rank=16" in text.split("# not carried: ")[1]
    return
  values = export.options(trainer, *run(LORA)).values()
  assert 16 in values and 32.0 in values
  row, setting, ignored, _ = read(trainer, text, devices=None, D=90)
  assert (setting.lora_rank, setting.lora_alpha, ignored) == (16, 32.0, [])
  some = export.text(trainer, *run(LORA._replace(lora_targets=("q", "v"))))
  assert "model.lora.targets=q,v" in some


def test_an_average_is_not_carried():
  text = export.text("openrlhf", *run(HARD._replace(average=8.0)))
  assert "# --train.enable_ema saves an exponential average" in text
  assert "# not carried: recipe.optimizer.average=8\n" in text


@pytest.mark.parametrize("source, message", [
    ("vel:x", "expected TRAINER:FILE or TRAINER:OPTIONS, with one of areal"),
    ("trl:", "expected TRAINER:FILE"),
    (f"trl:{CALL.replace('=8', '=1')}", "n = 1: a group of one rollout has no"),
    (f"trl:{CALL.replace('=8', '=5')}", "96 rollouts are not whole groups of "
     "n = 5; take n = 4 or 6"),
    ("verl:actor_rollout_ref.rollout.n=8", "no data.train_batch_size or .*, no "
     "trainer.total_training_steps or trainer.total_epochs in the options"),
    ("verl:train.sh", "verl:train.sh: no such file"),
    (f"trl:{CALL.replace('500', 'inf')}", "inf, for M, .*: expected one"),
    (f"trl:{CALL.replace('500', '$STEPS')}", ".STEPS, for M, as it "
     "is in this text: expected one number from 0 on, written out"),
    (f"trl:{CALL.replace('max_', 'num_iterations=2, max_')}",
     "num_iterations=2: several updates a step are not written"),
    (f"trl:{CALL.replace('max_', 'steps_per_generation=6, max_')}",
     "steps_per_generation=6 with gradient_accumulation_steps=3: several up"),
    (f"trl:{CALL.replace('max_', 'generation_batch_size=192, max_')}",
     "generation_batch_size=192 with updates of 96 rollouts"),
    ("verl:" + VERL.replace("mini_batch_size=32", "mini_batch_size=16"),
     "ppo_mini_batch_size=16 with data.train_batch_size=32: several updates"),
    ("slime:--rollout-batch-size 32 --n-samples-per-prompt 8 "
     "--global-batch-size 128 --lr 1e-6 --num-rollout 9",
     "128 rollouts an update of 32 . 8 a step"),
    (f"trl:{CALL.replace('500', 'all')}", "all, for M, .*: expected one")])
def test_options_that_make_no_run(source, message):
  with pytest.raises(InputError, match=message):
    conversion.convert(source, "verl", devices=8, D=None)
