"""Starts and kills isojax.main in processes, and compares what runs wrote."""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time
import typing

from etils import epath
import jax
import numpy as np
import orbax.checkpoint as ocp

from isojax.ledger import checkpoint, records
from tests import record as record_lib


def free_port() -> int:
  with socket.socket() as one:
    one.bind(("", 0))
    return one.getsockname()[1]


def environment(devices: int) -> dict:
  """Of a process on so many forced CPU devices, instead of those of pytest."""
  # With fewer threads than concurrent collectives, they would deadlock.
  others = [flag for flag in os.environ["XLA_FLAGS"].split()
            if "device_count" not in flag] if "XLA_FLAGS" in os.environ else []
  return os.environ | {
      "JAX_PLATFORMS": "cpu", "NPROC": "32", "XLA_FLAGS": " ".join([
          *others, f"--xla_force_host_platform_device_count={devices}"]),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      # A kill may leave half an entry: not in what later suites read.
      "JAX_COMPILATION_CACHE_DIR": os.path.join(
          os.environ["ISOJAX_TEST_RUNS"], "compiled")}


@dataclasses.dataclass(frozen=True)
class Processes:
  """The processes of one run, and the files with their output."""

  folder: str
  processes: list[subprocess.Popen]
  outputs: list[str]

  def wait(self) -> list[int]:
    """Exit codes, when all have ended."""
    return [process.wait() for process in self.processes]

  def text(self) -> str:
    return "\n".join(pathlib.Path(path).read_text("utf-8")
                     for path in self.outputs)

  def last_step(self) -> int:
    """The last recorded step; -1 without records."""
    return max((r["step"] for r in records.read(
        os.path.join(self.folder, "records.jsonl"))), default=-1)

  def wait_for(self, step: float) -> None:
    """Waits until the records reach a step, which is before the run's last."""
    while self.last_step() < step:
      ended = [p for p in self.processes if p.poll() is not None]
      assert not ended, f"{self.folder} ended too early:\n{self.text()}"
      time.sleep(0.02)

  def kill(self) -> None:
    """What is left of the run, by SIGKILL."""
    for process in self.processes:
      process.kill()
      process.wait()


def start(folder: str, arguments: list[str], *, count: int = 1,
          devices: int = 1, axis: str = "data", more=((), ())) -> Processes:
  """Starts a run in `count` processes, each with some forced CPU devices.

  Args:
    folder: the workdir.
    arguments: flags of all processes.
    count, devices: processes, and devices of each.
    axis: of the mesh, along which all devices lie.
    more: further flags of each of two processes.
  """
  command = [sys.executable, "-m", "isojax.main", *arguments,
             f"--config.mesh.{axis}={count * devices}", f"--workdir={folder}"]
  coordinator, processes, outputs = f"127.0.0.1:{free_port()}", [], []
  for i in range(count):
    with tempfile.NamedTemporaryFile(
        prefix=f"{os.path.basename(folder)}-output-", delete=False,
        dir=os.path.dirname(folder)) as file:
      outputs.append(file.name)
      of_several = [f"--coordinator={coordinator}", f"--num_processes={count}",
                    f"--process_id={i}", *more[i]] if count > 1 else []
      processes.append(subprocess.Popen(
          command + of_several, env=environment(devices), stdout=file,
          stderr=subprocess.STDOUT))
  return Processes(folder, processes, outputs)


def finished(folder: str, arguments: list[str], **sizes) -> float:
  """Runs an experiment to its end; returns the seconds it took."""
  begun = time.monotonic()
  run = start(folder, arguments, **sizes)
  assert not any(run.wait()), run.text()
  return time.monotonic() - begun


def killed(folder: str, arguments: list[str], *, M: int, kills: int,
           seconds: float, seed: int) -> list[int]:
  """Runs an experiment of M steps to its end, with SIGKILLs on the way.

  The first one happens during startup. The others are spread over the first
  nine tenths of the run, each up to half a step after a record.

  Returns:
    The last recorded step at each kill.
  """
  moments, steps = random.Random(seed), []
  for kill in range(kills):
    run = start(folder, arguments)
    if kill:
      run.wait_for(0.9 * M * (kill - moments.random()) / max(1, kills - 1))
    delay = seconds / M / 2 if kill else min(4.0, seconds / 2)
    time.sleep(delay * moments.random())
    assert run.processes[0].poll() is None, "it ended before it was killed"
    run.kill()
    steps.append(run.last_step())
  finished(folder, arguments)
  return steps


class Result(typing.NamedTuple):
  """Hashes of what a run has written."""

  state: str  # of the newest checkpoint: parameters, optimizer, rollouts
  records: str  # without the fields that measure time


def result(folder: str) -> Result:
  """The hashes of a run; its checkpoint may be of any mesh."""
  store = epath.Path(folder, "checkpoints")
  text = json.dumps(comparable(folder), sort_keys=True)
  return Result(state_hash(store / str(checkpoint.steps(str(store))[-1])),
                hashlib.sha256(text.encode()).hexdigest())


def state_hash(step: epath.Path) -> str:
  """Of the parameters, the optimizer and the rollouts in a checkpoint."""
  state = hashlib.sha256()
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    for part in ("state", "in_flight"):  # rollouts in flight, if there are any
      if not (step / part).exists():
        continue
      restored = handler.restore(step / part, args=ocp.args.PyTreeRestore(
          restore_args=jax.tree.map(
              lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
              handler.metadata(step / part).tree)))
      for path, leaf in jax.tree.leaves_with_path(restored):
        state.update(jax.tree_util.keystr(path).encode())
        state.update(np.asarray(leaf).tobytes())
  return state.hexdigest()


def comparable(folder: str) -> list[dict]:
  return record_lib.comparable(
      records.read(os.path.join(folder, "records.jsonl")))


# Fields that are sums over devices, in an order that depends on the mesh.
ROUNDED = ("entropy", "kl", "grad_norm", "clip_fraction", "logp", "logp_gap",
           "loss", "value_loss", "explained_variance")


def until_a_tie(one: list[dict], other: list[dict], *, longest: int) -> int:
  """How many records come before the first that counts other tokens.

  Logits that are sums in another order differ by a few float32 epsilons, so a
  uniform number that lies as close to the boundary of two tokens (about one
  in 1e5) draws the other one, and all that follows differs. Such a tie changes
  one rollout, so at most its `longest` tokens; more is no tie.
  """
  for i, (x, y) in enumerate(zip(one, other)):
    apart = abs(x["sampled_tokens"] - y["sampled_tokens"])
    if apart:
      return i if apart < longest else len(one)
  return len(one)


def differences(one: str, other: str, *, but=(),
                longest: int = 0) -> dict[str, float]:
  """The largest relative difference of each field that differs.

  It is infinite if the field must be equal, or if a record is missing. The
  fields `but` may differ. With the `longest` answer in tokens, runs are
  compared until a tie between two tokens (`until_a_tie`), and at least to the
  end of the first update.
  """
  pair = comparable(one), comparable(other)
  if [r.keys() for r in pair[0]] != [r.keys() for r in pair[1]]:
    return {"records": float("inf")}
  if longest:
    first = [r["kind"] for r in pair[0]].index("train") + 1
    end = max(first, until_a_tie(*pair, longest=longest))
    pair = [records[:end] for records in pair]
  worst = collections.defaultdict(float)
  for a, b in zip(*pair, strict=True):
    for name in a.keys() - set(but):
      far = 0.0 if a[name] == b[name] else float("inf")
      if far and name in ROUNDED and None not in (a[name], b[name]):
        gap = abs(a[name] - b[name])
        # The KL of equal policies is rounding, and the logp_gap always.
        rounding = 1e-5 if name == "logp_gap" else 1e-6
        far = 0.0 if gap < rounding else gap / max(abs(a[name]), abs(b[name]))
      worst[name] = max(far, worst[name])
  return {name: value for name, value in worst.items() if value}
