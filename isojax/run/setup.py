"""Setup: what stays constant during a run, from its inputs and programs.

`prepare` checks all inputs of a run before anything is compiled or written.
"""

import dataclasses
import json
import typing

from isojax.ledger import workdir
from isojax.models import decoder, dither, hf_weights
from isojax.models import lora as lora_lib
from isojax.rl import algorithm
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.run import experiment as experiment_lib
from isojax.run import inputs, programs
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import profile, rng
from isojax.sampling import engine
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts, TrainState

# Fields of TrainState with the trained parameters of a policy.
POLICY_PARTS = {"average": "average", "current": "params"}


@dataclasses.dataclass(frozen=True)
class Learner:
  """The programs that train, and the frozen weights that they read."""

  update: typing.Callable  # see update.make_update
  scored: tuple[str, ...]  # see algorithm.scored_columns
  score: typing.Callable  # see update.make_score
  # The frozen base policy that adapters are added to and KL refers to; None if
  # neither is used.
  base: dict | None


@dataclasses.dataclass(frozen=True)
class Setup:
  """What stays constant during a run."""

  config: experiment_lib.Experiment  # checked
  # Of the config, as config.json holds it: with lists for tuples, alloc.C
  # rounded to whole steps, and in the workdir of a run the paths with which it
  # began, see state.start_of.
  values: dict
  folder: str  # checkpoint of the base policy
  model_sha256: str  # of its weights
  identity: dict  # all inputs of the results
  run_id: str  # hash of `identity`, or the stored one, see state.start_of
  tokenizer: object  # transformers' fast tokenizer
  stratum: strata_lib.Stratum
  train: Prompts  # of stratum.train, host arrays
  validation: Prompts
  model: decoder.Transformer
  sampler: engine.Sampler
  merge: typing.Callable  # (base, trained) -> parameters to sample from
  reward: dict  # {"reward": the file of task.grader.file}, or empty
  notes: tuple[str, ...]  # for the user, before the run
  # Values that differ from those at the start of the run and change rounding
  # only, such as "sampler.slots=16"; None if there are none.
  resumed_with: str | None = None
  learner: Learner | None = None  # of a run that trains

  @property
  def policies(self) -> tuple[str, ...]:
    """The policies of a run, the one that is evaluated and kept first."""
    return (("current",) if self.config.recipe.optimizer.average is None
            else ("average", "current"))

  def identity_as(self, values: dict) -> str:
    """Of the run with these values of the config, and with our files."""
    return workdir.hash_of(self.identity | experiment_lib.identity(values))

  def policy(self, state: TrainState, which: str):
    """The parameters to sample from: of the current policy, or the average."""
    return self.merge(self.learner.base, trained(state, which))


def prepare(config) -> Setup:
  """The setup of a ConfigDict, see `setup_of`."""
  return setup_of(config.to_dict())


def setup_of(values: dict) -> Setup:
  """The setup of a config, without a learner, all checked; writes nothing."""
  config = experiment_lib.from_values(values)
  policy = inputs.open_policy(
      config.model.path, mesh_lib.make_mesh(config.mesh))
  folder, tokenizer, _, model = policy
  stratum, prompts, notes = inputs.read_stratum(
      config, config.task.stratum, tokenizer, model.cfg.V)
  experiment_lib.check(config, problems=len(stratum.train),
                       max_positions=model.cfg.max_positions,
                       width=model.cfg.D)
  reward = inputs.read_reward(config, stratum)
  hashes = inputs.hashes(config, folder, stratum, prompts, reward)
  whole = json.loads(json.dumps(
      values | {"alloc": values["alloc"] | {"C": config.alloc.C}}))
  identity = experiment_lib.identity(whole) | hashes
  sampler, sampler_notes = programs.make_fitting_sampler(policy, config.sampler)
  programs.update_kernel(config, model)  # raises if the kernel is not supported
  return Setup(
      config=config, values=whole, folder=folder,
      model_sha256=hashes["model_sha256"], identity=identity,
      run_id=workdir.hash_of(identity), tokenizer=tokenizer, stratum=stratum,
      **shortened_splits(sampler, prompts), model=model,
      merge=lora_lib.make_merge(config.model.lora, dtype=config.sampler.dtype,
                                precision=config.sampler.precision),
      sampler=sampler, reward=reward, notes=(
          *notes, *sampler_notes, *inputs.notes(
              config, values["alloc"], stratum.header, hashes["model_sha256"],
              hashes["reward_sha256"] if reward else None)))


def shortened_splits(sampler: engine.Sampler, prompts: dict[str, Prompts]):
  """The prompts of each split, cut to the length of the longest."""
  return {split: engine.shortened(sampler, prompts[split])
          for split in strata_lib.SPLITS}


def with_learner(setup: Setup) -> Setup:
  """The setup of a run that trains; loads the frozen weights."""
  config, recipe, model = setup.config, setup.config.recipe, setup.model
  tx = optimizer_lib.make(recipe.optimizer)
  lora, critic = config.model.lora, programs.make_critic(config)
  scored = algorithm.scored_columns(
      recipe.loss, recipe.updates, recipe.critic)
  return dataclasses.replace(setup, learner=Learner(
      scored=scored,
      update=profile.stage("update", update_lib.make_update(
          model, tx, recipe.loss, lora, critic,
          average=recipe.optimizer.average is not None)),
      score=profile.stage("score", update_lib.make_score(
          model, recipe.loss, scored, lora, critic)),
      base=base_params(setup) if recipe.loss.kl_coef else frozen_base(setup)))


def base_params(setup: Setup):
  """The base policy's parameters, on the mesh."""
  return hf_weights.load(
      setup.folder,
      lora_lib.abstract_base(setup.model, setup.config.model.lora))


def frozen_base(setup: Setup):
  """The frozen base of adapters; None if all parameters are trained."""
  return base_params(setup) if setup.config.model.lora.rank else None


def first_state(setup: Setup) -> TrainState:
  """The train state of step 0."""
  config, model = setup.config, setup.model
  critic = programs.make_critic(config)

  def initial_params(stream: str):
    if config.model.lora.rank:
      return lora_lib.init(
          model, config.model.lora, rng.stream(config.seed, stream))
    params = base_params(setup)
    return (dither.initial_params(params)
            if experiment_lib.begins_dithered(setup.values) else params)

  trunk = initial_params("critic") if critic and critic.own else None
  optimizer = config.recipe.optimizer
  return optimizer_lib.init_state(
      model, optimizer_lib.make(optimizer), initial_params("lora"),
      config.model.lora, critic, trunk, average=optimizer.average is not None)


def abstract_state(setup: Setup) -> TrainState:
  optimizer = setup.config.recipe.optimizer
  return optimizer_lib.abstract_state(
      setup.model, optimizer_lib.make(optimizer), setup.config.model.lora,
      programs.make_critic(setup.config), average=optimizer.average is not None)


def trained(state: TrainState, which: str):
  """What training changes of a policy: all parameters, or adapters."""
  return getattr(state, POLICY_PARTS[which])
