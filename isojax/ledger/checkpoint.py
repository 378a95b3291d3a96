"""Saves and restores sharded train states with orbax, asynchronous and atomic.

A step folder is complete or absent: orbax writes a temporary folder and renames
it, or in a bucket marks it as complete. Each checkpoint has the run id, the
step and a checksum of each leaf: orbax would load the state of another run, or
a changed byte, without an error. A run with in-flight updates adds the bytes of
its rollouts in flight.
"""

from collections.abc import Callable
import contextlib
import functools
import json
import os
import re
import sys
import time
import typing
import zlib

from absl import logging
from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from isojax.errors import InputError
from isojax.ledger import bucket
from isojax.runtime import hosts
from isojax.types import TrainState

_STEP = re.compile(r"0|[1-9][0-9]*")
_SAVING = re.compile(r"[0-9]+\.orbax-checkpoint-tmp(-[0-9]+)?")
# Names in the folder of a step; not every folder has all of them.
_COMMITTED = "commit_success.txt"  # orbax marks a complete step in a bucket
_ITEMS = {"state", "meta", "in_flight", "_CHECKPOINT_METADATA", _COMMITTED}
# Errors that `_meta` raises for a damaged checkpoint.
UNREADABLE = (ValueError, KeyError, RecursionError, FileNotFoundError,
              NotADirectoryError)
# To wait in a bucket, where an earlier process of this run may still delete its
# old steps, or save one.
SETTLE_SECONDS = 2.0


class Restored(typing.NamedTuple):
  step: int
  state: TrainState
  in_flight: np.ndarray | None  # as given to `save`


def _incomplete(path: epath.Path) -> bool:
  """Whether a folder was left incomplete by a killed save."""
  if bucket.remote(path):  # orbax writes this file last
    return bool(_STEP.fullmatch(path.name)) and not (
        path / _COMMITTED).exists()
  return bool(_SAVING.fullmatch(path.name)) and path.is_dir()


def steps_here(store: str) -> list[int]:
  """The saved steps in order, as this process sees them."""
  with bucket.convert_errors(store):
    paths = epath.Path(store).iterdir() if epath.Path(store).is_dir() else ()
    return sorted(int(path.name) for path in paths
                  if _STEP.fullmatch(path.name) and not _incomplete(path))


def steps(store: str) -> list[int]:
  """The saved steps in order, on all processes as process 0 sees them."""
  return hosts.gather(steps_here(store) if hosts.first() else [])[0]


def delete_steps(store: str, unwanted: Callable[[int], bool]) -> None:
  """Deletes the saved steps for which `unwanted` is true.

  A manager that is open does not notice, and would not save them again.
  """
  with bucket.convert_errors(store):
    for step in filter(unwanted, steps_here(store)):
      _remove(epath.Path(store, str(step)))


def copy_step(source: str, target: str, step: int, run_id: str) -> None:
  """Copies a saved step to another store, as one of a run of this id.

  A step is complete or absent, as after `save`. Nothing is done if it is there.
  """
  with bucket.convert_errors(target):
    if step in steps_here(target):
      return
    folder = epath.Path(target, str(step) if bucket.remote(target)
                        else f"{step}.orbax-checkpoint-tmp")
    if folder.exists():
      _remove(folder)
    root = epath.Path(source, str(step))
    _copy_tree(root, folder)
    (folder / "meta" / "metadata").write_text(
        json.dumps(_meta(root) | {"run_id": run_id}))
    if (root / _COMMITTED).exists():  # of a bucket: the last file
      (root / _COMMITTED).copy(folder / _COMMITTED)
    if not bucket.remote(target):
      folder.rename(epath.Path(target, str(step)))


def _copy_tree(source: epath.Path, target: epath.Path) -> None:
  """Copies a folder, but not the mark of a complete step."""
  target.mkdir(parents=True)
  for path in source.iterdir():
    if path.is_dir():
      _copy_tree(path, target / path.name)
    elif path.name != _COMMITTED:
      path.copy(target / path.name)
      if not bucket.remote(target):
        with open(target / path.name, "rb") as file:
          os.fsync(file.fileno())  # before the rename that completes the step


def _remove(folder: epath.Path) -> None:
  """Deletes a folder that another process may be deleting, too."""
  with contextlib.suppress(FileNotFoundError):
    folder.rmtree()


def _meta(folder: epath.Path) -> dict:
  """Run id, step and checksums of a checkpoint; raises UNREADABLE."""
  orbax_metadata = folder / "_CHECKPOINT_METADATA"
  if orbax_metadata.exists():  # the manager reads this file of every step
    json.loads(orbax_metadata.read_text())
  meta = json.loads((folder / "meta" / "metadata").read_text())
  if not isinstance(meta, dict) or not isinstance(meta["checksum"], dict):
    raise _ContentError("its meta is not that of a checkpoint")
  return meta


class _ContentError(ValueError):
  """A checkpoint holds something else than what was saved."""


def fault(error: Exception) -> str:
  """What is wrong with a checkpoint, of which orbax and json raise many types.
  """
  if isinstance(error, _ContentError):
    return str(error)
  if isinstance(error, (FileNotFoundError, NotADirectoryError)):
    return "a file is missing"
  return "a file is cut or changed"


def _clear(store: str, reached: list[int], beyond: list[int],
           damaged: dict[int, str], keep: int, restored: int | None) -> None:
  """Moves or deletes steps that a manager must not find, after a restore.

  Steps that the records do not reach (`beyond`) and steps that cannot be read
  are moved to a folder beside the store, because the manager would refuse to
  save them again, or delete them. An incomplete step that is older than `keep`
  others was being deleted when the run was killed; its deletion is completed.
  """
  for step in beyond:
    logging.warning("%s: the records do not reach the checkpoint of step %d: "
                    "moved to %s", store, step, _set_aside(store, step))
  for i, step in enumerate(reversed(reached)):
    folder, reason = epath.Path(store, str(step)), damaged.get(step)
    if reason is None:
      try:
        _meta(folder)
        continue
      except UNREADABLE as error:
        reason = fault(error)
    if bucket.remote(store):
      time.sleep(SETTLE_SECONDS)
      if not folder.is_dir():
        continue  # another process has deleted it
    if i >= keep and step not in damaged and folder.is_dir() and (
        {path.name for path in folder.iterdir()} <= _ITEMS):
      _remove(folder)
    else:
      logging.warning(
          "%s: the checkpoint of step %d is damaged (%s): moved to %s; the run "
          "resumes from step %d", store, step, reason, _set_aside(store, step),
          restored)


def _set_aside(store: str, step: int) -> str:
  target = f"{store.rstrip('/')}-damaged-{step}"
  while epath.Path(target).exists():
    target += "+"
  epath.Path(store, str(step)).rename(target)
  return target


@contextlib.contextmanager
def open_manager(store: str, *, keep: int | None):
  """Yields a manager of the newest `keep` steps; waits for saves at the end.

  None keeps all steps.
  """
  quiet_orbax()
  with bucket.convert_errors(store):
    if hosts.first() and epath.Path(store).is_dir():
      for path in epath.Path(store).iterdir():
        if _incomplete(path):  # orbax's own cleanup deletes other folders, too
          _remove(path)
    manager = ocp.CheckpointManager(
        _absolute(store),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            # Stores that save the same step at once must not share barriers.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=os.path.basename(store))))
  try:
    yield manager
    wait(manager)
    if hosts.first() and bucket.remote(store):
      # Steps before ours that an earlier process of the run saved late.
      ours = set(manager.all_steps())
      delete_steps(store, lambda step: step not in ours
                   and step < max(ours, default=0))
  except BaseException:
    with contextlib.suppress(Exception):  # keeps the first error
      manager.close()
    raise
  with bucket.convert_errors(store):
    manager.close()


def drop_surpassed(manager: ocp.CheckpointManager, reach: int) -> None:
  """Deletes all steps but the newest one, and the newest one up to `reach`."""
  saved = manager.all_steps()
  needed = {max(saved),
            max((step for step in saved if step <= reach), default=None)}
  with _convert_write_errors(manager):
    for step in saved:
      if step not in needed:
        manager.delete(step)


def _absolute(store: str) -> str:
  return store if bucket.remote(store) else os.path.abspath(store)


@jax.jit  # a program for each shape, not one of all leaves: compiled sooner
def _checksum(x):
  """A uint32 checksum of a leaf's bits, equal for any sharding."""
  bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
  # A factor by position; as it is odd, a change of one value changes the sum.
  # The constant is about 2**32 / golden ratio, as in Knuth's hash.
  odd = jnp.ones(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    odd = odd * jnp.uint32(2654435761) + 2 * index
  return jnp.sum(bits.astype(jnp.uint32) * odd, dtype=jnp.uint32)


def _named_checksums(state: TrainState) -> dict:
  paths, leaves = zip(*jax.tree.leaves_with_path(state), strict=True)
  sums = jax.device_get([_checksum(leaf) for leaf in leaves])
  return {jax.tree_util.keystr(path): int(value)
          for path, value in zip(paths, sums, strict=True)}


def save(manager: ocp.CheckpointManager, step: int, state: TrainState,
         run_id: str, in_flight: np.ndarray | None = None) -> None:
  """Starts to save a state; raises errors of the previous save.

  `in_flight` are the bytes of the rollouts in flight, uint8, equal on all
  processes. InputError: a write failed; RuntimeError: orbax skipped the
  step, which would be lost.
  """
  meta = {"run_id": run_id, "step": step, "checksum": _named_checksums(state)}
  items = {"state": ocp.args.StandardSave(state)}
  if in_flight is not None:
    meta["in_flight"] = zlib.crc32(in_flight)
    items["in_flight"] = ocp.args.StandardSave({"bytes": in_flight})
  args = ocp.args.Composite(meta=ocp.args.JsonSave(meta), **items)
  with _convert_write_errors(manager):
    accepted = manager.save(step, args=args)
    if not accepted and bucket.remote(manager.directory):
      for late in manager.all_steps():  # saved by an earlier process of the run
        if late >= step:
          manager.delete(late)
      accepted = manager.save(step, args=args)
  if not accepted:
    raise RuntimeError(f"step {step} was not saved: {manager.directory} holds "
                       f"steps {manager.all_steps()}")


def wait(manager: ocp.CheckpointManager) -> None:
  """Waits for the current save; raises InputError if a write failed."""
  with _convert_write_errors(manager):
    manager.wait_until_finished()


@contextlib.contextmanager
def _convert_write_errors(manager: ocp.CheckpointManager):
  """Converts errors of a full disk or of a bucket into an InputError."""
  store = str(manager.directory)
  try:
    with bucket.convert_errors(store):
      yield
  except (OSError, ValueError) as error:
    # tensorstore raises a ValueError that has the code of the system's error.
    code = re.search(r"\bos_error_code='(\d+)'", str(error))
    if bucket.remote(store) or (isinstance(error, ValueError) and not code):
      raise
    saved = steps_here(store)
    last = f"step {max(saved)} is saved" if saved else "no step is saved yet"
    raise InputError(
        f"{store}: a checkpoint could not be written "
        f"({os.strerror(int(code[1])) if code else error}); {last}: free disk "
        "space or restore write access, then run the same command again"
        ) from error


@functools.cache
def quiet_orbax() -> None:
  """Suppresses what orbax prints about errors that it also raises."""
  logging.get_absl_logger().addFilter(
      lambda record: not (record.exc_info and "orbax" in record.pathname))
  report = sys.unraisablehook

  # orbax closes its event loop at the first array that fails. A thread of
  # tensorstore that ends later finds the loop closed, an error of no interest.
  def report_unless_late(unraisable) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
      report(unraisable)

  sys.unraisablehook = report_unless_late


def _leaves(tree) -> dict[str, str]:
  """Name -> dtype[shape] of each leaf; empty containers have no leaf."""
  return {jax.tree_util.keystr(path, simple=True, separator="."):
          f"{jnp.dtype(x.dtype).name}{list(x.shape)}"
          for path, x in jax.tree.leaves_with_path(tree)}


def _check_fits(folder: str, saved: dict, wanted: dict) -> None:
  """InputError for another model or optimizer; orbax would cast its leaves."""
  if differ := sorted({name for name, _ in saved.items() ^ wanted.items()}):
    ours, theirs = (leaves[differ[0]] if differ[0] in leaves else "absent"
                    for leaves in (wanted, saved))
    raise InputError(
        f"{folder}: saved with another model or optimizer: {differ[0]} is "
        f"{theirs} in the checkpoint, {ours} in this run ({len(differ)} leaves "
        "differ); nothing was changed: give the model of that run, or choose "
        "another --workdir")


def _read(store: str, step: int, wanted: TrainState, run_id: str,
          with_in_flight: bool) -> tuple[Restored, dict]:
  """Reads the parts of a saved state that `wanted` has, and all checksums.

  `wanted` has None for the other parts. Each process reads without the manager,
  which would wait for processes that may have failed.
  """
  quiet_orbax()
  parts = vars(wanted)
  item = {name: part for name, part in parts.items() if part is not None}
  folder = epath.Path(_absolute(store), str(step))
  meta = _meta(folder)
  if meta["run_id"] != run_id:
    raise InputError(
        f"{folder}: a checkpoint of run {meta['run_id']}, expected one of run "
        f"{run_id}; nothing was changed: restore the run's own checkpoint, or "
        "move this folder away to resume from the previous one")
  if meta["step"] != step:
    raise _ContentError(f"it holds step {meta['step']}")
  if with_in_flight and "in_flight" not in meta:
    raise _ContentError("it has no rollouts in flight")
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    tree = handler.metadata(folder / "state").tree
    # Without the saved parts of TrainState that are not wanted.
    _check_fits(str(folder),
                _leaves({name: part for name, part in tree.items()
                         if name in item or name not in parts}),
                _leaves(item))
    restored = handler.restore(folder / "state", args=ocp.args.PyTreeRestore(
        item=item, partial_restore=True,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item)))
    in_flight = None
    if with_in_flight:
      in_flight = handler.restore(
          folder / "in_flight", args=ocp.args.PyTreeRestore(restore_args={
              "bytes": ocp.RestoreArgs(restore_type=np.ndarray)}))["bytes"]
      if zlib.crc32(in_flight) != meta["in_flight"]:
        raise _ContentError("checksum of in_flight differs")
  state = TrainState(**dict.fromkeys(parts) | restored)
  return Restored(step, state, in_flight), meta["checksum"]


# Errors that do not mean a damaged file: another model, or a failing process.
NO_DAMAGE = (InputError, MemoryError, jax.errors.JaxRuntimeError)


class _DamagedError(Exception):
  """A checkpoint is damaged; raised on all processes at once."""


def _raise_everywhere(problem: str | None) -> None:
  """Raises _DamagedError on all processes if any of them has a problem."""
  if problems := list(filter(None, hosts.gather(problem))):
    raise _DamagedError(problems[0])


def _restore(store: str, step: int, wanted: TrainState, run_id: str,
             with_in_flight: bool) -> Restored:
  """As `_read`; _DamagedError on all processes if one of them finds damage."""
  problem = None
  try:
    restored, saved_sums = _read(store, step, wanted, run_id, with_in_flight)
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
    logging.info("%s: %r", store, error)
    problem = f"{fault(error)}, found by {hosts.name()}"
  _raise_everywhere(problem)
  sums = _named_checksums(restored.state)
  differ = [key for key in sums if key not in saved_sums
            or sums[key] != saved_sums[key]]
  _raise_everywhere(f"checksum of {differ[0]} differs, found by {hosts.name()}"
                    if differ else None)
  return restored


def restore_newest(store: str, abstract: TrainState, run_id: str, *,
                   reach: float, keep: int,
                   with_in_flight: bool) -> Restored | None:
  """The newest intact checkpoint that the records reach; None without any.

  A checkpoint that any process finds damaged, and one beyond the last recorded
  step, `reach`, is logged and moved beside the store. InputError, before any is
  moved: none could be read, or the newest is of another run or model.

  Args:
    abstract: shapes, dtypes and shardings of the result, on any mesh.
    keep: of `open_manager`.
    with_in_flight: whether the run saves its rollouts in flight.
  """
  saved, damaged, restored = steps(store), {}, None
  reached = [step for step in saved if step <= reach]
  for step in reversed(reached):
    try:
      restored = _restore(store, step, abstract, run_id, with_in_flight)
      break
    except _DamagedError as error:
      damaged[step] = str(error)
  if damaged and bucket.remote(store):
    time.sleep(SETTLE_SECONDS)
    if steps(store) != saved:  # an earlier process has deleted or saved steps
      return restore_newest(store, abstract, run_id, reach=reach, keep=keep,
                            with_in_flight=with_in_flight)
  if damaged and restored is None:
    raise InputError(
        f"{store}: no checkpoint could be read (" + "; ".join(
            f"step {step}: {reason}" for step, reason in damaged.items())
        + "); restore one from a copy, or start again in another --workdir")
  if hosts.first():
    with bucket.convert_errors(store):
      _clear(store, reached, saved[len(reached):], damaged, keep,
             restored and restored.step)
  return restored


def restore_params(store: str, step: int | None, abstract, run_id: str, *,
                   part: str):
  """(step, parameters) of a step, or of the newest, without the optimizer.

  `abstract` has shapes, dtypes and shardings of the `part` of TrainState that
  is restored: params or average.
  """
  saved = steps(store)
  if not saved:
    raise InputError(f"{store}: holds no checkpoint; give the workdir of a run "
                     "that has saved one")
  if step is not None and step not in saved:
    raise InputError(f"{store}: no checkpoint of step {step}; there are "
                     f"{', '.join(map(str, saved))}")
  step = saved[-1] if step is None else step
  try:
    wanted = TrainState(None, None, None).replace(**{part: abstract})
    return step, getattr(_restore(store, step, wanted, run_id,
                                  with_in_flight=False).state, part)
  except _DamagedError as error:
    raise InputError(f"{os.path.join(store, str(step))}: damaged ({error}); "
                     "move this folder away to use the checkpoint before it"
                     ) from error
