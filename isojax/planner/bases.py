"""Shapes of common base models, by their names on the Hugging Face hub.

They let a run be planned without the hub and without a checkpoint. Sizes are
those of config.json on each model's page, huggingface.co/NAME; `params` is the
number of parameters that the page counts in its safetensors (a tied head once).
A test compares it with the shape.
"""

import typing

from isojax.core.model_shape import FAMILIES, ModelShape
from isojax.errors import InputError


class Base(typing.NamedTuple):
  """A row of BASES, with the keys of config.json in ModelShape's order."""

  kind: str  # model_type
  layers: int
  width: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  vocab: int
  tied: bool
  params: int
  experts: int = 0
  active: int = 1


BASES = {
    "Qwen/Qwen2.5-0.5B": Base(
        "qwen2", 24, 896, 14, 2, 64, 4864, 151936, True, 494_032_768),
    "Qwen/Qwen2.5-1.5B": Base(
        "qwen2", 28, 1536, 12, 2, 128, 8960, 151936, True, 1_543_714_304),
    "Qwen/Qwen2.5-3B": Base(
        "qwen2", 36, 2048, 16, 2, 128, 11008, 151936, True, 3_085_938_688),
    "Qwen/Qwen2.5-7B": Base(
        "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, False, 7_615_616_512),
    "Qwen/Qwen2.5-14B": Base(
        "qwen2", 48, 5120, 40, 8, 128, 13824, 152064, False, 14_770_033_664),
    "Qwen/Qwen2.5-32B": Base(
        "qwen2", 64, 5120, 40, 8, 128, 27648, 152064, False, 32_763_876_352),
    "Qwen/Qwen3-0.6B": Base(
        "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, True, 596_049_920),
    "Qwen/Qwen3-1.7B": Base(
        "qwen3", 28, 2048, 16, 8, 128, 6144, 151936, True, 1_720_574_976),
    "Qwen/Qwen3-4B": Base(
        "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, True, 4_022_468_096),
    "Qwen/Qwen3-8B": Base(
        "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, False, 8_190_735_360),
    "Qwen/Qwen3-14B": Base(
        "qwen3", 40, 5120, 40, 8, 128, 17408, 151936, False, 14_768_307_200),
    "Qwen/Qwen3-32B": Base(
        "qwen3", 64, 5120, 64, 8, 128, 25600, 151936, False, 32_762_123_264),
    "Qwen/Qwen3-30B-A3B": Base(
        "qwen3_moe", 48, 2048, 32, 4, 128, 768, 151936, False, 30_532_122_624,
        experts=128, active=8),
    "meta-llama/Llama-3.1-8B": Base(
        "llama", 32, 4096, 32, 8, 128, 14336, 128256, False, 8_030_261_248),
    "meta-llama/Llama-3.1-70B": Base(
        "llama", 80, 8192, 64, 8, 128, 28672, 128256, False, 70_553_706_496),
    "meta-llama/Llama-3.2-1B": Base(
        "llama", 16, 2048, 32, 8, 64, 8192, 128256, True, 1_235_814_400),
    "meta-llama/Llama-3.2-3B": Base(
        "llama", 28, 3072, 24, 8, 128, 8192, 128256, True, 3_212_749_824),
    "google/gemma-2-2b": Base(
        "gemma2", 26, 2304, 8, 4, 256, 9216, 256000, True, 2_614_341_888),
    "google/gemma-2-9b": Base(
        "gemma2", 42, 3584, 16, 8, 256, 14336, 256000, True, 9_241_705_984),
    "google/gemma-2-27b": Base(
        "gemma2", 46, 4608, 32, 16, 128, 36864, 256000, True, 27_227_128_320),
    "google/gemma-3-270m": Base(
        "gemma3_text", 18, 640, 4, 1, 256, 2048, 262144, True, 268_098_176),
    "google/gemma-3-1b-pt": Base(
        "gemma3_text", 26, 1152, 4, 1, 256, 6912, 262144, True, 999_885_952),
    "HuggingFaceTB/SmolLM2-135M": Base(
        "llama", 30, 576, 9, 3, 64, 1536, 49152, True, 134_515_008),
    "HuggingFaceTB/SmolLM2-360M": Base(
        "llama", 32, 960, 15, 5, 64, 2560, 49152, True, 361_821_120),
    "HuggingFaceTB/SmolLM2-1.7B": Base(
        "llama", 24, 2048, 32, 32, 64, 8192, 49152, True, 1_711_376_384)}
# Ends of a name that change weights and not sizes.
TUNED = ("-instruct", "-it", "-pt", "-base")


def key(name: str) -> str:
  """A name without its owner, case and what tuned the base."""
  bare = name.rsplit("/", 1)[-1].lower()
  for end in TUNED:
    bare = bare.removesuffix(end)
  return bare


SHAPES = {key(name): ModelShape(
    layers=base.layers, width=base.width, heads=base.heads,
    kv_heads=base.kv_heads, head_dim=base.head_dim, mlp=base.mlp,
    vocab=base.vocab, tied=base.tied, family=FAMILIES[base.kind],
    experts=base.experts, active=base.active) for name, base in BASES.items()}


def shape(name: str) -> ModelShape:
  """The shape of a hub name, of a base or tuned; InputError if not known."""
  if key(name) not in SHAPES:
    raise InputError(
        f"--model={name}: no such folder, and no base whose shape is known "
        f"({', '.join(BASES)}, and their tuned versions); expected a folder "
        "with config.json: https://huggingface.co/NAME/raw/main/config.json "
        "has that of a model on the hub")
  return SHAPES[key(name)]
