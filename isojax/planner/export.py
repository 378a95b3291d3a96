"""Writes a run in the option names of other trainers.

The options of TRAINERS make a GRPO run with one update a step, as isojax's is
by default, whatever the trainer's own defaults are. They were checked against
the trainers' code at Trainer.checked: docs/planning.md says how.
"""

import math
import operator
import re
import typing

from isojax.core import plan_file
from isojax.core.allocation import Allocation
from isojax.errors import InputError

CALIBRATED_ON = ("nemo-rl", "prime-rl")  # planner/cost.py fits their times
MOST_PER_DEVICE = 8  # rollouts of a microbatch: the default of TRL
# Advantage -> whether it divides by the group's deviation.
DIVIDES_BY_STD = {"group_norm": True, "centered": False}
EASY_KL = 1e-3  # KL coefficient on easy problems without a config; verl's
# recipe.loss.aggregation -> the trainer's name of that mean. The divisor of
# verl's mode for constant_length has changed, so that mode is not written.
AGGREGATIONS = {
    "trl": {"token_mean": "dapo", "sample_mean": "grpo"},
    "verl": {"token_mean": "token-mean", "sample_mean": "seq-mean-token-mean",
             "sample_sum": "seq-mean-token-sum"}}
# The recipe that the options make. If a config has another value, a comment of
# the output names it.
EXPORTED_RECIPE = {
    "loss.policy_loss": "ppo_clip", "loss.ratio": "token",
    "loss.ratio_to": "old", "loss.zero_variance": "off",
    "loss.importance_cap": None, "loss.kl_in": "loss",
    "loss.kl_estimator": "k3", "loss.entropy_coef": 0.0, "updates.epochs": 1,
    "updates.minibatches": 1, "updates.in_flight": 0, "reward.incorrect": 0.0,
    "reward.overlong": "off", "filter.rounds": 1, "filter.solved_rate": None,
    "optimizer.warmup_steps": 10}


class Setting(typing.NamedTuple):
  """What a plan's runs have in common."""

  advantage: str  # of isojax.rl.advantages
  kl: float  # coefficient of the KL to the base policy in the loss
  prompt: int | None  # most tokens; None: not known, as below
  response: int | None
  D: int | None  # training problems
  # A config's clip_low, clip_high, aggregation, and temperature of training
  # rollouts. Only the trainers in AGGREGATIONS have options for them.
  loss: dict = {}
  uncarried: tuple[str, ...] = ()  # see uncarried_keys
  # The options make one update a step. If the config's rate is that of a
  # minibatch, the rate of a step is larger by this factor.
  lr_factor: float = 1.0
  devices: int | None = None  # of the machine; None: not known
  priced: bool = False  # the plan predicts times

  def lr(self, row: plan_file.Row) -> str:
    return f"{row.lr * self.lr_factor:.4g}"


def uncarried_keys(recipe) -> tuple[str, ...]:
  """KEY=VALUE of the config's recipe that differ from EXPORTED_RECIPE."""
  values = {name: operator.attrgetter(name)(recipe) for name in EXPORTED_RECIPE}
  if not recipe.loss.kl_coef:
    values |= {name: EXPORTED_RECIPE[name]
               for name in ("loss.kl_in", "loss.kl_estimator")}
  return tuple(f"recipe.{name}={value!r}" for name, value in values.items()
               if value != EXPORTED_RECIPE[name])


class Trainer(typing.NamedTuple):
  """The options of a trainer, as templates."""

  style: str  # HYDRA, FLAG or YAML
  checked: str  # release or commit that the options were checked against
  options: str  # NAME=VALUE, or NAME={FIELD} with a field of options() below
  # The values of {std} if advantages are divided by the group's deviation, and
  # if not; an option whose value is None is left out.
  std: tuple[object, object] = (True, False)
  with_kl: str = ""  # further options, if there is a KL
  note: str = ""  # what options cannot say; {B}, {M}, {lr}, {processes}


HYDRA, FLAG, YAML = "{}={}", "--{} {}", "{}: {}"
TRAINERS = {
    # Hydra needs ++ before a key that the config file lacks, such as
    # total_train_steps in AReaL's examples.
    "areal": Trainer(HYDRA, "1.0.4", """
        actor.reward_norm.mean_level=group actor.reward_norm.std_level={std}
        actor.reward_norm.group_size={n} actor.adv_norm=null
        train_dataset.batch_size={Bp} gconfig.n_samples={n}
        actor.ppo_n_minibatches=1 rollout.max_head_offpolicyness=0
        ++train_dataset.max_length={prompt} gconfig.max_new_tokens={response}
        actor.kl_ctl={kl} actor.optimizer.lr={lr}
        actor.optimizer.lr_scheduler_type=constant ++total_train_steps={M}
        total_train_epochs={epochs} seed={seed}""",
        std=("group", "null"), note="its KL is in the reward"),
    "nemo-rl": Trainer(HYDRA, "7ea279abf", """
        grpo.adv_estimator.name=grpo grpo.normalize_rewards={std}
        grpo.use_leave_one_out_baseline=False grpo.num_prompts_per_step={Bp}
        grpo.num_generations_per_prompt={n} policy.train_global_batch_size={B}
        policy.max_total_sequence_length={total}
        policy.generation.max_new_tokens={response}
        loss_fn.reference_policy_kl_penalty={kl} policy.optimizer.kwargs.lr={lr}
        grpo.max_num_steps={M} grpo.max_num_epochs={epochs} grpo.seed={seed}""",
        note="with Megatron, policy.optimizer.kwargs.lr is "
        "policy.megatron_cfg.optimizer.lr"),
    "openrlhf": Trainer(FLAG, "0.11.2", """
        algo.advantage.estimator={std} rollout.batch_size={Bp}
        rollout.n_samples_per_prompt={n} train.batch_size={B} train.max_epochs=1
        data.max_len={total} rollout.max_new_tokens={response}
        algo.kl.init_coef={kl} {with_kl} actor.adam.lr={lr}
        actor.lr_scheduler=constant_with_warmup train.num_episodes={epochs}
        train.seed={seed}""", std=("group_norm", "dr_grpo"),
        with_kl="algo.kl.use_loss={on} algo.kl.estimator=k3",
        note="it has no limit of steps: stop it after {M}"),
    "prime-rl": Trainer(FLAG, "559b44772", """
        orchestrator.algo.type=grpo orchestrator.batch-size={B}
        orchestrator.group-size={n} seq-len={total}
        orchestrator.train.sampling.max-completion-tokens={response}
        trainer.optim.lr={lr} trainer.scheduler.type=constant max-steps={M}""",
        note="its advantage is not divided by the group's deviation, and it "
        "has no KL to the base policy and no seed"),
    # ROLL's "grpo" always divides by the deviation of the group.
    "roll": Trainer(YAML, "8eb27cc2", """
        adv_estimator={estimator} norm_mean_type=group norm_std_type={std}
        whiten_advantages=false rollout_batch_size={Bp}
        num_return_sequences_in_group={n} ppo_epochs=1 prompt_length={prompt}
        response_length={response} use_kl_loss={use_kl} kl_loss_coef={kl}
        add_token_level_kl=false max_steps={M} seed={seed}""",
        std=("group", "null"),
        note="in actor_train.training_args: learning_rate: {lr}, "
        "lr_scheduler_type: constant_with_warmup, warmup_steps: 10; "
        "per_device_train_batch_size x gradient_accumulation_steps x devices = "
        "{B} makes one update a step"),
    "skyrl": Trainer(HYDRA, "0.3.0", """
        trainer.algorithm.advantage_estimator=grpo
        trainer.algorithm.grpo_norm_by_std={std} trainer.train_batch_size={Bp}
        trainer.policy_mini_batch_size={Bp} trainer.update_epochs_per_batch=1
        generator.n_samples_per_prompt={n} trainer.max_prompt_length={prompt}
        generator.sampling_params.max_generate_length={response}
        trainer.algorithm.use_kl_loss={use_kl}
        trainer.algorithm.kl_loss_coef={kl}
        trainer.policy.optimizer_config.lr={lr}
        trainer.policy.optimizer_config.num_warmup_steps=10
        trainer.max_training_steps={M} trainer.epochs={epochs}
        trainer.seed={seed}"""),
    "slime": Trainer(FLAG, "624b824a8", """
        advantage-estimator=grpo disable-grpo-std-normalization={std}
        rollout-batch-size={Bp} n-samples-per-prompt={n} global-batch-size={B}
        rollout-max-prompt-len={prompt} rollout-max-response-len={response}
        {with_kl} lr={lr} lr-decay-style=constant lr-warmup-iters=10
        num-rollout={M} seed={seed} rollout-seed={seed}""", std=(None, True),
        with_kl="use-kl-loss={on} kl-loss-coef={kl} kl-loss-type=low_var_kl"),
    "trl": Trainer(FLAG, "1.16.0", """
        num_generations={n} generation_batch_size={B}
        per_device_train_batch_size={per_device}
        gradient_accumulation_steps={accumulation} num_iterations=1
        scale_rewards={std} beta={kl} epsilon={clip_low}
        epsilon_high={clip_high} loss_type={aggregation}
        temperature={temperature} max_completion_length={response}
        learning_rate={lr} lr_scheduler_type=constant_with_warmup
        warmup_steps=10 max_steps={M} seed={seed}""", std=("group", "none"),
        note="per_device_train_batch_size x processes x "
        "gradient_accumulation_steps = {B} makes one update a step; these "
        "options are for {processes}"),
    "tunix": Trainer(HYDRA, "0.1.7", """
        batch_size={Bp} rl_training_config.mini_batch_size={Bp}
        grpo_config.num_generations={n} grpo_config.num_iterations=1
        grpo_config.beta={kl} rollout_config.max_prompt_length={prompt}
        rollout_config.total_generation_steps={response}
      rl_training_config.actor_optimizer_config.schedule_type=constant_schedule
        rl_training_config.actor_optimizer_config.value={lr}
        rl_training_config.max_steps={M} num_train_epochs={epochs}
        model_config.rng_seed={seed}""",
        note="its advantage is always divided by the group's deviation"),
    # verl's default estimator is gae. It multiplies ppo_mini_batch_size by n.
    "verl": Trainer(HYDRA, "0.9.1", """
        algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo={std}
        algorithm.use_kl_in_reward=False data.train_batch_size={Bp}
        actor_rollout_ref.rollout.n={n}
        actor_rollout_ref.actor.ppo_mini_batch_size={Bp}
        actor_rollout_ref.actor.ppo_epochs=1 data.max_prompt_length={prompt}
        data.max_response_length={response}
        actor_rollout_ref.actor.use_kl_loss={use_kl}
        actor_rollout_ref.actor.kl_loss_coef={kl}
        actor_rollout_ref.actor.clip_ratio_low={clip_low}
        actor_rollout_ref.actor.clip_ratio_high={clip_high}
        actor_rollout_ref.actor.loss_agg_mode={aggregation}
        actor_rollout_ref.rollout.temperature={temperature}
        actor_rollout_ref.actor.optim.lr={lr}
        actor_rollout_ref.actor.optim.lr_warmup_steps=10
        trainer.total_training_steps={M} trainer.total_epochs={epochs}
        data.seed={seed}"""),
}


def batches(a: Allocation, devices: int | None) -> tuple[int, int]:
  """(rollouts of a device in a microbatch, microbatches of an update).

  The first is a divisor of MOST_PER_DEVICE. InputError if devices do not share
  B equally.
  """
  share, left = divmod(a.B, devices or 1)
  if left:
    unit = devices // math.gcd(a.n, devices)  # Bp must be a multiple of it
    legal = [Bp for Bp in (a.Bp // unit * unit, -(-a.Bp // unit) * unit) if Bp]
    raise InputError(
        f"{devices} devices do not share Bp * n = {a.Bp} * {a.n} = {a.B} "
        f"rollouts equally; take --Bp={' or '.join(map(str, legal))}")
  per_device = math.gcd(MOST_PER_DEVICE, share)
  return per_device, share // per_device


def options(trainer: str, row: plan_file.Row, s: Setting) -> dict[str, object]:
  """Option -> value of a run in another trainer; True: a flag without a value.

  InputError for m < n, or an advantage not in DIVIDES_BY_STD.
  """
  a, target = row.allocation, TRAINERS[trainer]
  if a.m not in (None, a.n):
    raise InputError(f"--export={trainer}: it has no training on m of n "
                     "rollouts; plan with a config without alloc.m")
  if s.advantage not in DIVIDES_BY_STD:
    raise InputError(f"--export={trainer}: recipe.loss.advantage="
                     f"{s.advantage!r} is not written; expected one of "
                     f"{', '.join(DIVIDES_BY_STD)}")
  divided = DIVIDES_BY_STD[s.advantage]
  # Enough for M steps; a data loader drops the last, smaller batch.
  epochs = a.M if s.D is None else -(-a.M // max(1, s.D // a.Bp))
  per_device, accumulation = batches(a, s.devices) if trainer == "trl" else (
      None, None)
  fields = s.loss | dict(
      aggregation=AGGREGATIONS.get(trainer, {}).get(s.loss.get("aggregation")),
      per_device=per_device, accumulation=accumulation,
      Bp=a.Bp, n=a.n, B=a.B, M=a.M, lr=s.lr(row), seed=row.seed,
      epochs=epochs, prompt=s.prompt, response=s.response,
      total=s.prompt and s.prompt + s.response, kl=s.kl, on=True,
      use_kl=bool(s.kl), std=target.std[not divided],
      estimator="grpo" if divided else "reinforce")
  pairs = target.options.replace(
      "{with_kl}", target.with_kl if s.kl else "").split()
  values = {name: fields.get(value[1:-1]) if value.startswith("{") else value
            for name, value in (pair.split("=") for pair in pairs)}
  return {name: value for name, value in values.items() if value is not None}


def not_carried(trainer: str, setting: Setting) -> list[str]:
  """KEY=VALUE of the config that the options of a trainer do not set."""
  loss, known, out = setting.loss, AGGREGATIONS.get(trainer, {}), []
  if loss and loss["aggregation"] not in known:
    out.append(f"recipe.loss.aggregation={loss['aggregation']!r}")
  if loss and not known:  # so no options for clip and temperature either
    out += [f"recipe.loss.clip_low={loss['clip_low']}",
            f"recipe.loss.clip_high={loss['clip_high']}",
            f"sampler.temperature={loss['temperature']}"]
  return [*out, *setting.uncarried]


def names(trainer: str) -> dict[str, str]:
  """The options of a trainer that set Bp, n, B and M, where it has any."""
  template = TRAINERS[trainer].options
  names_of = {field: re.findall(rf"(\S+)={{{field}}}", template)
              for field in ("Bp", "n", "B", "M")}
  return {field: " and ".join(found) for field, found in names_of.items()
          if found}


def text(trainer: str, row: plan_file.Row, setting: Setting) -> str:
  """The options of a run to paste, with comments on what they cannot say."""
  target, a = TRAINERS[trainer], row.allocation
  processes = f"{setting.devices} processes" if setting.devices else (
      "one process; --machine gives the number")
  notes = [target.note.format(B=a.B, M=a.M, lr=setting.lr(row),
                            processes=processes)] if target.note else []
  if setting.priced and trainer not in CALIBRATED_ON:
    notes.append(f"the times of this plan are calibrated on NeMo-RL and "
                 f"prime-rl, not on {trainer}" + (
                     ", which is slower" if trainer == "verl" else ""))
  if setting.response is None:
    notes.append("no lengths: give --config, or --machine and the mean tokens")
  if left := not_carried(trainer, setting):
    notes.append(f"not carried: {', '.join(left)}")
  yaml = target.style == YAML
  lines = [f"--{name}" if value is True and target.style == FLAG else
           target.style.format(name, str(value).lower() if yaml else value)
           for name, value in options(trainer, row, setting).items()]
  return "\n".join([*(f"# {note}" for note in notes),
                    ("\n" if yaml else " \\\n").join(lines)])
