"""A real sweeper of counting runs: counting_sweeper.py ROOT WORKERS STEPS..."""

import os
import pathlib
import sys

from isojax.core import exit_codes
from isojax.core.allocation import allocate
from isojax.sweep import sweeper

root, count, *steps = sys.argv[1:]
PROGRAM = pathlib.Path(__file__).with_name("counting_run.py")
sweeper.POLL_SECONDS = 0.05
CONFIG = {"recipe": {"updates": {"in_flight": 0}}}
runs = [sweeper.PlannedRun(os.path.join(root, f"run{i}"), f"plan.jsonl:{i + 1}",
                    CONFIG, allocate(Bp=1, n=2, M=None,
                                     C=max(2 * int(n), 2)))
        for i, n in enumerate(steps)]
stopped = sweeper.sweep(
    runs, [{}] * int(count), tries=2,
    command=lambda run: [sys.executable, str(PROGRAM), run.folder,
                         steps[runs.index(run)]])
print(*map(sweeper.state_of, runs))
sys.exit(exit_codes.PREEMPTED if stopped else 0)
