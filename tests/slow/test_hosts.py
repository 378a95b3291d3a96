"""Two processes of two devices each, as two hosts, against one process."""

import json
import pathlib
import re
import shutil
import signal

import pytest
import safetensors.numpy

from configs import hard
from isojax.core import exit_codes
from tests import few, processes, short_runs

ARGUMENTS = ["--config=configs/hard.py", "--config.alloc.C=4096",
             "--config.eval.k=1", "--config.checkpoint.every_steps=3",
             "--config.recipe.optimizer.average=3.0",
             "--config.recipe.optimizer.decay=0.5",
             "--config.eval.current=True"]
M = 16  # steps


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("one") / "run")
  processes.finished(folder, ARGUMENTS, devices=4)
  return folder


@pytest.fixture
def started():
  runs = []
  yield runs
  for run in runs:
    run.kill()


def agrees(one, other):
  worst = processes.differences(one, other)
  assert max(worst.values(), default=0.0) < 1e-3, worst


def test_undisturbed(one, tmp_path):
  processes.finished(str(tmp_path / "two"), ARGUMENTS, count=2, devices=2)
  agrees(one, str(tmp_path / "two"))


def test_each_host_killed_once(one, tmp_path, started):
  folder = str(tmp_path / "killed")
  for victim in (1, 0):
    run = processes.start(folder, ARGUMENTS, count=2, devices=2)
    started.append(run)
    run.wait_for((2 - victim) * M // 3)
    run.processes[victim].kill()
    assert run.processes[1 - victim].wait() in (
        exit_codes.PEER_LOST, -signal.SIGABRT)
  processes.finished(folder, ARGUMENTS, count=2, devices=2)
  agrees(one, folder)


@pytest.mark.ci
def test_a_host_with_other_flags_ends_all_at_once(tmp_path, started):
  folder = tmp_path / "run"
  run = processes.start(str(folder), ARGUMENTS, count=2, devices=1,
                        more=([], ["--mode=eval"]))
  started.append(run)
  assert run.wait() == [exit_codes.BAD_INPUT] * 2, run.text()
  assert re.search(r"mode: train on .*\(process 0\), eval on .*process 1",
                   run.text()), run.text()
  assert "Traceback" not in run.text() and not folder.exists()


TINY = dict(alloc=dict(Bp=2, n=4, C=128),
            eval=dict(k=1, first=4800, growth=1.0),
            sampler=dict(slots=4), checkpoint=dict(every_steps=3),
            recipe=dict(loss=dict(entropy_coef=0.01)))


@pytest.fixture
def small(tmp_path):
  """One layer, few problems: each host of CPUs compiles everything again."""
  source = pathlib.Path("isojax/assets/countdown-tiny")
  shutil.copytree(source, tmp_path / "model")
  tensors = safetensors.numpy.load_file(source / "model.safetensors")
  safetensors.numpy.save_file(
      {name: x for name, x in tensors.items()
       if not re.search(r"layers\.[1-9]", name)},
      tmp_path / "model/model.safetensors")
  config = json.loads((source / "config.json").read_text())
  config["num_hidden_layers"] = 1
  if "layer_types" in config:
    del config["layer_types"]
  (tmp_path / "model/config.json").write_text(json.dumps(config))
  return TINY | {"task": {"stratum": few.easy(train=200, validation=8)},
                  "model": {"path": str(tmp_path / "model")}}


@pytest.mark.ci
def test_two_hosts_make_the_records_of_one(tmp_path, small):
  """SIGTERM to one of two, and one device afterwards."""
  flags = ["--config=configs/hard.py", *few.flags(small)]
  run = processes.start(str(tmp_path / "two"), flags, count=2, devices=2)
  try:
    run.wait_for(4)  # the checkpoint of step 3 is there
    run.processes[1].send_signal(signal.SIGTERM)
    assert run.wait() == [exit_codes.PREEMPTED] * 2, run.text()
  finally:
    run.kill()
  stopped = short_runs.read(tmp_path / "two")[-1]["step"]
  assert 4 <= stopped < 16, "too few steps to stop between them"
  assert (tmp_path / f"two/checkpoints/{stopped}").is_dir()
  config = hard.get_config()
  config.update(small)
  for folder in ("one", "two"):
    trained = short_runs.train(config, tmp_path / folder)
    assert trained.end.code == 0 and trained.records[-1]["trained_tokens"] > 0
  worst = processes.differences(
      str(tmp_path / "one"), str(tmp_path / "two"), but=["resumed_with"])
  assert max(worst.values(), default=0) < 1e-3, worst
