"""A stratum: problems of one difficulty for one policy, in one small file.

Line 1 is a header (what, made how, by which policy, with which hash), every
other line a problem with its split and its count of correct samples, null if
none were drawn.
"""

import dataclasses
import hashlib
import json
import os
import pathlib

from isojax.errors import InputError
from isojax.tasks.problem import Problem

SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Stratum:
  header: dict
  train: list[Problem]
  validation: list[Problem]


def source(header: dict) -> dict:
  """Returns the source that a header names, {} if it names none."""
  return header["source"] if "source" in header else {}


def digest(lines: list[str]) -> str:
  """The content hash that stands in the header."""
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write(path: str, header: dict, rows: list[dict]) -> None:
  """Writes rows of {split, id, question, answer, correct} under a header."""
  lines = [json.dumps(row) for row in rows]
  counts = {split: sum(row["split"] == split for row in rows)
            for split in SPLITS}
  head = header | counts | {"sha256": digest(lines)}
  # Whole or not at all: several shards may find that they are the last.
  partial = pathlib.Path(f"{path}.{os.getpid()}.partial")
  partial.write_text(
      "\n".join([json.dumps(head), *lines]) + "\n", encoding="utf-8")
  partial.replace(path)


def read(path: str) -> Stratum:
  """Reads a stratum; InputError if missing, damaged, or a split is empty."""
  remedy = "make it with `python -m launch.split`"
  try:
    head, *lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    header = json.loads(head)
    _ = header["stratum"], header["task"]  # must be there
    found = digest(lines)
    if header["sha256"] != found:
      raise InputError(f"{path}: the content hash is {found[:12]}, the header "
                       f"says {header['sha256'][:12]}: the file was cut or "
                       f"edited; {remedy}")
    splits = {split: [] for split in SPLITS}
    for line in lines:
      row = json.loads(line)
      splits[row["split"]].append(
          Problem(row["id"], row["question"], row["answer"]))
  except FileNotFoundError as error:
    raise InputError(f"task.stratum={path!r}: no such file; {remedy}"
                     ) from error
  except InputError:
    raise
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: not a stratum file ({type(error).__name__}: "
                     f"{error}); {remedy}") from error
  for split, problems in splits.items():
    if not problems:
      raise InputError(f"{path}: the {split} split is empty; {remedy}")
    ids = {p.id for p in problems}
    if len(ids) < len(problems) or min(ids) < 0 or max(ids) >= 2**32:
      raise InputError(
          f"{path}: the ids of the {split} split are not distinct numbers in "
          f"[0, 2**32), so rollouts would share their randomness; {remedy}")
  return Stratum(header, splits["train"], splits["validation"])
