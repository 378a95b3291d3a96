"""Each row of a stratum file is checked when the file is read."""

import json
import shlex

import pytest

from configs import hard
from isojax.errors import InputError
from isojax.models import tokenizer as tokenizer_lib
from isojax.run import setup as setup_lib
from isojax.tasks import prompts
from isojax.tasks import strata as strata_lib
from isojax.tasks.problem import Problem

HEADER = {"stratum": "hard", "task": "countdown", "model": "m",
          "model_sha256": "0", "source": {"kind": "countdown"}}
ROWS = [{"split": split, "id": i, "question": "1 2 3=6", "answer": "1+2+3",
         "correct": 0} for split in strata_lib.SPLITS for i in range(2)]

def test_mean_tokens_of_problems(tmp_path):
  path = str(tmp_path / "s.jsonl")
  tokens = lambda rows, split: strata_lib.expected_tokens(
      *(stratum := strata_lib.write(path, HEADER, rows)
        or strata_lib.read(path), split, getattr(stratum, split)))
  rows = [row | {"tokens": 3.5 + i} for i, row in enumerate(ROWS)]
  assert tokens(rows, "train") == [3.5, 4.5]
  assert tokens([rows[2], *rows[:2], rows[3]], "validation") == [5.5, 6.5]
  # One was not measured: nothing is expected of its split.
  assert tokens([ROWS[0], *rows[1:]], "train") is None
  assert tokens([ROWS[0], *rows[1:]], "validation") == [5.5, 6.5]


def written(path, rows, header=HEADER) -> None:
  """A file whose hash is right, whatever its rows are."""
  lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
  header = strata_lib.sealed(header | {"sha256": strata_lib.digest(lines)})
  path.write_text("\n".join([json.dumps(header), *lines]) + "\n",
                  encoding="utf-8")


@pytest.mark.parametrize("change, found", [
    ({"question": 5}, "question=5: expected text"),
    ({"answer": None}, "answer=None: expected text"),
    ({"question": ""}, "question='': expected numbers, an equals sign"),
    ({"question": "1 2=3=4"}, "question='1 2=3=4': expected numbers"),
    ({"question": "1 2=3<eos>"}, "question='1 2=3<eos>': expected numbers"),
    ({"question": "1 2=" + "3" * 5000}, "expected numbers"),
    ({"id": "7"}, "id='7': expected a whole number"),
    ({"id": True}, "id=True: expected a whole number"),
    ({"id": 2**32}, "id=4294967296: expected a whole number"),
    ({"id": 0}, "id=0 is used twice in its split"),
    ({"split": "test"}, "not a stratum file .KeyError..test"),
    ("{", "not a stratum file .JSONDecodeError"),
    ("[]", "not a stratum file .TypeError"),
    ("{}", "not a stratum file .KeyError..id")])
def test_a_wrong_row_is_named(tmp_path, change, found):
  row = change if isinstance(change, str) else ROWS[1] | change
  written(tmp_path / "s.jsonl", [ROWS[0], row, *ROWS[2:]])
  with pytest.raises(InputError, match=f"s.jsonl:3: .*{found}"):
    strata_lib.read(str(tmp_path / "s.jsonl"))


@pytest.mark.parametrize("header, rows, edit, found", [
    (HEADER, ROWS, lambda text: "{" + text[text.index("\n"):],
     ":1: not a stratum file"),
    (HEADER, ROWS, lambda text: text.replace("1+2+3", "3+2+1", 1),
     "the file was cut or edited"),
    (HEADER, ROWS, lambda text: text.replace('"model_sha256": "0"',
                                             '"model_sha256": "1"'),
     ":1: the hash of the header is another one: it was edited"),
    (HEADER, ROWS, lambda text: text.replace('"header_sha256"', '"hash"'),
     ":1: the hash of the header"),
    (HEADER, ROWS, lambda text: "[1]" + text[text.index("\n"):],
     ":1: .1.: expected the header, an object"),
    (HEADER, ROWS, lambda text: "null", ":1: null: expected the header"),
    (HEADER, ROWS, lambda text: "[" * 50_000, ":1: not a stratum .*Recursion"),
    (HEADER | {"task": "maths"}, ROWS, str,
     ":1: task='maths': expected one of countdown"),
    (HEADER, ROWS[:2], str, "the validation split is empty")])
def test_a_wrong_file_is_refused(tmp_path, header, rows, edit, found):
  path = tmp_path / "s.jsonl"
  written(path, rows, header)
  path.write_text(edit(path.read_text()))
  with pytest.raises(InputError, match=found):
    strata_lib.read(str(path))


def test_headers_may_know_less(tmp_path):
  path = str(tmp_path / "s.jsonl")
  for header in (HEADER | {"model": None, "model_sha256": None},
                 {"stratum": "hard", "task": "countdown"}):
    strata_lib.write(path, header, ROWS)
    assert len(strata_lib.read(path).train) == 2


def test_a_text_may_hold_other_line_breaks(tmp_path):
  """U+2028 and U+0085 end no line of a JSON-lines file."""
  rows = [row | {"answer": "1\u2028+\x85 2"} for row in ROWS]
  written(tmp_path / "s.jsonl",
          [json.dumps(row, ensure_ascii=False) for row in rows])
  stratum = strata_lib.read(str(tmp_path / "s.jsonl"))
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


def test_a_plain_file_gets_the_command_that_makes_a_stratum(tmp_path):
  path = tmp_path / "my words.jsonl"
  path.write_text('{"id": 1, "problem": "1+1?", "target": "2"}\n')
  with pytest.raises(InputError) as caught:
    strata_lib.read(str(path))
  message = str(caught.value)
  assert "plain JSONL with the columns id, problem, target, not a" in message
  words = shlex.split(
      message[message.index("python -m"):message.index(" makes")])
  assert words[3:] == [
      "--config=configs/split_own.py", f"--config.source.path={path}",
      f"--config.out={tmp_path}/my words"]
  assert message.endswith(f"makes {tmp_path}/my words-all.jsonl")


def test_problems_without_a_task_are_for_any(tmp_path):
  """The grader of the run checks them, see inputs.read_stratum."""
  rows = [row | {"question": "any text"} for row in ROWS]
  written(tmp_path / "s.jsonl", rows, HEADER | {"task": None})
  assert len(strata_lib.read(str(tmp_path / "s.jsonl")).train) == 2
  config = hard.get_config()
  config.task.stratum = str(tmp_path / "s.jsonl")
  with pytest.raises(InputError, match="'any text'.*name='countdown'"):
    setup_lib.prepare(config)


def test_a_test_split_is_of_its_stratum_and_missing_or_damaged(tmp_path):
  path = str(tmp_path / "s.jsonl")
  strata_lib.write(path, HEADER, ROWS)
  header = strata_lib.read(path).header
  with pytest.raises(strata_lib.NoTestSplitError, match="test.jsonl: no such"):
    strata_lib.read_test(path, header)
  place = strata_lib.write_test(path, HEADER, [ROWS[1] | {"split": "test"}])
  assert strata_lib.read_test(path, header) == [
      Problem(1, "1 2 3=6", "1+2+3")]
  with pytest.raises(InputError, match=": the test split of stratum "):
    strata_lib.read_test(path, header | {"sha256": "0"})
  for header_, rows, message in (
      (HEADER | {"stratum": "other"}, [ROWS[1] | {"split": "test"}],
       "stratum='other', expected that of "),
      (HEADER | {"source": {"path": "a"}}, [ROWS[1] | {"split": "test"}],
       "source={'path': 'a'}, expected that of .*'countdown'"),
      (HEADER, [], "s.test.jsonl: has no problems")):
    strata_lib.write_test(path, header_, rows)
    with pytest.raises(InputError, match=message):
      strata_lib.read_test(path, header)
  with pytest.raises(InputError, match="a test split, .*/s.jsonl"):
    strata_lib.read(place)
  for header_, message in ((HEADER, "None"), (HEADER | {"of_sha256": 3}, "3")):
    strata_lib.write(place, header_, [])
    with pytest.raises(InputError, match=f"test split of stratum {message},"):
      strata_lib.read_test(path, header)
  strata_lib.write_test(path, HEADER, [ROWS[1] | {"split": "test"}])
  with open(place, encoding="utf-8") as file:
    text = file.read()
  with open(place, "w", encoding="utf-8") as file:
    file.write(text.replace("1+2+3", "3+2+1"))
  with pytest.raises(InputError, match="s.test.jsonl:1: the content hash is"
                     ) as damaged:
    strata_lib.read_test(path, header)
  assert damaged.type is InputError
  with open(place, "w", encoding="utf-8") as file:
    file.write('{"question": "1+1?", "answer": "2"}\n')
  with pytest.raises(InputError, match="question, answer, .*validation=FILE"):
    strata_lib.read_test(path, header)
