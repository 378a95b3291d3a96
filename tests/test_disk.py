"""What the file system refuses is one line; no half of a file is left."""

import concurrent.futures
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading

import pytest

import isojax
from isojax.core import config_file, disk
from isojax.errors import InputError
from isojax.models import decoder, hf_weights
from launch import convert, pass_counts, split
from tests import command

TINY = "isojax/assets/countdown-tiny"


@contextlib.contextmanager
def full(size):
  """No file may grow above so many bytes, as on a disk that is full."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def split_config(folder):
  problems = [{"question": f"1 2 3 {i}=6", "answer": "6"} for i in range(99)]
  (folder / "p.jsonl").write_text("".join(
      json.dumps(row) + "\n" for row in problems))
  config = config_file.read_config("configs/split_own.py")
  config_file.override(config, {
      "source": {"path": f"{folder}/p.jsonl"}, "model": TINY,
      "grader": {"name": "countdown", "file": ""}, "prompt": {"chat": False},
      "sampler": {"max_prompt_tokens": 15, "max_new_tokens": 1}}, "test")
  return config


def split_writer(folder):
  config = split_config(folder)

  def write(out):
    config.out = out
    split.split(config, shard=0, shards=1, command="")

  return write


def model_writer(_):
  params = hf_weights.load(
      TINY, decoder.abstract_params(convert.empty_model(TINY)))
  return lambda out: hf_weights.export(TINY, out, params, dtype="float32")


def plan_writer(_):
  return isojax.plan(rollouts=2e6, stratum="hard").save


def page_writer(folder):
  log = folder / "log.csv"
  log.write_text("step,reward\n" + "".join(f"{i},0.5\n" for i in range(9)))
  return isojax.doctor(str(log)).save


@pytest.mark.parametrize("writer, key", [
    (split_writer, "config.out="), (model_writer, "--out="),
    (plan_writer, "--out="), (page_writer, "--out=")])
@pytest.mark.parametrize("folder, why", [
    ("/dev/null", "File exists|Not a directory"),
    ("/proc/none", "No such file or directory")])
def test_a_folder_that_cannot_be(writer, key, folder, why, tmp_path):
  write = writer(tmp_path)
  with pytest.raises(InputError, match=(
      f"^{key}{folder}/out: cannot be written \\(({why})\\)")):
    write(f"{folder}/out")


@pytest.mark.parametrize("writer, size", [
    (split_writer, 2000), (model_writer, 100_000), (plan_writer, 50)])
def test_a_disk_that_takes_no_more(writer, size, tmp_path):
  write, before = writer(tmp_path), os.listdir(tmp_path)
  with full(size), pytest.raises(InputError, match=(
      f"{tmp_path}/out.*: cannot be written \\(.*File too large")):
    write(f"{tmp_path}/out")
  assert os.listdir(tmp_path) == before


def test_a_measurement_asks_for_its_place_first():
  """Before `start`, which loads a model."""
  with pytest.raises(InputError, match=(
      "/proc/none/out-counts-0-of-1.jsonl: cannot be written")):
    pass_counts.completed("/proc/none/out", {}, {"0": ("train", None)}, 1, [],
                          shard=0, shards=1, start=None)


def test_a_full_standard_output_is_one_line(tmp_path):
  with open("/dev/full", "w", encoding="utf-8") as output:
    done = subprocess.run(
        [sys.executable, "-m", "launch.plan", "--rollouts=2e6",
         "--stratum=hard", f"--out={tmp_path}/plan.jsonl"], stdout=output,
        stderr=subprocess.PIPE, text=True, cwd=command.ROOT, check=False)
  assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
  assert "cannot be written (No space left on device)" in done.stderr


def test_the_command_exits_with_2(tmp_path):
  done = command.run("launch.convert", f"--model={TINY}", "--out=/proc/none/x")
  assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
  assert "isojax: --out=/proc/none/x: cannot be written (" in done.stderr


def test_processes_may_replace_a_file_at_once(tmp_path):
  """Sweepers that start together write the same files of a new root."""
  path = str(tmp_path / "file")
  together = threading.Barrier(8)

  def write(text):
    for _ in range(20):
      together.wait()
      disk.replace(path, text)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(write, [bytes([65 + i]) * 5000 for i in range(8)]))
  left = (tmp_path / "file").read_bytes()
  assert len(left) == 5000 and len(set(left)) == 1
  assert os.listdir(tmp_path) == ["file"]
  (tmp_path / "folder").mkdir()
  with pytest.raises(OSError):
    disk.replace(str(tmp_path / "folder"), b"text")
  assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
