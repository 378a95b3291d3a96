"""A real sweeper of counting runs: counting_sweeper.py ROOT WORKERS LEASE."""

import os
import pathlib
import sys

from isojax.sweep import runs as runs_lib
from isojax.sweep import devices
from isojax.sweep import sweeper
from isojax.sweep import run_process

root, workers, lease = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
PROGRAM = pathlib.Path(__file__).with_name("counting_run.py")
sweeper.SCAN = 0.2


def start(root, run, slot, number):
  return run_process.start(
      [sys.executable, str(PROGRAM), run.run_id, str(run.config["steps"]),
       os.path.join(root, f"{run.run_id}.count"),
       runs_lib.workdir_of(root, run)], root, run, slot, number)


runs = [runs_lib.Run(name, f"plan.jsonl:{i + 1}", {"steps": steps})
        for i, (name, steps) in enumerate(
            line.split() for line in open(os.path.join(root, "runs")))]
states, stopped = sweeper.sweep(
    root, runs, [devices.Slot(f"slot {i}", {}, ()) for i in range(workers)],
    sweeper.Rules(max_failures=2, lease=lease, version="v", wait=True),
    start=start, show=lambda _: None)
print(*(s.state for s in states))
sys.exit(75 if stopped else 0)
