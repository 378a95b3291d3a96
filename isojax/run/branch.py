"""The start of a decayed run: the steps of a constant one, if there is one.

With recipe.optimizer.decay below 1 the first (1 - decay) C rollouts are those
of a run at a constant rate, to the bit. If such a run (the trunk) is beside the
workdir and kept a checkpoint there (checkpoint.at), its records and checkpoint
are copied. This is a cache: the run ends in the bits of one from scratch.
"""

import dataclasses
import os

from isojax.core import disk, evaluate, plan_file
from isojax.ledger import checkpoint, records, workdir
from isojax.rl import optimizer as optimizer_lib
from isojax.run import experiment
from isojax.run import history as history_lib
from isojax.run.setup import Setup
from isojax.runtime import hosts


@dataclasses.dataclass(frozen=True)
class Branch:
  """What a run takes from its trunk."""

  trunk: str  # folder
  step: int  # of the checkpoint that the run continues
  best: int | None  # step of the best checkpoint up to it; None: not kept
  records: list[dict]  # up to it, with the run's own id

  @property
  def text(self) -> str:
    return (f"steps 1 to {self.step} are those of {self.trunk}, at a constant "
            "rate: copied")


def longest(setup: Setup, folder: str) -> Branch | None:
  """The branch with the most steps of a new decayed run; None without one.

  InputError for damaged records of the run itself.
  """
  if setup.config.recipe.optimizer.decay == 0 or records.read(
      os.path.join(folder, history_lib.RECORDS)):
    return None
  found = max(candidates(setup, folder), default=None, key=lambda b: b.step)
  # A killed copy leaves no other checkpoint; else the run's records are gone.
  left = set(checkpoint.steps_here(os.path.join(
      folder, history_lib.CHECKPOINTS)))
  return None if found is None or left - {found.step} else found


def copy(branch: Branch, folder: str, run_id: str) -> None:
  """Copies the first steps of a run from its trunk into its folder.

  The records are written last, so that a killed copy is repeated. If the trunk
  cannot be read, the run begins with its own first step.
  """
  steps = [(history_lib.KEPT, history_lib.CHECKPOINTS, branch.step)]
  if branch.best:
    steps.append((history_lib.KEPT_BEST, history_lib.BEST, branch.best))
  with disk.writing(folder):
    try:
      for source, target, step in steps:
        checkpoint.copy_step(os.path.join(branch.trunk, source),
                             os.path.join(folder, target), step, run_id)
    except checkpoint.UNREADABLE as error:
      for _, target, _ in steps:
        checkpoint.delete_steps(os.path.join(folder, target), lambda _: True)
      hosts.say(f"{branch.trunk}: its checkpoint of step {branch.step} cannot "
                f"be read ({checkpoint.fault(error)}): the run begins with its "
                "own first step")
      return
  records.write(os.path.join(folder, history_lib.RECORDS), branch.records)


def candidates(setup: Setup, folder: str) -> list[Branch]:
  """The branches that the runs beside a folder offer."""
  out = []
  for trunk, stored in workdir.siblings(folder):
    if not _is_trunk(setup, stored):
      continue
    run_records = records.sound(os.path.join(trunk, history_lib.RECORDS))[0]
    last = last_constant_step(setup.config, run_records, stored.config["alloc"])
    kept, kept_best = (checkpoint.steps_here(os.path.join(trunk, name))
                       for name in (history_lib.KEPT, history_lib.KEPT_BEST))
    for step in reversed([step for step in kept if 0 < step <= last]):
      own = own_records(setup, records.up_to(run_records, step))
      best = _best_step(setup, own)
      if _made_alike(setup, own) and (best is None or best in kept_best):
        out.append(Branch(trunk, step, best, own))
        break
  return out


def is_budget_of(stored: workdir.Stored, setup: Setup, **optimizer) -> bool:
  """Whether a stored run is this one with another budget, C and M.

  `optimizer` are further values in which the stored run may differ.
  """
  return stored.identity == setup.identity_as(plan_file.merged(setup.values, {
      "alloc": {name: stored.config["alloc"][name] for name in ("C", "M")},
      "recipe": {"optimizer": optimizer}}))


def _is_trunk(setup: Setup, stored: workdir.Stored) -> bool:
  """Whether a run is this one at a constant rate, to the last bits."""
  decay = stored.config["recipe"]["optimizer"]["decay"]
  return (decay == 0 and is_budget_of(stored, setup, decay=decay)
          and setup.values["eval"] == stored.config["eval"]
          and experiment.last_bits(setup.values) == (
              experiment.last_bits(stored.config)))


def _made_alike(setup: Setup, run_records: list[dict]) -> bool:
  """Whether no resume of the trunk changed how it computes or evaluates."""
  cfg = setup.config.eval
  return all(
      r["resumed_with"] is None and (r["kind"] != "eval" or (
          r["k"], r["temperature"], r["top_p"]) == (
              cfg.k, cfg.temperature, cfg.top_p)) for r in run_records)


def last_constant_step(config: experiment.Experiment, run_records: list[dict],
                       trunk: dict) -> int:
  """The last step of a trunk that is one of the decayed run, too.

  Its rate is constant, and the end of the trunk's section `alloc` does not
  bound its resampling rounds, or the groups in flight after it.
  """
  before = last = 0
  B = config.alloc.Bp * config.alloc.n
  M = trunk["C"] // B if trunk["M"] is None else trunk["M"]
  recipe = config.recipe
  rounds, in_flight = recipe.filter.rounds, recipe.updates.in_flight
  for record in run_records:
    if record["kind"] != "train":
      continue
    if (optimizer_lib.decay_factor(
        before / config.alloc.C, config.recipe.optimizer.decay) < 1
        or rounds > 1 and M * B - before < rounds * B
        or in_flight and record["step"] + in_flight + 1 > M):
      break
    last, before = record["step"], record["rollouts"]
  return last


def own_records(setup: Setup, trunk_records: list[dict]) -> list[dict]:
  """The records that the run would have written itself.

  A trunk is also evaluated at its own end.
  """
  config, out, history = setup.config, [], history_lib.History()
  due = evaluate.due_rollouts(
      C=config.alloc.C, first=config.eval.first, growth=config.eval.growth)
  for record in trunk_records:
    if record["kind"] == "eval" and not evaluate.is_due(
        due, history.evaluated_at, record["rollouts"]):
      continue
    out.append(record | {"run_id": setup.run_id})
    history = history.after(record)
  return out


def _best_step(setup: Setup, run_records: list[dict]) -> int | None:
  """The step of the best checkpoint that a run keeps; None without one."""
  best = history_lib.history_of(run_records).best
  if not setup.config.checkpoint.keep_best or best is None or best[1] == 0:
    return None
  return best[1]
