"""Spends a budget of rollouts on a race of arms, each an ordinary run folder.

The race is a function of the records (frontier.race.play): a spend that was
killed reads what is there, resumes the run that was under way, and ends with
the same bits. No file of its own decides anything; ROOT/spend.json is derived.
"""

import bisect
import contextlib
import copy
import dataclasses
import fcntl
import glob
import itertools
import json
import os
import time
import typing

import jax

from isojax.core import (
  config_file,
  evaluate,
  exit_codes,
  plan_file,
  sections,
)
from isojax.errors import InputError, reason
from isojax.frontier import race
from isojax.ledger import records, workdir
from isojax.planner import request as request_lib
from isojax.run import evaluation, experiment, inputs, training
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.run.setup import Setup
from isojax.runtime import compilation, preemption, progress

SPEND = "spend.json"  # in the root
CLOCK = "clock"  # its folder with the run that measures the speed
CLOCKED = 2**20  # alloc.C with which arms are checked while none is known
FEWEST_STEPS = 8  # of every arm at the first rung
# n of the default arms; the first is the prior. docs/study.md found them within
# 0.011 of the best everywhere.
DEFAULT_N = (8, 4, 16, 32)
# They have one rate: a larger one leads early and ends lower, which no rung
# shows. Half of the config's is ahead from 2^18 rollouts on (docs/spending.md).
HALF_RATE_FROM = 2**18


class StoppedError(Exception):
  """A signal stopped the spend, and its run is saved."""


@dataclasses.dataclass(frozen=True, eq=False)
class Arm:
  """One arm: a config that differs in `overrides`, and its run folder."""

  name: str
  overrides: dict  # nested sections
  folder: str
  setup: Setup  # with alloc.C = the whole budget
  config: typing.Any

  def at(self, C: int) -> Setup:
    """The setup of the run to C rollouts, which contains every shorter one."""
    config = copy.deepcopy(self.config)
    config.alloc.C = int(C)
    e = experiment.load(config)
    alloc = {"alloc": self.setup.identity["alloc"] | {"C": e.alloc.C}}
    return dataclasses.replace(
        self.setup, e=e, config=self.setup.config | alloc,
        identity=self.setup.identity | alloc)


# ---- arms


def products(specs: typing.Sequence[str], config) -> list[dict]:
  """The overrides of every combination of KEY=V1,V2 of the config's keys."""
  axes = []
  for spec in specs:
    key, _, values = spec.partition("=")
    if not values:
      raise InputError(f"--arms={spec}: expected KEY=VALUE,VALUE with a key of "
                       "the config, such as alloc.n=4,8,16")
    section, path = config, "config"
    for name in key.split("."):
      if wrong := sections.unknown_field(section, name, path):
        raise InputError(f"--arms={spec}: {wrong}")
      section, path = section[name], f"{path}.{name}"
    if hasattr(section, "items"):
      raise InputError(f"--arms={spec}: {path} is a section; give one of its "
                       f"keys: {', '.join(section)}")
    axes.append([(key, _value(text, section, spec))
                 for text in values.split(",")])
  return [_nested(dict(arm)) for arm in itertools.product(*axes)]


def _value(text: str, like, spec: str):
  """The text as a value of the type of another one."""
  try:
    value = json.loads(text)
  except ValueError:
    value = {"True": True, "False": False, "None": None}[text] if text in (
        "True", "False", "None") else text
  if isinstance(like, float) and type(value) is int:
    value = float(value)
  if like is not None and type(value) is not type(like):
    raise InputError(f"--arms={spec}: {text!r} is no {type(like).__name__}")
  return value


def _nested(values: dict) -> dict:
  """{"a.b": 1} as {"a": {"b": 1}}."""
  out: dict = {}
  for key, value in values.items():
    *sections, last = key.split(".")
    at = out
    for name in sections:
      at = at.setdefault(name, {})
    at[last] = value
  return out


def _flat(tree: dict, prefix: str = "") -> dict:
  return {f"{prefix}{key}{name}": value for key, inner in tree.items()
          for name, value in (
              _flat(inner, ".").items() if isinstance(inner, dict)
              else [("", inner)])}


def label(overrides: dict) -> str:
  return " ".join(f"{key.rpartition('.')[2]}={value:g}"
                  if isinstance(value, float) else
                  f"{key.rpartition('.')[2]}={value}"
                  for key, value in _flat(overrides).items()) or "config"


def default_overrides(config, budget: int) -> list[dict]:
  """A few n around what the evidence says, at the rate of such a budget."""
  factor = 0.5 if budget >= HALF_RATE_FROM else 1.0
  rate = factor * config.recipe.optimizer.base_lr
  return [{"alloc": {"n": n}, "recipe": {"optimizer": {"base_lr": rate}}}
          for n in DEFAULT_N]


def of_plan(path: str) -> list[dict]:
  lines = plan_file.read_lines(path)
  rows = [plan_file.read_row(lines, i, path=path)["overrides"]
          for i in range(len(lines))]
  return [{name: {k: v for k, v in section.items()
                  if (name, k) not in (("alloc", "C"), ("alloc", "M"))}
           if isinstance(section, dict) else section
           for name, section in row.items()} for row in rows]


def with_one_dtype(config, root: str):
  """A copy of the config with a dtype for each `auto`.

  It is that of the runs in the root, so that all arms compute alike, also when
  a spend is resumed on another processor.
  """
  folders = (glob.glob(os.path.join(root, CLOCK, "*"))
             + glob.glob(os.path.join(root, "*")))
  stored = next(filter(None, map(state_lib.stored_config, folders)), None)
  values, notes = inputs.with_auto(
      config.to_dict(), jax.devices()[0].platform, lambda _: stored)
  for note in notes:
    progress.say(note)
  out = copy.deepcopy(config)
  config_file.override(out, _nested(experiment.dtypes(values)), "auto")
  return out


def prepared(config, overrides: list[dict] | None, budget: int, root: str
             ) -> list[Arm]:
  """The arms, all checked; InputError names every arm that is refused.

  overrides: what each arm changes in the config; None: the default arms.
  """
  arms, wrong = [], {}  # message -> names of the arms
  config = with_one_dtype(config, root)
  if overrides is None:
    overrides = default_overrides(config, budget)
  for changes in overrides:
    name = label(changes)
    try:
      own = copy.deepcopy(config)
      config_file.override(own, changes, name)
      own.alloc.update(C=int(budget), M=None)
      setup = setup_lib.prepare(own)
      folder = os.path.join(root, setup.run_id)
      arms.append(Arm(name, changes, folder, setup, own))
    except InputError as error:
      wrong.setdefault(str(error), []).append(name)
  if wrong:
    raise InputError("nothing was run: " + "; ".join(
        f"arm {', '.join(names)}: {message}"
        for message, names in wrong.items()))
  for folder in {arm.folder for arm in arms}:
    if len(same := [arm.name for arm in arms if arm.folder == folder]) > 1:
      raise InputError(f"{len(same)} arms are the same run, because nothing "
                       f"that decides results differs: {', '.join(same)}; "
                       "leave all but one out")
  return arms


def smallest(arms: typing.Sequence[Arm]) -> int:
  """Rollouts of each arm at the smallest first rung."""
  return max(FEWEST_STEPS * arm.setup.e.alloc.B for arm in arms)


def hours_for(usd: float, machine: str | None,
              usd_per_chip_hour: float | None) -> float:
  """The hours that `usd` pays for, by the price of launch.plan --usd."""
  if machine is None:
    raise InputError("--usd: expected --machine too, such as --machine=8xh100, "
                     "which is priced by the hour")
  ask = request_lib.request(usd=usd, machine=machine,
                            usd_per_chip_hour=usd_per_chip_hour)
  hours, priced = request_lib.hours(ask), request_lib.resolve_machine(ask)
  price = priced.accelerator
  progress.say(f"usd={usd:g}: {hours:.3g} hours of {machine}, {priced.chips} "
               f"chips at {price.usd_per_hour:g} USD an hour each "
               f"({price.usd_source})")
  return hours


def rollouts_in(config, overrides: list[dict] | None, root: str, *,
                hours: float | None = None, usd: float | None = None,
                machine: str | None = None,
                usd_per_chip_hour: float | None = None,
                signals=preemption.on_signals) -> int:
  """The budget that takes `hours`, or costs `usd` on a machine.

  By the first arm's speed in ROOT/clock. The records of that short run, which
  is not charged, decide: a resumed spend has the same budget.
  """
  if usd is not None:
    hours = hours_for(usd, machine, usd_per_chip_hour)
  arms = prepared(config, overrides, CLOCKED, root)
  clock = dataclasses.replace(arms[0], folder=os.path.join(
      root, CLOCK, arms[0].setup.run_id))
  with locked(root):
    advance(clock, smallest(arms), signals)
  kept, e = records.read(os.path.join(clock.folder, state_lib.RECORDS)), (
      clock.setup.e.eval)
  return filling(kept, hours, lambda C: len(arms) + len(evaluate.due_rollouts(
      C=C, first=e.first, growth=e.growth)), smallest(arms))


def filling(kept: list[dict], hours: float, evaluations, least: int) -> int:
  """The most rollouts C that a run takes `hours` for; InputError below `least`.

  By its first records, without compiling. A sample of the evaluations(C) takes
  as long as one of a step.
  """
  steps = [r for r in kept if r["kind"] == "train"]
  rollout, sample = (sum(map(of, steps)) / steps[-1]["rollouts"] for of in (
      lambda r: sum(records.phases(r)), lambda r: r["seconds_sample"]))
  evaluation = sample * kept[0]["k"] * len(kept[0]["correct"])
  seconds = lambda C: C * rollout + evaluations(C) * evaluation
  most = bisect.bisect_right(range(int(3600 * hours / rollout) + 1),
                             3600 * hours, key=seconds) - 1
  text = (f"hours={hours:g}: {max(most, 0):,} rollouts, at {rollout * 1e3:.3g} "
          f"ms each and {evaluation:.3g} s an evaluation")
  if most < least:
    raise InputError(f"{text}; expected {least:,}: give at least "
                     f"{seconds(least) / 3600:.3g} hours")
  progress.say(text)
  return most


# ---- one arm


def _ends_at(e: experiment.Experiment, kept: list[dict]) -> int | None:
  """The index of the evaluation that ends a run of e; None: not yet there."""
  return next((i for i, r in enumerate(kept) if r["kind"] == "eval"
               and e.is_finished(r["step"], r["rollouts"])), None)


def advance(arm: Arm, C: float, signals) -> tuple[race.ArmHistory, int, int]:
  """Trains the arm to C rollouts unless its records reach it; then reads them.

  Returns what the race sees, the rollouts that are charged, and how many of
  them this process sampled.
  """
  setup, path = arm.at(int(C)), os.path.join(arm.folder, state_lib.RECORDS)
  kept = records.sound(path)[0] if workdir.is_claimed(arm.folder) else []
  ended, before = "", kept[-1]["rollouts"] if kept else 0
  if (end := _ends_at(setup.e, kept)) is None:
    with progress.printed(False), state_lib.claimed(
        setup, arm.folder, run_id=os.path.basename(arm.folder)) as claimed:
      finish = training.train(claimed, arm.folder, signals=signals)
    if finish.code == exit_codes.PREEMPTED:
      raise StoppedError
    kept = records.read(path)
    end = _ends_at(setup.e, kept)
    if finish.code == exit_codes.DIVERGED:
      end, ended = len(kept) - 1, "its loss is not finite"
  kept = kept[:end + 1]
  # A diverged run has no record of its last step.
  charged = kept[-1]["rollouts"] + bool(ended) * arm.setup.e.alloc.B
  return _read(arm, kept, ended), charged, max(charged - before, 0)


def _read(arm: Arm, kept: list[dict], ended: str) -> race.ArmHistory:
  """What the race sees of a run's records."""
  import numpy as np
  evals, last, a = [r for r in kept if r["kind"] == "eval"], kept[-1], (
      arm.setup.e.alloc)
  value = np.array([r["correct"] for r in evals]) / evals[0]["k"]
  # Tokens stand for device time, which differs when a run is resumed.
  tokens = (last["sampled_tokens"] + last["trained_tokens"]) / max(
      last["rollouts"], 1)
  return race.ArmHistory(
      arm.name, np.array([float(r["rollouts"]) for r in evals]), value.mean(1),
      value, tokens, race.stretch(a.Bp, a.n), ended)


# ---- the end


def best_record(folder: str) -> dict:
  """The best evaluation of a run, the first of equals."""
  return max((r for r in records.read(os.path.join(folder, state_lib.RECORDS))
              if r["kind"] == "eval"), key=lambda r: r["avg"])


def tested(arm: Arm, best: dict) -> dict | None:
  """The evaluation of the best checkpoint on the test split, made only once.

  None: the stratum has no test split.
  """
  path = os.path.join(arm.folder, state_lib.EVALUATIONS)
  stratum = arm.setup.stratum.header["stratum"]
  try:
    other = evaluation.on_split(arm.setup, "test")
  except InputError:  # which `spend` has said at its start
    return None
  kept = records.sound(path)[0] if os.path.exists(path) else []
  for record in kept:
    if (record["eval_set"], record["step"]) == (f"{stratum}/test",
                                                best["step"]):
      return record
  history = state_lib.history_of(records.up_to(records.read(os.path.join(
      arm.folder, state_lib.RECORDS)), best["step"]))
  setup, _ = state_lib.as_stored(arm.setup, arm.folder, evaluate=True)
  step, params = evaluation.policy_of(setup, arm.folder, "best")
  with progress.printed(False), rollouts_lib.grading(other) as grader:
    line = state_lib.record_fields(setup, "eval", history) | (
        evaluation.evaluation(other, grader, params, step, preemption.Stop(),
                              split="test")) | {"alarms": []}
  evaluation.append(arm.folder, line)
  return line


def document(arms: typing.Sequence[Arm], result: race.Result, best: dict,
             test: dict | None) -> dict:
  """The content of ROOT/spend.json."""
  chosen = arms[result.chosen]
  value = lambda r: r and {"avg": r["avg"], "se": r["avg_se"]}
  store = state_lib.BEST if best["step"] else None
  return {
      "budget": result.budget, "rollouts": result.rollouts,
      "overhead": result.overhead,
      "arms": [{"overrides": arm.overrides, "run": arm.folder,
                "rollouts": entry.rollouts, "why": entry.why}
               for arm, entry in zip(arms, result.arms, strict=True)],
      "chosen": chosen.overrides,
      "checkpoint": os.path.join(chosen.folder, store, str(best["step"]))
      if store else chosen.setup.folder,
      "validation": value(best), "test": value(test)}


@contextlib.contextmanager
def locked(root: str):
  """Locks a root for one spender; InputError if another one has it."""
  with contextlib.ExitStack() as stack:
    try:
      os.makedirs(root, exist_ok=True)
      lock = stack.enter_context(open(
          os.path.join(root, "spend.lock"), "a", encoding="utf-8"))
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise InputError(f"--root={root}: another spend is running there; wait "
                       "until it ends, or choose another --root") from error
    except OSError as error:
      raise InputError(f"--root={root}: cannot be written ({reason(error)}); "
                       "choose another folder") from error
    yield


class Spent(typing.NamedTuple):
  """The end of a spend."""

  document: dict
  result: race.Result
  arms: list[Arm]
  seen: dict[int, race.ArmHistory]  # what the race read of each arm that ran


def spend(config, overrides: list[dict] | None, budget: int, root: str, *,
          signals=preemption.on_signals) -> Spent:
  """Races the arms for a budget of rollouts, and writes ROOT/spend.json.

  Raises:
    InputError: an arm is refused, or the root is another's; nothing was run.
    StoppedError: a signal stopped it; the same call goes on.
  """
  config_file.check_run(config)
  if not config.checkpoint.keep_best:
    raise InputError("config.checkpoint.keep_best=False: a spend returns the "
                     "best checkpoint; leave it True")
  if config.eval.patience is not None:
    raise InputError(f"config.eval.patience={config.eval.patience}: a spend "
                     "stops arms by a rule of its own; leave it None")
  with locked(root):
    compilation.enable_cache(progress.say)
    arms, seen = prepared(config, overrides, budget, root), {}

    charged, began, trained = [0] * len(arms), time.monotonic(), 0

    used, available = arms[0].setup.e.mesh.size, jax.device_count()
    if used < available:
      progress.say(f"one arm runs at a time, on {used} of {available} devices; "
                   "a larger config.mesh uses all of them")
    try:
      evaluation.on_split(arms[0].setup, "test")
    except InputError as error:  # says how to make the split
      progress.say(f"no test reward: {error}")

    def reach(k: int, C: float):
      nonlocal trained
      progress.say(f"{arms[k].name}: to {C:,.0f} rollouts, in {arms[k].folder}")
      seen[k], charged[k], sampled = advance(arms[k], C, signals)
      trained += sampled
      return seen[k], charged[k]

    def say(line: str) -> None:
      left = (budget - sum(charged)) * (time.monotonic() - began)
      progress.say(line + (f"; ETA {progress.format_seconds(left / trained)}"
                           if trained else ""))

    result = race.play([arm.name for arm in arms], reach, budget,
                       smallest=smallest(arms), log=say,
                       prior=race.prior_of([a.setup.e.alloc.n for a in arms]))
    chosen = arms[result.chosen]
    best = best_record(chosen.folder)
    spent = Spent(document(arms, result, best, tested(chosen, best)), result,
                  arms, seen)
    records.replace(os.path.join(root, SPEND), (json.dumps(
        spent.document, indent=1) + "\n").encode())
    return spent


def reported(spent: Spent) -> str:
  """The sentence that says what the budget bought."""
  spend, chosen = spent.document, spent.result.arms[spent.result.chosen]
  rewards = ", ".join(
      f"{split} avg {spend[split]['avg']:.4f} (se {spend[split]['se']:.4f})"
      for split in ("test", "validation") if spend[split])
  return (f"chosen: {chosen.name}; {rewards}; {spend['rollouts']:,} of "
          f"{spend['budget']:,} rollouts, {spend['overhead']:.1%} of them "
          "outside of the chosen run; best checkpoint: "
          f"{spend['checkpoint']}")
