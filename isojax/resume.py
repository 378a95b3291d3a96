"""Decides where a run starts: at its newest checkpoint, or at step 0."""

from isojax import run_context
from isojax.distributed import hosts
from isojax.errors import InputError
from isojax.ledger import checkpoint
from isojax.ledger import continuity
from isojax.ledger import records
from isojax.run_context import RunContext


def start_or_resume(context: RunContext, tx, ledger: str, store: str,
                    due: tuple[int, ...]):
  """Returns (step, state, host, records up to it) of the newest checkpoint.

  `host` is that of checkpoint.save, or None.

  Without a checkpoint the run starts at step 0. Records after the step are
  removed from the ledger; the run computes them again, with the same values.

  Args:
    context: of the run.
    tx: the optimizer.
    ledger: path of the records.
    store: folder of the checkpoints.
    due: the rollouts at which the run evaluates.

  Raises:
    InputError: ledger and checkpoints do not match.
  """
  restored = checkpoint.restore_newest(
      store, run_context.abstract_state(context, tx), context.run_id)
  found = records.read(ledger)
  continuity.check(ledger, found, context.run_id, context.e.alloc.n_after,
                   due)
  steps = [r["step"] for r in found if r["kind"] == "train"]
  hosts.agree({"checkpoint": restored and restored[0], "records": len(found)})
  if restored is None:
    # A run may be killed before its first checkpoint is saved completely, at
    # the latest when the second one is due.
    if steps and steps[-1] > 2 * context.e.checkpoint.every_steps:
      raise InputError(
          f"{ledger} has records up to step {steps[-1]}, but {store} contains "
          "no checkpoint; restore the checkpoints, or choose another --workdir "
          "to start again")
    return 0, run_context.first_state(context, tx), None, _cut(
        ledger, found, -1)
  start, state = restored
  if steps[:start] != list(range(1, start + 1)):
    raise InputError(
        f"{store} contains step {start}, but {ledger} lacks a step up to it; "
        "restore the records, or choose another --workdir to start again")
  if start < context.e.alloc.M:
    of = f" of {context.e.alloc.M}" * (context.e.recipe.filter.rounds == 1)
    hosts.say(f"resuming from step {start}{of}")
  return (start, state, checkpoint.host_bytes(store, start),
          _cut(ledger, found, start))


def _cut(ledger: str, found: list[dict], step: int) -> list[dict]:
  """Returns the records up to a step; process 0 removes later ones from disk.
  """
  kept = [r for r in found if r["step"] <= step]
  if hosts.first():
    records.keep(ledger, kept)
  return kept
