"""Compares the results of this commit with those of a baseline.

  python -m tests.golden --check
  python -m tests.golden --check --only=runs,plans
  python -m tests.golden --check --only=runs:ppo,runs:dapo
  python -m tests.golden --write --only=runs:ppo

The baseline is tests/golden/*.json; tests/golden/README.md describes the parts.
"""

import argparse
import os
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
# One device. Programs are compiled without LLVM's optimisation (twice as fast),
# and for a set of instructions that nearly every x86 processor has, so that
# another machine gives the same bits.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_max_isa=AVX2 "
    "--xla_cpu_parallel_codegen_split_count=1")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import time

from tests.golden import baseline

PARTS = ("interface", "plans", "prices", "fits", "sampling", "runs")


def main() -> int:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  mode = parser.add_mutually_exclusive_group(required=True)
  mode.add_argument("--check", action="store_true")
  mode.add_argument("--write", action="store_true")
  parser.add_argument("--only", default=",".join(PARTS),
                      help="PART or PART:CASE, separated by commas")
  args = parser.parse_args()
  wrong = []
  with tempfile.TemporaryDirectory() as programs:
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", programs)
    for part, cases in baseline.chosen(args.only, PARTS).items():
      module, begun, results = baseline.module(part), time.monotonic(), {}
      for case, value in module.measure(cases):
        results[case] = value
        if args.write:
          baseline.write(part, case, value)
      lines = [] if args.write else module.compare(results)
      wrong += lines
      print("\n".join([*lines, f"{part}: {len(results)} cases, {len(lines)} "
                       f"differences, {time.monotonic() - begun:.0f} s"]),
            flush=True)
  return int(bool(wrong))


if __name__ == "__main__":
  sys.exit(main())
