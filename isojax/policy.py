"""Opens a base policy: its checkpoint, tokenizer, and sampler."""

import dataclasses
import hashlib
import pathlib
import typing

from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_config
from isojax.models import tokenizer as tokenizer_lib
from isojax.models import hf_weights
from isojax.models import shape as shape_lib
from isojax.sampling import sizes as sizes_lib
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling import sampler as sampler_lib

TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json",
              "tokenizer_config.json", "chat_template.jinja")


def text_sha256(folder: str) -> str:
  """Returns a hash of a checkpoint's text files, which also decide results."""
  lines = []
  for name in TEXT_FILES:
    file = pathlib.Path(folder) / name
    if file.is_file():
      lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()} {name}")
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Opened(typing.NamedTuple):
  """A base policy with checked files, whose weights are not loaded yet."""

  folder: str  # checkpoint on this machine
  tokenizer: object  # transformers' fast tokenizer
  eos_ids: tuple[int, ...]  # tokens that end a rollout
  model: decoder.Transformer


def opened_model(path: str, mesh) -> Opened:
  """Opens a checkpoint by folder or hub name, on a mesh.

  Raises:
    InputError: the checkpoint is missing or unsupported, or its files do not
      match.
  """
  folder = hf_config.resolve(path)
  # Before the tokenizer, whose loader also reads config.json, so that an error
  # of config.json is not reported as one of the tokenizer.
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
  return Opened(folder, tokenizer, ends, model)


def shape_of(cfg: decoder.ModelConfig) -> shape_lib.ModelShape:
  """Returns the planner's description of a decoder."""
  return shape_lib.ModelShape(
      layers=cfg.Z, width=cfg.D, heads=cfg.N, kv_heads=cfg.K, head_dim=cfg.H,
      mlp=cfg.F, vocab=cfg.V, tied=cfg.tied, family=shape_lib.Family(
          cfg.qkv_bias, cfg.qk_norm, gemma=cfg.post_norms))


def sampler_sizes(model: decoder.Transformer, cfg: sampler_lib.SamplerConfig
                  ) -> sizes_lib.SamplerSizes:
  """What decides the bytes of a sampler on each device of the model's mesh."""
  weights = cfg.weights or cfg.dtype
  return sizes_lib.SamplerSizes(
      shape_of(model.cfg), dtype=cfg.dtype, weights=weights,
      head=cfg.head_dtype or weights, cache=cfg.cache or cfg.dtype,
      max_prompt=cfg.max_prompt_tokens, max_response=cfg.max_new_tokens,
      fused=sampler_lib.prompt_kernel(model, cfg) != "einsum",
      fsdp=model.mesh.shape["fsdp"], tensor=model.mesh.shape["tensor"],
      page=cfg.page, expected=cfg.expected_tokens)


def make_sampler(opened: Opened, cfg: sampler_lib.SamplerConfig):
  """Returns the sampler with as many slots as its memory admits, and notes.

  Raises:
    InputError: not even one slot fits, or cfg.interrupt does not suit the
      tokenizer.
  """
  # launch.compile has no tokenizer; the phrase changes no size of its programs.
  phrase = opened.tokenizer and interrupt_lib.encoded(
      cfg.interrupt, opened.tokenizer, eos=opened.eos_ids,
      V=opened.model.cfg.V, T=cfg.max_new_tokens)
  G, sizes = mesh_lib.blocks(opened.model.mesh), sampler_sizes(opened.model, cfg)
  wanted = -(-cfg.slots // G)
  slots, pages, gathered = sizes.admitted(
      budget=cfg.memory_gib * 2**30, most=wanted)
  if not slots:
    raise InputError(
        f"sampler.memory_gib={cfg.memory_gib}: not even one slot fits on a "
        f"device, it needs {sizes.least_bytes / 2**30:.3g} GiB; increase memory_gib, "
        "use more devices on mesh.fsdp or mesh.tensor, or lower "
        "max_prompt_tokens or max_new_tokens")
  notes = () if slots == wanted else (
      f"sampler: {slots * G} of {cfg.slots} slots fit into memory_gib="
      f"{cfg.memory_gib}",)
  if cfg.page is not None:
    notes += (f"sampler: {slots * G} slots, {pages} pages of {cfg.page} "
              "positions on each device",)
  if cfg.cache and opened.model.cfg.qkv_bias:
    notes += (f"sampler.cache={cfg.cache}: keys of this model family have "
              "biases, and large biases make the cache inaccurate; watch "
              "logp_gap, and unset sampler.cache if it is above a few "
              "hundredths",)
  return sampler_lib.make_sampler(
      opened.model, dataclasses.replace(
          cfg, slots=min(cfg.slots, slots * G)), opened.eos_ids,
      gathered=gathered, interrupt=phrase, pages=pages), notes
