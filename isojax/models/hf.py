"""Hugging Face checkpoint folders: config.json, safetensors, tokenizer.

One table (`WEIGHTS`) is read both ways. Neither torch nor a network is used.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib

import jax
import numpy as np
import safetensors
import safetensors.numpy
import transformers

from isojax.models import decoder
from isojax.errors import InputError

# Fields that change what a Qwen2 computes and that the decoder does not have:
# refused when they differ from the value assumed.
ASSUMED = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "quantization_config": None,
}


def _folder(path: str) -> pathlib.Path:
  folder = pathlib.Path(path)
  if not folder.is_dir():
    raise InputError(
        f"model.path={path!r}: no such folder (looked from {os.getcwd()}); "
        "expected a Hugging Face checkpoint folder with config.json, "
        "*.safetensors and tokenizer files")
  for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
    if not (folder / name).is_file():
      raise InputError(f"{path}: {name} is missing; copy the whole checkpoint "
                       "folder, tokenizer files included")
  return folder


def read_config(path: str) -> decoder.ModelConfig:
  """The decoder's shape; InputError for what it cannot run faithfully."""
  file = pathlib.Path(path) / "config.json"
  try:
    kind = json.loads(file.read_text(encoding="utf-8"))["model_type"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"{file}: not a readable Hugging Face config.json "
                     f"({type(error).__name__}: {error})") from error
  if kind != "qwen2":
    raise InputError(f"{file}: model_type {kind!r} is not supported; "
                     "expected 'qwen2' (Qwen2 and Qwen2.5, dense)")
  # AutoConfig also understands the older spelling of the rope fields.
  try:
    config = transformers.AutoConfig.from_pretrained(path).to_dict()
  except Exception as error:  # pylint: disable=broad-except  # of many kinds
    raise InputError(f"{file}: not a valid Qwen2 configuration "
                     f"({' '.join(str(error).split())[:300]})") from error
  for field, assumed in ASSUMED.items():
    if field in config and config[field] != assumed:
      raise InputError(f"{file}: {field}={config[field]!r} is not supported; "
                       f"expected {assumed!r}")
  rope = config["rope_parameters"]
  if rope["rope_type"] != "default":
    raise InputError(f"{file}: rope_type {rope['rope_type']!r} is not "
                     "supported; expected 'default'")
  if "sliding_attention" in config["layer_types"]:
    raise InputError(f"{file}: layer_types holds sliding_attention, which is "
                     "not supported; expected only full_attention")
  heads, width = config["num_attention_heads"], config["hidden_size"]
  groups = config["num_key_value_heads"]
  if min(heads, groups, width) < 1 or width % heads or heads % groups or (
      width // heads % 2):
    raise InputError(
        f"{file}: hidden_size={width}, num_attention_heads={heads}, "
        f"num_key_value_heads={groups}: expected heads of an even, equal width "
        "and a whole number of query heads to each key head")
  if "head_dim" in config and config["head_dim"] not in (None, width // heads):
    raise InputError(f"{file}: head_dim={config['head_dim']} is not supported; "
                     f"expected hidden_size / heads = {width // heads}")
  return decoder.ModelConfig(
      V=config["vocab_size"], D=width,
      Z=config["num_hidden_layers"], N=heads, K=groups,
      H=width // heads, F=config["intermediate_size"],
      rope_theta=float(rope["rope_theta"]),
      norm_eps=float(config["rms_norm_eps"]),
      tied=config["tie_word_embeddings"],
      max_positions=config["max_position_embeddings"])


@dataclasses.dataclass(frozen=True)
class Weight:
  """A tensor's name in the checkpoint, and how it becomes ours."""

  name: str
  transpose: bool  # the checkpoint has [out, in], we have [in, out]


_LAYER = {
    "attn_norm": Weight("input_layernorm.weight", False),
    "q": Weight("self_attn.q_proj.weight", True),
    "k": Weight("self_attn.k_proj.weight", True),
    "v": Weight("self_attn.v_proj.weight", True),
    "o": Weight("self_attn.o_proj.weight", True),
    "q_bias": Weight("self_attn.q_proj.bias", False),
    "k_bias": Weight("self_attn.k_proj.bias", False),
    "v_bias": Weight("self_attn.v_proj.bias", False),
    "mlp_norm": Weight("post_attention_layernorm.weight", False),
    "gate": Weight("mlp.gate_proj.weight", True),
    "up": Weight("mlp.up_proj.weight", True),
    "down": Weight("mlp.down_proj.weight", True),
}
_TOP = {
    "embed": Weight("model.embed_tokens.weight", False),
    "norm": Weight("model.norm.weight", False),
    "head": Weight("lm_head.weight", False),
}


def _weight(path) -> Weight:
  """The checkpoint's tensor for a leaf of our parameter tree."""
  keys = [p.key for p in path]
  if len(keys) == 1:
    return _TOP[keys[0]]
  layer, leaf = keys
  row = _LAYER[leaf]
  number = layer.removeprefix("layers_")
  return dataclasses.replace(row, name=f"model.layers.{number}.{row.name}")


def _tensor_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Tensor name -> the safetensors file that holds it."""
  index = folder / "model.safetensors.index.json"
  try:
    if index.is_file():
      names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
      return {name: folder / file for name, file in names.items()}
    file = folder / "model.safetensors"
    with safetensors.safe_open(file, framework="np") as tensors:
      return dict.fromkeys(tensors.keys(), file)
  except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
    raise InputError(
        f"{folder}: no readable model.safetensors "
        f"({type(error).__name__}: {error}); the file is missing or damaged, "
        "copy the checkpoint again") from error


def _stored_shape(tree_path, shape) -> tuple[int, ...]:
  """The shape in the checkpoint of one of our parameters."""
  name = tree_path[-1].key
  if name.endswith("_bias"):
    return (shape[0] * shape[1],)
  if len(shape) == 3:  # heads are one axis in the checkpoint
    shape = (shape[0] * shape[1], shape[2]) if name == "o" else (
        shape[0], shape[1] * shape[2])
  return tuple(shape[::-1]) if _weight(tree_path).transpose else tuple(shape)


def check_weights(path: str, abstract) -> None:
  """InputError if a tensor is missing or has another shape; reads headers."""
  files = _tensor_files(_folder(path))
  for tree_path, leaf in jax.tree.leaves_with_path(abstract):
    name = _weight(tree_path).name
    if name not in files:
      raise InputError(f"{path}: tensor {name} is missing")
    with _reading(files[name], name) as tensors:
      found = tuple(tensors.get_slice(name).get_shape())
    if found != _stored_shape(tree_path, leaf.shape):
      raise InputError(
          f"{path}: tensor {name} has shape {found}, config.json asks for "
          f"{_stored_shape(tree_path, leaf.shape)}")


@contextlib.contextmanager
def _reading(file: pathlib.Path, name: str):
  try:
    with safetensors.safe_open(file, framework="np") as tensors:
      yield tensors
  except (OSError, safetensors.SafetensorError) as error:
    raise InputError(f"{file}: cannot read {name} ({error}); copy the "
                     "checkpoint again") from error


def load_params(path: str, abstract):
  """Parameters of the folder, each put straight into its sharding.

  Args:
    path: checkpoint folder.
    abstract: `decoder.abstract_params`; its dtype and shardings are the
      result's.

  Raises:
    InputError: a tensor is missing, has another shape, or cannot be read.
  """
  check_weights(path, abstract)
  files = _tensor_files(_folder(path))

  def load(tree_path, leaf):
    weight = _weight(tree_path)
    with _reading(files[weight.name], weight.name) as tensors:
      value = tensors.get_tensor(weight.name)
    value = value.T if weight.transpose else value
    return jax.device_put(value.reshape(leaf.shape).astype(leaf.dtype),
                          leaf.sharding)

  return jax.tree.map_with_path(load, abstract)


def save_params(path: str, params) -> None:
  """Writes model.safetensors, float32, under the checkpoint's names."""
  tensors = {}
  for tree_path, leaf in jax.tree.leaves_with_path(params):
    weight, shape = _weight(tree_path), _stored_shape(tree_path, leaf.shape)
    value = np.asarray(leaf).reshape(shape[::-1] if weight.transpose else shape)
    tensors[weight.name] = np.ascontiguousarray(
        value.T if weight.transpose else value)
  safetensors.numpy.save_file(
      tensors, pathlib.Path(path) / "model.safetensors",
      metadata={"format": "pt"})


def load_tokenizer(path: str):
  """The folder's tokenizer; InputError if it cannot end a text."""
  _folder(path)
  try:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        path, local_files_only=True)
  except Exception as error:  # pylint: disable=broad-except  # of many kinds
    raise InputError(f"{path}: tokenizer files cannot be read "
                     f"({type(error).__name__}: {error})") from error
  if tokenizer.eos_token_id is None:
    raise InputError(
        f"{path}: the tokenizer has no EOS token, so no rollout could end; "
        "set eos_token in tokenizer_config.json")
  return tokenizer


def eos_ids(path: str, tokenizer) -> tuple[int, ...]:
  """Every token that ends a rollout, of tokenizer and generation_config."""
  ids = {tokenizer.eos_token_id}
  file = pathlib.Path(path) / "generation_config.json"
  if file.is_file():
    try:
      declared = json.loads(file.read_text(encoding="utf-8"))
      more = declared["eos_token_id"] if "eos_token_id" in declared else []
      ids.update([] if more is None else np.atleast_1d(more).tolist())
    except (OSError, ValueError, TypeError) as error:
      raise InputError(f"{file}: not readable ({error})") from error
  if not all(type(i) is int and i >= 0 for i in ids):
    raise InputError(f"{file}: eos_token_id is {sorted(map(str, ids))}, "
                     "expected token ids")
  return tuple(sorted(ids))


def weights_sha256(path: str) -> str:
  """The content of a checkpoint's weights as one hash.

  That of the file where there is one, else of the lines "hash name" of all
  shards by name; they are read side by side, in small pieces.
  """
  files = sorted(set(_tensor_files(_folder(path)).values()))

  def of(file: pathlib.Path) -> str:
    try:
      with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
      raise InputError(f"{file}: cannot be read ({error}); copy the checkpoint "
                       "again") from error

  with concurrent.futures.ThreadPoolExecutor() as threads:
    hashes = list(threads.map(of, files))
  if len(hashes) == 1:
    return hashes[0]
  lines = [f"{each} {file.name}" for each, file in zip(hashes, files)]
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()
