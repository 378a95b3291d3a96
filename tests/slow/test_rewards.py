"""Many answers that look right, or are given without the problem."""

import pytest

from isojax.tasks import gym
from tests.tasks import hostile, test_gym

SEED = 7


def test_no_hostile_answer_is_paid():
  assert not hostile.paid(hostile.ours, 100_000)


@pytest.mark.parametrize("generator", test_gym.GENERATORS)
def test_no_generator_pays_an_empty_hand(generator):
  for i in range(30):
    p = gym.problem(generator, {}, SEED, i)
    assert not test_gym.paid(generator, p, SEED), p
