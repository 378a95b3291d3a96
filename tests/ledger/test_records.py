"""The ledger survives torn lines, refuses nonsense, holds no step twice."""

import dataclasses
import json
import os
import re
import subprocess

import pytest

from isojax.errors import InputError
from isojax.ledger import records
from tests import record as record_lib


def make(kind="train", step=1, **fields):
  return record_lib.make(kind, step=step, **fields)


def append(path, record):
  records.File(path).append(record)


def cut(path, step):
  ledger = records.File(path)
  ledger.cut(step)
  return ledger.records


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / "records.jsonl")


def test_what_is_appended_is_read(path):
  assert cut(path, -1) == records.read(path) == []
  assert not os.path.exists(path)
  lines = [make("eval", 0, correct=[1, 0, 3]), make(step=1, kl=None),
           make(step=2, kl=0.5)]
  for line in lines:
    append(path, line)
  assert records.read(path) == list(map(records.as_line, lines))
  assert [r["kind"] for r in records.read(path)] == ["eval", "train", "train"]


@pytest.mark.parametrize("size, steps", [(1, [1, 2]), (2, [1]), (50, [1])])
def test_torn_last_line_is_dropped(path, size, steps):
  """A line that lacks its newline alone, as editors leave it, is whole."""
  for step in (1, 2):
    append(path, make(step=step))
  os.truncate(path, os.path.getsize(path) - size)
  assert [r["step"] for r in records.read(path)] == steps
  assert [r["step"] for r in cut(path, 2)] == steps
  append(path, make(step=3))  # not glued to the torn line
  assert [r["step"] for r in records.read(path)] == [*steps, 3]


def changed(number, **values):
  def spoil(lines):
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values)
  return spoil


def unchained(number):
  def spoil(lines):
    for i in range(number - 1, len(lines)):
      line = json.loads(lines[i])
      del line["chain"]
      lines[i] = json.dumps(line)
  return spoil


@pytest.mark.parametrize("spoil, line", [
    (lambda lines: lines.insert(2, lines[2]), 4),  # twice
    (lambda lines: lines.pop(2), 3),
    (lambda lines: lines.insert(2, lines[0]), 3),
    (changed(3, step=7), 3), (changed(3, reward=0.99), 3),
    (changed(1, run_id="beef"), 1), (changed(3, chain=5), 3),
    (unchained(3), 3), (unchained(1), 1),
    *((lambda lines, bad=bad: lines.insert(2, bad), 3) for bad in (
        "{", "[1]", "hello", '{"a": 1', "[" * 100_000, "null", '"\udcff"'))])
def test_damage_is_named_with_its_line_and_its_remedy(path, spoil, line):
  """The command that the message gives makes the ledger sound."""
  kept = [make(step=step, reward=step / 7) for step in range(1, 6)]
  for record in kept:
    append(path, record)
  with open(path, encoding="utf-8") as file:
    lines = file.read().splitlines()
  spoil(lines)
  with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
    file.writelines(f"{text}\n" for text in lines)
  with pytest.raises(InputError, match=f"^{path}:{line}: this line ") as error:
    records.read(path)
  kept = list(map(records.as_line, kept))
  assert records.sound(path)[0] == kept[:line - 1]
  remedy = re.search(r"head -n .*? && mv \S+ [^,]+", str(error.value))[0]
  subprocess.run(remedy, shell=True, check=True, cwd=os.path.dirname(path))
  assert records.read(path) == kept[:line - 1]


def test_cut_keeps_up_to_a_step(path):
  append(path, make("eval", 0))
  for step in (1, 2, 3):
    append(path, make(step=step))
  append(path, make("eval", 2))
  before = os.stat(path).st_ino
  assert len(cut(path, 3)) == 5
  assert os.stat(path).st_ino == before  # nothing to do, nothing written
  kept = cut(path, 2)
  assert [(r["kind"], r["step"]) for r in kept] == [
      ("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]
  assert records.read(path) == kept
  assert cut(path, -1) == records.read(path) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(path, value):
  with pytest.raises(InputError, match="reward"):
    append(path, make(reward=value))
  assert not os.path.exists(path)


@pytest.mark.parametrize("cls", [records.StepRecord, records.EvalRecord])
def test_every_field_but_alarms_is_given(cls):
  """A step that forgets a field is an error, and not a record without it."""
  needed = {f.name for f in dataclasses.fields(cls)} - {
      "kind", "alarms", "current"}
  with pytest.raises(TypeError) as error:
    cls()
  assert set(re.findall(r"'(\w+)'", str(error.value))) == needed


def test_what_the_file_system_refuses_is_a_message(path):
  os.mkdir(path)
  with pytest.raises(InputError, match="records.jsonl: cannot be read"):
    records.read(path)
  os.rmdir(path)
  book = records.File(path)
  os.symlink("/dev/full", path)
  with pytest.raises(InputError, match="No space left.*free disk space"):
    book.append(make())
