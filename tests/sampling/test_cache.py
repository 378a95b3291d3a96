"""Which pages each slot has: counts, sharing, exhaustion; their contents."""

import types

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np

from isojax.models import decoder
from isojax.sampling import cache as cache_lib
from isojax.sampling import sizes as sizes_lib
from tests.sampling import test_flight


def make_cache(prompts, n, *, G=1, R=4, page=4, pages=24, longest=20, chunk=4):
  """A cache without arrays, and the queue whose slots it serves."""
  q = test_flight.make_queue(
      test_flight.make_source(test_flight.make_prompts(prompts), n), G=G, R=R,
      T=longest)
  s = types.SimpleNamespace(
      page=page, pages=pages, empty=lambda *_: None, place=lambda x: x,
      sizes=sizes_lib.Sizes(
          chunk=chunk, max_new_tokens=longest, longest=longest, rows=(R,),
          lengths=(8, 16, longest), prompts=(9,), window=1))
  return cache_lib.Paged(s, q), q


def allocate(cache, q, row, item) -> bool:
  """Whether a slot gets pages for an item, as in `Scheduler.fill`."""
  if not cache.allocate(row // q.slots.per_block, [row], [item], [5]):
    return False
  q.slots.row.active_R[row], q.slots.item_R[row] = True, item
  q.slots.row.position_R[row] = q.items.length(np.array([item]))[0] - 1
  q.slots.row.count_R[row] = q.items.out.len_R[item]
  return True


def lines(cache):
  return [row[:count].tolist()
          for row, count in zip(cache.table_RxM, cache.pages_R)]


def test_a_prompt_is_shared_but_for_its_last_page_by_hand():
  """Pages of 4. A prompt of 9 tokens has 2 full pages; its last token begins
  the third. With a chunk of 4, positions 8 to 11 are decoded next.
  """
  cache, q = make_cache([9, 8], 3)
  assert allocate(cache, q, 0, 0) and allocate(cache, q, 2, 1)
  # The first slot fills the prompt's pages, which are all full or not begun.
  assert cache.pending_copies == [[(5, 0, 0), (5, 1, 1)]]
  assert lines(cache) == [[0, 1, 2], [], [0, 1, 3], []]
  # Another problem, of 8 tokens: one full page, and one that decoding writes.
  assert allocate(cache, q, 1, 3)
  assert cache.pending_copies[0][2:] == [(5, 0, 4), (5, 1, 5)]
  assert lines(cache) == [[0, 1, 2], [4, 5, 6], [0, 1, 3], []]
  assert cache.decode_arguments()["table"].tolist() == [
      [0, 1, 2, 24], [4, 5, 6, 24], [0, 1, 3, 24], [24] * 4]
  # The first reader ends; the prompt stays for the other.
  cache.release(0, 0)
  assert lines(cache)[0] == [] and len(cache.free[0]) == 18
  assert allocate(cache, q, 3, 2) and lines(cache)[3] == [0, 1, 2]
  cache.release(0, 2)
  cache.release(0, 3)
  assert sorted(cache.free[0]) == [0, 1, 2, 3, *range(7, 24)]
  assert list(cache.readers[0]) == [1]


def test_the_youngest_lose_their_pages_by_hand():
  """6 pages; slots with 2, 2 and 1."""
  cache, q = make_cache([1, 1, 1], 1, R=3, pages=6)
  for row in range(3):
    assert allocate(cache, q, row, row)
    q.slots.row.position_R[row] = (4, 4, 0)[row]
    q.slots.row.count_R[row] = (9, 3, 4)[row]
  assert cache.reserve() == []
  assert lines(cache) == [[0, 3], [1, 4], [2]]
  # 4 pages are needed and 1 is free. Slot 1 has drawn the fewest tokens, and
  # its 2 pages are enough for the others.
  q.slots.row.position_R[:] = 8
  assert cache.reserve() == [1]
  assert [len(line) for line in lines(cache)] == [3, 0, 3]
  q.slots.row.active_R[1] = False
  assert not allocate(cache, q, 1, 1)
  # Of equal ones, the last.
  q.slots.row.position_R[:], q.slots.row.count_R[:] = 12, 5
  assert cache.reserve() == [2]
  q.slots.row.active_R[2] = False
  # A slot that is alone has all it needs.
  q.slots.row.position_R[0] = 16
  assert cache.reserve() == [] and len(lines(cache)[0]) == 5


def test_a_rollout_starts_only_if_others_can_grow():
  """8 slots of 2 pages each leave one page of 17 to spare."""
  cache, q = make_cache([1], 9, R=9, pages=17, chunk=8)
  for row in range(8):
    assert allocate(cache, q, row, row)
  assert len(cache.free[0]) == 1 and not allocate(cache, q, 8, 8)
  cache.release(0, 3)
  assert allocate(cache, q, 8, 8)


def test_slots_are_dropped_by_hand():
  """Of two blocks."""
  cache, q = make_cache([5], 6, G=2, R=6)
  for row in (1, 2, 3, 4):
    allocate(cache, q, row, row)
  assert lines(cache) == [[], [0, 1], [0, 2], [0, 1], [0, 2], []]
  cache.fit(4)
  assert lines(cache) == [[0, 1], [0, 2]] * 2
  assert cache.readers == [{0: [0, 1]}, {0: [2, 3]}]
  assert q.slots.item_R.tolist() == [1, 2, 3, 4]


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_no_page_is_lost_or_written_by_two(data):
  """Slots start, grow, end, lose pages and are dropped at random."""
  G, R_b = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
  page, longest = data.draw(st.integers(1, 5)), 20
  random = np.random.default_rng(data.draw(st.integers(0, 999)))
  prompts = random.integers(1, 9, 4).tolist()
  cache, q = make_cache(
      prompts, 9, G=G, R=G * R_b, page=page, longest=longest, chunk=3,
      pages=-(-longest // page) + data.draw(st.integers(0, 12)))
  for _ in range(12):
    active = q.slots.row.active_R
    active &= random.random(len(active)) < 0.7
    q.slots.row.position_R[active] = np.minimum(
        q.slots.row.position_R[active] + 3, longest - 1)
    q.slots.row.count_R[active] += 3
    lost = cache.reserve()
    assert (cache.pages_R[lost] == 0).all()
    active[lost] = False
    for row in np.flatnonzero(~active):
      item, before = int(random.integers(36)), str(vars(cache))
      if not allocate(cache, q, row, item):
        assert str(vars(cache)) == before
        g = row // q.slots.per_block
        assert active[g * q.slots.per_block:(g + 1) * q.slots.per_block].any()
    for row in np.flatnonzero(active):
      needs = min(q.slots.row.position_R[row] + 3, longest)
      assert cache.pages_R[row] == max(
          -(-needs // page),
          (prompts[q.items.problem_B[q.slots.item_R[row]]] - 1) // page)
    for g in range(G):
      rows = np.arange(g * q.slots.per_block, (g + 1) * q.slots.per_block)
      own = [cache.table_RxM[r, cache.shared_R[r]:cache.pages_R[r]]
             for r in rows]
      shared = {tuple(cache.table_RxM[r, :cache.shared_R[r]]): r for r in rows}
      # Each page is free, of one slot, or of the slots of one prompt. Where a
      # slot will write, it is alone.
      pages = np.concatenate([cache.free[g], *own, *shared])
      assert sorted(pages.astype(int)) == list(range(cache.pages))
      for r in rows[q.slots.row.active_R[rows]]:
        first = (prompts[q.items.problem_B[q.slots.item_R[r]]] - 1) // page
        assert cache.shared_R[r] == first
        assert cache.table_RxM[r, first] not in set(
            np.concatenate(list(map(list, shared)) or [[]]))
    if q.slots.most_active and random.random() < 0.3:
      cache.fit(G * max(q.slots.most_active, q.slots.per_block - 1))
      if q.slots.per_block == 1:
        break


def test_a_window_is_copied_to_pages_by_hand():
  """Sequences of 5 and 3 tokens; pages of 2; one entry is padding."""
  window = decoder.KVCache(
      (jnp.arange(10.0).reshape(2, 1, 1, 5),),
      (100 + jnp.arange(10.0).reshape(2, 1, 5, 1),))
  pool = decoder.KVCache((jnp.full((4, 1, 1, 2), -1.0),),
                         (jnp.full((4, 1, 2, 1), -1.0),))
  one = lambda *x: np.array([x], np.int32)
  got = cache_lib.insert_pages(pool, window, one(0, 1, 0, 0), one(2, 0, 1, 0),
                               one(3, 0, 1, 4))
  assert got.k[0][:, 0, 0].tolist() == [[5, 6], [2, 3], [-1, -1], [4, 0]]
  assert got.v[0][:, 0, :, 0].tolist() == [
      [105, 106], [102, 103], [-1, -1], [104, 0]]
