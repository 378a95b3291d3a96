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
  assert signal.getsignal(signal.SIGTERM) == before


WAITING = """
import time
from isojax.runtime import preemption
with preemption.{}():
  print("ready", flush=True)
  while True:
    time.sleep(0.01)
"""


def answers(listen: str, *numbers: int) -> tuple[list[str], int]:
  """The lines that answer signals to a process, and its exit code."""
  with subprocess.Popen([sys.executable, "-c", WAITING.format(listen)],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        text=True) as busy:
    assert busy.stdout.readline() == "ready\n"
    printed = []
    for number in numbers:
      busy.send_signal(number)
      printed.append(busy.stderr.readline())
    busy.communicate()
    return printed, busy.returncode


def test_the_third_signal_ends_a_process():
  printed, code = answers("on_signals", signal.SIGINT, signal.SIGINT,
                          signal.SIGTERM)
  assert code == 75
  assert "stopping: the last completed step will be saved" in printed[0]
  assert "a third signal ends the process" in printed[1] and not printed[2]


def test_the_second_interrupt_of_a_call_is_that_of_its_caller():
  printed, code = answers("on_interrupt", signal.SIGINT, signal.SIGINT)
  assert "stopping: the last completed step will be saved" in printed[0]
  assert printed[1].startswith("Traceback") and code == -signal.SIGINT


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
  _, printed = started.communicate(timeout=30)
  assert started.returncode == 75, printed
  assert "stopped by a signal" in printed and len(printed.splitlines()) == 1
