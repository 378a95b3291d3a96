"""What a kill would leave at every durable write of a run.

A kill leaves what is on the disk. So `recorded` copies a folder before, in the
middle of and after each durable write below it, and lets the process go on.
Every copy is what one crash leaves, and the writes of one run are enumerated by
one run.
"""

import builtins
import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import threading
import typing

from isojax.ledger import records
from tests import record as record_lib

# orbax fills such a folder and renames it; nothing reads it before.
_SAVING = ".orbax-checkpoint-tmp"


class Crash(typing.NamedTuple):
  """What a kill at one moment leaves."""

  moment: str  # such as "before rename checkpoints/3"
  folder: pathlib.Path
  left: str  # a hash of what is there, see `left_in`


class _Recorder:
  """Copies `folder` into `copies` at each moment, at most `limit` writes."""

  def __init__(self, folder, copies, limit):
    self._folder, self._copies = pathlib.Path(folder), pathlib.Path(copies)
    self._limit, self._writes = limit, 0
    self._lock = threading.RLock()  # orbax writes in other threads
    self.crashes = []

  def path_below(self, path) -> str | None:
    """A path relative to the folder; None if it is elsewhere, or unfinished."""
    try:
      path = pathlib.Path(os.path.abspath(path)).relative_to(self._folder)
    except (TypeError, ValueError):  # a file descriptor; elsewhere
      return None
    if any(_SAVING in part for part in path.parts[:-1]):
      return None
    return os.fspath(path)

  def _copy(self, moment: str, damage) -> None:
    target = self._copies / str(len(self.crashes))
    target.mkdir(parents=True)
    if self._folder.is_dir():
      # tensorstore may be writing into an unfinished folder.
      ignore = lambda path, names: names if _SAVING in path else ()
      shutil.copytree(self._folder, target / "run", ignore=ignore)
    damage(target / "run")
    self.crashes.append(Crash(moment, target / "run", left_in(target / "run")))

  @contextlib.contextmanager
  def write(self, name: str, path: str, halve=None):
    """Of a write; halve(copy) does a half of it in a copy."""
    with self._lock:
      self._writes += 1
      if self._limit is not None and self._writes > self._limit:
        yield
        return
      self._copy(f"before {name} {path}", lambda _: None)
      if halve is not None:
        self._copy(f"in the middle of {name} {path}", halve)
      yield
      self._copy(f"after {name} {path}", lambda _: None)


class _File:
  """A file whose writes are moments."""

  def __init__(self, file, path, recorder):
    self._file, self._path, self._recorder = file, path, recorder

  def __getattr__(self, name):
    return getattr(self._file, name)

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._file.close()

  def write(self, data):
    half = data[:len(data) // 2]
    def halve(copy):
      with real_open(copy / self._path, "ab") as file:
        file.write(half.encode() if isinstance(half, str) else half)
    with self._recorder.write("write", self._path, halve):
      return self._file.write(data)


real_open = builtins.open


def _open(recorder):
  def opened(file, mode="r", *args, **kwargs):
    path = recorder.path_below(file) if set(mode) & set("wxa+") else None
    if path is None or _SAVING in path:
      return real_open(file, mode, *args, **kwargs)
    if os.path.exists(file):
      return _File(real_open(file, mode, *args, **kwargs), path, recorder)
    with recorder.write("create", path):
      return _File(real_open(file, mode, *args, **kwargs), path, recorder)
  return opened


def _on_target(recorder, name: str, real):
  """os.mkdir, and os.rename and os.replace, whose second path counts."""
  def operation(*paths, **kwargs):
    path = recorder.path_below(paths[-1] if name != "mkdir" else paths[0])
    if path is None:
      return real(*paths, **kwargs)
    with recorder.write(name, path):
      return real(*paths, **kwargs)
  return operation


def _rmtree(recorder, real):
  def rmtree(path, *args, **kwargs):
    below = recorder.path_below(path)
    if below is None:
      return real(path, *args, **kwargs)
    def halve(copy):
      files = sorted(p for p in (copy / below).rglob("*") if p.is_file())
      for file in files[:(len(files) + 1) // 2]:
        file.unlink()
    with recorder.write("rmtree", below, halve):
      return real(path, *args, **kwargs)
  return rmtree


@contextlib.contextmanager
def recorded(folder, copies, limit: int | None = None):
  """Yields the Crashes of a process at its first `limit` writes to a folder."""
  recorder, patch = _Recorder(folder, copies, limit), []
  for module, name, function in (
      (builtins, "open", _open(recorder)), (io, "open", _open(recorder)),
      (shutil, "rmtree", _rmtree(recorder, shutil.rmtree)),
      *((os, name, _on_target(recorder, name, getattr(os, name)))
        for name in ("mkdir", "rename", "replace"))):
    patch.append((module, name, getattr(module, name)))
    setattr(module, name, function)
  try:
    yield recorder.crashes
  finally:
    for module, name, real in patch:
      setattr(module, name, real)


def left_in(folder: pathlib.Path) -> str:
  """A hash of what a start reads, equal for crashes that leave the same.

  A temporary file is left out where the file that it was to replace exists.
  """
  out = []
  for path in sorted(folder.rglob("*")):
    name = os.fspath(path.relative_to(folder))
    target, temporary, _ = re.split("([.][0-9a-f]{32}[.]tmp)?$", name)[:3]
    if temporary and (folder / target).exists():
      continue
    content = None  # others have times and paths, or their checksums are here
    if name == "records.jsonl":
      content = _records(path)
    elif name.endswith("/meta/metadata") or (  # checksums of a checkpoint
        path.parent == folder and path.is_file() and name != "lock"):
      content = path.read_bytes().hex()
    if path.parent.name != "d":  # of tensorstore, which chooses random names
      out.append([target + (".tmp" if temporary else ""), content])
  return hashlib.sha256(json.dumps(out).encode()).hexdigest()


def _records(path) -> list:
  """The whole records without times, and whether a part of one follows."""
  *lines, rest = path.read_text("utf-8").split("\n")
  whole = [json.loads(line) for line in lines]
  for record in whole:
    del record[records.CHAIN]
  return [record_lib.comparable(whole), bool(rest)]


def distinct(crashes: list[Crash]) -> list[Crash]:
  """The first of all that leave the same."""
  first = {}
  for crash in crashes:
    first.setdefault(crash.left, crash)
  return list(first.values())
