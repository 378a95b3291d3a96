"""Problem sets: what real files look like, and every way they can be wrong."""

import decimal
import functools
import http.server
import json
import pathlib
import threading
import typing

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from configs import split_math, split_tiny
from isojax.core import sections
from isojax.errors import InputError
from isojax.tasks import base
from isojax.tasks import problem as problem_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks.problem import Pool, Problem


@pytest.mark.parametrize("one, other", [
    ("Find $x^{2}$, if  x = 3.5.", r"find \(x^2\) if x=3.5"),
    ("What is ½?", "what is 1/2"),
    (r"\left( \dfrac{1}{2} \right)\,dx", r"(\frac12)dx"),
    ("the points (1, 2)", "The points (1,2)."),
    ("3 − 2", "3-2"),
    ("Ｘ²", "x^2"),
    ("a\n\n  b", "a b"),
    ("I'm Ann's, the dogs' letter 'a'", "I’m Ann’s, the dogs’ letter “a”"),
    ("Find f'(3)", "find f’ (3)."), ("y′ = 0", "y' = 0"),
])
def test_the_same_problem(one, other):
  assert problem_lib.normalised(one) == problem_lib.normalised(other)


@pytest.mark.parametrize("one, other", [
    ("x²", "x2"), ("1½", "11/2"), ("1 23", "12 3"), ("1.5", "15"),
    (".5", "5"), ("5!", "5"), ("3-2", "3+2"), ("(a+b)*c", "a+(b*c)"),
    ("-3", "3"), ("1,5", "15"), ("x_1", "x^1"), ("a<b", "a>b"),
    (r"\frac{12}{3}", r"\frac{1}{23}"),
    ("Find f'(3)", "Find f(3)"), ("$y'' + y = x$", "$y' + y = x$"),
    ("(f+g)'(2)", "(f+g)(2)"),
])
def test_another_problem(one, other):
  assert problem_lib.normalised(one) != problem_lib.normalised(other)


def test_the_address_of_a_problem_never_changes():
  """The first 4 bytes of `b2sum -l 64` of "what is 1+1", little end first."""
  pool = problem_lib.make_pool(
      [("What is 1+1?", "2")], [("What is 2+2?", "4")], 0.0)
  assert pool.train == [Problem(120808005, "What is 1+1?", "2")]


QUESTIONS = st.lists(st.text("abc 12.", min_size=1), min_size=1, max_size=30)


@hypothesis.given(QUESTIONS, QUESTIONS, st.randoms())
def test_pool_does_not_depend_on_order_and_grows(first, more, random):
  pairs = [(question, str(i % 2)) for i, question in enumerate(first)]
  pool = problem_lib.make_pool(pairs, None, 0.3)
  mixed = list(pairs)
  random.shuffle(mixed)
  assert problem_lib.make_pool(mixed, None, 0.3) == pool
  grown = problem_lib.make_pool(
      pairs + [(question, "9") for question in more], None, 0.3)
  key = lambda problems: {(p.id, problem_lib.normalised(p.question))
                          for p in problems}
  assert key(pool.train) <= key(grown.train)
  assert key(pool.validation) <= key(grown.validation)
  ids = [p.id for p in grown.train + grown.validation]
  assert len(ids) == len(set(map(problem_lib.normalised, first + more)))
  assert len(set(ids)) == len(ids)


def test_a_fifth_is_held_out():
  pool = problem_lib.make_pool(
      [(f"question {i}", "1") for i in range(2000)], None, 0.2)
  assert 330 < len(pool.validation) < 470  # 400, sd 18
  assert len(pool.train) + len(pool.validation) == 2000


def test_copies_are_dropped_and_said():
  pool = problem_lib.make_pool(
      [("What is 1 + 1?", "2"), ("what is $1+1$", "3"), ("Zero?", "0")],
      [("ZERO", "0"), ("One?", "1")], 0.0)
  assert [(p.question, p.answer) for p in pool.train] == [
      ("What is 1 + 1?", "2")]
  assert {p.question for p in pool.validation} == {"ZERO", "One?"}
  assert pool.notes == (
      "1 of 3 problems are copies of others and were dropped; 1 questions have "
      "copies with another answer",
      "1 training problems are in the validation set too and were dropped from "
      "training")


def test_sources_say_the_types_of_their_arguments():
  for task in base.TASKS.values():
    for kind, load in task.sources.items():
      hints = typing.get_type_hints(load)
      assert hints.pop("return") is Pool, kind
      assert set(hints) == set(load.__code__.co_varnames[
          :load.__code__.co_argcount]), kind


def read(source):
  """A config's source section to a pool, as launch.split does it."""
  fields = source.to_dict() if hasattr(source, "to_dict") else dict(source)
  kind = fields.pop("kind")
  load, = {task.sources[kind] for task in base.TASKS.values()
           if kind in task.sources}
  return sections.section(load, fields, "config.source")


def facts(problems):
  return {(p.question, p.answer) for p in problems}


def write(path, rows):
  """In the format that the name ends in."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == ".parquet":
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  elif path.suffix == ".jsonl":
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  else:
    path.write_text(json.dumps(rows))


# Files as their authors publish them: recipe -> files, and the facts and notes
# that are read. MATH has a file for each problem, guru chat messages and a
# struct, Polaris two shards, the others a file of rows with empty answers.
PUBLISHED = {
    "math": ({
        "MATH/train/algebra/1.json": {
            "problem": "What is $2^3$?", "solution": r"It is $\boxed{8}$."},
        "MATH/train/geometry/7.json": {
            "problem": "Half of one?", "solution": r"So \boxed{\frac{1}{2}}"},
        "MATH/test/algebra/2.json": {
            "problem": "what is 2^3", "solution": r"\boxed{8}"},
        "MATH/test/algebra/3.json": {
            "problem": "One?", "solution": r"\boxed{1}"}},
             {("Half of one?", r"\frac{1}{2}")},
             {("what is 2^3", "8"), ("One?", "1")},
             ("1 training problems are in the validation set too and were "
              "dropped from training",)),
    "math-json": ({
        "math/train.json": [
            {"problem": "1/2?", "answer": "0.5", "difficulty": 3.0},
            {"problem": "1+1?", "answer": None, "difficulty": 3.0}],
        "math/test.json": [{"problem": "2+2?", "answer": "4"}]},
                  {("1/2?", "0.5")}, {("2+2?", "4")},
                  ("1 of 2 rows have no question, or not one answer, and were "
                   "dropped",)),
    "guru-math": ({
        "guru-RL-92k/train/math__combined_54.4k.parquet": [
            {"prompt": [{"role": "user", "content": f"What is {i}+1?"}],
             "reward_model": {"ground_truth": str(i + 1), "style": "rule"},
             "qwen2.5_7b_pass_rate": i / 40} for i in range(40)]},
                  {(f"What is {i}+1?", str(i + 1)) for i in range(40)}, None,
                  ()),
    "polaris": ({
        f"Polaris-Dataset-53K/data/train-{shard}.parquet": [
            {"problem": f"Twice {i}?", "answer": f"{2 * i}", "level": "3/8"}
            for i in range(20 * shard, 20 * shard + 20)]
        for shard in range(2)},
                {(f"Twice {i}?", f"{2 * i}") for i in range(40)}, None, ()),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_as_it_is_published(name, tmp_path, monkeypatch):
  """Without a set for validation, some of the problems are held out."""
  monkeypatch.chdir(tmp_path)
  files, train, validation, notes = PUBLISHED[name]
  for file, rows in files.items():
    write(tmp_path / file, rows)
  pool = read(split_math.get_config(name).source)
  if validation is None:
    assert pool.train and pool.validation
    assert facts(pool.train + pool.validation) == train
  else:
    assert (facts(pool.train), facts(pool.validation)) == (train, validation)
  assert pool.notes == notes
  if name == "guru-math":  # a column name with a dot of its own
    source = split_math.get_config(name).source
    source.answer = "qwen2.5_7b_pass_rate"
    pool = read(source)
    assert ("What is 1+1?", "0.025") in facts(pool.train + pool.validation)


SAMPLE = pathlib.Path("tests/data/gsm8k")


def test_gsm8k_as_its_authors_publish_it(tmp_path, monkeypatch):
  """From their files, and downloaded by tfds' own builder."""
  from tensorflow_datasets.text.gsm8k import gsm8k
  source = split_math.get_config("gsm8k-jsonl").source
  assert source.path.endswith("grade_school_math/data/train.jsonl")
  source.update(path=f"{SAMPLE}/train.jsonl", validation=f"{SAMPLE}/test.jsonl")
  files = read(source)
  assert sorted(int(p.answer) for p in files.train) == [
      5, 10, 16, 35, 42, 48, 72, 624]
  assert sorted(int(p.answer) for p in files.validation) == [3, 18, 540, 70000]
  handler = functools.partial(http.server.SimpleHTTPRequestHandler,
                              directory=SAMPLE)
  monkeypatch.setattr(handler.func, "log_message", lambda *_: None)
  source = split_math.get_config("gsm8k").source
  source.data_dir = str(tmp_path)
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(gsm8k, "_URLS", {
        f"{split}{kind}": f"http://127.0.0.1:{server.server_port}/{split}.jsonl"
        for split in ("train", "test") for kind in ("", "_socratic")})
    pool = read(source)
    server.shutdown()
  assert facts(pool.train) == facts(files.train)
  assert facts(pool.validation) == facts(files.validation)
  assert list((tmp_path / "gsm8k").rglob("*-train.array_record-*"))
  assert read(source) == pool  # without the server
  source.update(answer="short_answer", extract="whole", split="train[:3]")
  again = read(source)
  assert len(again.train) == 3 and facts(again.train) < facts(pool.train)


def tfds_folder(path, rows, file_format):
  import tensorflow_datasets as tfds

  class Pens(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Rows with a nested column and a list, as users write them."""
    name = "pens"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=(
          tfds.features.FeaturesDict({
              "ask": {"text": tfds.features.Text()},
              "answers": tfds.features.Sequence(tfds.features.Text()),
              "number": tfds.features.Scalar(np.int64)})))

    def _split_generators(self, _):
      return {"train": enumerate(rows)}

    def _generate_examples(self):
      raise NotImplementedError

  builder = Pens(data_dir=str(path), file_format=file_format)
  builder.download_and_prepare()
  return str(builder.data_path)


ROWS = [{"ask": {"text": f"Größe {i}?"}, "answers": [f"{i}", "x"], "number": i}
        for i in range(60)]


def tfds_source(folder, **more):
  return dict(kind="tfds", dataset=folder, data_dir=None, split="train",
              validation=None, share=0.25, question="ask.text",
              answer="answers.0", extract="whole",
              drop_unanswered=False) | more


def test_tfds_folder(tmp_path):
  folder = tfds_folder(tmp_path, ROWS, "array_record")
  pool = read(tfds_source(folder))
  assert facts(pool.train + pool.validation) == {
      (f"Größe {i}?", f"{i}") for i in range(60)}
  assert pool == read(tfds_source(folder, answer="number"))
  for change, message in [
      (dict(split="trian"), "'trian': tfds cannot read it .*Unknown"),
      (dict(answer="answer"), "no column 'answer'; .* there are: "),
      (dict(answer="answers"), "not one answer .'ask.text', and 'answers'"),
      (dict(answer="answers.2"), "no column 'answers.2'"),
      (dict(share=1.0), "source.share=1.0"),
      (dict(dataset=str(tmp_path)), "expected a folder with a dataset_info"),
      (dict(dataset="gsm9k"), "Dataset gsm9k not found")]:
    with pytest.raises(InputError, match=message):
      read(tfds_source(folder, **change))
  folder = tfds_folder(tmp_path / "lossy", ROWS, "parquet")
  with pytest.raises(InputError, match="written as parquet, expected array_"):
    read(tfds_source(folder))


def file_source(file, **more):
  return dict(kind="files", path=str(file), validation=None, share=0.5,
              question="question", answer="answer", extract="whole",
              drop_unanswered=False) | more


GOOD = b'{"question": "1+1?", "answer": "2"}\n'


@pytest.mark.parametrize("name, data, message", [
    ("a.jsonl", GOOD + b'{"question": "2+2?"}\n',
     "a.jsonl:2: no column 'answer'; set source.answer .*; there are: "
     "question"),
    ("a.jsonl", GOOD + b'\n{"question": "2+2?", "answer": " "}\n',
     r"a.jsonl:3: no question, or not one answer .* as in 1 of 2 rows"),
    ("a.jsonl", GOOD + b'{"question": "gr\xfc\xdfe?", "answer": "2"}\n',
     "a.jsonl: not readable as .jsonl .*can't decode byte 0xfc"),
    ("a.jsonl", GOOD + b'{"question": ',
     "a.jsonl: not readable as .jsonl after :1 .*Expecting value"),
    ("a.jsonl", b"[1]\n", "a.jsonl:1: expected an object of columns, not a"),
    ("a.jsonl", b'{"question": "a", "answer": true}\n', "is a bool"),
    ("a.jsonl", b'{"question": ["a"], "answer": "2"}\n',
     "is a list, expected text or a number; name a column inside"),
    ("a.jsonl", b"", "has no rows"),
    ("a.csv", b"question,answer\n", "a.csv: expected .* name that ends in one"),
    ("a.arrow", b"ARROW1 and more", "a.arrow: not readable as .arrow"),
])
def test_bad_files(tmp_path, name, data, message):
  (tmp_path / name).write_bytes(data)
  with pytest.raises(InputError, match=message):
    read(file_source(tmp_path / name))


@pytest.mark.parametrize("column, answers, notes", [
    ("answer", ["72", "10", "5", "42", "624", "35", "48", "16"], ()),
    ("number", ["72", "10", "5", "42", "624", "35", "48", "16"], ()),
    ("answers", ["72", "10", "5", "624", "35", "48", "16"],
     ("1 of 8 rows have no question, or not one answer, and were dropped",))])
def test_a_folder_of_save_to_disk(column, answers, notes):
  """Written by Hugging Face's datasets 5.2; the fourth row has two answers."""
  pool = read(file_source(
      SAMPLE / "saved", answer=column, drop_unanswered=True,
      extract="hash" if column == "answer" else "whole"))
  known = {p.question: p.answer for p in (*pool.train, *pool.validation)}
  rows = [json.loads(line) for line in (SAMPLE / "train.jsonl").open()]
  assert [known[row["question"]] for row in rows
          if row["question"] in known] == answers
  assert pool.notes == notes


@pytest.mark.parametrize("answers, texts", [
    ([3.0, None, 11.0], {"3", "11"}),  # integers that pandas made floats
    ([2.5, -4.0, 1e16], {"2.5", "-4", "10000000000000000"}),
    ([decimal.Decimal(x) for x in ("100.00", "2.50", "0.07")],
     {"100", "2.5", "0.07"}),
    (["11.0", "2.50", "1e3"], {"11.0", "2.50", "1e3"})])  # texts are kept
def test_an_answer_that_is_a_number(answers, texts, tmp_path):
  path = tmp_path / "a.parquet"
  write(path, [{"question": question, "answer": answer}
               for question, answer in zip("abc", answers, strict=True)])
  pool = read(file_source(path, drop_unanswered=True))
  assert {p.answer for p in pool.train + pool.validation} == texts


def test_lists_and_nan(tmp_path):
  path = tmp_path / "a.jsonl"
  write(path, [
      {"question": "a", "answer": ["2"]}, {"question": "b", "answer": [2.5]},
      {"question": "c", "answer": ["7", "7 "]}, {"question": "d", "answer": []},
      {"question": "e", "answer": ["1", "2"]},
      {"question": "f", "answer": float("nan")}])
  with pytest.raises(InputError, match=r"jsonl:4: no question, or not one .*"
                     "as in 3 of 6 rows.*answer.0"):
    read(file_source(path))
  pool = read(file_source(path, drop_unanswered=True))
  assert facts(pool.train + pool.validation) == {
      ("a", "2"), ("b", "2.5"), ("c", "7")}
  assert pool.notes == (
      "3 of 6 rows have no question, or not one answer, and were dropped",)


@pytest.mark.parametrize("files, message", [
    ({}, "without state.json, expected .*save_to_disk"),
    ({"state.json": {}}, "not readable as folder"),
    ({"state.json": {"_data_files": [],
                     "_indices_data_files": [{"filename": "i.arrow"}]}},
     "flatten_indices"),
    ({"dataset_dict.json": {}}, "expected that of a split")])
def test_folders_that_are_refused(tmp_path, files, message):
  for name, content in files.items():
    write(tmp_path / name, content)
  with pytest.raises(InputError, match=message):
    read(file_source(tmp_path))


def test_both_arrow_formats(tmp_path):
  table = pyarrow.table({"question": ["1+1?", "2+2?"], "answer": [2.0, 4.0],
                         "other": [None, None]})
  for name, new in (("stream", pyarrow.ipc.new_stream),
                    ("file", pyarrow.ipc.new_file)):
    path = tmp_path / f"{name}.arrow"
    with new(str(path), table.schema) as writer:
      writer.write_table(table)
    pool = read(file_source(path))
    assert facts(pool.train + pool.validation) == {
        ("1+1?", "2"), ("2+2?", "4")}
  with pytest.raises(InputError, match="file.arrow.*no column 'answers'"):
    read(file_source(path, answer="answers"))


@pytest.mark.parametrize("change, message", [
    (dict(path="nowhere/*.jsonl"), r"'nowhere/\*.jsonl': no such file"),
    (dict(validation="nowhere.jsonl"), "'nowhere.jsonl': no such file"),
    (dict(share=0.0), "source.share=0.0"),
    (dict(extract="last"), "expected one of whole, boxed, hash"),
    (dict(extract="boxed"), "a.jsonl:1: no question, or not one .*boxed"),
    (dict(extract="boxed", drop_unanswered=True), "no question, or not one"),
    (dict(answers="answer"), "config.source.answers: no such key"),
])
def test_bad_sources(tmp_path, change, message):
  (tmp_path / "a.jsonl").write_bytes(GOOD)
  with pytest.raises(InputError, match=message):
    read(file_source(tmp_path / "a.jsonl", **change))


def test_text_that_looks_like_a_line_break(tmp_path):
  """U+2028 may stand in a JSON string; a BOM and CRLF are no content."""
  (tmp_path / "a.jsonl").write_bytes(
      b"\xef\xbb\xbf" + '{"question": "a\u2028b", "answer": 2}\r\n'.encode()
      + GOOD)
  pool = read(file_source(tmp_path / "a.jsonl"))
  assert facts(pool.train + pool.validation) == {("a\u2028b", "2"),
                                                 ("1+1?", "2")}


def test_committed_strata_are_of_the_pool_of_their_config():
  pool = read(split_tiny.get_config().source)
  assert "4227 of 18000 problems drawn are copies" in pool.notes[0]
  for name in ("easy", "hard"):
    stratum = strata_lib.read(
        f"isojax/assets/countdown-tiny-{name}.jsonl")
    assert set(stratum.train) <= set(pool.train)
    assert set(stratum.validation) <= set(pool.validation)


def test_strata_of_the_playbook():
  strata = split_math.get_config().strata
  assert (strata.easy.low, strata.easy.high) == (0.3, 0.6)
  assert (strata.hard.high, strata.extreme.again) == (0.0625, 128)
