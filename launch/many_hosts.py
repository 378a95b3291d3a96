"""Shows that a run on two hosts is the run on one, whatever befalls them.

  python -m launch.many_hosts --config=configs/hard.py \
      --config.alloc.C=4096 --config.checkpoint.every_steps=3

Two processes with two forced CPU devices each stand for two hosts. Their
records are held against those of one process with four devices: undisturbed;
with each of the two killed once and both restarted; and after a SIGTERM to one
of them, continued by one process on one device. The exit code is 0 if all
agree: rewards and all other integers are the same, the rest to 1e-3 relative.
"""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from isojax import cli
from isojax import lab as lab_lib
from isojax import records
from launch import compare

_CONFIG = cli.define_config("configs/hard.py")


def free_port() -> int:
  with socket.socket() as one:
    one.bind(("", 0))
    return one.getsockname()[1]


@dataclasses.dataclass(frozen=True)
class Run:
  """The processes of one run, and where each writes what it says."""

  folder: str
  processes: list[subprocess.Popen]
  said: list[str]

  def wait(self) -> list[int]:
    """The exit code of each, as subprocess has it."""
    return [process.wait() for process in self.processes]

  def wait_for(self, step: int) -> None:
    """Until the records reach a step; exits if the run ends before."""
    ledger = os.path.join(self.folder, "records.jsonl")
    while not any(r["step"] >= step for r in records.read(ledger)):
      if any(process.poll() is not None for process in self.processes):
        sys.exit(f"{self.folder} ended too early:\n" + self.text())
      time.sleep(0.02)

  def text(self) -> str:
    parts = []
    for path in self.said:
      with open(path, encoding="utf-8") as file:
        parts.append(file.read())
    return "\n".join(parts)


def start(folder: str, arguments: list[str], *, count: int,
          devices: int) -> Run:
  """`count` processes of isojax.main with so many forced CPU devices each."""
  # More threads than collectives in flight, or they wait for each other.
  environment = os.environ | {
      "JAX_PLATFORMS": "cpu", "NPROC": "32", "XLA_FLAGS":
      f"--xla_force_host_platform_device_count={devices}"}
  command = [sys.executable, "-m", "isojax.main", *arguments,
             f"--config.mesh.data={count * devices}", f"--workdir={folder}"]
  coordinator, processes, said = f"127.0.0.1:{free_port()}", [], []
  for i in range(count):
    said.append(f"{folder}-said-{i}-{len(os.listdir(os.path.dirname(folder)))}")
    with open(said[-1], "w", encoding="utf-8") as file:
      processes.append(subprocess.Popen(command + [
          f"--coordinator={coordinator}", f"--num_processes={count}",
          f"--process_id={i}"] * (count > 1), env=environment, stdout=file,
          stderr=subprocess.STDOUT))
  return Run(folder, processes, said)


def differences(one: str, other: str) -> dict[str, float]:
  """The largest relative difference of each field; 0 left out.

  Infinite where other than floats differ, or a record is missing.
  """
  pair = [records.comparable(records.read(os.path.join(x, "records.jsonl")))
          for x in (one, other)]
  worst = {"records": float("inf") if len(pair[0]) != len(pair[1]) else 0.0}
  for a, b in zip(*pair):
    for name in a.keys() | b.keys():
      # The gap of sampler and trainer is rounding itself.
      far = 0.0 if name == "logp_gap" and max(a[name], b[name]) < 1e-5 else (
          compare.relative(a[name], b[name]))
      worst[name] = max(far, worst[name] if name in worst else 0.0)
  return {name: value for name, value in worst.items() if value}


def main(_) -> None:
  arguments = [a for a in sys.argv[1:] if a.startswith("--config")]
  M = lab_lib.prepare(_CONFIG.value).e.alloc.M
  rows = []
  with tempfile.TemporaryDirectory() as root:
    place = lambda name: os.path.join(root, name)

    def add(what: str, folder: str, seconds: float, codes: list[int]) -> None:
      worst = differences(place("one"), folder)
      rows.append(max(worst.values(), default=0.0) < 1e-3 and not any(codes))
      print(f"{what}: {seconds:.0f} s, exit codes {codes}\n  "
            f"{'agrees' if rows[-1] else 'DIFFERS'}: " + (", ".join(
                f"{name} {value:.1e}" for name, value in worst.items())
                or "every field is the same"), flush=True)

    def undisturbed(what: str, name: str, **sizes) -> None:
      begun = time.monotonic()
      codes = start(place(name), arguments, **sizes).wait()
      add(what, place(name), time.monotonic() - begun, codes)

    undisturbed("1 process x 4 devices", "one", count=1, devices=4)
    undisturbed("2 processes x 2 devices", "two", count=2, devices=2)

    begun = time.monotonic()
    for victim in (1, 0):
      run = start(place("killed"), arguments, count=2, devices=2)
      run.wait_for((2 - victim) * M // 3)
      run.processes[victim].kill()
      at = time.monotonic()
      code = run.processes[1 - victim].wait()
      print(f"process {victim} killed by SIGKILL: the other ended "
            f"{time.monotonic() - at:.1f} s later with exit code {code}")
    codes = start(place("killed"), arguments, count=2, devices=2).wait()
    add("2 x 2, killed twice and restarted", place("killed"),
        time.monotonic() - begun, codes)

    begun = time.monotonic()
    run = start(place("stopped"), arguments, count=2, devices=2)
    run.wait_for(M // 2)
    run.processes[1].send_signal(signal.SIGTERM)
    codes = run.wait()
    steps = sorted(map(int, filter(str.isdigit, os.listdir(
        os.path.join(place("stopped"), "checkpoints")))))
    print(f"SIGTERM to process 1: exit codes {codes}, newest step saved "
          f"{steps[-1]} of {M}")
    codes = start(place("stopped"), arguments, count=1, devices=1).wait()
    add("2 x 2 up to there, then 1 process x 1 device", place("stopped"),
        time.monotonic() - begun, codes)
  sys.exit(not all(rows))


if __name__ == "__main__":
  cli.run(main)
