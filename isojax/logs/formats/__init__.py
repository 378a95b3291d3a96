"""The formats of the logs that launch.fit, compare and doctor read.

To add one: a file here with a `Format`, and its line in FORMATS.
tests/data/logs/README.md explains each name, and links the code that writes it.
"""

import re

from isojax.logs.formats import (
  areal,
  nemo_rl,
  openrlhf,
  prime_rl,
  roll,
  skyrl,
  slime,
  table,
  tinker,
  trl,
  tunix,
  verl,
)

FORMATS = {"isojax": table.RECORDS, "verl": verl.FORMAT, "trl": trl.FORMAT,
           "tunix": tunix.FORMAT, "prime-rl": prime_rl.FORMAT,
           "tinker": tinker.FORMAT, "nemo-rl": nemo_rl.FORMAT,
           "skyrl": skyrl.FORMAT, "areal": areal.FORMAT,
           "openrlhf": openrlhf.FORMAT, "slime": slime.FORMAT,
           "roll": roll.FORMAT, "table": table.FORMAT}


def detect(names: list[str]) -> tuple[str, str | None]:
  """The format with the most of its own names in a file, and such a name.

  A table may have a few of a trainer's names: if these are no reward and no
  evaluation of that trainer, and the table's are, it is a table.
  """
  matches = {kind: [name for name in names if re.fullmatch(form.marks, name)]
             for kind, form in FORMATS.items()
             if form.marks and {*form.always} <= {*names}}
  best = max(matches, key=lambda kind: len(matches[kind]))
  if not matches[best] or not _measures(best, names) and (
      _measures("table", names)):
    return "table", None
  return best, matches[best][0]


def _measures(kind: str, names: list[str]) -> bool:
  """Whether names are rewards or evaluations of a format."""
  form = FORMATS[kind]
  return bool(form.columns("reward", names)) or any(
      re.fullmatch(pattern, name) for patterns in form.metrics
      for pattern in patterns.values() for name in names)
