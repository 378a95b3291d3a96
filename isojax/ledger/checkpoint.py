"""Saves and restores sharded train states with orbax, asynchronous and atomic.

A step is in its folder completely or not at all: orbax writes another folder
and renames it, or marks it as complete where nothing can be renamed (gs://).
Each checkpoint holds the run id, the step and a checksum of each leaf, because
orbax would load the state of another run, or a changed byte, without an error.
What people read is in isojax.ledger.records.
"""

import contextlib
import os
import re

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from isojax.distributed import hosts
from isojax.errors import InputError
from isojax.ledger import object_store
from isojax.ledger import step_folders
from isojax.types import TrainState


@contextlib.contextmanager
def open_manager(store: str, *, keep: int):
  """Opens a manager of the newest `keep` steps; waits for saves at the end.

  Raises:
    InputError: at the end, if the disk refused, unless there is another error.
  """
  with object_store.asking(store):
    if hosts.first():
      step_folders.delete_incomplete(store)
    manager = ocp.CheckpointManager(
        _absolute(store), options=ocp.CheckpointManagerOptions(max_to_keep=keep))
  try:
    yield manager
    finish(manager)
  except BaseException:
    with contextlib.suppress(Exception):  # it says the same, or less
      manager.close()
    raise
  with object_store.asking(store):
    manager.close()


def _absolute(store: str) -> str:
  return store if object_store.remote(store) else os.path.abspath(store)


@jax.jit
def _checksums(leaves):
  """Returns a uint32 of each leaf's bits; the same for any sharding."""
  def checksum(x):
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    odd = jnp.ones(x.shape, jnp.uint32)  # an odd weight by position
    for axis in range(x.ndim):
      index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
      odd = odd * jnp.uint32(2654435761) + 2 * index
    return jnp.sum(bits.astype(jnp.uint32) * odd, dtype=jnp.uint32)
  return [checksum(x) for x in leaves]


def _named_checksums(state: TrainState) -> dict:
  paths, leaves = zip(*jax.tree.leaves_with_path(state))
  return {jax.tree_util.keystr(path): int(value) for path, value in zip(
      paths, jax.device_get(_checksums(list(leaves))), strict=True)}


def save(manager: ocp.CheckpointManager, step: int, state: TrainState,
         run_id: str) -> None:
  """Starts to save a state; an error of the save before is raised here.

  Raises:
    InputError: the disk refused (full, say).
    RuntimeError: orbax declined, which would otherwise lose the step.
  """
  with _disk(manager):
    accepted = manager.save(step, args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        meta=ocp.args.JsonSave({"run_id": run_id, "step": step,
                                "checksum": _named_checksums(state)})))
  if not accepted:
    raise RuntimeError(f"step {step} was not saved: {manager.directory} holds "
                       f"steps {manager.all_steps()}")


def finish(manager: ocp.CheckpointManager) -> None:
  """Waits for the save under way; InputError if the disk refused it."""
  with _disk(manager):
    manager.wait_until_finished()


@contextlib.contextmanager
def _disk(manager: ocp.CheckpointManager):
  """Turns errors of a full disk, or of a bucket, into an InputError."""
  store = str(manager.directory)
  try:
    with object_store.asking(store):
      yield
  except (OSError, ValueError) as error:
    # tensorstore reports a full disk as a ValueError that names the reason.
    told = re.search(r"([^:\"]+) \[os_error_code=", str(error))
    if object_store.remote(store) or isinstance(error, ValueError) and not told:
      raise
    steps = step_folders.steps(store)
    last = f"step {max(steps)} is safe" if steps else "none is there yet"
    raise InputError(
        f"{manager.directory}: a checkpoint could not be written "
        f"({told[1].strip() if told else error}); {last}: make room, then run "
        "the same command again") from error


def _not_logged_twice(record) -> bool:
  """Drops the errors that orbax logs with a traceback before it raises them."""
  return not (record.exc_info and "orbax" in record.pathname)


logging.get_absl_logger().addFilter(_not_logged_twice)


def _leaves(tree) -> dict:
  """Returns (shape, dtype) of each leaf by name; empty containers have none."""
  return {jax.tree_util.keystr(path, simple=True, separator="."):
          (tuple(x.shape), jnp.dtype(x.dtype).name)
          for path, x in jax.tree.leaves_with_path(tree)}


def _check_fits(folder: str, found: dict, wanted: dict) -> None:
  """Another model or optimizer is not damage; orbax would cast dtypes silently.

  Raises:
    InputError: names the first leaf that differs, and how many do.
  """
  differ = sorted(name for name in found.keys() | wanted.keys()
                  if name not in found or name not in wanted
                  or found[name] != wanted[name])
  if not differ:
    return
  name = differ[0]
  say = lambda leaves: (f"{leaves[name][1]}{list(leaves[name][0])}"
                        if name in leaves else "absent")
  raise InputError(
      f"{folder}: of another model or optimizer: {name} is {say(found)} in "
      f"the checkpoint, {say(wanted)} in this run ({len(differ)} leaves "
      "differ); nothing was changed: give the model of that run, or choose "
      "another --workdir")


def _read(store: str, step: int, wanted: TrainState, run_id: str) -> tuple:
  """Returns the parts of a saved state that `wanted` has, and their checksums.

  `wanted` has None for the other parts. Each process reads by itself, without
  the manager, which would wait for processes that may have found damage.

  Raises:
    InputError: the state is of another run, step, model or optimizer.
    ValueError, and all kinds of orbax: damaged.
  """
  parts = vars(wanted)
  item = {name: part for name, part in parts.items() if part is not None}
  folder = epath.Path(_absolute(store), str(step))
  meta = step_folders.meta(folder)
  step_folders.check_owner(folder, meta, run_id)
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    tree = handler.metadata(folder / "state").tree
    _check_fits(str(folder),
                _leaves({name: part for name, part in tree.items()
                         if name in item or name not in parts}),
                _leaves(item))
    restored = handler.restore(folder / "state", args=ocp.args.PyTreeRestore(
        item=item, partial_restore=True,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item)))
  return TrainState(**dict.fromkeys(parts) | restored), meta["checksum"]


# What says nothing against the file: another model, or trouble of this process.
NO_DAMAGE = (InputError, MemoryError, jax.errors.JaxRuntimeError)


def _read_again(*arguments) -> tuple:
  """Returns what `_read` does; tries twice, as the network may have failed."""
  with object_store.asking(arguments[0]):
    try:
      return _read(*arguments)
    except NO_DAMAGE:
      raise
    except Exception:  # of many kinds
      return _read(*arguments)


class _DamagedError(Exception):
  """What is wrong with a checkpoint; raised on all processes at once."""


def _agree(wrong: str | None) -> None:
  """_DamagedError, if any process has found something wrong."""
  said = [each for each in hosts.gather(wrong) if each]
  if said:
    raise _DamagedError(said[0])


def _restore(store: str, step: int, wanted: TrainState,
             run_id: str) -> TrainState:
  """Returns the state of `_read` if it is sound; all processes must call.

  Raises:
    InputError: as `_read`, or this host may not read it.
    _DamagedError: it is damaged, as one of the processes sees it.
  """
  wrong = None
  try:
    state, saved = _read_again(store, step, wanted, run_id)
  except NO_DAMAGE:
    raise
  except Exception as error:
    # orbax, tensorstore and json raise all kinds for a damaged file
    if isinstance(error, OSError) and not isinstance(
        error, (FileNotFoundError, NotADirectoryError)):
      raise InputError(
          f"{os.path.join(store, str(step))}: could not be read ({error}); "
          "make it readable and run the same command again, or move it away to "
          "go on from the one before") from error
    wrong = f"{hosts.name()}: {repr(error)[:200]}"
  _agree(wrong)
  found = _named_checksums(state)
  differ = [key for key in found if key not in saved
            or found[key] != saved[key]]
  _agree(f"{hosts.name()}: checksum of {differ[0]} differs" if differ else None)
  return state


def restore_newest(store: str, abstract: TrainState, run_id: str):
  """Returns (step, state) of the newest sound checkpoint, None if there is none.

  Damaged ones are named, moved beside the store and passed over, also those
  that only one of the processes finds damaged. So are older ones without
  readable meta, which the manager would delete later.

  Args:
    store: the folder of `open_manager`.
    abstract: shapes, dtypes and shardings wanted, on any mesh.
    run_id: of the run that saved it.

  Raises:
    InputError: none of them could be read, or the newest readable one is of
      another run or model; nothing was moved.
  """
  damaged, found = {}, step_folders.steps(store)
  for step in reversed(found):
    try:
      state = _restore(store, step, abstract, run_id)
    except _DamagedError as error:
      damaged[step] = str(error)
      continue
    if hosts.first():
      damaged |= step_folders.unreadable(
          store, [older for older in found if older < step])
      for worse, reason in damaged.items():
        aside = step_folders.set_aside(store, worse)
        logging.warning(
            "the checkpoint of step %d is damaged (%s): moved to %s; the newest "
            "sound one is of step %d", worse, reason, aside, step)
    return step, state
  if damaged:
    raise InputError(
        f"{store}: no checkpoint could be read ({damaged}); restore one from a "
        "copy, or start again in another --workdir")
  return None


def restore_params(store: str, step: int | None, abstract, run_id: str):
  """Returns (step, what was trained) alone, a third of the state of AdamW.

  Args:
    store: the folder of `open_manager`.
    step: which one; None: the newest.
    abstract: shapes, dtypes and shardings wanted of TrainState.params.
    run_id: of the run that saved it.

  Raises:
    InputError: no such step, of another run or model, or damaged.
  """
  found = step_folders.steps(store)
  if not found:
    raise InputError(
        f"{store}: holds no checkpoint: this run has no checkpoint yet; give "
        "the workdir of one that has saved one")
  if step is not None and step not in found:
    raise InputError(f"{store}: no checkpoint of step {step}; there are "
                     f"{', '.join(map(str, found))}")
  step = found[-1] if step is None else step
  try:
    return step, _restore(
        store, step, TrainState(None, abstract, None), run_id).params
  except _DamagedError as error:
    raise InputError(f"{os.path.join(store, str(step))}: damaged ({error}); "
                     "move this folder away to use the checkpoint before it"
                     ) from error
