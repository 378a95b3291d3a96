"""The shapes of the sampler's programs, by hand."""

from isojax.sampling import sizes as sizes_lib


def test_slots_become_fewer_by_hand():
  assert sizes_lib.row_sizes(256, 1) == (32, 64, 128, 192, 256)
  assert sizes_lib.row_sizes(48, 1) == (6, 12, 24, 36, 48)
  # Of two row shards with 35 slots each.
  assert sizes_lib.row_sizes(69, 2) == (10, 18, 36, 54, 70)
  assert sizes_lib.row_sizes(31, 1) == (31,)


def test_lengths_and_prompts_by_hand():
  assert sizes_lib.lengths_up_to(176) == (64, 96, 160, 176)
  assert sizes_lib.lengths_up_to(97) == (32, 64, 96, 97)
  assert sizes_lib.lengths_up_to(40) == (32, 40)
  assert sizes_lib.lengths_up_to(30) == (30,)
  sizes = sizes_lib.Sizes(
      chunk=4, max_new_tokens=60, longest=99, rows=(16,), lengths=(32, 64, 112),
      prompts=(32, 40), window=8)
  assert sizes.prefill_lengths == (32, 40, 64, 112)
  assert [sizes.at_once(L) for L in sizes.prefill_lengths] == [8, 8, 5, 2]
