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


BUSY = """
import hashlib
from isojax.runtime import preemption
def work():  # without byte code, so Python's own handlers wait for its end
  print("ready", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
with preemption.{}():
  exec(compile("work()", "isojax/sampling/x.py", "exec"))
"""


def answers(listen: str, *numbers: int) -> tuple[list[str], int]:
  """The lines that answer signals to a busy process, and its exit code."""
  with subprocess.Popen([sys.executable, "-c", BUSY.format(listen)],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        text=True) as busy:
    assert busy.stdout.readline() == "ready\n"
    told = []
    for number in numbers:
      busy.send_signal(number)
      told.append(busy.stderr.readline())
    busy.kill()  # nothing, if it has ended
    return told, busy.wait()


def test_each_signal_is_answered_at_once_while_the_main_thread_compiles():
  told, code = answers("on_signals", signal.SIGINT, signal.SIGINT,
                       signal.SIGTERM)
  assert code == 75
  assert "stopping: the last completed step will be saved" in told[0]
  assert "waiting for the chunk of sampling in progress; a third" in told[1]


def test_a_call_in_a_notebook_is_answered_and_does_not_end_the_process():
  told, code = answers("on_interrupt", signal.SIGINT, signal.SIGINT)
  assert code == -signal.SIGKILL
  assert "stopping: the last completed step will be saved" in told[0]
  assert "waiting for the chunk of sampling in progress; the run" in told[1]


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
