"""A real sweeper of counting runs: counting_sweeper.py ROOT WORKERS STEPS...

A run whose STEPS begin with d decays.
"""

import os
import pathlib
import sys

from isojax.core import exit_codes
from isojax.core.allocation import allocate
from isojax.sweep import sweeper

root, count, *steps = sys.argv[1:]
PROGRAM = pathlib.Path(__file__).with_name("counting_run.py")
sweeper.POLL_SECONDS = 0.05
decays = [0.3 if n.startswith("d") else 0.0 for n in steps]
steps = [n.removeprefix("d") for n in steps]
runs = [sweeper.PlannedRun(
    os.path.join(root, f"run{i}"), f"plan.jsonl:{i + 1}",
    {"recipe": {"filter": {"rounds": 1}, "optimizer": {"decay": decay}}},
    allocate(Bp=1, n=2, M=None, C=max(2 * int(n), 2)))
        for i, (n, decay) in enumerate(zip(steps, decays, strict=True))]
stopped = sweeper.sweep(
    runs, [{}] * int(count), tries=2,
    command=lambda run: [sys.executable, str(PROGRAM), run.folder,
                         steps[runs.index(run)]])
print(*map(sweeper.state_of, runs))
sys.exit(exit_codes.PREEMPTED if stopped else 0)
