"""The slots of the sampler's programs, by hand."""

import pytest

from isojax.errors import InputError
from isojax.planner.cost import slots


def test_sizes_by_hand():
  assert slots.halves(30, 4, 3, 1) == (4, 8, 16, 32)
  assert slots.halves(30, 4, 3, 4) == (16, 32)
  assert slots.halves(30, 4, 3, 9) == (32,)


def test_slots_become_fewer_by_hand():
  assert slots.row_sizes(256, 1, "halves") == (32, 64, 128, 256)
  assert slots.row_sizes(48, 1, "halves") == (24, 48)
  # A half, a quarter ...; and three quarters, three eighths ... of 48.
  assert slots.row_sizes(48, 1, "fine") == (5, 6, 9, 12, 18, 24, 36, 48)
  # Of two row shards: 32, 16, 8 and 24, 12 slots, at least 4 of a shard.
  assert slots.row_sizes(32, 2, "fine") == (8, 12, 16, 24, 32)
  assert slots.row_sizes(3, 1, "fine") == (3,)


def test_other_ways_to_shrink_are_refused():
  slots.check_shrink("fine")
  with pytest.raises(InputError, match="sampler.shrink='thirds': expected one "
                     "of halves, fine"):
    slots.check_shrink("thirds")
