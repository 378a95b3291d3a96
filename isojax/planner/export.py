"""Writes a run in the option names of other trainers.

The options of TRAINERS make a GRPO run with one update a step, as isojax's is
by default, whatever the trainer's own defaults are. They were checked against
the trainers' code at Trainer.checked: docs/planning.md says how.
"""

import math
import operator
import re
import typing

from isojax.core import plan_file, sweep_cells
from isojax.errors import InputError

CALIBRATED_ON = ("nemo-rl", "prime-rl")  # planner/cost.py fits their times
MAX_PER_DEVICE = 8  # rollouts of a microbatch: the default of TRL
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
    "reward.overlong": "off", "filter.rounds": 1, "filter.solved_rate": None}
ALL_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")  # of a layer


class Setting(typing.NamedTuple):
  """What a plan's runs have in common."""

  advantage: str  # of isojax.rl.advantages
  kl: float  # coefficient of the KL to the base policy in the loss
  prompt: int | None  # most tokens; None: not known, as below
  response: int | None
  D: int | None  # training problems
  # clip_low, clip_high, aggregation, and temperature of training rollouts, as
  # far as they are known.
  loss: dict = {}
  uncarried: tuple[str, ...] = ()  # see uncarried_keys
  # The options make one update a step. If the config's rate is that of a
  # minibatch, the rate of a step is larger by this factor.
  lr_factor: float = 1.0
  devices: int | None = None  # of the machine; None: not known
  priced: bool = False  # the plan predicts times
  warmup: int = 10  # updates
  decay: float = 0.0  # recipe.optimizer.decay; a row may have its own
  average: float | None = None  # recipe.optimizer.average
  lora_rank: int = 0  # 0: all weights
  lora_alpha: float = 16.0
  lora_targets: tuple[str, ...] = ALL_TARGETS
  has_seed: bool = True  # False: a run of another trainer without one

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
  note: str = ""  # what options cannot say; {B}, {M}, {lr}, {processes},
  # {scheduler}, {warmup}
  # The option of the schedule, and its values for a rate that is constant after
  # warm-up, falls linearly from the start, or at the end; None: it has none.
  scheduler: str = ""
  schedules: tuple[str | None, ...] = ("constant", None, None)
  with_fall: tuple[str, str] = ("", "")  # options of the last two
  warmup: str = ""  # option of the warm-up
  by_epochs: bool = False  # warm-up and fall are shares of the steps of all its
  # epochs, although the run ends after M
  lora: str = ""  # options of adapters on all matrices; "": it has none
  # For --from: option -> the trainer's own value, where it decides what a run
  # does; further NAME={FIELD}; a name in other releases or files -> the name.
  defaults: dict = {}
  read: str = ""
  spelled: dict = {}


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
        actor.kl_ctl={kl} actor.optimizer.lr={lr} {rate} {lora}
        ++total_train_steps={M} total_train_epochs={epochs} seed={seed}""",
        std=("group", "null"), note="its KL is in the reward",
        scheduler="actor.optimizer.lr_scheduler_type",
        schedules=("constant", "linear", None),
        with_fall=("actor.optimizer.min_lr_ratio=0.0", ""),
        warmup="actor.optimizer.warmup_steps_proportion={warmup_share}",
        by_epochs=True,
        lora="actor.use_lora=true actor.lora_rank={rank} "
        "actor.lora_alpha={alpha}",
        defaults={"actor.ppo_n_minibatches": 4, "actor.kl_ctl": 0.1}),
    "nemo-rl": Trainer(HYDRA, "7ea279abf", """
        grpo.adv_estimator.name=grpo grpo.normalize_rewards={std}
        grpo.use_leave_one_out_baseline=False grpo.num_prompts_per_step={Bp}
        grpo.num_generations_per_prompt={n} policy.train_global_batch_size={B}
        policy.max_total_sequence_length={total}
        policy.generation.max_new_tokens={response}
        loss_fn.reference_policy_kl_penalty={kl}
        loss_fn.ratio_clip_min={clip_low} loss_fn.ratio_clip_max={clip_high}
        policy.generation.temperature={temperature}
        policy.optimizer.kwargs.lr={lr} {rate} {lora} grpo.max_num_steps={M}
        grpo.max_num_epochs={epochs} grpo.seed={seed}""",
        note="Megatron has policy.megatron_cfg.optimizer.lr and "
        "policy.megatron_cfg.scheduler instead of policy.optimizer and "
        "policy.scheduler",
        schedules=("constant", "linear", "linear"),
        warmup="policy.scheduler={warmup_and_fall}",
        lora="policy.dtensor_cfg.lora_cfg.enabled=true "
        "policy.dtensor_cfg.lora_cfg.dim={rank} "
        "policy.dtensor_cfg.lora_cfg.alpha={alpha}"),
    "openrlhf": Trainer(FLAG, "0.11.2", """
        algo.advantage.estimator={std} rollout.batch_size={Bp}
        rollout.n_samples_per_prompt={n} train.batch_size={B} train.max_epochs=1
        data.max_len={total} rollout.max_new_tokens={response}
        algo.kl.init_coef={kl} {with_kl} actor.adam.lr={lr} {rate}
        train.num_episodes={epochs} train.seed={seed}""",
        std=("group_norm", "dr_grpo"),
        with_kl="algo.kl.use_loss={on} algo.kl.estimator=k3",
        note="it has no limit of steps: stop it after {M}",
        scheduler="actor.lr_scheduler",
        schedules=("constant_with_warmup", "linear", None),
        warmup="actor.lr_warmup_ratio={warmup_share}", by_epochs=True,
        defaults={"actor.adam.lr": 1e-6, "train.batch_size": 128,
                  "actor.lr_scheduler": "cosine_with_min_lr",
                  "actor.lr_warmup_ratio": 0.03},
        read="prompt_max_len={prompt}", spelled={  # before 0.11
            "rollout_batch_size": "rollout.batch_size",
            "n_samples_per_prompt": "rollout.n_samples_per_prompt",
            "train_batch_size": "train.batch_size", "seed": "train.seed",
            "max_epochs": "train.max_epochs",
            "num_episodes": "train.num_episodes",
            "generate_max_len": "rollout.max_new_tokens",
            "advantage_estimator": "algo.advantage.estimator",
            "init_kl_coef": "algo.kl.init_coef",
            "use_kl_loss": "algo.kl.use_loss",
            "kl_estimator": "algo.kl.estimator",
            "actor_learning_rate": "actor.adam.lr",
            "lr_scheduler": "actor.lr_scheduler",
            "lr_warmup_ratio": "actor.lr_warmup_ratio"}),
    "prime-rl": Trainer(FLAG, "559b44772", """
        orchestrator.algo.type=grpo orchestrator.batch-size={B}
        orchestrator.group-size={n} seq-len={total}
        orchestrator.train.sampling.max-completion-tokens={response}
        trainer.optim.lr={lr} {rate} {lora} max-steps={M}""",
        note="its advantage is not divided by the group's deviation, and it "
        "has no KL to the base policy and no seed",
        scheduler="trainer.scheduler.type",
        schedules=("constant", "linear", "linear"),
        with_fall=2 * ("trainer.scheduler.warmup-steps={warmup} "
                       "trainer.scheduler.decay-steps={decay_steps}",),
        defaults={"trainer.scheduler.warmup-steps": 10,
                  "trainer.scheduler.decay-steps": 10},
        lora="trainer.model.lora.rank={rank} trainer.model.lora.alpha={alpha}"),
    # ROLL's "grpo" always divides by the deviation of the group.
    "roll": Trainer(YAML, "8eb27cc2", """
        adv_estimator={estimator} norm_mean_type=group norm_std_type={std}
        whiten_advantages=false rollout_batch_size={Bp}
        num_return_sequences_in_group={n} ppo_epochs=1 prompt_length={prompt}
        response_length={response} use_kl_loss={use_kl} kl_loss_coef={kl}
        add_token_level_kl=false max_steps={M} seed={seed}""",
        std=("group", "null"),
        schedules=("constant_with_warmup", "linear", None),
        note="in actor_train.training_args: learning_rate: {lr}, "
        "lr_scheduler_type: {scheduler}, warmup_steps: {warmup}; "
        "per_device_train_batch_size x gradient_accumulation_steps x devices = "
        "{B} makes one update a step",
        read="per_device_train_batch_size={per_device} "
        "gradient_accumulation_steps={accumulation}", spelled={
            f"actor_train.training_args.{name}": name for name in (
                "learning_rate", "lr_scheduler_type", "warmup_steps",
                "per_device_train_batch_size", "gradient_accumulation_steps")}),
    "skyrl": Trainer(HYDRA, "0.3.0", """
        trainer.algorithm.advantage_estimator=grpo
        trainer.algorithm.grpo_norm_by_std={std} trainer.train_batch_size={Bp}
        trainer.policy_mini_batch_size={Bp} trainer.update_epochs_per_batch=1
        generator.n_samples_per_prompt={n} trainer.max_prompt_length={prompt}
        generator.sampling_params.max_generate_length={response}
        trainer.algorithm.use_kl_loss={use_kl}
        trainer.algorithm.kl_loss_coef={kl}
        trainer.algorithm.eps_clip_low={clip_low}
        trainer.algorithm.eps_clip_high={clip_high}
        generator.sampling_params.temperature={temperature}
        trainer.policy.optimizer_config.lr={lr} {rate} {lora}
        trainer.max_training_steps={M} trainer.epochs={epochs}
        trainer.seed={seed}""",
        scheduler="trainer.policy.optimizer_config.scheduler",
        schedules=("constant_with_warmup", "linear", None),
        warmup="trainer.policy.optimizer_config.num_warmup_steps={warmup}",
        lora="trainer.policy.model.lora.rank={rank} "
        "trainer.policy.model.lora.alpha={alpha}",
        defaults={"trainer.policy.optimizer_config.lr": 1e-6,
                  "trainer.policy.optimizer_config.scheduler":
                      "constant_with_warmup",
                  "trainer.policy.optimizer_config.num_warmup_steps": 0,
                  "trainer.policy_mini_batch_size": 256,
                  "trainer.algorithm.use_kl_loss": True,
                  "trainer.algorithm.kl_loss_coef": 1e-3,
                  "trainer.algorithm.eps_clip_low": 0.2,
                  "trainer.algorithm.eps_clip_high": 0.2}),
    "slime": Trainer(FLAG, "624b824a8", """
        advantage-estimator=grpo disable-grpo-std-normalization={std}
        rollout-batch-size={Bp} n-samples-per-prompt={n} global-batch-size={B}
        rollout-max-prompt-len={prompt} rollout-max-response-len={response}
        rollout-temperature={temperature} eps-clip={clip_low}
        eps-clip-high={clip_high} {with_kl} lr={lr} {rate} num-rollout={M}
        seed={seed} rollout-seed={seed}""", std=(None, True),
        defaults={"lr-decay-style": "linear",
                  "lr-wsd-decay-style": "exponential"},
        with_kl="use-kl-loss={on} kl-loss-coef={kl} kl-loss-type=low_var_kl",
        scheduler="lr-decay-style", schedules=("constant", "linear", "WSD"),
        with_fall=("min-lr=0 lr-decay-iters={M}",
                   "lr-wsd-decay-style=linear min-lr=0 lr-decay-iters={M} "
                   "lr-wsd-decay-iters={decay_steps}"),
        warmup="lr-warmup-iters={warmup}"),
    "trl": Trainer(FLAG, "1.16.0", """
        num_generations={n} generation_batch_size={B}
        per_device_train_batch_size={per_device}
        gradient_accumulation_steps={accumulation} num_iterations=1
        scale_rewards={std} beta={kl} epsilon={clip_low}
        epsilon_high={clip_high} loss_type={aggregation}
        temperature={temperature} max_completion_length={response}
        learning_rate={lr} {rate} {lora} max_steps={M} seed={seed}""",
        std=("group", "none"), scheduler="lr_scheduler_type",
        schedules=("constant_with_warmup", "linear", "warmup_stable_decay"),
        with_fall=("", "lr_scheduler_kwargs={scheduler_kwargs}"),
        warmup="warmup_steps={warmup}",
        lora="use_peft={on} lora_r={rank} lora_alpha={alpha} "
        "lora_target_modules=all-linear",
        defaults={"learning_rate": 1e-6, "lr_scheduler_type": "linear",
                  "warmup_steps": 0, "num_generations": 8,
                  "per_device_train_batch_size": 8},
        read="num_train_epochs={epochs} warmup_ratio={warmup_share} "
        "max_prompt_length={prompt} num_processes={processes} "
        "nproc_per_node={processes} nnodes={nodes}",
        note="per_device_train_batch_size x processes x "
        "gradient_accumulation_steps = {B} makes one update a step; these "
        "options are for {processes}"),
    "tunix": Trainer(HYDRA, "0.1.7", """
        batch_size={Bp} rl_training_config.mini_batch_size={Bp}
        grpo_config.num_generations={n} grpo_config.num_iterations=1
        grpo_config.beta={kl} rollout_config.max_prompt_length={prompt}
        rollout_config.total_generation_steps={response}
        {rate} rl_training_config.actor_optimizer_config.value={lr} {lora}
        rl_training_config.max_steps={M} num_train_epochs={epochs}
        model_config.rng_seed={seed}""",
        note="its advantage is always divided by the group's deviation",
        # A function of optax.schedules; its arguments are keys beside it.
        scheduler="rl_training_config.actor_optimizer_config.schedule_type",
        schedules=("constant_schedule", "linear_schedule", "linear_schedule"),
        with_fall=2 * (" ".join(
            f"rl_training_config.actor_optimizer_config.{argument}"
            for argument in ("init_value={start_lr}", "end_value={end_lr}",
                             "transition_begin={decay_begin}",
                             "transition_steps={decay_steps}")),),
        defaults={"rl_training_config.actor_optimizer_config.schedule_type":
                  "warmup_cosine_decay_schedule"},
        lora="actor_model_config.lora_config.rank={rank} "
        "actor_model_config.lora_config.alpha={alpha}",
        spelled={f"rl_training_config.actor_optimizer_config.{name}":
                 "rl_training_config.actor_optimizer_config.value"
                 for name in ("learning_rate", "peak_value")}),
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
        actor_rollout_ref.actor.optim.lr={lr} {rate} {lora}
        trainer.total_training_steps={M} trainer.total_epochs={epochs}
        data.seed={seed}""",
        warmup="actor_rollout_ref.actor.optim.lr_warmup_steps={warmup}",
        lora="actor_rollout_ref.model.lora_rank={rank} "
        "actor_rollout_ref.model.lora_alpha={alpha}",
        read="actor_rollout_ref.actor.optim.lr_warmup_steps_ratio="
        "{warmup_share}",
        defaults={"algorithm.adv_estimator": "gae",
                  "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
                  "actor_rollout_ref.actor.kl_loss_coef": 1e-3,
                  "actor_rollout_ref.actor.clip_ratio_low": 0.2,
                  "actor_rollout_ref.actor.clip_ratio_high": 0.2,
                  "actor_rollout_ref.actor.optim.lr": 1e-6,
                  "actor_rollout_ref.actor.optim.lr_warmup_steps": 0}),
}


def batches(Bp: int, n: int, devices: int | None) -> tuple[int, int]:
  """(rollouts of a device in a microbatch, microbatches of an update).

  The first is a divisor of MAX_PER_DEVICE. InputError if devices do not share
  B equally.
  """
  share, left = divmod(Bp * n, devices or 1)
  if left:
    unit = devices // math.gcd(n, devices)  # Bp must be a multiple of it
    legal = filter(None, (Bp // unit * unit, -(-Bp // unit) * unit))
    raise InputError(
        f"{devices} devices do not share Bp * n = {Bp} * {n} = {Bp * n} "
        f"rollouts equally; take --Bp={' or '.join(map(str, legal))}")
  per_device = math.gcd(MAX_PER_DEVICE, share)
  return per_device, share // per_device


CONSTANT, FALLING, END_FALLING = range(3)  # indices of Trainer.schedules


def schedule_of(decay: float) -> int:
  """The index of Trainer.schedules for recipe.optimizer.decay."""
  if not decay:
    return CONSTANT
  return FALLING if decay == 1 else END_FALLING


def rate_options(target: Trainer, decay: float) -> str:
  """The templates of warm-up and schedule; a constant one if it has no other.
  """
  kind = schedule_of(decay)
  if target.schedules[kind] is None:
    kind = CONSTANT
  fall = target.with_fall[kind - 1] if kind else ""
  scheduler = target.scheduler and (
      f"{target.scheduler}={target.schedules[kind]}")
  return f"{scheduler} {fall} {target.warmup}"


def fall_steps(M: int, decay: float, risen: int) -> int:
  """The last of M steps, in which the rate falls, after the `risen` first."""
  return min(M - sweep_cells.branch_step(M, decay), max(0, M - risen))


def share_of_fall(M: float, steps: float, risen: float) -> float:
  """recipe.optimizer.decay of a fall; the inverse of `fall_steps`."""
  return 1.0 if risen + steps >= M else steps / M


def torch_schedule(warmup: int, M: int, decay: float) -> str:
  """Schedulers of torch, one after the other, as in NeMo-RL's YAML files.

  The rate has the factor (step + 1) / warmup at first: it has risen after one
  step less than `warmup`.
  """
  linear = ("{{name: torch.optim.lr_scheduler.LinearLR, kwargs: {{start_factor:"
            " {:.6g}, end_factor: {}, total_iters: {}}}}}").format
  rise = max(1, warmup - 1)
  begin, end, steps = rise, "1.0", fall_steps(M, decay, warmup - 1)
  if steps:
    begin, end = M - steps, "0.0"
  return (f"[{linear(1 / max(1, warmup), '1.0', rise)}, "
          f"{linear(1, end, steps or 1)}, {{milestones: [{begin}]}}]")


def decay_of(row: plan_file.Row, setting: Setting) -> float:
  """recipe.optimizer.decay of a row."""
  return setting.decay if row.decay is None else row.decay


def _epochs(row: plan_file.Row, setting: Setting) -> int:
  """Enough for M steps; a data loader drops the last, smaller batch."""
  M, Bp = row.allocation.M, row.allocation.Bp
  return M if setting.D is None else -(-M // max(1, setting.D // Bp))


def scheduled_steps(target: Trainer, row: plan_file.Row, setting: Setting
                    ) -> int | None:
  """The steps of the trainer's schedule; None: unknown without D."""
  if not target.by_epochs:
    return row.allocation.M
  return None if setting.D is None else _epochs(row, setting) * max(
      1, setting.D // row.allocation.Bp)


def _written_decay(target: Trainer, row: plan_file.Row, setting: Setting
                   ) -> float:
  """decay_of, or 0 if the trainer's schedule does not end with the run."""
  ends = scheduled_steps(target, row, setting) == row.allocation.M
  return decay_of(row, setting) if ends else 0.0


def options(trainer: str, row: plan_file.Row,
            setting: Setting) -> dict[str, object]:
  """Option -> value of a run in another trainer; True: a flag without a value.

  InputError for m < n, or an advantage not in DIVIDES_BY_STD.
  """
  target, allocation = TRAINERS[trainer], row.allocation
  Bp, n, M = allocation.Bp, allocation.n, allocation.M
  if allocation.kept != n:
    raise InputError(f"--export={trainer}: it has no training on m of n "
                     "rollouts; plan with a config without alloc.m")
  if setting.advantage not in DIVIDES_BY_STD:
    raise InputError(f"--export={trainer}: recipe.loss.advantage="
                     f"{setting.advantage!r} is not written; expected one of "
                     f"{', '.join(DIVIDES_BY_STD)}")
  divided, loss = DIVIDES_BY_STD[setting.advantage], setting.loss
  steps = scheduled_steps(target, row, setting)
  per_device, accumulation = None, None
  if trainer == "trl":
    per_device, accumulation = batches(Bp, n, setting.devices)
  decay = _written_decay(target, row, setting)
  decay_steps = fall_steps(  # prime-rl refuses a fall that begins before
      M, decay, setting.warmup if trainer == "prime-rl" else 0)
  fields = setting._asdict() | loss | dict(
      aggregation=AGGREGATIONS.get(trainer, {}).get(loss.get("aggregation")),
      per_device=per_device, accumulation=accumulation,
      Bp=Bp, n=n, B=Bp * n, M=M, lr=setting.lr(row),
      seed=row.seed if setting.has_seed else None,
      warmup_share=f"{setting.warmup / steps:.4g}" if steps else "0",
      decay_steps=decay_steps, decay_begin=M - decay_steps,
      start_lr=setting.lr(row), end_lr="0.0",
      warmup_and_fall=torch_schedule(setting.warmup, M, decay),
      scheduler_kwargs=f'{{"num_decay_steps":{decay_steps},'
      '"decay_type":"linear"}', rank=setting.lora_rank,
      alpha=setting.lora_alpha, epochs=_epochs(row, setting),
      total=None if None in (setting.prompt, setting.response)
      else setting.prompt + setting.response, on=True,
      use_kl=bool(setting.kl), std=target.std[not divided],
      estimator="grpo" if divided else "reinforce")
  pairs = target.options.replace(
      "{with_kl}", target.with_kl if setting.kl else "").replace(
          "{rate}", rate_options(target, decay)).replace(
              "{lora}", target.lora if setting.lora_rank else "").split()
  values = {name: fields.get(value[1:-1]) if value.startswith("{") else value
            for name, value in (pair.split("=") for pair in pairs)}
  return {name: value for name, value in values.items() if value is not None}


def not_carried(trainer: str, row: plan_file.Row, setting: Setting
                ) -> list[str]:
  """KEY=VALUE of the config that the options of a trainer do not set."""
  loss, known, out = setting.loss, AGGREGATIONS.get(trainer, {}), []
  target, decay = TRAINERS[trainer], decay_of(row, setting)
  if target.schedules[schedule_of(decay)] is None or (
      decay != _written_decay(target, row, setting)):
    out.append(f"recipe.optimizer.decay={decay:g}")
  if setting.warmup and "{warmup" not in (
      rate_options(target, decay) + target.note):
    out.append(f"recipe.optimizer.warmup_steps={setting.warmup}")
  elif setting.warmup and scheduled_steps(target, row, setting) is None:
    out.append(f"recipe.optimizer.warmup_steps={setting.warmup}, a share of "
               "the steps of all epochs: give --D")
  if setting.average is not None:
    out.append(f"recipe.optimizer.average={setting.average:g}")
  if setting.lora_rank and not target.lora:
    out.append(f"model.lora.rank={setting.lora_rank}")
  if setting.lora_rank and set(setting.lora_targets) != set(ALL_TARGETS):
    out.append(f"model.lora.targets={','.join(setting.lora_targets)}")
  if "aggregation" in loss and loss["aggregation"] not in known:
    out.append(f"recipe.loss.aggregation={loss['aggregation']!r}")
  out += [f"{section}.{name}={loss[name]}" for section, name in (
      ("recipe.loss", "clip_low"), ("recipe.loss", "clip_high"),
      ("sampler", "temperature"))
          if name in loss and f"{{{name}}}" not in target.options]
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
  target, allocation = TRAINERS[trainer], row.allocation
  processes = f"{setting.devices} processes" if setting.devices else (
      "one process; --machine gives the number")
  schedule = target.schedules[schedule_of(
      _written_decay(target, row, setting))]
  notes = [target.note.format(
      B=allocation.B, M=allocation.M, lr=setting.lr(row), processes=processes,
      scheduler=schedule or target.schedules[CONSTANT],
      warmup=setting.warmup)] if target.note else []
  if setting.priced and trainer not in CALIBRATED_ON:
    notes.append(f"the times of this plan are calibrated on NeMo-RL and "
                 f"prime-rl, not on {trainer}" + (
                     ", which is slower" if trainer == "verl" else ""))
  if setting.response is None:
    notes.append("no lengths: set them here, or plan with --config")
  if trainer == "openrlhf" and setting.average is not None:
    notes.append("--train.enable_ema saves an exponential average, of a fixed "
                 "horizon")
  if left := not_carried(trainer, row, setting):
    notes.append(f"not carried: {', '.join(left)}")
  yaml = target.style == YAML
  quoted = lambda value: (
      f"'{value}'" if str(value).startswith(("[", "{")) else value)
  lines = [f"--{name}" if value is True and target.style == FLAG else
           target.style.format(
               name, str(value).lower() if yaml else quoted(value))
           for name, value in options(trainer, row, setting).items()]
  return "\n".join([*(f"# {note}" for note in notes),
                    ("\n" if yaml else " \\\n").join(lines)])
