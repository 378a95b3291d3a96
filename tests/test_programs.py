"""A policy's sampler has the slots and pages that memory admits."""

import dataclasses

import jax
import pytest

from configs import hard, ppo
from isojax.errors import InputError
from isojax.run import experiment, inputs, programs
from isojax.runtime import mesh as mesh_lib


@pytest.fixture(scope="module")
def opened():
  return inputs.open_policy(
      "isojax/assets/countdown-tiny",
      mesh_lib.make_mesh(mesh_lib.MeshConfig(data=2, fsdp=1, tensor=1)))


def config(**changes):
  sampler = experiment.load(hard.get_config()).sampler
  return dataclasses.replace(sampler, **dict(
      slots=512, max_new_tokens=49, memory_gib=0.003) | changes)


def test_pages_admit_more_slots(opened):
  """64 positions are the longest; 0.18 of 49 tokens are expected."""
  plain, _ = programs.make_fitting_sampler(opened, config())
  paged, notes = programs.make_fitting_sampler(opened, config(page=8))
  assert plain.page is None and plain.slots < paged.slots < 512
  assert (paged.page, paged.sizes.longest) == (8, 63)
  assert notes[1] == (f"sampler: {paged.slots} slots, {paged.pages} pages "
                      "of 8 positions on each device")
  # The keys and values of the pool, and the weights, fit beside the rest.
  cache = jax.eval_shape(lambda: paged.empty(2 * paged.pages, 8))
  held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache)) / 2
  assert 0.1 * 0.003 * 2**30 < held < 0.003 * 2**30 - 4 * 141_000
  # Longer answers are expected: fewer slots, each with more pages.
  longer, _ = programs.make_fitting_sampler(
      opened, config(page=8, expected_tokens=30.0))
  assert longer.slots < paged.slots
  assert (longer.pages / longer.slots > paged.pages / paged.slots)


def test_a_pool_is_not_larger_than_its_slots_need(opened):
  """64 positions of 3 slots on a device, if all answers are long."""
  short, notes = programs.make_fitting_sampler(
      opened, config(page=8, slots=6, memory_gib=1.0))
  assert short.slots == 6 and short.pages == 3 * 8
  assert notes == (f"sampler: 6 slots, {short.pages} pages of 8 positions "
                   "on each device",)


def test_the_rate_of_a_critic_follows_the_square_root_rule():
  """0.1 at 1,024 rollouts."""
  def rate(n):
    config = ppo.get_config()
    config.alloc.update(Bp=32, n=n)
    config.recipe.critic.lr = 0.1
    config.recipe.optimizer.update(warmup_steps=1, base_batch=1024)
    return programs.update_scalars(
        experiment.load(config), updates=0, rollouts=0).critic_lr

  assert rate(32) == pytest.approx(0.1)
  assert rate(8) == pytest.approx(0.05)


def test_no_slot_fits(opened):
  with pytest.raises(InputError, match="it needs 0.000"):
    programs.make_fitting_sampler(opened, config(page=8, memory_gib=1e-4))
  for expected in (0.5, 50.0):
    with pytest.raises(InputError, match=f"expected_tokens={expected}: expected"
                       " None, or from 1 to max_new_tokens=49"):
      config(expected_tokens=expected)
