"""Finds files that are shipped with isojax."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parents[2]  # contains configs/ and isojax/


def shipped_path(path: str) -> str:
  """The path; if it does not exist here, that of the shipped file, if any.

  Shipped are files of configs/ and isojax/.
  """
  shipped = ROOT / path
  if (path.startswith(("configs/", "isojax/")) and shipped.exists()
      and not os.path.exists(path)):
    return str(shipped)
  return path
