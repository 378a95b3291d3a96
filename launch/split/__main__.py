"""Sorts the problems of a set into strata by how often a policy solves them.

  python -m launch.split --config=configs/split_tiny.py

Reads a problem set, measures avg@n of the policy on it and writes, for each
stratum, the problems whose avg@n lies in its range, with their counts. With
config.n=0 nothing is measured, and all problems become one file.

Counts are stored beside the output: the same command resumes where it stopped,
and other thresholds need no new samples. --shard=I --shards=N measures a part
of the problems; the process that finishes last writes the strata.
"""

import contextlib
import dataclasses

from absl import flags

from isojax import cli
from isojax import compilation
from isojax import experiment
from isojax import progress
from isojax.errors import InputError
from isojax.tasks import grader as grader_lib
from isojax.tasks import pass_counts as pass_counts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks import stratum_file as stratum_file_lib
from launch.split import config
from launch.split import measure
from launch.split import output

_CONFIG = cli.define_config("configs/split_tiny.py")
_SHARD = flags.DEFINE_integer("shard", 0, "Part to measure, from 0.")
_SHARDS = flags.DEFINE_integer("shards", 1, "Number of parts, each measured "
                               "by a process of its own.")


def main(_) -> None:
  cfg = experiment.section(config.Split, experiment.completed(
      _CONFIG.value.to_dict(), config.Split), "config")
  if not 0 <= _SHARD.value < _SHARDS.value:
    raise InputError(f"--shard={_SHARD.value} --shards={_SHARDS.value}: "
                     "expected 0 <= shard < shards")
  strata, mixtures = config.wanted_of(cfg)
  output.make_folder(cfg.out)
  if not cfg.n:
    output.write_all(cfg)
    return
  if note := compilation.keep_programs():
    progress.say(note)
  compilation.announce(progress.say)
  policy = measure.opened_policy(cfg)
  pool = measure.without_long(cfg, policy, config.read_pool(cfg))
  output.say(pool, cfg.grader.name)
  by_key = {pass_counts_lib.key(split, p): (split, p)
            for split in stratum_file_lib.SPLITS for p in getattr(pool, split)}
  header = measure.decides(cfg, policy)
  again = sorted({w.again for w in strata.values()} - {None})
  with contextlib.ExitStack() as stack:
    def start():
      return measure.measurement(cfg, policy, stack.enter_context(
          grader_lib.opened(cfg.grader, cfg.source)))

    counts = pass_counts_lib.completed(
        cfg.out, header, by_key, cfg.n, again, shard=_SHARD.value,
        shards=_SHARDS.value, start=start)
  left = sum(len(keys) for _, keys in pass_counts_lib.missing(
      by_key, counts, cfg.n, again))
  if left:
    print(f"shard {_SHARD.value} of {_SHARDS.value} is done; {left} problems "
          "are left to the others, the last of which writes the strata")
    return
  rows, errors = strata_lib.assembled(
      strata, mixtures, pool, pass_counts_lib.by_problem(by_key, counts), cfg.n)
  rows = output.with_tokens(rows, {
      (split, p.id): counts[key, cfg.n].tokens
      for key, (split, p) in by_key.items()})
  output.draw(cfg, [counts[key, cfg.n].correct for key, (split, _) in by_key.items()
                    if split == "train"], strata, rows)
  for name in rows:
    how = dataclasses.asdict({**strata, **mixtures}[name])
    output.write(cfg, header | {"n": cfg.n} | {
        key: how[key] for key in how if key not in stratum_file_lib.SPLITS},
                 name, rows[name], mixture=name in mixtures)
  if errors:
    raise InputError("; ".join(errors))


if __name__ == "__main__":
  cli.run(main)
