"""Two processes of two devices each, as two hosts, against one process.

A signal to one of them: tests/test_hosts.py.
"""

import re
import signal

import pytest

from isojax.core import exit_codes
from tests import processes

ARGUMENTS = ["--config=configs/hard.py", "--config.alloc.C=4096",
             "--config.eval.k=1", "--config.checkpoint.every_steps=3"]
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
