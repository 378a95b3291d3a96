"""What runs gain by being made together: against one after the other.

  python -m launch.bench_together --config=configs/hard.py --runs=4 --runs=8

Runs of the config with other seeds, in one process and with warm programs,
in turns one by one and together. Rollouts a second are those of training as
the ledger charges it; wall is all, with evaluation and checkpoints. On CPUs
runs call the programs that they call alone, unless --batched is given.
"""

import copy
import os
import statistics
import tempfile
import time

from absl import flags

from isojax import cli
from isojax import records
from isojax import together
from isojax import workdir
from isojax.errors import InputError
from isojax.planner import words
from isojax.sweep import runs as runs_lib
from isojax.sweep import slots

_CONFIG = cli.define_config("configs/hard.py")
_RUNS = flags.DEFINE_multi_integer("runs", [2, 4, 8], "How many, each a row.",
                                   lower_bound=2)
_STEPS = flags.DEFINE_integer("steps", 20, "Of each run.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Of each, after one that warms up.",
                               lower_bound=1)
_BATCHED = flags.DEFINE_boolean(
    "batched", None, "Make equal calls as one program; by default on "
    "accelerators.")
PLACE = slots.Slot("this process", {}, ())


def made(root: str, config, count: int) -> list[runs_lib.Run]:
  """Runs of `count` seeds, registered in a root."""
  runs_lib.make_root(root)
  out = []
  for seed in range(count):
    ours = copy.deepcopy(config)
    ours.update(seed=seed, alloc=dict(M=_STEPS.value))
    values = ours.to_dict()
    run = runs_lib.Run(workdir.run_id(workdir.identity(values)),
                       f"seed:{seed}", values)
    runs_lib.register(root, run)
    out.append(run)
  return out


def spent(company: together.Company, config, count: int,
          at_once: int) -> tuple[float, float]:
  """(Seconds of the wall, device-seconds charged) of so many runs."""
  with tempfile.TemporaryDirectory() as root:
    runs, began = made(root, config, count), time.perf_counter()
    for i in range(0, count, at_once):
      workers = [company.start(root, run, PLACE, 1)
                 for run in runs[i:i + at_once]]
      while any(worker.poll() is None for worker in workers):
        time.sleep(0.01)
      if any(worker.returncode for worker in workers):
        raise InputError("a run failed; run isojax.main with this --config to "
                         "see why")
    wall = time.perf_counter() - began
    ledgers = [records.read(os.path.join(
        runs_lib.workdir_of(root, run), "records.jsonl")) for run in runs]
  return wall, sum(ledger[-1]["device_seconds"] for ledger in ledgers)


def row(config, count: int) -> list[str]:
  """Both ways in turns: medians, and the ratio of each round."""
  ways = [(together.Company(batched=False), 1),
          (together.Company(batched=_BATCHED.value), count)]
  rounds = [[spent(company, config, count, at_once)
             for company, at_once in ways] for _ in range(_ROUNDS.value + 1)]
  del rounds[0]
  C = count * _STEPS.value * config.alloc.Bp * config.alloc.n
  cells = [str(count)]
  for i in (1, 0):
    one, all_ = ([each[way][i] for each in rounds] for way in (0, 1))
    ratios = [a / b for a, b in zip(one, all_)]
    cells += [f"{C / statistics.median(x):,.0f}" if i else
              f"{statistics.median(x):.1f} s" for x in (one, all_)]
    cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to "
                 f"{max(ratios):.2f})")
  return cells


def main(_) -> None:
  lines = [["runs", "one by one, rollouts/s", "together", "times as fast",
            "wall one by one", "together", "times as fast"]]
  for count in _RUNS.value:
    lines.append(row(_CONFIG.value, count))
    print(words.aligned([lines[0], lines[-1]]), flush=True)
  print("\n" + words.aligned(lines))


if __name__ == "__main__":
  cli.run(main)
