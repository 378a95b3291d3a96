"""Slots and pages that the lengths of rollouts and a device's memory admit."""

import math

import numpy as np
import pytest

from isojax.planner.cost import lengths
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import model_shape as model_shape_lib
from isojax.planner.cost import pages

# Lengths 2 and 6: longer than 0, 2, 4 are all, half, half of them.
HALVES = lengths.Lengths(2, np.array([1, 0.5, 0.5]), np.array([1, 0.25, 0.5]))
# Keys and values of a position: 16 bytes in float32; 116 numbers.
ONE = model_shape_lib.ModelShape(
    layers=1, width=4, heads=2, kv_heads=1, head_dim=2, mlp=3, vocab=5,
    tied=True, family=model_shape_lib.FAMILIES["llama"])


def test_distribution_of_records_by_hand():
  got = lengths.recorded([[2, 6], [6, 6, 1]], step=2)
  np.testing.assert_allclose(got.one_A, [1, (1 / 2 + 2 / 3) / 2] + [7 / 12])
  # Of the pairs: none of 1, and 1 of 3, longer than 2 tokens.
  np.testing.assert_allclose(got.two_A, [1, 1 / 6, 1 / 6])
  np.testing.assert_allclose(lengths.recorded([[2], [6]], step=2).two_A,
                             [1, 1 / 4, 1 / 4])


def test_ages_by_hand():
  """Over a long time (0 + 1 + 2) / 2; starts are 1, 1/2, 1/4, 5/8, 5/16, ...

  At time 4 half of the first rollouts have age 4, and half of the 1/2 that
  followed at time 2 have age 2: 2 + 1/2. Later means are smaller.
  """
  assert lengths.mean_age(HALVES) == (1.5, 2.5)
  assert lengths.mean_context(HALVES, 10) == 10 + 1.5 + 1
  # All have 3 tokens: the slots go on together.
  assert lengths.mean_age(lengths.recorded([[3, 3]], step=1)) == (1.0, 2.0)


def test_demand_by_hand():
  """Variance at ages 0, 2, 4 with n = 3: 0, 1/4, 1/4 + 2 * 1/4; mean 1.5."""
  got = pages.demand(HALVES, page=3, prompt=10, n=3)
  # (0.25 / 4 + 6.25 * 3 / 4) / 2 is 2.375. The longest of three is longer than
  # 2 with chance 7/8: 2.75 problem ages by 3 * 2 of the rollouts.
  assert got.deviation == pytest.approx(math.sqrt(2.375) / 3)
  assert got.mean == pytest.approx((2.5 + 2 + 2) / 3 + 9 / 3 * 2.75 / 6)
  assert pages.needed(pages.Demand(2.0, 0.5), 9) == 18 + 1.5 * pages.MARGIN + (
      -1.5 * pages.MARGIN) % 1
  # A prompt shorter than a page has no page that is shared.
  assert pages.demand(HALVES, page=3, prompt=1, n=3).mean == 6.5 / 3


SIZES = dict(cache="float32", dtype="float32", max_prompt=10, max_response=6,
             fused=False)
HELD = dict(weights="float32", head="float32", tensor=1)


def shared_out(budget, most=9, fsdp=1, tensor=1, longer=4.0):
  return pages.shared_out(
      ONE, pages.Demand(2.0, 0.0), pages.Demand(longer, 0.0), page=4, chunk=2, kernel=True, fsdp=fsdp,
      budget=budget, most=most, **SIZES, **HELD | {"tensor": tensor})


def test_bytes_of_slots_and_pages_by_hand():
  """8 times 4 * 5 to draw, 2,760 of a prompt, see test_cost; 2 * 16 decoded."""
  slot = {name: x for name, x in SIZES.items() if name != "max_response"}
  assert memory_lib.paged_slots_bytes(
      ONE, slots=3, prompts=2, tensor=1, chunk=2, **slot) == (
          3 * (160 + 32) + 2 * 2760)
  each = lambda kernel: memory_lib.page_bytes(
      ONE, page=4, cache="float32", tensor=1, kernel=kernel)
  assert each(True) == 64 and each(False) == pytest.approx(
      4 * (2 * 16 + 2 * 16))  # the only layer, and what is moved to it


def test_prompts_of_a_prefill():
  of = lambda slots, S, paged=True: memory_lib.prefilled(slots, S, paged=paged)
  assert [of(132, 2048), of(132, 2048, False), of(9, 2048)] == [4, 17, 2]
  assert [of(132, 9000), of(256, 15), of(1, 15)] == [1, 32, 1]


def test_slots_and_pages_by_hand():
  """464 bytes of weights and 2,760 of the prompt that up to 8 slots prefill.

  64 of a page, 192 of a slot: 320 with two pages.
  """
  fixed = 464 + 2760
  assert shared_out(fixed + 5 * 320) == (5, 10, True)
  assert shared_out(fixed + 5 * 320 - 1) == (4, 12, True)  # 831 bytes left
  # A pool has at most 4 pages, 16 positions, of each slot.
  assert shared_out(464 + 10**6, most=5) == (5, 20, True)
  # No more than answers of the double length need, but always the longest.
  assert shared_out(fixed + 10**6, most=5, longer=2.5) == (5, 13, True)
  assert shared_out(fixed + 10**6, most=1, longer=2.5) == (1, 4, True)
  # A slot with the longest rollout needs 4 pages.
  assert shared_out(fixed + 192 + 256) == (1, 4, True)
  assert shared_out(fixed + 192 + 255)[0] == 0
  assert shared_out(fixed + 5 * 320, most=5, fsdp=2) == (5, 10, True)
  # Four of five slots are worth whole weights; none of one is not.
  assert shared_out(fixed - 232 + 5 * 320, most=6, fsdp=2) == (4, 9, True)
  assert shared_out(fixed - 232 + 192 + 256, fsdp=2) == (1, 4, False)
  # Nine slots prefill two prompts.
  assert shared_out(fixed + 9 * 320 + 2760) == (9, 18, True)
  assert shared_out(fixed + 9 * 320)[0] == 8


def test_a_config_by_hand():
  admitted = lambda page, expected=6.0, **more: pages.admitted(
      ONE, page=page, expected=expected, chunk=1, kernel=False, fsdp=1, most=9,
      **SIZES, **HELD, **more)
  # 1,145 bytes of a slot without pages, see test_cost.
  assert admitted(None, budget=464 + 3 * 1145) == (3, None, True)
  slots, pool, _ = admitted(
      4, budget=464 + 2 * 2760 + 9 * (160 + 16 + 4 * 256))
  assert slots == 9 and 18 <= pool < 36  # few prompts have 10 tokens
  # The fewer tokens are expected, the more slots.
  fewer = lambda expected: admitted(1, expected, budget=464 + 2760 + 2800).slots
  assert fewer(1.0) > fewer(3.0) > fewer(6.0) >= 1
  assert fewer(None) == fewer(6 * 0.18)
  least = lambda page: pages.least_bytes(
      ONE, page=page, expected=1.0, chunk=1, kernel=False, fsdp=1, **SIZES,
      **HELD)
  assert least(None) == 464 + 1145
  assert least(4) == pytest.approx(464 + 160 + 2760 + 16 + 4 * 256)
  assert admitted(4, budget=least(4)).slots == 1
  assert admitted(4, budget=least(4) - 1).slots == 0


def pages_in_use(new_B, *, n, slots, prompt, page, chunk):
  """Returns pages before each chunk, until nothing waits: a plain loop."""
  items, later, used = list(range(slots)), slots, []
  age = np.zeros(slots, int)
  while True:
    own = -(-(prompt + age + chunk) // page) - prompt // page
    used.append(own.sum() + prompt // page * len({i // n for i in items}))
    age += chunk
    for slot in np.flatnonzero(age >= new_B[items]):
      if later == len(new_B):
        return np.array(used)
      items[slot], age[slot], later = later, 0, later + 1


@pytest.mark.parametrize("shared, mean, least", [
    (0.0, 300, 0.05), (0.5, 300, 0.05), (0.5, 900, 0.005)])
def test_a_pool_is_exhausted_as_rarely_as_the_margin_says(shared, mean, least):
  """A normal deviate exceeds one standard deviation in 16 % of the chunks.

  With a mean near the limit of 2,048 tokens, the largest mean age is that of
  the beginning, and later chunks need less.
  """
  random, n, slots = np.random.default_rng(0), 8, 96
  normal = (np.sqrt(shared) * random.standard_normal((400, 1))
            + np.sqrt(1 - shared) * random.standard_normal((400, n)))
  new_PxN = np.clip(np.ceil(mean * np.exp(0.8 * normal - 0.32)), 1,
                    2048).astype(int)
  used = pages_in_use(new_PxN.reshape(-1), n=n, slots=slots, prompt=100,
                      page=32, chunk=32)
  of = lambda d: pages.needed(
      pages.demand(d, page=32, prompt=100, n=n), slots)
  measured = of(lengths.recorded(new_PxN.tolist(), step=32))
  assert pages.MARGIN == 1.0
  assert least < (used > measured).mean() < 0.2
  assert (used > 0.75 * measured).mean() > 0.5
  prior = of(lengths.lognormal(mean=mean, sigma=0.8, shared=shared, most=2048,
                             step=32))
  assert abs(prior / measured - 1) < 0.1
