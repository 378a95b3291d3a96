"""Sorts the problems of a set into strata by how often a policy solves them.

  python -m launch.split --config=configs/split_tiny.py

Reads a problem set, measures avg@n of the policy on it and writes, for each
stratum, the problems whose avg@n lies in its range, with their counts. With
config.n=0 nothing is measured, and all problems become one file.

Counts are kept beside the output: the same command goes on where it stopped,
and other thresholds cost no samples. --shard=I --shards=N measures a part of
the problems; whoever finishes last writes the strata.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import operator
import os
import shlex
import sys

import numpy as np
import tqdm
from absl import flags

from isojax import cli
from isojax import compilation
from isojax import experiment
from isojax import installation
from isojax import policy as policy_lib
from isojax import mesh as mesh_lib
from isojax import progress
from isojax import rng
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_weights
from isojax.rl import rewards
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import base
from isojax.tasks import pass_counts as pass_counts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import stratum_file as stratum_file_lib
from isojax.tasks.problem import Pool
from isojax.tasks.problem import Problem

_CONFIG = cli.define_config("configs/split_tiny.py")
_SHARD = flags.DEFINE_integer("shard", 0, "Which part to measure, from 0.")
_SHARDS = flags.DEFINE_integer("shards", 1, "Parts that the problems are "
                               "measured in, one process each.")


@dataclasses.dataclass(frozen=True)
class Split:
  """The config of launch.split."""

  seed: int  # of the samples
  model: str  # Hugging Face folder, or name on the hub
  out: str  # files are OUT-STRATUM.jsonl
  prompt: prompts_lib.PromptConfig
  grader: grader_lib.GraderConfig
  n: int  # samples of each problem; 0: none, and one stratum "all"
  source: dict  # kind, a key of Task.sources, and its arguments
  strata: dict  # name -> strata_lib.Wanted
  mixtures: dict  # name -> strata_lib.Mixture
  sampler: sampler_lib.SamplerConfig
  mesh: mesh_lib.MeshConfig

  def __post_init__(self):
    if self.n < 0 or not 0 <= self.seed < 2**31:
      raise InputError(f"config.n={self.n}, config.seed={self.seed}: expected "
                       "n >= 0 and 0 <= seed < 2**31")


def wanted_of(cfg: Split) -> tuple[dict, dict]:
  """The strata and mixtures of a config, by name."""
  strata = {name: experiment.section(strata_lib.Wanted, values,
                                     f"config.strata.{name}")
            for name, values in cfg.strata.items()}
  mixtures = {name: experiment.section(strata_lib.Mixture, values,
                                       f"config.mixtures.{name}")
              for name, values in cfg.mixtures.items()}
  for name, mixture in mixtures.items():
    unknown = [part for part in mixture.shares if part not in strata]
    if unknown or name in strata:
      raise InputError(
          f"config.mixtures.{name}: expected a name of its own and shares of "
          f"{', '.join(strata)}, not {', '.join(unknown) or name}")
  return strata, mixtures


def read_pool(cfg: Split) -> Pool:
  """The problems of the config's source."""
  kind = cfg.source["kind"] if "kind" in cfg.source else None
  sources = base.TASKS[cfg.grader.name].sources
  if kind not in sources:
    raise InputError(
        f"config.source.kind={kind!r}: expected one of {', '.join(sources)}, "
        f"whose problems grader.name={cfg.grader.name!r} judges")
  arguments = {key: x for key, x in cfg.source.items() if key != "kind"}
  return experiment.section(sources[kind], arguments, "config.source")


def encoded(cfg: Split, policy: policy_lib.Opened, problems: list[Problem]):
  """The problems whose prompts fit, and these prompts."""
  return prompts_lib.encode(policy.tokenizer, problems, cfg.prompt,
                            S=cfg.sampler.max_prompt_tokens,
                            V=policy.model.cfg.V,
                            question=base.TASKS[cfg.grader.name].question)


def without_long(cfg: Split, policy: policy_lib.Opened,
                 pool: Pool) -> Pool:
  """The problems whose prompts fit, and how many did not."""
  kept = [encoded(cfg, policy, problems)[0]
          for problems in (pool.train, pool.validation)]
  total = len(pool.train) + len(pool.validation)
  dropped = total - sum(map(len, kept))
  notes = (f"{dropped} of {total} prompts are longer than sampler."
           f"max_prompt_tokens={cfg.sampler.max_prompt_tokens} and were "
           "dropped",) if dropped else ()
  return Pool(*kept, pool.notes + notes)


def opened_policy(cfg: Split) -> policy_lib.Opened:
  """The policy, checked against sampler and mesh; no weights are read."""
  mesh = mesh_lib.make_mesh(cfg.mesh)
  policy = policy_lib.opened_model(cfg.model, mesh)
  experiment.check_sampler(
      cfg.sampler, max_positions=policy.model.cfg.max_positions)
  return policy


def measurement(cfg: Split, policy: policy_lib.Opened, grade):
  """A function (split, problems, n) -> how many of n samples are correct."""
  params = hf_weights.load(policy.folder, decoder.abstract_params(policy.model))
  sampler, notes = policy_lib.make_sampler(policy, cfg.sampler)
  for note in notes:
    print(note)

  def measure(split: str, problems: list[Problem], n: int) -> list[int]:
    problems, prompts = encoded(cfg, policy, problems)
    rollouts = sampler_lib.sample_all(
        sampler, params, prompts, n, rng.stream(cfg.seed, split),
        temperature=np.float32(cfg.sampler.temperature),
        top_p=np.float32(cfg.sampler.top_p))
    graded = grade(problems, rewards.texts(policy.tokenizer, rollouts))
    for line in graded.lost:
      tqdm.tqdm.write(f"counted as wrong: {line}")
    return (graded.correct_B.reshape(-1, n) == 1).sum(axis=1).tolist()

  return measure


def decides(cfg: Split, policy: policy_lib.Opened) -> dict:
  """What counts depend on besides problem and n: the header of their file."""
  return {"model": cfg.model,
          "model_sha256": hf_weights.sha256(policy.folder),
          "model_text_sha256": policy_lib.text_sha256(policy.folder),
          "prompt_sha256": prompts_lib.digest(policy.tokenizer, cfg.prompt),
          "task": cfg.grader.name, "answer": cfg.grader.answer,
          "prompt": dataclasses.asdict(cfg.prompt), "seed": cfg.seed,
          "temperature": cfg.sampler.temperature, "top_p": cfg.sampler.top_p,
          "max_new_tokens": cfg.sampler.max_new_tokens,
          "dtype": cfg.sampler.dtype, "weights": cfg.sampler.weights,
          "cache": cfg.sampler.cache}


def proposal(cfg: Split, path: str, name: str) -> str:
  """The command that trains on a stratum, with what its config lacks."""
  size = "tiny" if cfg.source["kind"] == "countdown" else "qwen2.5-7b"
  config = importlib.import_module(f"configs.{name}").get_config(size)
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
  has = lambda key: functools.reduce(operator.getitem, key.split("."), config)
  changed = [f"--config.{key}={value}" for key, value in values.items()
             if has(key) != value]
  return shlex.join(["python", "-m", "isojax.main",
                     f"--config={file}", *changed])


def write(cfg: Split, header: dict, name: str, rows: list[dict], *,
          mixture: bool = False) -> None:
  """Writes one stratum and says how to train on it."""
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


def write_all(cfg: Split) -> None:
  """One stratum of every problem, without a policy."""
  pool = read_pool(cfg)
  say(pool, cfg.grader.name)
  rows = [{"split": split, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": None}
          for split in stratum_file_lib.SPLITS for p in getattr(pool, split)]
  write(cfg, {"task": cfg.grader.name, "n": 0, "model": None,
              "model_sha256": None}, "all", rows)


def say(pool: Pool, grader: str) -> None:
  """What the pool holds and what was left out.

  InputError for an empty side, or an answer that nothing can be compared with.
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


def draw(cfg: Split, counts: list[int], strata: dict, rows: dict) -> None:
  """The histogram as text, and as a figure where matplotlib is installed."""
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


def main(_) -> None:
  cfg = experiment.section(Split, _CONFIG.value.to_dict(), "config")
  if not 0 <= _SHARD.value < _SHARDS.value:
    raise InputError(f"--shard={_SHARD.value} --shards={_SHARDS.value}: "
                     "expected 0 <= shard < shards")
  strata, mixtures = wanted_of(cfg)
  if not os.path.isdir(os.path.dirname(cfg.out) or "."):
    raise InputError(f"config.out={cfg.out!r}: no such folder; make it")
  if not cfg.n:
    write_all(cfg)
    return
  if note := compilation.keep_programs():
    progress.say(note)
  policy = opened_policy(cfg)
  pool = without_long(cfg, policy, read_pool(cfg))
  say(pool, cfg.grader.name)
  by_key = {pass_counts_lib.key(split, p): (split, p)
            for split in stratum_file_lib.SPLITS for p in getattr(pool, split)}
  header = decides(cfg, policy)
  again = sorted({w.again for w in strata.values()} - {None})
  with contextlib.ExitStack() as stack:
    start = lambda: measurement(cfg, policy, stack.enter_context(
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
  draw(cfg, [counts[key, cfg.n] for key, (split, _) in by_key.items()
             if split == "train"], strata, rows)
  for name in rows:
    how = dataclasses.asdict({**strata, **mixtures}[name])
    write(cfg, header | {"n": cfg.n} | {
        key: how[key] for key in how if key not in stratum_file_lib.SPLITS},
          name, rows[name], mixture=name in mixtures)
  if errors:
    raise InputError("; ".join(errors))


if __name__ == "__main__":
  cli.run(main)
