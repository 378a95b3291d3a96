"""User-facing output of a run: opening lines, alarms, texts, curves, a table.

None of it decides a result.
"""

import contextlib
import math
import os
import shlex
import typing

import jax

from isojax.core import evaluate
from isojax.core.format import compact, number
from isojax.diagnosis import findings
from isojax.errors import InputError
from isojax.ledger import bucket, records
from isojax.models import decoder, lora
from isojax.run import experiment, samples
from isojax.run.setup import Setup
from isojax.runtime import hosts, progress

METRICS = ("avg", "best", "worst", "maj")  # of evaluations
# Fields that identify a record, so they are not drawn as curves.
IDENTIFIERS = ("seed", "Bp", "D", "k", "step", "unix_time")


class Monitor(typing.NamedTuple):
  """Where a run reports to."""

  watch: findings.Watcher  # (record) -> new warnings
  progress: typing.Callable  # see progress.reporter
  store_texts: typing.Callable  # see samples.writer
  number_writers: list[typing.Callable]  # (record); only on process 0


def is_watched(record: dict) -> bool:
  """Whether alarms look at a record: an evaluation needs its verdicts."""
  return record["kind"] == "train" or evaluate.is_judged(record)


@contextlib.contextmanager
def open_monitor(setup: Setup, folder: str, past_records: list[dict], *,
                 complete: bool):
  """Yields the Monitor of a run with these records so far.

  If the run is complete, no writer is opened, because it would leave an empty
  file.
  """
  config, writers = setup.config, []
  alloc = config.alloc
  step = rollouts = 0
  if past_records:
    step, rollouts = past_records[-1]["step"], past_records[-1]["rollouts"]
  if not complete and hosts.first():
    if config.log.samples:
      samples.check(folder)  # before anything is compiled
    if config.log.tensorboard:
      writers.append(tensorboard(folder, step))
    if config.log.wandb:
      local = config.log.wandb.startswith(experiment.TRACKIO)
      writers.append((trackio if local else wandb)(
          folder, config.log.wandb, setup.run_id, setup.identity))
  with contextlib.ExitStack() as stack:
    open_writers = [stack.enter_context(writer) for writer in writers]
    yield Monitor(
        findings.Watcher(
            filter(is_watched, past_records),
            grouped=experiment.has_group_baseline(config.recipe.loss)),
        progress.reporter(
            step=step,
            steps=alloc.M if config.recipe.filter.rounds == 1 else None,
            rollouts=rollouts, C=alloc.C,
            every_seconds=config.log.every_seconds),
        samples.writer(folder, setup.tokenizer, setup.stratum,
                       count=config.log.samples,
                       tables=[writer.texts for writer in open_writers]),
        [writer.numbers for writer in open_writers])


def _parameters(tree) -> str:
  return compact(sum(math.prod(x.shape) for x in jax.tree.leaves(tree)))


def opening(setup: Setup) -> str:
  """Two lines: model and problems; allocation, rate and devices."""
  config, alloc, model = setup.config, setup.config.alloc, setup.model
  size = f"{_parameters(decoder.abstract_params(model))} parameters"
  if config.model.lora.rank:
    trained = _parameters(lora.abstract_trained(model, config.model.lora))
    size += f", {trained} of them in adapters"
  groups = f"n = {alloc.n}"
  if alloc.m is not None:
    groups += f", m = {alloc.m}"
  steps = f"M = {alloc.M:,}"
  if config.recipe.filter.rounds > 1:
    steps += " or fewer"
  devices = model.mesh.devices
  return (
      f"{config.name} {setup.run_id}: {config.model.path} ({size}); "
      f"{len(setup.stratum.train):,} problems of "
      f"{setup.stratum.header['stratum']}, "
      f"{len(setup.stratum.validation):,} for validation\n"
      f"Bp = {alloc.Bp}, {groups}; {steps}, C = {alloc.C:,}; "
      f"lr {number(config.lr)}; {devices.size} x "
      f"{devices.flat[0].device_kind}; sampler {config.sampler.dtype}, "
      f"update {config.recipe.loss.dtype}")


def evaluation_line(record: dict) -> str:
  parts = [f"{name} {record[name]:.4f} ± {record[f'{name}_se']:.4f}"
           for name in METRICS]
  line = (f"eval at step {record['step']}, {record['rollouts']} rollouts, "
          f"k={record['k']}: {', '.join(parts)}")
  if current := record["current"]:
    line += (f"; current policy: avg {current['avg']:.4f} ± "
             f"{current['avg_se']:.4f}")
  return line


def _rates(train: list[dict]) -> list[str]:
  """The rollouts per second of each phase, without the first step."""
  first, *rest = map(records.phases, train)
  seconds = [sum(column) for column in zip(*rest, strict=True)]
  rollouts = train[-1]["rollouts"] - train[0]["rollouts"]
  lines = [f"{'':10}{'seconds':>10}{'share':>8}{'rollouts/s':>12}"]
  for phase, spent in zip((*records.PHASES, "step"),
                          (*seconds, sum(seconds)), strict=True):
    if spent < 0.05:  # rounds to 0.0; the recipe does not have the phase
      continue
    lines.append(f"{phase:10}{spent:10.1f}{spent / sum(seconds):8.0%}"
                 f"{rollouts / spent:12.0f}")
  return [*lines, "and the first step, with compilation, "
          f"{sum(first) + train[0]['seconds_compile']:.1f} s"]


def places(folder: str, log: experiment.LogSection) -> str:
  """What a run wrote, and how to open it."""
  lines = {
      "records": os.path.join(folder, "records.jsonl"),
      "answers": bool(log.samples) and not bucket.remote(folder)
      and f"python -m launch.samples {shlex.quote(folder)}",
      "curves": log.tensorboard
      and f"tensorboard --logdir={shlex.quote(folder)}/tensorboard",
      "trackio": log.wandb.startswith(experiment.TRACKIO)
      and f"trackio show --project {log.wandb.partition(':')[2]}"}
  return "\n".join(f"{name}: {where}" for name, where in lines.items() if where)


def table(run_records: list[dict], *, best: bool) -> str:
  """Evaluations and rates of a run; `best`: its best checkpoint is kept."""
  evals = [r for r in run_records if r["kind"] == "eval"]
  train = [r for r in run_records if r["kind"] == "train"]
  start, end = evals[0], evals[-1]
  top = max(filter(evaluate.is_judged, evals), key=lambda r: r["avg"],
            default=start)
  # step -> (record, names): the best evaluation may be the first or the last.
  columns = {}
  for name, r in (("start", start), ("best", top), ("final", end)):
    columns.setdefault(r["step"], (r, []))[1].append(name)
  columns = [(r, " and ".join(names) + (f", step {step}" if step else ""))
             for step, (r, names) in columns.items()]
  if end["current"]:
    columns.append((end["current"], "final, current policy"))
  heads = [head for _, head in columns]
  width = max(19, *(len(head) + 2 for head in heads))
  lines = [
      f"{end['eval_set']}: {len(end['correct'])} problems, k = {end['k']}",
      f"{'':10}" + "".join(f"{head:>{width}}" for head in heads)]
  for name in METRICS:
    if any(r[name] for r, _ in columns):
      lines.append(f"{name}@{end['k']}".ljust(10) + "".join(
          f"{r[name]:.4f} ± {r[f'{name}_se']:.4f}".rjust(width)
          for r, _ in columns))
  if len(train) > 1:
    lines.extend(_rates(train))
  if best and top["step"]:
    lines.append(f"kept: the checkpoints of step {top['step']} (--step=best) "
                 f"and of step {end['step']}")
  return "\n".join(lines)


def curves(record: dict) -> dict:
  """The numbers of a record that are drawn, by kind/name."""
  parts = {"reward": record["reward_parts"]}
  if record["kind"] == "eval":
    parts["current"] = record["current"]
  values = record | {f"{part}/{name}": value for part, fields in parts.items()
                     if fields for name, value in fields.items()}
  return {f"{record['kind']}/{name}": value for name, value in values.items()
          if type(value) in (int, float)
          and name.rpartition("/")[2] not in IDENTIFIERS}


class Writer(typing.NamedTuple):
  """Where the curves of a run and the texts of its evaluations go."""

  numbers: typing.Callable  # (record)
  texts: typing.Callable  # (lines of samples.jsonl, rollouts)


@contextlib.contextmanager
def tensorboard(folder: str, start: int):
  """Yields a writer of summaries; purges those of steps after `start`."""
  import tensorboardX  # optional dependency

  with tensorboardX.SummaryWriter(
      os.path.join(folder, "tensorboard"), purge_step=start + 1) as writer:
    def add(record: dict) -> None:
      for name, value in curves(record).items():
        writer.add_scalar(name, value, record["step"],
                          walltime=record["unix_time"])

    def add_texts(lines: list[dict], _) -> None:
      rows = [" | ".join(cells(line)) for line in lines]
      writer.add_text("eval/samples", "\n".join([
          " | ".join(samples.COLUMNS), " | ".join(["---"] * len(
              samples.COLUMNS)), *rows]), lines[0]["step"])
    yield Writer(add, add_texts)


def _samples_table(library, lines: list[dict]):
  """A table of W&B or trackio, which have the same interface."""
  return library.Table(columns=list(samples.COLUMNS), data=[
      [line[name] for name in samples.COLUMNS] for line in lines])


def cells(line: dict) -> list[str]:
  """A line of samples.jsonl as a row of a Markdown table."""
  return [str(line[name]).strip().replace("|", "\\|").replace("\n", "<br>")
          for name in samples.COLUMNS]


@contextlib.contextmanager
def wandb(folder: str, project: str, run_id: str, config: dict):
  """Yields a writer to the W&B run with the run's id, which a resume continues.

  W&B's step is the number of rollouts: W&B drops records that it already has.
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
    yield Writer(
        lambda record: run.log(
            curves(record) | {"rollouts": record["rollouts"]},
            step=record["rollouts"]),
        lambda lines, rollouts: run.log(
            {"eval/samples": _samples_table(library, lines),
             "rollouts": rollouts},
            step=rollouts))


@contextlib.contextmanager
def trackio(folder: str, project: str, run_id: str, config: dict):
  """As `wandb`, in trackio's database on this machine."""
  del folder
  import trackio as library  # optional dependency

  run = library.init(project=project.removeprefix(experiment.TRACKIO),
                     name=run_id, resume="allow", config=config, embed=False)
  try:
    yield Writer(
        lambda record: run.log(curves(record), step=record["rollouts"]),
        lambda lines, rollouts: run.log(
            {"eval/samples": _samples_table(library, lines)}, step=rollouts))
  finally:
    run.finish()
