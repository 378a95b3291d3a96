"""The ledger survives torn lines, refuses nonsense, holds no step twice."""

import concurrent.futures
import json
import os
import threading

import pytest

from isojax.ledger import records
from isojax.errors import InputError


def make(kind="train", step=1, **fields):
  values = {name: 0 for name in records.FIELDS[kind]}
  return values | {"kind": kind, "step": step, "kl": None} | fields if (
      kind == "train") else values | {"kind": kind, "step": step} | fields


def append(path, record):
  records.File(path).append(record)


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / "records.jsonl")


def test_what_is_appended_is_read(path):
  lines = [make("eval", 0, correct=[1, 0, 3]), make(step=1, reward=0.25),
           make(step=2, kl=0.5)]
  for line in lines:
    append(path, line)
  assert records.read(path) == lines


def test_missing_file_is_empty(path):
  assert records.read(path) == []
  assert records.truncate_after(path, -1) == []
  assert not os.path.exists(path)


@pytest.mark.parametrize("cut", [1, 7, 50])
def test_torn_last_line_is_dropped(path, cut):
  for step in (1, 2):
    append(path, make(step=step))
  os.truncate(path, os.path.getsize(path) - cut)
  assert [r["step"] for r in records.read(path)] == [1]
  assert [r["step"] for r in records.truncate_after(path, 2)] == [1]
  append(path, make(step=2))  # not glued to the torn line
  assert [r["step"] for r in records.read(path)] == [1, 2]


@pytest.mark.parametrize("bad", ["{", "[1]", "hello", '{"a": 1',
                                 '"\udcff"'],
                         ids=["open", "list", "text", "half", "bytes"])
def test_bad_line_in_the_middle_is_named(path, bad):
  for step in (1, 2):
    append(path, make(step=step))
  with open(path, encoding="utf-8") as file:
    first, second = file
  with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
    file.write(f"{first}{bad}\n{second}")
  with pytest.raises(InputError, match=r"records.jsonl:2: not a record"):
    records.read(path)


def test_truncate_keeps_up_to_a_step(path):
  append(path, make("eval", 0))
  for step in (1, 2, 3):
    append(path, make(step=step))
  append(path, make("eval", 2))
  before = os.stat(path).st_ino
  assert len(records.truncate_after(path, 3)) == 5
  assert os.stat(path).st_ino == before  # nothing to do, nothing written
  kept = records.truncate_after(path, 2)
  assert [(r["kind"], r["step"]) for r in kept] == [
      ("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]
  assert records.read(path) == kept
  assert records.truncate_after(path, -1) == records.read(path) == []


def test_records_of_before_the_checksum_are_read_and_get_one(path):
  kept = [make(step=1), make(step=2)]
  with open(path, "w", encoding="utf-8") as file:
    file.writelines(json.dumps(r) + "\n" for r in kept)
  append(path, make(step=3))
  assert records.read(path) == [*kept, make(step=3)]
  with open(path, encoding="utf-8") as file:
    text = file.read()
  with open(path, "w", encoding="utf-8") as file:
    file.write(text.replace('"step": 1', '"step": 7'))
  with pytest.raises(InputError, match="records.jsonl:3: the checksum"):
    records.read(path)  # the first line with a checksum
  with open(path, "w", encoding="utf-8") as file:
    file.write(text)
  records.keep(path, records.read(path))
  with open(path, encoding="utf-8") as file:
    assert all("chain" in json.loads(line) for line in file)


def test_a_folder_is_a_message(path):
  os.mkdir(path)
  with pytest.raises(InputError, match="records.jsonl: cannot be read"):
    records.read(path)


def test_fields_are_a_contract(path):
  extra = make() | {"rewards": 1}
  with pytest.raises(InputError, match=r"unknown fields \['rewards'\]"):
    append(path, extra)
  less = make()
  del less["reward"]
  with pytest.raises(InputError, match=r"missing fields \['reward'\]"):
    append(path, less)


@pytest.mark.parametrize("record", [{}, {"kind": "trian"}])
def test_a_record_has_a_known_kind(path, record):
  with pytest.raises(InputError, match=r"one of \['eval', 'train'\]"):
    append(path, record)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(path, value):
  with pytest.raises(InputError, match="reward"):
    append(path, make(reward=value))
  assert not os.path.exists(path)


def test_full_disk_is_a_message(path):
  book = records.File(path)
  os.symlink("/dev/full", path)
  with pytest.raises(InputError, match="No space left.*free disk space"):
    book.append(make())


def test_comparable_drops_time_alone():
  line = make(seconds_update=3.0, device_seconds=9.0, reward=0.5)
  got = records.comparable([line])[0]
  assert line.keys() - got.keys() == records.TIME_FIELDS
  assert got["reward"] == 0.5


def test_the_names_that_others_rely_on():
  """Literal, from the specification of the ledger."""
  common = ("kind run_id seed model task split Bp n m D step rollouts "
            "prompt_tokens sampled_tokens trained_tokens epoch "
            "scored_tokens updates skipped_updates device_seconds "
            "unix_time alarms").split()
  train = ("lr reward all_wrong all_right entropy kl grad_norm clip_fraction "
           "logp_gap response_length truncated interrupted seconds_sample "
           "seconds_score seconds_update").split()
  evaluation = ("eval_set k avg best worst maj avg_se best_se worst_se maj_se "
                "correct").split()
  assert set(common + train) <= records.FIELDS["train"]
  assert set(common + evaluation) == records.FIELDS["eval"]
  json.dumps(make())


def test_processes_may_replace_a_file_at_once(tmp_path):
  """Sweepers that start together write the same files of a new root."""
  path = str(tmp_path / "file")
  together = threading.Barrier(8)

  def write(text):
    for _ in range(20):
      together.wait()
      records.replace(path, text)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(write, [bytes([65 + i]) * 5000 for i in range(8)]))
  left = (tmp_path / "file").read_bytes()
  assert len(left) == 5000 and len(set(left)) == 1
  assert os.listdir(tmp_path) == ["file"]


def test_a_replacement_that_fails_leaves_nothing(tmp_path):
  (tmp_path / "folder").mkdir()
  with pytest.raises(OSError):
    records.replace(str(tmp_path / "folder"), b"text")
  assert os.listdir(tmp_path) == ["folder"]
