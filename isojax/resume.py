"""Decides where a run starts: at its newest checkpoint, or at step 0."""

from etils import epath

from isojax import run_context
from isojax import hosts
from isojax.errors import InputError
from isojax.ledger import checkpoint
from isojax.ledger import records
from isojax.run_context import RunContext


def start_or_resume(context: RunContext, tx, written, ledger: str, store: str):
  """Returns (step, state, host, records up to it) of the newest checkpoint.

  It is the newest one that the records reach. Without any the run starts at
  step 0. Later records are removed from the ledger; the run computes them again,
  with the same values.

  Args:
    context: of the run.
    tx: the optimizer.
    written: the ledger, opened; None but on process 0.
    ledger: its path.
    store: folder of the checkpoints.

  Raises:
    InputError: ledger and checkpoints do not match.
  """
  hosts.gather(None)  # until process 0 has opened the ledger
  kept = written.kept if hosts.first() else records.read(ledger)
  if kept and kept[0]["run_id"] != context.run_id:
    raise InputError(
        f"{ledger}: the records of run {kept[0]['run_id']}, expected those of "
        f"run {context.run_id}; restore the run's own file")
  reach = max((r["step"] for r in kept if r["kind"] == "train"), default=0)
  every = context.e.checkpoint
  saved = checkpoint.steps(store)
  if saved and not epath.Path(ledger).exists():
    raise InputError(
        f"{store} contains step {saved[-1]}, but there is no {ledger}; restore "
        "the records, or choose another --workdir to start again")
  # A run may be killed before its first checkpoint is saved completely, at the
  # latest when the second one is due.
  if not saved and reach > 2 * every.every_steps:
    raise InputError(
        f"{ledger} has records up to step {reach}, but {store} contains no "
        "checkpoint; restore the checkpoints, or choose another --workdir to "
        "start again")
  restored = checkpoint.restore_newest(
      store, run_context.abstract_state(context, tx), context.run_id,
      reach=reach, keep=every.keep, host=context.e.recipe.updates.in_flight > 0)
  hosts.agree({"checkpoint": restored and restored.step, "records": len(kept)})
  if restored is None:
    start, state, host = -1, run_context.first_state(context, tx), None
  else:
    start, state, host = restored
  if 0 < start < context.e.alloc.M:
    of = f" of {context.e.alloc.M}" * (context.e.recipe.filter.rounds == 1)
    hosts.say(f"resuming from step {start}{of}")
  if hosts.first():
    written.cut(start)
  return max(start, 0), state, host, records.up_to(kept, start)
