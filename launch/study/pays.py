"""Experiments on launch.spend (docs/study/registered-spend-*.json).

  python -m launch.study.pays --pool=runs/pays
  python -m launch.split --config=configs/split_spend.py
  python -m launch.study.pays --root=runs/pays --ledger=FILE.jsonl
  python -m launch.study.pays --judge=FILE.jsonl

The first two commands make fresh problems. --sets=hard_half,easy_half is the
third experiment. An entry is a race of launch.spend, or one fixed arm with the
same budget, on one problem set with one seed. Processes with one --root share
the entries; the same command resumes, and skips entries that the ledger has.
"""

import collections
import contextlib
import fcntl
import glob
import importlib
import json
import os
import sys
import typing

from absl import app, flags
import numpy as np

from isojax.core import exit_codes
from isojax.ledger import records
from isojax.runtime import progress
from isojax.tasks import countdown
from launch.study.windows import Estimate

RATES = (1.0, 0.5, 0.25)  # tried with n = 8: factors of the config's base_lr
MAX_REGRET = 0.015  # test reward behind the oracle, see `judge`
DEFAULT_ENTRY = "n=8 rate=1"  # n and rate of the config


class ProblemSet(typing.NamedTuple):
  """A config, its fresh problems, and what is run on them."""

  config: str  # of configs/
  stratum: str  # fresh-STRATUM.jsonl, by configs/split_spend.py
  C: int  # rollouts of each entry
  seeds: range
  k: int  # samples of each problem of an evaluation
  fixed: dict  # entry -> {n, rate: factor of base_lr}, besides the entry spend


def rivals(*ns: int) -> dict:
  """Fixed arms: n = 8 at three rates, and these n at the config's rate."""
  return {f"n=8 rate={r:g}": dict(n=8, rate=r) for r in RATES} | {
      f"n={n}": dict(n=n, rate=1.0) for n in ns}


# n of the published law (launch.plan --law=q1-hard, q1-easy) is 64 and 32.
SETS = {
    "hard": ProblemSet("hard", "low", 2**20, range(6), 8, rivals(64)),
    "easy": ProblemSet("easy", "easy", 2**19, range(3), 16, rivals(32, 64)),
}
FIRST = tuple(SETS)  # the sets of the first experiment
# The second (again) and third (half) differ in the default arms of launch.spend
# of their time: n = 8 at half the rate and three others; four n at half.
SETS |= {f"{name}_{suffix}": SETS[name]._replace(
    seeds=seeds, fixed={DEFAULT_ENTRY: dict(n=8, rate=1.0)})
         for suffix in ("again", "half")
         for name, seeds in (("hard", range(6, 9)), ("easy", range(3, 6)))}


def entries(names=FIRST) -> list[tuple[str, int, str, dict | None]]:
  """(set, seed, entry, {n, rate}; None: the race), seed by seed."""
  return [(name, seed, entry, arm) for seed in range(9)  # of all sets
          for name in names if seed in SETS[name].seeds
          for entry, arm in ({"spend": None} | SETS[name].fixed).items()]


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
    records.replace(path, "".join(
        json.dumps(row) + "\n" for row in rows).encode())
    print(f"wrote {path}: {len(rows)} problems")


def config_of(name: str, seed: int, root: str):
  """The config that the arms of a set and seed share."""
  problems = SETS[name]
  config = importlib.import_module(f"configs.{problems.config}").get_config()
  config.seed, config.eval.k = seed, problems.k
  config.task.stratum = os.path.join(root, f"fresh-{problems.stratum}.jsonl")
  config.checkpoint.update(every_steps=10**9, every_minutes=3.0, keep=1)
  config.log.update(every_seconds=60.0, samples=0)
  return config


def run(name: str, seed: int, entry: str, arm: dict | None, root: str) -> dict:
  """Runs an entry, a race or a spend with one arm; returns its ledger line."""
  from isojax.sweep import spender  # loads jax
  config = config_of(name, seed, root)
  overrides = None if arm is None else [{
      "alloc": {"n": arm["n"]}, "recipe": {"optimizer": {
          "base_lr": config.recipe.optimizer.base_lr * arm["rate"]}}}]
  folder = os.path.join(root, f"{name}-{seed}-{entry.replace(' ', '-')}")
  spent = spender.spend(config, overrides, SETS[name].C, folder)
  spend, chosen = spent.document, spent.arms[spent.result.chosen]
  run_records = records.read(os.path.join(chosen.folder, "records.jsonl"))
  test = records.read(os.path.join(chosen.folder, "eval.jsonl"))[-1]
  return {
      "set": name, "seed": seed, "entry": entry, **{key: spend[key] for key in (
          "budget", "rollouts", "overhead", "chosen", "validation", "test")},
      "best_step": test["step"], "k": test["k"], "correct": test["correct"],
      "device_seconds": round(run_records[-1]["device_seconds"], 1),
      "arms": [{"overrides": a["overrides"], "rollouts": a["rollouts"],
                "why": a["why"]} for a in spend["arms"]]}


@contextlib.contextmanager
def claimed(path: str):
  """Yields whether this process got the lock of an entry."""
  with open(path, "a", encoding="utf-8") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      yield False
    else:
      yield True


def read(path: str) -> list[dict]:
  """The lines of a ledger; [] without a file."""
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8") as file:
    return list(map(json.loads, file))


def by_entry(path: str) -> dict:
  """The lines of a ledger by set, seed and entry."""
  return {(x["set"], x["seed"], x["entry"]): x for x in read(path)}


def collect(root: str, path: str) -> None:
  """Adds the entries that have ended to the ledger, in order of `entries`."""
  lines = by_entry(path)
  for line_path in glob.glob(os.path.join(root, "*.line.json")):
    with open(line_path, encoding="utf-8") as file:
      line = json.load(file)
    lines[line["set"], line["seed"], line["entry"]] = line
  os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
  records.replace(path, "".join(
      json.dumps(lines[key[:3]], separators=(",", ":")) + "\n"
      for key in entries(SETS) if key[:3] in lines).encode())


def run_all(names: list[str], root: str, path: str) -> int:
  """Runs entries that no process runs or has run, and writes the ledger."""
  from isojax.sweep import spender
  for name, seed, entry, arm in entries(names):
    prefix = os.path.join(root, f"{name}-{seed}-{entry}".replace(" ", "-"))
    with claimed(f"{prefix}.lock") as is_locked:
      if not is_locked or os.path.exists(f"{prefix}.line.json") or (
          name, seed, entry) in by_entry(path):
        continue
      progress.say(f"{name}, seed {seed}: {entry}")
      try:
        line = run(name, seed, entry, arm, root)
      except spender.StoppedError:
        return exit_codes.PREEMPTED
      records.replace(f"{prefix}.line.json", json.dumps(line).encode())
    collect(root, path)
  return 0


def difference(rewards: list[float], others: list[float]) -> Estimate:
  """The mean of `rewards` minus `others`, paired by seed."""
  d = np.subtract(rewards, others)
  if len(d) == 1:  # without an error
    return Estimate(float(d.mean()))
  return Estimate(float(d.mean()), float(d.std(ddof=1) / len(d) ** 0.5),
                  len(d) - 1)


def judge(lines: list[dict], name: str) -> dict:
  """The results of a set over the seeds in which every entry has ended.

  The first experiment has an oracle: n = 8 at the rate with the highest mean
  test reward. The cost of the search for this rate is not charged. `fails` says
  of each registered criterion whether it failed.
  """
  wanted = {"spend", *SETS[name].fixed}
  seeds = collections.defaultdict(dict)
  for line in lines:
    if line["set"] == name:
      seeds[line["seed"]][line["entry"]] = line
  complete = {seed: entries for seed, entries in sorted(seeds.items())
              if set(entries) == wanted}
  reward = {entry: [x[entry]["test"]["avg"] for x in complete.values()]
            for entry in sorted(wanted)}
  if not complete:
    return {"seeds": [], "reward": {}, "fails": {}}
  gain_over = lambda entry: difference(reward["spend"], reward[entry])
  out = {"seeds": list(complete),
         "reward": {e: float(np.mean(v)) for e, v in reward.items()},
         "overhead": [x["spend"]["overhead"] for x in complete.values()]}
  if "n=64" not in wanted:  # a later experiment
    gain = gain_over(DEFAULT_ENTRY)
    return out | {"gain": (gain.value, *gain.interval()),
                  "fails": {"higher": not gain.interval()[0] > 0}}
  oracle = max((e for e in wanted if e.startswith("n=8 ")),
               key=lambda e: np.mean(reward[e]))
  gain = gain_over("n=64")
  regret = difference(reward[oracle], reward["spend"])
  return out | {
      "oracle": oracle,
      "gain": (gain.value, *gain.interval()),
      "regret": (regret.value, *regret.interval()),
      "fails": {
          "i": not gain.interval()[0] > 0,
          "ii": not regret.interval()[1] <= MAX_REGRET,
          "iii": any(x["spend"]["best_step"] == 0
                     for x in complete.values())}}


def main(_) -> None:
  if _POOL.value:
    pool(_POOL.value)
  if _ROOT.value:
    sys.exit(run_all(_SETS.value, _ROOT.value, _LEDGER.value))
  if _JUDGE.value:
    lines = read(_JUDGE.value)
    names = sorted({line["set"] for line in lines})
    print(json.dumps({name: judge(lines, name) for name in names}, indent=1))


if __name__ == "__main__":
  _POOL = flags.DEFINE_string("pool", None, "Folder: write fresh problems.")
  _ROOT = flags.DEFINE_string("root", None, "Folder: run the experiment.")
  _LEDGER = flags.DEFINE_string(
      "ledger", "docs/study/partial/spend_pays.jsonl", "File of the results.")
  _SETS = flags.DEFINE_list("sets", list(FIRST), "Keys of SETS.")
  _JUDGE = flags.DEFINE_string("judge", None, "A ledger: print the criteria.")
  app.run(main)
