"""Recomputes the tables of both papers.

  python -m launch.verify.playbook

Some numbers of the IsoCompute Playbook (arXiv 2603.12151) and ScaleRL
(2510.13786) follow from other published numbers. Prints each beside the value
that this package computes. The exit code is 1 if a difference exceeds its
tolerance.

| number | tolerance |
|---|---|
| printed or recomputed | half of the last digit |
| reward read from a figure | 0.002 |
| switch between two curves | 5 %; 10 % if one is nearly straight |
| refits of points | C0 0.1 decade, ceiling 0.5 log2, k a factor of 3 |
| A of ScaleRL | 0.02, the paper's margin |
| C_mid | 10 %, the difference between the paper's panels |
| B | 0.3, its change within the reading error of the points |
"""

import csv
import importlib.resources
import json
import os

from absl import flags

from isojax import cli
from isojax.errors import InputError
from launch.verify.playbook_tables import SECTIONS, Row

DATA = flags.DEFINE_string(
    "data", str(importlib.resources.files("isojax") / "assets/published"),
    "Folder of the published numbers.")
HEADER = ("", "published", "here", "difference", "tolerance", "mark", "")


def table(rows: list[Row]) -> str:
  """Returns the rows under their header, aligned."""
  cells = [HEADER] + [
      (r.what, f"{r.published:.6g}", f"{r.here:.6g}",
       f"{r.here - r.published:.1e}", f"{r.tolerance:.1e}", r.mark,
       "ok" if r.agrees else "DIFFERS") for r in rows]
  width = [max(map(len, column)) for column in zip(*cells)]
  return "\n".join("  ".join(
      c.rjust(w) if 1 <= i <= 4 else c.ljust(w)
      for i, (c, w) in enumerate(zip(line, width))).rstrip() for line in cells)


def main(_) -> int:
  def read(name: str) -> list:
    path = os.path.join(DATA.value, name)
    try:
      with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(f)) if name.endswith(".csv") else (
            json.load(f))
    except (OSError, UnicodeDecodeError) as error:
      raise InputError(f"--data: {error}") from error

  rows = []
  for heading, section in SECTIONS.items():
    try:
      part = list(section(read))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
      if isinstance(error, InputError):
        raise
      raise InputError(
          f"--data={DATA.value}: {heading}: a cell or column is missing or "
          f"invalid ({type(error).__name__}: {error}); use the published "
          "files, or leave out --data") from error
    rows += part
    print(f"{heading}\n{table(part)}\n")
  agreed = sum(r.agrees for r in rows)
  print(f"{agreed} of {len(rows)} within tolerance")
  return int(agreed < len(rows))


if __name__ == "__main__":
  cli.run(main)
