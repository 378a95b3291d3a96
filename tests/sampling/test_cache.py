"""Which pages each slot has: counts, sharing, exhaustion; their contents."""

import types

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from isojax.models import decoder
from isojax.sampling import cache as cache_lib
from isojax.sampling import sizes as sizes_lib
from isojax.types import Candidates


def make_sampler(R, *, G=1, longest=20, chunk=4, **fields):
  """What a cache reads of engine.Sampler, with its functions not compiled."""
  return types.SimpleNamespace(
      G=G, place=lambda x: x, sizes=sizes_lib.Sizes(
          chunk=chunk, max_new_tokens=longest, longest=longest, rows=(R,),
          lengths=(8, 16, longest), prompts=(9,), window=1), **fields)


class PagedSlots:
  """The slots of a cache of pages without arrays, and their rollouts.

  `prompts` has the tokens of each problem's prompt, n rollouts of each.
  """

  def __init__(self, prompts, n, *, G=1, R=4, page=4, pages=24, **sizes):
    self.prompts, self.n, self.per_block = prompts, n, R // G
    self.active_R, self.item_R, self.position_R, self.count_R = (
        np.zeros(R, dtype) for dtype in (bool, int, int, int))
    self.cache = cache_lib.Paged(make_sampler(
        R, G=G, page=page, pages=pages, empty=lambda *_: None, **sizes), R)

  def allocate(self, row, item, drawn=0) -> bool:
    """Whether a slot gets pages for a rollout with `drawn` tokens."""
    g, problem = row // self.per_block, item // self.n
    prompt = self.prompts[problem]
    block = Candidates(*np.array(
        [[row], [5], [prompt + drawn], [problem], [prompt]]))
    none = Candidates(*np.zeros((5, 0), int))
    got = self.cache.allocate([
        block if i == g else none for i in range(self.cache.sampler.G)])
    if not got[g]:
      return False
    self.active_R[row], self.item_R[row] = True, item
    self.position_R[row], self.count_R[row] = prompt + drawn - 1, drawn
    return True

  def reserve(self) -> list[int]:
    return self.cache.reserve(self.active_R, self.position_R, self.count_R)

  def fit(self, R) -> list[int]:
    old_R = self.cache.fit(R, self.active_R, self.position_R)
    for name in ("active_R", "item_R", "position_R", "count_R"):
      setattr(self, name, getattr(self, name)[old_R])
    self.per_block = R // self.cache.sampler.G
    return old_R.tolist()


def lines(cache):
  return [row[:count].tolist()
          for row, count in zip(cache.table_RxM, cache.pages_R)]


def test_a_prompt_is_shared_but_for_its_last_page_by_hand():
  """Pages of 4. A prompt of 9 tokens has 2 full pages; its last token begins
  the third. With a chunk of 4, positions 8 to 11 are decoded next.
  """
  slots = PagedSlots([9, 8], 3)
  cache = slots.cache
  assert slots.allocate(0, 0) and slots.allocate(2, 1)
  # The first slot fills the prompt's pages, which are all full or not begun.
  assert cache.pending_copies == [[(5, 0, 0), (5, 1, 1)]]
  assert lines(cache) == [[0, 1, 2], [], [0, 1, 3], []]
  # Another problem, of 8 tokens: one full page, and one that decoding writes.
  assert slots.allocate(1, 3)
  assert cache.pending_copies[0][2:] == [(5, 0, 4), (5, 1, 5)]
  assert lines(cache) == [[0, 1, 2], [4, 5, 6], [0, 1, 3], []]
  assert cache.decode_arguments()["table"].tolist() == [
      [0, 1, 2, 24], [4, 5, 6, 24], [0, 1, 3, 24], [24] * 4]
  # The first reader ends; the prompt stays for the other.
  cache.release(0, 0)
  assert lines(cache)[0] == [] and len(cache.free[0]) == 18
  assert slots.allocate(3, 2) and lines(cache)[3] == [0, 1, 2]
  cache.release(0, 2)
  cache.release(0, 3)
  assert sorted(cache.free[0]) == [0, 1, 2, 3, *range(7, 24)]
  assert list(cache.readers[0]) == [1]


def test_the_youngest_lose_their_pages_by_hand():
  """6 pages; slots with 2, 2 and 1."""
  slots = PagedSlots([1, 1, 1], 1, R=3, pages=6)
  cache = slots.cache
  for row in range(3):
    assert slots.allocate(row, row)
    slots.position_R[row] = (4, 4, 0)[row]
    slots.count_R[row] = (9, 3, 4)[row]
  assert slots.reserve() == []
  assert lines(cache) == [[0, 3], [1, 4], [2]]
  # 4 pages are needed and 1 is free. Slot 1 has drawn the fewest tokens, and
  # its 2 pages are enough for the others.
  slots.position_R[:] = 8
  assert slots.reserve() == [1]
  assert [len(line) for line in lines(cache)] == [3, 0, 3]
  slots.active_R[1] = False
  assert not slots.allocate(1, 1)
  # Of equal ones, the last.
  slots.position_R[:], slots.count_R[:] = 12, 5
  assert slots.reserve() == [2]
  slots.active_R[2] = False
  # A slot that is alone has all it needs.
  slots.position_R[0] = 16
  assert slots.reserve() == [] and len(lines(cache)[0]) == 5


def test_a_rollout_starts_only_if_others_can_grow():
  """8 slots of 2 pages each leave one page of 17 to spare."""
  slots = PagedSlots([1], 9, R=9, pages=17, chunk=8)
  cache = slots.cache
  for row in range(8):
    assert slots.allocate(row, row)
  assert len(cache.free[0]) == 1 and not slots.allocate(8, 8)
  cache.release(0, 3)
  assert slots.allocate(8, 8)


def test_slots_are_dropped_by_hand():
  """Of two blocks."""
  slots = PagedSlots([5], 6, G=2, R=6)
  cache = slots.cache
  for row in (1, 2, 3, 4):
    slots.allocate(row, row)
  assert lines(cache) == [[], [0, 1], [0, 2], [0, 1], [0, 2], []]
  assert slots.fit(4) == [1, 2, 3, 4]
  assert lines(cache) == [[0, 1], [0, 2]] * 2
  assert cache.readers == [{0: [0, 1]}, {0: [2, 3]}]
  assert slots.item_R.tolist() == [1, 2, 3, 4]


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_no_page_is_lost_or_written_by_two(data):
  """Slots start, grow, end, lose pages and are dropped at random."""
  G, R_b = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
  page, longest = data.draw(st.integers(1, 5)), 20
  random = np.random.default_rng(data.draw(st.integers(0, 999)))
  prompts = random.integers(1, 9, 4).tolist()
  slots = PagedSlots(
      prompts, 9, G=G, R=G * R_b, page=page, longest=longest, chunk=3,
      pages=-(-longest // page) + data.draw(st.integers(0, 12)))
  cache = slots.cache
  for _ in range(12):
    active = slots.active_R
    active &= random.random(len(active)) < 0.7
    slots.position_R[active] = np.minimum(
        slots.position_R[active] + 3, longest - 1)
    slots.count_R[active] += 3
    lost = slots.reserve()
    assert (cache.pages_R[lost] == 0).all()
    active[lost] = False
    for row in np.flatnonzero(~active):
      item, before = int(random.integers(36)), str(vars(cache))
      if not slots.allocate(row, item):
        assert str(vars(cache)) == before
        g = row // slots.per_block
        assert active[g * slots.per_block:(g + 1) * slots.per_block].any()
    for row in np.flatnonzero(active):
      needs = min(slots.position_R[row] + 3, longest)
      assert cache.pages_R[row] == max(
          -(-needs // page),
          (prompts[slots.item_R[row] // 9] - 1) // page)
    for g in range(G):
      rows = np.arange(g * slots.per_block, (g + 1) * slots.per_block)
      own = [cache.table_RxM[r, cache.shared_R[r]:cache.pages_R[r]]
             for r in rows]
      shared = {tuple(cache.table_RxM[r, :cache.shared_R[r]]): r for r in rows}
      # Each page is free, of one slot, or of the slots of one prompt. Where a
      # slot will write, it is alone.
      pages = np.concatenate([cache.free[g], *own, *shared])
      assert sorted(pages.astype(int)) == list(range(cache.pages))
      for r in rows[slots.active_R[rows]]:
        first = (prompts[slots.item_R[r] // 9] - 1) // page
        assert cache.shared_R[r] == first
        assert cache.table_RxM[r, first] not in set(
            np.concatenate(list(map(list, shared)) or [[]]))
    most = slots.active_R.reshape(G, -1).sum(axis=1).max()
    if 0 < most < slots.per_block and random.random() < 0.3:
      slots.fit(G * max(most, slots.per_block - 1))


def test_rows_move_grow_and_are_filled_by_hand():
  """Two blocks of 3 slots, and one sequence of 3 tokens for each.

  At first, keys and values of slot r are -r.
  """
  def empty(R, L):
    slot_R = np.float32(range(R))[:, None, None, None]
    return decoder.KVCache((np.tile(-slot_R, (1, 1, 1, L)),),
                           (np.tile(-slot_R, (1, 1, L, 1)),))

  def contents():  # the first two keys of each slot, and the shapes
    k, v = np.asarray(cache.kv.k[0]), np.asarray(cache.kv.v[0])
    np.testing.assert_array_equal(k[:, :, 0], v[..., 0])
    return k[:, 0, 0, :2].tolist(), k.shape[3]

  cache = cache_lib.Contiguous(make_sampler(
      6, G=2, empty=empty, insert=jax.jit(cache_lib.insert),
      resize=jax.jit(cache_lib.resize, static_argnums=(2, 3))), 6)
  three = np.float32([[1, 2, 3], [11, 12, 13]])
  cache.window = decoder.KVCache((three[:, None, None],),
                                 (three[:, None, :, None],))
  active = np.array([True, False, False, False, True, False])
  assert cache.reserve(active, np.zeros(6), np.zeros(6)) == []
  taken = lambda row: Candidates(*np.array([[row], [0], [3], [0], [3]]))
  assert cache.allocate([taken(1), taken(3)]) == [1, 1]
  active[[1, 3]] = True
  old_R = cache.fit(4, active, np.array([3, 2, 9, 2, 4, 9]))
  assert old_R.tolist() == [0, 1, 3, 4]
  cache.insert()
  assert contents() == ([[0, 0], [1, 2], [11, 12], [-4, -4]], 8)
  assert cache.fit(4, active[old_R], np.array([3, 2, 2, 4])) is None
  # The longest sequence has 5 positions, and a chunk of 4 the next ones.
  active = np.array([False, True, True, True])
  assert cache.fit(4, active, np.array([9, 3, 3, 5])).tolist() == [1, 0, 2, 3]
  cache.insert()  # nothing: `allocate` was not called again
  assert contents() == ([[1, 2], [0, 0], [11, 12], [-4, -4]], 16)


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
