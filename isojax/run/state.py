"""What changes from step to step, and what a resume restores of it.

The state is a checkpoint (train state, rollouts in flight) and the History of
the records up to its step, nothing else.
"""

import contextlib
import dataclasses
import functools
import os
import time

from etils import epath
import numpy as np

from isojax.errors import InputError
from isojax.ledger import checkpoint, records, workdir
from isojax.run import experiment
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run.setup import Setup
from isojax.runtime import hosts
from isojax.types import TrainState

# Files and folders of a workdir.
RECORDS, EVALUATIONS = "records.jsonl", "eval.jsonl"
CHECKPOINTS, BEST = "checkpoints", "best"
# Of checkpoint.at: checkpoints that no later one replaces, and the best
# checkpoint at each of them.
KEPT, KEPT_BEST = "kept", "kept_best"


@dataclasses.dataclass(frozen=True)
class History:
  """What the records of a run add up to so far."""

  step: int = 0  # steps made
  rollouts: int = 0  # sampled in them
  before: int = 0  # sampled before the last step
  totals: dict = dataclasses.field(  # cumulative fields of the records
      default_factory=lambda: dict.fromkeys(records.TOTALS, 0))
  evaluated_at: int | None = None  # rollouts at the last evaluation
  best: tuple[float, int] | None = None  # avg and step of the best evaluation
  stale: int = 0  # evaluations since the best one
  solved: frozenset[int] = frozenset()  # ids of problems not sampled again

  def after(self, record: dict) -> "History":
    """The history with one more record."""
    if record["kind"] == "eval":
      improves = self.best is None or record["avg"] > self.best[0]
      return dataclasses.replace(
          self, evaluated_at=record["rollouts"],
          best=(record["avg"], record["step"]) if improves else self.best,
          stale=0 if improves else self.stale + 1)
    return dataclasses.replace(
        self, step=record["step"], rollouts=record["rollouts"],
        before=self.rollouts,
        totals={name: record[name] for name in records.TOTALS},
        solved=self.solved.union(record["solved"] or ()))

  def spending(self, rollouts: int, **spent) -> "History":
    """The history with one more step that spent `rollouts` and these totals."""
    return dataclasses.replace(
        self, step=self.step + 1, rollouts=self.rollouts + rollouts,
        totals={name: value + spent[name]
                for name, value in self.totals.items()})


def history_of(run_records: list[dict]) -> History:
  return functools.reduce(History.after, run_records, History())


@dataclasses.dataclass(frozen=True)
class State:
  """All that changes from step to step."""

  train: TrainState
  in_flight: rollouts_lib.InFlight | None  # None: no in-flight updates
  history: History


def solved_D(setup: Setup, history: History) -> np.ndarray:
  """Which training problems are not sampled while others are left: bool."""
  return np.isin(setup.train.id_P, np.array(sorted(history.solved), np.uint32))


def task_name(setup: Setup) -> str:
  """What judges: a task, or python and a hash of the reward's file."""
  if not setup.reward:
    return setup.e.task.grader.name
  return f"python-{setup.identity['reward_sha256'][:12]}"


def run_fields(setup: Setup, history: History) -> dict:
  """The fields of a Record that the run and what it has spent so far give.

  `history` is that at the record's step.
  """
  e, D = setup.e, len(setup.stratum.train)
  return {"run_id": setup.run_id, "seed": e.seed, "model": e.model.path,
          "task": task_name(setup), "split": setup.stratum.header["stratum"],
          "Bp": e.alloc.Bp, "n": e.alloc.n, "m": e.alloc.kept, "D": D,
          "step": history.step, "rollouts": history.rollouts,
          "unix_time": round(time.time(), 3),
          "resumed_with": setup.resumed_with,
          "epoch": history.step / (D // e.alloc.Bp),  # D // Bp steps each
          **history.totals}


def restored(setup: Setup, ledger, folder: str) -> tuple[State, list[dict]]:
  """The state at the newest checkpoint that the records reach, and its records.

  Later records are removed from `ledger`, which process 0 alone has; the run
  computes them again, with the same values.
  """
  path, store = (os.path.join(folder, name) for name in (
      RECORDS, CHECKPOINTS))
  hosts.gather(None)  # until process 0 has opened the ledger
  past_records = ledger.records if hosts.first() else records.read(path)
  if past_records and past_records[0]["run_id"] != setup.run_id:
    raise InputError(
        f"{path}: the records of run {past_records[0]['run_id']}, expected "
        f"those of run {setup.run_id}; restore the run's own file")
  last_step = max((r["step"] for r in past_records if r["kind"] == "train"),
                  default=0)
  cfg, has_in_flight = setup.e.checkpoint, setup.e.recipe.updates.in_flight > 0
  saved = checkpoint.steps(store)
  # The first checkpoint is complete at the latest when the second one is due.
  missing = None
  if saved and not epath.Path(path).exists():
    missing = "records"
  elif not saved and last_step > 2 * cfg.every_steps:
    missing = "checkpoints"
  if missing:
    raise InputError(
        f"{folder}: the run has made steps, but its {missing} are gone; "
        f"restore the {missing}, or choose another --workdir to start again")
  newest = checkpoint.restore_newest(
      store, setup_lib.abstract_state(setup), setup.run_id, reach=last_step,
      keep=cfg.keep, with_in_flight=has_in_flight)
  hosts.assert_same_on_all_hosts(
      {"checkpoint": newest and newest.step, "records": len(past_records)})
  # Step -1 keeps no record, not even that of the evaluation at step 0.
  step, train, saved_in_flight = newest or (
      -1, setup_lib.first_state(setup), None)
  if 0 < step < setup.e.alloc.M:
    of = (f" of {setup.e.alloc.M}" if setup.e.recipe.filter.rounds == 1
          else "")
    hosts.say(f"resuming from step {step}{of}")
  if hosts.first():
    ledger.cut(step)
    checkpoint.drop_after(os.path.join(folder, KEPT), step)
  past_records = records.up_to(past_records, step)
  in_flight = rollouts_lib.restored_in_flight(
      saved_in_flight, setup.sampler) if has_in_flight else None
  if setup.resumed_with:
    hosts.say(f"{folder} began with other values than {setup.resumed_with}: "
              "the last bits of its results may differ from here on")
  history = history_of(past_records)
  if hosts.first():  # a kill may have left later steps: they will be repeated
    checkpoint.delete_others(os.path.join(folder, BEST),
                             history.best and history.best[1])
  hosts.gather(None)  # until they are gone
  return State(train, in_flight, history), past_records


def _extends(setup: Setup, stored: workdir.Stored) -> bool:
  """Whether a run is a stored one, but longer: its first steps are the same."""
  alloc, stored_alloc = setup.identity["alloc"], stored.config["alloc"]
  shorter = setup.identity | {
      "alloc": alloc | {"C": stored_alloc["C"], "M": stored_alloc["M"]}}
  return (alloc["C"] >= stored_alloc["C"]
          and workdir.hash_of(setup.identity) != stored.identity
          and workdir.hash_of(shorter) == stored.identity)


def check_extension(setup: Setup, folder: str, shorter: workdir.Stored) -> None:
  """InputError for a run whose rate has decayed towards its C."""
  decay, C = setup.e.recipe.optimizer.decay, shorter.config["alloc"]["C"]
  if decay:
    raise InputError(
        f"--workdir={folder} holds this run with alloc.C={C}, and with recipe."
        f"optimizer.decay={decay} its learning rate fell to 0 there: a run of "
        f"alloc.C={setup.e.alloc.C} is another one, and not extended; choose "
        "another --workdir, or train with decay=0.0 to extend a run")


def extendable(setup: Setup, folder: str) -> list[tuple[int, str]]:
  """(C, folder) of the runs beside `folder` that are this one, but shorter."""
  if setup.e.recipe.optimizer.decay:
    return []
  return sorted((stored.config["alloc"]["C"], other)
                for other, stored in workdir.siblings(folder)
                if _extends(setup, stored))


def as_stored(setup: Setup, folder: str, *, run_id: str | None = None,
              evaluate: bool = False) -> tuple[Setup, workdir.Stored | None]:
  """The setup under the run id of a workdir, and the run that it extends.

  `run_id` is of a new workdir; None: the hash of what decides the results. A
  run that is evaluated is not extended.
  """
  stored = workdir.read_config(folder) if workdir.is_claimed(folder) else None
  shorter = stored if stored and not evaluate and _extends(
      setup, stored) else None
  if shorter:
    check_extension(setup, folder, shorter)
  identity, resumed_with = workdir.hash_of(setup.identity), None
  if stored and (stored.identity == identity or shorter):
    run_id, resumed_with = stored.run_id, _resumed_with(setup, stored)
  return dataclasses.replace(setup, run_id=run_id or identity,
                             resumed_with=resumed_with), shorter


def _resumed_with(setup: Setup, stored: workdir.Stored) -> str | None:
  """The values that change rounding and are not those of config.json."""
  values, before = map(experiment.last_bits, (setup.config, stored.config))
  return ", ".join(f"{name}={value}" for name, value in values.items()
                   if name not in before or value != before[name]) or None


@contextlib.contextmanager
def claimed(setup: Setup, folder: str, *, run_id: str | None = None,
            evaluate: bool = False):
  """Yields the setup under the run id of the folder, which is locked.

  Every process must call. Arguments and errors: `as_stored`, workdir.claim.
  """
  setup, shorter = hosts.run_on_all_hosts(lambda: as_stored(
      setup, folder, run_id=run_id, evaluate=evaluate))
  if shorter:
    hosts.say(f"{folder} holds this run with alloc.C="
              f"{shorter.config['alloc']['C']}: it is extended")
  config = setup.config
  if shorter:  # config.json keeps the values with which the run began
    config = shorter.config | {"alloc": config["alloc"]}
  claim = workdir.claim(folder, workdir.Stored(
      setup.run_id, workdir.hash_of(setup.identity), setup.model_sha256,
      config), shorter and shorter.identity, deciding=experiment.identity)
  with contextlib.ExitStack() as stack:
    hosts.run_on_all_hosts(lambda: hosts.first() and stack.enter_context(claim))
    hosts.run_on_all_hosts(lambda: workdir.check_shared(folder, setup.run_id))
    yield setup
