"""The ledger survives torn lines, refuses nonsense, holds no step twice."""

import json
import os

import pytest

from isojax.ledger import records
from isojax.errors import InputError


def make(kind="train", step=1, **fields):
  values = {name: 0 for name in records.FIELDS[kind]}
  return values | {"kind": kind, "step": step, "kl": None} | fields if (
      kind == "train") else values | {"kind": kind, "step": step} | fields


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / "records.jsonl")


def test_what_is_appended_is_read(path):
  lines = [make("eval", 0, correct=[1, 0, 3]), make(step=1, reward=0.25),
           make(step=2, kl=0.5)]
  for line in lines:
    records.append(path, line)
  assert records.read(path) == lines


def test_missing_file_is_empty(path):
  assert records.read(path) == []
  assert records.truncate_after(path, -1) == []
  assert not os.path.exists(path)


@pytest.mark.parametrize("cut", [1, 7, 50])
def test_torn_last_line_is_dropped(path, cut):
  for step in (1, 2):
    records.append(path, make(step=step))
  os.truncate(path, os.path.getsize(path) - cut)
  assert [r["step"] for r in records.read(path)] == [1]
  assert [r["step"] for r in records.truncate_after(path, 2)] == [1]
  records.append(path, make(step=2))  # not glued to the torn line
  assert [r["step"] for r in records.read(path)] == [1, 2]


@pytest.mark.parametrize("bad", ["{", "[1]", "hello", '{"a": 1'])
def test_bad_line_in_the_middle_is_named(path, bad):
  records.append(path, make(step=1))
  with open(path, "a", encoding="utf-8") as file:
    file.write(bad + "\n")
  records.append(path, make(step=2))
  with pytest.raises(InputError, match=r"records.jsonl:2: not a record"):
    records.read(path)


def test_truncate_keeps_up_to_a_step(path):
  records.append(path, make("eval", 0))
  for step in (1, 2, 3):
    records.append(path, make(step=step))
  records.append(path, make("eval", 2))
  before = os.stat(path).st_ino
  assert len(records.truncate_after(path, 3)) == 5
  assert os.stat(path).st_ino == before  # nothing to do, nothing written
  kept = records.truncate_after(path, 2)
  assert [(r["kind"], r["step"]) for r in kept] == [
      ("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]
  assert records.read(path) == kept
  assert records.truncate_after(path, -1) == records.read(path) == []


def test_fields_are_a_contract(path):
  extra = make() | {"rewards": 1}
  with pytest.raises(InputError, match=r"unknown fields \['rewards'\]"):
    records.append(path, extra)
  less = make()
  del less["reward"]
  with pytest.raises(InputError, match=r"missing fields \['reward'\]"):
    records.append(path, less)


@pytest.mark.parametrize("record", [{}, {"kind": "trian"}])
def test_a_record_has_a_known_kind(path, record):
  with pytest.raises(InputError, match=r"one of \['eval', 'train'\]"):
    records.append(path, record)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(path, value):
  with pytest.raises(InputError, match="reward"):
    records.append(path, make(reward=value))
  assert not os.path.exists(path)


def test_full_disk_is_a_message():
  with pytest.raises(InputError, match="No space left.*make room"):
    records.append("/dev/full", make())


def test_comparable_drops_time_alone():
  line = make(seconds_update=3.0, device_seconds=9.0, reward=0.5)
  got = records.comparable([line])[0]
  assert line.keys() - got.keys() == records.TIME_FIELDS
  assert got["reward"] == 0.5


def test_the_names_that_others_rely_on():
  """Literal, from the specification of the ledger."""
  common = ("kind run_id seed model task split Bp n D step rollouts "
            "prompt_tokens sampled_tokens trained_tokens epoch "
            "device_seconds").split()
  train = ("lr reward all_wrong all_right entropy kl grad_norm clip_fraction "
           "logp_gap response_length truncated seconds_sample seconds_score "
           "seconds_update").split()
  evaluation = ("eval_set k avg best worst maj avg_se best_se worst_se maj_se "
                "correct").split()
  assert set(common + train) <= records.FIELDS["train"]
  assert set(common + evaluation) == records.FIELDS["eval"]
  json.dumps(make())
