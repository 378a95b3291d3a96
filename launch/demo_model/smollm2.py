"""Writes SmolLM2-135M-Instruct as a Hugging Face folder from its GGUF file.

llama.cpp stores the rows of queries and keys so that the two numbers that rope
rotates together are neighbours; the Hugging Face form has them half a head
apart. Weights are rounded to bfloat16, the dtype of the original.
"""

import hashlib
import json
import pathlib

import jax.numpy as jnp
import numpy as np

from isojax.errors import InputError
from isojax.models import hf_weights
from launch.demo_model import gguf

_TOP = {"token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight"}
_LAYER = {"attn_norm": "attn_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v",
          "attn_output": "o", "ffn_norm": "mlp_norm", "ffn_gate": "gate",
          "ffn_up": "up", "ffn_down": "down"}  # -> keys of hf_weights.LAYER
_CONTROL = 3  # type of a token that is not text, such as <|im_start|>

# Of the folder; another hash means that this code or numpy changed.
SHA256 = {
    "config.json":
        "9ec0ab637d0dc606f96855ceff519adefeaadefc01f3676b09e82d3729fe7090",
    "generation_config.json":
        "951b0e195560b97e14c774a1b492513fed382006cf28e109378f52b412d75eaf",
    "model.safetensors":
        "55416f2d20d8c2ed98cb48ad18b8bb726e34c180266eb243ab3f4a2ec6f60493",
    "tokenizer.json":
        "0fd628c741e8c95e8c6042c05d6814dc068a7d316777375662535958604462fe",
    "tokenizer_config.json":
        "99c54cb8330be2b0c18fde03618be23312c81fc2d1cf906aa0a2c834814a72e1",
}


def _config(meta: dict) -> dict:
  """Returns config.json."""
  heads = meta["llama.attention.head_count"]
  return {
      "architectures": ["LlamaForCausalLM"],
      "model_type": "llama",
      "hidden_size": meta["llama.embedding_length"],
      "intermediate_size": meta["llama.feed_forward_length"],
      "num_hidden_layers": meta["llama.block_count"],
      "num_attention_heads": heads,
      "num_key_value_heads": meta["llama.attention.head_count_kv"],
      "head_dim": meta["llama.rope.dimension_count"],
      "hidden_act": "silu",
      "max_position_embeddings": meta["llama.context_length"],
      "rms_norm_eps": 1e-5,  # the file holds it as float32
      "rope_theta": meta["llama.rope.freq_base"],
      "attention_bias": False,
      "mlp_bias": False,
      "tie_word_embeddings": True,  # the file has no tensor "output"
      "vocab_size": meta["llama.vocab_size"],
      "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
      "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
      "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
      "torch_dtype": "bfloat16",
  }


def _tokenizer(meta: dict) -> dict:
  """Returns tokenizer.json: byte-level BPE in which each digit is a token."""
  tokens = meta["tokenizer.ggml.tokens"]
  control = [i for i, kind in enumerate(meta["tokenizer.ggml.token_type"])
             if kind == _CONTROL]
  byte_level = {"type": "ByteLevel", "add_prefix_space": False,
                "trim_offsets": True, "use_regex": True}
  return {
      "version": "1.0",
      "truncation": None,
      "padding": None,
      "added_tokens": [{
          "id": i, "content": tokens[i], "single_word": False, "lstrip": False,
          "rstrip": False, "normalized": False, "special": True}
                       for i in control],
      "normalizer": None,
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
          {"type": "Digits", "individual_digits": True}, byte_level]},
      "post_processor": None,
      "decoder": byte_level,
      "model": {
          "type": "BPE", "dropout": None, "unk_token": None,
          "continuing_subword_prefix": None, "end_of_word_suffix": None,
          "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
          "vocab": {token: i for i, token in enumerate(tokens)},
          "merges": meta["tokenizer.ggml.merges"]},
  }


def _tokenizer_config(meta: dict) -> dict:
  tokens = meta["tokenizer.ggml.tokens"]
  of = lambda name: tokens[meta[f"tokenizer.ggml.{name}_token_id"]]
  return {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "bos_token": of("bos"),
      "eos_token": of("eos"),
      "pad_token": of("padding"),
      "unk_token": of("unknown"),
      "model_max_length": meta["llama.context_length"],
      "add_prefix_space": False,
      "clean_up_tokenization_spaces": False,
      "chat_template": meta["tokenizer.chat_template"],
  }


def _files(meta: dict) -> dict[str, dict]:
  """Returns the content of each JSON file of the folder."""
  ids = ("bos_token_id", "eos_token_id", "pad_token_id")
  config = _config(meta)
  return {"config.json": config,
          "generation_config.json": {key: config[key] for key in ids},
          "tokenizer.json": _tokenizer(meta),
          "tokenizer_config.json": _tokenizer_config(meta)}


def _halves_apart(rows: np.ndarray, heads: int) -> np.ndarray:
  """Returns the rows of queries or keys in the order of Hugging Face."""
  pairs = rows.reshape(heads, -1, 2, rows.shape[1])
  return pairs.swapaxes(1, 2).reshape(rows.shape)


def _stored_name(name: str) -> str:
  """Returns the Hugging Face name of a tensor of the GGUF file."""
  if name in _TOP:
    return _TOP[name]
  _, layer, part, _ = name.split(".")  # blk.3.attn_q.weight
  return f"model.layers.{layer}.{hf_weights.LAYER[_LAYER[part]]}"


def _tensor(file: gguf.File, name: str) -> np.ndarray:
  """Returns a tensor as Hugging Face stores it, in bfloat16."""
  value = file.tensor(name)
  for part, key in (("attn_q", "head_count"), ("attn_k", "head_count_kv")):
    if f".{part}." in name:
      value = _halves_apart(value, file.metadata[f"llama.attention.{key}"])
  return value.astype(jnp.bfloat16)


def _save_weights(path: pathlib.Path, file: gguf.File) -> None:
  """Writes model.safetensors, with one tensor in memory at a time.

  Not by the library, whose versions may order the tensors in another way: the
  file has a known hash.
  """
  names = sorted(file.shapes, key=_stored_name)
  head, end = {"__metadata__": {"format": "pt"}}, 0
  for name in names:
    start, end = end, end + 2 * int(np.prod(file.shapes[name]))
    head[_stored_name(name)] = {"dtype": "BF16", "data_offsets": [start, end],
                                "shape": list(file.shapes[name])}
  text = json.dumps(head).encode()
  text += b" " * (-len(text) % 8)
  with open(path, "wb") as opened:
    opened.write(len(text).to_bytes(8, "little") + text)
    for name in names:
      opened.write(_tensor(file, name).tobytes())


def write(folder: pathlib.Path, file: gguf.File) -> None:
  """Writes all files of the checkpoint into an existing folder."""
  for name, values in _files(file.metadata).items():
    text = json.dumps(values, indent=1, ensure_ascii=False)
    (folder / name).write_bytes(f"{text}\n".encode())
  _save_weights(folder / "model.safetensors", file)


def check(folder: pathlib.Path) -> None:
  """Raises InputError unless each file of a folder has its known hash."""
  for name, expected in SHA256.items():
    with open(folder / name, "rb") as opened:
      found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
      raise InputError(
          f"{name}: sha256 is {found[:12]}, expected {expected[:12]}: the "
          "written file is not the one that was checked against transformers; "
          "check disk and memory, then report it with the version of numpy, "
          f"{np.__version__}")
