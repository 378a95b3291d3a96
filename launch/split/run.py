"""One run of launch.split: problems, their pass counts, strata."""

import contextlib
import dataclasses

from isojax import compilation
from isojax import progress
from isojax import config_file
from isojax.errors import InputError
from isojax.tasks import grader as grader_lib
from isojax.tasks import pass_counts as pass_counts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks import stratum_file as stratum_file_lib
from launch.split import config
from launch.split import measure
from launch.split import output


def split(values, *, shard: int, shards: int, command: str) -> dict[str, str]:
  """Writes the strata of a problem set; returns name -> file.

  Args:
    values: a ConfigDict with the fields of config.Split.
    shard, shards: the part of the problems to measure; the process that ends
      last writes the strata, the others return no file.
    command: stored in the files, to write them again.

  Raises:
    InputError: the config is wrong, or a stratum has too few problems.
  """
  cfg = config_file.section(config.Split, values.to_dict(), "config")
  if not 0 <= shard < shards:
    raise InputError(f"--shard={shard} --shards={shards}: expected "
                     "0 <= shard < shards")
  strata, mixtures = config.wanted_of(cfg)
  output.make_folder(cfg.out)
  if not cfg.n:
    return {"all": output.write_all(cfg, command)}
  if note := compilation.keep_programs():
    progress.say(note)
  compilation.announce(progress.say)
  policy = measure.opened_policy(cfg)
  pool = measure.without_long(cfg, policy, config.read_pool(cfg))
  output.say(pool, cfg.grader.name)
  by_key = {pass_counts_lib.key(side, p): (side, p)
            for side in stratum_file_lib.SPLITS for p in getattr(pool, side)}
  header = measure.decides(cfg, policy)
  counts, left = counted(cfg, policy, header, by_key, strata, shard, shards)
  if left:
    progress.show(f"shard {shard} of {shards} is done; {left} problems are "
                  "left to the others, the last of which writes the strata")
    return {}
  rows, errors = strata_lib.assembled(
      strata, mixtures, pool, pass_counts_lib.by_problem(by_key, counts), cfg.n)
  rows = output.with_tokens(rows, {
      (side, p.id): counts[key, cfg.n].tokens
      for key, (side, p) in by_key.items()})
  output.draw(cfg, [counts[key, cfg.n].correct
                    for key, (side, _) in by_key.items()
                    if side == "train"], strata, rows)
  paths = {}
  for name in rows:
    how = dataclasses.asdict({**strata, **mixtures}[name])
    paths[name] = output.write(
        cfg, header | {"n": cfg.n} | {
            key: how[key] for key in how if key not in stratum_file_lib.SPLITS},
        name, rows[name], command=command, folder=policy.folder,
        mixture=name in mixtures)
  if errors:
    raise InputError("; ".join(errors))
  return paths


def counted(cfg: config.Split, policy, header: dict, by_key: dict, strata: dict,
            shard: int, shards: int):
  """Returns (the pass counts so far, how many problems are left to others)."""
  again = sorted({w.again for w in strata.values()} - {None})
  with contextlib.ExitStack() as stack:
    def start():
      return measure.measurement(cfg, policy, stack.enter_context(
          grader_lib.opened(cfg.grader, cfg.source)))

    counts = pass_counts_lib.completed(
        cfg.out, header, by_key, cfg.n, again, shard=shard, shards=shards,
        start=start)
  return counts, sum(len(keys) for _, keys in pass_counts_lib.missing(
      by_key, counts, cfg.n, again))
