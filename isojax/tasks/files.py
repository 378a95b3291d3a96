"""Loads problem sets: JSONL, JSON, Parquet and Arrow files, and tfds data sets.

Only launch.split reads these. Training reads the stratum files that it writes.
"""

import glob
import json
import math
import os
import pathlib

from isojax.errors import InputError, reason
from isojax.tasks import answer_extraction
from isojax.tasks import arrow_files
from isojax.tasks import dedup
from isojax.tasks.arrow_files import Rows
from isojax.tasks.problem import Pool


def load_files(path: str, validation: str | None, share: float, question: str,
               answer: str, extract: str, drop_unanswered: bool) -> Pool:
  """Returns the problems of local JSONL, JSON, Parquet or Arrow files.

  An answer may be a number, or a list with one answer.

  Args:
    path: a file, a pattern such as "MATH/train/**/*.json", or a folder that
      Hugging Face's save_to_disk wrote.
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
  pairs, empty, several, total = [], [], [], 0
  for where, row in rows:
    total += 1
    asked = _text(_value(row, question, where), question, where)
    answers = _answers(_value(row, answer, where), answer, where)
    found = {answer_extraction.extract(text, extract) for text in answers}
    found = {text.strip() for text in found if text}
    if len(found) > 1:
      several.append(where)
    elif asked and found:
      pairs.append((asked, *found))
    else:
      empty.append(where)
  if empty and (not drop_unanswered or not pairs):
    raise InputError(
        f"{empty[0]}: no question or no answer ({question!r}, and "
        f"{answer!r} with extract={extract!r}), as in {len(empty)} of "
        f"{total} rows; name other columns, or set source.drop_unanswered")
  if several and (not drop_unanswered or not pairs):
    raise InputError(
        f"{several[0]}: {answer!r} is a list of several answers, as in "
        f"{len(several)} of {total} rows, expected one; take the first with "
        f"source.answer={answer}.0, or drop the rows with "
        "source.drop_unanswered")
  if not pairs:
    raise InputError("the source has no rows; expected a question and an "
                     "answer in each")
  return pairs, [f"{len(rows)} of {total} rows have {what} and were dropped"
                 for rows, what in ((empty, "no answer"),
                                    (several, "several answers")) if rows]


def _value(row: dict, path: str, where: str):
  """Returns the value at a dotted path of columns and indices."""
  value = row
  for part in [path] if path in row else path.split("."):
    try:
      value = value[int(part) if isinstance(value, list) else part]
    except (LookupError, TypeError, ValueError) as error:
      raise arrow_files.no_column(path, where, row) from error
  return value


def _answers(value, path: str, where: str) -> list[str]:
  """Returns the texts of one answer, or of a list of them."""
  return [_text(each, path, where)
          for each in (value if isinstance(value, list) else [value])]


def _text(value, path: str, where: str) -> str:
  """Returns the text of a column; "" for null and NaN."""
  if isinstance(value, bytes):
    try:
      value = value.decode("utf-8")
    except UnicodeDecodeError as error:
      raise InputError(f"{where}: {path!r} is not UTF-8 ({error}); convert "
                       "the file") from error
  if value is None or isinstance(value, float) and math.isnan(value):
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
    if os.path.isdir(file):
      yield from arrow_files.folder_rows(file, columns)
      continue
    reader = _READERS.get(pathlib.Path(file).suffix)
    if reader is None:
      raise InputError(f"{file}: expected a name that ends in one of "
                       f"{', '.join(_READERS)}, or a folder of save_to_disk")
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
    return json.loads(text)
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


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows,
            ".parquet": arrow_files.parquet_rows,
            ".arrow": arrow_files.arrow_rows}


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
