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


def claim(folder, config):
  return workdir.claim(str(folder), config, workdir.run_id(config), "abc")


def test_claim_writes_the_config_and_its_hash(tmp_path):
  folder = tmp_path / "a" / "b"
  with claim(folder, CONFIG):
    pass
  saved = json.loads((folder / "config.json").read_text())
  assert saved == {"run_id": workdir.run_id(CONFIG), "model_sha256": "abc",
                   "identity": workdir.run_id(CONFIG), "config": CONFIG}
  with claim(folder, CONFIG):  # again: the same run goes on
    pass


def test_run_id_is_of_content():
  assert workdir.run_id(CONFIG) == workdir.run_id(
      {"alloc": {"n": 4, "Bp": 2}, "seed": 1})
  assert workdir.run_id(CONFIG) != workdir.run_id(OTHER)
  assert len(workdir.run_id(CONFIG)) == 12


def test_another_config_is_refused_and_named(tmp_path):
  with claim(tmp_path, CONFIG):
    pass
  before = (tmp_path / "config.json").read_bytes()
  with (pytest.raises(InputError, match="n: 8 in this config, 4 in "),
        claim(tmp_path, OTHER)):
    pass
  with (pytest.raises(InputError, match="the files of the model, the stratum"),
        workdir.claim(str(tmp_path), CONFIG, "another", "abd")):
    pass
  assert (tmp_path / "config.json").read_bytes() == before


def test_a_second_process_is_refused_and_the_first_named(tmp_path):
  hold = ("import sys, time\nfrom isojax.ledger import workdir\n"
          f"config = {CONFIG!r}\n"
          f"with workdir.claim({str(tmp_path)!r}, config, "
          "workdir.run_id(config), 'abc'):\n"
          "  print('held', flush=True)\n  time.sleep(60)\n")
  with subprocess.Popen([sys.executable, "-c", hold],
                        stdout=subprocess.PIPE) as other:
    try:
      assert other.stdout.readline() == b"held\n"
      with (pytest.raises(InputError, match=f"in use by process {other.pid} "),
            claim(tmp_path, CONFIG)):
        pass
    finally:
      other.kill()
  with claim(tmp_path, CONFIG):  # kill -9 leaves no lock behind
    pass


@pytest.mark.parametrize("name", ["thesis.tex", "records.jsonl"])
def test_foreign_files_are_left_alone(tmp_path, name):
  """Records without a config are foreign too."""
  (tmp_path / "lock").write_text("")
  (tmp_path / name).write_text("x")
  with (pytest.raises(InputError, match=f"{name} but no config.json"),
        claim(tmp_path, CONFIG)):
    pass
  assert sorted(os.listdir(tmp_path)) == sorted(["lock", name])
  assert (tmp_path / name).read_text() == "x"


def test_no_room_for_the_lock_is_a_message(tmp_path):
  """A process that may not write a byte, in place of a full disk."""
  code = ("import resource\nfrom isojax.ledger import workdir\n"
          "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
          f"with workdir.claim({str(tmp_path)!r}, {{}}, 'x', 'abc'):\n  pass\n")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True,
                        text=True)
  last = done.stderr.splitlines()[-1]
  assert "InputError" in last and "File too large" in last
  assert "free disk space" in last


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"config": {}}', '{"run_id": "x", "config": []}'])
def test_damaged_config_is_refused(tmp_path, text):
  (tmp_path / "config.json").write_text(text)
  with (pytest.raises(InputError, match="config.json: damaged"),
        claim(tmp_path, CONFIG)):
    pass


@pytest.mark.parametrize("folder", ["/proc/isojax", "/dev/null/x"])
def test_unwritable_is_a_message(folder):
  """A folder that even root cannot make."""
  with (pytest.raises(InputError, match="cannot be written"),
        claim(folder, CONFIG)):
    pass


def test_killed_before_the_config_was_renamed(tmp_path):
  (tmp_path / "config.json.tmp").write_text("{")
  (tmp_path / "lock").write_text("")
  with claim(tmp_path, CONFIG):
    pass
  assert json.loads((tmp_path / "config.json").read_text())["config"] == CONFIG


def test_a_name_is_not_what_decides(tmp_path):
  """A sweep names its runs; what decides is compared nevertheless."""
  named = lambda identity: workdir.claim(
      str(tmp_path), CONFIG, "swept", "abc", identity=identity)
  with named("one"):
    pass
  with named("one"):
    assert workdir.read_config(str(tmp_path)).run_id == "swept"
  with (pytest.raises(InputError, match="holds run swept with other values"),
        named("two")):
    pass
