"""A run that only counts, with the lock, signals and exit codes of a real one.

  counting_run.py FOLDER STEPS

Takes up where its records end. A run whose STEPS are 0 fails; of -2, with that
exit code; of -99 it exits with 0 and no records.
"""

import json
import os
import signal
import sys
import time

from isojax.core import exit_codes
from isojax.ledger import workdir

folder, steps = sys.argv[1], int(sys.argv[2])
stopping = []
signal.signal(signal.SIGINT, lambda *_: stopping.append(True))
if steps == -99:
  sys.exit(0)
if steps <= 0:
  sys.stderr.write("isojax: no steps at all\n")
  sys.exit(-steps or 1)
this = workdir.Stored(folder, folder, "", {"id": folder})
with workdir.claim(folder, this, conflict=lambda *_: ""), open(
    os.path.join(folder, "records.jsonl"), "a+", encoding="utf-8") as file:
  file.seek(0)
  for step in range(len(file.readlines()) + 1, steps + 1):
    file.write(json.dumps({"kind": "eval", "step": step,
                           "rollouts": 2 * step}) + "\n")
    file.flush()
    time.sleep(0.02)
    if stopping:
      sys.exit(exit_codes.PREEMPTED)
