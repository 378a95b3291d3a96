"""Writes whole files, and turns what the file system refuses into one line."""

import contextlib
import errno
import os
import uuid

from isojax.errors import InputError, reason

# Codes of a disk that takes no more, whatever is written to it.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def refused(place: str, error: Exception) -> InputError:
  """The error of a place that cannot be written."""
  return InputError(
      f"{place}: cannot be written ({reason(error)}); complete files are kept: "
      "free disk space or restore write access and run the same command again, "
      "or choose another place")


@contextlib.contextmanager
def writing(place: str, *more: type[Exception]):
  """Converts an OSError of writing to `place`, or one of `more`."""
  try:
    yield
  except (OSError, *more) as error:
    raise refused(place, error) from error


def replace(path: str, content: bytes) -> None:
  """Replaces a file atomically; the last of several processes wins.

  A process that is killed may leave PATH.*.tmp.
  """
  temporary = f"{path}.{uuid.uuid4().hex}.tmp"
  try:
    with open(temporary, "xb") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise
