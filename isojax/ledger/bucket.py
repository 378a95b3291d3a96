"""Runs in a bucket, gs://BUCKET/FOLDER.

etils reads and lists objects through gcsfs. tensorstore writes records.jsonl,
the one object that only one process may write.
"""

import contextlib
import glob
import importlib.util
import os
import re

from etils import epath

from isojax.errors import InputError, OutOfReachError


def remote(path: str | os.PathLike) -> bool:
  return os.fspath(path).startswith("gs://")


def check(path: str, flag: str) -> None:
  """Raises InputError for a path that is neither local nor gs://BUCKET/PATH."""
  # One slash, so that gs:/BUCKET, as pathlib writes gs://BUCKET, is an error.
  if not re.match(r"[A-Za-z][\w+.-]*:/", path):
    return
  if not re.match(r"gs://[^/]+/+[^/]", path):
    raise InputError(f"--{flag}={path}: expected a local folder, or "
                     "gs://BUCKET/FOLDER of Google Cloud Storage")
  if importlib.util.find_spec("gcsfs") is None:
    raise InputError(f"--{flag}={path}: gcsfs is not installed; "
                     "pip install 'isojax[gcs]'")
  import fsspec  # used by etils
  # Each process of a run must see what the others wrote without delay.
  fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False


@contextlib.contextmanager
def convert_errors(path: str | os.PathLike, kind=OutOfReachError):
  """Converts errors of a bucket into `kind`; errors of a local path pass.

  `kind` is OutOfReachError during a run, because the clients have retried for
  minutes; InputError at its start, where the name is more likely wrong.
  """
  try:
    yield
  except InputError:
    raise
  except Exception as error:  # gcsfs, tensorstore and orbax have many types
    if not remote(path):
      raise
    why = " ".join((str(error) or repr(error)).split())[:200]
    raise kind(
        f"{path}: the bucket cannot be used ({why}); what was written is "
        "kept: check its name, the credentials and their role "
        "storage.objectAdmin, then run the same command again") from error


def matching(pattern: str) -> list[str]:
  if not remote(pattern):
    return sorted(glob.glob(pattern))
  bucket, _, rest = pattern.removeprefix("gs://").partition("/")
  with convert_errors(pattern, InputError):
    return sorted(map(str, epath.Path(f"gs://{bucket}").glob(rest)))


class FencedObject:
  """An object that one process writes: the one that took it over last.

  A write requires that the object still has the generation (version) of this
  process's last write. A process that still runs somewhere thus notices at its
  next write that another one has taken over.
  """

  def __init__(self, path: str):
    import tensorstore  # loads 20 MB
    folder, _, self._name = path.rpartition("/")
    self._path = path
    with convert_errors(path, InputError):
      self._store = tensorstore.KvStore.open(f"{folder}/").result()

  def take(self) -> bytes | None:
    """Takes the object over; returns its content, None if there is none."""
    while True:
      with convert_errors(self._path, InputError):
        stored = self._store.read(self._name).result()
        self._generation = stored.stamp.generation
        if stored.state == "missing":
          return None
        # The same content again: its new generation shuts other writers out.
        if self._write_if_unchanged(stored.value):
          return stored.value

  def write(self, content: bytes) -> None:
    """Replaces the content; InputError if another process took it over."""
    with convert_errors(self._path):
      if self._write_if_unchanged(content):
        return
      stored = self._store.read(self._name).result()
    if stored.value != content:  # else the answer to our own write was lost
      raise InputError(f"{self._path}: another process has started this run "
                       "and writes its records; this one ends")
    self._generation = stored.stamp.generation

  def _write_if_unchanged(self, content: bytes) -> bool:
    stamp = self._store.write(self._name, content,
                              if_equal=self._generation).result()
    if stamp.generation:  # empty if another process has written
      self._generation = stamp.generation
    return bool(stamp.generation)
