"""Finds, checks, moves and deletes the folders of checkpoints.

isojax.ledger.checkpoint saves and restores their content.
"""

import json
import re

from etils import epath

from isojax.distributed import hosts
from isojax.errors import InputError
from isojax.ledger import object_store

_STEP = re.compile(r"0|[1-9][0-9]*")
_SAVING = re.compile(r"[0-9]+\.orbax-checkpoint-tmp(-[0-9]+)?")


def _incomplete(path: epath.Path) -> bool:
  """Returns whether a folder was left incomplete by a killed save."""
  if object_store.remote(path):  # orbax writes this file last
    return bool(_STEP.fullmatch(path.name)) and not (
        path / "commit_success.txt").exists()
  return bool(_SAVING.fullmatch(path.name)) and path.is_dir()


def delete_incomplete(store: str) -> None:
  """Deletes only the folders that killed saves left incomplete.

  orbax would also delete other folders, because of their names or because they
  lack files.
  """
  if epath.Path(store).is_dir():
    for path in epath.Path(store).iterdir():
      if _incomplete(path):
        path.rmtree()


def steps(store: str) -> list[int]:
  """Returns the saved steps in order, on all processes as process 0 sees them.
  """
  with object_store.asking(store):
    found = epath.Path(store).iterdir() if (
        hosts.first() and epath.Path(store).is_dir()) else ()
    return hosts.gather(sorted(
        int(path.name) for path in found
        if _STEP.fullmatch(path.name) and not _incomplete(path)))[0]


def meta(folder: epath.Path) -> dict:
  """Returns the metadata of a checkpoint: run id, step and checksums.

  Raises:
    ValueError, KeyError, OSError: it is damaged, or not a checkpoint.
  """
  about = folder / "_CHECKPOINT_METADATA"
  if about.exists():  # the manager reads this file of every step
    json.loads(about.read_text())
  found = json.loads((folder / "meta" / "metadata").read_text())
  if not isinstance(found, dict) or not isinstance(found["checksum"], dict):
    raise ValueError("its meta is not that of a checkpoint")
  return found


def check_owner(folder: epath.Path, found: dict, run_id: str) -> None:
  """Checks that a checkpoint has this run id and the step of its folder's name.

  Args:
    folder: of a step.
    found: its meta. Checkpoints of earlier versions have no run id and step.
    run_id: the expected run.

  Raises:
    InputError: it is of another run.
    ValueError: it is of another step.
  """
  if "run_id" not in found:
    return
  if found["run_id"] != run_id:
    raise InputError(
        f"{folder}: a checkpoint of run {found['run_id']}, expected one of run "
        f"{run_id}; nothing was changed: restore the run's own checkpoint, or "
        "move this folder away to resume from the previous one")
  if str(found["step"]) != folder.name:
    raise ValueError(f"it holds step {found['step']}")


def unreadable(store: str, among: list[int]) -> dict[int, str]:
  """Returns step -> reason for the steps whose meta cannot be read."""
  out = {}
  for step in among:
    try:
      with object_store.asking(store):
        meta(epath.Path(store, str(step)))
    except (ValueError, KeyError, FileNotFoundError,
            NotADirectoryError) as error:
      out[step] = repr(error)[:200]
  return out


def set_aside(store: str, step: int) -> str:
  """Moves a step beside the store; returns its new path."""
  aside = f"{store.rstrip('/')}-damaged-{step}"
  with object_store.asking(store):
    while epath.Path(aside).exists():
      aside += "+"
    epath.Path(store, str(step)).rename(aside)
  return aside
