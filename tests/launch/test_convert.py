"""A run goes home as a Hugging Face folder: as a user gives the commands."""

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from tests import few
from tests.command import run as command

ASSET = pathlib.Path("isojax/assets/countdown-tiny")
SMALL = ["--config=configs/hard.py", "--config.alloc.C=192",
         "--config.alloc.Bp=8", "--config.alloc.n=8", "--config.eval.k=2",
         "--config.eval.first=100000", "--config.eval.temperature=0.0",
         "--config.sampler.slots=64", f"--config.task.stratum={few.easy()}",
         "--config.recipe.optimizer.base_lr=0.001",
         "--config.recipe.optimizer.warmup_steps=1"]
LORA = ["--config.model.lora.rank=3", "--config.model.lora.targets=('q','o')"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Three updates of everything, and three of adapters."""
  folder = tmp_path_factory.mktemp("runs")
  for name, extra in (("full", []), ("lora", LORA)):
    done = command("isojax.main", *SMALL, *extra, f"--workdir={folder / name}")
    assert done.returncode == 0, done.stderr
  return folder


def changed(folder):
  """Which tensors differ from the base's."""
  base = safetensors.numpy.load_file(ASSET / "model.safetensors")
  ours = safetensors.numpy.load_file(folder / "model.safetensors")
  assert base.keys() == ours.keys()
  return {name for name in base if not np.array_equal(base[name], ours[name])}


def test_a_run_is_exported_and_goes_on_from_there(runs, tmp_path):
  """The exported policy gives the run's own greedy answers."""
  out = tmp_path / "out"
  done = subprocess.run(  # from nothing, as a user's
      [sys.executable, "-m", "launch.convert", f"--workdir={runs / 'full'}",
       f"--out={out}"], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert "step 3" in done.stdout and "140,352" in done.stdout
  assert {f.name for f in out.iterdir()} == {f.name for f in ASSET.iterdir()}
  assert len(changed(out)) > 30
  correct = []
  for folder, model in ((runs / "full", ASSET), (tmp_path / "again", out)):
    done = command("isojax.main", *SMALL, f"--config.model.path={model}",
                   f"--workdir={folder}", "--mode=eval")
    assert done.returncode == 0, done.stderr
    correct.append(json.loads((folder / "eval.jsonl").read_text())["correct"])
  assert correct[0] == correct[1] and 0 < sum(correct[0]) < 2 * 30


def test_adapters_are_merged_or_written_apart(runs, tmp_path):
  done = command("launch.convert", f"--workdir={runs / 'lora'}",
                 f"--out={tmp_path / 'merged'}")
  assert done.returncode == 0, done.stderr
  assert changed(tmp_path / "merged") >= {
      f"model.layers.{i}.self_attn.{m}_proj.weight"
      for i in range(3) for m in "qo"}
  done = command("launch.convert", f"--workdir={runs / 'lora'}", "--peft",
                 f"--out={tmp_path / 'peft'}")
  assert done.returncode == 0, done.stderr
  settings = json.loads((tmp_path / "peft/adapter_config.json").read_text())
  assert settings["r"] == 3
  assert settings["target_modules"] == ["q_proj", "o_proj"]
  tensors = safetensors.numpy.load_file(
      tmp_path / "peft/adapter_model.safetensors")
  assert len(tensors) == 3 * 2 * 2
  name = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
  assert tensors[name + "A.weight"].shape == (3, 64)
  assert np.abs(tensors[name + "B.weight"]).max() > 0


def test_a_step_and_another_dtype(runs, tmp_path):
  done = command("launch.convert", f"--workdir={runs / 'full'}", "--step=3",
                 "--dtype=bfloat16", f"--out={tmp_path / 'half'}")
  assert done.returncode == 0, done.stderr
  tensors = safetensors.numpy.load_file(tmp_path / "half/model.safetensors")
  assert {x.dtype.name for x in tensors.values()} == {"bfloat16"}
  done = command("launch.convert", f"--model={tmp_path / 'half'}",
                 f"--out={tmp_path / 'whole'}")
  assert done.returncode == 0, done.stderr
  assert json.loads((tmp_path / "whole/config.json").read_text())[
      "dtype"] == "float32"


def test_the_base_must_be_the_one_of_the_run(runs, tmp_path):
  text = (runs / "lora/config.json").read_text()
  weights = (ASSET / "model.safetensors").read_bytes()
  sha256 = hashlib.sha256(weights).hexdigest()
  noted = json.loads(text)
  for name, extra in (("same", {"model_sha256": sha256}),
                      ("other", {"model_sha256": "0123456789abcdef"})):
    shutil.copytree(runs / "lora", tmp_path / name)
    (tmp_path / name / "config.json").write_text(json.dumps(noted | extra))
    done = command("launch.convert", f"--workdir={tmp_path / name}", "--peft",
                   f"--out={tmp_path / name}-peft")
    assert done.returncode == (2 if name == "other" else 0), done.stderr
  assert sha256[:12] in done.stderr and "0123456789ab;" in done.stderr


def test_a_run_without_checkpoints(runs, tmp_path):
  shutil.copytree(runs / "full", tmp_path / "run",
                  ignore=shutil.ignore_patterns("checkpoints"))
  done = command("launch.convert", f"--workdir={tmp_path / 'run'}",
                 f"--out={tmp_path / 'out'}")
  assert done.returncode == 2 and "has no checkpoint yet" in done.stderr
  assert not (tmp_path / "run/checkpoints").exists()
  (tmp_path / "run/checkpoints").mkdir()
  done = command("launch.convert", f"--workdir={tmp_path / 'run'}",
                 f"--out={tmp_path / 'out'}")
  assert done.returncode == 2 and "holds no checkpoint" in done.stderr


@pytest.mark.parametrize("arguments, message", [
    (["--out=x"], "either --workdir"),
    (["--workdir=nowhere", "--out=x"], "contains no config.json"),
    (["--workdir={full}", "--out={full}"], "exists already"),
    (["--workdir={full}", "--out=x", "--step=2"],
     "no checkpoint of step 2; there are 3"),
    (["--workdir={full}", "--out=x", "--peft"], "has no adapters"),
    (["--model=no/where", "--out=x"], "and no download from the Hugging Face"),
    (["--model=isojax/assets/countdown-tiny", "--out=x", "--peft"],
     "need a run")])
def test_bad_input(runs, arguments, message):
  done = command("launch.convert", *(
      a.replace("{full}", str(runs / "full")) for a in arguments))
  assert done.returncode == 2 and message in done.stderr, done.stderr
  assert "Traceback" not in done.stderr
