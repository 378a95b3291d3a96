"""What stays constant during a run: policy, stratum, sampler, update.

`prepare` checks all inputs of a run before anything is compiled or written.
"""

import dataclasses
import functools
import hashlib
import pathlib
import typing

import jax

from isojax.core import custom_function, memory
from isojax.core import model_shape as shape_lib
from isojax.errors import InputError
from isojax.ledger import workdir
from isojax.models import auto_dtype, decoder, hf_config, hf_weights
from isojax.models import lora as lora_lib
from isojax.models import tokenizer as tokenizer_lib
from isojax.rl import algorithm, packing
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.run import experiment as experiment_lib
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import profile, rng
from isojax.sampling import engine
from isojax.sampling import interrupt as interrupt_lib
from isojax.tasks import base as base_lib
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts, TrainState

TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json",
              "tokenizer_config.json", "chat_template.jinja")


class BasePolicy(typing.NamedTuple):
  """A checkpoint with checked files, whose weights are not loaded yet."""

  folder: str  # on this machine
  tokenizer: object  # transformers' fast tokenizer
  eos_ids: tuple[int, ...]  # tokens that end a rollout
  model: decoder.Transformer


@dataclasses.dataclass(frozen=True)
class Learner:
  """The programs that train, and the frozen weights that they read."""

  schedule: typing.Callable  # update -> learning rate
  update: typing.Callable  # see update.make_update
  scored: tuple[str, ...]  # see algorithm.scored_columns
  score: typing.Callable  # see update.make_score
  base: dict | None  # of adapters and KL; None without both


@dataclasses.dataclass(frozen=True)
class Setup:
  """What stays constant during a run."""

  e: experiment_lib.Experiment
  config: dict  # of e, with the rollouts that are spent as alloc.C
  folder: str  # checkpoint of the base policy
  model_sha256: str  # of its weights
  identity: dict  # all inputs of the results
  run_id: str  # its hash
  tokenizer: object  # transformers' fast tokenizer
  stratum: strata_lib.Stratum
  train: Prompts  # of stratum.train, host arrays
  validation: Prompts
  model: decoder.Transformer
  sampler: engine.Sampler
  merge: typing.Callable  # (base, adapters) to parameters, in sampler.dtype
  reward: dict  # {"reward": the file of task.grader.file}, or empty
  notes: tuple[str, ...]  # for the user, before the run
  # Values that change rounding, where they are not those that the run began
  # with, such as "sampler.slots=16"; None without.
  resumed_with: str | None = None
  learner: Learner | None = None  # of a run that trains

  def policy(self, state: TrainState):
    """The parameters to sample from."""
    return merged(self, self.learner.base, state.params)


def text_sha256(folder: str) -> str:
  """Hash of a checkpoint's text files, which also decide results."""
  files = [file for name in TEXT_FILES
           if (file := pathlib.Path(folder, name)).is_file()]
  return hashlib.sha256("\n".join(
      f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}"
      for file in files).encode()).hexdigest()


def open_policy(path: str, mesh) -> BasePolicy:
  """Opens a checkpoint by folder or hub name, on a mesh, and checks its files.
  """
  folder = hf_config.resolve(path)
  # Before the tokenizer, whose loader would report an error of config.json as
  # its own.
  model = decoder.Transformer(hf_config.read(folder), mesh)
  tokenizer = tokenizer_lib.load(folder)
  # Not len(tokenizer): Gemma 3's exceeds its embedding rows by one token.
  ends = tokenizer_lib.eos_ids(folder, tokenizer)
  if max(ends) >= model.cfg.V:
    raise InputError(
        f"{path}: the EOS token id {max(ends)} is not below vocab_size="
        f"{model.cfg.V} of config.json; copy tokenizer and model from the same "
        "checkpoint")
  hf_weights.check(folder, decoder.abstract_params(model))
  return BasePolicy(folder, tokenizer, ends, model)


def shape_of(cfg: decoder.ModelConfig) -> shape_lib.ModelShape:
  """The planner's description of a decoder."""
  return shape_lib.ModelShape(
      layers=cfg.Z, width=cfg.D, heads=cfg.N, kv_heads=cfg.K, head_dim=cfg.H,
      mlp=cfg.F, vocab=cfg.V, tied=cfg.tied, family=shape_lib.Family(
          cfg.qkv_bias, cfg.qk_norm, gemma=cfg.post_norms))


def sampler_bytes(model: decoder.Transformer, cfg: engine.SamplerConfig
                  ) -> memory.DeviceBytes:
  """What a sampler takes on each device of the model's mesh."""
  return memory.DeviceBytes(
      shape_of(model.cfg), memory.Formats(
          cfg.dtype, sampled_head=cfg.head_dtype),
      max_prompt=cfg.max_prompt_tokens, max_response=cfg.max_new_tokens,
      fused=engine.kernel(model, cfg, cfg.max_prompt_tokens) != "einsum",
      fsdp=model.mesh.shape["fsdp"], tensor=model.mesh.shape["tensor"],
      page=cfg.page, expected=cfg.expected_tokens)


def make_sampler(base: BasePolicy, cfg: engine.SamplerConfig):
  """The sampler with as many slots as its memory admits, and notes."""
  # launch.compile has no tokenizer; the phrase changes no size of its programs.
  phrase = base.tokenizer and interrupt_lib.encoded(
      cfg.interrupt, base.tokenizer, eos=base.eos_ids, V=base.model.cfg.V,
      T=cfg.max_new_tokens)
  G, sizes = mesh_lib.blocks(base.model.mesh), sampler_bytes(base.model, cfg)
  wanted = -(-cfg.slots // G)
  slots, pages, gathered = sizes.admitted(
      budget=cfg.memory_gib * 2**30, most=wanted)
  if not slots:
    raise InputError(
        f"sampler.memory_gib={cfg.memory_gib}: not even one slot fits on a "
        f"device, it needs {sizes.least / 2**30:.3g} GiB; increase "
        "memory_gib, use more devices on mesh.fsdp or mesh.tensor, or lower "
        "max_prompt_tokens or max_new_tokens")
  notes = () if slots == wanted else (
      f"sampler: {slots * G} of {cfg.slots} slots fit into memory_gib="
      f"{cfg.memory_gib}",)
  if cfg.page is not None:
    notes += (f"sampler: {slots * G} slots, {pages} pages of {cfg.page} "
              "positions on each device",)
  return engine.make_sampler(
      base.model, dataclasses.replace(cfg, slots=min(cfg.slots, slots * G)),
      base.eos_ids, gathered=gathered, interrupt=phrase, pages=pages), notes


def read_stratum(e: experiment_lib.Experiment, path: str, tokenizer, V: int):
  """A stratum without too long prompts, its prompts by split, and notes.

  InputError: the grader cannot grade it, no prompt of a split fits, or a prompt
  has a token outside the model's vocabulary V.
  """
  stratum, prompts = strata_lib.read(path), {}
  header, task = stratum.header, base_lib.TASKS[e.task.grader.name]
  if header["task"] != e.task.grader.name and task.read is None:
    raise InputError(
        f"{path} contains problems of {header['task']!r}, but task.grader.name="
        f"{e.task.grader.name!r} grades others; use the grader that they were "
        "measured with, or a reward of your own: task.grader.name=python")
  task.check_source(strata_lib.source(header))
  kept, dropped = stratum, {}
  for split in strata_lib.SPLITS:
    problems = getattr(stratum, split)
    fitting, prompts[split] = prompts_lib.encode(
        tokenizer, problems, e.task.prompt, S=e.sampler.max_prompt_tokens, V=V)
    kept = dataclasses.replace(kept, **{split: fitting})
    dropped[split] = len(problems) - len(fitting)
  if not any(dropped.values()):
    return kept, prompts, ()
  return kept, prompts, (
      f"{path}: dropped {dropped['train']} training and "
      f"{dropped['validation']} validation problems: their prompts are longer "
      f"than sampler.max_prompt_tokens={e.sampler.max_prompt_tokens}; "
      f"D = {len(kept.train)} are left",)


def _notes(e: experiment_lib.Experiment, alloc: dict, header: dict, model: str,
           reward: str | None) -> tuple[str, ...]:
  """Notes on a budget that is not spent, and on pass rates of others.

  `alloc` is the section of the config. `model` and `reward` are hashes: of the
  weights, and of task.grader.file.
  """
  a, notes = e.alloc, ()
  if (e.recipe.filter.rounds == 1 and alloc["M"] is None
      and alloc["C"] != a.C):
    notes += (f"alloc.C={alloc['C']} is no whole number of steps: "
              f"{a.C} rollouts will be spent, in {a.M} step{'s' * (a.M > 1)} "
              f"of Bp * n = {a.B}",)
  by = header["model_sha256"] if "model_sha256" in header else None
  if by is None:  # not measured
    return notes
  judge = header["reward_sha256"] if "reward_sha256" in header else (
      header["task"])
  if reward is not None and judge != reward:
    notes += (f"the pass rates of {e.task.stratum} were measured by another "
              f"grader than {e.task.grader.file}: by {header['task']}; python "
              "-m launch.split with this grader measures them",)
  if by != model:
    notes += (f"{e.task.stratum} was measured with {header['model']} "
              f"({by[:12]}), not with the model that is trained, "
              f"{e.model.path} ({model[:12]}): the pass rates of this model "
              "are unknown; python -m launch.split measures them",)
  return notes


def _prompts_sha256(prompts: dict[str, Prompts]) -> str:
  """Hash of encoded prompts, which chat templates may change."""
  content = hashlib.sha256()
  for split in strata_lib.SPLITS:
    content.update(prompts[split].len_P.tobytes())
    content.update(prompts[split].tokens_PxS.tobytes())
  return content.hexdigest()


def with_auto(values: dict, platform: str, stored) -> tuple[dict, tuple]:
  """The config with a dtype for each `auto`, and a note that names it.

  A run that resumes keeps its dtypes, also on a processor on which `auto` would
  now be another. For `stored` see `prepare`; here it takes a config.
  """
  auto = [key for key, dtype in experiment_lib.dtypes(values).items()
          if dtype == shape_lib.AUTO]
  if not auto:
    return values, ()
  of = lambda dtype: experiment_lib.with_dtypes(
      values, dict.fromkeys(auto, dtype))
  kept = next(filter(None, map(stored, map(of, decoder.DTYPES))), None)
  if kept is not None:
    dtypes = experiment_lib.dtypes(kept)
    return experiment_lib.with_dtypes(
        values, {key: dtypes[key] for key in auto}), tuple(
            f"{key}: auto is {dtypes[key]}, with which this run was started"
            for key in auto)
  dtype, why = auto_dtype.chosen(platform)
  return of(dtype), (f"{', '.join(auto)}: auto is {dtype}, because {why}",)


def prepare(config, stored=lambda run_id: None) -> Setup:
  """The setup of a ConfigDict, see `setup_of`."""
  return setup_of(config.to_dict(), stored)


def setup_of(values: dict, stored=lambda run_id: None) -> Setup:
  """The setup of a config, without a learner, all checked; writes nothing.

  `stored` gives the config of the run in the folder of a run id, or None: a
  dtype that is `auto` stays that of the stored run.
  """
  e = experiment_lib.of_values(values)
  base = open_policy(e.model.path, mesh_lib.make_mesh(e.mesh))
  folder, tokenizer, _, model = base
  stratum, prompts, notes = read_stratum(
      e, e.task.stratum, tokenizer, model.cfg.V)
  experiment_lib.check(e, problems=len(stratum.train),
                       max_positions=model.cfg.max_positions)
  reward = grader_lib.with_reward(e.task.grader, {})
  grader_lib.probe(e.task.grader, strata_lib.source(stratum.header)
                   | reward, stratum.train[0])
  model_sha256 = hf_weights.sha256(folder)
  files = {"model_sha256": model_sha256,
           "model_text_sha256": text_sha256(folder),
           "stratum_sha256": stratum.header["sha256"],
           "prompts_sha256": _prompts_sha256(prompts)}
  own = {kind: custom_function.sha256(own)
         for kind, own in e.recipe.loss.own.items()}
  if e.alloc.division.own:
    own["rule"] = custom_function.sha256(e.alloc.division.own)
  if own:
    files["functions_sha256"] = dict(sorted(own.items()))
  if reward:
    files["reward_sha256"] = custom_function.sha256(reward["reward"])
  identity_of = lambda config: experiment_lib.identity(config) | files
  config, dtype_notes = with_auto(
      values | {"alloc": values["alloc"] | {"C": e.alloc.C}},
      model.mesh.devices.flat[0].platform,
      lambda config: stored(workdir.run_id(identity_of(config))))
  e = experiment_lib.of_values(experiment_lib.with_dtypes(
      values, experiment_lib.dtypes(config)))
  sampler, sampler_notes = make_sampler(base, e.sampler)
  update_kernel(e, model)
  identity = identity_of(config)
  return Setup(
      e=e, config=config, folder=folder, model_sha256=model_sha256,
      identity=identity, run_id=workdir.run_id(identity), tokenizer=tokenizer,
      stratum=stratum, **_shortened(sampler, prompts), model=model,
      merge=jax.jit(functools.partial(
          lora_lib.merge, e.model.lora, dtype=e.sampler.dtype,
          precision=e.sampler.precision)),
      sampler=sampler, reward=reward, notes=(
          *notes, *dtype_notes, *sampler_notes, *_notes(
              e, values["alloc"], stratum.header, model_sha256,
              identity["reward_sha256"] if reward else None)))


def _shortened(sampler: engine.Sampler, prompts: dict[str, Prompts]):
  """The prompts of each split, cut to the length of the longest."""
  return {split: engine.shortened(sampler, prompts[split])
          for split in strata_lib.SPLITS}


def on_stratum(setup: Setup, path: str) -> Setup:
  stratum, prompts, notes = read_stratum(
      setup.e, path, setup.tokenizer, setup.model.cfg.V)
  return dataclasses.replace(setup, stratum=stratum, notes=notes,
                             **_shortened(setup.sampler, prompts))


def on_split(setup: Setup, path: str, split: str) -> Setup:
  """The setup that evaluates a split of the stratum in a file.

  A test split is a file beside the stratum's, which training never opens.
  """
  if split == "validation":
    return setup
  e = setup.e
  problems = strata_lib.read_test(path, setup.stratum.header)
  fitting, prompts = prompts_lib.encode(
      setup.tokenizer, problems, e.task.prompt, S=e.sampler.max_prompt_tokens,
      V=setup.model.cfg.V)
  return dataclasses.replace(
      setup, stratum=dataclasses.replace(setup.stratum, validation=fitting),
      validation=engine.shortened(setup.sampler, prompts))


def update_kernel(e: experiment_lib.Experiment,
                  model: decoder.Transformer) -> str:
  """The update's attention kernel; InputError as attention.choose."""
  return update_lib.with_kernel(
      model, e.recipe.loss, e.sampler.max_prompt_tokens + packing.width(
          e.sampler.max_new_tokens, e.alloc.n_max)).attention


def make_optimizer(e: experiment_lib.Experiment, lr: float | None = None):
  """The optimizer, and its learning rate as a function of the update."""
  cfg = e.recipe.optimizer
  schedule = optimizer_lib.warmup_then_constant(
      e.lr if lr is None else lr, cfg.warmup_steps)
  return optimizer_lib.make(cfg, schedule), schedule


def make_critic(e: experiment_lib.Experiment) -> optimizer_lib.Critic | None:
  """The critic and its optimizer; None for a recipe without one."""
  cfg = e.recipe.critic
  if cfg.kind == "none":
    return None
  return optimizer_lib.Critic(cfg, make_optimizer(
      e, cfg.lr * e.lr / e.recipe.optimizer.base_lr)[0])


def with_learner(setup: Setup) -> Setup:
  """The setup of a run that trains; loads the frozen weights."""
  e = setup.e
  tx, schedule = make_optimizer(e)
  critic, loss, lora = make_critic(e), e.recipe.loss, e.model.lora
  scored = algorithm.scored_columns(loss, e.recipe.updates, e.recipe.critic)
  return dataclasses.replace(setup, learner=Learner(
      schedule,
      profile.stage("update", update_lib.make_update(
          setup.model, tx, loss, lora, critic)), scored,
      profile.stage("score", update_lib.make_score(
          setup.model, loss, scored, lora, critic)),
      base_params(setup) if loss.kl_coef else frozen_base(setup)))


def base_params(setup: Setup):
  """The base policy's parameters, on the mesh."""
  return hf_weights.load(
      setup.folder, lora_lib.abstract_base(setup.model, setup.e.model.lora))


def frozen_base(setup: Setup):
  """The frozen base of adapters; None if all parameters are trained."""
  return base_params(setup) if setup.e.model.lora.rank else None


def first_state(setup: Setup) -> TrainState:
  e, model = setup.e, setup.model
  critic = make_critic(e)

  def trained(stream: str):
    return lora_lib.init(model, e.model.lora, rng.stream(e.seed, stream)) if (
        e.model.lora.rank) else base_params(setup)

  trunk = trained("critic") if critic and critic.own else None
  return optimizer_lib.init_state(
      model, make_optimizer(e)[0], trained("lora"), e.model.lora, critic, trunk)


def abstract_state(setup: Setup) -> TrainState:
  return optimizer_lib.abstract_state(
      setup.model, make_optimizer(setup.e)[0], setup.e.model.lora,
      make_critic(setup.e))


def merged(setup: Setup, base, trained):
  return setup.merge(base, trained) if setup.e.model.lora.rank else trained
