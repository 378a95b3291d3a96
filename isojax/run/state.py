"""How a run starts, and what changes from step to step.

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

from isojax.core import plan_file, sections
from isojax.errors import InputError
from isojax.ledger import checkpoint, records, workdir
from isojax.run import branch as branch_lib
from isojax.run import experiment
from isojax.run import history as history_lib
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run.history import History
from isojax.run.setup import Setup
from isojax.runtime import hosts
from isojax.types import TrainState


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
    return setup.config.task.grader.name
  return f"python-{setup.identity['reward_sha256'][:12]}"


def run_fields(setup: Setup, history: History) -> dict:
  """The fields of a Record that the run and what it has spent so far give.

  `history` is that at the record's step.
  """
  config, D = setup.config, len(setup.stratum.train)
  alloc = config.alloc
  return {"run_id": setup.run_id, "seed": config.seed,
          "model": setup.values["model"]["path"],
          "task": task_name(setup), "split": setup.stratum.header["stratum"],
          "Bp": alloc.Bp, "n": alloc.n, "m": alloc.kept, "D": D,
          "step": history.step, "rollouts": history.rollouts,
          "unix_time": round(time.time(), 3),
          "resumed_with": setup.resumed_with,
          "epoch": history.step / (D // alloc.Bp),  # D // Bp steps each
          **history.totals}


def restored(setup: Setup, ledger, folder: str) -> tuple[State, list[dict]]:
  """The state at the newest checkpoint that the records reach, and its records.

  Later records are removed from `ledger`, which process 0 alone has; the run
  computes them again, with the same values.
  """
  path, store = (os.path.join(folder, name) for name in (
      history_lib.RECORDS, history_lib.CHECKPOINTS))
  hosts.gather(None)  # until process 0 has opened the ledger
  past_records = ledger.records if hosts.first() else records.read(path)
  last_step = max((r["step"] for r in past_records if r["kind"] == "train"),
                  default=0)
  _check_complete(setup, folder, past_records, last_step)
  has_in_flight = setup.config.recipe.updates.in_flight > 0
  newest = checkpoint.restore_newest(
      store, setup_lib.abstract_state(setup), setup.run_id, reach=last_step,
      keep=setup.config.checkpoint.keep, with_in_flight=has_in_flight)
  hosts.assert_same_on_all_hosts(
      {"checkpoint": newest and newest.step, "records": len(past_records)})
  # Step -1 keeps no record, not even that of the evaluation at step 0.
  step, train, saved_in_flight = newest or (
      -1, setup_lib.first_state(setup), None)
  M = setup.config.alloc.M
  if 0 < step < M:
    of = f" of {M}" if setup.config.recipe.filter.rounds == 1 else ""
    hosts.say(f"resuming from step {step}{of}")
  past_records = records.up_to(past_records, step)
  in_flight = rollouts_lib.restored_in_flight(
      saved_in_flight, setup.sampler) if has_in_flight else None
  history = history_lib.history_of(past_records)
  if hosts.first():
    _cut(ledger, folder, step, history)
  hosts.gather(None)  # until later steps are gone
  return State(train, in_flight, history), past_records


def _check_complete(setup: Setup, folder: str, past_records: list[dict],
                    last_step: int) -> None:
  """InputError for records of another run, or without their checkpoints."""
  path, store = (os.path.join(folder, name) for name in (
      history_lib.RECORDS, history_lib.CHECKPOINTS))
  if past_records and past_records[0]["run_id"] != setup.run_id:
    raise InputError(
        f"{path}: the records of run {past_records[0]['run_id']}, expected "
        f"those of run {setup.run_id}; restore the run's own file")
  saved, missing = checkpoint.steps(store), None
  if saved and not epath.Path(path).exists():
    missing = "records"
  # The first checkpoint is complete at the latest when the second one is due.
  elif not saved and last_step > 2 * setup.config.checkpoint.every_steps:
    missing = "checkpoints"
  if missing:
    raise InputError(
        f"{folder}: the run has made steps, but its {missing} are gone; "
        f"restore the {missing}, or choose another --workdir to start again")


def _cut(ledger, folder: str, step: int, history: history_lib.History) -> None:
  """Deletes what is later than a step: these steps will be repeated.

  Of best/, all but the checkpoint that the records up to the step name.
  """
  ledger.cut(step)
  best = history.best and history.best[1]
  for name, is_later in (
      (history_lib.KEPT, lambda saved: saved > step),
      (history_lib.KEPT_BEST, lambda saved: saved > step),
      (history_lib.BEST, lambda saved: saved != best)):
    checkpoint.delete_steps(os.path.join(folder, name), is_later)


@dataclasses.dataclass(frozen=True)
class Start:
  """How a run begins in a workdir."""

  setup: Setup  # under the run id of the workdir
  folder: str
  kind: str  # "new", "branches", "resumes" or "extends"
  text: str  # for the user
  stored: workdir.Stored | None = None  # the run that resumes or is extended
  branch: branch_lib.Branch | None = None  # of a run that branches


def start_of(setup: Setup, folder: str, *, run_id: str | None = None,
             evaluate: bool = False) -> Start:
  """Whether a run is new in a workdir, branches, resumes or extends it.

  `run_id` is of a new workdir; None: the hash of what decides the results. A
  run that is evaluated is not extended. Reads, and writes nothing.

  Raises:
    InputError: the workdir holds another run, or one that has decayed.
  """
  stored = workdir.read_config(folder) if workdir.is_claimed(folder) else None
  given = setup
  if stored:
    setup = with_paths_of(setup, stored)
  ours = stored_as(setup, run_id)
  if stored and stored.identity != ours.identity:
    if evaluate or not _extends(setup, stored):
      raise InputError(conflict(given, folder, ours.run_id, stored))
    check_extension(setup, folder, stored)
  setup = dataclasses.replace(
      setup, run_id=(stored or ours).run_id, resumed_with=", ".join(
          _changes(setup, stored, experiment.last_bits)) or None)
  if not evaluate and (branch := branch_lib.longest(setup, folder)):
    return Start(setup, folder, "branches", branch.text, branch=branch)
  if stored is None:
    return Start(setup, folder, "new", f"{folder}: a new run" + "".join(
        f"; {other} holds its first {C:,} rollouts, and --workdir={other} "
        "extends them" for C, other in _extendable(setup, folder)[-1:]))
  kind, text = "resumes", f"{folder} holds this run"
  if stored.identity != ours.identity:
    C = stored.config["alloc"]["C"]
    kind, text = "extends", f"{text} with alloc.C={C}: it is extended"
  free = ", ".join(name for part in (experiment.paths, experiment.free)
                   for name in _changes(given, stored, part))
  changes = ", ".join(f"{values} ({effect})" for values, effect in (
      (setup.resumed_with, "may change the last bits of results"),
      (free, "decides no result")) if values)
  return Start(setup, folder, kind, text + (
      f", with other values: {changes}" if changes else ""), stored)


def with_paths_of(setup: Setup, stored: workdir.Stored) -> Setup:
  """A setup that names its files as a stored run does.

  Their content decides, of which `setup.identity` has the hashes.
  """
  ours = experiment.paths(setup.values)
  values = plan_file.merged(setup.values, sections.nested({
      name: path for name, path in experiment.paths(stored.config).items()
      if name in ours}))
  return dataclasses.replace(
      setup, values=values,
      identity=setup.identity | experiment.identity(values))


def differences(setup: Setup, stored: workdir.Stored, there: str) -> str:
  """What decides results and differs from a stored run: values, and files."""
  values = sections.differences(
      *map(experiment.identity, (setup.values, stored.config)),
      at=("in this config", there))
  files = "" if setup.identity_as(stored.config) == stored.identity else (
      "the weights of the model differ"
      if setup.model_sha256 != stored.model_sha256 else
      "files differ: of the model, the stratum, the reward (task.grader.file), "
      "a function of recipe.loss, or the prompts' tokens; or config.json of "
      "the workdir was edited")
  return "; ".join(filter(None, (values, files)))


def conflict(setup: Setup, folder: str, run_id: str,
             stored: workdir.Stored) -> str:
  """The message for a run, with our `run_id`, that is not that of a workdir."""
  holds = (f"holds run {stored.run_id} with other values, such as those of an "
           "extension" if stored.run_id == run_id else
           f"belongs to run {stored.run_id}, expected run {run_id}")
  return (f"--workdir={folder} {holds}: "
          f"{differences(setup, stored, 'in the workdir')}; this decides "
          "results: choose another --workdir, or resume that run with its own "
          f"values: python -m isojax.main --workdir={folder}")


def stored_as(setup: Setup, run_id: str | None = None) -> workdir.Stored:
  """The config.json of a new run."""
  identity = workdir.hash_of(setup.identity)
  return workdir.Stored(run_id or identity, identity, setup.model_sha256,
                        setup.values)


def _extends(setup: Setup, stored: workdir.Stored) -> bool:
  """Whether a run is a stored one, but longer: its first steps are the same."""
  return (setup.values["alloc"]["C"] >= stored.config["alloc"]["C"]
          and workdir.hash_of(setup.identity) != stored.identity
          and branch_lib.is_budget_of(stored, setup))


def check_extension(setup: Setup, folder: str, shorter: workdir.Stored) -> None:
  """InputError for a run whose rate has decayed towards its C."""
  decay, C = setup.config.recipe.optimizer.decay, shorter.config["alloc"]["C"]
  if decay:
    raise InputError(
        f"--workdir={folder} holds this run with alloc.C={C}, and with recipe."
        f"optimizer.decay={decay} its learning rate falls to 0 there: a run of "
        f"alloc.C={setup.config.alloc.C} is another one, and not extended; "
        "choose another --workdir, or train with decay=0.0 to extend a run")


def _extendable(setup: Setup, folder: str) -> list[tuple[int, str]]:
  """(C, folder) of the runs beside `folder` that are this one, but shorter."""
  if setup.config.recipe.optimizer.decay:
    return []
  return sorted((stored.config["alloc"]["C"], other)
                for other, stored in workdir.siblings(folder)
                if _extends(setup, stored))


def _changes(setup: Setup, stored: workdir.Stored | None, part) -> list[str]:
  """The values of a part of the config that are not those of config.json."""
  if stored is None:
    return []
  values, before = part(setup.values), part(stored.config)
  return [f"{name}={value}" for name, value in values.items()
          if name not in before or value != before[name]]


@contextlib.contextmanager
def claimed(start: Start):
  """Locks the workdir of a run and yields the setup under its run id.

  Every process must call. Errors: see workdir.claim.
  """
  setup, folder = start.setup, start.folder
  ours, shorter = stored_as(setup, setup.run_id), None
  if start.kind == "extends":  # config.json keeps the values of its beginning
    shorter = start.stored.identity
    ours = dataclasses.replace(ours, config=start.stored.config | {
        "alloc": setup.values["alloc"]})
  claim = workdir.claim(folder, ours, shorter, conflict=functools.partial(
      conflict, setup, folder, setup.run_id))
  with contextlib.ExitStack() as stack:
    hosts.run_on_all_hosts(lambda: hosts.first() and stack.enter_context(claim))
    hosts.run_on_all_hosts(lambda: workdir.check_shared(folder, setup.run_id))
    if start.branch:
      hosts.run_on_all_hosts(lambda: hosts.first() and branch_lib.copy(
          start.branch, folder, setup.run_id))
    yield setup
