"""Finds files that are shipped with isojax."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parents[2]  # contains configs/ and isojax/


def shipped_path(path: str) -> str:
  """`path`, or if nothing exists there, that of the shipped file of this name.

  Files of configs/ and isojax/ are shipped.
  """
  shipped = ROOT / path
  if (path.startswith(("configs/", "isojax/")) and shipped.exists()
      and not os.path.exists(path)):
    return str(shipped)
  return path
