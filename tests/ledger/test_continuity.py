"""Records that are not those of one run are refused, and repaired."""

import json
import os
import pathlib
import shutil
import tarfile

import pytest

from isojax import repair
from isojax.errors import InputError
from isojax.ledger import continuity
from isojax.ledger import records

DATA = pathlib.Path(__file__).parents[1] / "data/old_runs/4dcbfe8.tar.xz"
DUE = (0, 128, 256)  # of the fixture: Bp * n = 32, every 128 rollouts
N_AFTER = lambda rollouts: 4  # of the fixture, too


@pytest.fixture(scope="module")
def old(tmp_path_factory):
  """The records of a run of 8 steps, as that commit wrote them."""
  folder = tmp_path_factory.mktemp("old")
  with tarfile.open(DATA) as tar:
    tar.extractall(folder, filter="data")
  return folder


@pytest.fixture
def kept(old):
  kept = records.read(str(old / "continued.jsonl"))
  assert [(r["kind"], r["step"]) for r in kept] == [
      ("eval", 0), *(("train", i) for i in (1, 2, 3, 4)), ("eval", 4),
      *(("train", i) for i in (5, 6, 7, 8)), ("eval", 8)]
  return kept


def of_today(record):
  """With the fields that were added since."""
  return dict.fromkeys(records.FIELDS[record["kind"]], 0) | record


def twice(index):
  return lambda kept: kept.insert(index, kept[index])


def without(index):
  return lambda kept: kept.pop(index)


def changed(index, **values):
  return lambda kept: kept[index].update(values)


CASES = {  # damage -> (what it does, line, what is said with no checksums)
    "train line twice": (twice(3), 5, "train step 3, where step 4 comes next"),
    "train line deleted": (without(3), 4, "step 4, where step 3 comes next"),
    "eval line twice": (twice(5), 7, "a second evaluation of step 4"),
    "eval line deleted": (without(5), 6, "step 4, whose evaluation is missing"),
    "line of another run": (changed(3, run_id="beef"), 4, "of run beef, not"),
    "total raised": (changed(3, sampled_tokens=10**6), 4, "sampled_tokens"),
    "total lowered": (changed(3, prompt_tokens=1), 4, "prompt_tokens = 1 after"),
    "total of an eval": (changed(5, device_seconds=1e9), 6, "device_seconds"),
    "rollouts": (changed(3, rollouts=95), 4, "rollouts = 95, where 96"),
    "rollouts of an eval": (changed(5, rollouts=96), 6, "96, where 128"),
    "another n": (changed(3, n=8), 4, "n = 8, where alloc gives 4"),
    "negative step": (changed(3, step=-3), 4, "step = -3"),
    "field lost": (lambda kept: kept[3].pop("step"), 4, "no field step"),
    "number of another type": (changed(3, step="3"), 4, "step = '3'"),
}


@pytest.mark.parametrize("name", CASES)
def test_records_of_earlier_versions(kept, name):
  assert continuity.problem(kept, "98cd624fdabf", N_AFTER, DUE) is None
  spoil, line, message = CASES[name]
  spoil(kept)
  with pytest.raises(InputError, match=f"^r.jsonl:{line}: .*{message}"):
    continuity.check("r.jsonl", kept, "98cd624fdabf", N_AFTER, DUE)


@pytest.mark.parametrize("name", CASES)
def test_checksums(kept, name, tmp_path):
  path = str(tmp_path / "records.jsonl")
  book = records.File(path)
  for record in kept:
    book.append(of_today(record))
  with open(path, encoding="utf-8") as file:
    lines = [json.loads(line) for line in file]
  spoil, line, _ = CASES[name]
  spoil(lines)
  with open(path, "w", encoding="utf-8") as file:
    file.writelines(json.dumps(r) + "\n" for r in lines)
  with pytest.raises(InputError, match="the checksum does not fit .* python -m "
                     f"launch.repair --workdir={tmp_path}, which"):
    records.read(path)
  good, wrong = records.sound(path)
  assert good == [of_today(r) for r in kept[:len(good)]]
  assert len(good) in (line - 2, line - 1)
  assert f":{len(good) + 1}: the checksum" in wrong


def test_a_changed_measurement_is_seen(kept, tmp_path):
  path = str(tmp_path / "records.jsonl")
  for record in kept:
    records.File(path).append(of_today(record))
  text = pathlib.Path(path).read_text()
  reward = f'"reward": {kept[3]["reward"]}'
  pathlib.Path(path).write_text(text.replace(reward, '"reward": 0.99', 1))
  with pytest.raises(InputError, match="the checksum does not fit"):
    records.read(path)


@pytest.mark.parametrize("index, saved", [(8, 6), (6, 0)])
def test_repair_goes_back_to_a_checkpoint(old, tmp_path, capsys, index, saved):
  """The fixture's only checkpoint is of step 6."""
  folder = tmp_path / "run"
  shutil.copytree(old / "run", folder)
  kept = records.read(str(old / "continued.jsonl"))
  assert kept[7]["step"] == 6
  damaged = [r | {"step": -1} if i == index else r for i, r in enumerate(kept)]
  text = "".join(json.dumps(r) + "\n" for r in damaged)
  (folder / "records.jsonl").write_text(text)
  repair.repair(str(folder))
  said = capsys.readouterr().out
  assert f"records.jsonl:{index + 1}: this record has step = -1" in said
  assert f"resumes it from step {saved}" in said
  assert (folder / "records.jsonl.damaged").read_text() == text
  assert records.read(str(folder / "records.jsonl")) == kept[:8 if saved else 0]
  assert sorted(os.listdir(folder / "checkpoints")) == ["6"] * bool(saved)
  assert (folder / "checkpoints-damaged-6").exists() == (not saved)
  repair.repair(str(folder))
  assert "the records have no error" in capsys.readouterr().out
