"""bfloat16's copies of dithered weights: equal at first, then unbiased."""

import shutil
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import hard
from isojax.models import decoder, dither, hf_weights
from isojax.rl import update as update_lib
from isojax.run import setup as setup_lib
from tests import tolerance
from tests.conftest import make_model

UPDATE = 1e-5
PATH = (jax.tree_util.DictKey("layers_0"), jax.tree_util.DictKey("up"))
DRAWN = np.random.default_rng(0).normal(size=(500, 200)).astype(np.float32) / 50


def rounded(x):
  """float32 with the bits that a program in bfloat16 multiplies."""
  return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32))


def test_rounded_to_bfloat16_nothing_changes():
  edges = np.float32([1, -1, 2, 0.5, -0.25, 0, -0.0, 2.0**-120, 3e38])
  stored = np.concatenate([rounded(DRAWN).ravel(), rounded(edges)])[None]
  moved = np.asarray(dither.moved(PATH, stored))
  assert rounded(moved).tobytes() == stored.tobytes()
  assert np.mean(moved != stored) > 0.99
  np.testing.assert_array_equal(moved[stored == 0], 0)


@pytest.mark.parametrize("moved, update", [
    (lambda x: dither.moved(PATH, x) + UPDATE, UPDATE),
    (lambda x: dither.moved(PATH, x) - UPDATE, -UPDATE),
    (lambda x: dither.moved(PATH, x + UPDATE), UPDATE)])  # of a file
def test_copies_move_by_a_small_update_in_the_mean(moved, update):
  """A copy moves by its spacing s with probability UPDATE / s.

  In the whole leaf, and in the columns that one input of a product has.
  """
  stored = rounded(DRAWN)
  stored = np.where(np.abs(stored) < 0.01, 0.01171875, stored)
  spacing = 2.0 ** (np.floor(np.log2(np.abs(stored))) - 7)
  assert UPDATE < spacing.min() / 4  # half of it below a power of two
  np.testing.assert_array_equal(rounded(stored + UPDATE), stored)
  gained = rounded(moved(stored)) - stored
  for axes in None, 0, 1:
    error = np.sqrt(UPDATE * spacing.sum(axes)) / (
        stored.size if axes is None else stored.shape[axes])
    assert (np.abs(gained.mean(axes) - update)
            < tolerance.DEVIATIONS * error).all()


def test_each_weight_has_a_move_of_its_own():
  """Each has 15 bits: 4,096 of them are uniform, also with any lag."""
  one, other = (np.asarray(dither.shifts((64, 64), name)).ravel()
                for name in ("a", "b"))
  # 4,095 = 63 * 64 + 63, mixed in Python.
  mixed = 4095 ^ zlib.crc32(b"b")
  for bits, factor in (16, 0x85ebca6b), (13, 0xc2b2ae35):
    mixed = (mixed ^ mixed >> bits) * factor % 2**32
  assert other[-1] == (mixed >> 16 | 1) - dither.HALF
  for x in one, other:
    assert (x % 2 == 1).all() and np.abs(x).max() < dither.HALF
    for lag in 1, 64, 65:
      product = np.mean(x[lag:] * x[:-lag].astype(float)) / (dither.HALF**2 / 3)
      assert abs(product) < tolerance.DEVIATIONS / np.sqrt(x.size - lag)
  assert np.mean(one == other) < 0.01


@pytest.mark.parametrize("sharding", [dict(fsdp=2, tensor=2), dict(data=4)])
def test_any_mesh_has_the_same_bits(tmp_path, params, sharding):
  hf_weights.save(tmp_path, params, dtype="bfloat16")
  one, other = (dither.initial_params(hf_weights.load(
      str(tmp_path), decoder.abstract_params(model)))
                for model in (make_model(), make_model(**sharding)))
  jax.tree.map(np.testing.assert_array_equal, one, other)
  shifts = [np.asarray(x).ravel()[:9].view(np.int32) % 2**16
            for x in jax.tree.leaves(one) if x.ndim > 1]
  assert len({x.tobytes() for x in shifts}) == len(shifts) > 9


def test_values_between_those_of_bfloat16_stay_at_the_start():
  np.testing.assert_array_equal(
      dither.initial_params({"up": jnp.asarray(DRAWN)})["up"],
      np.where(rounded(DRAWN) == DRAWN, dither.moved(
          (jax.tree_util.DictKey("up"),), DRAWN), DRAWN))


def test_a_run_in_bfloat16_begins_with_dithered_weights(tmp_path):
  policy = tmp_path / "policy"
  shutil.copytree("isojax/assets/countdown-tiny", policy)
  (policy / "model.safetensors").unlink()
  config = hard.get_config()
  setup = setup_lib.prepare(config)
  hf_weights.save(policy, setup_lib.base_params(setup), dtype="bfloat16")
  config.model.path = str(policy)

  def first():
    setup = setup_lib.prepare(config)
    return jax.tree.leaves((setup_lib.base_params(setup),
                            setup_lib.first_state(setup).params))

  same = first()
  assert all((x == y).all() for x, y in zip(same, same[len(same) // 2:]))
  for section in config.sampler, config.recipe.loss:
    section.dtype = "bfloat16"
    leaves = first()
    base, moved = np.split(np.concatenate([x.ravel() for x in leaves]), 2)
    assert np.mean(base != moved) > 0.9
    np.testing.assert_array_equal(rounded(moved), base)
    section.dtype = "float32"


def test_small_adapters_move_their_bfloat16_base():
  """By the mean of what they add, in the sampler and in the update."""
  config = hard.get_config()
  config.model.lora.rank = 1
  config.sampler.dtype = config.recipe.loss.dtype = "bfloat16"
  setup = setup_lib.prepare(config)
  loss, lora = setup.config.recipe.loss, setup.config.model.lora
  base = jax.tree.map(jnp.asarray, setup_lib.base_params(setup))
  pairs = jax.tree.map_with_path(
      lambda path, x: jnp.full(x.shape, 1e-4 if path[-1].key == "b" else .1),
      setup_lib.first_state(setup).params)
  added = lora.scale * 1e-5
  for merged in (setup.merge(base, pairs), update_lib.policy_params(
      setup.model, base, pairs, loss, lora)):
    old, new = (rounded(np.concatenate([
        np.ravel(weights[layer][target]).astype(np.float32)
        for layer in pairs for target in pairs[layer]]))
                for weights in (base, merged))
    spacing = np.abs(old).max() / 2**7
    error = np.sqrt(added * spacing / old.size)
    assert abs(np.mean(new - old) - added) < tolerance.DEVIATIONS * error < (
        added / 4)
