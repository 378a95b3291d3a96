"""A user's own model and problems, from files to a trained folder.

Qwen2.5's form in small with random weights, problems in MATH's form, judged by
math-verify in two processes: split, train, kill, resume, export.
"""

import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

from isojax.ledger import records
from tests.command import run as command

SHAPE = pathlib.Path("tests/data/qwen2.5-0.5b/config.json")
SMALL = dict(hidden_size=24, intermediate_size=44, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, vocab_size=317,
             max_window_layers=2)
RUN = ["--config=configs/hard.py:qwen2.5-0.5b",
       "--config.task.prompt.chat=False",
       "--config.task.grader.workers=2", "--config.alloc.Bp=2",
       "--config.alloc.n=4", "--config.sampler.slots=8",
       "--config.sampler.max_prompt_tokens=180",
       "--config.sampler.max_new_tokens=11", "--config.sampler.dtype=float32",
       "--config.recipe.loss.dtype=float32",
       "--config.recipe.loss.microbatch_tokens=128",
       "--config.recipe.loss.entropy_coef=0.01",  # all rewards are 0 here
       "--config.recipe.optimizer.base_lr=0.01", "--config.eval.k=2",
       "--config.eval.first=1000", "--config.task.format_coef=0.1",
       "--config.alloc.C=64", "--config.checkpoint.every_steps=1"]


def sized(path, **shape):
  path.write_text(json.dumps(json.loads(SHAPE.read_text()) | shape))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A model, 31 problems as MATH has them, and a stratum of them all."""
  folder = tmp_path_factory.mktemp("math")
  sized(folder / "config.json", **SMALL)
  done = command("launch.random_checkpoint", "--eos=40", "--dtype=float32",
                 f"--config_json={folder}/config.json", f"--out={folder}/model")
  assert done.returncode == 0, done.stderr
  assert "end after 8 tokens" in done.stdout
  for name, numbers in (("train", range(31)), ("test", range(31, 36))):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps({
        "problem": f"What is $\\frac{{{i}}}{{2}}$?", "level": "Level 1",
        "type": "Algebra",
        "solution": f"Half of {i}: $\\boxed{{\\frac{{{i}}}{{2}}}}$."}) + "\n"
                                              for i in numbers))
  done = command(
      "launch.split", "--config=configs/split_math.py:math", "--config.n=0",
      f"--config.source.path={folder}/train.jsonl",
      f"--config.source.validation={folder}/test.jsonl",
      f"--config.out={folder}/set")
  assert done.returncode == 0, done.stderr
  return folder


def arguments(folder, name):
  return ["isojax.main", *RUN, f"--config.model.path={folder}/model",
          f"--config.task.stratum={folder}/set-all.jsonl",
          f"--workdir={folder}/{name}"]


def trained(folder, name):
  """The records of updates, without the fields that measure time."""
  kept = records.read(f"{folder}/{name}/records.jsonl")
  return records.comparable([r for r in kept if r["kind"] == "train"])


@pytest.fixture(scope="module")
def whole(folder):
  """A run that nothing disturbed."""
  done = command(*arguments(folder, "whole"))
  assert done.returncode == 0, done.stderr
  return folder


def test_split_train_export(whole, tmp_path):
  steps = trained(whole, "whole")
  assert [r["step"] for r in steps] == list(range(1, 9))
  assert {r["task"] for r in steps} == {"math"}
  assert all(r["lost"] == 0 and r["reward"] == 0.0 for r in steps)
  assert all(1 <= r["response_length"] <= 11 for r in steps)
  again = command(*arguments(whole, "whole"))
  assert again.returncode == 0 and "step 8" in again.stdout
  assert trained(whole, "whole") == steps
  done = command("launch.convert", f"--workdir={whole}/whole",
                 f"--out={tmp_path}/out")
  assert done.returncode == 0, done.stderr
  before, after = (safetensors.numpy.load_file(f / "model.safetensors")
                   for f in (whole / "model", tmp_path / "out"))
  assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole):
  killed = subprocess.Popen(
      [sys.executable, "-m", *arguments(whole, "killed")],
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  saved = whole / "killed/checkpoints"
  while killed.poll() is None and (len(trained(whole, "killed")) < 2
                                   or not list(saved.glob("[0-9]"))):
    time.sleep(0.01)
  killed.kill()
  assert killed.wait() == -signal.SIGKILL
  first = lambda: next(r for r in records.read(
      whole / "killed/records.jsonl") if r["kind"] == "train")
  before = first()
  assert 2 <= len(trained(whole, "killed")) < 8
  done = command(*arguments(whole, "killed"))
  assert done.returncode == 0, done.stderr
  assert first() == before  # not made again: same seconds
  assert trained(whole, "killed") == trained(whole, "whole")


def test_a_full_size_shape_that_does_not_fit_its_tokenizer(tmp_path):
  sized(tmp_path / "config.json", **SMALL | {"vocab_size": 100})
  done = command("launch.random_checkpoint",
                 f"--config_json={tmp_path}/config.json", f"--out={tmp_path}/m")
  assert done.returncode == 2 and "vocab_size=100" in done.stderr


def test_what_random_checkpoint_refuses(tmp_path):
  (tmp_path / "config.json").write_bytes(b"\xff")
  (tmp_path / "there").mkdir()
  for out, message in (("m", "not a readable"), ("there", "exists already")):
    done = command("launch.random_checkpoint", f"--out={tmp_path}/{out}",
                   f"--config_json={tmp_path}/config.json")
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
