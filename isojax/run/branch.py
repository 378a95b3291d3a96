"""The start of a decayed run: the steps of a constant one, if there is one.

With recipe.optimizer.decay below 1 the first (1 - decay) C rollouts are those
of a run at a constant rate, to the bit. If such a run (the trunk) is beside the
workdir and kept a checkpoint there (checkpoint.at), its records and checkpoint
are copied. This is a cache: the run ends in the bits of one from scratch.
"""

import dataclasses
import json
import os

from isojax.core import evaluate
from isojax.ledger import checkpoint, records, workdir
from isojax.rl import optimizer as optimizer_lib
from isojax.run import history as history_lib
from isojax.run.experiment import Experiment
from isojax.run.setup import Setup


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
  """The branch with the most steps of a new decayed run; None without one."""
  if setup.e.recipe.optimizer.decay == 0 or records.sound(
      os.path.join(folder, history_lib.RECORDS))[0]:
    return None
  return max(candidates(setup, folder), default=None, key=lambda b: b.step)


def copy(branch: Branch, folder: str, run_id: str) -> None:
  """Copies the first steps of a run from its trunk into its folder.

  The records are written last, so that a killed copy is repeated.
  """
  steps = [(history_lib.KEPT, history_lib.CHECKPOINTS, branch.step)]
  if branch.best:
    steps.append((history_lib.KEPT_BEST, history_lib.BEST, branch.best))
  with records.convert_disk_errors(folder):
    for source, target, step in steps:
      checkpoint.copy_step(os.path.join(branch.trunk, source),
                           os.path.join(folder, target), step, run_id)
  records.write(os.path.join(folder, history_lib.RECORDS), branch.records)


def candidates(setup: Setup, folder: str) -> list[Branch]:
  """The branches that the runs beside a folder offer."""
  out = []
  for trunk, stored in workdir.siblings(folder):
    if not _is_trunk(setup, stored):
      continue
    run_records = records.sound(os.path.join(trunk, history_lib.RECORDS))[0]
    last = last_constant_step(setup.e, run_records)
    kept = [step for step in checkpoint.steps_here(os.path.join(
        trunk, history_lib.KEPT)) if 0 < step <= last]
    if not kept:
      continue
    own = own_records(setup, records.up_to(run_records, kept[-1]))
    best = _best_step(setup, own)
    if best and best not in checkpoint.steps_here(os.path.join(
        trunk, history_lib.KEPT_BEST)):
      continue
    out.append(Branch(trunk, kept[-1], best, own))
  return out


def _is_trunk(setup: Setup, stored: workdir.Stored) -> bool:
  """Whether a run is this one at a constant rate, evaluated alike."""
  alloc = {name: stored.config["alloc"][name] for name in ("C", "M")}
  recipe = setup.identity["recipe"]
  constant = setup.identity | {
      "alloc": setup.identity["alloc"] | alloc,
      "recipe": recipe | {"optimizer": recipe["optimizer"] | {"decay": 0.0}}}
  as_json = json.loads(json.dumps(setup.config["eval"]))
  return (workdir.hash_of(constant) == stored.identity
          and as_json == stored.config["eval"])


def last_constant_step(e: Experiment, run_records: list[dict]) -> int:
  """The last step of a trunk that the decayed run makes at the same rate."""
  before = last = 0
  for record in run_records:
    if record["kind"] != "train":
      continue
    if optimizer_lib.decay_factor(
        before / e.alloc.C, e.recipe.optimizer.decay) < 1:
      break
    last, before = record["step"], record["rollouts"]
  return last


def own_records(setup: Setup, trunk_records: list[dict]) -> list[dict]:
  """The records that the run would have written itself.

  A trunk is also evaluated at its own end.
  """
  e, out, history = setup.e, [], history_lib.History()
  due = evaluate.due_rollouts(
      C=e.alloc.C, first=e.eval.first, growth=e.eval.growth)
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
  if not setup.e.checkpoint.keep_best or best is None or best[1] == 0:
    return None
  return best[1]
