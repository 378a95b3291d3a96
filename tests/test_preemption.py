"""What a signal does; to one of two processes: tests/test_hosts.py."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from isojax.runtime import preemption


def test_one_process_notices_at_once():
  before = signal.getsignal(signal.SIGTERM)
  with preemption.on_signals() as stop:
    stop.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked
    with pytest.raises(preemption.Stopped):
      stop.poll()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second kills
  assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_during_the_imports_is_answered(tmp_path):
  """A stand-in for a library that takes long to import."""
  (tmp_path / "absl.py").write_text(
      "import pathlib, time\n"
      f"pathlib.Path({str(tmp_path)!r}, 'begun').touch()\n"
      "time.sleep(60)")
  root = str(pathlib.Path(__file__).parents[1])
  started = subprocess.Popen(
      [sys.executable, "-m", "isojax.main", "--config=configs/hard.py"],
      cwd=root, stderr=subprocess.PIPE, text=True,
      env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), root])})
  while not (tmp_path / "begun").exists() and started.poll() is None:
    time.sleep(0.01)
  started.terminate()
  _, told = started.communicate(timeout=30)
  assert started.returncode == 75, told
  assert "stopped by a signal" in told and len(told.splitlines()) == 1
