"""Claims the folder of a run: a new one, the same run, or a shorter one."""

import contextlib
import dataclasses

from isojax import run_context
from isojax import hosts
from isojax.ledger import checkpoint
from isojax.ledger import workdir
from isojax.run_context import RunContext


def extended(context: RunContext, folder: str) -> workdir.Stored | None:
  """The stored run of a folder, if this run is the same but longer.

  The learning rate does not depend on the budget, so a longer run begins with
  the steps of a shorter one.
  """
  if not workdir.claimed(folder):
    return None
  stored, here = workdir.read_config(folder), context.identity["alloc"]
  there = stored.config["alloc"]
  shorter = context.identity | {
      "alloc": here | {"C": there["C"], "M": there["M"]}}
  longer = here["C"] >= there["C"] and (
      workdir.run_id(context.identity) != stored.identity)
  return stored if longer and workdir.run_id(shorter) == stored.identity else (
      None)


def as_stored(context: RunContext, config: dict, folder: str, *,
              run_id: str | None, evaluate: bool) -> tuple[RunContext, dict]:
  """Returns context and config under the run id of a workdir.

  Args:
    context: of the run.
    config: of the run.
    folder: the workdir.
    run_id: of a new workdir; None: the hash of what decides the results.
    evaluate: the section `eval` may differ from that of the training run.
  """
  stored = workdir.read_config(folder) if workdir.claimed(folder) else None
  if stored and evaluate:
    same = {"eval": stored.config["eval"]}
    config = config | same
    context = dataclasses.replace(context, identity=context.identity | same)
  identity = workdir.run_id(context.identity)
  if stored and stored.identity == identity or (
      not evaluate and extended(context, folder)):
    run_id = stored.run_id
  return dataclasses.replace(context, run_id=run_id or identity), config


@contextlib.contextmanager
def claimed(context: RunContext, config: dict, folder: str, *,
            run_id: str | None, evaluate: bool):
  """Yields the context under the run id of the folder, which is locked.

  Every process of the run must call. Writes config.json into a new folder.

  Args:
    context, config: of the run.
    folder: the workdir.
    run_id: of a new workdir; None: the hash of what decides the results.
    evaluate: the section `eval` may differ from that of the training run.

  Raises:
    InputError: the folder belongs to another run, is in use, or cannot be
      written.
  """
  context, config = hosts.run_on_all_hosts(lambda: as_stored(
      context, config, folder, run_id=run_id, evaluate=evaluate))
  shorter = hosts.run_on_all_hosts(
      lambda: None if evaluate else extended(context, folder))
  if shorter:
    hosts.say(f"{folder} holds this run with alloc.C="
              f"{shorter.config['alloc']['C']}: it is extended")
  claim = workdir.claim(
      folder, config | {"alloc": config["alloc"] | {"C": context.e.alloc.C}},
      context.run_id, context.model_sha256,
      identity=workdir.run_id(context.identity),
      shorter=shorter and shorter.identity)
  with contextlib.ExitStack() as stack:
    hosts.run_on_all_hosts(lambda: hosts.first() and stack.enter_context(claim))
    hosts.run_on_all_hosts(
        lambda: workdir.check_shared(folder, context.run_id))
    yield context


def newest(context: RunContext, store: str):
  """Returns (step, parameters) of the newest checkpoint; of the base if none.
  """
  if not checkpoint.steps(store):
    hosts.say(f"{store} holds no checkpoint: this is the base policy")
    return 0, run_context.base_params(context)
  tx, _ = run_context.make_optimizer(context.e)
  step, trained = checkpoint.restore_params(
      store, None, run_context.abstract_state(context, tx).params,
      context.run_id)
  return step, run_context.merged(
      context, run_context.frozen_base(context), trained)
