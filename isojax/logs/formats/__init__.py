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
  """The format with the most of its own names in a file, and such a name."""
  matches = {kind: [name for name in names if re.fullmatch(form.marks, name)]
             for kind, form in FORMATS.items() if form.marks}
  best = max(matches, key=lambda kind: len(matches[kind]))
  return (best, matches[best][0]) if matches[best] else ("table", None)
