"""The sizes of the sampler's programs, by hand."""

import dataclasses

import pytest

from isojax.models import shape as shape_lib
from isojax.sampling import sizes as sizes_lib

# One layer, 4 wide, 2 heads, 1 of keys, 2 wide, mlp 3, 5 words: 116 numbers, 48
# attention, 36 mlp, 12 norms, 20 words. 10 + 6 tokens in float32: keys and
# values of a token are 16 bytes.
ONE = sizes_lib.SamplerSizes(
    shape_lib.ModelShape(
        layers=1, width=4, heads=2, kv_heads=1, head_dim=2, mlp=3, vocab=5,
        tied=True, family=shape_lib.FAMILIES["llama"]),
    dtype="float32", head="float32", max_prompt=10, max_response=6,
    fused=False)


def test_slots_become_fewer_by_hand():
  assert sizes_lib.row_sizes(256, 1) == (32, 64, 128, 192, 256)
  assert sizes_lib.row_sizes(48, 1) == (6, 12, 24, 36, 48)
  # Of two row shards with 35 slots each.
  assert sizes_lib.row_sizes(69, 2) == (10, 18, 36, 54, 70)
  assert sizes_lib.row_sizes(31, 1) == (31,)


def test_lengths_and_prompts_by_hand():
  assert sizes_lib.shares(4, 176, 16) == (48, 96, 144, 176)
  assert sizes_lib.shares(4, 176, 32) == (64, 96, 160, 176)
  assert sizes_lib.shares(4, 6, 4) == (4, 6)
  assert sizes_lib.shares(4, 30, 32) == (30,)
  sizes = sizes_lib.Sizes(
      chunk=4, max_new_tokens=60, longest=99, rows=(16,), lengths=(32, 64, 112),
      prompts=(32, 40), window=8)
  assert sizes.sequences == (32, 40, 64, 112)
  assert [sizes.at_once(L) for L in sizes.sequences] == [8, 8, 5, 2]


def test_bytes_of_a_slot_by_hand():
  """Cache 16 * 16, half of it again; scores 8 * 2 * 16; 8 times 4 * 5 to draw;
  an eighth of a prompt of 10 tokens, each 16 + 4 (16 + 9) + 8 * 2 * 10 = 276.
  """
  assert ONE.slot_bytes == 256 * 1.5 + 256 + 160 + 345


HALF = dict(dtype="bfloat16", head="bfloat16")


@pytest.mark.parametrize("budget, fsdp, change, admitted", [
    # 464 bytes of weights, 1,145 of a slot.
    (464 + 3435, 1, {}, (3, None, True)),
    (464 + 3434, 1, {}, (2, None, True)),
    (464 + 1144, 1, {}, (0, None, True)),
    (464 + 10**6, 2, {}, (3, None, True)),  # gathered, there is room
    (232 + 3435, 2, {}, (3, None, False)),
    (232 + 1144, 2, {}, (0, None, False)),
    # Two bytes a number: 128 * 1.5 + 256 + 160 and an eighth of a prompt of 10
    # tokens, each 8 + 2 (16 + 9) + 8 * 2 * 10 = 218, are 880.5.
    (232 + 2642, 1, HALF, (3, None, True)),
    (232 + 2641, 1, HALF, (2, None, True)),
    # With a float32 head, 20 words of 4 bytes instead of 2.
    (272 + 2642, 1, HALF | dict(head="float32"), (3, None, True)),
    (272 + 2641, 1, HALF | dict(head="float32"), (2, None, True)),
])
def test_slots_that_a_budget_admits(budget, fsdp, change, admitted):
  sizes = dataclasses.replace(ONE, fsdp=fsdp, **change)
  assert sizes.admitted(budget=budget, most=3) == admitted


# Pages of 4: 4 * 16 = 64 bytes; the longest rollout, 15 positions, has 4. A
# chunk has 4 tokens; 1 + (1.25 + 2 + 4) / 4 pages a slot.
PAGED = dataclasses.replace(ONE, page=4, expected=2.0)


def test_bytes_of_pages_by_hand():
  assert (PAGED.page_bytes, PAGED.longest) == (64, 4)
  assert PAGED.pages_of_slot == 1 + 7.25 / 4
  # 160 to draw, 16 positions gathered, each 16 + 2 * 4 * 2; 2,760 of a prompt,
  # 2 with 9 slots.
  assert PAGED.beside_pages(3) == 3 * 672 + 2760
  assert PAGED.beside_pages(9) == 9 * 672 + 2 * 2760
  assert dataclasses.replace(PAGED, expected=None).pages_of_slot == (
      1 + (1.25 + 1.08 + 4) / 4)
  assert PAGED.least_bytes == 464 + 672 + 2760 + 4 * 64


FIXED = 464 + 2760  # weights and a prompt


@pytest.mark.parametrize("budget, change, most, admitted", [
    # 4 slots need 11.25 pages, 12 whole ones.
    (FIXED + 4 * 672 + 12 * 64, {}, 9, (4, 12, True)),
    (FIXED + 4 * 672 + 12 * 64 - 1, {}, 9, (3, 12, True)),
    # Never more than the longest rollouts need.
    (10**6, {}, 5, (5, 20, True)),
    # At least one longest rollout.
    (FIXED + 672 + 4 * 64, {}, 9, (1, 4, True)),
    (FIXED + 672 + 4 * 64 - 1, {}, 9, (0, 0, True)),
    # Weights are gathered unless that costs more than half of the slots.
    (FIXED + 3 * 672 + 9 * 64, dict(fsdp=2), 9, (3, 9, True)),
    (FIXED + 672 + 4 * 64 + 1, dict(fsdp=2), 9, (1, 4, True)),
    (FIXED - 232 + 672 + 4 * 64, dict(fsdp=2), 9, (1, 4, False)),
])
def test_slots_and_pages_that_a_budget_admits(budget, change, most, admitted):
  sizes = dataclasses.replace(PAGED, **change)
  assert sizes.admitted(budget=budget, most=most) == admitted


def test_prompts_of_a_prefill():
  of = lambda slots, S, paged=True: sizes_lib.prefilled(
      slots, S, paged=paged)
  assert [of(132, 2048), of(132, 2048, False), of(9, 2048)] == [4, 17, 2]
  assert [of(132, 9000), of(256, 15), of(1, 15)] == [1, 32, 1]
