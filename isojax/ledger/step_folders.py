"""The folders of checkpoints: which are complete, and to which run they belong.

Finds, names, moves and deletes folders. What they hold is saved and restored by
isojax.ledger.checkpoint.
"""

import re

from etils import epath

from isojax import json_text
from isojax.distributed import hosts
from isojax.errors import InputError
from isojax.ledger import object_store

_STEP = re.compile(r"0|[1-9][0-9]*")
_SAVING = re.compile(r"[0-9]+\.orbax-checkpoint-tmp(-[0-9]+)?")


def _incomplete(path: epath.Path) -> bool:
  """Returns whether a folder is what a killed save left."""
  if object_store.remote(path):  # orbax writes this file last
    return bool(_STEP.fullmatch(path.name)) and not (
        path / "commit_success.txt").exists()
  return bool(_SAVING.fullmatch(path.name)) and path.is_dir()


def delete_incomplete(store: str) -> None:
  """Deletes what killed saves left, and nothing else.

  orbax would also delete other folders, for what their names hold or for what
  they lack.
  """
  if epath.Path(store).is_dir():
    for path in epath.Path(store).iterdir():
      if _incomplete(path):
        path.rmtree()


def steps(store: str) -> list[int]:
  """Returns the steps that were saved, in order; all as process 0 sees them."""
  with object_store.asking(store):
    found = epath.Path(store).iterdir() if (
        hosts.first() and epath.Path(store).is_dir()) else ()
    return hosts.gather(sorted(
        int(path.name) for path in found
        if _STEP.fullmatch(path.name) and not _incomplete(path)))[0]


def meta(folder: epath.Path) -> dict:
  """Returns what a checkpoint says about itself.

  Raises:
    ValueError, KeyError, OSError: it is damaged, or not a checkpoint.
  """
  about = folder / "_CHECKPOINT_METADATA"
  if about.exists():  # the manager reads it, of every step
    json_text.loads(about.read_text())
  found = json_text.loads((folder / "meta" / "metadata").read_text())
  if not isinstance(found, dict) or not isinstance(found["checksum"], dict):
    raise ValueError("its meta is not that of a checkpoint")
  return found


def check_owner(folder: epath.Path, found: dict, run_id: str) -> None:
  """Checks that a checkpoint is of a run, and of the step that names its folder.

  Args:
    folder: of a step.
    found: its meta. Checkpoints of earlier versions do not name run and step.
    run_id: the run that is expected.

  Raises:
    InputError: it is of another run.
    ValueError: it is of another step.
  """
  if "run_id" not in found:
    return
  if found["run_id"] != run_id:
    raise InputError(
        f"{folder}: a checkpoint of run {found['run_id']}, expected one of run "
        f"{run_id}; nothing was changed: put the run's own checkpoint back, or "
        "move this folder away to resume from the one before")
  if str(found["step"]) != folder.name:
    raise ValueError(f"it holds step {found['step']}")


def unreadable(store: str, among: list[int]) -> dict[int, str]:
  """Returns the steps whose meta cannot be read, and why."""
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
