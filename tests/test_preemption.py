"""A signal to one process stops all of them, at the same point."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from isojax import preemption
from tests import test_hosts

WORKER = """
import json, time
from isojax import hosts
from isojax import preemption

hosts.initialize(None, None, None)
preemption.EVERY = 0.5
stop, begun, checks = preemption.Stop(), time.monotonic(), 0
check = stop.check

def counted():
  global checks
  checks += 1
  check()

stop.check = counted
for poll in range(100_000):
  if hosts.number() == 1 and time.monotonic() - begun > 2:
    stop.ask()
  try:
    stop.poll()
  except preemption.Stopped:
    break
  time.sleep(0.001 * (1 + hosts.number()))  # one is slower
print(json.dumps([poll, checks, time.monotonic() - begun]), flush=True)
"""


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


def test_two_processes_stop_after_the_same_poll():
  said = test_hosts.both(WORKER)
  assert [code for code, *_ in said] == [0, 0], said
  (polls, checks, seconds), (others, *_) = [
      json.loads(out.splitlines()[-1]) for _, out, _ in said]
  assert polls == others
  assert 2 < seconds < 8  # asked after 2 s, noticed within about EVERY
  assert checks < 40 < polls  # not at every poll


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
