"""Kills a run at random times and compares its result with an undisturbed run.

  python -m launch.verify.kill_and_resume --config=configs/hard.py \
      --config.alloc.C=8192 --config.checkpoint.every_steps=5 --kills=4

Runs the experiment once undisturbed and once with `kill -9`. Prints two hashes
of each run: of the final parameters and optimizer state, and of the records
without their time fields. The exit code is 0 if the hashes are equal.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
from absl import flags

from isojax.ledger import checkpoint
from isojax import cli
from isojax import run_context
from isojax.ledger import records

_CONFIG = cli.define_config("configs/hard.py")
_KILLS = flags.DEFINE_integer("kills", 3, "Number of kills.", lower_bound=1)
_SEED = flags.DEFINE_integer("kill_seed", 0, "Seed of the times of the kills.")


def start(folder: str) -> subprocess.Popen:
  """Starts the experiment with this command's --config flags."""
  config = cli.config_arguments(sys.argv[1:])
  return subprocess.Popen(
      [sys.executable, "-m", "isojax.main", *config, f"--workdir={folder}"],
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_at(run, folder: str, target: float, delay: float) -> int:
  """Kills a run `delay` seconds after its records reach step `target`.

  Returns:
    The last recorded step.
  """
  path = os.path.join(folder, "records.jsonl")
  last = lambda: max((r["step"] for r in records.read(path)), default=-1)
  while last() < target and run.poll() is None:
    time.sleep(0.01)
  time.sleep(delay)
  if run.poll() is not None:
    sys.exit("the run ended before it could be killed; increase its steps")
  run.kill()
  run.wait()
  return last()


def last_step(folder: str) -> int:
  """Returns the last recorded step of a run."""
  return records.read(os.path.join(folder, "records.jsonl"))[-1]["step"]


def hashes(context, folder: str) -> tuple[str, str]:
  """Returns a hash of the final state and a hash of the records."""
  tx, _ = run_context.make_optimizer(context.e)
  step, state = checkpoint.restore_newest(
      os.path.join(folder, "checkpoints"),
      run_context.abstract_state(context, tx), context.run_id)
  assert step == last_step(folder), (step, last_step(folder))
  state_hash = hashlib.sha256()
  for leaf in jax.tree.leaves(state):
    state_hash.update(np.asarray(leaf).tobytes())
  kept = records.comparable(
      records.read(os.path.join(folder, "records.jsonl")))
  text = "\n".join(json.dumps(r, sort_keys=True) for r in kept)
  return state_hash.hexdigest(), hashlib.sha256(text.encode()).hexdigest()


def main(_) -> None:
  context = run_context.prepare(_CONFIG.value)
  moments = random.Random(_SEED.value)
  with tempfile.TemporaryDirectory() as root:
    calm, disturbed = (os.path.join(root, x) for x in ("calm", "disturbed"))
    began = time.monotonic()
    if start(calm).wait():
      sys.exit("the undisturbed run failed; run isojax.main to see why")
    seconds = time.monotonic() - began
    print(f"undisturbed: {seconds:.1f} s")
    M = last_step(calm)
    for kill in range(1, _KILLS.value + 1):
      # The first kill happens during startup. The others are spread over the
      # run, each up to the duration of about one step after a record.
      target = M * (kill - 1 - moments.random()) / _KILLS.value
      delay = 4.0 if kill == 1 else seconds / M
      step = kill_at(start(disturbed), disturbed, target,
                     delay * moments.random())
      print(f"kill {kill}: records up to step {step} of {M}")
    code = start(disturbed).wait()
    if code:
      sys.exit(f"the disturbed run ended with exit code {code}")
    pairs = list(zip(("state", "records"), hashes(context, calm),
                     hashes(context, disturbed)))
  for name, one, other in pairs:
    print(f"{name:8} undisturbed {one}\n"
          f"{'':8} killed {_KILLS.value}x   {other}  "
          f"{'same' if one == other else 'DIFFERENT'}")
  sys.exit(any(one != other for _, one, other in pairs))


if __name__ == "__main__":
  cli.run(main)
