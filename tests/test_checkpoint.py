"""What is saved is restored to the bit, on any mesh; damage is seen."""

import os
import pathlib
import shutil

import jax
import numpy as np
import optax
import pytest

from isojax import checkpoint
from isojax.errors import InputError
from isojax.models import decoder
from isojax.rl import update as update_lib
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
  manager = checkpoint.open_manager(store, keep=2)
  for step, state in states.items():
    checkpoint.save(manager, step, state)
  checkpoint.finish(manager)
  manager.close()
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
  manager = checkpoint.open_manager(store, keep=2)
  checkpoint.save(manager, 5, states[5])  # the place is free again
  checkpoint.finish(manager)
  manager.close()
  assert restore(store, model)[0] == 5


def test_all_damaged_is_an_error_and_nothing_is_moved(store, model):
  for step in ("3", "5"):
    cut(data_file(pathlib.Path(store) / step))
  with pytest.raises(InputError, match="no checkpoint could be read"):
    restore(store, model)
  assert {"3", "5"} <= set(os.listdir(store))


def test_a_declined_save_is_an_error(store, states):
  """orbax returns False and writes nothing for a step it has passed."""
  manager = checkpoint.open_manager(store, keep=2)
  with pytest.raises(RuntimeError, match="step 4 was not saved"):
    checkpoint.save(manager, 4, states[3])
  manager.close()


def test_only_the_last_few_are_kept(store, states):
  manager = checkpoint.open_manager(store, keep=2)
  checkpoint.save(manager, 9, states[5])
  checkpoint.finish(manager)
  manager.close()
  assert {"5", "9"} <= set(os.listdir(store)) and not os.path.exists(
      os.path.join(store, "3"))
