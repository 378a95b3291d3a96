"""Runs the registered experiments on the end of a run.

  python -m launch.study.end --pool=runs/end
  python -m launch.split --config=configs/split_end.py
  python -m launch.study.end --root=runs/end --ledger=FILE.jsonl

The first two commands make fresh problems. The third trains what
docs/study/end.json lists: for each set, seed and rate one run at a constant
rate (the trunk), and decayed runs to each budget that begin with it. It adds a
line to the ledger for each policy that it tests, and skips what the ledger has.
Several processes with other --seeds may share --root and --ledger.
"""

import dataclasses
import functools
import importlib
import json
import os
import typing

from absl import flags
import numpy as np

from isojax.core import cli, disk, evaluate
from isojax.runtime import progress
from isojax.tasks import countdown
from launch.study import ledger

REGISTERED = "docs/study/end.json"
TEST_SAMPLES = 64  # of each test problem
AT_K = (8, 16, 32, 64)  # best@k that are stored
# (policy, checkpoint) that are tested; decayed runs do not keep the last pair.
ENDS = (("average", "last"), ("current", "last"), ("average", "best"),
        ("current", "best"))


class Unit(typing.NamedTuple):
  """A trunk, and the decayed runs that begin with it."""

  set: str
  arm: str  # name of further changes of the config; "" without any
  seed: int
  rate: float  # factor of the config's base_lr
  overrides: dict  # the changes of the arm, nested as the config
  budgets: tuple[int, ...]  # rollouts
  decays: tuple[float, ...]  # of the decayed runs

  @property
  def name(self) -> str:
    arm = f"-{self.arm}" if self.arm else ""
    return f"{self.set}{arm}-seed{self.seed}-rate{self.rate:g}"


def units(experiment: dict) -> list[Unit]:
  """The units of a registered experiment, in the order of its stages."""
  return [Unit(stage["set"], stage["arm"], seed, rate, stage["overrides"],
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
    rows = [json.dumps({"question": p.question, "answer": p.answer}) + "\n"
            for p in getattr(fresh, split)
            if countdown.content(p.question) not in used]
    disk.replace(os.path.join(folder, f"{split}.jsonl"), "".join(rows).encode())
    print(f"{split}: {len(rows)} problems")


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
  config.checkpoint.update(
      every_steps=10**9, every_minutes=10.0, keep=1,
      at=() if decay else tuple(range(every, C + 1, every)))
  config.log.update(every_seconds=60.0, samples=0)
  return config


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


def run(unit: Unit, design: dict, root: str, path: str) -> None:
  """Trains what the ledger lacks of a unit, and adds its lines."""
  import isojax  # loads jax
  for decay, budgets in ((0.0, unit.budgets), *(
      (decay, (C,)) for C in unit.budgets for decay in unit.decays)):
    done = ledger.read(path)
    missing = [name for C in budgets for how in ENDS[:3 if decay else 4]
               if (name := (*unit[:4], C, decay, *how)) not in done]
    if not missing:
      continue
    C = max(budgets)
    folder = f"decay{decay:g}-C{C}" if decay else "trunk"
    trained = isojax.train(
        config_of(unit, design, root, C, decay),
        os.path.join(root, unit.name, folder), progress=False)
    # The best checkpoint of a trunk is often its last one.
    samples = functools.cache(functools.partial(tested, trained))
    for name in missing:
      ledger.append(path, line_of(name, trained.records, samples))


def line_of(name: tuple, records, samples) -> dict:
  """The ledger's line of a policy; samples(policy, step, store) tests it."""
  *_, C, decay, policy, which = name
  evaluations = [r for r in records.evaluations if r["rollouts"] <= C]
  chosen = evaluations[-1] if which == "last" else max(
      (r for r in evaluations if r["rollouts"]),
      key=lambda r: (r if policy == "average" else r["current"])["avg"])
  store = "checkpoints" if which == "last" else "best"
  curve, begin, steps = [], -1, records.steps
  for r in evaluations if (policy, which) == ("average", "last") else ():
    rewards = [step["reward"] for step in steps
               if begin < step["rollouts"] <= r["rollouts"]]
    curve.append([r["rollouts"], round(r["avg"], 5),  # of both policies
                  round(r["current"]["avg"], 5),
                  round(float(np.mean(rewards)), 5) if rewards else None])
    begin = r["rollouts"]
  return dict(zip(ledger.NAMES, name, strict=True)) | {
      "step": chosen["step"],
      "curve": curve or None,
      **samples(policy, chosen["step"], store if decay else "kept")}


_POOL = flags.DEFINE_string("pool", None, "Folder for the fresh problems.")
_ROOT = flags.DEFINE_string("root", None, "Folder of problems and runs.")
_LEDGER = flags.DEFINE_string("ledger", None, "File to which lines are added.")
_EXPERIMENT = flags.DEFINE_string("experiment", "e1", "Which one.")
_SEEDS = flags.DEFINE_multi_integer("seeds", None, "Only these; None: all.")


def main(_) -> None:
  if _POOL.value is not None:
    pool(_POOL.value)
    return
  with open(REGISTERED, encoding="utf-8") as file:
    design = json.load(file)[_EXPERIMENT.value]
  for unit in units(design):
    if _SEEDS.value is None or unit.seed in _SEEDS.value:
      run(unit, design, _ROOT.value, _LEDGER.value)


if __name__ == "__main__":
  cli.run(main)
