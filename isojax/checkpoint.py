"""Sharded train states on disk, through orbax: asynchronous and atomic.

A step is there whole or not at all: orbax writes beside and renames, or marks
what is whole where nothing can be renamed (gs://). Each leaf carries a
checksum, because a flipped byte in a compressed chunk would otherwise load in
silence.
"""

import contextlib
import os

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from isojax import hosts
from isojax import storage
from isojax.errors import InputError
from isojax.errors import OutOfReachError
from isojax.types import TrainState


@contextlib.contextmanager
def open_manager(store: str, *, keep: int):
  """A manager of the newest `keep` steps; at the end what is saving is done.

  Raises:
    InputError: at the end, if the disk refused; but not over another error.
  """
  manager = ocp.CheckpointManager(
      _absolute(store), options=ocp.CheckpointManagerOptions(
          max_to_keep=keep, cleanup_tmp_directories=True))
  try:
    yield manager
    finish(manager)
  finally:
    with contextlib.suppress(OSError, ValueError):  # `finish` has said it
      manager.close()


def _absolute(store: str) -> str:
  return store if storage.remote(store) else os.path.abspath(store)


@jax.jit
def _checksums(leaves):
  """Of each leaf's bits, on device and in place: uint32, for any sharding."""
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


def save(manager: ocp.CheckpointManager, step: int, state: TrainState) -> None:
  """Starts saving; an error of the save before is raised here.

  Raises:
    InputError: the disk refused (full, say).
    RuntimeError: orbax declined, which would otherwise lose the step.
  """
  with _disk(manager):
    accepted = manager.save(step, args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        meta=ocp.args.JsonSave({"checksum": _named_checksums(state)})))
  if not accepted:
    raise RuntimeError(f"step {step} was not saved: {manager.directory} holds "
                       f"steps {manager.all_steps()}")


def finish(manager: ocp.CheckpointManager) -> None:
  """Waits for the save under way; InputError if the disk refused it."""
  with _disk(manager):
    manager.wait_until_finished()


@contextlib.contextmanager
def _disk(manager: ocp.CheckpointManager):
  """What a refusing disk, or bucket, means for the run."""
  try:
    yield
  except Exception as error:  # pylint: disable=broad-except
    if storage.remote(str(manager.directory)):  # orbax raises all kinds
      raise OutOfReachError(
          f"{manager.directory}: a checkpoint could not be written "
          f"({repr(error)[:200]}); the one before is safe: run the same "
          "command again when the bucket can be written") from error
    # tensorstore reports a full disk as a ValueError that names the reason.
    if not isinstance(error, OSError) and not (
        isinstance(error, ValueError) and "os_error_code" in str(error)):
      raise
    manager.reload()
    steps = manager.all_steps()
    last = f"step {max(steps)} is safe" if steps else "none is there yet"
    raise InputError(
        f"{manager.directory}: a checkpoint could not be written "
        f"({repr(error)[-120:]}); {last}: make room, then run the same command "
        "again") from error


def _leaves(tree) -> dict:
  """Name to (shape, dtype) of each leaf; empty containers have none."""
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
      f"{folder}: of another model or optimizer: {name} is {say(found)} there, "
      f"{say(wanted)} here ({len(differ)} leaves differ); nothing was changed: "
      "give the model of that run, or choose another --workdir")


def steps(store: str) -> list[int]:
  """The steps that were saved, in order; none where there is no folder.

  As process 0 finds them, on all.
  """
  if not hosts.gather(epath.Path(store).is_dir())[0]:
    return []
  with ocp.CheckpointManager(
      _absolute(store),
      options=ocp.CheckpointManagerOptions(create=False)) as manager:
    return hosts.gather(sorted(manager.all_steps()))[0]


def _restore(store: str, step: int, wanted: TrainState) -> TrainState:
  """The parts of a saved state that `wanted` has; it has None for others.

  Raises:
    InputError: of another model or optimizer.
    ValueError, and all kinds of orbax: damaged.
  """
  parts = vars(wanted)
  item = {name: part for name, part in parts.items() if part is not None}
  with ocp.CheckpointManager(_absolute(store), item_handlers={
      "state": ocp.PyTreeCheckpointHandler(),
      "meta": ocp.JsonCheckpointHandler()}) as manager:
    tree = manager.item_metadata(step).state.tree
    _check_fits(os.path.join(store, str(step)),
                _leaves({name: part for name, part in tree.items()
                         if name in item or name not in parts}),
                _leaves(item))
    restored = manager.restore(step, args=ocp.args.Composite(
        state=ocp.args.PyTreeRestore(
            item=item, partial_restore=True,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item)),
        meta=ocp.args.JsonRestore()))
  state = TrainState(**dict.fromkeys(parts) | restored.state)
  found, saved = _named_checksums(state), restored.meta["checksum"]
  wrong = [key for key in found if found[key] != saved[key]]
  if wrong:
    raise ValueError(f"checksum of {wrong[0]} differs")
  return state


# Of another model, or no fault of the file.
NO_DAMAGE = (InputError, MemoryError, jax.errors.JaxRuntimeError)


def _sound(store: str, step: int, wanted: TrainState) -> TrainState:
  """The same; from a bucket once again, if it may have been the network."""
  try:
    return _restore(store, step, wanted)
  except NO_DAMAGE:
    raise
  except Exception:  # pylint: disable=broad-except  # of many kinds
    if not storage.remote(store):
      raise
  return _restore(store, step, wanted)


def restore_newest(store: str, abstract: TrainState):
  """(step, state) of the newest sound checkpoint, or None if there is none.

  Damaged ones are named, moved beside the store and passed over.

  Args:
    store: the folder of `open_manager`.
    abstract: shapes, dtypes and shardings wanted, on any mesh.

  Raises:
    InputError: none of them could be read, or the newest readable one is of
      another model; nothing was moved.
  """
  damaged = {}
  for step in reversed(steps(store)):
    try:
      state = _sound(store, step, abstract)
    except NO_DAMAGE:
      raise
    except Exception as error:  # pylint: disable=broad-except
      # orbax, tensorstore and json raise all kinds for a damaged file
      damaged[step] = repr(error)[:200]
      continue
    for worse, reason in damaged.items():
      aside = f"{store.rstrip('/')}-damaged-{worse}"
      while epath.Path(aside).exists():
        aside += "+"
      if hosts.first():
        epath.Path(store, str(worse)).rename(aside)
      logging.warning(
          "the checkpoint of step %d is damaged (%s): moved to %s, going on "
          "from step %d", worse, reason, aside, step)
    return step, state
  if damaged:
    raise InputError(
        f"{store}: no checkpoint could be read ({damaged}); restore one from a "
        "copy, or start again in another --workdir")
  return None


def restore_params(store: str, step: int | None, abstract):
  """(step, what was trained) alone: a third of the state of AdamW.

  Args:
    store: the folder of `open_manager`.
    step: which one; None: the newest.
    abstract: shapes, dtypes and shardings wanted of TrainState.params.

  Raises:
    InputError: no such step, of another model, or damaged.
  """
  found = steps(store)
  if not found:
    raise InputError(f"{store}: holds no checkpoint; give the workdir of a run "
                     "that has saved one")
  if step is not None and step not in found:
    raise InputError(f"{store}: no checkpoint of step {step}; there are "
                     f"{', '.join(map(str, found))}")
  step = found[-1] if step is None else step
  try:
    return step, _sound(store, step, TrainState(None, abstract, None)).params
  except NO_DAMAGE:
    raise
  except Exception as error:  # pylint: disable=broad-except  # of many kinds
    raise InputError(f"{os.path.join(store, str(step))}: damaged "
                     f"({repr(error)[:200]}); give another --step") from error
