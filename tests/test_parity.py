"""Every family against transformers' torch models; needs the extra `parity`."""

import pytest

pytest.importorskip("torch")

from launch import parity  # pylint: disable=wrong-import-position


@pytest.mark.parametrize("name", sorted(parity.CASES))
def test_family(name):
  found = parity.compare(name, seed=0)
  assert found["relative"] < 1e-4
  assert found["greedy"] == 1.0
  assert found["exported"]


def test_adapters_against_peft():
  assert parity.compare_adapters(seed=0) < 1e-4
