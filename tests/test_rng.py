"""Random words on the host: streams that never change and never meet."""

import itertools

import numpy as np
import pytest

from isojax.runtime import rng


@pytest.mark.parametrize("draw, word, at", [
    ("ORDER", 0, (0, 0)), ("MINIBATCHES", 1, (3, 0)), ("SELECTION", 2, (0, 9)),
    ("REPLACEMENT", 3, (0, 0)), ("INTERRUPT", 4, (0, 9))])
def test_words_are_those_of_the_address(draw, word, at):
  """A stored run depends on them."""
  np.testing.assert_array_equal(
      rng.words(rng.Draw[draw], 7, 2, 5, at=at),
      np.random.Philox(key=[7, 2], counter=[0, *at, word]).random_raw(5))


def test_no_two_draws_of_a_step_share_a_word():
  words = {draw: set(rng.words(draw, 7, 2, 100).tolist()) for draw in rng.Draw}
  assert len(words) == 5
  for one, other in itertools.combinations(words.values(), 2):
    assert not one & other


def test_the_first_rollouts_of_a_larger_group_are_those_of_a_smaller_one():
  few, many = (rng.uniforms(rng.Draw.SELECTION, 1, 2, [5, 8], n)
               for n in (4, 8))
  np.testing.assert_array_equal(many[:, :4], few)
  assert ((0 <= many) & (many < 1)).all() and len(np.unique(many)) == 16
