"""Slots and pages that lengths keep in use, by hand and by a plain loop."""

import dataclasses

import numpy as np
import pytest

from isojax.planner.cost import lengths
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost import roofline
from isojax.planner.cost import slots as slots_lib
from isojax.planner.cost.efficiency import PEAK
from isojax.planner.cost.slots import Slots
from isojax.planner.cost.workload import Workload
from tests.planner import test_pages

# Lengths 1 or 2, and 5 or 6: longer than 0, 2, 4 are all, half, half of them.
HALVES = lengths.Lengths(2, np.array([1, 0.5, 0.5]), np.array([1, 0.25, 0.5]))


def test_a_round_by_hand():
  assert lengths.mean_tokens(HALVES) == 3.5
  # Two rollouts, then one for two chunks: 3 chunks of 2 tokens, 4 + 2 + 2 slots.
  got = lengths.one_round(HALVES, rollouts=2, sizes=(1, 2))
  assert got == (6, 8 / 6, 6, 2 * 3.5 / 8)
  # Nothing waits after 2, 1, 1/2 and 1/2 have started. Then 1.25 are active, and
  # a chunk later 0.5, which is less than the last one.
  got = lengths.one_round(HALVES, rollouts=4, sizes=(2,))
  assert got == (8, 2, 2, 4 * 3.5 / 16)


def test_many_rollouts_take_their_share():
  """A rollout takes two chunks of one of two slots, 4 positions of tokens."""
  one, two = (lengths.one_round(HALVES, rollouts=count, sizes=(2,))
              for count in (10**4, 2 * 10**4))
  assert two.positions - one.positions == pytest.approx(10**4 * 4 / 2, abs=4)
  assert two.useful == pytest.approx(3.5 / 4, abs=1e-3) and two.slots == 2


def plain_round(new, sizes, chunk):
  """Returns (positions, slots, useful) of given lengths: a plain loop."""
  waiting, active, slots = list(new[::-1]), [], sizes[-1]
  positions = decoded = 0
  while waiting or active:
    while waiting and len(active) < slots:
      active.append(waiting.pop())
    if not waiting:
      slots = min(slots, min(x for x in sizes if x >= len(active)))
    positions, decoded = positions + chunk, decoded + chunk * slots
    active = [left - chunk for left in active if left > chunk]
  return positions, decoded / positions, sum(new) / decoded


@pytest.mark.parametrize("rollouts, rows, shrink", [
    (512, 512, "halves"), (512, 128, "fine"), (2048, 192, "halves")])
def test_a_round_is_that_of_random_lengths(rollouts, rows, shrink):
  mean, most = 184, 1024
  sizes, chunk = slots_lib.row_sizes(rows, 1, shrink), slots_lib.chunk(most)
  random, seen = np.random.default_rng(0), []
  for _ in range(3):
    normal = np.sqrt(0.5) * (random.standard_normal((rollouts // 8, 1))
                             + random.standard_normal((rollouts // 8, 8)))
    seen.append(plain_round(np.clip(np.ceil(
        mean * np.exp(0.8 * normal - 0.32)), 1, most).astype(int).reshape(-1),
                            sizes, chunk))
  got = lengths.one_round(
      lengths.prior(expected=mean, most=most, step=chunk), rollouts=rollouts,
      sizes=sizes)
  for name, expected, within in zip(
      ("positions", "slots", "useful"), np.mean(seen, axis=0),
      (0.1, 0.1, 0.02)):
    assert abs(getattr(got, name) / expected - 1) < within, name


def test_positions_that_are_read_by_hand():
  """(1.5 + 2 + 2) / 3 + 3 * 2.75 / 6 pages of a slot, see test_pages.

  Arenas of 100 pages end at 13, 57 and 100; 9 slots use 28.9 pages, 20 use 64.2.
  A chunk is read from its middle on average.
  """
  read = lambda slots: lengths.read(HALVES, page=3, pages=100, slots=slots,
                                    prompt=10, n=3)
  assert slots_lib.offsets(100) == (0, 13, 57, 100)
  assert read(9) == pytest.approx(57 * 3 / 9 + 1)
  assert read(20) == pytest.approx(100 * 3 / 20 + 1)
  assert read(90) == pytest.approx(100 * 3 / 90 + 1)  # never more than all


def test_a_priced_round_has_the_mean_that_is_asked_for():
  slots = Slots(G=1, shrink="halves", chunk=32, page=None, pages=None)
  of = lambda mean: lengths.priced_round(slots, rows=64, rollouts=64000.0,
                                         mean=mean, most=1024)
  # Lengths of 900 on average are mostly at the limit. Each slot keeps at least
  # 97 % of the tokens, because it waits for half a chunk.
  for mean in (300.0, 900.0):
    assert of(mean).useful * of(mean).positions * of(mean).slots == pytest.approx(
        64000 * mean, rel=1e-6)
    assert 0.93 < of(mean).useful < 1


def test_a_price_counts_what_slots_read():
  """Weights once a position, 232 bytes; each row its positions, 16 bytes."""
  slots = Slots(G=1, shrink="halves", chunk=4, page=8, pages=100)
  shape = test_pages.ONE
  workload = Workload(10, 20, max_prompt=16, max_response=128,
                      dtype="float32", padded=True)
  of = dict(shape=shape, workload=workload, efficiency=PEAK, rows=32,
            machine=machine_lib.machine("h100"))
  one = lengths.priced_round(slots, rows=32, rollouts=64.0, mean=20, most=128)
  seen = lengths.context(slots, rows=32, prompt=10, mean=20, most=128)
  _, decode = roofline.sampling_cost(8, 8, **of, slots=slots)
  weights = 4 * shape.matmul_params
  assert decode.bytes == pytest.approx(
      one.positions * (weights + one.slots * seen * 16))
  assert 20 < seen < 60 < 16 + 128
  # Arrays of allocations, and slots of the longest length.
  _, several = roofline.sampling_cost(np.array([8, 2]), np.array([8, 1]), **of,
                                      slots=slots)
  assert several.bytes[0] == decode.bytes > several.bytes[1]
  _, longest = roofline.sampling_cost(
      8, 8, **of, slots=dataclasses.replace(slots, page=None, pages=None))
  assert longest.bytes == pytest.approx(
      one.positions * (weights + one.slots * 144 * 16))
