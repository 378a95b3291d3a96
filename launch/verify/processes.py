"""Starts runs of isojax.main as processes and compares their records."""

import collections
import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time

from isojax.ledger import records
from launch.verify import compare


def free_port() -> int:
  """Returns a free TCP port."""
  with socket.socket() as one:
    one.bind(("", 0))
    return one.getsockname()[1]


@dataclasses.dataclass(frozen=True)
class Run:
  """The processes of one run, and the files with their output."""

  folder: str
  processes: list[subprocess.Popen]
  outputs: list[str]

  def wait(self) -> list[int]:
    """Waits for all processes; returns their exit codes."""
    return [process.wait() for process in self.processes]

  def wait_for(self, step: int) -> None:
    """Waits until the records reach a step; exits if the run ends before."""
    ledger = os.path.join(self.folder, "records.jsonl")
    while not any(r["step"] >= step for r in records.read(ledger)):
      if any(process.poll() is not None for process in self.processes):
        sys.exit(f"{self.folder} ended too early:\n" + self.text())
      time.sleep(0.02)

  def text(self) -> str:
    """Returns the output of all processes."""
    parts = []
    for path in self.outputs:
      with open(path, encoding="utf-8") as file:
        parts.append(file.read())
    return "\n".join(parts)


def start(folder: str, arguments: list[str], *, count: int,
          devices: int) -> Run:
  """Starts `count` processes with `devices` forced CPU devices each."""
  # With fewer threads than concurrent collectives, they would deadlock.
  environment = os.environ | {
      "JAX_PLATFORMS": "cpu", "NPROC": "32", "XLA_FLAGS": " ".join([
          os.environ.get("XLA_FLAGS", ""),
          f"--xla_force_host_platform_device_count={devices}"])}
  command = [sys.executable, "-m", "isojax.main", *arguments,
             f"--config.mesh.data={count * devices}", f"--workdir={folder}"]
  coordinator, processes, outputs = f"127.0.0.1:{free_port()}", [], []
  for i in range(count):
    with tempfile.NamedTemporaryFile(
        prefix=f"{os.path.basename(folder)}-output-", delete=False,
        dir=os.path.dirname(folder)) as file:
      outputs.append(file.name)
      processes.append(subprocess.Popen(command + [
          f"--coordinator={coordinator}", f"--num_processes={count}",
          f"--process_id={i}"] * (count > 1), env=environment, stdout=file,
          stderr=subprocess.STDOUT))
  return Run(folder, processes, outputs)


# Fields that are sums over devices, in an order that depends on the mesh.
ROUNDED = ("entropy", "kl", "grad_norm", "clip_fraction", "logp")


def differences(one: str, other: str) -> dict[str, float]:
  """Returns the largest relative difference of each field that differs.

  It is infinite if the field must be equal, or if a record is missing.
  """
  pair = [records.comparable(records.read(os.path.join(x, "records.jsonl")))
          for x in (one, other)]
  if [r.keys() for r in pair[0]] != [r.keys() for r in pair[1]]:
    return {"records": float("inf")}
  worst = collections.defaultdict(float)
  for a, b in zip(*pair):
    for name in a:
      if name == "logp_gap" and not a["staleness_max"]:
        # Consists of rounding errors, so only bounded.
        far = 0.0 if max(a[name], b[name]) < 1e-5 else float("inf")
      elif name in (*ROUNDED, "logp_gap"):
        far = compare.relative(a[name], b[name])
      else:
        far = 0.0 if a[name] == b[name] else float("inf")
      worst[name] = max(far, worst[name])
  return {name: value for name, value in worst.items() if value}
