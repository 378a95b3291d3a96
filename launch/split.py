"""Sorts the problems of a set into strata by how often a policy solves them.

  python -m launch.split --config=configs/split_tiny.py

A stratum is a set of problems of one difficulty. Each is written to
OUT-STRATUM.jsonl, with a config that trains on it, OUT-STRATUM.py. With
config.n=0 nothing is measured, and all problems are one stratum. Counts are
stored in OUT-counts-*.jsonl: the same command resumes where it stopped, and
other thresholds need no new samples. --shard=I --shards=N measures a part of
the problems; the process that finishes last writes the strata. `side` is a
split of the data: train or validation.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import os
import pathlib
import re
import shlex
import sys

from absl import flags
import numpy as np

from isojax.core import cli, config_file, custom_function, disk, sections
from isojax.core import model_shape as shape_lib
from isojax.core.shipped import shipped_path
from isojax.errors import InputError
from isojax.models import decoder, hf_weights
from isojax.rl import rewards
from isojax.run import experiment, inputs, programs
from isojax.runtime import compilation, progress, rng
from isojax.runtime import mesh as mesh_lib
from isojax.sampling import engine
from isojax.tasks import base, files
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks.problem import Pool, Problem
from launch import pass_counts

# Sizes of configs/grpo.py, and the most parameters of a model that gets each.
_SIZES = (("tiny", 5e6), ("smollm2-135m", 3e8), ("qwen2.5-0.5b", 2e9),
          ("qwen2.5-7b", math.inf))
TRAINING = '''"""Trains on a stratum; written by launch.split, yours to edit."""

from configs import {name}


def get_config():
  config = {name}.get_config({size})
  {changes}
  return config
'''


@dataclasses.dataclass(frozen=True)
class Split:
  """The config of launch.split, such as configs/split_tiny.py."""

  seed: int  # of the samples
  model: str  # Hugging Face folder, or name on the hub
  out: str  # files are OUT-STRATUM.jsonl
  prompt: prompts_lib.PromptConfig
  grader: dict  # fields of GraderConfig; with n > 0 it becomes a GraderConfig
  n: int  # samples of each problem; 0: none, and one stratum "all"
  source: dict  # kind, a key of Task.sources, and its arguments
  strata: dict  # name -> strata.StratumConfig
  mixtures: dict  # name -> strata.Mixture
  sampler: engine.SamplerConfig
  mesh: mesh_lib.MeshConfig

  def __post_init__(self):
    if self.n < 0 or not 0 <= self.seed < 2**31:
      raise InputError(f"config.n={self.n}, config.seed={self.seed}: expected "
                       "n >= 0 and 0 <= seed < 2**31")
    if self.n:
      object.__setattr__(self, "grader", sections.section(
          grader_lib.GraderConfig, self.grader, "config.grader"))
      grader_lib.check_installed(self.grader)
    for field, cls in (("strata", strata_lib.StratumConfig),
                       ("mixtures", strata_lib.Mixture)):
      object.__setattr__(self, field, {
          name: sections.section(cls, values, f"config.{field}.{name}")
          for name, values in getattr(self, field).items()})
    for name, stratum in self.strata.items():
      if stratum.again == self.n:  # of the counts that chose the problems
        raise InputError(
            f"config.strata.{name}.again={self.n}: expected another number of "
            "samples than config.n, by which new ones are told apart")
    for name, mixture in self.mixtures.items():
      unknown = [part for part in mixture.shares if part not in self.strata]
      if unknown or name in self.strata:
        raise InputError(
            f"config.mixtures.{name}: expected a name that is no stratum, and "
            f"shares of {', '.join(self.strata)}, not "
            f"{', '.join(unknown) or name}")


def split(values, *, shard: int, shards: int, command: str) -> dict[str, str]:
  """Writes the strata of a problem set; returns {name: file}.

  Of the processes of all `shards` the last to end writes them; the others
  return {}. `values` is a ConfigDict with the fields of Split; `command` is
  stored in the files.
  """
  cfg = sections.section(Split, values.to_dict(), "config")
  if not 0 <= shard < shards:
    raise InputError(f"--shard={shard} --shards={shards}: expected "
                     "0 <= shard < shards")
  with disk.writing(f"config.out={cfg.out}"):
    os.makedirs(os.path.dirname(cfg.out) or ".", exist_ok=True)
  if not cfg.n:
    return {"all": write_all(cfg, command)}
  compilation.enable_cache(progress.say)
  compilation.announce(progress.say)
  policy = inputs.open_policy(cfg.model, mesh_lib.make_mesh(cfg.mesh))
  experiment.check_sampler(
      cfg.sampler, max_positions=policy.model.cfg.max_positions)
  pool = drop_long_prompts(cfg, policy, read_pool(cfg, [cfg.grader.name]))
  check_pool(pool, cfg.grader.name)
  by_key = {pass_counts.key(side, p): (side, p)
            for side in strata_lib.SPLITS for p in getattr(pool, side)}
  header = counts_header(cfg, policy)
  again = sorted({x.again for x in cfg.strata.values()} - {None})
  counts = pass_counts.completed(
      cfg.out, header, by_key, cfg.n, again, shard=shard, shards=shards,
      start=functools.partial(open_measure, cfg, policy))
  if left := sum(len(keys) for _, keys in pass_counts.missing(
      by_key, counts, cfg.n, again)):
    progress.show(f"shard {shard} of {shards} is done; {left} problems are "
                  "left to the others, the last of which writes the strata")
    return {}
  return write_strata(cfg, policy, pool, by_key, counts, header, command)


def write_strata(cfg: Split, policy: inputs.BasePolicy, pool: Pool,
                 by_key: dict, counts: dict, header: dict, command: str
                 ) -> dict[str, str]:
  """Writes the strata of measured problems; returns {name: file}.

  by_key, counts: as in pass_counts. InputError, after the other strata are
  written, if a stratum has too few problems.
  """
  rows, errors = strata_lib.assemble(
      cfg.strata, cfg.mixtures, pool,
      pass_counts.correct_by_problem(by_key, counts), cfg.n)
  tokens = {(side, p.id): {"tokens": round(counts[key, cfg.n].tokens, 1)}
            for key, (side, p) in by_key.items()}
  progress.show(f"avg@{cfg.n} of the training problems:")
  progress.show(histogram([counts[key, cfg.n].correct for key, (side, _)
                           in by_key.items() if side == "train"], cfg.n))
  paths = {}
  for name in rows:
    fields = dataclasses.asdict((cfg.strata | cfg.mixtures)[name])
    for split_name in (*strata_lib.SPLITS, strata_lib.TEST):
      fields.pop(split_name, None)
    fields["spread"] = np.bincount(
        train_counts(rows[name]), minlength=cfg.n + 1).tolist()
    paths[name] = write(
        cfg, header | {"n": cfg.n} | fields, name,
        [row | tokens.get((row["split"], row["id"]), {})  # not of test
         for row in rows[name]], command=command, folder=policy.folder)
  if errors:
    raise InputError("; ".join(errors))
  return paths


def read_pool(cfg: Split, tasks) -> Pool:
  """The problems of config.source, of a kind that one of the tasks judges."""
  kind = cfg.source["kind"] if "kind" in cfg.source else None
  sources = {kind: load for task in tasks
             for kind, load in base.TASKS[task].sources.items()}
  if kind not in sources:
    raise InputError(
        f"config.source.kind={kind!r}: expected one of {', '.join(sources)}, "
        f"whose problems {' or '.join(tasks)} judges")
  arguments = {key: x for key, x in cfg.source.items() if key != "kind"}
  return sections.section(sources[kind], arguments, "config.source")


def check_pool(pool: Pool, task: str | None) -> None:
  """Prints a pool's size; InputError if the task cannot judge a problem."""
  for note in pool.notes:
    progress.show(note)
  progress.show(f"{len(pool.train)} training and {len(pool.validation)} "
                "held-out problems")
  if pool.train and pool.validation:
    progress.show(f"such as {pool.train[0].question!r:.80} for training and "
                  f"{pool.validation[0].question!r:.80} held out")
  for p in (*pool.train, *pool.validation):
    try:
      strata_lib.check_of(task)(p)
    except InputError as error:
      raise InputError(
          f"problem {p.id}, question {p.question!r:.60}: {error}; repair it or "
          "drop it from the source") from error
  if not pool.train or not pool.validation:
    raise InputError(
        f"{len(pool.train)} training and {len(pool.validation)} held-out "
        "problems: expected both. A training problem that is also held out is "
        "dropped: give other files, or another source.share if the source has "
        "one")


# --- Measuring ----------------------------------------------------------------


def encoded(cfg: Split, policy: inputs.BasePolicy, problems: list[Problem]):
  """The problems whose prompts are short enough, and the encoded prompts."""
  return prompts_lib.encode(policy.tokenizer, problems, cfg.prompt,
                            S=cfg.sampler.max_prompt_tokens,
                            V=policy.model.cfg.V)


def drop_long_prompts(cfg: Split, policy: inputs.BasePolicy,
                      pool: Pool) -> Pool:
  """The pool without problems whose prompts are too long, with a note."""
  short = [encoded(cfg, policy, problems)[0]
           for problems in (pool.train, pool.validation)]
  total = len(pool.train) + len(pool.validation)
  dropped = total - sum(map(len, short))
  notes = (f"{dropped} of {total} prompts are longer than sampler."
           f"max_prompt_tokens={cfg.sampler.max_prompt_tokens} and were "
           "dropped",) if dropped else ()
  return Pool(*short, pool.notes + notes)


def counts_header(cfg: Split, policy: inputs.BasePolicy) -> dict:
  """The header of a counts file: everything that decides the counts."""
  reward = grader_lib.with_reward(cfg.grader, {})
  return {"model": cfg.model,
          "model_sha256": hf_weights.sha256(policy.folder),
          "model_text_sha256": inputs.text_sha256(policy.folder),
          "prompt_sha256": prompts_lib.digest(policy.tokenizer, cfg.prompt),
          "task": cfg.grader.name, "answer": cfg.grader.answer,
          "prompt": dataclasses.asdict(cfg.prompt), "seed": cfg.seed,
          **{name: getattr(cfg.sampler, name) for name in (
              "temperature", "max_new_tokens", "dtype")},
          **({"reward_sha256": custom_function.sha256(reward["reward"])}
             if reward else {})}


@contextlib.contextmanager
def open_measure(cfg: Split, policy: inputs.BasePolicy):
  """Yields measure(side, problems, n, advance), which returns PassCounts."""
  params = hf_weights.load(policy.folder, decoder.abstract_params(policy.model))
  sampler, notes = programs.make_fitting_sampler(policy, cfg.sampler)
  for note in notes:
    progress.show(note)

  def measure(side: str, problems: list[Problem], n: int,
              advance) -> list[pass_counts.PassCount]:
    problems, prompts = encoded(cfg, policy, problems)
    again = () if n == cfg.n else (n,)  # other numbers for new samples
    rollouts = engine.sample_all(
        sampler, params, prompts, n, rng.stream(cfg.seed, side, *again),
        temperature=cfg.sampler.temperature, top_p=1.0,
        on_ended=lambda items, _: advance(len(items.number_R)))
    graded = grade(problems, rewards.texts(policy.tokenizer, rollouts))
    grader_lib.check_raised(graded, cfg.grader)
    if graded.lost:
      progress.say("counted as incorrect: "
                   + grader_lib.in_one_line(graded.lost))
    correct_P = (graded.correct_B.reshape(-1, n) == 1).sum(axis=1)
    tokens_P = rollouts.len_R.reshape(-1, n).mean(axis=1)
    return [pass_counts.PassCount(*pair) for pair in zip(
        correct_P.tolist(), tokens_P.tolist(), strict=True)]

  with grader_lib.opened(cfg.grader, cfg.source) as grade:
    yield measure


# --- Writing ------------------------------------------------------------------


def write_all(cfg: Split, command: str) -> str:
  """Writes one stratum of all problems, unmeasured; returns its path.

  Its task is that of the source, or None, any task, for problems of files.
  """
  path = f"{cfg.out}-all.jsonl"
  if os.path.exists(path) and strata_lib.read(path).header["n"]:
    raise InputError(f"{path}: holds counts of samples, which config.n=0 would "
                     "replace by none; choose another config.out")
  pool, kind = read_pool(cfg, base.TASKS), cfg.source["kind"]
  task = None if kind in files.SOURCES else next(
      name for name, task in base.TASKS.items() if kind in task.sources)
  check_pool(pool, task)
  rows = [{"split": side, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": None}
          for side in strata_lib.SPLITS for p in getattr(pool, side)]
  count = len(pool.train)
  rows[count:] = strata_lib.with_test(rows[count:], "all")
  return write(cfg, {"task": task, "n": 0, "model": None,
                     "model_sha256": None}, "all", rows, command=command,
               folder=cfg.model)


def write(cfg: Split, header: dict, name: str, rows: list[dict], *,
          command: str, folder: str) -> str:
  """Writes a stratum and a config; prints the command that trains on it.

  Returns the path of the stratum. Its test problems, if there are any, are in
  a separate file. `folder` is that of the model.
  """
  path = f"{cfg.out}-{name}.jsonl"
  header = {"stratum": name} | header | {
      "source": cfg.source, "command": command}
  test = [row for row in rows if row["split"] == strata_lib.TEST]
  rows = [row for row in rows if row["split"] != strata_lib.TEST]
  strata_lib.write(path, header, rows)
  where = (f" in {strata_lib.write_test(path, header, test)}" if test else "")
  train = train_counts(rows)
  recipe, why = strata_lib.recipe(train, cfg.n, mixture=name in cfg.mixtures)
  config_path = pathlib.Path(path).with_suffix(".py")
  text, notes = training_config(cfg, path, recipe, folder), [why]
  if not shape_file(folder).is_file():
    notes.append(f"{folder} is not here, so {config_path} has the sizes of "
                 f"{size_of(folder)}")
  if config_path.exists() and config_path.read_text("utf-8") != text:
    notes.append(f"{config_path} was kept, although this command would now "
                 "write another one; remove it to get that")
  else:
    with disk.writing(str(config_path)):
      disk.replace(str(config_path), text.encode())
  progress.show(f"wrote {path}: {len(train)} train, {len(rows) - len(train)} "
                f"validation, {len(test)} test{where}; "
                f"{'; '.join(notes)}\n  " + shlex.join(
                    ["python", "-m", "isojax.main", f"--config={config_path}"]))
  return path


def training_config(cfg: Split, path: str, name: str, folder: str) -> str:
  """The text of a config that trains on a stratum: configs/NAME.py, changed."""
  size = size_of(folder)
  config = importlib.import_module(f"configs.{name}").get_config(size)
  values = {"task": {"stratum": path, "prompt": dataclasses.asdict(cfg.prompt),
                     "grader": dataclasses.asdict(cfg.grader) if cfg.n
                     else cfg.grader},
            "name": re.sub(r"[^\w.-]", "_", pathlib.Path(path).stem),
            "model": {"path": cfg.model},
            "sampler": dataclasses.asdict(cfg.sampler),
            "eval": {"temperature": cfg.sampler.temperature},
            "recipe": {"loss": {"dtype": cfg.sampler.dtype}}}
  if cfg.mesh != mesh_lib.MeshConfig(data=1, fsdp=1, tensor=1):
    # The default mesh is not written: training may use more devices.
    values["mesh"] = dataclasses.asdict(cfg.mesh)
  return TRAINING.format(
      name=name, size="" if size == "tiny" else repr(size),
      changes="\n  ".join(changes(values, config)))


def changes(values: dict, config, name: str = "config") -> list[str]:
  """Lines of code that set each nested value that a config does not have."""
  lines = []
  for key, value in values.items():
    if isinstance(value, dict):
      lines += changes(value, config[key], f"{name}.{key}")
    elif config[key] != value:
      lines.append(f"{name}.{key} = {value!r}")
  return lines


def shape_file(folder: str) -> pathlib.Path:
  return pathlib.Path(shipped_path(folder)) / "config.json"


def size_of(folder: str) -> str:
  """The size of configs/grpo.py for a model; if it is unknown, the largest."""
  file = shape_file(folder)
  if not file.is_file():
    return _SIZES[-1][0]
  params = shape_lib.model_shape(
      json.loads(file.read_text(encoding="utf-8")), path=str(file)).params
  return next(size for size, limit in _SIZES if params <= limit)


def train_counts(rows: list[dict]) -> list[int]:
  return [row["correct"] for row in rows if row["split"] == "train"]


def histogram(counts: list[int], n: int) -> str:
  """A text histogram of the number of correct samples per problem."""
  problems = np.bincount(counts, minlength=n + 1)
  return "\n".join(
      f"{correct:3d}/{n} {count:6d} {'#' * (50 * count // max(problems))}"
      for correct, count in enumerate(problems))


def main(_) -> None:
  split(_CONFIG.value, shard=_SHARD.value, shards=_SHARDS.value,
        command=shlex.join(["python", "-m", "launch.split", *sys.argv[1:]]))


if __name__ == "__main__":
  _CONFIG = config_file.define_flag("configs/split_tiny.py")
  _SHARD = flags.DEFINE_integer("shard", 0, "Part to measure, from 0.")
  _SHARDS = flags.DEFINE_integer("shards", 1, "Number of parts, each measured "
                                 "by a separate process.")
  cli.run(main, parse=config_file.parse_flags)
