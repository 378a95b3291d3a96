"""One folder, one run, one process; nothing is overwritten."""

import json
import os
import subprocess
import sys

import pytest

from isojax.errors import InputError
from isojax.ledger import workdir

CONFIG = {"seed": 1, "alloc": {"Bp": 2, "n": 4}}
OTHER = {"seed": 1, "alloc": {"Bp": 2, "n": 8}}


def run(config=CONFIG, **more):
  name = workdir.hash_of(config)
  return workdir.Stored(**dict(
      run_id=name, identity=name, model_sha256="abc", config=config) | more)


def claim(folder, config=CONFIG, **more):
  with workdir.claim(str(folder), run(config, **more),
                     conflict=lambda stored: f"another: {stored.run_id}"):
    pass


def refused(message, folder, config=CONFIG, **more):
  with pytest.raises(InputError, match=message):
    claim(folder, config, **more)


def test_claim_writes_the_config_and_its_hash(tmp_path):
  folder = tmp_path / "a" / "b"
  claim(folder)
  saved = json.loads((folder / "config.json").read_text())
  assert saved == {"run_id": workdir.hash_of(CONFIG), "model_sha256": "abc",
                   "identity": workdir.hash_of(CONFIG), "config": CONFIG}
  claim(folder)  # again: the same run goes on
  assert workdir.hash_of(CONFIG) == workdir.hash_of(
      {"alloc": {"n": 4, "Bp": 2}, "seed": 1}) != workdir.hash_of(OTHER)


def test_another_config_or_other_files_are_refused(tmp_path):
  claim(tmp_path)
  before = (tmp_path / "config.json").read_bytes()
  refused(f"another: {workdir.hash_of(CONFIG)}", tmp_path, OTHER)
  refused("another: ", tmp_path, run_id="another", identity="another",
          model_sha256="abd")
  assert (tmp_path / "config.json").read_bytes() == before


def test_a_second_process_is_refused_and_the_first_named(tmp_path):
  hold = ("import sys, time\nfrom isojax.ledger import workdir\n"
          f"with workdir.claim({str(tmp_path)!r}, workdir.{run()!r},\n"
          "                   conflict=None):\n"
          "  print('held', flush=True)\n  time.sleep(60)\n")
  with subprocess.Popen([sys.executable, "-c", hold],
                        stdout=subprocess.PIPE) as other:
    try:
      assert other.stdout.readline() == b"held\n"
      refused(f"in use by process {other.pid} ", tmp_path)
    finally:
      other.kill()
  claim(tmp_path)  # kill -9 leaves no lock behind


@pytest.mark.parametrize("name, text, message", [
    ("thesis.tex", "x", "thesis.tex but no config.json"),
    ("config.json", '{"architectures": ["LlamaForCausalLM"]}',
     "a Hugging Face model, .* --config.model.path="),
    ("records.jsonl", "{}\n", "records.jsonl but no config.json"),
    *(("config.json", text, "cannot be read or is damaged") for text in (
        "", "{", "[]", '{"config": {}}', '{"run_id": "x", "config": []}'))])
def test_what_is_not_a_run_is_left_alone(tmp_path, name, text, message):
  (tmp_path / "lock").write_text("")
  (tmp_path / name).write_text(text)
  refused(message, tmp_path)
  assert {*os.listdir(tmp_path)} == {"lock", name}
  assert (tmp_path / name).read_text() == text


def test_unwritable_is_a_message():
  """A folder that even root cannot make."""
  refused("cannot be written", "/proc/isojax")


def test_killed_before_the_config_was_renamed(tmp_path):
  (tmp_path / "config.json.tmp").write_text("{")
  (tmp_path / "lock").write_text("")
  claim(tmp_path)
  assert json.loads((tmp_path / "config.json").read_text())["config"] == CONFIG


def test_a_name_is_not_what_decides(tmp_path):
  """A sweep names its runs; what decides is compared nevertheless."""
  claim(tmp_path, run_id="swept", identity="one")
  claim(tmp_path, run_id="swept", identity="one")
  assert workdir.read_config(str(tmp_path)).run_id == "swept"
  refused("another: swept", tmp_path, run_id="swept", identity="two")
