"""Saves and restores sharded train states with orbax, asynchronous and atomic.

A step folder is complete or absent: orbax writes a temporary folder and renames
it. In a bucket (gs://), which cannot rename, it marks the folder as complete.
Each checkpoint contains the run id, the step and a checksum of each leaf: orbax
would load the state of another run, or a changed byte, without an error.
A run with in-flight updates adds the bytes of its rollouts in flight ("host").
The metrics of a run are in isojax.ledger.records.
"""

import contextlib
import os
import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
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
  """Yields a manager of the newest `keep` steps; waits for saves at the end.

  Raises:
    InputError: at the end, if a write failed and no other error is raised.
  """
  with object_store.asking(store):
    if hosts.first():
      step_folders.delete_incomplete(store)
    manager = ocp.CheckpointManager(
        _absolute(store),
        options=ocp.CheckpointManagerOptions(max_to_keep=keep))
  try:
    yield manager
    finish(manager)
  except BaseException:
    with contextlib.suppress(Exception):  # keeps the first error
      manager.close()
    raise
  with object_store.asking(store):
    manager.close()


def _absolute(store: str) -> str:
  return store if object_store.remote(store) else os.path.abspath(store)


@jax.jit
def _checksums(leaves):
  """Returns a uint32 checksum of each leaf's bits, equal for any sharding."""
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
         run_id: str, host: np.ndarray | None = None) -> None:
  """Starts to save a state; raises errors of the previous save.

  Args:
    manager: of `open_manager`.
    step: of the state.
    state: sharded.
    run_id: of the run.
    host: uint8 [N], saved beside the state, equal on all processes; or None.

  Raises:
    InputError: a write failed, for example on a full disk.
    RuntimeError: orbax skipped the step, which would be lost.
  """
  meta = {"run_id": run_id, "step": step, "checksum": _named_checksums(state)}
  further = {}
  if host is not None:
    meta["host"] = zlib.crc32(host)
    further["host"] = ocp.args.StandardSave({"bytes": host})
  with _disk(manager):
    accepted = manager.save(step, args=ocp.args.Composite(
        state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta),
        **further))
  if not accepted:
    raise RuntimeError(f"step {step} was not saved: {manager.directory} holds "
                       f"steps {manager.all_steps()}")


def finish(manager: ocp.CheckpointManager) -> None:
  """Waits for the current save; raises InputError if a write failed."""
  with _disk(manager):
    manager.wait_until_finished()


@contextlib.contextmanager
def _disk(manager: ocp.CheckpointManager):
  """Converts errors of a full disk or of a bucket into an InputError."""
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
    last = f"step {max(steps)} is saved" if steps else "no step is saved yet"
    raise InputError(
        f"{manager.directory}: a checkpoint could not be written "
        f"({told[1].strip() if told else error}); {last}: free disk space, "
        "then run the same command again") from error


def _not_logged_twice(record) -> bool:
  """Returns False for errors that orbax logs before it raises them."""
  return not (record.exc_info and "orbax" in record.pathname)


logging.get_absl_logger().addFilter(_not_logged_twice)


def _leaves(tree) -> dict:
  """Returns (shape, dtype) of each leaf by name; empty containers have none."""
  return {jax.tree_util.keystr(path, simple=True, separator="."):
          (tuple(x.shape), jnp.dtype(x.dtype).name)
          for path, x in jax.tree.leaves_with_path(tree)}


def _check_fits(folder: str, found: dict, wanted: dict) -> None:
  """Checks names, shapes and dtypes of leaves; orbax would cast silently.

  Raises:
    InputError: the checkpoint is of another model or optimizer.
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
      f"{folder}: saved with another model or optimizer: {name} is "
      f"{say(found)} in the checkpoint, {say(wanted)} in this run "
      f"({len(differ)} leaves differ); nothing was changed: give the model of "
      "that run, or choose another --workdir")


def _read(store: str, step: int, wanted: TrainState, run_id: str) -> tuple:
  """Returns the parts of a saved state that `wanted` has, and their checksums.

  `wanted` has None for the other parts. Each process reads without the manager,
  which would wait for processes that may have failed.

  Raises:
    InputError: the state is of another run, step, model or optimizer.
    ValueError, and errors of orbax: the checkpoint is damaged.
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
  host_bytes(store, step)  # raises if it is damaged
  return TrainState(**dict.fromkeys(parts) | restored), meta["checksum"]


def host_bytes(store: str, step: int) -> np.ndarray | None:
  """Returns the `host` of `save`; None if there was none.

  Raises:
    ValueError, and errors of orbax: it is damaged.
  """
  folder = epath.Path(_absolute(store), str(step))
  with (object_store.asking(store),
        contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler):
    meta = step_folders.meta(folder)
    if "host" not in meta:
      return None
    restored = handler.restore(folder / "host", args=ocp.args.PyTreeRestore(
        restore_args={"bytes": ocp.RestoreArgs(restore_type=np.ndarray)}))
  if zlib.crc32(restored["bytes"]) != meta["host"]:
    raise ValueError("checksum of host differs")
  return restored["bytes"]


# Errors that do not mean a damaged file: another model, or a failing process.
NO_DAMAGE = (InputError, MemoryError, jax.errors.JaxRuntimeError)


def _read_again(*arguments) -> tuple:
  """Calls `_read`, a second time if it fails: the network may have failed."""
  with object_store.asking(arguments[0]):
    try:
      return _read(*arguments)
    except NO_DAMAGE:
      raise
    except Exception:  # errors have many types
      return _read(*arguments)


class _DamagedError(Exception):
  """A checkpoint is damaged; raised on all processes at once."""


def _agree(wrong: str | None) -> None:
  """Raises _DamagedError if any process has found an error."""
  said = [each for each in hosts.gather(wrong) if each]
  if said:
    raise _DamagedError(said[0])


def _restore(store: str, step: int, wanted: TrainState,
             run_id: str) -> TrainState:
  """Returns the state of `_read` if it is intact; all processes must call.

  Raises:
    InputError: as `_read`, or this host has no permission to read it.
    _DamagedError: at least one process found it damaged.
  """
  wrong = None
  try:
    state, saved = _read_again(store, step, wanted, run_id)
  except NO_DAMAGE:
    raise
  except Exception as error:
    # orbax, tensorstore and json raise many types for a damaged file.
    if isinstance(error, OSError) and not isinstance(
        error, (FileNotFoundError, NotADirectoryError)):
      raise InputError(
          f"{os.path.join(store, str(step))}: could not be read ({error}); "
          "make it readable and run the same command again, or move it away to "
          "resume from the previous checkpoint") from error
    wrong = f"{hosts.name()}: {repr(error)[:200]}"
  _agree(wrong)
  found = _named_checksums(state)
  differ = [key for key in found if key not in saved
            or found[key] != saved[key]]
  _agree(f"{hosts.name()}: checksum of {differ[0]} differs" if differ else None)
  return state


def restore_newest(store: str, abstract: TrainState, run_id: str):
  """Returns (step, state) of the newest intact checkpoint; None without any.

  A checkpoint that any process finds damaged is logged and moved beside the
  store. So are older checkpoints without readable meta, which the manager would
  delete later.

  Args:
    store: the folder of `open_manager`.
    abstract: shapes, dtypes and shardings of the result, on any mesh.
    run_id: of the run that saved it.

  Raises:
    InputError: no checkpoint could be read, or the newest readable one is of
      another run or model. Then no checkpoint was moved.
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
            "the checkpoint of step %d is damaged (%s): moved to %s; the "
            "newest intact one is of step %d", worse, reason, aside, step)
    return step, state
  if damaged:
    raise InputError(
        f"{store}: no checkpoint could be read ({damaged}); restore one from a "
        "copy, or start again in another --workdir")
  return None


def restore_params(store: str, step: int | None, abstract, run_id: str):
  """Returns (step, params) without reading the optimizer state.

  Args:
    store: the folder of `open_manager`.
    step: the step to read; None: the newest.
    abstract: shapes, dtypes and shardings of TrainState.params.
    run_id: of the run that saved it.

  Raises:
    InputError: the step is absent, of another run or model, or damaged.
  """
  found = step_folders.steps(store)
  if not found:
    raise InputError(
        f"{store}: holds no checkpoint: this run has no checkpoint yet; give "
        "the workdir of a run that has saved one")
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
