"""A run that only counts, with the lock, signals and exit codes of a real one.

  counting_run.py RUN_ID STEPS LEDGER FOLDER

Takes up where its ledger ends. A run whose STEPS are 0 fails.
"""

import signal
import sys
import time

from isojax import cli
from isojax.ledger import workdir

run_id, steps, ledger, folder = sys.argv[1:]
stopping = []
signal.signal(signal.SIGINT, lambda *_: stopping.append(True))
if steps == "0":
  sys.exit("isojax: no steps at all")
with (workdir.claim(folder, {"id": run_id}, run_id, ""),
      open(ledger, "a+", encoding="utf-8") as file):
  file.seek(0)
  for step in range(len(file.read().split()), int(steps)):
    file.write(f"{step}\n")
    file.flush()
    time.sleep(0.02)
    if stopping:
      sys.exit(cli.PREEMPTED)
