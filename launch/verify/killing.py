"""Kills runs of isojax.main and compares the results of two runs, bit by bit.

A library of launch.verify.kill_and_resume and launch.verify.kill_matrix.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import typing

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from isojax.errors import InputError
from isojax.ledger import records
from isojax.ledger import checkpoint
from launch.verify import compare
from launch.verify import processes


@dataclasses.dataclass(frozen=True)
class Result:
  """Hashes of what a run has written."""

  state: str  # of the newest checkpoint: parameters, optimizer, rollouts
  records: str  # without the fields that measure time


def last_step(folder: str) -> int:
  """Returns the last recorded step of a run; -1 without records."""
  return max((r["step"] for r in records.read(
      os.path.join(folder, "records.jsonl"))), default=-1)


def kill_at(run: processes.Run, target: float, delay: float) -> int:
  """Kills a run `delay` seconds after its records reach step `target`.

  Returns:
    The last recorded step.

  Raises:
    InputError: the run ended before it could be killed.
  """
  (process,) = run.processes
  while last_step(run.folder) < target and process.poll() is None:
    time.sleep(0.01)
  time.sleep(delay)
  if process.poll() is not None:
    raise InputError("the run ended before it could be killed; increase its "
                     f"steps:\n{run.text()[-2000:]}")
  process.kill()
  process.wait()
  return last_step(run.folder)


def start(folder: str, arguments: list[str],
          environment: dict) -> processes.Run:
  """Starts isojax.main with --config flags in a process."""
  output = f"{folder}-output"
  with open(output, "w", encoding="utf-8") as file:
    process = subprocess.Popen(
        [sys.executable, "-m", "isojax.main", *arguments,
         f"--workdir={folder}"], env=environment, stdout=file,
        stderr=subprocess.STDOUT)
  return processes.Run(folder, [process], [output])


def finished(folder: str, arguments: list[str], environment: dict) -> float:
  """Runs an experiment to its end; returns the seconds it took.

  Raises:
    InputError: it failed; with the end of its output.
  """
  begun = time.monotonic()
  run = start(folder, arguments, environment)
  (code,) = run.wait()
  if code:
    raise InputError(f"{folder}: the run ended with exit code {code}:\n"
                     f"{run.text()[-2000:]}")
  return time.monotonic() - begun


def killed(folder: str, arguments: list[str], environment: dict, *, M: int,
           kills: int, seconds: float, seed: int) -> list[int]:
  """Runs an experiment to its end and kills it several times on the way.

  The first kill happens during startup. The others are spread over the first
  nine tenths of the run, each up to half a step after a record.

  Args:
    folder: the workdir.
    arguments: --config flags.
    environment: of the processes.
    M: steps of the run.
    kills: number of kills.
    seconds: duration of the undisturbed run.
    seed: of the times of the kills.

  Returns:
    The last recorded step at each kill.
  """
  moments, steps = random.Random(seed), []
  for kill in range(kills):
    target = 0.9 * M * (kill - moments.random()) / max(1, kills - 1)
    delay = min(4.0, seconds / 2) if kill == 0 else seconds / M / 2
    steps.append(kill_at(start(folder, arguments, environment), target,
                         delay * moments.random()))
  finished(folder, arguments, environment)
  return steps


def result(folder: str) -> Result:
  """Returns the hashes of a run; its checkpoint may be of any mesh."""
  store = os.path.join(folder, "checkpoints")
  newest = epath.Path(store, str(max(checkpoint.steps(store))))
  state = hashlib.sha256()
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    for part in ("state", "host"):  # host: rollouts in flight, if there are any
      if not (newest / part).exists():
        continue
      wanted = jax.tree.map(
          lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
          handler.metadata(newest / part).tree)
      restored = handler.restore(
          newest / part, args=ocp.args.PyTreeRestore(restore_args=wanted))
      for path, leaf in jax.tree.leaves_with_path(restored):
        state.update(jax.tree_util.keystr(path).encode())
        state.update(np.asarray(leaf).tobytes())
  kept = records.comparable(
      records.read(os.path.join(folder, "records.jsonl")))
  text = "\n".join(json.dumps(r, sort_keys=True) for r in kept)
  return Result(state.hexdigest(), hashlib.sha256(text.encode()).hexdigest())


class Agreement(typing.NamedTuple):
  same: int  # steps with the same rewards, from the first on
  of: int  # steps
  worst: float  # relative difference of a number, up to there


def rounding(a, b) -> bool:
  """Whether two values differ by less than 1e-6, as the KL of equal policies.
  """
  return a == b or isinstance(a, float) and abs(a - b) < 1e-6


def agreement(one: list[dict], other: list[dict]) -> Agreement:
  """Returns how far the records of two meshes agree."""
  trained = lambda kept: [r for r in records.comparable(kept)
                          if r["kind"] == "train"]
  first, second = trained(one), trained(other)
  steps = max(len(first), len(second))
  pairs = list(zip(first, second))  # a recipe that refills may have more steps
  same = next((i for i, (a, b) in enumerate(pairs)
               if a["reward"] != b["reward"]), len(pairs))
  worst = 0.0
  for a, b in pairs[:same]:
    for name in a:
      if not rounding(a[name], b[name]):
        worst = max(worst, compare.relative(a[name], b[name]))
  return Agreement(same, steps, worst)
