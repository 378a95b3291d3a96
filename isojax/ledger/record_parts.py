"""Stores lines in a bucket in parts, since an object cannot be appended to.

A ledger gs://BUCKET/RUN/records.jsonl consists of parts START-NUMBER.jsonl
below that name. Each part is written once. A process that starts or resumes a
run writes all lines to keep as part 0 of a new start. Parts of older starts are
then void and are deleted. So a start replaces the ledger in one write, and
readers ignore lines of a process that no longer holds the run.
"""

import re
import uuid

from isojax.ledger import object_store
from isojax.errors import InputError

_NAME = re.compile(r"(\d{5,})-(\d{5,})\.jsonl")
_TRIES = 5  # a read fails if a run starts while it reads


def _path(ledger: str, start: int, number: int) -> str:
  return f"{ledger}/{start:05d}-{number:05d}.jsonl"


def _found(ledger: str) -> dict[int, list[int]]:
  """Returns start -> sorted numbers of its parts."""
  found = {}
  for name in object_store.names(ledger):
    if match := _NAME.fullmatch(name):
      found.setdefault(int(match[1]), []).append(int(match[2]))
  return {start: sorted(numbers) for start, numbers in found.items()}


def read(ledger: str) -> bytes | None:
  """Returns all lines of the newest start; None if there is no part.

  Raises:
    InputError: a part is missing.
  """
  for _ in range(_TRIES):
    found = _found(ledger)
    if not found:
      return None
    start, numbers = max(found.items())
    texts = object_store.read_all([_path(ledger, start, n) for n in numbers])
    if None not in texts and numbers == list(range(len(numbers))):
      return b"".join(texts)
    # A newer start has deleted a part since it was listed, or one is missing.
  raise InputError(f"{ledger}: of its parts {start:05d}-... some are missing; "
                   f"there are {numbers}; restore them from a copy, or start "
                   "again in another workdir")


def _create(path: str, content: bytes, writer: str) -> None:
  if object_store.write(path, content, generation=0, writer=writer) is None:
    raise InputError(f"{path}: another process has written this part and "
                     "continues this run; this process stops")


def begin(ledger: str, content: bytes) -> None:
  """Replaces the content of a ledger by these lines; deletes older parts."""
  old = _found(ledger)
  _create(_path(ledger, max(old, default=0) + 1, 0), content, uuid.uuid4().hex)
  object_store.delete_all([
      _path(ledger, each, number)
      for each, numbers in old.items() for number in numbers])


class Writer:
  """Adds parts to a ledger's newest start."""

  def __init__(self, ledger: str):
    found = _found(ledger)
    self._ledger, self._start = ledger, max(found)
    self._number = max(found[self._start]) + 1
    self._writer = uuid.uuid4().hex

  def add(self, content: bytes) -> None:
    """Writes the next part; InputError if another process has written it."""
    _create(_path(self._ledger, self._start, self._number), content,
            self._writer)
    self._number += 1
