"""Writes a run in the option names of other trainers.

Each function returns the options that make a GRPO run with one update a step,
as isojax's is by default, whatever the trainer's own defaults are. The names
were read in the repositories at the commits of TRAINERS.
"""

import dataclasses
import operator
import typing

from isojax.allocation import Allocation
from isojax.errors import InputError

NORMED = {"group_norm": True, "centered": False}  # advantages: divide by std?
EASY_KL = 1e-3  # in the loss, without a config: verl's default
# recipe.loss.aggregation -> the same mean by its name there. verl's mode for
# constant_length has divided by different lengths, so it is not written.
AGGREGATIONS = {
    "trl": {"token_mean": "dapo", "sample_mean": "grpo"},
    "verl": {"token_mean": "token-mean", "sample_mean": "seq-mean-token-mean",
             "sample_sum": "seq-mean-token-sum"}}
# The recipe that the options make. A config's other value is named in a
# comment: nothing here writes it.
PLAIN = {
    "loss.policy_loss": "ppo_clip", "loss.ratio": "token",
    "loss.ratio_to": "old", "loss.zero_variance": "off",
    "loss.importance_cap": None, "loss.kl_in": "loss", "loss.kl_estimator":
    "k3", "loss.entropy_coef": 0.0, "updates.epochs": 1,
    "updates.minibatches": 1, "updates.in_flight": 0, "reward.wrong": 0.0,
    "reward.overlong": "off", "filter.rounds": 1, "filter.solved_rate": None,
    "optimizer.warmup_steps": 10}


@dataclasses.dataclass(frozen=True)
class Loss:
  """What only some trainers get of a config."""

  clip_low: float
  clip_high: float
  aggregation: str
  temperature: float  # of training rollouts


@dataclasses.dataclass(frozen=True)
class Setting:
  """What a plan's runs have in common."""

  advantage: str  # of isojax.rl.advantages
  kl: float  # coefficient of the KL to the base policy in the loss
  prompt: int | None  # most tokens; None: not known
  response: int | None
  D: int | None  # training problems
  rule: str = "uniform"  # of division.RULES
  loss: Loss | None = None  # None: without a config
  beside: tuple[str, ...] = ()  # KEY=VALUE of a config that is not PLAIN


def beside(recipe) -> tuple[str, ...]:
  """The keys of a config's recipe that no options here carry."""
  values = {name: operator.attrgetter(name)(recipe) for name in PLAIN}
  if not recipe.loss.kl_coef:
    values |= {name: PLAIN[name] for name in ("loss.kl_in",
                                              "loss.kl_estimator")}
  return tuple(f"recipe.{name}={value!r}" for name, value in values.items()
               if value != PLAIN[name])


class Run(typing.NamedTuple):
  a: Allocation
  seed: int
  lr: str
  setting: Setting

  @property
  def epochs(self) -> int:
    """Enough for M steps; a data loader drops the last, smaller batch."""
    D = self.setting.D
    return self.a.M if D is None else -(-self.a.M // max(1, D // self.a.Bp))

  @property
  def std(self) -> bool:
    return NORMED[self.setting.advantage]

  def of_loss(self, trainer: str, *, low: str, high: str, aggregation: str,
              temperature: str) -> dict:
    """The loss and the temperature of a config, by the trainer's names."""
    loss = self.setting.loss
    return {} if loss is None else {
        low: loss.clip_low, high: loss.clip_high,
        aggregation: AGGREGATIONS[trainer].get(loss.aggregation),
        temperature: loss.temperature}


def _verl(r: Run) -> dict:
  actor = "actor_rollout_ref.actor."
  return {
      "algorithm.adv_estimator": "grpo",  # the default is gae
      "algorithm.norm_adv_by_std_in_grpo": r.std,
      "algorithm.use_kl_in_reward": False,
      "data.train_batch_size": r.a.Bp, "actor_rollout_ref.rollout.n": r.a.n,
      # In problems: verl multiplies it by n.
      actor + "ppo_mini_batch_size": r.a.Bp, actor + "ppo_epochs": 1,
      "data.max_prompt_length": r.setting.prompt,
      "data.max_response_length": r.setting.response,
      actor + "use_kl_loss": bool(r.setting.kl),
      actor + "kl_loss_coef": r.setting.kl,
      **r.of_loss("verl", low=actor + "clip_ratio_low",
                  high=actor + "clip_ratio_high",
                  aggregation=actor + "loss_agg_mode",
                  temperature="actor_rollout_ref.rollout.temperature"),
      actor + "optim.lr": r.lr, actor + "optim.lr_warmup_steps": 10,
      "trainer.total_training_steps": r.a.M,
      "trainer.total_epochs": r.epochs, "data.seed": r.seed}


def _trl(r: Run) -> dict:
  return {
      "num_generations": r.a.n, "generation_batch_size": r.a.B,
      "num_iterations": 1,
      "scale_rewards": "group" if r.std else "none", "beta": r.setting.kl,
      **r.of_loss("trl", low="epsilon", high="epsilon_high",
                  aggregation="loss_type", temperature="temperature"),
      "max_completion_length": r.setting.response, "learning_rate": r.lr,
      "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10,
      "max_steps": r.a.M, "seed": r.seed}


def _nemo_rl(r: Run) -> dict:
  s = r.setting
  return {
      "grpo.adv_estimator.name": "grpo", "grpo.normalize_rewards": r.std,
      "grpo.use_leave_one_out_baseline": False,
      "grpo.num_prompts_per_step": r.a.Bp,
      "grpo.num_generations_per_prompt": r.a.n,
      "policy.train_global_batch_size": r.a.B,
      "policy.max_total_sequence_length": s.prompt and s.prompt + s.response,
      "policy.generation.max_new_tokens": s.response,
      "loss_fn.reference_policy_kl_penalty": s.kl,
      "policy.optimizer.kwargs.lr": r.lr,
      "grpo.max_num_steps": r.a.M, "grpo.max_num_epochs": r.epochs,
      "grpo.seed": r.seed}


def _skyrl(r: Run) -> dict:
  algorithm = "trainer.algorithm."
  return {
      algorithm + "advantage_estimator": "grpo",
      algorithm + "grpo_norm_by_std": r.std,
      # Both in problems.
      "trainer.train_batch_size": r.a.Bp,
      "trainer.policy_mini_batch_size": r.a.Bp,
      "trainer.update_epochs_per_batch": 1,
      "generator.n_samples_per_prompt": r.a.n,
      "trainer.max_prompt_length": r.setting.prompt,
      "generator.sampling_params.max_generate_length": r.setting.response,
      algorithm + "use_kl_loss": bool(r.setting.kl),
      algorithm + "kl_loss_coef": r.setting.kl,
      "trainer.policy.optimizer_config.lr": r.lr,
      "trainer.policy.optimizer_config.num_warmup_steps": 10,
      "trainer.max_training_steps": r.a.M, "trainer.epochs": r.epochs,
      "trainer.seed": r.seed}


def _areal(r: Run) -> dict:
  return {
      "actor.reward_norm.mean_level": "group",
      "actor.reward_norm.std_level": "group" if r.std else "null",
      "actor.reward_norm.group_size": r.a.n, "actor.adv_norm": "null",
      "train_dataset.batch_size": r.a.Bp, "gconfig.n_samples": r.a.n,
      "actor.ppo_n_minibatches": 1, "rollout.max_head_offpolicyness": 0,
      "train_dataset.max_length": r.setting.prompt,
      "gconfig.max_new_tokens": r.setting.response,
      "actor.kl_ctl": r.setting.kl,  # in the reward
      "actor.optimizer.lr": r.lr,
      "actor.optimizer.lr_scheduler_type": "constant",
      "total_train_steps": r.a.M, "total_train_epochs": r.epochs,
      "seed": r.seed}


def _openrlhf(r: Run) -> dict:
  s = r.setting
  return {
      "algo.advantage.estimator": "group_norm" if r.std else "dr_grpo",
      "rollout.batch_size": r.a.Bp, "rollout.n_samples_per_prompt": r.a.n,
      "train.batch_size": r.a.B, "train.max_epochs": 1,
      "data.max_len": s.prompt and s.prompt + s.response,
      "rollout.max_new_tokens": s.response,
      "algo.kl.init_coef": s.kl,
      **({"algo.kl.use_loss": True, "algo.kl.estimator": "k3"} if s.kl else {}),
      "actor.adam.lr": r.lr, "actor.lr_scheduler": "constant_with_warmup",
      "train.num_episodes": r.epochs, "train.seed": r.seed}


def _slime(r: Run) -> dict:
  return {
      "advantage-estimator": "grpo",
      **({} if r.std else {"disable-grpo-std-normalization": True}),
      "rollout-batch-size": r.a.Bp, "n-samples-per-prompt": r.a.n,
      "global-batch-size": r.a.B,
      "rollout-max-prompt-len": r.setting.prompt,
      "rollout-max-response-len": r.setting.response,
      **({"use-kl-loss": True, "kl-loss-coef": r.setting.kl,
          "kl-loss-type": "low_var_kl"} if r.setting.kl else {}),
      "lr": r.lr, "lr-decay-style": "constant", "lr-warmup-iters": 10,
      "num-rollout": r.a.M, "seed": r.seed, "rollout-seed": r.seed}


def _roll(r: Run) -> dict:
  return {
      # "grpo" always divides by the deviation of the group.
      "adv_estimator": "grpo" if r.std else "reinforce",
      "norm_mean_type": "group", "norm_std_type": "group" if r.std else "null",
      "whiten_advantages": "false", "rollout_batch_size": r.a.Bp,
      "num_return_sequences_in_group": r.a.n, "ppo_epochs": 1,
      "prompt_length": r.setting.prompt, "response_length": r.setting.response,
      "use_kl_loss": str(bool(r.setting.kl)).lower(),
      "kl_loss_coef": r.setting.kl, "add_token_level_kl": "false",
      "max_steps": r.a.M, "seed": r.seed}


def _prime_rl(r: Run) -> dict:
  s = r.setting
  return {
      "orchestrator.algo.type": "grpo", "orchestrator.batch-size": r.a.B,
      "orchestrator.group-size": r.a.n,
      "seq-len": s.prompt and s.prompt + s.response,
      "orchestrator.train.sampling.max-completion-tokens": s.response,
      "trainer.optim.lr": r.lr, "trainer.scheduler.type": "constant",
      "max-steps": r.a.M}


def _tunix(r: Run) -> dict:
  optimizer = "rl_training_config.actor_optimizer_config."
  return {
      "batch_size": r.a.Bp, "rl_training_config.mini_batch_size": r.a.Bp,
      "grpo_config.num_generations": r.a.n, "grpo_config.num_iterations": 1,
      "grpo_config.beta": r.setting.kl,
      "rollout_config.max_prompt_length": r.setting.prompt,
      "rollout_config.total_generation_steps": r.setting.response,
      optimizer + "schedule_type": "constant_schedule",
      optimizer + "value": r.lr,
      "rl_training_config.max_steps": r.a.M, "num_train_epochs": r.epochs,
      "model_config.rng_seed": r.seed}


class Trainer(typing.NamedTuple):
  options: typing.Callable[[Run], dict]
  style: str  # of an option that has a value
  commit: str  # at which the names were read
  note: str = ""  # what options cannot say, with {B}, {M} and {lr}


HYDRA, FLAG, YAML = "{}={}", "--{} {}", "{}: {}"
TRAINERS = {
    "areal": Trainer(_areal, HYDRA, "4aef98d8d", "its KL is in the reward"),
    "nemo-rl": Trainer(_nemo_rl, HYDRA, "7ea279abf"),
    "openrlhf": Trainer(
        _openrlhf, FLAG, "3c3be623", "it has no limit of steps: stop it after "
        "{M}"),
    "prime-rl": Trainer(
        _prime_rl, FLAG, "559b44772", "its advantage is not divided by the "
        "group's deviation, and it has no KL to the base policy and no seed"),
    "roll": Trainer(
        _roll, YAML, "8eb27cc2", "in actor_train.training_args: learning_rate: "
        "{lr}, lr_scheduler_type: constant_with_warmup, warmup_steps: 10; "
        "per_device_train_batch_size x gradient_accumulation_steps x devices = "
        "{B} makes one update a step"),
    "skyrl": Trainer(_skyrl, HYDRA, "a9564572e"),
    "slime": Trainer(_slime, FLAG, "624b824a8"),
    "trl": Trainer(
        _trl, FLAG, "f2cd57710", "per_device_train_batch_size x processes x "
        "gradient_accumulation_steps = {B} makes one update a step"),
    "tunix": Trainer(_tunix, HYDRA, "c7d8950f"),
    "verl": Trainer(_verl, HYDRA, "b178a3cd5"),
}


def options(trainer: str, run: Run) -> dict[str, object]:
  """Option -> value of a run in another trainer; True may be a bare flag.

  Raises:
    InputError: a schedule of n, m < n, a rule or an advantage that is not
      GRPO's, which these trainers do not have.
  """
  a, advantage = run.a, run.setting.advantage
  if a.schedule or a.m not in (None, a.n):
    raise InputError(f"--export={trainer}: it has no schedule of n and no "
                     "training on m of n rollouts; plan without --schedule and "
                     "--pods")
  if run.setting.rule != "uniform":
    raise InputError(f"--export={trainer}: it has no rule={run.setting.rule}; "
                     "plan without one, or divide the rollouts in the trainer "
                     "by isojax.allocate (docs/allocation.md)")
  if advantage not in NORMED:
    raise InputError(f"--export={trainer}: recipe.loss.advantage={advantage!r} "
                     f"is not written; expected one of {', '.join(NORMED)}")
  return {name: value for name, value in TRAINERS[trainer].options(run).items()
          if value is not None}  # None: lengths that are not known


def not_carried(trainer: str, setting: Setting) -> list[str]:
  """KEY=VALUE of the config that the options leave to the trainer."""
  loss, known = setting.loss, AGGREGATIONS.get(trainer, {})
  if loss is None:
    return []
  return [*(() if loss.aggregation in known else (
      f"recipe.loss.aggregation={loss.aggregation!r}",)), *(() if known else (
          f"recipe.loss.clip_low={loss.clip_low}",
          f"recipe.loss.clip_high={loss.clip_high}",
          f"sampler.temperature={loss.temperature}")), *setting.beside]


def text(trainer: str, run: Run) -> str:
  """The options of a run to paste, and what they cannot say as comments."""
  kind, a = TRAINERS[trainer], run.a
  notes = [kind.note.format(B=a.B, M=a.M, lr=run.lr)] if kind.note else []
  if run.setting.response is None:
    notes.append("no lengths: give --config, or --machine and the mean tokens")
  left = not_carried(trainer, run.setting)
  if left:
    notes.append(f"not carried: {', '.join(left)}")
  separator = "\n" if kind.style == YAML else " \\\n"
  lines = separator.join(
      f"--{name}" if value is True and kind.style == FLAG
      else kind.style.format(name, value)
      for name, value in options(trainer, run).items())
  return "\n".join([*(f"# {note}" for note in notes), lines])
