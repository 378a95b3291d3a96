"""Stored counts of correct samples, from which launch.split resumes.

Each shard has a file: a header with everything that decides the counts, then a
line for each measured problem. A line has a hash of the problem's content, so
counts stay valid when the set grows, shrinks or is divided differently.

`out` is the prefix of the files; counts are {(key, samples): PassCount}; by_key
is {key: (split, problem)}, of all shards or of one.
"""

import contextlib
import glob
import hashlib
import json
import os
import pathlib
import time
import typing

from isojax.core import disk
from isojax.errors import InputError
from isojax.runtime import progress
from isojax.tasks.problem import Problem

# Problems of a slice, whose counts are stored together. After a slice of less
# than SECONDS the next one is twice as large: a slow machine loses little when
# stopped, and a fast one has few idle slots at the ends of slices.
FIRST_SLICE, LARGEST_SLICE, SECONDS = 64, 1024, 60.0


class PassCount(typing.NamedTuple):
  """The samples of one problem."""

  correct: int  # correct samples
  tokens: float  # mean tokens of a sample, EOS included


def key(split: str, problem: Problem) -> str:
  """16 hex digits of a hash of a problem's split, id and content."""
  text = json.dumps([split, problem.id, problem.question, problem.answer])
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def path_of(out: str, shard: int, shards: int) -> str:
  return f"{out}-counts-{shard}-of-{shards}.jsonl"


def read(out: str, header: dict) -> dict[tuple[str, int], PassCount]:
  """The counts in the files of all shards; InputError if a header differs."""
  counts = {}
  for path in sorted(glob.glob(f"{glob.escape(out)}-counts-*-of-*.jsonl")):
    try:
      text = pathlib.Path(path).read_text(encoding="utf-8")
      # A last line without a newline was cut when the process was killed.
      lines = [json.loads(line) for line in text.split("\n")[:-1]]
      counts |= {(line["key"], line["n"]): PassCount(
          line["correct"], line["tokens"]) for line in lines[1:]}
      stored = {} if not lines else {
          name: lines[0][name] if name in lines[0] else None for name in header}
    except (OSError, ValueError, LookupError, TypeError,
            RecursionError) as error:
      raise InputError(
          f"{path}: cannot be read or is damaged ({error!r:.100}); restore it, "
          "or remove it to measure its problems again") from error
    differ = [name for name in stored if name != "model"  # it may have moved
              and stored[name] != header[name]]
    if differ:
      raise InputError(f"{path} was measured with " + ", ".join(
          f"{name}={stored[name]!r} (now {header[name]!r})" for name in differ)
          + "; remove the file, or choose another config.out")
  return counts


def append(path: str, header: dict,
           counts: dict[tuple[str, int], PassCount]) -> None:
  """Adds counts to a shard's file, after the last complete line."""
  lines = [json.dumps({"key": key_, "n": n} | count._asdict())
           for (key_, n), count in counts.items()]
  with disk.writing(path), open(path, "ab+") as file:
    file.seek(0)
    complete = file.read().rfind(b"\n") + 1
    file.truncate(complete)
    if not complete:
      lines.insert(0, json.dumps(header))
    file.write(("\n".join(lines) + "\n").encode())
    file.flush()
    os.fsync(file.fileno())


def missing(by_key: dict, counts: dict, n: int, again: list[int]):
  """Yields (samples, keys of the problems without a count of `samples`).

  First n samples of every problem; then, for each number in `again`, so many
  new samples of the problems with 0 of n correct.
  """
  yield n, [key_ for key_ in by_key if (key_, n) not in counts]
  for samples in again:
    yield samples, [key_ for key_ in by_key if (key_, samples) not in counts
                    and (key_, n) in counts and counts[key_, n].correct == 0]


def slices(by_key: dict, keys: list[str]):
  """Yields (split, keys) of slices of one split, see FIRST_SLICE."""
  size, first = FIRST_SLICE, 0
  keys = sorted(keys, key=lambda key_: by_key[key_][0])  # by split, stable
  while first < len(keys):
    start, split = time.monotonic(), by_key[keys[first]][0]
    part = [x for x in keys[first:first + size] if by_key[x][0] == split]
    yield split, part
    first += len(part)
    if time.monotonic() - start < SECONDS:
      size = min(2 * size, LARGEST_SLICE)


def completed(out: str, header: dict, by_key: dict, n: int, again: list[int],
              *, shard: int, shards: int, start) -> dict:
  """Measures the missing counts of a shard; returns the counts of all shards.

  `by_key` has the problems of all shards. `start` is called if a count is
  missing; it returns a context manager that gives the function measure(split,
  problems, samples, advance), which returns a PassCount of each problem.
  """
  path, measure = path_of(out, shard, shards), None
  in_shard = {key_: entry for key_, entry in by_key.items()
              if int(key_, 16) % shards == shard}
  counts = read(out, header)
  with contextlib.ExitStack() as stack:
    for samples, keys in missing(in_shard, counts, n, again):
      if not keys:
        continue
      if measure is None:
        with disk.writing(path):  # before hours of sampling
          open(path, "ab").close()
        measure = stack.enter_context(start())
      with progress.track(len(keys) * samples, f"avg@{samples}",
                          "samples") as advance:
        for split, part in slices(in_shard, keys):
          problems = [in_shard[key_][1] for key_ in part]
          measured = measure(split, problems, samples, advance)
          new = {(key_, samples): count
                 for key_, count in zip(part, measured, strict=True)}
          append(path, header, new)
          counts |= new  # `missing` then looks for those with 0 of n
  return read(out, header)


def correct_by_problem(by_key: dict, counts: dict) -> dict:
  """The counts as {(split, samples): {problem id: correct}}."""
  correct = {}
  for (key_, samples), count in counts.items():
    if key_ in by_key:
      split, problem = by_key[key_]
      correct.setdefault((split, samples), {})[problem.id] = count.correct
  return correct
