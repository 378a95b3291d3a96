"""Compares the records of runs.

  python -m launch.verify.compare WORKDIR WORKDIR

Compares each run with the first one. Prints up to which step the rewards are
identical, and the largest relative difference of every field up to that step.
"""

import os

from isojax import cli
from isojax.errors import InputError
from isojax.ledger import records
from isojax.ledger import bucket


def relative(a, b) -> float:
  """Returns |a - b| / max(|a|, |b|); 0 for equal values of any type."""
  if a == b:
    return 0.0
  if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
    return float("inf")
  return abs(a - b) / max(abs(a), abs(b))


def compare(one: list[dict], other: list[dict]) -> str:
  """Returns a text on how far the records of two runs agree."""
  pairs = list(zip(records.comparable(one), records.comparable(other)))
  train = [(a, b) for a, b in pairs if a["kind"] == b["kind"] == "train"]
  if not train:
    return f"{len(one)} and {len(other)} records, no common training records"
  same = 0
  for a, b in train:
    if a["reward"] != b["reward"]:
      break
    same = a["step"]
  lines = [f"{len(one)} and {len(other)} records; rewards identical up to step "
           f"{same} of {train[-1][0]['step']}"]
  if not same:
    return lines[0]
  agreed = [(a, b) for a, b in train if a["step"] <= same]
  for name in records.COMMON + records.TRAIN:
    if name not in records.TIME_FIELDS | {"run_id"}:
      worst = max(relative(a[name], b[name]) for a, b in agreed)
      if worst:
        lines.append(f"  {name:16} differs by at most {worst:.1e}")
  ends = [next(r["avg"] for r in reversed(run) if r["kind"] == "eval")
          for run in (one, other)]
  lines.append(f"  last avg@k       {ends[0]:.4f} and {ends[1]:.4f}")
  return "\n".join(lines)


def main(argv) -> None:
  if len(argv) < 3:
    raise InputError("expected two or more workdirs after the command")
  for folder in argv[1:]:
    bucket.check(folder, "workdir")
  first, *others = (records.read(os.path.join(folder, "records.jsonl"))
                    for folder in argv[1:])
  for folder, found in zip(argv[1:], [first, *others]):
    if not found:
      raise InputError(f"{folder}: holds no records; expected the workdir of "
                       "a run")
  for folder, other in zip(argv[2:], others):
    print(f"{argv[1]} and {folder}: {compare(first, other)}")


if __name__ == "__main__":
  cli.run(main, words=True)
