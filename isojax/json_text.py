"""Parses JSON that somebody else may have written or damaged."""

import json


def loads(text: str | bytes):
  """Returns the value of a JSON text.

  Raises:
    ValueError: the text is not JSON, not UTF-8, or nested too deeply to read.
  """
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError("nested too deeply") from error
