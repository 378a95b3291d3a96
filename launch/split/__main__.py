"""Sorts the problems of a set into strata by how often a policy solves them.

  python -m launch.split --config=configs/split_tiny.py

Reads a problem set, measures avg@n of the policy on it and writes, for each
stratum, the problems whose avg@n lies in its range, with their counts. With
config.n=0 nothing is measured, and all problems become one file.

Counts are stored beside the output: the same command resumes where it stopped,
and other thresholds need no new samples. --shard=I --shards=N measures a part
of the problems; the process that finishes last writes the strata.
"""

import shlex
import sys

from absl import flags

from isojax import cli
from launch.split import run

_CONFIG = cli.define_config("configs/split_tiny.py")
_SHARD = flags.DEFINE_integer("shard", 0, "Part to measure, from 0.")
_SHARDS = flags.DEFINE_integer("shards", 1, "Number of parts, each measured "
                               "by a process of its own.")


def main(_) -> None:
  run.split(_CONFIG.value, shard=_SHARD.value, shards=_SHARDS.value,
            command=shlex.join(["python", "-m", "launch.split", *sys.argv[1:]]))


if __name__ == "__main__":
  cli.run(main)
