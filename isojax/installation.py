"""Where isojax is installed: its shipped files, and how to add an extra.

A relative path such as configs/hard.py or isojax/assets/countdown-tiny names a
file of the current folder or, if there is none, the one that isojax ships. So
the same command and the same config work in a clone and after an installation.
"""

import os
import pathlib

ROOT = pathlib.Path(__file__).parents[1]  # a clone, or site-packages
SHIPPED = ("configs", "isojax")  # folders whose files can be named


def find(path: str) -> str:
  """Returns a path; that of the shipped file if only this one exists."""
  shipped = ROOT / path
  if (pathlib.Path(path).parts[:1] in [(name,) for name in SHIPPED]
      and shipped.exists() and not os.path.exists(path)):
    return str(shipped)
  return path


def pip_install(extra: str) -> str:
  """Returns the command that installs an extra into this installation."""
  if not (ROOT / "setup.py").is_file():
    return f"pip install 'isojax[{extra}]'"
  where = "." if ROOT == pathlib.Path.cwd() else ROOT
  return f"pip install -e '{where}[{extra}]'"
