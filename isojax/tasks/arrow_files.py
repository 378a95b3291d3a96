"""Reads the rows of Parquet and Arrow files, and of saved Hugging Face folders.

`datasets.Dataset.save_to_disk` writes a folder with state.json and Arrow files;
`DatasetDict` writes such a folder for each split. The library is not needed.
"""

import difflib
import json
import pathlib
from collections.abc import Iterator

from isojax.errors import InputError, reason

Rows = Iterator[tuple[str, dict]]  # (location of a row, its columns)


def no_column(path: str, where: str, columns) -> InputError:
  """Returns the error for a missing column."""
  near = difflib.get_close_matches(path, columns, n=1, cutoff=0) or ["none"]
  return InputError(
      f"{where}: no column {path!r}; the nearest is {near[0]!r}; inside a "
      "column, write it as in 'prompt.0.content'; there are: "
      f"{', '.join(columns)}")


def _tops(columns: tuple[str, ...], names: list[str], file: str) -> list[str]:
  """Returns the top-level columns that hold dotted ones."""
  tops = [path if path in names else path.split(".")[0] for path in columns]
  for path, top in zip(columns, tops, strict=True):
    if top not in names:
      raise no_column(path, file, names)
  return sorted(set(tops))


def _rows(file: str, columns: tuple[str, ...], kind: str, batches) -> Rows:
  """Yields the rows of record batches; InputError if they cannot be read."""
  import pyarrow
  number = 0
  try:
    for batch in batches(file, columns):
      for row in batch.to_pylist():
        yield f"{file}[{number}]", row
        number += 1
  except UnicodeDecodeError as error:
    raise InputError(f"{file}: a text of {' or '.join(columns)} is not UTF-8 "
                     f"({error}); convert the file") from error
  except (pyarrow.ArrowException, OSError) as error:
    raise InputError(f"{file}: not a readable {kind} file "
                     f"({' '.join(str(error).split())[:200]})") from error


def _parquet_batches(file: str, columns: tuple[str, ...]):
  from pyarrow import parquet  # slow
  with parquet.ParquetFile(file) as opened:
    yield from opened.iter_batches(
        columns=_tops(columns, opened.schema_arrow.names, file))


def _arrow_batches(file: str, columns: tuple[str, ...]):
  """Yields batches of the stream format, which datasets writes, or of files."""
  import pyarrow
  with pyarrow.memory_map(file) as source:
    try:
      opened = pyarrow.ipc.open_stream(source)
      count = None
    except pyarrow.ArrowInvalid:
      opened = pyarrow.ipc.open_file(source)
      count = opened.num_record_batches
    tops = _tops(columns, opened.schema.names, file)
    for batch in opened if count is None else map(opened.get_batch,
                                                  range(count)):
      yield batch.select(tops)


def parquet_rows(file: str, columns: tuple[str, ...]) -> Rows:
  """Yields the rows of a Parquet file, with the needed columns."""
  return _rows(file, columns, "Parquet", _parquet_batches)


def arrow_rows(file: str, columns: tuple[str, ...]) -> Rows:
  """Yields the rows of an Arrow file, with the needed columns."""
  return _rows(file, columns, "Arrow", _arrow_batches)


def folder_rows(folder: str, columns: tuple[str, ...]) -> Rows:
  """Yields the rows of a folder that `save_to_disk` wrote.

  Raises:
    InputError: the folder is another one, or holds several splits.
  """
  path = pathlib.Path(folder)
  try:
    if (path / "dataset_dict.json").is_file():
      splits = json.loads((path / "dataset_dict.json").read_text("utf-8"))
      names = [f"{folder}/{name}" for name in splits["splits"]]
      raise InputError(f"{folder}: holds a folder for each split; give one of "
                       f"{', '.join(names)}")
    if not (path / "state.json").is_file():
      raise InputError(
          f"{folder}: a folder without state.json, expected one that Hugging "
          "Face's save_to_disk wrote; name its files instead, such as "
          f"{folder}/**/*.parquet")
    state = json.loads((path / "state.json").read_text("utf-8"))
    files = [path / each["filename"] for each in state["_data_files"]]
  except (OSError, KeyError, TypeError, ValueError) as error:
    if isinstance(error, InputError):
      raise
    raise InputError(f"{folder}: its state.json or dataset_dict.json cannot be "
                     f"read ({reason(error)}); copy the folder again"
                     ) from error
  if any(value for key, value in state.items() if key.startswith("_indices")):
    raise InputError(f"{folder}: saved with indices of rows, which are not "
                     "read here; apply flatten_indices() before save_to_disk")
  for file in files:
    yield from arrow_rows(str(file), columns)
