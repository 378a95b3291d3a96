"""Reads and writes stratum files: problems of one difficulty for one policy.

Line 1 is a header: which stratum of which task, how it was made, by which
policy, and the hash of the other lines. Each other line is a problem with its
split, its count of correct samples (null if none were drawn), and the mean
tokens of these samples, if they were measured.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib

from isojax import own_file
from isojax.errors import InputError
from isojax.tasks import base
from isojax.tasks.problem import Problem

SPLITS = ("train", "validation")
REMEDY = "make it with `python -m launch.split`"
IDS = 2**32  # ids are numbers below this


@dataclasses.dataclass(frozen=True)
class Stratum:
  header: dict
  train: list[Problem]
  validation: list[Problem]
  tokens: dict  # (split, id) -> mean new tokens, of measured problems


def source(header: dict) -> dict:
  """Returns the source that a header names, {} if it names none."""
  return header["source"] if "source" in header else {}


def digest(lines: list[str]) -> str:
  """Returns the hash of the problems' lines that the header holds."""
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write(path: str, header: dict, rows: list[dict]) -> None:
  """Writes rows of {split, id, question, answer, correct} under a header.

  Rows may also have `tokens`.
  """
  lines = [json.dumps(row) for row in rows]
  counts = {split: sum(row["split"] == split for row in rows)
            for split in SPLITS}
  head = header | counts | {"sha256": digest(lines)}
  # Renamed when complete: several shards may find that they are the last.
  partial = pathlib.Path(f"{path}.{os.getpid()}.partial")
  partial.write_text(
      "\n".join([json.dumps(head), *lines]) + "\n", encoding="utf-8")
  partial.replace(path)


def _object(line: str, where: str) -> dict:
  """Returns the JSON object of a line."""
  try:
    value = json.loads(line)
  except ValueError as error:
    raise InputError(f"{where}: not a stratum file, which has a JSON object on "
                     f"each line ({error}); {REMEDY}") from error
  if not isinstance(value, dict):
    raise InputError(f"{where}: not a stratum file, which has a JSON object on "
                     f"each line, not {value!r:.40}; {REMEDY}")
  return value


def _wrong(where: str, field: str, values: dict, expected: str) -> InputError:
  found = f"{field}={values[field]!r:.60}" if field in values else (
      f"no field {field!r}")
  return InputError(f"{where}: not a stratum file: {found}, expected "
                    f"{expected}; {REMEDY}")


def _is_text(value) -> bool:
  """Whether a value is a string without half a surrogate pair."""
  try:
    return isinstance(value, str) and value.encode() is not None
  except UnicodeEncodeError:
    return False


def _check_header(header: dict, where: str) -> None:
  """InputError unless the fields that are read later have their types."""
  for field in ("stratum", "task", "sha256"):
    if field not in header or not _is_text(header[field]):
      raise _wrong(where, field, header, "a text")
  if header["task"] not in base.TASKS:
    raise _wrong(where, "task", header, f"one of {', '.join(base.TASKS)}")
  if "source" in header and not isinstance(header["source"], dict):
    raise _wrong(where, "source", header, "the source of a split's config")
  if "model_sha256" in header:
    for field in ("model", "model_sha256"):
      if field not in header or not (
          header[field] is None or _is_text(header[field])):
        raise _wrong(where, field, header, "a text, or null if not measured")


def _row(values: dict, where: str) -> tuple[str, Problem]:
  """Returns (split, problem) of a line."""
  if "split" not in values or values["split"] not in SPLITS:
    raise _wrong(where, "split", values, f"one of {', '.join(SPLITS)}")
  if "id" not in values or type(values["id"]) is not int or not (
      0 <= values["id"] < IDS):
    raise _wrong(where, "id", values, f"a whole number in [0, {IDS})")
  for field in ("question", "answer"):
    if field not in values or not _is_text(values[field]):
      raise _wrong(where, field, values, "a text in Unicode")
  return values["split"], Problem(
      values["id"], values["question"], values["answer"])


def read(path: str) -> Stratum:
  """Returns a stratum of which each row was checked.

  Raises:
    InputError: the file is missing, cut or edited, a field is wrong, a problem
      cannot be judged, or a split is empty.
  """
  try:
    text = pathlib.Path(own_file.find(path)).read_text(encoding="utf-8")
  except FileNotFoundError as error:
    raise InputError(f"{path}: no such stratum file; {REMEDY}"
                     ) from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: not a stratum file ({error}); {REMEDY}"
                     ) from error
  # Not splitlines, which also splits at characters that JSON texts may hold.
  head, *lines = text.removesuffix("\n").split("\n")
  header = _object(head, f"{path}:1")
  _check_header(header, f"{path}:1")
  found = digest(lines)
  if header["sha256"] != found:
    raise InputError(f"{path}: the content hash is {found[:12]}, expected "
                     f"{header['sha256'][:12]} of the header: the file was cut "
                     f"or edited; {REMEDY}")
  task = base.TASKS[header["task"]]
  splits, tokens = {split: {} for split in SPLITS}, {}
  for number, line in enumerate(lines, 2):
    where = f"{path}:{number}"
    values = _object(line, where)
    split, problem = _row(values, where)
    if problem.id in splits[split]:
      raise InputError(f"{where}: id={problem.id} is used twice in the {split} "
                       "split, so rollouts would share random numbers; "
                       f"{REMEDY}")
    try:
      task.check(problem)
    except InputError as error:
      raise InputError(f"{where}: {error}; {REMEDY}") from error
    splits[split][problem.id] = problem
    if "tokens" in values:
      if not (type(values["tokens"]) in (int, float)
              and 0 < values["tokens"] < math.inf):
        raise _wrong(where, "tokens", values, "a positive number")
      tokens[split, problem.id] = values["tokens"]
  for split in SPLITS:
    if not splits[split]:
      raise InputError(f"{path}: the {split} split is empty; {REMEDY}")
  return Stratum(header, *(list(splits[split].values()) for split in SPLITS),
                 tokens)


def expected_tokens(stratum: Stratum, split: str,
                    problems: list[Problem]) -> list[float] | None:
  """Returns the mean tokens of problems; None if one was not measured."""
  means = [stratum.tokens[split, p.id] for p in problems
           if (split, p.id) in stratum.tokens]
  return means if len(means) == len(problems) else None
