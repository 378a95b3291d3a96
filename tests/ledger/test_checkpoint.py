"""What is saved is restored to the bit, on any mesh; damage is seen."""

import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.ledger import checkpoint
from isojax.errors import InputError
from isojax.models import decoder
from isojax.rl import update as update_lib
from isojax.types import TrainState
from tests.conftest import TINY
from tests.conftest import make_model

TX = optax.adamw(1e-3)


def make_state(model, seed):
  params = decoder.init_params(model, jax.random.key(seed))
  return update_lib.init_state(model, TX, params)


def assert_bits(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
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
      checkpoint.save(manager, step, state)
  return store


@pytest.fixture
def store(saved, tmp_path):
  shutil.copytree(saved, tmp_path / "checkpoints")
  return str(tmp_path / "checkpoints")


def restore(store, model):
  return checkpoint.restore_newest(store, update_lib.abstract_state(model, TX))


def data_file(step):
  """The file that holds the values; small ones stand in it inline."""
  return next(p for p in (pathlib.Path(step) / "state/d").iterdir())


def test_no_folder_is_no_checkpoint(tmp_path, model):
  assert restore(str(tmp_path / "none"), model) is None


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"fsdp": 2, "tensor": 2}, {}])
def test_newest_comes_back_on_any_mesh(store, states, axes):
  model = make_model(**axes)
  step, state = restore(store, model)
  assert step == 5
  assert_bits(state, states[5])
  want = jax.tree.map(lambda x: x.sharding,
                      update_lib.abstract_state(model, TX))
  assert jax.tree.map(lambda x: x.sharding, state) == want


def cut(path):
  os.truncate(path, path.stat().st_size // 2)


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0x10
  path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [
    lambda step: cut(data_file(step)), lambda step: flip(data_file(step)),
    lambda step: shutil.rmtree(step / "state"),
    lambda step: shutil.rmtree(step / "meta")],
                         ids=["cut", "flipped bit", "no state", "no meta"])
def test_damaged_newest_falls_back_and_is_kept_aside(
    store, model, states, damage, caplog):
  damage(pathlib.Path(store) / "5")
  step, state = restore(store, model)
  assert step == 3
  assert_bits(state, states[3])
  assert os.path.isdir(f"{store}-damaged-5")
  assert "step 5 is damaged" in caplog.text
  with checkpoint.open_manager(store, keep=2) as manager:
    checkpoint.save(manager, 5, states[5])  # the place is free again
  assert restore(store, model)[0] == 5


def test_all_damaged_is_an_error_and_nothing_is_moved(store, model):
  for step in ("3", "5"):
    cut(data_file(pathlib.Path(store) / step))
  with pytest.raises(InputError, match="no checkpoint could be read"):
    restore(store, model)
  assert {"3", "5"} <= set(os.listdir(store))


def bfloat16(abstract):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      x.shape, jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype,
      sharding=x.sharding), abstract)


@pytest.mark.parametrize("other, difference", [
    (lambda model: update_lib.abstract_state(
        make_model(dataclasses.replace(TINY, F=30)), TX),
     r"down is float32\[28, 20\] there, float32\[30, 20\] here"),
    (lambda model: update_lib.abstract_state(model, optax.sgd(1e-3)),
     "opt_state.0.count is int32.* there, absent here"),
    (lambda model: bfloat16(update_lib.abstract_state(model, TX)),
     "float32.* there, bfloat16.* here"),
], ids=["shape", "optimizer", "dtype"])
def test_another_model_is_not_damage(store, model, other, difference):
  before = sorted(os.listdir(store))
  with pytest.raises(InputError, match=difference):
    checkpoint.restore_newest(store, other(model))
  assert sorted(os.listdir(store)) == before
  assert os.listdir(os.path.dirname(store)) == ["checkpoints"]


SAVING = """
import sys
import jax, jax.numpy as jnp
from isojax.ledger import checkpoint
from isojax.types import TrainState
with checkpoint.open_manager(sys.argv[1], keep=2) as manager:
  for step in range(1, 1000):
    key = jax.random.key(step)
    state = TrainState(step=jnp.int32(step), opt_state=(), params={
        name: jax.random.normal(jax.random.fold_in(key, i), (256, 512))
        for i, name in enumerate("abcd")})
    checkpoint.save(manager, step, state)
    print(step, flush=True)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_while_saving_leaves_whole_steps(seed, tmp_path):
  store = str(tmp_path / "checkpoints")
  with subprocess.Popen([sys.executable, "-c", SAVING, store],
                        stdout=subprocess.PIPE, text=True) as process:
    seen = int(process.stdout.readline())
    time.sleep(random.Random(seed).uniform(0.1, 0.6))
    process.kill()
    seen = max([seen, *map(int, process.stdout.read().split())])
  leaf = jax.ShapeDtypeStruct((256, 512), jnp.float32,
                              sharding=jax.sharding.SingleDeviceSharding(
                                  jax.devices()[0]))
  found = checkpoint.restore_newest(store, TrainState(
      step=jax.ShapeDtypeStruct((), jnp.int32, sharding=leaf.sharding),
      params=dict.fromkeys("abcd", leaf), opt_state=()))
  if found is None:
    assert seen == 1  # a step is safe once the next save has begun
    return
  step, state = found
  assert step in (seen - 1, seen, seen + 1)
  assert state.step == step
  for i, name in enumerate("abcd"):
    key = jax.random.fold_in(jax.random.key(step), i)
    np.testing.assert_array_equal(state.params[name],
                                  jax.random.normal(key, (256, 512)))
  assert sorted(os.listdir(tmp_path)) == ["checkpoints"]  # none was damaged


def test_a_declined_save_is_an_error(store, states):
  """orbax returns False and writes nothing for a step it has passed."""
  with checkpoint.open_manager(store, keep=2) as manager:
    with pytest.raises(RuntimeError, match="step 4 was not saved"):
      checkpoint.save(manager, 4, states[3])


def test_only_the_last_few_are_kept(store, states):
  with checkpoint.open_manager(store, keep=2) as manager:
    checkpoint.save(manager, 9, states[5])
  assert {"5", "9"} <= set(os.listdir(store)) and not os.path.exists(
      os.path.join(store, "3"))
