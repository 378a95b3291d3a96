"""What a model_type adds to the Llama block, for decoder and planner."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Family:
  """What no field of config.json says."""

  qkv_bias: bool
  qk_norm: bool  # RMSNorm of each query and key head
  gemma: bool  # norms after blocks, weights minus 1, scaled embedding, caps;
  # and tied unless config.json denies it

  @property
  def norms(self) -> int:
    """In a layer, of the model's width."""
    return 4 if self.gemma else 2


FAMILIES = {
    "llama": Family(qkv_bias=False, qk_norm=False, gemma=False),
    "qwen2": Family(qkv_bias=True, qk_norm=False, gemma=False),
    "qwen3": Family(qkv_bias=False, qk_norm=True, gemma=False),
    "gemma2": Family(qkv_bias=False, qk_norm=False, gemma=True),
    "gemma3_text": Family(qkv_bias=False, qk_norm=True, gemma=True),
}
