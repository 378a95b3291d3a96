"""Sharded train states on disk, through orbax: asynchronous and atomic.

A step is there whole or not at all: orbax writes beside and renames. Each leaf
carries a checksum, because a flipped byte in a compressed chunk would
otherwise load in silence.
"""

import os
import zlib

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from isojax.errors import InputError
from isojax.types import TrainState


def open_manager(store: str, *, keep: int) -> ocp.CheckpointManager:
  """A manager of the newest `keep` steps; close it to finish what is saving."""
  return ocp.CheckpointManager(
      os.path.abspath(store), options=ocp.CheckpointManagerOptions(
          max_to_keep=keep, cleanup_tmp_directories=True))


def _crc(x) -> int:
  return zlib.crc32(np.ascontiguousarray(x).tobytes())


def _checksums(state: TrainState) -> dict:
  """A checksum for each leaf that this process holds whole."""
  return {jax.tree_util.keystr(path): _crc(jax.device_get(x))
          for path, x in jax.tree.leaves_with_path(state)
          if x.is_fully_addressable}


def save(manager: ocp.CheckpointManager, step: int, state: TrainState) -> None:
  """Starts saving; an error of the save before is raised here.

  Raises:
    InputError: the disk refused (full, say).
    RuntimeError: orbax declined, which would otherwise lose the step.
  """
  with _disk(manager):
    accepted = manager.save(step, args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        meta=ocp.args.JsonSave({"crc32": _checksums(state)})))
  if not accepted:
    raise RuntimeError(f"step {step} was not saved: {manager.directory} holds "
                       f"steps {manager.all_steps()}")


def finish(manager: ocp.CheckpointManager) -> None:
  """Waits for the save under way; InputError if the disk refused it."""
  with _disk(manager):
    manager.wait_until_finished()


class _disk:
  """What a refusing disk means for the run."""

  def __init__(self, manager):
    self.manager = manager

  def __enter__(self):
    return self

  def __exit__(self, kind, error, trace):
    # tensorstore reports a full disk as a ValueError that carries errno's name
    if isinstance(error, (OSError, ValueError)):
      steps = self.manager.all_steps(read=True)
      last = f"step {max(steps)} is safe" if steps else "none is there yet"
      raise InputError(
          f"{self.manager.directory}: a checkpoint could not be written "
          f"({str(error).splitlines()[0]}); {last}: make room, then run the "
          "same command again") from error


def _restore(store: str, step: int, abstract: TrainState) -> TrainState:
  with ocp.CheckpointManager(os.path.abspath(store)) as manager:
    restored = manager.restore(step, args=ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract),
        meta=ocp.args.JsonRestore()))
  found = _checksums(restored.state)
  wanted = restored.meta["crc32"]
  wrong = [key for key in found if key in wanted and found[key] != wanted[key]]
  if wrong:
    raise ValueError(f"checksum of {wrong[0]} differs")
  return restored.state


def restore_newest(store: str, abstract: TrainState):
  """(step, state) of the newest sound checkpoint, or None if there is none.

  Damaged ones are named, moved beside the store and passed over.

  Args:
    store: the folder of `open_manager`.
    abstract: shapes, dtypes and shardings wanted, on any mesh.

  Raises:
    InputError: none of them could be read; nothing was moved.
  """
  if not os.path.isdir(store):
    return None
  with ocp.CheckpointManager(os.path.abspath(store)) as manager:
    steps = sorted(manager.all_steps(), reverse=True)
  damaged = {}
  for step in steps:
    try:
      state = _restore(store, step, abstract)
    except Exception as error:  # pylint: disable=broad-except
      # orbax, tensorstore and json raise all kinds for a damaged file
      damaged[step] = str(error).splitlines()[0]
      continue
    for worse, reason in damaged.items():
      aside = f"{store.rstrip('/')}-damaged-{worse}"
      while os.path.exists(aside):
        aside += "+"
      os.rename(os.path.join(store, str(worse)), aside)
      logging.warning(
          "the checkpoint of step %d is damaged (%s): moved to %s, going on "
          "from step %d", worse, reason, aside, step)
    return step, state
  if damaged:
    raise InputError(
        f"{store}: no checkpoint could be read ({damaged}); restore one from a "
        "copy, or start again in another --workdir")
  return None
