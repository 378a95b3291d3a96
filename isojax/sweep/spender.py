"""Spends a budget of rollouts on a race of arms, each an ordinary run folder.

The race is a function of the records (frontier.race.play), which compares the
arms at rungs: numbers of rollouts. After a kill, the same call reads the
records, resumes the interrupted run and ends with the same bits. C: rollouts of
a run; an arm differs from the config in its overrides, such as alloc.n.
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
import numpy as np

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
from isojax.tasks import strata

SPEND = "spend.json"  # in the root; written at the end, never read
SPEED_RUN = "clock"  # folder of the root, with the run that measures the speed
PLACEHOLDER_C = 2**20  # rollouts, of configs made before the budget is known
MIN_STEPS = 8  # of each arm at the first rung of the race
# n of the default arms; the first is the prior. On 256 problems, n = 2 to 64
# were within 0.011 of each other (docs/study.md).
DEFAULT_N = (8, 4, 16, 32)
# All default arms have the same rate: a larger rate leads at every rung and
# ends lower. From this budget on, half the config's rate ended higher in the
# runs of docs/spending.md.
HALF_RATE_FROM = 2**18


class StoppedError(Exception):
  """A signal stopped the spend; the run of the current arm is saved."""


@dataclasses.dataclass(frozen=True, eq=False)
class ArmRun:
  """One arm: a config that differs in `overrides`, and its run folder."""

  name: str
  overrides: dict  # nested sections
  folder: str
  setup: Setup  # with alloc.C = the whole budget
  config: typing.Any

  def with_budget(self, C: int) -> Setup:
    """The setup of the run to C rollouts, which continues a shorter run."""
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
  return [sections.nested(dict(arm)) for arm in itertools.product(*axes)]


def _value(text: str, like, spec: str):
  """The text as a value of the type of `like`; of any type if that is None."""
  try:
    value = json.loads(text)
  except ValueError:
    value = {"True": True, "False": False, "None": None}.get(text, text)
  if isinstance(like, float) and type(value) is int:
    value = float(value)
  if like is not None and type(value) is not type(like):
    raise InputError(f"--arms={spec}: {text!r} is no {type(like).__name__}")
  return value


def label(overrides: dict) -> str:
  """The name of an arm, such as "n=8 base_lr=0.0003"."""
  shown = lambda value: f"{value:g}" if isinstance(value, float) else value
  return " ".join(
      f"{key.rpartition('.')[2]}={shown(value)}"
      for key, value in sections.flat(overrides).items()) or "config"


def default_overrides(config, budget: int) -> list[dict]:
  """The arms DEFAULT_N, at the rate that suits the budget."""
  factor = 0.5 if budget >= HALF_RATE_FROM else 1.0
  rate = factor * config.recipe.optimizer.base_lr
  return [{"alloc": {"n": n}, "recipe": {"optimizer": {"base_lr": rate}}}
          for n in DEFAULT_N]


def overrides_of_plan(path: str) -> list[dict]:
  """The overrides of a plan's rows, without the budget."""
  lines = plan_file.read_lines(path)
  arms = []
  for index in range(len(lines)):
    row = plan_file.read_row(lines, index, path=path)
    arms.append(sections.nested({
        key: value for key, value in sections.flat(row["overrides"]).items()
        if key not in ("alloc.C", "alloc.M")}))
  return arms


def with_one_dtype(config, root: str):
  """A copy of the config with a dtype for each `auto`.

  If the root has a run, the dtypes are those of that run, so that all arms
  compute alike when a spend is resumed on another kind of device.
  """
  folders = (glob.glob(os.path.join(root, SPEED_RUN, "*"))
             + glob.glob(os.path.join(root, "*")))
  stored = next(filter(None, map(state_lib.stored_config, folders)), None)
  values, notes = inputs.with_auto(
      config.to_dict(), jax.devices()[0].platform, lambda _: stored)
  for note in notes:
    progress.say(note)
  out = copy.deepcopy(config)
  config_file.override(out, sections.nested(experiment.dtypes(values)), "auto")
  return out


def prepare_arms(config, overrides: list[dict] | None, budget: int, root: str
                 ) -> list[ArmRun]:
  """The arms of a spend; InputError names every arm whose config is wrong.

  overrides: what each arm changes in the config; None: the default arms.
  """
  arms: list[ArmRun] = []
  wrong: dict[str, list[str]] = {}  # message -> names of the arms
  config = with_one_dtype(config, root)
  if overrides is None:
    overrides = default_overrides(config, budget)
  for changes in overrides:
    name = label(changes)
    try:
      arm_config = copy.deepcopy(config)
      config_file.override(arm_config, changes, name)
      arm_config.alloc.update(C=int(budget), M=None)
      setup = setup_lib.prepare(arm_config)
      folder = os.path.join(root, setup.run_id)
      arms.append(ArmRun(name, changes, folder, setup, arm_config))
    except InputError as error:
      wrong.setdefault(str(error), []).append(name)
  if wrong:
    raise InputError("nothing was run: " + "; ".join(
        f"arm {', '.join(names)}: {message}"
        for message, names in wrong.items()))
  for folder in {arm.folder for arm in arms}:
    same = [arm.name for arm in arms if arm.folder == folder]
    if len(same) > 1:
      raise InputError(f"{len(same)} arms are the same run, because nothing "
                       f"that decides results differs: {', '.join(same)}; "
                       "leave all but one out")
  return arms


def smallest_rung(arms: typing.Sequence[ArmRun]) -> int:
  """The least rollouts of each arm with which all of them have MIN_STEPS."""
  return max(MIN_STEPS * arm.setup.e.alloc.B for arm in arms)


def hours_for(usd: float, machine: str | None,
              usd_per_chip_hour: float | None) -> float:
  """The hours that `usd` pays for, by the price of launch.plan --usd."""
  if machine is None:
    raise InputError("--usd: expected --machine too, such as --machine=8xh100, "
                     "which is priced by the hour")
  request = request_lib.request(usd=usd, machine=machine,
                                usd_per_chip_hour=usd_per_chip_hour)
  hours = request_lib.hours(request)
  priced_machine = request_lib.resolve_machine(request)
  chips, chip = priced_machine.chips, priced_machine.accelerator
  progress.say(f"usd={usd:g}: {hours:.3g} hours of {machine}, {chips} "
               f"chips at {chip.usd_per_hour:g} USD an hour each "
               f"({chip.usd_source})")
  return hours


def budget_of(config, overrides: list[dict] | None, root: str, *,
              rollouts: int | None = None, hours: float | None = None,
              usd: float | None = None, machine: str | None = None,
              usd_per_chip_hour: float | None = None,
              signals=preemption.on_signals) -> int:
  """The budget in rollouts, from exactly one of rollouts, hours and usd.

  Hours are converted by the speed of a short run of the first arm in
  ROOT/clock, whose rollouts are not charged. Its records are kept, so a resumed
  spend has the same budget.
  """
  if [rollouts, hours, usd].count(None) != 2:
    raise InputError("expected one budget: rollouts, hours or usd")
  if usd is None and (machine, usd_per_chip_hour) != (None, None):
    raise InputError("machine and usd_per_chip_hour: expected usd too")
  if rollouts is not None:
    return rollouts
  if usd is not None:
    hours = hours_for(usd, machine, usd_per_chip_hour)
  arms = prepare_arms(config, overrides, PLACEHOLDER_C, root)
  speed_run = dataclasses.replace(arms[0], folder=os.path.join(
      root, SPEED_RUN, arms[0].setup.run_id))
  with locked(root):
    advance(speed_run, smallest_rung(arms), signals)
  eval_config = speed_run.setup.e.eval
  return rollouts_for_hours(
      records.read(os.path.join(speed_run.folder, state_lib.RECORDS)), hours,
      evaluations_at=lambda C: len(arms) + len(evaluate.due_rollouts(
          C=C, first=eval_config.first, growth=eval_config.growth)),
      minimum=smallest_rung(arms))


def rollouts_for_hours(run_records: list[dict], hours: float, *,
                       evaluations_at: typing.Callable[[int], int],
                       minimum: int) -> int:
  """The most rollouts that fit into `hours`, by the speed of a short run.

  Compilation is not counted. A run to C has evaluations_at(C) evaluations, and
  their rollouts take as long to sample as those of training. InputError for
  less than `minimum` rollouts.
  """
  steps = [r for r in run_records if r["kind"] == "train"]
  rollouts = steps[-1]["rollouts"]
  rollout_seconds = sum(sum(records.phases(r)) for r in steps) / rollouts
  sample_seconds = sum(r["seconds_sample"] for r in steps) / rollouts
  first = run_records[0]  # the evaluation of the base policy
  evaluation_seconds = sample_seconds * first["k"] * len(first["correct"])
  seconds = lambda C: (
      C * rollout_seconds + evaluations_at(C) * evaluation_seconds)
  most = bisect.bisect_right(range(int(3600 * hours / rollout_seconds) + 1),
                             3600 * hours, key=seconds) - 1
  text = (f"hours={hours:g}: {max(most, 0):,} rollouts, at "
          f"{rollout_seconds * 1e3:.3g} ms each and {evaluation_seconds:.3g} s "
          "an evaluation")
  if most < minimum:
    raise InputError(f"{text}; expected {minimum:,}: give at least "
                     f"{seconds(minimum) / 3600:.3g} hours")
  progress.say(text)
  return most


# ---- one arm


def _last_index(e: experiment.Experiment, run_records: list[dict]
                ) -> int | None:
  """The index of the evaluation that ends a run of e; None: not yet reached."""
  return next((i for i, r in enumerate(run_records) if r["kind"] == "eval"
               and e.is_finished(r["step"], r["rollouts"])), None)


def advance(arm: ArmRun, C: float, signals) -> tuple[race.ArmHistory, int, int]:
  """Trains the arm to C rollouts unless its records reach C.

  Returns the arm's evaluations, the rollouts charged to the arm, and how many
  of these this process sampled.
  """
  setup = arm.with_budget(int(C))
  path = os.path.join(arm.folder, state_lib.RECORDS)
  run_records = records.sound(path)[0] if workdir.is_claimed(arm.folder) else []
  rollouts_before = run_records[-1]["rollouts"] if run_records else 0
  failure = ""
  last_index = _last_index(setup.e, run_records)
  if last_index is None:
    with progress.printed(False), state_lib.claimed(
        setup, arm.folder, run_id=os.path.basename(arm.folder)) as claimed:
      outcome = training.train(claimed, arm.folder, signals=signals)
    if outcome.code == exit_codes.PREEMPTED:
      raise StoppedError
    run_records = records.read(path)
    last_index = _last_index(setup.e, run_records)
    if outcome.code == exit_codes.DIVERGED:
      last_index, failure = len(run_records) - 1, "its loss is not finite"
  run_records = run_records[:last_index + 1]
  charged = run_records[-1]["rollouts"]
  if failure:  # the last step of a diverged run has no record
    charged += arm.setup.e.alloc.B
  return (_evaluations(arm, run_records, failure), charged,
          max(charged - rollouts_before, 0))


def _evaluations(arm: ArmRun, run_records: list[dict], failure: str
                 ) -> race.ArmHistory:
  """The E evaluations of a run on Q problems, for the race."""
  evals = [r for r in run_records if r["kind"] == "eval"]
  value_ExQ = np.array([r["correct"] for r in evals]) / evals[0]["k"]
  # Tokens stand for device time, which differs when a run is resumed.
  last = run_records[-1]
  tokens_per_rollout = (last["sampled_tokens"] + last["trained_tokens"]) / max(
      last["rollouts"], 1)
  alloc = arm.setup.e.alloc
  return race.ArmHistory(
      arm.name, np.array([float(r["rollouts"]) for r in evals]),
      value_ExQ.mean(1), value_ExQ, tokens_per_rollout,
      race.stretch(alloc.Bp, alloc.n), failure)


# ---- the end


def best_record(folder: str) -> dict:
  """The record of a run's best evaluation; of equal ones, the first."""
  return max((r for r in records.read(os.path.join(folder, state_lib.RECORDS))
              if r["kind"] == "eval"), key=lambda r: r["avg"])


def test_record(arm: ArmRun, best: dict) -> dict | None:
  """Evaluates the best checkpoint on the test split; returns the record.

  None: the stratum has no test split. A stored record is not made again.
  """
  path = os.path.join(arm.folder, state_lib.EVALUATIONS)
  stratum = arm.setup.stratum.header["stratum"]
  try:
    test_setup = evaluation.on_split(arm.setup, "test")
  except strata.NoTestSplitError:  # `spend` has printed the message
    return None
  stored = records.sound(path)[0] if os.path.exists(path) else []
  for record in stored:
    if (record["eval_set"], record["step"]) == (f"{stratum}/test",
                                                best["step"]):
      return record
  history = evaluation.history_at(arm.folder, best["step"])
  setup, _ = state_lib.as_stored(arm.setup, arm.folder, evaluate=True)
  step, params = evaluation.policy_of(
      setup, arm.folder, "best", evaluation.chosen_policy(setup.config, None))
  with progress.printed(False), rollouts_lib.grading(test_setup) as grader:
    line = state_lib.record_fields(setup, "eval", history) | (
        evaluation.evaluation(test_setup, grader, params, step,
                              preemption.Stop(), split="test",
                              policy=setup.policies[0])) | {"alarms": []}
  evaluation.append(arm.folder, line)
  return line


def document(arms: typing.Sequence[ArmRun], result: race.Result, best: dict,
             test: dict | None) -> dict:
  """The content of ROOT/spend.json."""
  chosen = arms[result.chosen]
  value = lambda record: record and {"avg": record["avg"],
                                     "se": record["avg_se"]}
  return {
      "budget": result.budget, "rollouts": result.rollouts,
      "overhead": result.overhead,
      "arms": [{"overrides": arm.overrides, "run": arm.folder,
                "rollouts": entry.rollouts, "why": entry.why}
               for arm, entry in zip(arms, result.arms, strict=True)],
      "chosen": chosen.overrides,
      "checkpoint": os.path.join(
          chosen.folder, state_lib.BEST, str(best["step"]))
      if best["step"] else chosen.setup.folder,  # the base policy
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
  """The result of a spend."""

  document: dict
  result: race.Result
  arms: list[ArmRun]
  histories: dict[int, race.ArmHistory]  # of each arm that ran, by its index


def spend(config, overrides: list[dict] | None, budget: int, root: str, *,
          signals=preemption.on_signals) -> Spent:
  """Races the arms for a budget of rollouts, and writes ROOT/spend.json.

  Raises:
    InputError: an arm is refused, or another spend uses the root; nothing was
      run.
    StoppedError: a signal stopped the spend; the same call resumes it.
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
    arms = prepare_arms(config, overrides, budget, root)
    histories: dict[int, race.ArmHistory] = {}
    charged = [0] * len(arms)  # rollouts
    start, sampled_here = time.monotonic(), 0  # rollouts of this process

    used, available = arms[0].setup.e.mesh.size, jax.device_count()
    if used < available:
      progress.say(f"one arm runs at a time, on {used} of {available} devices; "
                   "a larger config.mesh uses all of them")
    try:
      evaluation.on_split(arms[0].setup, "test")
    except strata.NoTestSplitError as error:  # says how to make the split
      progress.say(f"no test reward: {error}")

    def advance_arm(i: int, C: float):
      nonlocal sampled_here
      progress.say(f"{arms[i].name}: to {C:,.0f} rollouts, in {arms[i].folder}")
      histories[i], charged[i], sampled = advance(arms[i], C, signals)
      sampled_here += sampled
      return histories[i], charged[i]

    def say(line: str) -> None:
      if sampled_here:
        seconds = (time.monotonic() - start) / sampled_here
        left = (budget - sum(charged)) * seconds
        line += f"; ETA {progress.format_seconds(left)}"
      progress.say(line)

    result = race.play([arm.name for arm in arms], advance_arm, budget,
                       smallest=smallest_rung(arms), log=say,
                       prior=race.prior_of([a.setup.e.alloc.n for a in arms]))
    chosen = arms[result.chosen]
    best = best_record(chosen.folder)
    spent = Spent(document(arms, result, best, test_record(chosen, best)),
                  result, arms, histories)
    records.replace(os.path.join(root, SPEND), (json.dumps(
        spent.document, indent=1) + "\n").encode())
    return spent


def summary(spent: Spent) -> str:
  """The chosen arm, its rewards and its cost, in one sentence."""
  spend, chosen = spent.document, spent.result.arms[spent.result.chosen]
  rewards = ", ".join(
      f"{split} avg {spend[split]['avg']:.4f} (se {spend[split]['se']:.4f})"
      for split in ("test", "validation") if spend[split])
  return (f"chosen: {chosen.name}; {rewards}; {spend['rollouts']:,} of "
          f"{spend['budget']:,} rollouts, {spend['overhead']:.1%} of them "
          "outside of the chosen run; best checkpoint: "
          f"{spend['checkpoint']}")
