"""config.json of a Hugging Face checkpoint to the shape of our decoder.

Fields are read, known to be harmless, or refused: a model is never run as
something that it is not.
"""

import dataclasses
import json
import os
import pathlib
import re

import transformers

from isojax.errors import InputError
from isojax.models import decoder


@dataclasses.dataclass(frozen=True)
class Family:
  """What a model_type adds to the Llama block, where no field says it."""

  qkv_bias: bool
  qk_norm: bool
  gemma: bool  # norms after blocks, weights minus 1, scaled embedding, caps


FAMILIES = {
    "llama": Family(qkv_bias=False, qk_norm=False, gemma=False),
    "qwen2": Family(qkv_bias=True, qk_norm=False, gemma=False),
    "qwen3": Family(qkv_bias=False, qk_norm=True, gemma=False),
    "gemma2": Family(qkv_bias=False, qk_norm=False, gemma=True),
    "gemma3_text": Family(qkv_bias=False, qk_norm=True, gemma=True),
}
READ = frozenset((
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "rms_norm_eps", "tie_word_embeddings",
    "max_position_embeddings", "layer_types", "sliding_window",
    "sliding_window_pattern", "_sliding_window_pattern", "use_sliding_window", "max_window_layers",
    "rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"))
READ_BY = {  # and these by some families
    False: frozenset(("hidden_act",)),
    True: frozenset(("hidden_activation", "query_pre_attn_scalar",
                     "attn_logit_softcapping", "final_logit_softcapping")),
}
# Of no influence on what a forward pass computes.
HARMLESS = frozenset((
    "_name_or_path", "architectures", "attention_dropout", "bos_token_id",
    "cache_implementation", "dtype", "eos_token_id", "id2label",
    "initializer_range", "label2id", "pad_token_id", "pretraining_tp",
    "tokenizer_class", "torch_dtype", "transformers_version", "use_cache"))


def resolve(path: str) -> str:
  """The local folder of a checkpoint, fetched if it is a name on the hub.

  Raises:
    InputError: no such folder, files are missing, or the hub cannot be asked.
  """
  folder = pathlib.Path(path)
  if not folder.is_dir():
    expected = ("a folder with config.json, *.safetensors and tokenizer files, "
                "or a name on the Hugging Face hub such as Qwen/Qwen2.5-0.5B")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path):
      raise InputError(f"model.path={path!r}: no such folder (looked from "
                       f"{os.getcwd()}); expected {expected}")
    import huggingface_hub  # pylint: disable=import-outside-toplevel  # slow
    try:
      folder = pathlib.Path(huggingface_hub.snapshot_download(
          path, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model",
                                "*.jinja"]))
    except Exception as error:  # pylint: disable=broad-except  # of many kinds
      raise InputError(
          f"model.path={path!r}: no such folder (looked from {os.getcwd()}), "
          f"and the hub does not give it ({' '.join(str(error).split())[:160]})"
          "; copy the checkpoint's files (config.json, *.safetensors, "
          "tokenizer.json, tokenizer_config.json, generation_config.json) into "
          "a folder of that name, or set model.path to where they are"
          ) from error
  for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
    if not (folder / name).is_file():
      raise InputError(f"{folder}: {name} is missing; copy the whole checkpoint "
                       "folder, tokenizer files included")
  return str(folder)


def _raw_config(file: pathlib.Path) -> dict:
  """config.json of a supported family, without fields unknown to us."""
  try:
    raw = json.loads(file.read_text(encoding="utf-8"))
    kind = raw["model_type"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"{file}: not a readable Hugging Face config.json "
                     f"({type(error).__name__}: {error})") from error
  if kind not in FAMILIES:
    raise InputError(
        f"{file}: model_type {kind!r} is not supported; expected one of "
        f"{', '.join(FAMILIES)}: dense text models (no mixture of experts, no "
        "images, and of Gemma 3 only the text model)")
  if "quantization_config" in raw and raw["quantization_config"] is not None:
    raise InputError(f"{file}: quantization_config: quantised checkpoints "
                     "cannot be trained; expected the checkpoint that this one "
                     "was made from")
  gemma = FAMILIES[kind].gemma
  unknown = sorted(
      f"{key}={value!r}" for key, value in raw.items()
      if key not in READ | READ_BY[gemma] | HARMLESS
      and value not in (None, False))
  if gemma and "hidden_act" in raw:  # Gemma computes hidden_activation
    unknown = [x for x in unknown if not x.startswith("hidden_act=")]
  if unknown:
    raise InputError(
        f"{file}: {', '.join(unknown)} is not supported: it may change what "
        "the model computes; remove it if you know that it does not")
  return raw


def _rope(parameters: dict, file) -> decoder.Rope:
  """One entry of rope_parameters; InputError for what we do not compute."""
  kind, theta = parameters["rope_type"], float(parameters["rope_theta"])
  partial = "partial_rotary_factor"
  if partial in parameters and parameters[partial] != 1.0:
    raise InputError(f"{file}: {partial}={parameters[partial]} is not "
                     "supported; expected 1.0")
  if kind == "default":
    return decoder.Rope(theta, 1.0, None)
  if kind == "linear":
    return decoder.Rope(theta, float(parameters["factor"]), None)
  if kind == "llama3":
    old = parameters["original_max_position_embeddings"]
    return decoder.Rope(theta, float(parameters["factor"]),
                        (old / parameters["high_freq_factor"],
                         old / parameters["low_freq_factor"]))
  raise InputError(f"{file}: rope_type {kind!r} is not supported; expected "
                   "'default', 'linear' or 'llama3'")


def read(path: str) -> decoder.ModelConfig:
  """The decoder's shape; InputError for what it cannot run faithfully."""
  file = pathlib.Path(path) / "config.json"
  family = FAMILIES[_raw_config(file)["model_type"]]
  # AutoConfig knows the defaults and the older spellings of the rope fields.
  try:
    config = transformers.AutoConfig.from_pretrained(path).to_dict()
    rope = config["rope_parameters"]
    ropes = [_rope(rope[key], file) if key in rope else _rope(rope, file)
             for key in ("full_attention", "sliding_attention")]
  except InputError:
    raise
  except Exception as error:  # pylint: disable=broad-except  # of many kinds
    raise InputError(f"{file}: not a valid configuration "
                     f"({' '.join(str(error).split())[:300]})") from error
  heads, width = config["num_attention_heads"], config["hidden_size"]
  groups = config["num_key_value_heads"]
  H = config["head_dim"] if "head_dim" in config else None
  if min(heads, groups, width) < 1 or heads % groups or (
      H is None and width % heads) or (H or width // heads) % 2:
    raise InputError(
        f"{file}: hidden_size={width}, num_attention_heads={heads}, "
        f"num_key_value_heads={groups}, head_dim={H}: expected heads of an "
        "even, equal width and a whole number of query heads to each key head")
  H = H or width // heads
  Z = config["num_hidden_layers"]
  kinds = (config["layer_types"] if "layer_types" in config
           else ["full_attention"] * Z)
  known = {"full_attention": None}
  if "sliding_window" in config and config["sliding_window"] is not None:
    known["sliding_attention"] = config["sliding_window"]
  if len(kinds) != Z or set(kinds) - set(known):
    raise InputError(
        f"{file}: layer_types {kinds} is not supported; expected {Z} of "
        "full_attention and sliding_attention, the latter with sliding_window")
  activation = config["hidden_activation" if family.gemma else "hidden_act"]
  if activation not in decoder.ACTIVATIONS:
    raise InputError(f"{file}: activation {activation!r} is not supported; "
                     f"expected one of {', '.join(decoder.ACTIVATIONS)}")
  return decoder.ModelConfig(
      V=config["vocab_size"], D=width, Z=Z, N=heads, K=groups, H=H,
      F=config["intermediate_size"],
      rope=ropes[0], local_rope=ropes[1],
      window_Z=tuple(known[kind] for kind in kinds),
      norm_eps=float(config["rms_norm_eps"]),
      norm_offset=1.0 if family.gemma else 0.0,
      qkv_bias=family.qkv_bias, qk_norm=family.qk_norm,
      post_norms=family.gemma,
      activation=activation,
      embed_scale=width**0.5 if family.gemma else 1.0,
      query_scale=(config["query_pre_attn_scalar"] if family.gemma else H
                   )**-0.5,
      attn_cap=config["attn_logit_softcapping"] if family.gemma else None,
      logit_cap=config["final_logit_softcapping"] if family.gemma else None,
      tied=config["tie_word_embeddings"],
      max_positions=config["max_position_embeddings"])
