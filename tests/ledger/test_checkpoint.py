"""What is saved is restored to the bit, on any mesh; damage is seen."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.errors import InputError
from isojax.ledger import checkpoint
from isojax.models import decoder
from isojax.rl import optimizer as optimizer_lib
from isojax.types import TrainState
from tests.conftest import make_model, TINY

TX = optax.adamw(1e-3)


def make_state(model, seed):
  params = decoder.init_params(model, jax.random.key(seed))
  return optimizer_lib.init_state(model, TX, params)


def assert_bits(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def model():
  return make_model(fsdp=4)


@pytest.fixture(scope="module")
def states(model):
  return {step: make_state(model, step) for step in (3, 5)}


@pytest.fixture(scope="module")
def saved(states, tmp_path_factory):
  store = str(tmp_path_factory.mktemp("run") / "checkpoints")
  with checkpoint.open_manager(store, keep=2) as manager:
    for step, state in states.items():
      checkpoint.save(manager, step, state, "abc")
  return store


@pytest.fixture
def store(saved, tmp_path):
  shutil.copytree(saved, tmp_path / "checkpoints")
  return str(tmp_path / "checkpoints")


def restore_as(store, abstract, run_id="abc", reach=99, keep=2,
               with_in_flight=False):
  return checkpoint.restore_newest(store, abstract, run_id, reach=reach,
                                   keep=keep, with_in_flight=with_in_flight)


def restore(store, model, **more):
  result = restore_as(store, optimizer_lib.abstract_state(model, TX), **more)
  return result and result[:2]


def save(store, state, *steps, keep=2):
  with checkpoint.open_manager(store, keep=keep) as manager:
    for step in steps:
      checkpoint.save(manager, step, state, "abc")


def data_file(step):
  """The file that holds the values; small ones stand in it inline."""
  return next(p for p in (pathlib.Path(step) / "state/d").iterdir())


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"fsdp": 2, "tensor": 2}, {}])
def test_newest_comes_back_on_any_mesh(store, states, axes):
  model = make_model(**axes)
  step, state = restore(store, model)
  assert step == 5
  assert_bits(state, states[5])
  want = jax.tree.map(lambda x: x.sharding,
                      optimizer_lib.abstract_state(model, TX))
  assert jax.tree.map(lambda x: x.sharding, state) == want


def test_rollouts_in_flight_come_back_and_damage_is_seen(
    states, tmp_path, model):
  """A single byte stands in a file of many values, others in their own."""
  store = str(tmp_path / "checkpoints")
  saved = np.random.default_rng(0).integers(0, 256, 70_001).astype(np.uint8)
  with checkpoint.open_manager(store, keep=2) as manager:
    checkpoint.save(manager, 3, states[3], "abc", saved[:1])
    checkpoint.save(manager, 5, states[5], "abc", saved)
  again = lambda: restore_as(
      store, optimizer_lib.abstract_state(model, TX), with_in_flight=True)
  np.testing.assert_array_equal(again().in_flight, saved)
  meta = pathlib.Path(store) / "5/meta/metadata"
  content = json.loads(meta.read_text())
  meta.write_text(json.dumps(
      content | {"in_flight": content["in_flight"] ^ 1}))
  step, _, found = again()
  assert step == 3
  np.testing.assert_array_equal(found, saved[:1])


def test_without_its_rollouts_in_flight_a_checkpoint_is_damaged(store, model):
  """Rather than restored with an empty flight."""
  with pytest.raises(InputError, match="no rollouts in flight"):
    restore(store, model, with_in_flight=True)


@pytest.mark.parametrize("reach, step, left", [
    (5, 5, ["3", "5"]), (4, 3, ["3"]), (2, None, [])])
def test_the_records_reach_the_checkpoint(store, model, states, reach, step,
                                          left):
  """A later one is moved away, so that its step can be saved again."""
  found = restore(store, model, reach=reach)
  assert (found and found[0]) == step
  assert sorted(os.listdir(store)) == left
  assert sorted(os.listdir(os.path.dirname(store))) == ["checkpoints", *(
      f"checkpoints-damaged-{each}" for each in (3, 5) if each > reach)]
  save(store, states[5], 5 if step != 5 else 7)


def test_a_step_that_was_being_deleted_is_deleted(store, model):
  """orbax deletes file by file; a kill leaves a part of the oldest step."""
  shutil.copytree(f"{store}/3", f"{store}/1")
  os.remove(f"{store}/1/meta/metadata")
  foreign(pathlib.Path(store) / "2")
  assert restore(store, model)[0] == 5
  assert sorted(os.listdir(store)) == ["3", "5"]
  assert sorted(os.listdir(os.path.dirname(store))) == [
      "checkpoints", "checkpoints-damaged-2"]


def test_checksums_depend_on_where_a_value_is():
  x = jnp.arange(6.0).reshape(2, 3)
  same, *moved = map(checkpoint._checksum, [x, x[::-1], x[:, ::-1], x.T])
  assert same == checkpoint._checksum(x + 0)
  assert all(same != each for each in moved)


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0x10
  path.write_bytes(bytes(data))


def other_checksum(step):
  meta = json.loads((step / "meta/metadata").read_text())
  meta["checksum"][".params['norm']"] ^= 1
  (step / "meta/metadata").write_text(json.dumps(meta))


def foreign(step):
  step.mkdir()
  (step / "thesis.tex").write_text("mine")


EDITED = {
    "cut": lambda step: os.truncate(data_file(step), 99),
    "flipped bit": lambda step: flip(data_file(step)),
    "no state": lambda step: shutil.rmtree(step / "state"),
    "no meta": lambda step: (step / "meta/metadata").unlink(),
    "list": lambda step: (step / "meta/metadata").write_text("[]"),
    "checksum": other_checksum}
REPLACED = {
    "copy": lambda step: shutil.copytree(step.with_name("3"), step),
    "file": lambda step: step.write_text("mine"),
    "link": lambda step: step.symlink_to("/nowhere"),
    "foreign": foreign}


def damage(store, number, name):
  step = pathlib.Path(store) / str(number)
  if name in REPLACED:
    shutil.rmtree(step)
  (EDITED | REPLACED)[name](step)


@pytest.mark.parametrize("name", [*EDITED, *REPLACED])
def test_damaged_newest_falls_back_and_is_kept_aside(
    store, model, states, name, caplog):
  damage(store, 5, name)
  step, state = restore(store, model)
  assert step == 3
  assert_bits(state, states[3])
  assert os.path.lexists(f"{store}-damaged-5")
  (line,) = [r.getMessage() for r in caplog.records
             if r.levelname == "WARNING"]
  assert line.startswith(f"{store}: the checkpoint of step 5 is damaged (")
  assert line.endswith(f"): moved to {store}-damaged-5; the run resumes from "
                       "step 3")
  assert "Error" not in line and "driver" not in line
  save(store, states[5], 5)  # the place is free again
  assert restore(store, model)[0] == 5


@pytest.mark.parametrize("name", ["link", "foreign", "no meta"])
def test_a_damaged_older_one_is_set_aside(store, model, states, name):
  """The manager would delete it when it saves more."""
  damage(store, 3, name)
  assert restore(store, model)[0] == 5
  save(store, states[5], 7, keep=1)
  assert os.listdir(store) == ["7"]
  assert os.path.lexists(f"{store}-damaged-3")


def test_all_damaged_is_an_error_and_nothing_is_moved(store, model):
  for step in (3, 5):
    damage(store, step, "cut")
  with pytest.raises(InputError, match=(
      r"no checkpoint could be read \(step 5: a file is cut or changed, .*; "
      r"step 3: a file is cut or changed, found by ")):
    restore(store, model)
  assert {"3", "5"} <= set(os.listdir(store))


def test_a_checkpoint_of_another_run_is_refused(store, model, saved):
  with pytest.raises(InputError, match="5: .*run abc.*run abd"):
    restore(store, model, run_id="abd")
  with pytest.raises(InputError, match="of run abc"):
    checkpoint.restore_params(
        store, 3, optimizer_lib.abstract_state(model, TX).params, "abd",
        part="params")
  assert sorted(os.listdir(store)) == sorted(os.listdir(saved))


def test_only_old_steps_and_what_a_killed_save_left_are_deleted(store, states):
  names = ["7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-12",
           "my.orbax-checkpoint-tmp", "mine", "07"]
  for name in names:
    os.mkdir(f"{store}/{name}")
  save(store, states[5], 7)
  assert {"my.orbax-checkpoint-tmp", "mine", "07"} < set(os.listdir(store))
  assert not {"3", *names[:2]} & set(os.listdir(store))


def bfloat16(abstract):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      x.shape, jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype,
      sharding=x.sharding), abstract)


@pytest.mark.parametrize("other, difference", [
    (lambda model: optimizer_lib.abstract_state(
        make_model(dataclasses.replace(TINY, F=30)), TX),
     r"down is float32\[28, 20\] in the .*, float32\[30, 20\] in this run"),
    (lambda model: optimizer_lib.abstract_state(model, optax.sgd(1e-3)),
     "opt_state.0.count is int32.* in the checkpoint, absent in this run"),
    (lambda model: optimizer_lib.abstract_state(model, TX, average=True),
     r"average\..* is absent in the checkpoint, float32.* in this run"),
    (lambda model: bfloat16(optimizer_lib.abstract_state(model, TX)),
     "float32.* in the checkpoint, bfloat16.* in this run"),
], ids=["shape", "optimizer", "average", "dtype"])
def test_another_model_is_not_damage(store, model, other, difference):
  before = sorted(os.listdir(store))
  with pytest.raises(InputError, match=difference):
    restore_as(store, other(model))
  assert sorted(os.listdir(store)) == before
  assert os.listdir(os.path.dirname(store)) == ["checkpoints"]


SAVING = '''"""Saves."""
import jax
import jax.numpy as jnp
from isojax.core import cli
from isojax.ledger import checkpoint
from isojax.types import TrainState

def main(argv):
  """Saves."""
  with checkpoint.open_manager(argv[1], keep=2) as manager:
    for step in range(1, 1000):
      key = jax.random.key(step)
      checkpoint.save(manager, step, TrainState(
          step=jnp.int32(step), opt_state=(), params={
              name: jax.random.normal(jax.random.fold_in(key, i), (256, 512))
              for i, name in enumerate(argv[2])}), "abc")
      print(step, flush=True)

if __name__ == "__main__":
  cli.run(main, words=True)
'''


@pytest.fixture
def saving(tmp_path_factory, monkeypatch):
  """A command that saves arrays of these names until it is ended."""
  script = tmp_path_factory.mktemp("saving") / "saving.py"
  script.write_text(SAVING)
  monkeypatch.setenv("PYTHONPATH", os.getcwd())
  return [sys.executable, str(script)]


def test_killed_while_saving_leaves_whole_steps(saving, tmp_path):
  """Of a run in tests/slow/test_kill.py."""
  store = str(tmp_path / "checkpoints")
  with subprocess.Popen([*saving, store, "abcd"], stdout=subprocess.PIPE,
                        text=True) as process:
    seen = int(process.stdout.readline())
    time.sleep(0.3)
    process.kill()
    seen = max([seen, *map(int, process.stdout.read().split())])
  leaf = jax.ShapeDtypeStruct((256, 512), jnp.float32,
                              sharding=jax.sharding.SingleDeviceSharding(
                                  jax.devices()[0]))
  found = restore_as(store, TrainState(
      step=jax.ShapeDtypeStruct((), jnp.int32, sharding=leaf.sharding),
      params=dict.fromkeys("abcd", leaf), opt_state=()))
  if found is None:
    assert seen == 1  # a step is safe once the next save has begun
    return
  step, state, _ = found
  assert step in (seen - 1, seen, seen + 1)
  assert state.step == step
  for i, name in enumerate("abcd"):
    key = jax.random.fold_in(jax.random.key(step), i)
    np.testing.assert_array_equal(state.params[name],
                                  jax.random.normal(key, (256, 512)))
  assert sorted(os.listdir(tmp_path)) == ["checkpoints"]  # none was damaged


@pytest.mark.parametrize("options", ["nr_inodes=4", "size=200k"])
def test_a_full_disk_ends_the_process_with_one_line(saving, tmp_path, options):
  """orbax's threads would wait ten minutes for a folder that was not made."""
  (tmp_path / "disk").mkdir()
  mount = f"mount -t tmpfs -o {options} tmpfs {tmp_path}/disk"
  private = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
  if shutil.which("unshare") is None or subprocess.run(
      [*private, mount], capture_output=True).returncode:
    pytest.skip("needs its own file system")
  done = subprocess.run(
      [*private, f"{mount} && exec {' '.join(saving)} {tmp_path}/disk/store a"],
      capture_output=True, text=True, timeout=60)
  assert done.returncode == 2, done.stderr
  (line,) = done.stderr.splitlines()
  assert "a checkpoint could not be written (" in line
  assert "No space left on device" in line and "no step is saved yet" in line


@pytest.mark.parametrize("message", [
    "Failed to write 312780 bytes to file 4: No space left on device "
    "[os_error_code='28']",
    'Error opening {"sync":true}\'] [os_error_code=\'28\'] [source=\'a.cc\']'])
def test_a_full_disk_is_named_by_its_code(tmp_path, message):
  """The order of the parts of tensorstore's messages is not fixed."""
  with (checkpoint.open_manager(str(tmp_path), keep=1) as manager,
        pytest.raises(InputError, match=r"\(No space left on device\)"),
        checkpoint._convert_write_errors(manager)):
    raise ValueError(message)


LATE = '''"""Closes its loop at the first error; another write ends later."""
import asyncio
import threading
import tensorstore
from isojax.core import cli
from isojax.ledger import checkpoint

def main(argv):
  checkpoint.quiet_orbax()
  promise, future = tensorstore.Promise.new()
  async def late():
    await future
  async def fails():
    raise OSError("No space left on device")
  async def save():
    await asyncio.gather(late(), fails())
  loop = asyncio.new_event_loop()
  try:
    loop.run_until_complete(save())
  except OSError:
    loop.close()
  writer = threading.Thread(target=promise.set_result, args=(1,))
  writer.start()
  writer.join()
  print("late")

if __name__ == "__main__":
  cli.run(main)
'''


def test_a_write_that_ends_late_says_nothing(tmp_path):
  (tmp_path / "late.py").write_text(LATE)
  done = subprocess.run(
      [sys.executable, str(tmp_path / "late.py")], capture_output=True,
      text=True, timeout=60, env=os.environ | {"PYTHONPATH": os.getcwd()})
  assert (done.stdout, done.stderr) == ("late\n", "")


def test_a_declined_save_is_an_error(store, states):
  """orbax returns False and writes nothing for a step it has passed."""
  with pytest.raises(RuntimeError, match="step 4 was not saved"):
    save(store, states[3], 4)
