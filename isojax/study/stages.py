"""The stages of a study in the root of a sweep: which run continues which.

A longer run has another run id than the shorter one that it continues, because
C is part of the id. Its folder is a link to the folder of the shorter run.
"""

import json
import os
from collections.abc import Callable

from isojax.errors import InputError, reason
from isojax.ledger import records
from isojax.planner import request
from isojax.allocation import Pieces
from isojax.sweep import runs as runs_lib
from isojax.sweep.runs import Run


def link(root: str, shorter: dict[tuple, Run], longer: dict[tuple, Run]) -> int:
  """Makes each longer run continue the shorter run of its key.

  A longer run that has a folder keeps it. Without a shorter run it begins anew.

  Args:
    root: of the sweep.
    shorter, longer: key of a planned run -> its run.

  Returns:
    The number of folders that were linked.
  """
  count = 0
  for key, run in longer.items():
    path = runs_lib.workdir_of(root, run)
    if os.path.lexists(path) or key not in shorter:
      continue
    before = runs_lib.workdir_of(root, shorter[key])
    if not os.path.exists(os.path.join(before, "config.json")):
      continue
    try:
      os.symlink(os.path.basename(os.path.realpath(before)), path)
    except OSError as error:
      raise InputError(f"--root={root}: {path} cannot be linked to {before} "
                       f"({reason(error)}); a study needs a file system with "
                       "symbolic links") from error
    count += 1
  return count


def kept_pieces(path: str, follow: Callable[[], Pieces]) -> Pieces:
  """Returns the pieces of a schedule that a root keeps, or makes them.

  The fit that they follow changes when the study goes on, the runs do not.

  Args:
    path: of the file that keeps them.
    follow: makes them at the first call.
  """
  if not os.path.exists(path):
    records.replace(path, json.dumps({"pieces": follow()}).encode())
  return tuple((start, n) for start, n in request.load_json(
      path, "the pieces of a schedule")["pieces"])
