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

from isojax import installation
from isojax.errors import InputError
from isojax.errors import OutOfReachError

AT_ONCE = 8  # objects; the client keeps 10 connections
_NEEDED = ("google.cloud.storage", "gcsfs")  # ours, and orbax's by way of etils


def remote(path: str | os.PathLike) -> bool:
  """Returns whether a path is in a bucket, not in a file system."""
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
      raise InputError(f"--{flag}={folder}: {name} is not installed: "
                       f"{installation.pip_install('gcs')}")
  import fsspec  # of etils
  # Each process of a run must see at once what the others wrote.
  fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
  with asking(folder):
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
def asking(path: str | os.PathLike):
  """What it means for a run when a bucket refuses or does not answer.

  Of whichever client: Google's, gcsfs or tensorstore. Any other error, and
  every error of a local path, passes as it is.
  """
  try:
    yield
  except InputError:
    raise
  except Exception as error:  # of three clients
    if remote(path):
      _explain(os.fspath(path), error)
    raise


def _explain(path: str, error: Exception) -> None:
  """Raises what an error of a client means for the run, if it knows that."""
  from google.auth import exceptions as auth  # an extra
  bucket, status = _split(path)[0], _status(error)
  short = " ".join((str(error) or repr(error)).split())[:200]
  if _away(error) or status in (408, 429) or status and status >= 500:
    raise OutOfReachError(
        f"{path}: bucket {bucket} cannot be reached ({short}); nothing that "
        "was written before is lost: run the same command again") from error
  if isinstance(error, auth.GoogleAuthError):
    raise InputError(
        f"{path}: no credentials for bucket {bucket} ({short}); gcloud auth "
        "application-default login, or a service account of this machine"
        ) from error
  if status in (401, 403):
    raise InputError(
        f"{path}: no permission in bucket {bucket} ({short}); a run needs the "
        "roles storage.objectAdmin and storage.legacyBucketReader") from error
  if status == 404 and not _there(bucket):
    raise InputError(f"{path}: there is no bucket {bucket}; make it: gcloud "
                     f"storage buckets create gs://{bucket}") from error


def _there(bucket: str) -> bool:
  """Whether there is a bucket, as far as Google says."""
  from google.api_core import exceptions as api  # an extra
  try:
    _client().get_bucket(bucket)
  except api.NotFound:
    return False
  except Exception:  # asked about another error
    pass
  return True


def _status(error: Exception) -> int | None:
  """The HTTP status that an error of a client tells."""
  import aiohttp  # of gcsfs
  from gcsfs import retry  # an extra
  from google.api_core import exceptions as api
  if isinstance(error, (api.GoogleAPICallError, retry.HttpError)):
    return error.code and int(error.code)
  if isinstance(error, aiohttp.ClientResponseError):
    return error.status
  if isinstance(error, FileNotFoundError):
    return 404
  if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
    return 403  # of gcsfs
  told = re.search(r"\[http_response_code='(\d+)'\]", str(error))
  return told and int(told[1])  # of tensorstore


def _away(error: Exception) -> bool:
  """Whether a client waited in vain, or its connection broke."""
  import aiohttp  # of gcsfs
  import requests  # of Google's client
  from google.api_core import exceptions as api  # an extra
  from google.auth import exceptions as auth
  if isinstance(error, auth.GoogleAuthError):
    return error.retryable or isinstance(error, auth.TransportError)
  if isinstance(error, aiohttp.ClientResponseError):
    return False  # its status tells
  return isinstance(error, (
      TimeoutError, ConnectionError, requests.ConnectionError, requests.Timeout,
      requests.exceptions.ChunkedEncodingError, aiohttp.ClientError,
      api.RetryError)) or "[curl_code=" in str(error)


def content(path: str) -> bytes | None:
  """Returns the bytes of a file or an object; None if there is none."""
  if remote(path):
    return read(path)[0]
  try:
    with open(path, "rb") as file:
      return file.read()
  except (FileNotFoundError, NotADirectoryError):
    return None


def read(path: str) -> tuple[bytes | None, int]:
  """Returns (content, generation) of an object; (None, 0) if there is none."""
  from google.api_core import exceptions as api  # an extra
  blob = _blob(path)
  with asking(path):
    try:
      content = blob.download_as_bytes()  # sets the generation that it read
    except api.NotFound:
      return None, 0
    return content, int(blob.generation)


def write(path: str, content: bytes, *, generation: int | None = None,
          writer: str = "", seconds: float | None = None) -> int | None:
  """Writes a whole object; returns its generation, None if another is there.

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
  with asking(path):
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
  with asking(path), contextlib.suppress(api.NotFound, api.PreconditionFailed):
    _blob(path).delete(if_generation_match=generation)


def names(folder: str) -> list[str]:
  """Returns the names of objects and folders in a folder, in order."""
  bucket, name = _split(folder)
  prefix = f"{name}/"
  with asking(folder):
    found = _client().list_blobs(bucket, prefix=prefix, delimiter="/")
    objects = [blob.name for blob in found]  # sets the prefixes
  inside = (each.removeprefix(prefix).rstrip("/")
            for each in (*objects, *found.prefixes))
  return sorted(filter(None, inside))  # a console marks a folder by ""


def read_all(paths: list[str]) -> list[bytes | None]:
  """Returns the contents of many objects; None for those that are gone."""
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    return [content for content, _ in pool.map(read, paths)]


def delete_all(paths: list[str]) -> None:
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    list(pool.map(delete, paths))


def glob(pattern: str) -> list[str]:
  """Returns the objects, and the folders with objects, that a pattern names."""
  bucket, name = _split(pattern)
  prefix = re.match(r"[^*?\[{]*", name)[0]
  with asking(pattern):
    found = {blob.name.removesuffix("/") for blob in _client().list_blobs(
        bucket, prefix=prefix, match_glob=name)}
    found |= {os.path.dirname(blob.name) for blob in _client().list_blobs(
        bucket, prefix=prefix, match_glob=f"{name}/*")}
  return sorted(f"gs://{bucket}/{each}" for each in found)
