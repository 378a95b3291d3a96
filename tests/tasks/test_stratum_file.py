"""Each row of a stratum file is checked when the file is read."""

import json
import re

import pytest

from isojax.errors import InputError
from isojax.models import tokenizer as tokenizer_lib
from isojax.tasks import prompts
from isojax.tasks import stratum_file
from isojax.tasks.problem import Problem

HEADER = {"stratum": "hard", "task": "countdown", "model": "m",
          "model_sha256": "0", "source": {"kind": "countdown"}}
ROWS = [{"split": split, "id": i, "question": "1 2 3=6", "answer": "1+2+3",
         "correct": 0} for split in stratum_file.SPLITS for i in range(2)]
ABSENT = object()


def edited(values: dict, field: str, value) -> dict:
  rest = {key: x for key, x in values.items() if key != field}
  return rest if value is ABSENT else rest | {field: value}


def test_mean_tokens_of_problems(tmp_path):
  path = str(tmp_path / "s.jsonl")
  of = lambda rows, split: stratum_file.expected_tokens(
      *(stratum := stratum_file.write(path, HEADER, rows)
        or stratum_file.read(path), split, getattr(stratum, split)))
  rows = [row | {"tokens": 3.5 + i} for i, row in enumerate(ROWS)]
  assert of(rows, "train") == [3.5, 4.5]
  assert of([rows[2], *rows[:2], rows[3]], "validation") == [5.5, 6.5]
  # One was not measured: nothing is expected of its split.
  assert of([ROWS[0], *rows[1:]], "train") is None
  assert of([ROWS[0], *rows[1:]], "validation") == [5.5, 6.5]


@pytest.mark.parametrize("field, value, found", [
    ("question", 5, "question=5, expected a text"),
    ("question", None, "question=None, expected a text"),
    ("question", ["1 2=3"], "question=['1 2=3'], expected a text"),
    ("question", {}, "question={}, expected a text"),
    ("question", ABSENT, "no field 'question', expected a text"),
    ("question", "\ud800 2=3", "question='\\ud800 2=3', expected a text"),
    ("question", "", "question='': expected numbers, an equals sign"),
    ("question", "1 2 3", "question='1 2 3': expected numbers, an equals"),
    ("question", "1 2=3=4", "question='1 2=3=4': expected numbers"),
    ("question", "1 b=3", "question='1 b=3': expected numbers"),
    ("question", "1 2=x", "question='1 2=x': expected numbers"),
    ("question", "=3", "question='=3': expected numbers"),
    ("question", "1 2=3<eos>", "question='1 2=3<eos>': expected numbers"),
    ("question", "1 2=" + "3" * 5000, "expected numbers"),
    ("id", "7", "id='7', expected a whole number"),
    ("id", None, "id=None, expected a whole number"),
    ("id", [7], "id=[7], expected a whole number"),
    ("id", float("nan"), "id=nan, expected a whole number"),
    ("id", 7.0, "id=7.0, expected a whole number"),
    ("id", True, "id=True, expected a whole number"),
    ("id", -1, "id=-1, expected a whole number"),
    ("id", 2**32, "id=4294967296, expected a whole number"),
    ("id", 0, "id=0 is used twice in the train split"),
    ("answer", 6, "answer=6, expected a text"),
    ("answer", "\udfff", "answer='\\udfff', expected a text"),
    ("tokens", 0, "tokens=0, expected a positive number"),
    ("tokens", "5", "tokens='5', expected a positive number"),
    ("tokens", float("nan"), "tokens=nan, expected a positive number"),
    ("tokens", True, "tokens=True, expected a positive number"),
    ("split", "test", "split='test', expected one of train, validation"),
    ("split", [], "split=[], expected one of train, validation"),
])
def test_a_wrong_row_is_named(tmp_path, field, value, found):
  path = str(tmp_path / "s.jsonl")
  rows = [ROWS[0], edited(ROWS[1], field, value), *ROWS[2:]]
  # `write` counts rows by split, which this row may lack.
  lines = [json.dumps(row) for row in rows]
  (tmp_path / "s.jsonl").write_text("\n".join([json.dumps(
      HEADER | {"sha256": stratum_file.digest(lines)}), *lines]) + "\n")
  with pytest.raises(InputError, match=re.escape(f"{path}:3: ") + ".*"
                     + re.escape(found)):
    stratum_file.read(path)


@pytest.mark.parametrize("line", ["5", "[]", "null", '"a"', "{", ""])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
  path = tmp_path / "s.jsonl"
  for number in (1, 2):
    stratum_file.write(str(path), HEADER, ROWS)
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    if number > 1:
      lines[0] = json.dumps(HEADER | {"sha256": stratum_file.digest(lines[1:])})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=f"s.jsonl:{number}: not a stratum"):
      stratum_file.read(str(path))


@pytest.mark.parametrize("field, value, found", [
    ("stratum", 5, "stratum=5, expected a text"),
    ("stratum", ABSENT, "no field 'stratum', expected a text"),
    ("task", None, "task=None, expected a text"),
    ("task", "maths", "task='maths', expected one of countdown, math,"),
    ("model", ABSENT, "no field 'model', expected a text, or null"),
    ("model", ["m"], "model=['m'], expected a text, or null"),
    ("model_sha256", 5, "model_sha256=5, expected a text, or null"),
    ("source", None, "source=None, expected the source"),
    ("source", "countdown", "source='countdown', expected the source"),
])
def test_a_wrong_header_is_named(tmp_path, field, value, found):
  path = str(tmp_path / "s.jsonl")
  stratum_file.write(path, edited(HEADER, field, value), ROWS)
  with pytest.raises(InputError, match=re.escape(f"{path}:1: ") + ".*"
                     + re.escape(found)):
    stratum_file.read(path)


def test_headers_may_know_less(tmp_path):
  path = str(tmp_path / "s.jsonl")
  for header in (HEADER | {"model": None, "model_sha256": None},
                 {"stratum": "hard", "task": "countdown"}):
    stratum_file.write(path, header, ROWS)
    assert len(stratum_file.read(path).train) == 2


def test_a_text_may_hold_other_line_breaks(tmp_path):
  """U+2028 and U+0085 end no line of a JSON-lines file."""
  rows = [row | {"answer": "1\u2028+\x85 2"} for row in ROWS]
  lines = [json.dumps(row, ensure_ascii=False) for row in rows]
  (tmp_path / "s.jsonl").write_text("\n".join([json.dumps(
      HEADER | {"sha256": stratum_file.digest(lines)}), *lines]) + "\n",
                                    encoding="utf-8")
  stratum = stratum_file.read(str(tmp_path / "s.jsonl"))
  assert stratum.train[1].answer == "1\u2028+\x85 2"


def test_a_special_token_is_no_question():
  """Without the check the prompt would hold the token that ends an answer."""
  tokenizer = tokenizer_lib.load("isojax/assets/countdown-tiny")
  cfg = prompts.PromptConfig("{question}:", chat=False, system="")
  encode = lambda text: prompts.encode(
      tokenizer, [Problem(7, text, "")], cfg, S=9, V=20)
  _, prompt = encode("1 2=3")
  assert prompt.len_P == [6]
  with pytest.raises(InputError, match="problem 7: .*'1<eos>2' holds '<eos>'"):
    encode("1<eos>2")
