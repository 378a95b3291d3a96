"""Turns a budget into an allocation, or a sweep that measures the best one.

  python -m launch.plan --rollouts=2e6 --stratum=hard
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json
  python -m launch.plan --hours=9 --machine=v5e-8 --model=FOLDER \
      --stratum=easy --prompt_tokens=200 --response_tokens=2000
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json --schedule
  python -m launch.plan --rollouts=65536 --stratum=hard --n=64 --pods
  python -m launch.plan --sweep --config=configs/hard.py --rollouts=16384 \
      --Bp=32 --n=4,16 --seeds=0,1

Prints what to run, why, and a table, and writes plan.jsonl, one run per line,
for python -m isojax.main --config=FILE --plan=plan.jsonl --row=0.
"""

import shlex
import sys

from absl import flags

from isojax import cli
from isojax.planner import planning
from launch import plan_flags

flags.adopt_module_key_flags(plan_flags)


def main(_) -> None:
  plan = planning.make(plan_flags.request())
  trainer = plan_flags.EXPORT.value
  exported = plan.export(trainer) if trainer else []
  words, out = plan.table(plan_flags.EXPLAIN.value), plan_flags.OUT.value
  plan.save(out)
  print(words)
  for i, options in enumerate(exported):
    print(f"# row {i} for {trainer}\n{options}")
  config = cli.config_arguments(sys.argv[1:]) or ["--config=FILE"]
  print(f"wrote {out}; start a row with " + shlex.join(
      ["python", "-m", "isojax.main", *config, f"--plan={out}", "--row=0"]))


if __name__ == "__main__":
  cli.run(main)
