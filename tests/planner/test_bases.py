"""Shapes of common bases: published counts, and names."""

import pytest

from isojax.errors import InputError
from isojax.planner import bases
from tests.planner.examples import SEVEN_B


@pytest.mark.parametrize("name", bases.BASES)
def test_parameters_are_those_of_the_model_s_page(name):
  assert bases.shape(name).params == bases.BASES[name].params


def test_a_tuned_model_has_the_shape_of_its_base():
  """tests/data/qwen2.5-7b is the config.json of the hub."""
  for name in ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", "Qwen/Qwen2.5-7B"):
    assert bases.shape(name) == SEVEN_B
  assert bases.shape("google/gemma-2-9b-it") == bases.shape("google/gemma-2-9b")
  for name in ("Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-7", ""):
    with pytest.raises(InputError, match="NAME/raw/main/config.json"):
      bases.shape(name)
