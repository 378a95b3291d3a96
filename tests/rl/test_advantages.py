"""Advantages: what the published cases do not cover."""

import numpy as np
import pytest

from isojax.rl import advantages

SCALE = dict(ddof=0, eps=0.0)
CONSTANTS = {"centered": {}, "leave_one_out": {}} | dict.fromkeys(
    ("group_norm", "batch_norm_centered", "batch_norm_informative",
     "batch_norm_raw"), SCALE)
OF_GROUPS = ("group_norm", "centered", "leave_one_out")


@pytest.mark.parametrize("name", list(advantages.ADVANTAGES))
def test_equal_rewards_give_zero_by_equality_not_by_rounding(name):
  """0.1 three times has a mean of 0.10000000000000002."""
  reward = np.full((1, 3), 0.1)
  assert reward.mean() != 0.1
  assert not advantages.informative(reward)[0]
  assert (advantages.ADVANTAGES[name](reward, **CONSTANTS[name]) == 0.0).all()


@pytest.mark.parametrize("name", OF_GROUPS)
def test_groups_are_independent_and_sum_to_zero(name):
  reward = np.array([[0.0, 1.0, 0.25], [7.0, 1.0, 1.0]])
  advantage = advantages.ADVANTAGES[name]
  both = advantage(reward, **CONSTANTS[name])
  np.testing.assert_array_equal(
      both[1:], advantage(reward[1:], **CONSTANTS[name]))
  np.testing.assert_allclose(both.sum(axis=1), 0.0, atol=1e-12)
  assert both[0, 1] > both[0, 2] > both[0, 0]
