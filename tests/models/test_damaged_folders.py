"""Damaged model folders are refused in one line that names the file."""

import json
import os
import pathlib
import re
import shutil
import struct

import pytest
import safetensors.numpy

from isojax import mesh as mesh_lib
from isojax import policy
from isojax.errors import InputError
from isojax.models import hf_weights

ASSET = pathlib.Path("isojax/assets/countdown-tiny")
WEIGHTS = (ASSET / "model.safetensors").read_bytes()
SIZE, = struct.unpack("<Q", WEIGHTS[:8])
HEADER = json.loads(WEIGHTS[8:8 + SIZE])


def edited(name: str, **fields) -> bytes:
  """Returns a JSON file of the folder with other fields."""
  return json.dumps(json.loads((ASSET / name).read_text()) | fields).encode()


def weights(header) -> bytes:
  """Returns the weights under another header."""
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return struct.pack("<Q", len(text)) + text + WEIGHTS[8 + SIZE:]


def first(**fields) -> bytes:
  """Returns the weights with other fields of the first tensor's header."""
  name = next(key for key in HEADER if key != "__metadata__")
  return weights(HEADER | {name: HEADER[name] | fields})


def with_head(change: int) -> bytes:
  """Returns the weights with a copy of the tied embedding, changed at [0, 0]."""
  tensors = safetensors.numpy.load(WEIGHTS)
  head = tensors["model.embed_tokens.weight"].copy()
  head[0, 0] += change
  return safetensors.numpy.save(tensors | {"lm_head.weight": head})


def index(file: str) -> bytes:
  return json.dumps({"weight_map": dict.fromkeys(HEADER, file)}).encode()


@pytest.mark.parametrize("name, data, found", [
    ("config.json", b"null", "config.json: not a readable"),
    ("config.json", edited("config.json", model_type=[]), "model_type []"),
    ("config.json", edited("config.json", num_hidden_layers=10**9),
     "config.json: num_hidden_layers=1000000000: expected a whole number"),
    ("config.json", edited("config.json", num_hidden_layers=True),
     "config.json: num_hidden_layers=True: expected a whole number"),
    ("config.json", edited("config.json", hidden_size=1.5),
     "config.json: hidden_size=1.5: expected a whole number"),
    ("config.json", edited("config.json", vocab_size=10**30),
     "config.json: vocab_size=1000000000000000000000000000000: expected"),
    ("config.json", edited("config.json", head_dim=10**9),
     "config.json: head_dim=1000000000: expected a whole number"),
    ("config.json", edited("config.json", hidden_act=5),
     "config.json: not a valid configuration"),
    ("config.json", edited("config.json", rope_theta=True),
     "config.json: rope_theta=True: expected a positive number"),
    ("config.json", edited("config.json", rope_parameters={"rope_type": []}),
     "config.json: rope_type [] is not supported"),
    ("tokenizer.json", b"", "tokenizer files cannot be read"),
    ("tokenizer_config.json", edited("tokenizer_config.json",
                                     model_max_length=[]),
     "tokenizer_config.json has model_max_length=[], expected a number"),
    ("generation_config.json", b'{"eos_token_id": [null]}',
     "generation_config.json: eos_token_id is"),
    ("model.safetensors", b"", "no readable model.safetensors"),
    ("model.safetensors", WEIGHTS[:-1000], "no readable model.safetensors"),
    ("model.safetensors", struct.pack("<Q", 2**63) + WEIGHTS[8:],
     "no readable model.safetensors"),
    ("model.safetensors", weights(b'{"a":' * 10**5), "no readable model"),
    ("model.safetensors", first(shape=[2**62, 2**62]), "no readable model"),
    ("model.safetensors", first(data_offsets=[5, 0]), "no readable model"),
    ("model.safetensors", with_head(1), "tie_word_embeddings=true, but tensor "
     "lm_head.weight differs from model.embed_tokens.weight"),
    ("model.safetensors", None, "model.safetensors is not a regular file"),
    ("model.safetensors.index.json", index("/dev/zero"),
     "weight_map names '/dev/zero', which is not a file in this folder"),
    ("model.safetensors.index.json", index("../m/model.safetensors"),
     "weight_map names '../m/model.safetensors', which is not a file in"),
    ("model.safetensors.index.json", index("pipe"),
     "weight_map names 'pipe', which is not a file in this folder"),
], ids=lambda x: str(x)[:30] if isinstance(x, str) else "")
def test_damage_is_named_in_one_line(tmp_path, name, data, found):
  """Before: tracebacks, endless waiting, and a tokenizer that was blamed."""
  folder = tmp_path / "m"
  shutil.copytree(ASSET, folder)
  os.mkfifo(folder / "pipe")
  if data is None:  # a pipe without a writer
    (folder / name).unlink()
    os.mkfifo(folder / name)
  else:
    (folder / name).write_bytes(data)
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=1, fsdp=1, tensor=1))
  with pytest.raises(InputError, match=re.escape(found)) as error:
    policy.opened_model(str(folder), mesh)
    hf_weights.sha256(str(folder))
  assert "\n" not in str(error.value)


def test_a_copy_of_a_tied_embedding_is_read(tmp_path):
  shutil.copytree(ASSET, tmp_path / "m")
  (tmp_path / "m/model.safetensors").write_bytes(with_head(0))
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=1, fsdp=1, tensor=1))
  assert policy.opened_model(str(tmp_path / "m"), mesh).model.cfg.tied
