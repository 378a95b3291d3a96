"""A folder in a bucket: records in parts, the lease, errors in words.

A whole run in one is killed and resumed in tests/test_main.py.
"""

import dataclasses
import json
import os
import random
import subprocess
import sys
import threading
import time

import aiohttp
import fsspec.exceptions
import jax
import jax.numpy as jnp
import pytest
import requests
from gcsfs import retry as gcsfs
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from isojax.ledger import checkpoint
from isojax import cli
from isojax.ledger import lease
from isojax.ledger import record_parts
from isojax.ledger import records
from isojax.ledger import object_store
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.errors import OutOfReachError
from isojax.types import TrainState
from tests import gcs_server


def make(step, kind="train"):
  return {name: 0 for name in records.FIELDS[kind]} | {
      "kind": kind, "step": step}


def steps(ledger):
  return [r["step"] for r in records.read(ledger)]


# --- records in parts ---------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_in_a_bucket_is_that_of_a_file(folder, tmp_path, seed):
  """Any runs of a few steps that are killed, with a checkpoint now and then."""
  draw, saved = random.Random(seed), 0
  ledgers = f"{folder}/records.jsonl", str(tmp_path / "records.jsonl")
  for _ in range(6):
    one, other = (records.truncate_after(x, saved) for x in ledgers)
    assert one == other == records.read(ledgers[0])
    books = records.Bucket(ledgers[0]), records.File(ledgers[1])
    for step in range(saved + 1, saved + draw.randrange(2, 9)):
      for book in books:
        book.append(make(step))
      if draw.random() < 0.3:
        for book in books:
          book.append(make(step, "eval"))
      if draw.random() < 0.3:
        for book in books:
          book.sync()
        saved = step
    shown = records.read(ledgers[0])  # a kill takes what is not in a part
    assert shown == records.read(ledgers[1])[:len(shown)]
    assert saved == 0 or shown[-1]["step"] >= saved
  assert saved > 0


def test_all_is_there_at_the_end_and_no_part_is_empty(folder):
  ledger = f"{folder}/records.jsonl"
  records.truncate_after(ledger, -1)
  with records.opened(ledger) as book:
    for step in range(1, 14):  # more parts than names in one answer
      book.append(make(step))
      if step < 10:
        book.sync()
        book.sync()
  assert steps(ledger) == list(range(1, 14))
  assert len(object_store.names(ledger)) == 11
  with pytest.raises(ZeroDivisionError):
    with records.opened(ledger) as book:
      book.append(make(14))
      raise ZeroDivisionError
  assert steps(ledger)[-1] == 14


def test_who_watches_sees_slow_steps_and_evaluations(folder, monkeypatch):
  ledger = f"{folder}/records.jsonl"
  records.truncate_after(ledger, -1)
  book = records.Bucket(ledger)
  book.append(make(1))
  assert steps(ledger) == []
  book.append(make(1, "eval"))
  assert steps(ledger) == [1, 1]
  monkeypatch.setattr(records, "PART_SECONDS", 0.0)
  book.append(make(2))
  assert steps(ledger) == [1, 1, 2]


def test_killed_while_it_starts_loses_and_doubles_nothing(folder):
  """The old parts are still there, or half of them."""
  ledger = f"{folder}/records.jsonl"
  records.truncate_after(ledger, -1)
  book = records.Bucket(ledger)
  for step in (1, 2, 3):
    book.append(make(step))
    book.sync()
  before = {name: object_store.content(f"{ledger}/{name}")
            for name in object_store.names(ledger)}
  assert [r["step"] for r in records.truncate_after(ledger, 2)] == [1, 2]
  assert len(object_store.names(ledger)) == 1
  for name in sorted(before)[2:]:
    object_store.write(f"{ledger}/{name}", before[name])
  assert steps(ledger) == [1, 2]
  records.truncate_after(ledger, 2)
  assert len(object_store.names(ledger)) == 1 and steps(ledger) == [1, 2]


def test_a_process_that_was_taken_over_is_not_read(folder):
  ledger = f"{folder}/records.jsonl"
  records.truncate_after(ledger, -1)
  frozen = records.Bucket(ledger)
  records.truncate_after(ledger, -1)
  frozen.append(make(7, "eval"))
  assert steps(ledger) == []
  one, other = records.Bucket(ledger), records.Bucket(ledger)
  one.append(make(1, "eval"))
  with pytest.raises(InputError, match="another process has written this part"):
    other.append(make(1, "eval"))
  assert steps(ledger) == [1]


def test_a_missing_part_is_named(folder):
  ledger = f"{folder}/records.jsonl"
  record_parts.begin(ledger, b"{}\n")
  for _ in range(2):
    record_parts.Writer(ledger).add(b"{}\n")
  object_store.delete(f"{ledger}/00001-00001.jsonl")
  with pytest.raises(InputError, match=r"some are missing; there are \[0, 2\]"):
    records.read(ledger)


@pytest.mark.parametrize("size", [0, 100, 9_000_000])  # the last in two pieces
def test_one_object_is_written_on_condition(folder, size):
  path, content = f"{folder}/object", random.Random(size).randbytes(size)
  first = object_store.write(path, content, generation=0, writer="one")
  assert object_store.read(path) == (content, first)
  assert object_store.write(path, b"x", generation=0, writer="other") is None
  # As a request that is sent again, since its answer was lost.
  assert object_store.write(path, content, generation=0, writer="one") == first
  second = object_store.write(path, b"y", generation=first, writer="other")
  assert object_store.read(path) == (b"y", second) and second != first
  object_store.delete(path, first)
  assert object_store.content(path) == b"y"
  object_store.delete(path, second)
  assert object_store.read(path) == (None, 0)


# --- the lease ----------------------------------------------------------------


def hold(path, seconds=60.0, environment=None):
  """Another process that holds an object, once it says so."""
  code = (f"import time\nfrom isojax.ledger import lease\n"
          f"with lease.hold({path!r}, seconds={seconds}):\n"
          "  print('held', flush=True)\n  time.sleep(60)\n")
  process = subprocess.Popen(
      [sys.executable, "-c", code], stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, env=os.environ | (environment or {}))
  assert process.stdout.readline() == b"held\n"
  return process


def elsewhere(seconds):
  return json.dumps(dataclasses.asdict(lease.Holder(
      "elsewhere", "another boot", 1, "1", seconds))).encode()


def test_one_holder_on_this_machine(folder):
  path = f"{folder}/lock"
  with hold(path) as other:
    with pytest.raises(InputError, match=f"in use by process {other.pid} on"):
      with lease.hold(path):
        pass
    other.kill()
  with lease.hold(path):  # at once: the kernel knows that it is dead
    with pytest.raises(InputError, match=f"in use by process {os.getpid()} on"):
      with lease.hold(path):
        pass
  assert object_store.names(folder) == []


def test_a_dead_holder_elsewhere_is_waited_out(folder):
  path = f"{folder}/lock"
  object_store.write(path, elsewhere(1.0))
  began = time.monotonic()
  with lease.hold(path):
    assert 1.0 <= time.monotonic() - began < 3.0


def test_a_living_holder_elsewhere_is_seen(folder):
  path, done = f"{folder}/lock", threading.Event()
  object_store.write(path, elsewhere(5.0))

  def beat():
    while not done.wait(0.1):
      object_store.write(path, elsewhere(5.0))

  thread = threading.Thread(target=beat)
  thread.start()
  try:
    with pytest.raises(InputError, match="in use by process 1 on elsewhere"):
      with lease.hold(path):
        pass
  finally:
    done.set()
    thread.join()


def test_of_many_who_wait_for_a_dead_one_one_succeeds(folder, monkeypatch):
  path, won, lost, over = f"{folder}/lock", [], [], threading.Event()
  monkeypatch.setattr(lease.Holder, "alive", lambda self: None)
  object_store.write(path, elsewhere(0.5))

  def wait():
    try:
      with lease.hold(path):
        won.append(1)
        over.wait(20)
    except InputError:
      lost.append(1)
      if len(lost) == 5:
        over.set()

  threads = [threading.Thread(target=wait) for _ in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(won) == 1 and len(lost) == 5


def test_who_loses_the_lease_ends(folder):
  path = f"{folder}/lock"
  with hold(path, seconds=3.0) as process:
    first = object_store.read(path)[1]
    time.sleep(0.8)
    assert process.poll() is None and object_store.read(path)[1] > first  # a beat
    object_store.write(path, elsewhere(60.0))
    said = process.communicate(timeout=5)[1].decode()
  assert process.returncode == cli.BAD_INPUT
  assert f"{path} is no longer held: another process has taken it over" in said
  assert object_store.content(path) == elsewhere(60.0)


def test_who_cannot_reach_the_bucket_for_a_lease_ends(folder):
  with gcs_server.started() as (server, variables):
    with hold(f"{folder}/lock", 4.0, variables) as process, server.store.lock:
      began = time.monotonic()  # the server answers nobody from here on
      said = process.communicate(timeout=9)[1].decode()
  assert process.returncode == cli.PREEMPTED and "cannot be reached" in said
  assert time.monotonic() - began < 4.0


def test_who_may_no_longer_write_the_lease_ends(folder):
  def refuse(*_):
    raise gcs_server.Refused(403)

  with gcs_server.started() as (server, variables):
    with hold(f"{folder}/lock", 4.0, variables) as process:
      server.store.put = refuse
      said = process.communicate(timeout=9)[1].decode()
  assert process.returncode == cli.BAD_INPUT
  assert "no permission in bucket" in said


# --- errors in words ----------------------------------------------------------


@pytest.mark.parametrize("path, message", [
    ("s3://bucket/a", "expected a local folder, or gs://BUCKET/FOLDER"),
    ("http://host/a", "expected a local folder, or gs://BUCKET/FOLDER"),
    ("gs:/bucket/a", "expected a local folder, or gs://BUCKET/FOLDER"),
    ("gs://bucket", "expected a local folder, or gs://BUCKET/FOLDER"),
    ("gs://elsewhere/a", "there is no bucket elsewhere"),
    pytest.param("gs://secret/a", "no permission in bucket secret .* "
                 "storage.objectAdmin", marks=pytest.mark.skipif(
                     "ISOJAX_GCS_URL" in os.environ,
                     reason="only our own server refuses"))])
def test_refused_folders(bucket, path, message):
  del bucket  # its server is asked
  with pytest.raises(InputError, match=message):
    object_store.check(path, "workdir")


@pytest.mark.parametrize("name", ["gcsfs", "google.cloud.storage"])
def test_without_the_extra(monkeypatch, name):
  monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(InputError, match=rf"{name} is not .* '.*\[gcs\]'"):
    object_store.check("gs://bucket/a", "workdir")
  object_store.check("/a/local/folder", "workdir")


def test_without_credentials(tmp_path):
  environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path),
                 "NO_GCE_CHECK": "true"} | {
                     name: os.environ[name] for name in ("PYTHONPATH",)
                     if name in os.environ}
  done = subprocess.run(
      [sys.executable, "-c", "from isojax.ledger import object_store\n"
       "object_store.check('gs://bucket/a', 'workdir')"], env=environment,
      capture_output=True, text=True, timeout=60)
  last = done.stderr.splitlines()[-1]
  assert "no credentials for bucket bucket" in last
  assert "gcloud auth application-default login" in last


def test_a_sweep_has_no_root_in_a_bucket():
  done = subprocess.run(
      [sys.executable, "-m", "launch.sweep", "--root=gs://bucket/a",
       "--status"], capture_output=True, text=True, timeout=60)
  assert done.returncode == cli.BAD_INPUT and "Traceback" not in done.stderr
  assert "isojax.main --plan=PLAN --row=ROW --workdir=gs://" in done.stderr


CURL = ("ABORTED: All 32 retry attempts failed: CURL error Could not connect "
        "to server: Failed to connect to host [curl_code='7']")
HTTP = "{}: Error writing gs://bucket/a: refused [http_response_code='{}']"
LATER = OutOfReachError, "run the same command again"


@pytest.mark.parametrize("error, kind, message", [
    # Google's client
    (api.ServiceUnavailable("x"), *LATER), (api.TooManyRequests("x"), *LATER),
    (api.from_http_status(408, "x"), *LATER),
    (api.RetryError("x", None), *LATER),
    (api.InternalServerError("x"), *LATER),
    (requests.ConnectionError("x"), *LATER),
    (requests.ReadTimeout("x"), *LATER),
    (auth.TransportError("x"), *LATER),
    (auth.RefreshError("x", retryable=True), *LATER),
    (auth.RefreshError("x"), InputError, "no credentials for bucket bucket"),
    (api.Forbidden("x"), InputError, "no permission in bucket bucket"),
    (api.Unauthorized("x"), InputError, "no permission in bucket bucket"),
    # gcsfs
    (gcsfs.HttpError({"code": 503, "message": "x"}), *LATER),
    (gcsfs.HttpError({"code": "429", "message": "x"}), *LATER),
    (requests.exceptions.ProxyError(), *LATER),  # it says so for a 502
    (aiohttp.ServerDisconnectedError(), *LATER),
    (fsspec.exceptions.FSTimeoutError(), *LATER),
    (OSError("Forbidden: b/bucket/o\nx"), InputError,
     "no permission in bucket bucket"),
    (gcsfs.HttpError({"code": 401, "message": "x"}), InputError,
     "no permission in bucket bucket"),
    # tensorstore
    (ValueError(CURL), *LATER),
    (ValueError(HTTP.format("ABORTED: All 32 retry attempts failed", 503)),
     *LATER),
    (ValueError(HTTP.format("PERMISSION_DENIED", 403)), InputError,
     "no permission in bucket bucket"),
    # what is neither: a bug, a damaged file, a full disk of this machine
    (api.BadRequest("x"), api.BadRequest, None),
    (gcsfs.HttpError({"code": 400, "message": "x"}), gcsfs.HttpError, None),
    (gcsfs.HttpError(), gcsfs.HttpError, None),
    (ValueError(HTTP.format("", 400)), ValueError, None),
    (TypeError("x"), TypeError, None), (KeyError("x"), KeyError, None),
    (OSError(28, "No space left on device"), OSError, None),
    (InputError("Forbidden: as it is"), InputError, "Forbidden: as it is")])
def test_what_an_error_of_a_bucket_means(error, kind, message):
  """As each client raised it, against a server that answers so."""
  with pytest.raises(Exception, match=message) as caught:
    with object_store.asking("gs://bucket/a"):
      raise error
  assert caught.type is kind
  with pytest.raises(type(error)) as caught, object_store.asking("/a/local/folder"):
    raise error
  assert caught.value is error


@pytest.mark.parametrize("error", [
    api.NotFound("x"), FileNotFoundError("x"),
    ValueError(HTTP.format("NOT_FOUND", 404))])
def test_an_object_that_is_not_there_is_not_a_bucket_that_is_not(
    bucket, error):
  with pytest.raises(InputError,
                     match="there is no bucket elsewhere; create it"):
    with object_store.asking("gs://elsewhere/a"):
      raise error
  with pytest.raises(type(error)) as caught, object_store.asking(f"{bucket}/a"):
    raise error
  assert caught.value is error


# --- checkpoints --------------------------------------------------------------

LEAF = jax.ShapeDtypeStruct(
    (8, 4), jnp.float32,
    sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def state(step, name="a"):
  return TrainState(
      step=jnp.int32(step), params={name: jnp.full((8, 4), step, jnp.float32)},
      opt_state=())


@pytest.mark.skipif("ISOJAX_GCS_URL" in os.environ,
                    reason="only our own server refuses")
@pytest.mark.parametrize("code, kind, message", [
    (403, InputError, "no permission in bucket bucket .* storage.objectAdmin"),
    (400, gcsfs.HttpError, "400")])
def test_a_bucket_that_takes_no_checkpoint(folder, code, kind, message):
  """It is there and can be read: nothing that another try would mend."""
  object_store.check(folder, "workdir")
  with pytest.raises(Exception, match=message) as caught:
    with checkpoint.open_manager(f"{folder}/checkpoints", keep=2) as manager:
      checkpoint.save(manager, 1, state(1, f"answers-{code}"), "abc")
  assert caught.type is kind


def test_a_damaged_checkpoint_is_moved_aside(folder):
  object_store.check(folder, "workdir")
  store = f"{folder}/checkpoints"
  abstract = TrainState(
      step=jax.ShapeDtypeStruct((), jnp.int32, sharding=LEAF.sharding),
      params={"a": LEAF}, opt_state=())
  assert checkpoint.restore_newest(store, abstract, "abc") is None
  with checkpoint.open_manager(store, keep=2) as manager:
    for step in (1, 2, 3):
      checkpoint.save(manager, step, state(step), "abc")
  assert object_store.names(store) == ["2", "3"]
  object_store.delete(f"{store}/3/meta/metadata")
  step, found = checkpoint.restore_newest(store, abstract, "abc")
  assert step == 2 and (found.params["a"] == 2.0).all()
  assert object_store.names(folder) == ["checkpoints", "checkpoints-damaged-3"]
  with checkpoint.open_manager(store, keep=2) as manager:
    checkpoint.save(manager, 3, state(3), "abc")  # the place is free again
  assert checkpoint.restore_newest(store, abstract, "abc")[0] == 3


# --- the workdir -------------------------------------------------------------


def claimed(folder, config):
  return workdir.claim(folder, config, workdir.run_id(config), "abc")


def test_a_workdir_in_a_bucket(folder):
  """As tests/ledger/test_workdir.py has it of a local one."""
  config, other = {"seed": 1, "a": {"n": 4}}, {"seed": 1, "a": {"n": 8}}
  object_store.write(f"{folder}/thesis.tex", b"x")
  with pytest.raises(InputError,
                     match="contains thesis.tex but no config.json"):
    with claimed(folder, config):
      pass
  assert object_store.names(folder) == ["thesis.tex"]
  object_store.delete(f"{folder}/thesis.tex")
  with pytest.raises(InputError, match="not the folder that process 0 has"):
    workdir.check_shared(folder, workdir.run_id(config))
  with claimed(folder, config):
    workdir.check_shared(folder, workdir.run_id(config))
    with pytest.raises(InputError, match="in use by process"):
      with claimed(folder, config):
        pass
  stored = workdir.read_config(folder)
  assert (stored.run_id, stored.config) == (workdir.run_id(config), config)
  with pytest.raises(InputError, match="a.n: 8 in this config, 4 in "):
    with claimed(folder, other):
      pass
  assert object_store.names(folder) == ["config.json"]
