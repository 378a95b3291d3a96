"""Folders in a bucket, gs://BUCKET/PATH: the few operations that a run needs.

An object is there whole or not at all, is seen by everybody once it is there,
and can be written on the condition that nobody has written it since. It can
not be appended to or renamed. Google's own client keeps no listings in memory,
which a reader of a living run relies on; orbax goes through etils instead.
"""

import concurrent.futures
import contextlib
import functools
import importlib.util
import os
import re

from isojax.errors import InputError
from isojax.errors import OutOfReachError

AT_ONCE = 8  # objects; the client keeps 10 connections
_NEEDED = ("google.cloud.storage", "gcsfs")  # ours, and orbax's by way of etils


def remote(path: str | os.PathLike) -> bool:
  """Whether a path is of a bucket, not of a file system."""
  return os.fspath(path).startswith("gs://")


def check(folder: str, flag: str) -> None:
  """InputError unless a folder is local, or of a bucket that can be reached."""
  scheme = re.match(r"[A-Za-z][\w+.-]*:/", folder)
  if scheme is None:
    return
  if not re.match(r"gs://[^/]+/+[^/]", folder):
    raise InputError(f"--{flag}={folder}: expected a local folder, or "
                     "gs://BUCKET/FOLDER of Google Cloud Storage")
  for name in _NEEDED:
    try:
      missing = importlib.util.find_spec(name) is None
    except ModuleNotFoundError:  # not even google.cloud
      missing = True
    if missing:
      raise InputError(f"--{flag}={folder}: {name} is not installed; pip "
                       "install 'isojax[gcs]'")
  import fsspec  # of etils
  # Each process of a run must see at once what the others wrote.
  fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
  with _asking(folder):
    _client().get_bucket(_split(folder)[0])


def _split(path: str) -> tuple[str, str]:
  """(bucket, name in it)."""
  bucket, _, name = path.removeprefix("gs://").partition("/")
  return bucket, re.sub("/+", "/", name).strip("/")


@functools.cache
def _client():
  from google.cloud import storage  # an extra
  return storage.Client()


def _blob(path: str):
  bucket, name = _split(path)
  return _client().bucket(bucket).blob(name)


@contextlib.contextmanager
def _asking(path: str):
  """What it means when Google's servers refuse or do not answer."""
  from google.api_core import exceptions as api  # an extra
  from google.auth import exceptions as auth
  bucket = _split(path)[0]
  try:
    yield
  except auth.GoogleAuthError as error:
    raise InputError(
        f"{path}: no credentials for bucket {bucket} ({_short(error)}); gcloud "
        "auth application-default login, or a service account of this machine"
        ) from error
  except api.NotFound as error:
    raise InputError(f"{path}: there is no bucket {bucket}; make it: gcloud "
                     f"storage buckets create gs://{bucket}") from error
  except (api.Forbidden, api.Unauthorized) as error:
    raise InputError(
        f"{path}: no permission in bucket {bucket} ({_short(error)}); a run "
        "needs the roles storage.objectAdmin and storage.legacyBucketReader"
        ) from error
  except (api.GoogleAPIError, OSError) as error:  # requests' are OSErrors
    raise OutOfReachError(
        f"{path}: bucket {bucket} cannot be reached ({_short(error)}); nothing "
        "that was written before is lost: run the same command again"
        ) from error


def _short(error: Exception) -> str:
  return " ".join(str(error).split())[:200]


def content(path: str) -> bytes | None:
  """Of a file or of an object; None where there is none."""
  if remote(path):
    return read(path)[0]
  try:
    with open(path, "rb") as file:
      return file.read()
  except (FileNotFoundError, NotADirectoryError):
    return None


def read(path: str) -> tuple[bytes | None, int]:
  """(Content, generation) of an object; (None, 0) where there is none."""
  from google.api_core import exceptions as api  # an extra
  blob = _blob(path)
  with _asking(path):
    try:
      content = blob.download_as_bytes()  # sets the generation that it read
    except api.NotFound:
      return None, 0
    return content, int(blob.generation)


def write(path: str, content: bytes, *, generation: int | None = None,
          writer: str = "", seconds: float | None = None) -> int | None:
  """Writes a whole object; its generation, None if another one is there.

  Args:
    generation: which one may be replaced; 0: none, the object must be new;
      None: any.
    writer: tells whose it is. A request that is sent again, because the answer
      to the first was lost, must not take its own object for another's.
    seconds: to wait for an answer, once; None: as long as Google advises.
  """
  from google.api_core import exceptions as api  # an extra
  blob = _blob(path)
  blob.metadata = {"writer": writer}
  once = {} if seconds is None else {"timeout": seconds, "retry": None}
  with _asking(path):
    try:
      blob.upload_from_string(content, "application/octet-stream",
                              if_generation_match=generation, **once)
    except api.PreconditionFailed:
      there = _client().bucket(blob.bucket.name).get_blob(blob.name, **once)
      if there is None or writer not in (there.metadata or {}).values():
        return None
      return int(there.generation)
  return int(blob.generation)


def delete(path: str, generation: int | None = None) -> None:
  """Deletes an object, if it is there and of that generation."""
  from google.api_core import exceptions as api  # an extra
  with _asking(path), contextlib.suppress(api.NotFound, api.PreconditionFailed):
    _blob(path).delete(if_generation_match=generation)


def names(folder: str) -> list[str]:
  """Of the objects and folders that stand in a folder, in order."""
  bucket, name = _split(folder)
  prefix = f"{name}/"
  with _asking(folder):
    found = _client().list_blobs(bucket, prefix=prefix, delimiter="/")
    objects = [blob.name for blob in found]  # sets the prefixes
  inside = (each.removeprefix(prefix).rstrip("/")
            for each in (*objects, *found.prefixes))
  return sorted(filter(None, inside))  # a console marks a folder by ""


def read_all(paths: list[str]) -> list[bytes | None]:
  """The contents of many objects; None for those that are gone."""
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    return [content for content, _ in pool.map(read, paths)]


def delete_all(paths: list[str]) -> None:
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    list(pool.map(delete, paths))


def glob(pattern: str) -> list[str]:
  """The objects, and the folders that hold objects, that a pattern names."""
  bucket, name = _split(pattern)
  prefix = re.match(r"[^*?\[{]*", name)[0]
  with _asking(pattern):
    found = {blob.name.removesuffix("/") for blob in _client().list_blobs(
        bucket, prefix=prefix, match_glob=name)}
    found |= {os.path.dirname(blob.name) for blob in _client().list_blobs(
        bucket, prefix=prefix, match_glob=f"{name}/*")}
  return sorted(f"gs://{bucket}/{each}" for each in found)
