"""What a run tells people: opening lines, warnings, texts, curves, a table.

None of it decides a result.
"""

import contextlib
import json
import math
import os
import pathlib
import time
import typing

import jax
import numpy as np

from isojax.core.format import compact, number
from isojax.diagnosis import rules
from isojax.errors import InputError
from isojax.ledger import bucket, records
from isojax.models import decoder, lora
from isojax.rl import rewards
from isojax.rl.advantages import informative
from isojax.rl.algorithm import Groups
from isojax.run import experiment
from isojax.run.setup import Setup
from isojax.runtime import hosts, progress
from isojax.types import Prompts, Rollouts

EVERY = 60.0  # seconds between two texts on the terminal
SHOWN = 300  # characters of a text on the terminal
METRICS = ("avg", "best", "worst", "maj")  # of evaluations
# Fields that identify a record and are no curve.
NAMES = ("seed", "Bp", "D", "k", "step", "unix_time")


class Monitor(typing.NamedTuple):
  """Where a run reports to."""

  watch: rules.Watcher
  progress: typing.Callable  # see progress.reporter
  texts: typing.Callable  # see texts_writer
  summaries: list[typing.Callable]  # of a record; only on process 0


@contextlib.contextmanager
def opened(setup: Setup, folder: str, kept: list[dict], *, active: bool):
  """Yields the Monitor of a run whose records so far are `kept`.

  Unless there will be more (`active`), no writer leaves an empty file.
  """
  e, writers = setup.e, []
  step, rollouts = (kept[-1]["step"], kept[-1]["rollouts"]) if kept else (0, 0)
  if active and hosts.first():
    if e.log.tensorboard:
      writers.append(tensorboard(folder, step))
    if e.log.wandb:
      local = e.log.wandb.startswith(experiment.TRACKIO)
      writers.append((trackio if local else wandb)(
          folder, e.log.wandb, setup.run_id, setup.identity))
  with contextlib.ExitStack() as stack:
    yield Monitor(
        rules.Watcher(kept, grouped=experiment.has_group_baseline(
            e.recipe.loss)),
        progress.reporter(
            step=step, steps=e.alloc.M if e.recipe.filter.rounds == 1 else None,
            rollouts=rollouts, C=e.alloc.C, every_seconds=e.log.every_seconds),
        texts_writer(folder, setup.tokenizer, start=step, count=e.log.samples),
        [stack.enter_context(writer) for writer in writers])


def _parameters(tree) -> str:
  return compact(sum(math.prod(x.shape) for x in jax.tree.leaves(tree)))


def opening(setup: Setup) -> str:
  """Two lines: model and problems; allocation, rate and devices."""
  e, a, model = setup.e, setup.e.alloc, setup.model
  size = f"{_parameters(decoder.abstract_params(model))} parameters"
  if e.model.lora.rank:
    trained = _parameters(lora.abstract_trained(model, e.model.lora))
    size += f", {trained} of them in adapters"
  groups = f"n = {a.n}" + (f", m = {a.m}" if a.m is not None else "")
  if not a.division.is_uniform:
    groups += (f", divided by {a.division.rule}: {a.n_min} to {a.n_max} a "
               "problem")
  steps = f"M = {a.M:,}"
  if e.recipe.filter.rounds > 1:
    steps += " or fewer"
  devices = model.mesh.devices
  return (
      f"{e.name} {setup.run_id}: {e.model.path} ({size}); "
      f"{len(setup.stratum.train):,} problems of "
      f"{setup.stratum.header['stratum']}, "
      f"{len(setup.stratum.validation):,} for validation\n"
      f"Bp = {a.Bp}, {groups}; {steps}, C = {a.C:,}; lr {number(e.lr)}; "
      f"{devices.size} x {devices.flat[0].device_kind}; sampler "
      f"{e.sampler.dtype}, update {e.recipe.loss.dtype}")


def evaluation_line(record: dict) -> str:
  parts = [f"{name} {record[name]:.4f} ± {record[f'{name}_se']:.4f}"
           for name in METRICS]
  return (f"eval at step {record['step']}, {record['rollouts']} rollouts, "
          f"k={record['k']}: {', '.join(parts)}")


def _rates(train: list[dict]) -> list[str]:
  """The rollouts per second of each phase, without the first step."""
  first, *rest = map(records.phases, train)
  seconds = [sum(column) for column in zip(*rest, strict=True)]
  rollouts = train[-1]["rollouts"] - train[0]["rollouts"]
  lines = [f"{'':10}{'seconds':>10}{'share':>8}{'rollouts/s':>12}"]
  for phase, spent in zip((*records.PHASES, "step"),
                          (*seconds, sum(seconds)), strict=True):
    if phase == "logp" and spent < 0.05:  # a clock that runs on
      continue
    lines.append(f"{phase:10}{spent:10.1f}{spent / sum(seconds):8.0%}"
                 f"{rollouts / spent:12.0f}")
  return [*lines, "and the first step, with compilation, "
          f"{sum(first) + train[0]['seconds_compile']:.1f} s"]


def table(kept: list[dict], path: str, *, best: bool) -> str:
  """The evaluations and rates of a run; `best`: whether its best is kept."""
  evals = [r for r in kept if r["kind"] == "eval"]
  train = [r for r in kept if r["kind"] == "train"]
  start, end, top = evals[0], evals[-1], max(evals, key=lambda r: r["avg"])
  heads = ("start", f"best, step {top['step']}", f"final, step {end['step']}")
  lines = [
      f"{end['eval_set']}: {len(end['correct'])} problems, k = {end['k']}",
      f"{'':10}" + "".join(f"{head:>19}" for head in heads)]
  for name in METRICS:
    cells = [f"{r[name]:.4f} ± {r[f'{name}_se']:.4f}"
             for r in (start, top, end)]
    lines.append(f"{name}@{end['k']}".ljust(10)
                 + "".join(f"{cell:>19}" for cell in cells))
  if len(train) > 1:
    lines.extend(_rates(train))
  if best and top["step"]:
    lines.append(f"kept: the checkpoints of step {top['step']} (--step=best) "
                 f"and of step {end['step']}")
  return "\n".join([*lines, f"records: {path}"])


def chosen_texts(groups: Groups, count: int) -> tuple[int, np.ndarray]:
  """A problem, and the indices of `count` of its rollouts, in [0, B).

  The first problem whose rewards differ, else the first that has rollouts. Its
  best and its worst rollout come first.
  """
  n_P = groups.mask_PxN.sum(axis=1)
  differs_P = informative(groups.reward_PxN, groups.mask_PxN)
  problem = int(np.argmax(differs_P if differs_P.any() else n_P > 0))
  order = np.argsort(-groups.reward_PxN[problem, :n_P[problem]], kind="stable")
  order = np.concatenate([order[:1], order[1:][::-1]])
  return problem, n_P[:problem].sum() + order[:count]


def text_lines(tokenizer, prompts: Prompts, rollouts: Rollouts,
               groups: Groups, advantage: np.ndarray, *, step: int,
               count: int) -> list[dict]:
  """The lines of samples.jsonl of one step, at most `count`.

  The advantage is [B], or [B, T] of tokens, whose mean is stored.
  """
  problem, index = chosen_texts(groups, count)
  reward_B = groups.reward_PxN[groups.mask_PxN]
  prompt = tokenizer.decode(np.asarray(prompts.tokens_PxS)[
      problem, :int(prompts.len_P[problem])].tolist())
  few = jax.tree.map(lambda x: np.asarray(x)[index], rollouts)
  tokens = np.maximum(few.len_R, 1) if np.ndim(advantage) > 1 else (
      np.ones(len(index)))
  return [{"step": step, "problem": int(prompts.id_P[problem]),
           "prompt": prompt, "response": text,
           "reward": float(reward_B[i]),
           "advantage": float(np.sum(advantage[i]) / tokens[row])}
          for row, (i, text) in enumerate(zip(
              index, rewards.texts(tokenizer, few), strict=True))]


def texts_writer(folder: str, tokenizer, *, start: int, count: int):
  """A function (prompts, rollouts, groups, advantage, step) that stores texts.

  `count` rollouts of a step go to samples.jsonl; not in a bucket. A run that
  resumes from step `start` replaces the lines of the steps that it repeats.
  """
  path, shown = os.path.join(folder, "samples.jsonl"), -EVERY

  def store(prompts, rollouts, groups, advantage, step: int) -> None:
    nonlocal shown
    if not count or not hosts.first():
      return
    lines = text_lines(tokenizer, prompts, rollouts, groups, advantage,
                       step=step, count=count)
    if time.monotonic() - shown >= EVERY:
      shown = time.monotonic()
      text = lines[0]["prompt"] + lines[0]["response"]
      more = " ..." if len(text) > SHOWN else ""
      hosts.say(f"step {step}, a rollout with reward {lines[0]['reward']:g}: "
                f"{text[:SHOWN]!r}{more}")
    if bucket.remote(folder):
      return
    with records.writing(path):
      if step == start + 1 and os.path.exists(path):
        _keep_before(path, step)
      with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)

  return store


def _keep_before(path: str, step: int) -> None:
  *lines, _ = pathlib.Path(path).read_text("utf-8").split("\n")  # _: torn
  try:
    kept = [line + "\n" for line in lines if json.loads(line)["step"] < step]
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: not the texts of a run ({error}); move the file "
                     "away, then run the same command again") from error
  records.replace(path, "".join(kept).encode())


def curves(record: dict) -> dict:
  """The numbers of a record, by kind/name."""
  return {f"{record['kind']}/{name}": value for name, value in record.items()
          if type(value) in (int, float) and name not in NAMES}


@contextlib.contextmanager
def tensorboard(folder: str, start: int):
  """Yields a writer of summaries by step; purges those of steps after `start`.
  """
  import tensorboardX  # optional dependency

  with tensorboardX.SummaryWriter(
      os.path.join(folder, "tensorboard"), purge_step=start + 1) as writer:
    def add(record: dict) -> None:
      for name, value in curves(record).items():
        writer.add_scalar(name, value, record["step"],
                          walltime=record["unix_time"])
    yield add


@contextlib.contextmanager
def wandb(folder: str, project: str, run_id: str, config: dict):
  """Yields a writer to the W&B run with the run's id, which a resume continues.

  Its step is the number of rollouts, so W&B drops records that it has already.
  """
  import wandb as library  # optional dependency

  try:
    run = library.init(
        project=project, id=run_id, name=os.path.basename(folder.rstrip("/")),
        resume="allow", config=config,
        dir=folder if "://" not in folder else None,
        settings=library.Settings(console="off"))
  except (library.Error, OSError) as error:
    raise InputError(
        f"log.wandb={project!r}: W&B cannot start ({error}); run `wandb "
        "login`, set WANDB_MODE=offline, or leave log.wandb out") from error
  with run:
    run.define_metric("rollouts")
    run.define_metric("*", step_metric="rollouts")
    yield lambda record: run.log(
        curves(record) | {"rollouts": record["rollouts"]},
        step=record["rollouts"])


@contextlib.contextmanager
def trackio(folder: str, project: str, run_id: str, config: dict):
  """As `wandb`, in trackio's database on this machine."""
  del folder
  import trackio as library  # optional dependency

  run = library.init(project=project.removeprefix(experiment.TRACKIO),
                     name=run_id, resume="allow", config=config, embed=False)
  try:
    yield lambda record: run.log(curves(record), step=record["rollouts"])
  finally:
    run.finish()
