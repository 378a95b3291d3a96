"""An experiment as frozen values, and the checks that come before compiling.

Each section of a config file is the arguments of one dataclass;
isojax.config_file reads them. Also says which part of a config decides the results. Files are read
elsewhere (isojax.ledger.workdir).
"""

import dataclasses
import importlib.util

from isojax import config_file
from isojax.errors import InputError
from isojax.mesh import MeshConfig
from isojax.models.lora import LoraConfig
from isojax.allocation import Allocation, sqrt_lr
from isojax.rl import advantages
from isojax.rl import objective
from isojax.rl.algorithm import UpdatesConfig
from isojax.rl.critic import CriticConfig
from isojax.rl.objective import LossConfig
from isojax.rl.optimizer import OptimizerConfig
from isojax.rl.rewards import RewardConfig
from isojax.sampling.engine import SamplerConfig
from isojax.tasks.grader import GraderConfig
from isojax.tasks.prompts import PromptConfig


@dataclasses.dataclass(frozen=True)
class ModelSection:
  path: str  # Hugging Face checkpoint folder, or name on the hub
  lora: LoraConfig


@dataclasses.dataclass(frozen=True)
class TaskSection:
  stratum: str  # file of launch.split
  prompt: PromptConfig
  grader: GraderConfig
  format_coef: float  # reward of an answer in the expected place

  def __post_init__(self):
    if self.format_coef < 0:
      raise InputError(f"task.format_coef={self.format_coef}: expected >= 0")
    if self.format_coef and self.grader.answer == "whole":
      raise InputError(
          f"task.format_coef={self.format_coef} with task.grader.answer="
          "'whole': every response is then in the expected place and earns the "
          "bonus; set format_coef=0, or answer to boxed, hash or tags")


@dataclasses.dataclass(frozen=True)
class EvalSection:
  k: int  # samples of each validation problem
  temperature: float
  top_p: float
  first: int  # rollouts before the first evaluation after step 0
  growth: float  # of the rollouts between evaluations; 1 is linear

  def __post_init__(self):
    if self.k < 1 or self.first < 1:
      raise InputError(f"eval: k={self.k}, first={self.first}: expected at "
                       "least 1")
    if self.growth < 1:
      raise InputError(f"eval.growth={self.growth}: expected at least 1")
    if self.temperature < 0 or not 0 < self.top_p <= 1:
      raise InputError(
          f"eval: temperature={self.temperature}, top_p={self.top_p}: expected "
          "temperature >= 0 and top_p in (0, 1]")


@dataclasses.dataclass(frozen=True)
class CheckpointSection:
  every_steps: int  # updates between checkpoints
  every_minutes: float  # or this long since the last one, what comes first
  keep: int  # newest checkpoints kept

  def __post_init__(self):
    if self.every_steps < 1 or self.every_minutes <= 0 or self.keep < 1:
      raise InputError(f"{self}: expected positive numbers")


@dataclasses.dataclass(frozen=True)
class LogSection:
  every_seconds: float  # between progress lines where there is no terminal
  tensorboard: bool  # also write summaries; needs isojax[tb]
  # Rollouts of each step whose text is stored in samples.jsonl.
  samples: int
  # Project of Weights & Biases; "": off; needs isojax[wandb].
  wandb: str

  def __post_init__(self):
    if self.samples < 0:
      raise InputError(f"log.samples={self.samples}: expected at least 0")
    if self.wandb and not importlib.util.find_spec("wandb"):
      raise InputError(f"log.wandb={self.wandb!r} needs the extra: "
                       f"pip install -e '.[wandb]'")
    if self.tensorboard and not importlib.util.find_spec("tensorboardX"):
      raise InputError("log.tensorboard needs the extra: "
                       "pip install -e '.[tb]', or set it to False")


def compares(loss: LossConfig) -> bool:
  """Returns whether an advantage is 0 in a group of one; an own one may be."""
  return loss.advantage in advantages.COMPARING or "advantage" in loss.own


@dataclasses.dataclass(frozen=True)
class FilterSection:
  # Sampling rounds of a step, at most, until Bp groups are informative.
  rounds: int
  # Pass rate from which a problem is not sampled again; None: always sampled.
  solved_rate: float | None

  def __post_init__(self):
    if self.rounds < 1:
      raise InputError(f"recipe.filter.rounds={self.rounds}: expected at least "
                       "1, the first round")
    if self.solved_rate is not None and not 0 < self.solved_rate <= 1:
      raise InputError(f"recipe.filter.solved_rate={self.solved_rate}: expected "
                       "a pass rate in (0, 1], or None to sample all problems")


@dataclasses.dataclass(frozen=True)
class RecipeSection:
  reward: RewardConfig
  filter: FilterSection
  loss: LossConfig
  updates: UpdatesConfig
  critic: CriticConfig
  optimizer: OptimizerConfig

  def __post_init__(self):
    if self.critic.kind != "none" and (
        self.loss.advantage not in advantages.VALUED):
      raise InputError(
          f"recipe.critic.kind={self.critic.kind!r} with recipe.loss.advantage="
          f"{self.loss.advantage!r}: this advantage does not depend on values; "
          f"expected one of {', '.join(advantages.VALUED)}, or "
          "critic.kind='none'")


@dataclasses.dataclass(frozen=True)
class Experiment:
  name: str  # of the config file, for the default workdir
  seed: int
  model: ModelSection
  task: TaskSection
  alloc: Allocation
  sampler: SamplerConfig
  recipe: RecipeSection
  eval: EvalSection
  checkpoint: CheckpointSection
  log: LogSection
  mesh: MeshConfig

  def __post_init__(self):
    if not 0 <= self.seed < 2**31:
      raise InputError(f"seed={self.seed}: expected 0 <= seed < 2**31, beyond "
                       "which seeds coincide")
    if self.sampler.weights and self.model.lora.rank:
      raise InputError(
          f"sampler.weights={self.sampler.weights} with model.lora.rank="
          f"{self.model.lora.rank}: the merged weights stay beside the rounded "
          "ones, which takes more memory, not less; drop one of the two")

  @property
  def lr(self) -> float:
    """The learning rate after warm-up, from the square-root rule."""
    return self.lr_at(self.alloc.n)

  def lr_at(self, n: int) -> float:
    """Returns the learning rate after warm-up of a step of n rollouts."""
    optimizer, a = self.recipe.optimizer, self.alloc
    rows = {"sampled": a.Bp * n,
            "trained": a.Bp * a.m_of(n),
            "update": a.Bp * a.m_of(n) / self.recipe.updates.minibatches}
    return sqrt_lr(optimizer.base_lr, optimizer.base_batch,
                   rows[optimizer.batch])

  def lr_factor(self, n: int) -> float | None:
    """Returns the learning rate of n rollouts over that of the first step.

    None without a schedule: the update is then compiled without a factor.
    """
    return self.lr_at(n) / self.lr if self.alloc.schedule else None


def identity(config: dict) -> dict:
  """Returns the part of a config that decides the results, for the run id.

  Where and with which kernels a run computes, and how it saves and reports, may
  change when the run is resumed.
  """
  task, recipe = config["task"], config["recipe"]
  less = lambda values, *names: {
      k: v for k, v in values.items() if k not in names}
  return less(config, "mesh", "checkpoint", "log") | {
      "task": task | {"grader": less(task["grader"], "workers")},
      "sampler": less(config["sampler"], "attention"),
      "recipe": recipe | {"loss": less(recipe["loss"], "attention")}}


def load(config) -> Experiment:
  """The experiment of a ConfigDict; InputError if anything is wrong with it."""
  return config_file.section(Experiment, config.to_dict(), "config")


def check_sampler(sampler: SamplerConfig, *, max_positions: int) -> None:
  """InputError if sequences are longer than the model's longest, in tokens.
  """
  longest = sampler.max_prompt_tokens + sampler.max_new_tokens
  if longest > max_positions:
    raise InputError(
        f"sampler: max_prompt_tokens + max_new_tokens = {longest} is longer "
        f"than the model's {max_positions} positions; lower one of them")


def _check_updates(e: Experiment) -> None:
  """InputError if the updates do not suit the rest of the config."""
  a = e.alloc
  if e.recipe.updates.minibatches > a.Bp:
    raise InputError(
        f"recipe.updates.minibatches={e.recipe.updates.minibatches} of alloc.Bp="
        f"{a.Bp} problems: expected at most one update for each problem; lower "
        "minibatches or increase Bp")
  if e.recipe.updates.in_flight and e.recipe.loss.ratio_to != "behavior":
    raise InputError(
        f"recipe.updates.in_flight={e.recipe.updates.in_flight} with "
        f"recipe.loss.ratio_to={e.recipe.loss.ratio_to!r}: tokens are drawn "
        "with the weights of several steps, so the ratio must be to the "
        "sampler's record; set ratio_to='behavior' and importance_cap=None")
  if e.recipe.loss.policy_loss == "reinforce" and (
      e.recipe.updates.in_flight or e.recipe.updates.count > 1):
    raise InputError(
        "recipe.loss.policy_loss='reinforce' with recipe.updates.epochs="
        f"{e.recipe.updates.epochs}, minibatches={e.recipe.updates.minibatches}, "
        f"in_flight={e.recipe.updates.in_flight}: it has no ratio to the policy "
        "that sampled; make one update per step, or choose cispo or ppo_clip")
  if e.recipe.critic.kind != "none" and (
      e.recipe.loss.zero_variance in ("regularizers", "all")):
    raise InputError(
        f"recipe.loss.zero_variance={e.recipe.loss.zero_variance!r} with "
        f"recipe.critic.kind={e.recipe.critic.kind!r}: the critic would not "
        "learn from groups of equal rewards; use 'off' or 'policy'")
  if e.recipe.updates.in_flight and a.schedule:
    raise InputError(
        f"recipe.updates.in_flight={e.recipe.updates.in_flight} with "
        "alloc.schedule: a step would train on groups of different n; use a "
        "constant n, or in_flight=0")
  if e.recipe.updates.in_flight and e.recipe.filter.rounds > 1:
    raise InputError(
        f"recipe.updates.in_flight={e.recipe.updates.in_flight} with "
        f"recipe.filter.rounds={e.recipe.filter.rounds}: a refilled step waits "
        "for its own rollouts; use rounds=1, or in_flight=0")


def _check_ddof(e: Experiment) -> None:
  """InputError if a standard deviation is of too few values."""
  a, cfg = e.alloc, e.recipe.loss
  if "ddof" not in objective.constant_names(cfg.unbound("advantage")):
    return
  letter = "n" if a.m is None or cfg.normalise == "before" else "m"
  values = a.n_min if letter == "n" else a.m
  if cfg.advantage in advantages.OVER_STEP:
    letter, values = f"Bp * {letter}", a.Bp * values
  if cfg.advantage_ddof >= values:
    raise InputError(
        f"recipe.loss.advantage_ddof={cfg.advantage_ddof}: the standard "
        f"deviation of recipe.loss.advantage={cfg.advantage!r} is over {letter}"
        f"={values} values; expected a ddof below, such as 0")


def check(e: Experiment, *, problems: int, max_positions: int) -> None:
  """Refuses what could not run, before anything is compiled or written.

  Args:
    e: the experiment.
    problems: D, training problems in the stratum.
    max_positions: longest sequence of the model, tokens.
  """
  a = e.alloc
  check_sampler(e.sampler, max_positions=max_positions)
  if a.n_min < 2 and (compares(e.recipe.loss)
                      or e.recipe.loss.zero_variance != "off"
                      or e.recipe.filter.rounds > 1):
    raise InputError(
        "alloc.n=1: this recipe compares the rollouts of one problem (recipe."
        f"loss.advantage={e.recipe.loss.advantage!r}, loss.zero_variance, "
        "filter.rounds), and a group of one has none to compare; use n >= 2")
  _check_ddof(e)
  if a.m == 1 and e.recipe.loss.normalise == "after" and (
      compares(e.recipe.loss)):
    raise InputError(
        f"alloc.m=1 with recipe.loss.advantage={e.recipe.loss.advantage!r}: it "
        "compares the kept rollouts of one problem, and of one all advantages "
        "are 0; use m >= 2, or recipe.loss.normalise='before'")
  if e.recipe.loss.selection == "all" and any(
      a.m_of(n) != n for _, n in a.pieces):
    raise InputError(
        f"alloc.m={a.m} with recipe.loss.selection='all', which keeps every "
        "rollout; choose another selection, or set alloc.m to None")
  longest = e.recipe.reward.overlong_max
  if longest is not None and (longest - e.recipe.reward.overlong_cache
                              >= e.sampler.max_new_tokens):
    raise InputError(
        f"recipe.reward.overlong_max={longest}, overlong_cache="
        f"{e.recipe.reward.overlong_cache}: the penalty begins above "
        f"{longest - e.recipe.reward.overlong_cache} tokens, but answers end at "
        f"sampler.max_new_tokens={e.sampler.max_new_tokens}, so none gets it; "
        "lower overlong_max")
  if e.sampler.temperature == 0:
    raise InputError("sampler.temperature=0: greedy rollouts of one problem "
                     "are all the same, nothing can be learned; use > 0")
  if e.sampler.top_p < 1:
    raise InputError(
        f"sampler.top_p={e.sampler.top_p}: training rollouts must come from "
        "the whole distribution, or the trainer's log-probs are of another "
        "one; use 1.0 (eval.top_p is free)")
  _check_updates(e)
  if a.Bp > problems:
    raise InputError(f"alloc.Bp={a.Bp} distinct problems a step, but "
                     f"{e.task.stratum} has {problems} training problems; "
                     "lower Bp or make a larger stratum")
  rounds = e.recipe.filter.rounds
  if rounds * a.Bp > problems:
    raise InputError(
        f"recipe.filter.rounds={rounds} of alloc.Bp={a.Bp} distinct problems, "
        f"but {e.task.stratum} has {problems} training problems; lower rounds "
        f"to {problems // a.Bp} or less")
