"""Loads problem sets: JSONL, JSON and Parquet files, and tfds data sets.

Only launch.split reads these. Training reads the stratum files that it writes.
"""

import difflib
import glob
import os
import pathlib
from collections.abc import Iterator

from isojax import json_text
from isojax.errors import InputError, reason
from isojax.tasks import answer_extraction
from isojax.tasks import dedup
from isojax.tasks.problem import Pool

Rows = Iterator[tuple[str, dict]]  # (location of a row, its columns)


def load_files(path: str, validation: str | None, share: float, question: str,
               answer: str, extract: str, drop_unanswered: bool) -> Pool:
  """Returns the problems of local JSONL, JSON or Parquet files.

  Args:
    path: a file, or a pattern such as "MATH/train/**/*.json".
    validation: file or pattern of the validation problems; None: a share of
      `path` is held out, chosen by content.
    share: held out, in [0, 1].
    question: its column; dots select inside it, as in "prompt.0.content".
    answer: its column.
    extract: position of the answer in its column: whole, boxed or hash.
    drop_unanswered: whether rows without an answer are dropped, with a count;
      otherwise they are an error.
  """
  pairs = lambda pattern: _pairs(_file_rows(pattern, (question, answer)),
                                 question, answer, extract, drop_unanswered)
  return _pool(pairs, path, validation, share)


def load_tfds(dataset: str, data_dir: str | None, split: str,
              validation: str | None, share: float, question: str, answer: str,
              extract: str, drop_unanswered: bool) -> Pool:
  """Returns the problems of a tfds data set, without TensorFlow.

  Args:
    dataset: a builder of tfds.text, such as "gsm8k", or a folder with the
      dataset_info.json of a data set in array_record format.
    data_dir: where a builder downloads to and reads from; None: tfds' default.
    split: such as "train" or "train[:50%]".
    validation: another split, or None; it and the rest as in `load_files`.
  """
  pairs = lambda part: _pairs(_tfds_rows(dataset, data_dir, part),
                              question, answer, extract, drop_unanswered)
  return _pool(pairs, split, validation, share)


SOURCES = {"files": load_files, "tfds": load_tfds}  # of any task


def _pool(pairs, train: str, validation: str | None, share: float) -> Pool:
  if validation is None and not 0 < share < 1:
    raise InputError(f"source.share={share}: expected a share between 0 and 1 "
                     "of the problems to hold out for validation")
  kept, notes = pairs(train)
  held, more = (None, []) if validation is None else pairs(validation)
  pool = dedup.divided(kept, held, share)
  return Pool(pool.train, pool.validation, (*notes, *more, *pool.notes))


def _pairs(rows: Rows, question: str, answer: str, extract: str,
           drop_unanswered: bool) -> tuple[list[tuple[str, str]], list[str]]:
  """Returns (question, answer) of each row, and a note on dropped rows."""
  if extract not in answer_extraction.KINDS:
    raise InputError(f"source.extract={extract!r}: expected one of "
                     f"{', '.join(answer_extraction.KINDS)}")
  pairs, empty, total = [], [], 0
  for where, row in rows:
    total += 1
    asked = _text(row, question, where)
    answered = (answer_extraction.extract(_text(row, answer, where), extract)
                or "").strip()
    if asked and answered:
      pairs.append((asked, answered))
    else:
      empty.append(where)
  if empty and (not drop_unanswered or not pairs):
    raise InputError(
        f"{empty[0]}: no question or no answer ({question!r}, and "
        f"{answer!r} with extract={extract!r}), as in {len(empty)} of "
        f"{total} rows; name other columns, or set source.drop_unanswered")
  if not pairs:
    raise InputError("the source has no rows; expected a question and an "
                     "answer in each")
  return pairs, [f"{len(empty)} of {total} rows have no answer and were "
                 "dropped"] if empty else []


def _no_column(path: str, where: str, columns) -> InputError:
  """Returns the error for a missing column."""
  near = difflib.get_close_matches(path, columns, n=1, cutoff=0) or ["none"]
  return InputError(
      f"{where}: no column {path!r}; the nearest is {near[0]!r} (there are: "
      f"{', '.join(columns)}); inside a column, write it as in "
      "'prompt.0.content'")


def _text(row: dict, path: str, where: str) -> str:
  """Returns the text at a dotted path of columns and indices; "" for null."""
  value = row
  for part in [path] if path in row else path.split("."):
    try:
      value = value[int(part) if isinstance(value, list) else part]
    except (LookupError, TypeError, ValueError) as error:
      raise _no_column(path, where, row) from error
  if isinstance(value, bytes):
    try:
      value = value.decode("utf-8")
    except UnicodeDecodeError as error:
      raise InputError(f"{where}: {path!r} is not UTF-8 ({error}); convert "
                       "the file") from error
  if value is None:
    return ""
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise InputError(f"{where}: {path!r} is a {type(value).__name__}, "
                     "expected text or a number; name a column inside it as in "
                     f"'{path}.0.content' or '{path}.ground_truth'")
  text = str(value).strip()
  if not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
    raise InputError(f"{where}: {path!r} contains half of a surrogate pair, "
                     "which is not valid text; repair the file")
  return text


def _file_rows(pattern: str, columns: tuple[str, ...]) -> Rows:
  """Yields the rows of all files that match a pattern, sorted by file name."""
  files = sorted(glob.glob(pattern, recursive=True))
  if not files:
    raise InputError(f"source.path={pattern!r}: no such file (searched from "
                     f"{os.getcwd()})")
  for file in files:
    reader = _READERS.get(pathlib.Path(file).suffix)
    if reader is None:
      raise InputError(f"{file}: expected a name that ends in one of "
                       f"{', '.join(_READERS)}")
    yield from reader(file, columns)


def _decoded(file: str) -> str:
  try:
    return pathlib.Path(file).read_bytes().decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = error.object[:error.start].count(b"\n") + 1
    raise InputError(f"{file}:{line}: not UTF-8 ({error.reason} at byte "
                     f"{error.start}); convert the file") from error
  except OSError as error:
    raise InputError(f"{file}: cannot be read ({reason(error)})") from error


def _json(text: str, where: str):
  try:
    return json_text.loads(text)
  except ValueError as error:
    raise InputError(f"{where}: not JSON ({error})") from error


def _row(value, where: str) -> tuple[str, dict]:
  if not isinstance(value, dict):
    raise InputError(f"{where}: expected an object of columns, not a "
                     f"{type(value).__name__}")
  return where, value


def _jsonl_rows(file: str, _) -> Rows:
  # splitlines would also split at characters that JSON strings may contain.
  for number, line in enumerate(_decoded(file).split("\n"), 1):
    if line.strip():
      yield _row(_json(line, f"{file}:{number}"), f"{file}:{number}")


def _json_rows(file: str, _) -> Rows:
  """Yields the rows of a list, or a single row: MATH has a file per problem."""
  value = _json(_decoded(file), file)
  if not isinstance(value, list):
    yield _row(value, file)
    return
  for number, each in enumerate(value):
    yield _row(each, f"{file}[{number}]")


def _parquet_rows(file: str, columns: tuple[str, ...]) -> Rows:
  # Imported here because it is slow.
  import pyarrow
  from pyarrow import parquet
  try:
    with parquet.ParquetFile(file) as opened:
      names = opened.schema_arrow.names
      tops = [path if path in names else path.split(".")[0]
              for path in columns]
      for path, top in zip(columns, tops, strict=True):
        if top not in names:
          raise _no_column(path, file, names)
      number = 0
      for batch in opened.iter_batches(columns=sorted(set(tops))):
        for row in batch.to_pylist():
          yield f"{file}[{number}]", row
          number += 1
  except UnicodeDecodeError as error:
    raise InputError(f"{file}: a text of {' or '.join(columns)} is not UTF-8 "
                     f"({error}); convert the file") from error
  except (pyarrow.ArrowException, OSError) as error:
    raise InputError(f"{file}: not a readable Parquet file "
                     f"({' '.join(str(error).split())[:200]})") from error


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows,
            ".parquet": _parquet_rows}


def _plain(value):
  """Returns a row of tfds with Python's own values instead of numpy's."""
  if isinstance(value, dict):
    return {key: _plain(each) for key, each in value.items()}
  return value.tolist() if hasattr(value, "tolist") else value


def _tfds_rows(dataset: str, data_dir: str | None, split: str) -> Rows:
  # Imported here because it is slow. The import of tfds.text adds its builders.
  import tensorflow_datasets as tfds
  import tensorflow_datasets.text
  array_record = tfds.core.FileFormat.ARRAY_RECORD
  try:
    if os.path.isdir(dataset):
      builder = tfds.builder_from_directory(dataset)
      if builder.info.file_format != array_record:
        raise InputError(
            f"{dataset}: written as {builder.info.file_format.value}, expected "
            "array_record (tfds loses rows of parquet, and needs TensorFlow "
            "for tfrecord); write it again with file_format='array_record'")
    else:
      # tfds would ask for TensorFlow to read its default format.
      builder = tfds.builder(dataset, data_dir=data_dir,
                             file_format=array_record)
      builder.download_and_prepare()
    source = builder.as_data_source(split=split)
    for number in range(len(source)):
      yield f"{dataset}/{split}[{number}]", _plain(source[number])
  except InputError:
    raise
  except Exception as error:  # errors have many types
    raise InputError(
        f"source.dataset={dataset!r}, split {split!r}: tfds cannot read it "
        f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); "
        "expected a folder with a dataset_info.json, or a builder of tfds.text "
        "that is in data_dir already or can be downloaded") from error
