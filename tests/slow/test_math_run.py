"""A user's own model and problems, from files to a trained folder.

Qwen2.5's form in small with random weights, problems in MATH's form, judged by
math-verify in two processes: split, train, export.
"""

import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy

from tests import short_runs
from tests.command import run as command

pytestmark = pytest.mark.ci
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
       "--config.alloc.C=32", "--config.checkpoint.every_steps=1"]


def made(folder, **shape):
  """A random checkpoint of a shape in folder/model; what the command said."""
  (folder / "config.json").write_text(json.dumps(
      json.loads(SHAPE.read_text()) | SMALL | shape))
  return command("launch.random_checkpoint", "--eos=40", "--dtype=float32",
                 f"--config_json={folder}/config.json", f"--out={folder}/model")


def test_split_train_export(tmp_path):
  """31 problems as MATH has them, and a stratum of them all."""
  done = made(tmp_path)
  assert "end after 8 tokens" in done.stdout, done.stderr
  for name, numbers in (("train", range(31)), ("test", range(31, 36))):
    (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({
        "problem": f"What is $\\frac{{{i}}}{{2}}$?", "level": "Level 1",
        "type": "Algebra",
        "solution": f"Half of {i}: $\\boxed{{\\frac{{{i}}}{{2}}}}$."}) + "\n"
                                              for i in numbers))
  for words in (
      ["launch.split", "--config=configs/split_math.py:math", "--config.n=0",
       f"--config.source.path={tmp_path}/train.jsonl",
       f"--config.source.validation={tmp_path}/test.jsonl",
       f"--config.out={tmp_path}/set"],
      ["isojax.main", *RUN, f"--config.model.path={tmp_path}/model",
       f"--config.task.stratum={tmp_path}/set-all.jsonl",
       f"--workdir={tmp_path}/run"],
      ["launch.convert", f"--workdir={tmp_path}/run", f"--out={tmp_path}/out"]):
    done = command(*words)
    assert done.returncode == 0, done.stderr
  steps = short_runs.steps(short_runs.read(tmp_path / "run"))
  assert [r["step"] for r in steps] == [1, 2, 3, 4]
  assert {r["task"] for r in steps} == {"math"}
  assert all(r["lost"] == 0 and r["reward"] == 0.0 for r in steps)
  assert all(1 <= r["response_length"] <= 11 for r in steps)
  before, after = (safetensors.numpy.load_file(
      tmp_path / name / "model.safetensors") for name in ("model", "out"))
  assert any(not np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("spoil, message", [
    (lambda at: made(at, vocab_size=100), "vocab_size=100"),
    (lambda at: (at / "model").mkdir() or made(at), "exists already"),
    (lambda at: command("launch.random_checkpoint", f"--out={at}/m",
                        f"--config_json={at}/none.json"),
     "none.json: cannot be read (No such file"),
    (lambda at: (at / "c.json").write_bytes(b"\xff") and command(
        "launch.random_checkpoint", f"--out={at}/m",
        f"--config_json={at}/c.json"), "not a readable")])
def test_what_random_checkpoint_refuses(tmp_path, spoil, message):
  done = spoil(tmp_path)
  assert done.returncode == 2 and message in done.stderr, done.stderr
  assert "Traceback" not in done.stderr
