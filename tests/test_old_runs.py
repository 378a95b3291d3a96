"""Runs and sweeps that an earlier commit made are resumed and evaluated."""

import os
import pathlib
import shutil
import tarfile

import numpy as np
import pytest

from configs import hard
from isojax import cli
from isojax import experiment
from isojax import sections
from isojax.ledger import records
from isojax.ledger import workdir
from isojax.planner import plan_file
from isojax.sweep import runs as runs_lib
from isojax.sweep import status
from isojax.sweep import sweeper
from tests import command as command_lib
from tests.conftest import ONE_DEVICE

FIXTURE = pathlib.Path(__file__).parent / "data/old_runs/4dcbfe8.tar.xz"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
  folder = tmp_path_factory.mktemp("old")
  with tarfile.open(FIXTURE) as tar:
    tar.extractall(folder, filter="data")
  return folder


@pytest.fixture
def old(unpacked, tmp_path):
  shutil.copytree(unpacked, tmp_path / "old")
  return tmp_path / "old"


def run(folder, *flags):
  """The command of the fixture's README, with the code of today."""
  done = command_lib.run(
      "isojax.main", "--config=configs/easy.py", "--config.alloc.Bp=8",
      "--config.alloc.n=4", "--config.alloc.C=256", "--config.model.lora.rank=1",
      "--config.checkpoint.every_steps=2", "--config.checkpoint.keep=1",
      "--config.eval.first=128", "--config.eval.k=2",
      "--config.eval.growth=1.0", "--config.sampler.slots=32",
      f"--workdir={folder}", *flags, env=os.environ | {"XLA_FLAGS": ONE_DEVICE})
  assert done.returncode == 0, done.stderr


def assert_same(got: list[dict], wanted: list[dict]):
  """Counts and verdicts exactly, other numbers to the noise of float32."""
  assert len(got) == len(wanted)
  for one, other in zip(records.comparable(got), records.comparable(wanted)):
    assert one.keys() >= other.keys()
    for name, value in other.items():
      if isinstance(value, float):
        np.testing.assert_allclose(one[name], value, rtol=1e-3, atol=1e-6,
                                   err_msg=name)
      else:
        assert one[name] == value, name


def test_evaluation_of_an_old_run(old):
  run(old / "run", "--mode=eval")
  assert_same(records.read(str(old / "run/eval.jsonl")),
              records.read(str(old / "eval.jsonl")))


def test_resume_continues_as_the_code_that_began_it(old):
  run(old / "run")
  got = records.read(str(old / "run/records.jsonl"))
  assert [r["step"] for r in got if r["kind"] == "train"] == list(range(1, 9))
  assert_same(got, records.read(str(old / "continued.jsonl")))


def test_a_stored_config_builds(old):
  """Of a run and of a sweep, with every key that was added since."""
  config = workdir.read_config(str(old / "run")).config
  e = sections.section(experiment.Experiment, experiment.completed(config),
                       "config")
  assert (e.alloc.M, e.model.lora.rank) == (8, 1)


def test_status_of_an_old_sweep(old):
  root = str(old / "root")
  runs, wrong = runs_lib.all_stored(root)
  assert not wrong and len(runs) == 4
  standing = sweeper.read_states(
      root, runs, sweeper.Rules(3, 60.0, "now", True), {}, {})
  assert [s.state for s in standing] == ["finished"] * 2 + ["waiting"] * 2
  assert "0.0733 ± 0.0151 at 0" in status.table(root, standing)


def test_the_plan_of_an_old_sweep_finds_its_runs(old, tmp_path):
  """The same rows have the same ids; configs get the keys that they lack."""
  root, plan = str(old / "root"), tmp_path / "plan.jsonl"
  rows = plan_file.sweep(((4, 4), (2, 8)), C=64, seeds=(0, 1), base_lr=3e-4,
                         base_batch=1024, cost=lambda a: None)
  plan.write_text(plan_file.text(rows))
  config = hard.get_config()
  config.update(model=dict(lora=dict(rank=1)), checkpoint=dict(keep=1),
                eval=dict(first=64, k=1), sampler=dict(slots=16))
  before = [run.run_id for run in runs_lib.all_stored(root)[0]]
  found, wrong = runs_lib.of_plan(str(plan), config)
  assert not wrong and [run.run_id for run in found] == before
  runs_lib.make_root(root)  # replaces the config.py of that commit
  for run in found:
    config = cli.read_config(runs_lib.config_of(root, run))
    assert experiment.load(config).alloc.C == 64
