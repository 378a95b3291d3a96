"""Runs the registered experiments on the end of a run.

  python -m launch.study.end --pool=runs/end
  python -m launch.split --config=configs/split_end.py
  python -m launch.study.end --root=runs/end --ledger=FILE.jsonl

The first two commands make fresh problems. The third trains what
docs/study/end.json lists: for each set, seed and rate one run at a
constant rate (the trunk), and decayed runs to each budget that begin with it.
It adds a line to the ledger for each policy that it tests. Processes with one
--root share the runs; the same command resumes, and skips what the ledger has.
"""

import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import typing

from absl import app, flags

from isojax.core import disk, evaluate
from isojax.runtime import progress
from isojax.tasks import countdown
from launch.study import ledger

REGISTERED = "docs/study/end.json"
TEST_SAMPLES = 64  # of each test problem
AT_K = (8, 16, 32, 64)  # best@k that are stored


class Unit(typing.NamedTuple):
  """A trunk, and the decayed runs that begin with it."""

  set: str
  seed: int
  rate: float  # factor of the config's base_lr
  arm: str  # name of further changes of the config; "" without any
  overrides: dict  # these changes, nested as the config
  budgets: tuple[int, ...]  # rollouts
  decays: tuple[float, ...]  # of the decayed runs

  @property
  def name(self) -> str:
    arm = f"-{self.arm}" if self.arm else ""
    return f"{self.set}{arm}-seed{self.seed}-rate{self.rate:g}"

  def line(self, C: int, decay: float, policy: str, which: str) -> tuple:
    """What names a line of the ledger."""
    return (self.set, self.arm, self.seed, self.rate, C, decay, policy, which)


def units(experiment: dict) -> list[Unit]:
  """The units of a registered experiment, in the order of its stages."""
  return [Unit(stage["set"], seed, rate, stage["arm"], stage["overrides"],
               tuple(stage["budgets"]), tuple(stage["decays"]))
          for stage in experiment["stages"] for seed in stage["seeds"]
          for rate in stage["rates"]]


def pool(folder: str) -> None:
  """Writes train.jsonl and validation.jsonl without problems of split_tiny."""
  tiny = countdown.load(4, 12_000, 6_000, 1)  # as configs/split_tiny.py
  used = {countdown.content(p.question)
          for p in (*tiny.train, *tiny.validation)}
  fresh = countdown.load(4, 20_000, 60_000, 2)
  os.makedirs(folder, exist_ok=True)
  for split in ("train", "validation"):
    rows = [{"question": p.question, "answer": p.answer}
            for p in getattr(fresh, split)
            if countdown.content(p.question) not in used]
    path = os.path.join(folder, f"{split}.jsonl")
    disk.replace(path, "".join(
        json.dumps(row) + "\n" for row in rows).encode())
    print(f"wrote {path}: {len(rows)} problems")


def config_of(unit: Unit, design: dict, root: str, C: int, decay: float):
  """The config of one run of a unit."""
  module = importlib.import_module(f"configs.{design['sets'][unit.set]}")
  config = module.get_config()
  config.update(unit.overrides)
  config.seed, config.alloc.C = unit.seed, C
  config.task.stratum = os.path.join(root, f"fresh-{unit.set}.jsonl")
  config.recipe.optimizer.update(
      base_lr=config.recipe.optimizer.base_lr * unit.rate, decay=decay,
      average=design["average"])
  every = design["evaluation_rollouts"]
  config.eval.update(first=every, growth=1.0, current=True)
  config.checkpoint.update(every_steps=10**9, every_minutes=2.0, keep=1)
  if not decay:
    config.checkpoint.at = tuple(range(every, C + 1, every))
  config.log.update(every_seconds=60.0, samples=0)
  return config


def best_steps(evaluations) -> dict[str, int]:
  """The step of each policy's best evaluation after the first."""
  trained = [r for r in evaluations if r["rollouts"]]
  return {"average": max(trained, key=lambda r: r["avg"])["step"],
          "current": max(trained, key=lambda r: r["current"]["avg"])["step"]}


def tested(run, policy: str, step: int, store: str) -> dict:
  """The counts of correct test samples of a checkpoint, per problem."""
  from isojax.run import evaluation
  from isojax.run import rollouts as rollouts_lib
  from isojax.run import setup as setup_lib
  from isojax.runtime import preemption
  setup = evaluation.on_split(run._setup, "test")
  config = setup.config
  setup = dataclasses.replace(setup, config=dataclasses.replace(
      config, eval=dataclasses.replace(config.eval, k=TEST_SAMPLES)))
  _, trained = evaluation.trained_params(
      run._setup, run.workdir, step, store=store, policy=policy)
  params = setup.merge(setup_lib.frozen_base(setup), trained)
  with progress.printed(False), rollouts_lib.grading(setup) as grader:
    record = evaluation.evaluation(
        run._setup, setup, grader, params,
        evaluation.history_at(run.workdir, step), preemption.Stop(),
        policy=policy, split="test")
  best = {f"best@{k}": round(float(evaluate.best_at_k(
      record.correct, stored=TEST_SAMPLES, k=k).mean()), 5) for k in AT_K}
  return {"k": TEST_SAMPLES, "avg": round(record.avg, 5), **best,
          "correct": record.correct}


def policies(decay: float) -> list[tuple[str, str]]:
  """The (policy, checkpoint) of a run that are tested.

  A decayed run keeps its last checkpoint and the best of its average alone.
  """
  out = [("average", "last"), ("current", "last"), ("average", "best")]
  return out if decay else [*out, ("current", "best")]


def missing(unit: Unit, decay: float, budgets, path: str) -> list[tuple]:
  """The (C, policy, checkpoint) that the ledger lacks of a run."""
  done = ledger.read(path)
  return [(C, *which) for C in budgets for which in policies(decay)
          if unit.line(C, decay, *which) not in done]


def run(unit: Unit, design: dict, root: str, path: str) -> None:
  """Trains what the ledger lacks of a unit, and adds its lines."""
  import isojax  # loads jax
  for decay, C, budgets in (
      (0.0, max(unit.budgets), unit.budgets),
      *((decay, C, (C,)) for C in unit.budgets for decay in unit.decays)):
    if not missing(unit, decay, budgets, path):
      continue
    folder = os.path.join(root, unit.name, (
        "trunk" if decay == 0 else f"decay{decay:g}-C{C}"))
    trained = isojax.train(
        config_of(unit, design, root, C, decay), folder, progress=False)
    for name in missing(unit, decay, budgets, path):
      ledger.append(path, line_of(unit, trained, decay, *name))


def line_of(unit: Unit, trained, decay: float, C: int, policy: str,
            which: str) -> dict:
  """The ledger's line of a tested policy."""
  evaluations = [r for r in trained.records.evaluations if r["rollouts"] <= C]
  step = (best_steps(evaluations)[policy] if which == "best"
          else evaluations[-1]["step"])
  store = "kept" if decay == 0 else (
      "checkpoints" if which == "last" else "best")
  named = zip(ledger.NAMES, unit.line(C, decay, policy, which), strict=True)
  return dict(named) | {
      "step": step,
      "curve": [[r["rollouts"], round(r["avg"], 5),
                 round(r["current"]["avg"], 5)] for r in evaluations]
      if (policy, which) == ("average", "last") else None,
      **tested(trained, policy, step, store)}


@contextlib.contextmanager
def claimed(path: str):
  """Yields whether this process got the lock of a unit."""
  with open(path, "a", encoding="utf-8") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      yield False
    else:
      yield True


_POOL = flags.DEFINE_string("pool", None, "Folder for the fresh problems.")
_ROOT = flags.DEFINE_string("root", None, "Folder of problems and runs.")
_LEDGER = flags.DEFINE_string("ledger", None, "File to which lines are added.")
_EXPERIMENT = flags.DEFINE_string("experiment", "e1", "Which one.")


def main(_) -> None:
  if _POOL.value is not None:
    pool(_POOL.value)
    return
  with open(REGISTERED, encoding="utf-8") as file:
    design = json.load(file)[_EXPERIMENT.value]
  for unit in units(design):
    budgets = "-".join(map(str, unit.budgets))
    with claimed(os.path.join(
        _ROOT.value, f"{unit.name}-{budgets}.lock")) as ours:
      if ours:
        run(unit, design, _ROOT.value, _LEDGER.value)


if __name__ == "__main__":
  app.run(main)
