"""Writes strata, their histogram, and the command that trains on them."""

import dataclasses
import functools
import importlib
import importlib.util
import operator
import os
import shlex
import sys

from isojax import installation
from isojax.errors import InputError
from isojax.tasks import base
from isojax.tasks import strata as strata_lib
from isojax.tasks import stratum_file as stratum_file_lib
from isojax.tasks.problem import Pool
from launch.split import config


def proposal(cfg: config.Split, path: str, name: str) -> str:
  """Returns the command that trains on a stratum as it was measured."""
  size = "tiny" if cfg.source["kind"] == "countdown" else "qwen2.5-7b"
  experiment = importlib.import_module(f"configs.{name}").get_config(size)
  file = f"configs/{name}.py" + (f":{size}" if size != "tiny" else "")
  sampler = dataclasses.asdict(cfg.sampler)
  values = {"task.stratum": path, "model.path": cfg.model,
            "eval.temperature": cfg.sampler.temperature}
  for section, fields in (("task.prompt", dataclasses.asdict(cfg.prompt)),
                          ("task.grader", dataclasses.asdict(cfg.grader)),
                          ("sampler", {key: sampler[key] for key in sampler
                                       if key != "top_p"}),  # training has 1
                          ("mesh", dataclasses.asdict(cfg.mesh))):
    values |= {f"{section}.{key}": value for key, value in fields.items()}
  changed = [f"--config.{key}={value}" for key, value in values.items()
             if functools.reduce(operator.getitem, key.split("."), experiment)
             != value]
  return shlex.join(["python", "-m", "isojax.main",
                     f"--config={file}", *changed])


def write(cfg: config.Split, header: dict, name: str, rows: list[dict], *,
          mixture: bool = False) -> None:
  """Writes one stratum and prints the command that trains on it."""
  path = f"{cfg.out}-{name}.jsonl"
  stratum_file_lib.write(path, {"stratum": name} | header | {
      "source": cfg.source,
      "command": shlex.join(["python", "-m", "launch.split", *sys.argv[1:]]),
  }, rows)
  stratum = stratum_file_lib.read(path)
  recipe, why = strata_lib.recipe(
      [row for row in rows if row["split"] == "train"], cfg.n, mixture=mixture)
  print(f"wrote {path}: {len(stratum.train)} train, "
        f"{len(stratum.validation)} validation; {why}\n"
        f"  {proposal(cfg, path, recipe)}")


def write_all(cfg: config.Split) -> None:
  """Writes one stratum of all problems, without a policy."""
  pool = config.read_pool(cfg)
  say(pool, cfg.grader.name)
  rows = [{"split": split, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": None}
          for split in stratum_file_lib.SPLITS for p in getattr(pool, split)]
  write(cfg, {"task": cfg.grader.name, "n": 0, "model": None,
              "model_sha256": None}, "all", rows)


def say(pool: Pool, grader: str) -> None:
  """Prints what the pool holds and what was left out.

  Raises:
    InputError: a side is empty, or a problem cannot be judged.
  """
  for note in pool.notes:
    print(note)
  print(f"{len(pool.train)} train and {len(pool.validation)} validation "
        "problems")
  for p in (*pool.train, *pool.validation):
    try:
      base.TASKS[grader].check(p)
    except InputError as error:
      raise InputError(f"problem {p.id}, question {p.question!r:.60}: {error}; "
                       "repair it or drop it from the source") from error
  if not pool.train or not pool.validation:
    raise InputError("expected problems on both sides; give more of them, or "
                     "a larger source.share")


def draw(cfg: config.Split, counts: list[int], strata: dict,
         rows: dict) -> None:
  """Prints the histogram, and writes its figure if matplotlib is installed."""
  print(f"avg@{cfg.n} of the training problems:")
  print(strata_lib.histogram(counts, cfg.n))
  if importlib.util.find_spec("matplotlib") is None:
    print(f"no figure: it needs {installation.pip_install('plot')}")
    return
  from isojax.tasks import histogram  # extra
  path = f"{cfg.out}-histogram.png"
  bars = []
  for name, w in strata.items():
    if name not in rows:
      continue
    number = sum(row["split"] == "train" for row in rows[name])
    measured = f" of avg@{w.again}" if w.again else ""
    bars.append((f"{name} [{w.low:g}, {w.high:g}]{measured}: {number:,} train",
                 *((0, 0) if w.again else (w.low, w.high))))
  histogram.histogram(
      path, [counts.count(c) for c in range(cfg.n + 1)], bars,
      f"{len(counts):,} training problems of {os.path.basename(cfg.out)}, avg@"
      f"{cfg.n} of {cfg.model} at temperature {cfg.sampler.temperature:g}")
  print(f"wrote {path}")
