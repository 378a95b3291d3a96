"""The sampler that fits; the update's kernel, optimizer and critic."""

import dataclasses

from isojax.core import memory
from isojax.core import model_shape as shape_lib
from isojax.models import decoder
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import packing
from isojax.rl import update as update_lib
from isojax.run import experiment as experiment_lib
from isojax.run.inputs import BasePolicy
from isojax.runtime import mesh as mesh_lib
from isojax.sampling import engine
from isojax.sampling import interrupt as interrupt_lib
from isojax.types import UpdateScalars


def shape_of(cfg: decoder.ModelConfig) -> shape_lib.ModelShape:
  """The planner's description of a decoder."""
  return shape_lib.ModelShape(
      layers=cfg.Z, width=cfg.D, heads=cfg.N, kv_heads=cfg.K, head_dim=cfg.H,
      mlp=cfg.F, vocab=cfg.V, tied=cfg.tied, family=shape_lib.Family(
          cfg.qkv_bias, cfg.qk_norm, gemma=cfg.post_norms))


def sampler_bytes(model: decoder.Transformer, cfg: engine.SamplerConfig
                  ) -> memory.DeviceBytes:
  """The memory of a sampler on each device of the model's mesh."""
  return memory.DeviceBytes(
      shape_of(model.cfg), memory.Formats(
          cfg.dtype, sampled_head=cfg.head_dtype),
      max_prompt=cfg.max_prompt_tokens, max_response=cfg.max_new_tokens,
      fused=engine.kernel(model, cfg, cfg.max_prompt_tokens) != "einsum",
      fsdp=model.mesh.shape["fsdp"], tensor=model.mesh.shape["tensor"],
      page=cfg.page, expected=cfg.expected_tokens)


def make_fitting_sampler(base: BasePolicy, cfg: engine.SamplerConfig):
  """The sampler with as many slots as fit into its memory, and notes."""
  # launch.compile has no tokenizer and needs no phrase, which changes no size.
  phrase = base.tokenizer and interrupt_lib.encoded(
      cfg.interrupt, base.tokenizer, eos=base.eos_ids, V=base.model.cfg.V,
      T=cfg.max_new_tokens)
  G = mesh_lib.num_blocks(base.model.mesh)
  wanted = -(-cfg.slots // G)  # slots of a block, rounded up
  slots, pages, weights_gathered = sampler_bytes(
      base.model, cfg).slots_and_pages_within(cfg.memory_gib, most=wanted)
  notes = () if slots == wanted else (
      f"sampler: {slots * G} of {cfg.slots} slots fit into memory_gib="
      f"{cfg.memory_gib}",)
  if cfg.page is not None:
    notes += (f"sampler: {slots * G} slots, {pages} pages of {cfg.page} "
              "positions on each device",)
  return engine.make_sampler(
      base.model, dataclasses.replace(cfg, slots=min(cfg.slots, slots * G)),
      base.eos_ids, weights_gathered=weights_gathered, interrupt=phrase,
      pages=pages), notes


def update_kernel(config: experiment_lib.Experiment,
                  model: decoder.Transformer) -> str:
  """The update's attention kernel; raises InputError as attention.choose."""
  return update_lib.with_kernel(
      model, config.recipe.loss, config.sampler.max_prompt_tokens
      + packing.width(config.sampler.max_new_tokens, config.alloc.n)).attention


def update_scalars(config: experiment_lib.Experiment, *, updates: int,
                   rollouts: int) -> UpdateScalars:
  """The numbers of the update after `updates` others.

  `rollouts` were sampled before its step.
  """
  optimizer = config.recipe.optimizer
  return optimizer_lib.scalars(
      optimizer, lr=config.lr, temperature=config.sampler.temperature,
      critic_lr=config.recipe.critic.lr * config.lr / optimizer.base_lr,
      updates=updates, spent=rollouts / config.alloc.C)


def make_critic(
    config: experiment_lib.Experiment) -> optimizer_lib.Critic | None:
  """The critic and its optimizer; None for a recipe without one."""
  cfg = config.recipe.critic
  if cfg.kind == "none":
    return None
  return optimizer_lib.Critic(cfg, optimizer_lib.make(config.recipe.optimizer))
