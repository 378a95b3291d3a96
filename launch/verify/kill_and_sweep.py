"""Kills the sweepers of a sweep and compares it with an undisturbed one.

  python -m launch.verify.kill_and_sweep --plan=plan.jsonl \
      --config=configs/hard.py --config.eval.first=1024 \
      --config.checkpoint.every_steps=4

This command writes a plan that is large enough:

  python -m launch.plan --sweep --config=configs/hard.py --rollouts=2048 \
      --Bp=8,32 --n=4,16 --seeds=0,1

Runs the sweep once undisturbed. Runs it again and kills its sweeper with -9,
then continues with two sweepers at once and kills one of them with -9. Compares
the records of every run without their time fields, and checks that no two
attempts at a run were active at the same time. The exit code is 0 if the
records are equal and no attempts overlap.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from absl import flags

from isojax import cli
from isojax.ledger import records
from isojax.sweep import runs as runs_lib
from isojax.sweep import attempts as attempts_lib
from isojax.sweep import run_process

_CONFIG = cli.define_config("configs/hard.py")
_PLAN = flags.DEFINE_string("plan", "plan.jsonl", "File of launch.plan.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Runs at once in each sweeper.")
_SEED = flags.DEFINE_integer("kill_seed", 0, "Seed of the times of the kills.")


def start(root: str) -> subprocess.Popen:
  """Starts a sweeper with this command's --config flags."""
  config = cli.config_arguments(sys.argv[1:])
  return subprocess.Popen(
      [sys.executable, "-m", "launch.sweep", *config, f"--plan={_PLAN.value}",
       f"--root={root}", f"--workers={_WORKERS.value}"],
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      preexec_fn=run_process.tied(()))


def ledger(root: str, run: runs_lib.Run) -> list[dict]:
  """Returns the records of a run."""
  return records.read(os.path.join(runs_lib.workdir_of(root, run),
                                   "records.jsonl"))


def done(root: str, runs: list[runs_lib.Run]) -> float:
  """Returns the share of the sweep's rollouts that is recorded."""
  spent = sum(max((r["rollouts"] for r in ledger(root, run)), default=0)
              for run in runs)
  return spent / sum(run.allocation.C for run in runs)


def kill_at(sweeper, root: str, runs: list[runs_lib.Run], share: float,
            what: str) -> None:
  """Kills a sweeper with -9 when a share of the rollouts is recorded."""
  while done(root, runs) < share and sweeper.poll() is None:
    time.sleep(0.05)
  if sweeper.poll() is not None:
    sys.exit("the sweep ended before it could be killed; increase its C")
  sweeper.send_signal(signal.SIGKILL)
  sweeper.wait()
  print(f"killed {what} at {done(root, runs):.0%} of the rollouts", flush=True)


def overlaps(root: str, runs: list[runs_lib.Run]) -> int:
  """Returns how many attempts began before the previous one had ended."""
  count = 0
  for run in runs:
    numbers = attempts_lib.numbers(root)[run.run_id]
    attempts = [attempts_lib.read(root, run.run_id, g) for g in numbers]
    count += sum(b.begun < (a.ended or a.beat)
                 for a, b in zip(attempts, attempts[1:]))
    print(f"{run.run_id}  Bp {run.allocation.Bp:3}  n {run.allocation.n:3}  "
          f"seed {run.config['seed']}  attempts {len(attempts)}, by sweepers "
          f"{', '.join(str(t.pid) for t in attempts)}")
  return count


def main(_) -> None:
  runs, wrong = runs_lib.of_plan(_PLAN.value, _CONFIG.value)
  if wrong:
    sys.exit("\n".join(wrong))
  moments = random.Random(_SEED.value)
  with tempfile.TemporaryDirectory() as folder:
    calm, disturbed = (os.path.join(folder, x) for x in ("calm", "disturbed"))
    began = time.monotonic()
    if start(calm).wait():
      sys.exit("the undisturbed sweep failed; run launch.sweep to see why")
    print(f"undisturbed: {len(runs)} runs in {time.monotonic() - began:.0f} s",
          flush=True)
    began = time.monotonic()
    kill_at(start(disturbed), disturbed, runs, 0.4 * moments.random(),
            "the sweeper")
    first, second = start(disturbed), start(disturbed)
    kill_at(first, disturbed, runs, 0.5 + 0.3 * moments.random(),
            f"sweeper {first.pid} beside {second.pid}")
    code = second.wait()
    if code:
      sys.exit(f"the disturbed sweep ended with exit code {code}")
    print(f"disturbed: {time.monotonic() - began:.0f} s")
    overlapping = overlaps(disturbed, runs)
    different = [run.run_id for run in runs
                 if records.comparable(ledger(calm, run))
                 != records.comparable(ledger(disturbed, run))]
    lines = sum(len(ledger(calm, run)) for run in runs)
  print(f"{lines} records of {len(runs)} runs: "
        + (f"DIFFERENT in {', '.join(different)}" if different else "same")
        + f"; overlapping attempts: {overlapping}")
  sys.exit(bool(different or overlapping))


if __name__ == "__main__":
  cli.run(main)
