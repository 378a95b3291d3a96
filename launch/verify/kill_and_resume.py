"""Kills a run at random times and compares its result with an undisturbed run.

  python -m launch.verify.kill_and_resume --config=configs/hard.py \
      --config.alloc.C=8192 --config.checkpoint.every_steps=5 --kills=4

Runs the experiment once undisturbed and once with `kill -9`. Prints two hashes
of each run: of the final parameters and optimizer state, and of the records
without their time fields. The exit code is 0 if the hashes are equal.
launch.verify.kill_matrix does this for each recipe.
"""

import dataclasses
import os
import sys
import tempfile

from absl import flags

from isojax import cli
from isojax import experiment
from launch.verify import killing

_CONFIG = cli.define_config("configs/hard.py")
_KILLS = flags.DEFINE_integer("kills", 3, "Number of kills.", lower_bound=1)
_SEED = flags.DEFINE_integer("kill_seed", 0, "Seed of the times of the kills.")


def main(_) -> int:
  experiment.load(_CONFIG.value)  # an invalid config fails before any run
  arguments = cli.config_arguments(sys.argv[1:])
  with tempfile.TemporaryDirectory() as root:
    calm, disturbed = (os.path.join(root, x) for x in ("calm", "disturbed"))
    seconds = killing.finished(calm, arguments, dict(os.environ))
    M = killing.last_step(calm)
    print(f"undisturbed: {seconds:.1f} s")
    for i, step in enumerate(killing.killed(
        disturbed, arguments, dict(os.environ), M=M,
        kills=_KILLS.value, seconds=seconds, seed=_SEED.value)):
      print(f"kill {i + 1}: records up to step {step} of {M}")
    one, other = killing.result(calm), killing.result(disturbed)
  for field in dataclasses.fields(killing.Result):
    a, b = getattr(one, field.name), getattr(other, field.name)
    print(f"{field.name:8} undisturbed {a}\n"
          f"{'':8} killed {_KILLS.value}x   {b}  "
          f"{'same' if a == b else 'DIFFERENT'}")
  return int(one != other)


if __name__ == "__main__":
  cli.run(main)
