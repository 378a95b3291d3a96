"""The scripts as a user runs them: pretrain, split, train."""

import os

import pytest

from isojax.ledger import records
from isojax.tasks import strata as strata_lib
from tests import command
from tests.conftest import ONE_DEVICE

SHORT = ["--config.steps=3", "--config.batch=10",
         "--config.optimizer.warmup_steps=1", "--config.table.problems=5",
         "--config.table.k=2", "--config.sampler.slots=10",
         "--config.loss.microbatch_tokens=160"]


def launch(module, *arguments, check=True):
  done = command.run(module, *arguments,
                     env=os.environ | {"XLA_FLAGS": ONE_DEVICE})
  assert done.returncode == 0 or not check, done.stderr
  return done


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
  """A policy of three updates, which solves nothing."""
  out = tmp_path_factory.mktemp("policy") / "p"
  done = launch("launch.pretrain", "--config=configs/pretrain_tiny.py",
                f"--config.out={out}", *SHORT)
  assert "pass@2" in done.stdout and "MB" in done.stdout
  return out


def test_pretrain_is_a_function_of_its_seed(policy, tmp_path):
  again = tmp_path / "again"
  launch("launch.pretrain", "--config=configs/pretrain_tiny.py",
         f"--config.out={again}", *SHORT)
  assert sorted(os.listdir(again)) == sorted(os.listdir(policy))
  for name in os.listdir(policy):
    assert (again / name).read_bytes() == (policy / name).read_bytes(), name


def test_split_then_train(policy, tmp_path):
  flags = ["--config=configs/split_tiny.py", f"--config.model={policy}",
           f"--config.out={tmp_path}/s", "--config.source.train=40",
           "--config.source.validation=12", "--config.strata.hard.train=30",
           "--config.strata.hard.validation=9", "--config.sampler.slots=32",
           *(f"--config.strata.{few}.{key}" for few in ("low256", "low2500")
             for key in ("low=0.0", "train=30", "validation=9"))]
  refused = launch("launch.split", *flags, check=False)
  assert refused.returncode == 2 and "Traceback" not in refused.stderr
  assert "easy: 0 of 40 train problems have avg@16 in [0.3, 0.6]" in (
      refused.stderr)
  done = launch("launch.split", *flags, "--config.strata.easy.low=0.0",
                "--config.strata.easy.train=30",
                "--config.strata.easy.validation=9")
  assert " 0/16     40 ####" in done.stdout
  stratum = strata_lib.read(f"{tmp_path}/s-hard.jsonl")
  assert (len(stratum.train), len(stratum.validation)) == (30, 9)
  assert stratum.header["command"].startswith("python -m launch.split --config")
  folders = [tmp_path / "one", tmp_path / "again"]
  for folder in folders:
    launch("isojax.main", "--config=configs/hard.py",
           f"--config.model.path={policy}",
           f"--config.task.stratum={tmp_path}/s-hard.jsonl",
           "--config.alloc.Bp=8", "--config.alloc.M=2", "--config.eval.k=2",
           f"--workdir={folder}")
  kept, again = (records.comparable(records.read(f"{folder}/records.jsonl"))
                 for folder in folders)
  assert [r["step"] for r in kept if r["kind"] == "eval"] == [0, 2]
  assert all(r["trained_tokens"] == 0 for r in kept)  # nothing is ever right
  assert kept == again
