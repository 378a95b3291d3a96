"""Reads and writes objects in a bucket, gs://BUCKET/PATH, as a run needs them.

An object is written as a whole, is visible to all readers at once, and can be
written on the condition that its generation has not changed. It cannot be
appended to or renamed. These functions use Google's client, which caches no
listings, so a reader sees new parts of an active run. orbax uses etils instead.
"""

import concurrent.futures
import contextlib
import functools
import importlib.util
import os
import re

from isojax.errors import InputError
from isojax.errors import OutOfReachError

AT_ONCE = 8  # parallel requests; the client keeps 10 connections
_NEEDED = ("google.cloud.storage", "gcsfs")  # gcsfs for orbax, through etils


def remote(path: str | os.PathLike) -> bool:
  """Returns whether a path is in a bucket, not in a file system."""
  return os.fspath(path).startswith("gs://")


def check(folder: str, flag: str) -> None:
  """Raises InputError for a folder neither local nor in a reachable bucket."""
  scheme = re.match(r"[A-Za-z][\w+.-]*:/", folder)
  if scheme is None:
    return
  if not re.match(r"gs://[^/]+/+[^/]", folder):
    raise InputError(f"--{flag}={folder}: expected a local folder, or "
                     "gs://BUCKET/FOLDER of Google Cloud Storage")
  for name in _NEEDED:
    try:
      missing = importlib.util.find_spec(name) is None
    except ModuleNotFoundError:  # google.cloud is missing as well
      missing = True
    if missing:
      raise InputError(f"--{flag}={folder}: {name} is not installed: "
                       f"pip install -e '.[gcs]'")
  import fsspec  # used by etils
  # Each process of a run must see what the others wrote without delay.
  fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
  with asking(folder):
    _client().get_bucket(_split(folder)[0])


def _split(path: str) -> tuple[str, str]:
  """Returns (bucket, name of the object in it)."""
  bucket, _, name = path.removeprefix("gs://").partition("/")
  return bucket, re.sub("/+", "/", name).strip("/")


@functools.cache
def _client():
  from google.cloud import storage  # optional dependency
  return storage.Client()


def _blob(path: str):
  bucket, name = _split(path)
  return _client().bucket(bucket).blob(name)


@contextlib.contextmanager
def asking(path: str | os.PathLike):
  """Converts errors of a bucket into an InputError or OutOfReachError.

  It knows the errors of Google's client, gcsfs and tensorstore. Other errors,
  and all errors of a local path, are raised unchanged.
  """
  try:
    yield
  except InputError:
    raise
  except Exception as error:  # three clients have many error types
    if remote(path):
      _explain(os.fspath(path), error)
    raise


def _explain(path: str, error: Exception) -> None:
  """Raises InputError or OutOfReachError for known errors of a client."""
  from google.auth import exceptions as auth  # optional dependency
  bucket, status = _split(path)[0], _status(error)
  short = " ".join((str(error) or repr(error)).split())[:200]
  if _away(error) or status in (408, 429) or status and status >= 500:
    raise OutOfReachError(
        f"{path}: bucket {bucket} cannot be reached ({short}); data that was "
        "already written is kept: run the same command again") from error
  if isinstance(error, auth.GoogleAuthError):
    raise InputError(
        f"{path}: no credentials for bucket {bucket} ({short}); run gcloud "
        "auth application-default login, or give this machine a service "
        "account") from error
  if status in (401, 403):
    raise InputError(
        f"{path}: no permission in bucket {bucket} ({short}); a run needs the "
        "roles storage.objectAdmin and storage.legacyBucketReader") from error
  if status == 404 and not _there(bucket):
    raise InputError(f"{path}: there is no bucket {bucket}; create it: gcloud "
                     f"storage buckets create gs://{bucket}") from error


def _there(bucket: str) -> bool:
  """Returns False if the bucket does not exist, True if it may exist."""
  from google.api_core import exceptions as api  # optional dependency
  try:
    _client().get_bucket(bucket)
  except api.NotFound:
    return False
  except Exception:  # the caller reports its own error
    pass
  return True


def _status(error: Exception) -> int | None:
  """Returns the HTTP status of a client's error, if it has one."""
  import aiohttp  # used by gcsfs
  from gcsfs import retry  # optional dependency
  from google.api_core import exceptions as api
  if isinstance(error, (api.GoogleAPICallError, retry.HttpError)):
    return error.code and int(error.code)
  if isinstance(error, aiohttp.ClientResponseError):
    return error.status
  if isinstance(error, FileNotFoundError):
    return 404
  if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
    return 403  # raised by gcsfs
  told = re.search(r"\[http_response_code='(\d+)'\]", str(error))
  return told and int(told[1])  # raised by tensorstore


def _away(error: Exception) -> bool:
  """Returns whether a request timed out or the connection failed."""
  import aiohttp  # used by gcsfs
  import requests  # used by Google's client
  from google.api_core import exceptions as api  # optional dependency
  from google.auth import exceptions as auth
  if isinstance(error, auth.GoogleAuthError):
    return error.retryable or isinstance(error, auth.TransportError)
  if isinstance(error, aiohttp.ClientResponseError):
    return False  # `_status` decides
  return isinstance(error, (
      TimeoutError, ConnectionError, requests.ConnectionError, requests.Timeout,
      requests.exceptions.ChunkedEncodingError, aiohttp.ClientError,
      api.RetryError)) or "[curl_code=" in str(error)


def content(path: str) -> bytes | None:
  """Returns the bytes of a file or an object; None if it does not exist."""
  if remote(path):
    return read(path)[0]
  try:
    with open(path, "rb") as file:
      return file.read()
  except (FileNotFoundError, NotADirectoryError):
    return None


def read(path: str) -> tuple[bytes | None, int]:
  """Returns (content, generation) of an object; (None, 0) if it is absent."""
  from google.api_core import exceptions as api  # optional dependency
  blob = _blob(path)
  with asking(path):
    try:
      content = blob.download_as_bytes()  # also sets blob.generation
    except api.NotFound:
      return None, 0
    return content, int(blob.generation)


def write(path: str, content: bytes, *, generation: int | None = None,
          writer: str = "", seconds: float | None = None) -> int | None:
  """Writes an object; returns its generation, None if another one exists.

  Args:
    generation: the generation that may be replaced; 0: the object must be new;
      None: any.
    writer: stored with the object. A request is sent again if its answer was
      lost, and must then recognise the object that it wrote itself.
    seconds: timeout of a single request; None: the client's timeout and
      retries.
  """
  from google.api_core import exceptions as api  # optional dependency
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
  """Deletes an object, if it exists and has that generation."""
  from google.api_core import exceptions as api  # optional dependency
  with asking(path), contextlib.suppress(api.NotFound, api.PreconditionFailed):
    _blob(path).delete(if_generation_match=generation)


def names(folder: str) -> list[str]:
  """Returns the sorted names of objects and folders in a folder."""
  bucket, name = _split(folder)
  prefix = f"{name}/"
  with asking(folder):
    found = _client().list_blobs(bucket, prefix=prefix, delimiter="/")
    objects = [blob.name for blob in found]  # also sets found.prefixes
  inside = (each.removeprefix(prefix).rstrip("/")
            for each in (*objects, *found.prefixes))
  # An object named "" marks a folder made in Google's console.
  return sorted(filter(None, inside))


def read_all(paths: list[str]) -> list[bytes | None]:
  """Returns the contents of many objects; None for those that do not exist."""
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    return [content for content, _ in pool.map(read, paths)]


def delete_all(paths: list[str]) -> None:
  """Deletes many objects."""
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    list(pool.map(delete, paths))


def glob(pattern: str) -> list[str]:
  """Returns the objects, and folders with objects, that match a pattern."""
  bucket, name = _split(pattern)
  prefix = re.match(r"[^*?\[{]*", name)[0]
  with asking(pattern):
    found = {blob.name.removesuffix("/") for blob in _client().list_blobs(
        bucket, prefix=prefix, match_glob=name)}
    found |= {os.path.dirname(blob.name) for blob in _client().list_blobs(
        bucket, prefix=prefix, match_glob=f"{name}/*")}
  return sorted(f"gs://{bucket}/{each}" for each in found)
