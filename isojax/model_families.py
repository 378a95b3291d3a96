"""The model families: how each model_type differs from Llama's block."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Family:
  """Properties of a family that config.json does not state."""

  qkv_bias: bool
  qk_norm: bool  # RMSNorm of each query and key head
  gemma: bool  # norms after blocks, norm weights minus 1, scaled embedding,
  # caps of scores and logits, and a tied embedding by default

  @property
  def norms(self) -> int:
    """Returns the norms per layer of the model's width."""
    return 4 if self.gemma else 2


FAMILIES = {
    "llama": Family(qkv_bias=False, qk_norm=False, gemma=False),
    "qwen2": Family(qkv_bias=True, qk_norm=False, gemma=False),
    "qwen3": Family(qkv_bias=False, qk_norm=True, gemma=False),
    "gemma2": Family(qkv_bias=False, qk_norm=False, gemma=True),
    "gemma3_text": Family(qkv_bias=False, qk_norm=True, gemma=True),
}
