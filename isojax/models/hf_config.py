"""Reads config.json of a Hugging Face checkpoint as a decoder.ModelConfig.

Each field is read, or known not to change the forward pass, or an error, so
that no model is computed incorrectly.
"""

import json
import os
import pathlib

import transformers

from isojax.core import model_shape as shape_lib
from isojax.core.model_shape import FAMILIES
from isojax.core.shipped import shipped_path
from isojax.errors import InputError, UNREADABLE
from isojax.models import decoder

DENSE = [name for name, family in FAMILIES.items() if not family.mixture]
# Fields that are read of Gemma only. Its hidden_act is ignored, as in
# transformers: hidden_activation is used.
GEMMA = frozenset(("hidden_activation", "query_pre_attn_scalar",
                   "attn_logit_softcapping", "final_logit_softcapping"))
READ = frozenset((  # by this module, or by transformers for other fields
    "model_type", "hidden_act", "vocab_size", "hidden_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "rms_norm_eps", "tie_word_embeddings",
    "max_position_embeddings", "layer_types", "sliding_window",
    "sliding_window_pattern", "_sliding_window_pattern", "use_sliding_window",
    "max_window_layers", "rope_theta", "rope_scaling", "rope_parameters",
    "rope_local_base_freq", "eos_token_id"))  # the last: by models.tokenizer
# Fields that do not change what a forward pass computes.
HARMLESS = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path",
    "architectures", "attention_dropout", "attn_implementation",
    "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "dtype",
    "id2label", "initializer_range", "is_llama_config", "label2id",
    "output_attentions", "output_hidden_states", "pad_token_id",
    "pretraining_tp", "return_dict", "tokenizer_class", "torch_dtype",
    "transformers.js_config", "transformers_version", "unsloth_fixed",
    "unsloth_version", "use_cache"))
ROPE_FIELDS = {  # rope_type -> fields that set its frequencies
    "default": ("rope_theta",),
    "linear": ("rope_theta", "factor"),
    "llama3": ("rope_theta", "factor", "original_max_position_embeddings",
               "low_freq_factor", "high_freq_factor"),
}


def resolve(path: str, *, whole: bool = True) -> str:
  """The folder of a checkpoint, downloaded if needed.

  `whole`: weights and tokenizer, too, not only config.json.
  """
  folder = pathlib.Path(shipped_path(path))
  if not os.path.isdir(folder):  # is_dir raises for a name that is too long
    try:
      import huggingface_hub  # slow
      folder = pathlib.Path(huggingface_hub.snapshot_download(
          path, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model",
                                "*.jinja"] if whole else ["config.json"]))
    except Exception as error:  # the hub raises many types
      raise InputError(
          f"model {path!r}: no such folder (relative to {os.getcwd()}), "
          "and no download from the Hugging Face hub "
          f"({' '.join(str(error).split())[:160]}); expected a folder with "
          "config.json, *.safetensors and tokenizer files, or a name on the "
          "hub such as Qwen/Qwen2.5-0.5B") from error
  tokenizer = ("tokenizer.json", "tokenizer_config.json") if whole else ()
  for name in ("config.json", *tokenizer):
    if not (folder / name).is_file():
      raise InputError(f"{folder}: {name} is missing; copy the whole "
                       "checkpoint folder with its tokenizer files")
  return str(folder)


def _check_fields(file: pathlib.Path) -> None:
  """InputError if config.json has a model or a field that is unsupported."""
  try:
    raw = json.loads(file.read_text(encoding="utf-8"))
    kind = raw["model_type"]
  except UNREADABLE as error:
    raise InputError(f"{file}: not a readable Hugging Face config.json "
                     f"({type(error).__name__}: {error})") from error
  if kind not in DENSE:
    raise InputError(
        f"{file}: model_type {kind!r} is not supported; expected one of "
        f"{', '.join(DENSE)}, which are dense text models (no mixture of "
        "experts, no images, and only the text model of Gemma 3)")
  unknown = sorted(
      f"{key}={value!r}" for key, value in raw.items()
      if key not in READ | HARMLESS and not (
          key in GEMMA and FAMILIES[kind].gemma)
      and value is not None and value is not False)  # which turn it off
  if unknown:
    raise InputError(
        f"{file}: {', '.join(unknown)} is not supported: it may change what "
        "the model computes; remove it only if you know that it does not")


def _rope(parameters: dict, file) -> decoder.Rope:
  """The Rope of one entry of rope_parameters; InputError if unsupported."""
  kind = parameters["rope_type"] if "rope_type" in parameters else None
  if not isinstance(kind, str) or kind not in ROPE_FIELDS:
    raise InputError(f"{file}: rope_type {kind!r} is not supported; expected "
                     f"one of {', '.join(ROPE_FIELDS)}")
  names = ROPE_FIELDS[kind]
  harmless = {"rope_type": kind, "type": kind, "partial_rotary_factor": 1.0}
  wrong = [f"{key}={value!r} is not supported"
           for key, value in sorted(parameters.items())
           if key not in names and value is not None
           and not (key in harmless and harmless[key] == value)]
  wrong += [f"{name} is missing" for name in names if name not in parameters]
  if wrong:
    raise InputError(f"{file}: rope_parameters (or rope_scaling) of rope_type "
                     f"{kind!r}: {', '.join(wrong)}; expected "
                     f"{', '.join(names)}")
  theta, *others = (float(parameters[name]) for name in names)
  if kind == "llama3":
    factor, positions, low, high = others
    return decoder.Rope(theta, factor, (positions / high, positions / low))
  return decoder.Rope(theta, others[0] if others else 1.0, None)


def _windows(config: dict, file) -> tuple[int | None, ...]:
  """The attention window of each layer, in tokens; None: unlimited."""
  Z = config["num_hidden_layers"]
  kinds = (config["layer_types"] if "layer_types" in config
           else ["full_attention"] * Z)
  known = {"full_attention": None}
  if "sliding_window" in config and config["sliding_window"] is not None:
    known["sliding_attention"] = config["sliding_window"]
  if len(kinds) != Z or set(kinds) - set(known):
    raise InputError(
        f"{file}: layer_types {kinds} is not supported; expected {Z} values: "
        "full_attention or sliding_attention; the latter needs sliding_window")
  return tuple(known[kind] for kind in kinds)


def read(path: str) -> decoder.ModelConfig:
  """The decoder's config; InputError if the model is unsupported."""
  file = pathlib.Path(path) / "config.json"
  _check_fields(file)
  try:  # transformers adds defaults and renames old fields
    config = transformers.AutoConfig.from_pretrained(path).to_dict()
    return model_config(config, file)
  except InputError:
    raise
  except Exception as error:  # transformers raises many types
    raise InputError(f"{file}: not a valid configuration "
                     f"({' '.join(str(error).split())[:300]})") from error


def model_config(config: dict, file) -> decoder.ModelConfig:
  """The decoder's config, from a config.json with all fields.

  The fields have the names of transformers 5.
  """
  shape = shape_lib.model_shape(config, path=str(file))
  family = shape.family
  rope = config["rope_parameters"]
  ropes = [_rope(rope[kind] if kind in rope else rope, file)
           for kind in ("full_attention", "sliding_attention")]
  activation = config["hidden_activation" if family.gemma else "hidden_act"]
  if activation not in decoder.ACTIVATIONS:
    raise InputError(f"{file}: activation {activation!r} is not supported; "
                     f"expected one of {', '.join(decoder.ACTIVATIONS)}")
  query_size = (
      config["query_pre_attn_scalar"] if family.gemma else shape.head_dim)
  return decoder.ModelConfig(
      V=shape.vocab, D=shape.width, Z=shape.layers, N=shape.heads,
      K=shape.kv_heads, H=shape.head_dim, F=shape.mlp,
      rope=ropes[0], local_rope=ropes[1], window_Z=_windows(config, file),
      norm_eps=float(config["rms_norm_eps"]),
      norm_offset=1.0 if family.gemma else 0.0,
      qkv_bias=family.qkv_bias, qk_norm=family.qk_norm,
      post_norms=family.gemma, activation=activation,
      embed_scale=shape.width**0.5 if family.gemma else 1.0,
      query_scale=query_size**-0.5,
      attn_cap=config["attn_logit_softcapping"] if family.gemma else None,
      logit_cap=config["final_logit_softcapping"] if family.gemma else None,
      tied=shape.tied,
      max_positions=config["max_position_embeddings"])
