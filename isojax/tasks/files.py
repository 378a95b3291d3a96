"""Loads problems from files and from TensorFlow Datasets (tfds).

Only launch.split loads these; training reads the stratum files that
launch.split writes.
"""

from collections.abc import Callable, Iterator
import decimal
import functools
import glob
import json
import os
import pathlib

from isojax.errors import InputError, is_text, TEXT, UNREADABLE
from isojax.tasks import answer_extraction
from isojax.tasks import problem as problem_lib
from isojax.tasks.problem import Pool

Rows = Iterator[tuple[str, dict]]  # (location of a row, its columns)


def load_files(path: str, validation: str | None, share: float, question: str,
               answer: str, extract: str, drop_unanswered: bool) -> Pool:
  """The problems of local JSONL, JSON, Parquet or Arrow files.

  An answer may be a number, or a list with one answer.

  Args:
    path: a file, a pattern such as "MATH/train/**/*.json", or a folder that
      Hugging Face's save_to_disk wrote.
    validation: file or pattern of the validation problems; None: a share of
      `path` is held out, chosen by content.
    share: the share that is held out, between 0 and 1.
    question: column of the question; dots select inside a column, as in
      "prompt.0.content".
    answer: column of the answer.
    extract: place of the answer in its column, see answer_extraction.
    drop_unanswered: whether rows without a question, or without exactly one
      answer, are dropped with a note; otherwise they are an error.
  """
  return _pool(_file_rows, path, validation, share,
               (question, answer, extract, drop_unanswered))


def load_tfds(dataset: str, data_dir: str | None, split: str,
              validation: str | None, share: float, question: str, answer: str,
              extract: str, drop_unanswered: bool) -> Pool:
  """The problems of a tfds data set, without TensorFlow.

  Args:
    dataset: a builder of tfds.text, such as "gsm8k", or a folder with the
      dataset_info.json of a data set in array_record format.
    data_dir: folder to which a builder downloads; None: the default of tfds.
    split: such as "train" or "train[:50%]".
    validation: another split, or None.

  The other arguments are those of `load_files`.
  """
  return _pool(functools.partial(_tfds_rows, dataset, data_dir), split,
               validation, share, (question, answer, extract, drop_unanswered))


PARQUET_ROWS = 1000  # in memory at once; unused columns may be wide
SOURCES = {"files": load_files, "tfds": load_tfds}  # of any task


def _pool(rows: Callable[[str], Rows], train: str, validation: str | None,
          share: float, columns: tuple) -> Pool:
  if validation is None and not 0 < share < 1:
    raise InputError(f"source.share={share}: expected a share between 0 and 1 "
                     "of the problems to hold out for validation")
  pairs, notes = _pairs(rows(train), *columns)
  held_out, more = (None, []) if validation is None else _pairs(
      rows(validation), *columns)
  pool = problem_lib.make_pool(pairs, held_out, share)
  return Pool(pool.train, pool.validation, (*notes, *more, *pool.notes))


def _pairs(rows: Rows, question: str, answer: str, extract: str,
           drop_unanswered: bool) -> tuple[list[tuple[str, str]], list[str]]:
  """(question, answer) of each row, and a note on dropped rows."""
  if extract not in answer_extraction.KINDS:
    raise InputError(f"source.extract={extract!r}: expected one of "
                     f"{', '.join(answer_extraction.KINDS)}")
  pairs, dropped, total = [], [], 0
  for where, row in rows:
    total += 1
    question_text = _text(
        _value(row, question, where, "question"), question, where)
    value = _value(row, answer, where, "answer")
    answers = {answer_extraction.extract(_text(x, answer, where), extract)
               for x in (value if isinstance(value, list) else [value])}
    answers = {text.strip() for text in answers if text}
    if question_text and len(answers) == 1:
      pairs.append((question_text, *answers))
    else:
      dropped.append(where)
  if not total:
    raise InputError("the source has no rows; expected a question and an "
                     "answer in each")
  if dropped and not (drop_unanswered and pairs):
    raise InputError(
        f"{dropped[0]}: no question, or not one answer ({question!r}, and "
        f"{answer!r} with extract={extract!r}), as in {len(dropped)} of "
        f"{total} rows; name other columns, such as {answer}.0 of a list, or "
        "set source.drop_unanswered")
  return pairs, [f"{len(dropped)} of {total} rows have no question, or not "
                 "one answer, and were dropped"] if dropped else []


def _value(row: dict, path: str, where: str, key: str):
  """The value at a dotted path of columns and indices, source.KEY."""
  value, parts = row, [path] if path in row else path.split(".")
  for part in parts:
    try:
      value = value[int(part) if isinstance(value, list) else part]
    except (LookupError, TypeError, ValueError) as error:
      raise InputError(
          f"{where}: no column {path!r}; set source.{key} to another one, "
          "inside a column as in 'prompt.0.content', or repair the row; there "
          f"are: {', '.join(row)}") from error
  return value


def _text(value, path: str, where: str) -> str:
  """The text of a column; "" for null and NaN; "11" for 11.0.

  A column of integers becomes one of floats where a value is missing.
  """
  if isinstance(value, bytes):  # of tfds
    value = value.decode("utf-8")
  if value is None or value != value:  # NaN
    return ""
  if isinstance(value, decimal.Decimal):
    value = f"{value:f}"
    value = value.rstrip("0").rstrip(".") if "." in value else value
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise InputError(f"{where}: {path!r} is a {type(value).__name__}, "
                     "expected text or a number; name a column inside it as in "
                     f"'{path}.0.content' or '{path}.ground_truth'")
  if not is_text(str(value)):
    raise InputError(f"{where}: {path!r} is {value!r:.60}, expected {TEXT}; "
                     "repair the row or drop it")
  return str(value).strip()


def _file_rows(pattern: str) -> Rows:
  """Yields the rows of all files that match a pattern, sorted by file name."""
  files = sorted(glob.glob(pattern, recursive=True))
  if not files:
    raise InputError(f"source.path={pattern!r}: no such file (searched from "
                     f"{os.getcwd()})")
  for file in files:
    kind = "folder" if os.path.isdir(file) else pathlib.Path(file).suffix
    if kind not in _READERS:
      raise InputError(f"{file}: expected a folder of save_to_disk, or a name "
                       f"that ends in one of {', '.join(_READERS)}")
    place = ""
    try:
      for place, row in _READERS[kind](file):
        if not isinstance(row, dict):
          raise InputError(f"{file}{place}: expected an object of columns, not "
                           f"a {type(row).__name__}")
        yield file + place, row
    except InputError:
      raise
    except UNREADABLE as error:
      raise InputError(
          f"{file}: not readable as {kind}{' after ' + place if place else ''} "
          f"({' '.join(str(error).split())[:200]})") from error


def _jsonl_rows(file: str):
  # splitlines would also split at characters that JSON strings may contain.
  text = pathlib.Path(file).read_text(encoding="utf-8-sig")
  for number, line in enumerate(text.split("\n"), 1):
    if line.strip():
      yield f":{number}", json.loads(line)


def _json_rows(file: str):
  """Yields the rows of a list, or a single row: MATH has a file per problem."""
  value = json.loads(pathlib.Path(file).read_text(encoding="utf-8-sig"))
  if isinstance(value, list):
    yield from _numbered(value)
  else:
    yield "", value


def _parquet_rows(file: str):
  from pyarrow import parquet  # slow
  with parquet.ParquetFile(file) as table:
    yield from _numbered(row for batch in table.iter_batches(PARQUET_ROWS)
                         for row in batch.to_pylist())


def _arrow_rows(file: str):
  """Yields the rows of an Arrow stream, as datasets writes, or Arrow file."""
  import pyarrow
  with pyarrow.memory_map(file) as source:
    try:
      batches = pyarrow.ipc.open_stream(source)
    except pyarrow.ArrowInvalid:
      reader = pyarrow.ipc.open_file(source)
      batches = map(reader.get_batch, range(reader.num_record_batches))
    yield from _numbered(row for batch in batches
                         for row in batch.to_pylist())


def _folder_rows(folder: str):
  """Yields the rows of a folder that `save_to_disk` wrote."""
  path = pathlib.Path(folder)
  if not (path / "state.json").is_file():
    raise InputError(
        f"{folder}: a folder without state.json, expected that of a split "
        "which Hugging Face's save_to_disk wrote; name its files instead, such "
        f"as {folder}/**/*.parquet")
  state = json.loads((path / "state.json").read_text("utf-8"))
  if any(value for key, value in state.items() if key.startswith("_indices")):
    raise InputError(f"{folder}: saved with indices of rows, which are not "
                     "read here; apply flatten_indices() before save_to_disk")
  for part in state["_data_files"]:
    for number, row in _arrow_rows(str(path / part["filename"])):
      yield f"/{part['filename']}{number}", row


def _numbered(rows):
  for number, row in enumerate(rows):
    yield f"[{number}]", row


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows,
            ".parquet": _parquet_rows, ".arrow": _arrow_rows,
            "folder": _folder_rows}


def _plain(value):
  """A row of tfds with Python's own values instead of numpy's."""
  if isinstance(value, dict):
    return {key: _plain(x) for key, x in value.items()}
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
  except Exception as error:  # tfds raises many types
    raise InputError(
        f"source.dataset={dataset!r}, split {split!r}: tfds cannot read it "
        f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); "
        "expected a folder with a dataset_info.json, or a builder of tfds.text "
        "that is in data_dir already or can be downloaded") from error
