"""The ledger of the study: a line for each tested policy, in docs/study."""

import fcntl
import json
import os

# Fields that name a line.
NAMES = ("set", "arm", "seed", "rate", "C", "decay", "policy", "which")


def key(line: dict) -> tuple:
  return tuple(line[name] for name in NAMES)


def read(path: str) -> dict[tuple, dict]:
  """The lines of a ledger by name; none without a file."""
  if not os.path.exists(path):
    return {}
  with open(path, encoding="utf-8") as file:
    return {key(line): line for line in map(json.loads, file)}


def append(path: str, line: dict) -> None:
  """Adds a line; several processes may."""
  with open(path, "a", encoding="utf-8") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(json.dumps(line) + "\n")
  print(*key(line), line["avg"], flush=True)
