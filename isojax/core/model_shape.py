"""The shape of a policy: its parameters, FLOPs and cache bytes per token."""

import dataclasses

from isojax.errors import InputError

BYTES = {"bfloat16": 2, "float32": 4}  # of a number


@dataclasses.dataclass(frozen=True)
class Family:
  """What a model_type changes in Llama's block; config.json does not say it."""

  qkv_bias: bool
  qk_norm: bool  # RMSNorm of each query and key head
  # Norms also after attention and MLP, norm weights stored minus 1, a scaled
  # embedding, caps of scores and logits, and a tied embedding by default.
  gemma: bool
  # Experts in every layer. A mixture is priced but not trained, because
  # isojax.models.hf_config does not know the fields of experts.
  mixture: bool = False

  @property
  def norms(self) -> int:
    """The number of norms of size `width` in a layer."""
    return 4 if self.gemma else 2


FAMILIES = {
    "llama": Family(qkv_bias=False, qk_norm=False, gemma=False),
    "qwen2": Family(qkv_bias=True, qk_norm=False, gemma=False),
    "qwen3": Family(qkv_bias=False, qk_norm=True, gemma=False),
    "qwen3_moe": Family(qkv_bias=False, qk_norm=True, gemma=False,
                        mixture=True),
    "gemma2": Family(qkv_bias=False, qk_norm=False, gemma=True),
    "gemma3_text": Family(qkv_bias=False, qk_norm=True, gemma=True),
}
MAX_SIZE = 10**8  # of any size in a config.json; larger ones are mistakes
# Field of ModelShape -> key of config.json.
KEYS = dict(layers="num_hidden_layers", width="hidden_size",
            heads="num_attention_heads", kv_heads="num_key_value_heads",
            mlp="intermediate_size", vocab="vocab_size")
# Further keys of a mixture, whose `mlp` is the size of one expert.
MIXTURE_KEYS = dict(mlp="moe_intermediate_size", experts="num_experts",
                   active="num_experts_per_tok")


@dataclasses.dataclass(frozen=True)
class ModelShape:
  """The sizes of a decoder with gated MLPs, dense or a mixture of experts."""

  layers: int
  width: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  vocab: int
  tied: bool  # embedding and head are one matrix
  family: Family
  experts: int = 0  # MLPs of a layer, with a router; 0: one, dense
  active: int = 1  # experts that a token uses
  window: int | None = None  # of a Qwen's layers, tokens; None: no windows

  def _layer(self, mlps: int) -> int:
    """The parameters of a layer's matrices, with `mlps` MLPs and a router."""
    return (2 * self.width * self.head_dim * (self.heads + self.kv_heads)
            + self.width * (3 * self.mlp * mlps + self.experts))

  @property
  def layer_matmul(self) -> int:
    """The parameters of a layer's matrices, with all experts."""
    return self._layer(self.experts or 1)

  @property
  def head(self) -> int:
    """The parameters of the vocabulary's matrix."""
    return self.width * self.vocab

  @property
  def matmul_params(self) -> int:
    """The parameters of all matrices, including the head."""
    return self.layers * self.layer_matmul + self.head

  @property
  def params(self) -> int:
    biases = self.family.qkv_bias * self.head_dim * (
        self.heads + 2 * self.kv_heads)
    norms = self.family.norms * self.width + (
        self.family.qk_norm * 2 * self.head_dim)
    return (self.layers * (self.layer_matmul + biases + norms) + self.width
            + self.head * (1 if self.tied else 2))

  def lora_params(self, rank: int) -> int:
    """The sum of rank * (in + out) over the matrices of attention and MLPs."""
    q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
    ends = 2 * (self.width + q) + 2 * (self.width + kv) + 3 * (
        self.width + self.mlp) * (self.experts or 1)
    return self.layers * rank * ends

  def kv_bytes_per_token(self, bytes_per_value: int) -> int:
    """The bytes of a token's keys and values."""
    return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value

  def forward_flops(self, context, head: bool):
    """The FLOPs of a forward of one token that attends to `context` tokens.

    2 per matrix parameter that the token uses (the head's only if `head`), and
    4 * heads * head_dim * context per layer for scores and sums of values.
    """
    matmul = self.layers * self._layer(self.active) + self.head * head
    return 2 * matmul + (
        4 * self.layers * self.heads * self.head_dim * context)


def _is_unsupported(key: str, value, mixture: bool) -> bool:
  """Whether a key describes experts that this module cannot price."""
  if not mixture:
    return "expert" in key
  # Mixtures are priced if every layer has experts and none is shared.
  return (key in ("mlp_only_layers", "shared_expert_intermediate_size")
          or key == "decoder_sparse_step" and value != 1)


def model_shape(config: dict, *, path: str) -> ModelShape:
  """The shape in a parsed Hugging Face config.json."""
  kind = config["model_type"] if "model_type" in config else None
  known = isinstance(kind, str) and kind in FAMILIES
  mixture = known and FAMILIES[kind].mixture
  unsupported = [key for key, value in config.items()
                 if value and _is_unsupported(key, value, mixture)]
  if not known or unsupported:
    expected = f"one of {', '.join(FAMILIES)}" if not known else (
        "experts in every layer, none shared" if mixture else "no experts")
    raise InputError(
        f"{path}: model_type {kind!r}"
        f"{' with ' + ', '.join(unsupported) if unsupported else ''} is not "
        f"supported; expected {expected}")
  keys = KEYS | MIXTURE_KEYS if mixture else KEYS
  missing = [key for key in keys.values() if key not in config]
  if missing:
    raise InputError(f"{path}: {', '.join(missing)} missing; write the "
                     "values out, also those equal to the library's defaults")
  sizes = {ours: config[theirs] for ours, theirs in keys.items()}
  has_head_dim = "head_dim" in config and config["head_dim"] is not None
  if has_head_dim:
    sizes["head_dim"] = config["head_dim"]
  wrong = [f"{keys[k] if k in keys else k}={v!r}" for k, v in sizes.items()
           if type(v) is not int or not 1 <= v <= MAX_SIZE]
  wrong += [f"{key}={config[key]!r}" for key in ("attention_bias", "mlp_bias")
            if key in config and config[key]]
  tied = (config["tie_word_embeddings"] if "tie_word_embeddings" in config
          else FAMILIES[kind].gemma)
  if not isinstance(tied, bool):
    wrong.append(f"tie_word_embeddings={tied!r}")
  if wrong:
    raise InputError(f"{path}: {', '.join(wrong)}: expected sizes from 1 to "
                     f"{MAX_SIZE}, true or false where a key asks for it, and "
                     "no biases but Qwen2's")
  if sizes["heads"] % sizes["kv_heads"]:
    raise InputError(f"{path}: {sizes['heads']} num_attention_heads do not "
                     f"share {sizes['kv_heads']} num_key_value_heads evenly")
  if not has_head_dim and (
      kind.startswith("gemma") or sizes["width"] % sizes["heads"]):
    raise InputError(f"{path}: head_dim is missing and not hidden_size / "
                     "num_attention_heads; write it out")
  sizes.setdefault("head_dim", sizes["width"] // sizes["heads"])
  return ModelShape(**sizes, tied=tied, family=FAMILIES[kind],
                    window=_window(config))


def _window(config: dict) -> int | None:
  """The attention window of a Qwen's later layers, if it uses one."""
  if not ("use_sliding_window" in config and config["use_sliding_window"]
          and "sliding_window" in config):
    return None
  first = config["max_window_layers"] if "max_window_layers" in config else 0
  return config["sliding_window"] if first < config["num_hidden_layers"] else (
      None)
