"""An experiment as frozen values, and the checks that come before compiling.

Each section of a config file is the arguments of one dataclass.
"""

import dataclasses
from dataclasses import field
import importlib.util
import re

import numpy as np

from isojax.core import identity as identity_lib
from isojax.core import sections
from isojax.core.allocation import Allocation, BATCHES, sqrt_lr
from isojax.core.identity import CONTENT, LAST_BITS, NOTHING
from isojax.errors import expect, InputError
from isojax.models import dither
from isojax.models.lora import LoraConfig
from isojax.rl import advantages, algorithm, loss_config
from isojax.rl.critic import CriticConfig
from isojax.rl.loss_config import LossConfig
from isojax.rl.optimizer import OptimizerConfig
from isojax.rl.rewards import RewardConfig
from isojax.runtime import rng
from isojax.runtime.mesh import MeshConfig
from isojax.sampling.engine import SamplerConfig
from isojax.tasks.grader import GraderConfig
from isojax.tasks.prompts import PromptConfig

MAX_K = 10_000  # eval.k, whose samples are all kept in memory
TRACKIO = "trackio:"  # begins the name of a project in trackio


def raise_if(*checks: tuple[bool, str]) -> None:
  """InputError with the message of the first condition that is true."""
  for condition, message in checks:
    if condition:
      raise InputError(message)


@dataclasses.dataclass(frozen=True)
class ModelSection:
  # Hugging Face checkpoint folder, or name on the hub.
  path: str = field(metadata=CONTENT)
  lora: LoraConfig


@dataclasses.dataclass(frozen=True)
class TaskSection:
  stratum: str = field(metadata=CONTENT)  # file of launch.split
  prompt: PromptConfig
  grader: GraderConfig
  format_coef: float  # reward of an answer in the expected place

  def __post_init__(self):
    bonus = f"task.format_coef={self.format_coef}"
    raise_if(
        (self.format_coef < 0, f"{bonus}: expected >= 0"),
        (self.format_coef and self.grader.answer == "whole",
         f"{bonus} with task.grader.answer='whole': every response earns the "
         "bonus; set format_coef=0, or answer to boxed, hash or tags"))


@dataclasses.dataclass(frozen=True)
class EvalSection:
  k: int  # samples of each validation problem
  temperature: float
  top_p: float
  first: int  # rollouts before the first evaluation after step 0
  growth: float  # rollouts at the next one / at this one; 1: each `first`
  patience: int | None  # evaluations without a better avg that end the run
  current: bool  # also evaluate the current policy beside the averaged one

  def __post_init__(self):
    expect("eval", self, **{name: (getattr(self, name) >= 1, "at least 1")
                            for name in ("first", "growth")},
           k=(1 <= self.k <= MAX_K, f"1 to {MAX_K:,}"),
           patience=(self.patience is None or self.patience >= 1,
                     "at least 1, or None"),
           temperature=(self.temperature >= 0, ">= 0"),
           top_p=(0 < self.top_p <= 1, "in (0, 1]"))


@dataclasses.dataclass(frozen=True)
class CheckpointSection:
  every_steps: int  # between checkpoints
  every_minutes: float  # or this long since the last one, whichever comes first
  keep: int  # newest checkpoints kept
  keep_best: bool  # and that of the best evaluation
  at: tuple[int, ...]  # rollouts after which one is kept for good

  def __post_init__(self):
    expect("checkpoint", self,
           every_steps=(self.every_steps > 0, "more than 0"),
           every_minutes=(self.every_minutes > 0, "more than 0"),
           keep=(self.keep > 0, "more than 0"),
           at=(min(self.at, default=1) > 0, "more than 0"))


@dataclasses.dataclass(frozen=True)
class LogSection:
  every_seconds: float  # between progress lines where there is no terminal
  tensorboard: bool  # also write summaries; needs isojax[tb]
  samples: int  # texts of each step or evaluation that go to samples.jsonl
  wandb: str  # project of W&B, or trackio:PROJECT; "": off; needs the extra

  def __post_init__(self):
    lacks = lambda library: not importlib.util.find_spec(library)
    library = "trackio" if self.wandb.startswith(TRACKIO) else "wandb"
    expect("log", self, **{name: (getattr(self, name) >= 0, "at least 0")
                           for name in ("samples", "every_seconds")})
    raise_if(
        (self.wandb == TRACKIO, f"log.wandb={self.wandb!r}: expected "
         f"{TRACKIO}PROJECT"),
        (self.wandb and lacks(library), f"log.wandb={self.wandb!r} needs the "
         f"extra: pip install -e '.[{library}]'"),
        (self.tensorboard and lacks("tensorboardX"), "log.tensorboard needs "
         "the extra: pip install -e '.[tb]'; or set it to False"))


@dataclasses.dataclass(frozen=True)
class FilterSection:
  rounds: int  # most sampling rounds of a step, until Bp groups are informative
  # Pass rate from which a problem is not sampled again; None: always sampled.
  solved_rate: float | None

  def __post_init__(self):
    expect("recipe.filter", self,
           rounds=(self.rounds >= 1, "at least 1, the first round"),
           solved_rate=(
               self.solved_rate is None or 0 < self.solved_rate <= 1,
               "a pass rate in (0, 1], or None to sample all problems"))


@dataclasses.dataclass(frozen=True)
class RecipeSection:
  reward: RewardConfig
  filter: FilterSection
  loss: LossConfig
  updates: algorithm.UpdatesConfig
  critic: CriticConfig
  optimizer: OptimizerConfig

  def __post_init__(self):
    loss, updates, critic = self.loss, self.updates, self.critic.kind
    in_flight = f"recipe.updates.in_flight={updates.in_flight}"
    raise_if(
        (critic != "none" and loss.advantage not in advantages.READS_VALUES,
         f"recipe.critic.kind={critic!r} with recipe.loss.advantage="
         f"{loss.advantage!r}, which does not depend on values; expected one "
         f"of {', '.join(advantages.READS_VALUES)}, or critic.kind='none'"),
        (critic != "none" and loss.zero_variance in ("regularizers", "all"),
         f"recipe.loss.zero_variance={loss.zero_variance!r} with "
         f"recipe.critic.kind={critic!r}: the critic would not learn from "
         "groups of equal rewards; use 'off' or 'policy'"),
        (updates.in_flight and loss.ratio_to != "behavior",
         f"{in_flight} with recipe.loss.ratio_to={loss.ratio_to!r}: tokens are "
         "drawn with the weights of several steps; set ratio_to='behavior' and "
         "importance_cap=None"),
        (loss.policy_loss == "reinforce" and (
            updates.in_flight or updates.count > 1),
         "recipe.loss.policy_loss='reinforce' with recipe.updates.epochs="
         f"{updates.epochs}, minibatches={updates.minibatches}, in_flight="
         f"{updates.in_flight}: it has no ratio to the policy that sampled; "
         "make one update per step, or choose cispo or ppo_clip"),
        (updates.in_flight and self.filter.rounds > 1,
         f"{in_flight} with recipe.filter.rounds={self.filter.rounds}: a "
         "step that resamples waits for its own rollouts; use rounds=1, or "
         "in_flight=0"))

  @property
  def loss_informs(self) -> bool:
    """Whether the value of the loss says more than the advantages.

    In the only update of a step every ratio is 1: without a further term the
    value is a mean of the advantages, with cispo and reinforce times the
    log-probs, and only its gradient matters.
    """
    loss, updates = self.loss, self.updates
    return bool(updates.count > 1 or updates.in_flight or loss.kl_in_loss
                or loss.entropy_coef or self.critic.kind != "none"
                or "policy_loss" in loss.custom)


@dataclasses.dataclass(frozen=True)
class Experiment:
  name: str = field(metadata=NOTHING)  # of the file, for the default workdir
  seed: int
  model: ModelSection
  task: TaskSection
  alloc: Allocation
  sampler: SamplerConfig
  recipe: RecipeSection
  eval: EvalSection = field(metadata=NOTHING)
  checkpoint: CheckpointSection = field(metadata=NOTHING)
  log: LogSection = field(metadata=NOTHING)
  mesh: MeshConfig

  def __post_init__(self):
    raise_if((not re.fullmatch(r"[\w.-]+", self.name),
              f"name={self.name!r}: expected letters, digits, _, . and -, "
              "because the default workdir is runs/NAME-RUN_ID; another folder "
              "is --workdir"),
             (not 0 <= self.seed < 2**31, f"seed={self.seed}: expected 0 <= "
              "seed < 2**31, beyond which seeds coincide"),
             (self.eval.current and self.recipe.optimizer.average is None,
              "eval.current=True with recipe.optimizer.average=None: there is "
              "no averaged policy, so the current one is evaluated anyway; "
              "leave eval.current out, or set average=5.0"))

  def is_finished(self, step: int, rollouts: int) -> bool:
    """Whether no step follows: see Allocation.is_finished."""
    return self.alloc.is_finished(step, rollouts,
                                  rounds=self.recipe.filter.rounds)

  def is_out_of_patience(self, stale: int) -> bool:
    """Whether so many evaluations since the best one end the run."""
    return self.eval.patience is not None and stale >= self.eval.patience

  @property
  def lr(self) -> float:
    """The learning rate after warm-up, from the square-root rule."""
    optimizer = self.recipe.optimizer
    rollouts = BATCHES[optimizer.batch](
        self.alloc, self.recipe.updates.minibatches)
    return sqrt_lr(optimizer.base_lr, optimizer.base_batch, rollouts)


def identity(config: dict) -> dict:
  """The part of a config that decides the results, for the run id."""
  return identity_lib.deciding(Experiment, config)


def last_bits(config: dict) -> dict:
  """The values of a config, by name, that change results by rounding alone."""
  return sections.flat(identity_lib.select(LAST_BITS, Experiment, config))


def free(config: dict) -> dict:
  """The values of a config, by name, that decide no result."""
  return sections.flat(identity_lib.select(NOTHING, Experiment, config))


def paths(config: dict) -> dict:
  """The values of a config, by name, that are paths of files that decide."""
  own = [f"recipe.loss.{kind}" for kind in loss_config.FUNCTIONS]
  return sections.flat(identity_lib.select(CONTENT, Experiment, config)) | {
      name: value for name, value in sections.flat(config).items()
      if name in own and loss_config.names_file(str(value))}


def from_values(values: dict) -> Experiment:
  return sections.section(Experiment, values, "config")


def begins_dithered(config: dict) -> bool:
  """Whether a run's trained weights begin as dither.initial_params."""
  return not config["model"]["lora"]["rank"] and dither.is_needed(
      config["sampler"]["dtype"], config["recipe"]["loss"]["dtype"])


def load(config) -> Experiment:
  """The experiment of a ConfigDict."""
  return from_values(config.to_dict())


def has_group_baseline(loss: LossConfig) -> bool:
  """Whether the advantage compares a group's rollouts, as a custom one may."""
  return loss.advantage in advantages.NEEDS_GROUP or "advantage" in loss.custom


def check_sampler(sampler: SamplerConfig, *, max_positions: int) -> None:
  """InputError if sequences are longer than the model's longest, in tokens."""
  longest = sampler.max_prompt_tokens + sampler.max_new_tokens
  if longest > max_positions:
    raise InputError(
        f"sampler: max_prompt_tokens + max_new_tokens = {longest} is longer "
        f"than the model's {max_positions} positions; lower one of them")


def _check_ddof(config: Experiment) -> None:
  """InputError if the advantage's standard deviation is over too few values."""
  alloc, cfg = config.alloc, config.recipe.loss
  if "ddof" not in loss_config.constant_names(cfg.unbound("advantage")):
    return
  letter, values = "n", alloc.n
  if alloc.m is not None and cfg.normalise != "before":
    letter, values = "m", alloc.m
  if cfg.advantage in advantages.NORMALISED_OVER_STEP:
    letter, values = f"Bp * {letter}", alloc.Bp * values
  if cfg.advantage_ddof >= values:
    raise InputError(
        f"recipe.loss.advantage_ddof={cfg.advantage_ddof}: the standard "
        f"deviation of recipe.loss.advantage={cfg.advantage!r} is over {letter}"
        f"={values} values; expected a ddof below, such as 0")


def _check_selection(config: Experiment) -> None:
  """InputError if a custom selection keeps more than m of n rollouts."""
  alloc, loss = config.alloc, config.recipe.loss
  if "selection" not in loss.custom:
    return
  reward_PxN = np.outer([1.0, 0.0], np.arange(alloc.n) % 2)  # and equal ones
  algorithm.select_rollouts(
      reward_PxN, np.ones_like(reward_PxN, bool),
      rng.uniforms(rng.Draw.SELECTION, config.seed, 1, np.arange(2), alloc.n),
      alloc.kept, loss)


def check(config: Experiment, *, problems: int, max_positions: int,
          width: int) -> None:
  """InputError for a config that cannot run.

  `problems` is the number of training problems. The model has sequences of at
  most `max_positions` tokens, and hidden states of `width`.
  """
  alloc, loss, sampler = config.alloc, config.recipe.loss, config.sampler
  stratum = config.task.stratum
  rounds, reward = config.recipe.filter.rounds, config.recipe.reward
  minibatches = config.recipe.updates.minibatches
  penalty_from = (reward.overlong_max - reward.overlong_cache
                  if reward.overlong_max is not None else 0)
  check_sampler(sampler, max_positions=max_positions)
  rank = config.model.lora.rank
  raise_if(
      (rank > width, f"model.lora.rank={rank}: expected at most {width}, the "
       "width of the model: such a matrix has no larger rank"),
      (alloc.n < 2 and (has_group_baseline(loss) or loss.zero_variance != "off"
                          or rounds > 1),
       "alloc.n=1: this recipe compares the rollouts of one problem ("
       f"recipe.loss.advantage={loss.advantage!r}, loss.zero_variance, "
       "filter.rounds); use n >= 2"),
      (alloc.m == 1 and loss.normalise == "after" and has_group_baseline(loss),
       f"alloc.m=1 with recipe.loss.advantage={loss.advantage!r}: it compares "
       "the selected rollouts of one problem, and of one all advantages are 0; "
       "use m >= 2, or recipe.loss.normalise='before'"),
      (loss.selection == "all" and alloc.kept != alloc.n,
       f"alloc.m={alloc.m} with recipe.loss.selection='all', which keeps every "
       "rollout; choose another selection, or set alloc.m to None"),
      (penalty_from >= sampler.max_new_tokens,
       f"recipe.reward.overlong_max={reward.overlong_max}, overlong_cache="
       f"{reward.overlong_cache}: the penalty begins above {penalty_from} "
       f"tokens, but answers end at sampler.max_new_tokens="
       f"{sampler.max_new_tokens}; lower overlong_max"),
      (sampler.temperature == 0, "sampler.temperature=0: greedy rollouts of "
       "one problem are all the same, nothing can be learned; use > 0"),
      (minibatches > alloc.Bp,
       f"recipe.updates.minibatches={minibatches} of alloc.Bp={alloc.Bp} "
       "problems: expected at most one update for each problem"),
      (alloc.Bp > problems,
       f"alloc.Bp={alloc.Bp} distinct problems a step, but {stratum} has "
       f"{problems} training problems; lower Bp or make a larger stratum"),
      (rounds * alloc.Bp > problems,
       f"recipe.filter.rounds={rounds} of alloc.Bp={alloc.Bp} distinct "
       f"problems, but {stratum} has {problems} training problems; lower "
       f"rounds to {problems // alloc.Bp} or less"))
  _check_ddof(config)
  _check_selection(config)
