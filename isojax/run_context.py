"""What stays the same from step to step, and every check before it exists."""

import dataclasses
import functools
import hashlib
import pathlib
import typing

import jax

from isojax import experiment as experiment_lib
from isojax import model_families
from isojax import mesh as mesh_lib
from isojax import rng
from isojax.ledger import records
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_config
from isojax.models import hf_tokenizer
from isojax.models import hf_weights
from isojax.models import lora as lora_lib
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import model_shape as model_shape_lib
from isojax.rl import packing
from isojax.rl import update as update_lib
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import base as base_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import stratum_file as stratum_file_lib
from isojax.types import Prompts


@dataclasses.dataclass(frozen=True)
class RunContext:
  """What stays the same from step to step."""

  e: experiment_lib.Experiment
  folder: str  # checkpoint of the base policy
  model_sha256: str  # of its weights
  identity: dict  # what decides the results
  run_id: str  # the hash of that
  tokenizer: object  # transformers' fast tokenizer
  stratum: stratum_file_lib.Stratum
  train: Prompts  # of stratum.train, host arrays
  validation: Prompts
  model: decoder.Transformer
  sampler: sampler_lib.Sampler
  merge: typing.Callable  # (base, adapters) to parameters, in sampler.dtype
  notes: tuple[str, ...]  # what a person should know before the run


TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json",
              "tokenizer_config.json", "chat_template.jinja")


def text_sha256(folder: str) -> str:
  """A hash of the files of a checkpoint that decide results beside weights."""
  lines = []
  for name in TEXT_FILES:
    file = pathlib.Path(folder) / name
    if file.is_file():
      lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()} {name}")
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Opened(typing.NamedTuple):
  """A base policy whose files were checked; its weights are not read yet."""

  folder: str  # checkpoint on this machine
  tokenizer: object  # transformers' fast tokenizer
  eos_ids: tuple[int, ...]  # tokens that end a rollout
  model: decoder.Transformer


def opened_model(path: str, mesh) -> Opened:
  """A checkpoint by folder or hub name, on a mesh.

  InputError if it is not there, not supported, or does not fit together.
  """
  folder = hf_config.resolve(path)
  tokenizer = hf_tokenizer.load(folder)
  model = decoder.Transformer(hf_config.read(folder), mesh)
  # Not len(tokenizer): Gemma 3 names one token more than it has rows for.
  ends = hf_tokenizer.eos_ids(folder, tokenizer)
  if max(ends) >= model.cfg.V:
    raise InputError(
        f"{path}: a rollout ends with token {max(ends)}, but the model has "
        f"only {model.cfg.V} (vocab_size of config.json); tokenizer and model "
        "are not of one checkpoint")
  hf_weights.check(folder, decoder.abstract_params(model))
  return Opened(folder, tokenizer, ends, model)


def shape_of(cfg: decoder.ModelConfig) -> model_shape_lib.ModelShape:
  """A decoder as the planner sees it."""
  return model_shape_lib.ModelShape(
      layers=cfg.Z, width=cfg.D, heads=cfg.N, kv_heads=cfg.K, head_dim=cfg.H,
      mlp=cfg.F, vocab=cfg.V, tied=cfg.tied, family=model_families.Family(
          cfg.qkv_bias, cfg.qk_norm, gemma=cfg.post_norms))


def slot_sizes(model: decoder.Transformer,
               cfg: sampler_lib.SamplerConfig) -> dict:
  """What `planner.memory.slots_admitted` asks of a sampler."""
  return dict(
      weights=cfg.weights or cfg.dtype, cache=cfg.cache or cfg.dtype,
      dtype=cfg.dtype, tensor=model.mesh.shape["tensor"],
      max_prompt=cfg.max_prompt_tokens, max_response=cfg.max_new_tokens,
      fused=sampler_lib.prompt_kernel(model, cfg) != "einsum")


def make_sampler(opened: Opened, cfg: sampler_lib.SamplerConfig):
  """The sampler with the slots that its memory admits, and notes.

  InputError if it admits none.
  """
  mesh, shape = opened.model.mesh, shape_of(opened.model.cfg)
  G, fsdp = mesh_lib.blocks(mesh), mesh.shape["fsdp"]
  wanted, sizes = -(-cfg.slots // G), slot_sizes(opened.model, cfg)
  slots, gathered = memory_lib.slots_admitted(
      shape, fsdp=fsdp, most=wanted, budget=cfg.memory_gib * 2**30, **sizes)
  if not slots:
    least = memory_lib.least_bytes(shape, fsdp=fsdp, **sizes)
    raise InputError(
        f"sampler.memory_gib={cfg.memory_gib}: not even one slot fits on a "
        f"device, it needs {least / 2**30:.3g}; give sampling more memory, "
        "use more devices on mesh.fsdp or mesh.tensor, or lower "
        "max_prompt_tokens or max_new_tokens")
  notes = () if slots == wanted else (
      f"sampler: {slots * G} of {cfg.slots} slots fit into memory_gib="
      f"{cfg.memory_gib}",)
  if cfg.cache and opened.model.cfg.qkv_bias:
    notes += (f"sampler.cache={cfg.cache}: keys of this family have biases, "
              "and where these are large the others' last bits are lost; watch "
              "logp_gap, and drop it if it is above a few hundredths",)
  return sampler_lib.make_sampler(
      opened.model, dataclasses.replace(cfg, slots=slots * G), opened.eos_ids,
      gathered=gathered), notes


def check_task(e: experiment_lib.Experiment, path: str, header: dict) -> None:
  """InputError if the grader cannot judge the problems of a stratum."""
  if header["task"] != e.task.grader.name:
    raise InputError(
        f"{path} holds problems of {header['task']!r}, but task.grader.name="
        f"{e.task.grader.name!r} judges others; use the grader that they were "
        "measured with")
  base_lib.TASKS[header["task"]].check_source(stratum_file_lib.source(header))


def read_stratum(e: experiment_lib.Experiment, path: str, tokenizer, V: int):
  """(stratum, its prompts by split, notes), without prompts that are too long.

  InputError if the grader cannot judge it, if no training or no validation
  prompt fits, or if one holds a token that a model of V tokens has not.
  """
  stratum, prompts = stratum_file_lib.read(path), {}
  check_task(e, path, stratum.header)
  kept, dropped = stratum, {}
  for split in stratum_file_lib.SPLITS:
    problems = getattr(stratum, split)
    fitting, prompts[split] = prompts_lib.encode(
        tokenizer, problems, e.task.prompt, S=e.sampler.max_prompt_tokens, V=V,
        question=base_lib.TASKS[e.task.grader.name].question)
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
  """A note if the stratum was measured with another model, naming both."""
  if "model_sha256" not in header or (
      header["model_sha256"] in (None, found)):
    return ()
  return (f"{e.task.stratum} was measured with {header['model']} "
          f"({header['model_sha256'][:12]}), not with the model that is "
          f"trained, {e.model.path} ({found[:12]}): how hard its problems are "
          "for this one is not known; python -m launch.split measures it",)


def _prompts_sha256(prompts: dict[str, Prompts]) -> str:
  """A hash of encoded prompts: a chat template may depend on anything."""
  content = hashlib.sha256()
  for split in stratum_file_lib.SPLITS:
    content.update(prompts[split].len_P.tobytes())
    content.update(prompts[split].tokens_PxS.tobytes())
  return content.hexdigest()


def prepare(config) -> RunContext:
  """Config to a context; every InputError comes from here, nothing is written."""
  e = experiment_lib.load(config)
  mesh = mesh_lib.make_mesh(e.mesh)
  opened = opened_model(e.model.path, mesh)
  folder, tokenizer, _, model = opened
  stratum, prompts, notes = read_stratum(
      e, e.task.stratum, tokenizer, model.cfg.V)
  experiment_lib.check(e, problems=len(stratum.train),
                       max_positions=model.cfg.max_positions)
  sampler, sampler_notes = make_sampler(opened, e.sampler)
  update_kernel(e, model)
  model_sha256 = hf_weights.sha256(folder)
  identity = experiment_lib.identity(config.to_dict()) | {
      "model_sha256": model_sha256,
      "model_text_sha256": text_sha256(folder),
      "stratum_sha256": stratum.header["sha256"],
      "prompts_sha256": _prompts_sha256(prompts)}
  return RunContext(
      e=e, folder=folder, model_sha256=model_sha256, identity=identity,
      run_id=workdir.run_id(identity),
      tokenizer=tokenizer, stratum=stratum,
      **_shortened(sampler, prompts),
      model=model, merge=jax.jit(functools.partial(
          lora_lib.merge, e.model.lora, dtype=e.sampler.dtype,
          precision=e.sampler.precision)),
      sampler=sampler,
      notes=(*notes, *sampler_notes,
             *other_model(e, stratum.header, model_sha256)))


def _shortened(sampler: sampler_lib.Sampler, prompts: dict[str, Prompts]):
  """Each split without the columns that even its longest prompt leaves empty.
  """
  return {split: sampler_lib.shortened(sampler, prompts[split])
          for split in stratum_file_lib.SPLITS}


def update_kernel(e: experiment_lib.Experiment,
                  model: decoder.Transformer) -> str:
  """The kernel of the update's attention; InputError if it cannot be had."""
  return update_lib.with_kernel(
      model, e.recipe.loss, e.sampler.max_prompt_tokens + packing.width(
          e.sampler.max_new_tokens, e.alloc.n)).attention


def on_stratum(context: RunContext, path: str) -> RunContext:
  """The same context with another stratum's problems; InputError as `prepare`."""
  stratum, prompts, notes = read_stratum(
      context.e, path, context.tokenizer, context.model.cfg.V)
  return dataclasses.replace(context, stratum=stratum, notes=notes,
                             **_shortened(context.sampler, prompts))


def make_optimizer(e: experiment_lib.Experiment):
  """The optimizer, and its learning rate as a function of the step."""
  cfg = e.recipe.optimizer
  schedule = update_lib.warmup_then_constant(e.lr, cfg.warmup_steps)
  return update_lib.make_optimizer(cfg, schedule), schedule


def base_params(context: RunContext):
  """The base policy's parameters, on the mesh."""
  return hf_weights.load(
      context.folder, lora_lib.abstract_base(context.model, context.e.model.lora))


def first_trained(context: RunContext):
  """What is trained, at step 0."""
  if not context.e.model.lora.rank:
    return base_params(context)
  return lora_lib.init(context.model, context.e.model.lora,
                       rng.stream(context.e.seed, "lora"))


def frozen_base(context: RunContext):
  """The base that adapters stand on; None if everything is trained."""
  return base_params(context) if context.e.model.lora.rank else None


def abstract_state(context: RunContext, tx):
  """Shapes and shardings of the train state."""
  return update_lib.abstract_state(context.model, tx, context.e.model.lora)


def merged(context: RunContext, base, trained):
  """The parameters to sample from."""
  return context.merge(base, trained) if context.e.model.lora.rank else trained


TOTALS = ("prompt_tokens", "sampled_tokens", "trained_tokens",
          "skipped_updates", "device_seconds")


def identity_fields(context: RunContext, step: int) -> dict:
  """The fields that every record has, but for the cumulative totals."""
  e, D = context.e, len(context.stratum.train)
  return {"run_id": context.run_id, "seed": e.seed, "model": e.model.path,
          "task": context.stratum.header["task"],
          "split": context.stratum.header["stratum"],
          "Bp": e.alloc.Bp, "n": e.alloc.n, "D": D, "step": step,
          "rollouts": step * e.alloc.B,
          "epoch": step / (D // e.alloc.Bp)}  # as the data order has it


def totals_of(kept: list[dict]) -> dict:
  """The cumulative totals at the last record: the ledger is the state."""
  if not kept:
    return dict.fromkeys(TOTALS, 0)
  last = records.ADDED | kept[-1]
  return {name: last[name] for name in TOTALS}
