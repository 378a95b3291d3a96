"""Shapes of common base models, by their names on the Hugging Face hub.

They let a run be planned without the hub and without a checkpoint. Sizes were
compared with Lightning-AI/litgpt @ 26857050 (litgpt/config.py), those of
gemma-3-270m with google/tunix (its model config), 2026-11-28.
"""

from isojax.core.model_shape import FAMILIES, ModelShape
from isojax.errors import InputError

# Family -> base -> layers, width, heads, kv_heads, head_dim, mlp, vocab, tied;
# of a mixture also experts, active.
SIZES = {
    "qwen2": {
        "Qwen/Qwen2.5-0.5B": (24, 896, 14, 2, 64, 4864, 151936, True),
        "Qwen/Qwen2.5-1.5B": (28, 1536, 12, 2, 128, 8960, 151936, True),
        "Qwen/Qwen2.5-3B": (36, 2048, 16, 2, 128, 11008, 151936, True),
        "Qwen/Qwen2.5-7B": (28, 3584, 28, 4, 128, 18944, 152064, False),
        "Qwen/Qwen2.5-14B": (48, 5120, 40, 8, 128, 13824, 152064, False),
        "Qwen/Qwen2.5-32B": (64, 5120, 40, 8, 128, 27648, 152064, False)},
    "qwen3": {
        "Qwen/Qwen3-0.6B": (28, 1024, 16, 8, 128, 3072, 151936, True),
        "Qwen/Qwen3-1.7B": (28, 2048, 16, 8, 128, 6144, 151936, True),
        "Qwen/Qwen3-4B": (36, 2560, 32, 8, 128, 9728, 151936, True),
        "Qwen/Qwen3-8B": (36, 4096, 32, 8, 128, 12288, 151936, False),
        "Qwen/Qwen3-14B": (40, 5120, 40, 8, 128, 17408, 151936, False),
        "Qwen/Qwen3-32B": (64, 5120, 64, 8, 128, 25600, 151936, False)},
    "qwen3_moe": {
        "Qwen/Qwen3-30B-A3B":
            (48, 2048, 32, 4, 128, 768, 151936, False, 128, 8)},
    "llama": {
        "meta-llama/Meta-Llama-3-8B":
            (32, 4096, 32, 8, 128, 14336, 128256, False),
        "meta-llama/Llama-3.1-8B": (32, 4096, 32, 8, 128, 14336, 128256, False),
        "meta-llama/Llama-3.1-70B":
            (80, 8192, 64, 8, 128, 28672, 128256, False),
        "meta-llama/Llama-3.2-1B": (16, 2048, 32, 8, 64, 8192, 128256, True),
        "meta-llama/Llama-3.2-3B": (28, 3072, 24, 8, 128, 8192, 128256, True),
        "HuggingFaceTB/SmolLM2-135M": (30, 576, 9, 3, 64, 1536, 49152, True),
        "HuggingFaceTB/SmolLM2-360M": (32, 960, 15, 5, 64, 2560, 49152, True),
        "HuggingFaceTB/SmolLM2-1.7B":
            (24, 2048, 32, 32, 64, 8192, 49152, True)},
    "gemma2": {
        "google/gemma-2-2b": (26, 2304, 8, 4, 256, 9216, 256000, True),
        "google/gemma-2-9b": (42, 3584, 16, 8, 256, 14336, 256000, True),
        "google/gemma-2-27b": (46, 4608, 32, 16, 128, 36864, 256000, True)},
    "gemma3_text": {
        "google/gemma-3-270m": (18, 640, 4, 1, 256, 2048, 262144, True),
        "google/gemma-3-1b-pt": (26, 1152, 4, 1, 256, 6912, 262144, True)}}
BASES = {name: ModelShape(*sizes[:8], FAMILIES[family], *sizes[8:])
         for family, bases in SIZES.items() for name, sizes in bases.items()}
# Parts of a name that change weights and not sizes.
TUNED = ("instruct", "it", "pt", "base", "math", "coder", "thinking", "2507",
         "meta")


def key(name: str) -> str:
  """A name without its owner, case and what tuned the base."""
  parts = name.rsplit("/", 1)[-1].lower().split("-")
  return "-".join(part for part in parts if part not in TUNED)


SHAPES = {key(name): shape for name, shape in BASES.items()}


def shape(name: str) -> ModelShape:
  """The shape of a hub name, of a base or tuned; InputError if not known."""
  if key(name) not in SHAPES:
    raise InputError(
        f"--model={name}: no such folder, and no base whose shape is known "
        f"({', '.join(BASES)}, and their tuned versions); expected a folder "
        "with config.json: https://huggingface.co/NAME/raw/main/config.json "
        "has that of a model on the hub")
  return SHAPES[key(name)]
