"""The scripts as a user runs them: pretrain, split, train."""

import os

from isojax.ledger import records
from isojax.tasks import strata as strata_lib
from tests import command
from tests.conftest import ONE_DEVICE

SHORT = ["--config.steps=3", "--config.batch=10",
         "--config.recipe.optimizer.warmup_steps=1",
         "--config.table.problems=5", "--config.table.k=2",
         "--config.sampler.slots=10",
         "--config.recipe.loss.microbatch_tokens=160"]


def launch(module, *arguments):
  done = command.run(module, *arguments,
                     env=os.environ | {"XLA_FLAGS": ONE_DEVICE})
  assert done.returncode == 0, done.stderr
  return done


def test_pretrain_needs_more_steps_than_its_warm_up(tmp_path):
  out = tmp_path / "policy"
  done = command.run("launch.pretrain", "--config=configs/pretrain_tiny.py",
                     f"--config.out={out}", "--config.steps=50")
  assert done.returncode == 2
  assert "config.steps=50: expected more than config.recipe" in done.stderr
  assert not out.exists()


def test_pretrain_that_fails_keeps_the_policy_of_its_folder(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  done = command.run("launch.pretrain", "--config=configs/pretrain_tiny.py",
                     f"--config.out={tmp_path}",
                     "--config.shape.hidden_size=65", *SHORT)
  assert done.returncode == 2 and "hidden_size" in done.stderr, done.stderr
  assert os.listdir(tmp_path) == ["config.json"]
  assert (tmp_path / "config.json").read_text() == "{}"


def test_pretrain_split_and_train(tmp_path):
  """A policy of three updates, which solves nothing, twice to the byte."""
  policy, again = tmp_path / "policy", tmp_path / "again"
  for out in (policy, again):
    done = launch("launch.pretrain", "--config=configs/pretrain_tiny.py",
                  f"--config.out={out}", *SHORT)
  assert "pass@2" in done.stdout and "MB" in done.stdout
  assert sorted(os.listdir(again)) == sorted(os.listdir(policy))
  for name in os.listdir(policy):
    assert (again / name).read_bytes() == (policy / name).read_bytes(), name

  done = launch(
      "launch.split", "--config=configs/split_tiny.py",
      f"--config.model={policy}", f"--config.out={tmp_path}/s",
      "--config.source.train=40", "--config.source.validation=12",
      "--config.sampler.slots=32", *(
          f"--config.strata.{name}.{key}"
          for name in ("easy", "hard")
          for key in ("low=0.0", "train=30", "validation=7", "test=2")))
  assert " 0/16     40 ####" in done.stdout
  stratum = strata_lib.read(f"{tmp_path}/s-hard.jsonl")
  assert (len(stratum.train), len(stratum.validation)) == (30, 7)
  assert stratum.header["command"].startswith("python -m launch.split --config")
  launch("isojax.main", "--config=configs/hard.py",
         f"--config.model.path={policy}",
         f"--config.task.stratum={tmp_path}/s-hard.jsonl",
         "--config.alloc.Bp=8", "--config.alloc.M=2", "--config.eval.k=2",
         f"--workdir={tmp_path}/run")
  kept = records.read(f"{tmp_path}/run/records.jsonl")
  assert [r["step"] for r in kept if r["kind"] == "eval"] == [0, 2]
  assert all(r["trained_tokens"] == 0 for r in kept)  # nothing is ever right
