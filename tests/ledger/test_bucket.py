"""A folder in a bucket: one writer, whatever else still runs; errors in words.

A whole run in one is taken over and resumed in tests/test_main.py. What needs
conditions only is tested with tensorstore's driver of files.
"""

from concurrent import futures
import os
import random
import sys
import threading

from etils import epath
import jax
import jax.numpy as jnp
import pytest

from isojax.errors import InputError, OutOfReachError
from isojax.ledger import bucket as bucket_lib
from isojax.ledger import checkpoint, records, workdir
from isojax.types import TrainState
from tests import record as record_lib


def make(step, kind="train"):
  return record_lib.make(kind, step=step)


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / "records.jsonl")


def steps(path):
  return [r["step"] for r in records.read(path)]


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_in_a_bucket_is_that_of_a_file(path, tmp_path, seed):
  """Any runs of a few steps that are killed, with a checkpoint now and then."""
  draw, saved, other = random.Random(seed), 0, str(tmp_path / "other.jsonl")
  for _ in range(6):
    ledgers = records.Bucket(f"file://{path}"), records.File(other)
    for ledger in ledgers:
      ledger.cut(saved)
    assert ledgers[0].records == ledgers[1].records == records.read(path)
    for step in range(saved + 1, saved + draw.randrange(2, 9)):
      kinds = ["train", "eval"] if draw.random() < 0.3 else ["train"]
      synced = draw.random() < 0.3
      for ledger in ledgers:
        for kind in kinds:
          ledger.append(make(step, kind))
        if synced:
          ledger.sync()
      saved = step if synced else saved
    shown = records.read(path)  # a kill takes what was not written
    assert shown == records.read(other)[:len(shown)]
    assert saved == 0 or shown[-1]["step"] >= saved
  assert saved > 0
  with open(path, "a", encoding="utf-8") as file:
    file.write("{}\n")
  with pytest.raises(InputError, match="this line was changed"):
    records.Bucket(f"file://{path}")


def test_a_damaged_ledger_of_a_bucket_is_cut_by_gcloud():
  _, problem = records._sound("gs://b/r.jsonl", b"{}\n")
  assert ("gcloud storage cat gs://b/r.jsonl | head -n 0 > cut.jsonl && "
          "gcloud storage cp cut.jsonl gs://b/r.jsonl," in problem)


def test_who_watches_sees_slow_steps_and_evaluations(path, monkeypatch):
  ledger = records.Bucket(f"file://{path}")
  ledger.append(make(1))
  assert not os.path.exists(path)
  ledger.append(make(1, "eval"))
  assert steps(path) == [1, 1]
  monkeypatch.setattr(records.Bucket, "SECONDS", 0.0)
  ledger.append(make(2))
  assert steps(path) == [1, 1, 2]


def test_the_newest_start_writes_and_the_older_one_ends(path):
  old = records.Bucket(f"file://{path}")
  old.append(make(1))
  old.sync()
  new = records.Bucket(f"file://{path}")  # has not written a line
  assert [r["step"] for r in new.records] == [1]
  old.append(make(2))
  with pytest.raises(InputError, match="another process has started this run"):
    old.sync()
  with pytest.raises(InputError, match="another process has started this run"):
    old.append(make(2, "eval"))
  assert steps(path) == [1]
  new.append(make(7, "eval"))
  assert steps(path) == [1, 7]
  first, second = (records.Bucket(f"file://{path}.new") for _ in range(2))
  first.append(make(1, "eval"))
  with pytest.raises(InputError, match="another process has started this run"):
    second.append(make(2, "eval"))  # began an empty ledger at the same time


def test_a_write_whose_answer_was_lost_is_our_own(path):
  owned = bucket_lib.FencedObject(f"file://{path}")
  assert owned.take() is None
  before = owned._generation
  owned.write(b"a")
  owned._generation = before  # the client sends the request again
  owned.write(b"a")
  owned.write(b"b")
  assert bucket_lib.FencedObject(f"file://{path}").take() == b"b"


def test_refused_folders(monkeypatch):
  for path in ("s3://bucket/a", "http://host/a", "gs:/bucket/a", "gs://bucket"):
    with pytest.raises(InputError, match="expected a local folder, or gs://BU"):
      bucket_lib.check(path, "workdir")
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  with pytest.raises(InputError, match=r"gcsfs is not .* 'isojax\[gcs\]'"):
    bucket_lib.check("gs://bucket/a", "workdir")
  bucket_lib.check("/a/local/folder", "workdir")


def test_errors_of_a_bucket_are_one_line():
  with (pytest.raises(OutOfReachError, match="cannot be used .down.*run the"),
        bucket_lib.convert_errors("gs://bucket/a")):
    raise ValueError("down")
  with (pytest.raises(ValueError, match="^down$"),
        bucket_lib.convert_errors("/a/local/folder")):
    raise ValueError("down")


# --- with a server that implements Google's protocol ---


@pytest.mark.parametrize("name", ["elsewhere", "secret"])
def test_a_bucket_that_is_not_there_or_refuses(bucket, name):
  del bucket  # its server is asked
  with (pytest.raises(InputError, match=f"gs://{name}/a.*storage.objectAdmin"),
        workdir.claim(f"gs://{name}/a", workdir.Stored("x", "x", "abc", {}),
                      conflict=lambda *_: "")):
    pass


LEAF = jax.ShapeDtypeStruct(
    (8, 4), jnp.float32,
    sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def state(step):
  return TrainState(
      step=jnp.int32(step), params={"a": jnp.full((8, 4), step, jnp.float32)},
      opt_state=())


def names(folder):
  return sorted(each.name for each in epath.Path(folder).iterdir())


def newest(store):
  abstract = TrainState(
      step=jax.ShapeDtypeStruct((), jnp.int32, sharding=LEAF.sharding),
      params={"a": LEAF}, opt_state=())
  return checkpoint.restore_newest(
      store, abstract, "abc", reach=99, keep=2, with_in_flight=False)


def test_a_start_finds_a_checkpoint_while_another_one_deletes_old_ones(folder):
  bucket_lib.check(folder, "workdir")
  store, over = f"{folder}/checkpoints", threading.Event()

  def rotate():
    with checkpoint.open_manager(store, keep=2) as manager:
      for step in range(1, 99):
        checkpoint.save(manager, step, state(step), "abc")
        if over.is_set():
          break

  with futures.ThreadPoolExecutor(1) as pool:
    rotating = pool.submit(rotate)
    try:
      while newest(store) is None:
        pass
      found = [newest(store).step for _ in range(4)]
    finally:
      over.set()
    rotating.result()
  assert found == sorted(found) and names(folder) == ["checkpoints"]


def test_a_step_that_a_lost_start_saves_late_is_deleted(folder):
  bucket_lib.check(folder, "workdir")
  store = f"{folder}/checkpoints"
  with (checkpoint.open_manager(store, keep=2) as lost,
        checkpoint.open_manager(store, keep=2) as manager):
    for step in (2, 3, 4):
      checkpoint.save(manager, step, state(step), "abc")
    checkpoint.wait(manager)
    checkpoint.save(lost, 1, state(1), "abc")
    checkpoint.wait(lost)
    assert names(store) == ["1", "3", "4"]
  assert names(store) == ["3", "4"]


def test_a_step_that_a_lost_start_saved_is_saved_again(folder):
  """It was complete after this start had chosen an earlier one."""
  bucket_lib.check(folder, "workdir")
  store = f"{folder}/checkpoints"
  with checkpoint.open_manager(store, keep=2) as lost:
    checkpoint.save(lost, 5, state(7), "abc")
  with checkpoint.open_manager(store, keep=2) as manager:
    for step in (4, 5):
      checkpoint.save(manager, step, state(step), "abc")
  step, found, _ = newest(store)
  assert names(store) == ["4", "5"] and (found.params["a"] == step).all()


def test_a_damaged_checkpoint_is_moved_aside(folder):
  bucket_lib.check(folder, "workdir")
  store = f"{folder}/checkpoints"
  restore = lambda: newest(store)
  assert restore() is None
  with checkpoint.open_manager(store, keep=2) as manager:
    for step in (1, 2, 3):
      checkpoint.save(manager, step, state(step), "abc")
  assert names(store) == ["2", "3"]
  epath.Path(f"{store}/3/meta/metadata").unlink()
  step, found, _ = restore()
  assert step == 2 and (found.params["a"] == 2.0).all()
  assert names(folder) == ["checkpoints", "checkpoints-damaged-3"]
  with checkpoint.open_manager(store, keep=2) as manager:
    checkpoint.save(manager, 3, state(3), "abc")  # the place is free again
  assert restore().step == 3


def test_a_workdir_in_a_bucket(folder):
  """As tests/ledger/test_workdir.py has it of a local one."""
  bucket_lib.check(folder, "workdir")
  claimed = lambda config: workdir.claim(
      folder, workdir.Stored(*[workdir.hash_of(config)] * 2, "abc", config),
      conflict=lambda stored: f"that of run {stored.run_id}")
  config, other = {"seed": 1, "a": {"n": 4}}, {"seed": 1, "a": {"n": 8}}
  epath.Path(f"{folder}/thesis.tex").write_text("x")
  with (pytest.raises(InputError, match="contains thesis.tex but no config"),
        claimed(config)):
    pass
  epath.Path(f"{folder}/thesis.tex").unlink()
  with pytest.raises(InputError, match="not the folder that process 0 has"):
    workdir.check_shared(folder, workdir.hash_of(config))
  with claimed(config):
    workdir.check_shared(folder, workdir.hash_of(config))
    with pytest.raises(InputError, match="not the folder that process 0 has"):
      workdir.check_shared(folder, workdir.hash_of(other))
  stored = workdir.read_config(folder)
  assert (stored.run_id, stored.config) == (workdir.hash_of(config), config)
  with (pytest.raises(InputError, match=f"run {workdir.hash_of(config)}"),
        claimed(other)):
    pass
  assert names(folder) == ["config.json"]
  assert bucket_lib.matching(f"{folder[:-3]}*/config.json") == [
      f"{folder}/config.json"]
