"""Checks all inputs of a run and builds what stays constant during it."""

import dataclasses
import functools
import hashlib
import time
import typing

import jax

from isojax import experiment as experiment_lib
from isojax import mesh as mesh_lib
from isojax import own_file
from isojax import policy as policy_lib
from isojax import rng
from isojax.ledger import records
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_weights
from isojax.models import lora as lora_lib
from isojax.allocation import Allocation
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import packing
from isojax.rl import update as update_lib
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import base as base_lib
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts


@dataclasses.dataclass(frozen=True)
class RunContext:
  """What stays constant during a run."""

  e: experiment_lib.Experiment
  folder: str  # checkpoint of the base policy
  model_sha256: str  # of its weights
  identity: dict  # all inputs of the results
  run_id: str  # its hash
  tokenizer: object  # transformers' fast tokenizer
  stratum: strata_lib.Stratum
  train: Prompts  # of stratum.train, host arrays
  validation: Prompts
  model: decoder.Transformer
  sampler: sampler_lib.Sampler
  merge: typing.Callable  # (base, adapters) to parameters, in sampler.dtype
  reward: dict  # {"reward": the file of task.grader.file}, or empty
  notes: tuple[str, ...]  # for the user, before the run


def check_task(e: experiment_lib.Experiment, path: str, header: dict) -> None:
  """Raises InputError if the grader cannot judge the problems of a stratum."""
  task = base_lib.TASKS[e.task.grader.name]
  if header["task"] != e.task.grader.name and task.read is None:
    raise InputError(
        f"{path} contains problems of {header['task']!r}, but task.grader.name="
        f"{e.task.grader.name!r} grades others; use the grader that they were "
        "measured with, or a reward of your own: task.grader.name=python")
  task.check_source(strata_lib.source(header))


def read_stratum(e: experiment_lib.Experiment, path: str, tokenizer, V: int):
  """Returns a stratum, its prompts by split, and notes.

  Problems are dropped if their prompts are too long.

  Raises:
    InputError: the grader cannot grade it, no training or no validation prompt
      fits, or a prompt has a token outside the model's vocabulary V.
  """
  stratum, prompts = strata_lib.read(path), {}
  check_task(e, path, stratum.header)
  kept, dropped = stratum, {}
  for split in strata_lib.SPLITS:
    problems = getattr(stratum, split)
    fitting, prompts[split] = prompts_lib.encode(
        tokenizer, problems, e.task.prompt, S=e.sampler.max_prompt_tokens, V=V,
        question=base_lib.TASKS[stratum.header["task"]].question)
    kept = dataclasses.replace(kept, **{split: fitting})
    dropped[split] = len(problems) - len(fitting)
  if not any(dropped.values()):
    return kept, prompts, ()
  return kept, prompts, (
      f"{path}: dropped {dropped['train']} training and "
      f"{dropped['validation']} validation problems: their prompts are longer "
      f"than sampler.max_prompt_tokens={e.sampler.max_prompt_tokens}; "
      f"D = {len(kept.train)} are left",)


def other_model(e: experiment_lib.Experiment, header: dict,
                found: str) -> tuple[str, ...]:
  """Returns a note if the stratum was measured with another model."""
  if "model_sha256" not in header or (
      header["model_sha256"] in (None, found)):
    return ()
  return (f"{e.task.stratum} was measured with {header['model']} "
          f"({header['model_sha256'][:12]}), not with the model that is "
          f"trained, {e.model.path} ({found[:12]}): the pass rates of this "
          "model are unknown; python -m launch.split measures them",)


def other_budget(config, a: Allocation) -> tuple[str, ...]:
  """Returns a note if a run will not spend alloc.C, the budget of its config.
  """
  if config.alloc.M is not None or config.alloc.C == a.C:
    return ()
  return (f"alloc.C={config.alloc.C} is no whole number of steps: "
          f"{a.C} rollouts will be spent, in {a.M} step{'s' * (a.M > 1)} of "
          f"Bp * n = {a.B}",)


def other_reward(e: experiment_lib.Experiment, header: dict,
                 found: str) -> tuple[str, ...]:
  """Returns a note if a stratum's pass rates are not those of the reward.

  Args:
    found: the hash of the reward's file.
  """
  by = header["reward_sha256"] if "reward_sha256" in header else header["task"]
  if by == found or "model_sha256" not in header or (
      header["model_sha256"] is None):
    return ()
  return (f"the pass rates of {e.task.stratum} were measured by another grader "
          f"than {e.task.grader.file}: by {header['task']}; python -m "
          "launch.split with this grader measures them",)


def _prompts_sha256(prompts: dict[str, Prompts]) -> str:
  """Returns a hash of encoded prompts; chat templates may change them."""
  content = hashlib.sha256()
  for split in strata_lib.SPLITS:
    content.update(prompts[split].len_P.tobytes())
    content.update(prompts[split].tokens_PxS.tobytes())
  return content.hexdigest()


def prepare(config) -> RunContext:
  """Returns the context of a config; writes nothing.

  Raises:
    InputError: the config or a file that it names is invalid.
  """
  e = experiment_lib.load(config)
  mesh = mesh_lib.make_mesh(e.mesh)
  opened = policy_lib.opened_model(e.model.path, mesh)
  folder, tokenizer, _, model = opened
  stratum, prompts, notes = read_stratum(
      e, e.task.stratum, tokenizer, model.cfg.V)
  experiment_lib.check(e, problems=len(stratum.train),
                       max_positions=model.cfg.max_positions)
  reward = grader_lib.with_reward(e.task.grader, {})
  grader_lib.probe(e.task.grader, strata_lib.source(stratum.header)
                   | reward, stratum.train[0])
  sampler, sampler_notes = policy_lib.make_sampler(opened, e.sampler)
  update_kernel(e, model)
  model_sha256 = hf_weights.sha256(folder)
  values = config.to_dict()  # a budget that is no whole step is not spent
  identity = experiment_lib.identity(
      values | {"alloc": values["alloc"] | {"C": e.alloc.C}}) | {
      "model_sha256": model_sha256,
      "model_text_sha256": policy_lib.text_sha256(folder),
      "stratum_sha256": stratum.header["sha256"],
      "prompts_sha256": _prompts_sha256(prompts)}
  if e.recipe.filter.rounds == 1 and not e.alloc.schedule:
    notes += other_budget(config, e.alloc)
  if e.recipe.loss.own:
    identity["functions_sha256"] = {
        kind: own.sha256 for kind, own in sorted(e.recipe.loss.own.items())}
  if reward:
    identity["reward_sha256"] = own_file.sha256(reward["reward"])
    notes += other_reward(e, stratum.header, identity["reward_sha256"])
  return RunContext(
      e=e, folder=folder, model_sha256=model_sha256, identity=identity,
      run_id=workdir.run_id(identity),
      tokenizer=tokenizer, stratum=stratum,
      **_shortened(sampler, prompts),
      model=model, merge=jax.jit(functools.partial(
          lora_lib.merge, e.model.lora, dtype=e.sampler.dtype,
          precision=e.sampler.precision)),
      sampler=sampler, reward=reward,
      notes=(*notes, *sampler_notes,
             *other_model(e, stratum.header, model_sha256)))


def _shortened(sampler: sampler_lib.Sampler, prompts: dict[str, Prompts]):
  """Returns the prompts of each split, cut to the length of the longest."""
  return {split: sampler_lib.shortened(sampler, prompts[split])
          for split in strata_lib.SPLITS}


def update_kernel(e: experiment_lib.Experiment,
                  model: decoder.Transformer) -> str:
  """Returns the update's attention kernel; InputError as attention.choose."""
  return update_lib.with_kernel(
      model, e.recipe.loss, e.sampler.max_prompt_tokens + packing.width(
          e.sampler.max_new_tokens, e.alloc.n_max)).attention


def on_stratum(context: RunContext, path: str) -> RunContext:
  """Returns the context with another stratum; InputError as `prepare`."""
  stratum, prompts, notes = read_stratum(
      context.e, path, context.tokenizer, context.model.cfg.V)
  return dataclasses.replace(context, stratum=stratum, notes=notes,
                             **_shortened(context.sampler, prompts))


def make_optimizer(e: experiment_lib.Experiment):
  """Returns the optimizer, and its learning rate as a function of the step."""
  cfg = e.recipe.optimizer
  schedule = optimizer_lib.warmup_then_constant(e.lr, cfg.warmup_steps)
  return optimizer_lib.make(cfg, schedule), schedule


def make_critic(e: experiment_lib.Experiment) -> optimizer_lib.Critic | None:
  """Returns the critic and its optimizer; None for a recipe without one."""
  cfg, optimizer = e.recipe.critic, e.recipe.optimizer
  if cfg.kind == "none":
    return None
  schedule = optimizer_lib.warmup_then_constant(
      cfg.lr * e.lr / optimizer.base_lr, optimizer.warmup_steps)
  return optimizer_lib.Critic(cfg, optimizer_lib.make(optimizer, schedule))


def base_params(context: RunContext):
  """Returns the base policy's parameters, on the mesh."""
  return hf_weights.load(
      context.folder,
      lora_lib.abstract_base(context.model, context.e.model.lora))


def first_trained(context: RunContext, name: str):
  """Returns the trained parameters of step 0: all of them, or adapters.

  Args:
    name: of the random numbers of adapters.
  """
  if not context.e.model.lora.rank:
    return base_params(context)
  return lora_lib.init(context.model, context.e.model.lora,
                       rng.stream(context.e.seed, name))


def first_state(context: RunContext, tx):
  """Returns the train state of step 0."""
  critic = make_critic(context.e)
  trunk = (first_trained(context, "critic") if critic and critic.own else None)
  return optimizer_lib.init_state(
      context.model, tx, first_trained(context, "lora"), context.e.model.lora,
      critic, trunk)


def frozen_base(context: RunContext):
  """Returns the frozen base of adapters; None if all parameters are trained."""
  return base_params(context) if context.e.model.lora.rank else None


def abstract_state(context: RunContext, tx):
  """Returns shapes and shardings of the train state."""
  return optimizer_lib.abstract_state(context.model, tx, context.e.model.lora,
                              make_critic(context.e))


def merged(context: RunContext, base, trained):
  """Returns the parameters to sample from."""
  return context.merge(base, trained) if context.e.model.lora.rank else trained


def task_name(context: RunContext) -> str:
  """Returns what judges: a task, or python and a hash of the reward's file."""
  if not context.reward:
    return context.stratum.header["task"]
  return f"python-{context.identity['reward_sha256'][:12]}"


TOTALS = records.TOTALS


def identity_fields(context: RunContext, step: int, rollouts: int,
                    n: int) -> dict:
  """Returns the fields of every record, without the cumulative totals.

  Args:
    context: of the run.
    step: steps made.
    rollouts: sampled in them.
    n: rollouts per problem.
  """
  e, D = context.e, len(context.stratum.train)
  return {"run_id": context.run_id, "seed": e.seed, "model": e.model.path,
          "task": task_name(context),
          "split": context.stratum.header["stratum"],
          "Bp": e.alloc.Bp, "n": n, "m": e.alloc.m_of(n), "D": D, "step": step,
          "rollouts": rollouts, "unix_time": round(time.time(), 3),
          "epoch": step / (D // e.alloc.Bp)}  # D // Bp steps each


def rollouts_of(kept: list[dict]) -> int:
  """Returns the rollouts at the last record."""
  return kept[-1]["rollouts"] if kept else 0


def totals_of(kept: list[dict]) -> dict:
  """Returns the cumulative totals at the last record."""
  if not kept:
    return dict.fromkeys(TOTALS, 0)
  return {name: kept[-1][name] for name in TOTALS}
