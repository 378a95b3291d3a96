"""Which pages each slot reads: counts, sharing, exhaustion."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from isojax.sampling import pages


def start(**changes):
  return pages.start(**dict(
      G=1, R=4, page=4, pages=24, longest=20, sharing=True) | changes)


def lines(t):
  return [t.page_RxM[r, :t.count_R[r]].tolist() for r in range(len(t.count_R))]


def test_a_prompt_is_shared_but_for_its_last_page_by_hand():
  """Pages of 4; the first 3 of 24 may be shared.

  A prompt of 9 tokens has 2 full pages; its last token begins the third. With
  a chunk of 4, positions up to 13 are needed.
  """
  t = start()
  assert t.shared == 3
  # The first slot fills all three pages of the prompt, the second its own.
  assert pages.give(t, 0, problem=7, prompt=9, known=9, length=13) == [
      (0, 0), (1, 1), (2, 3)]
  assert pages.give(t, 2, problem=7, prompt=9, known=9, length=13) == [(2, 5)]
  assert lines(t) == [[0, 1, 3, 4], [], [0, 1, 5, 6], []]
  assert t.refs_GxP[0, :8].tolist() == [2, 2, 0, 1, 1, 1, 1, 0] and t.used == 6
  # Another problem with a full page; 8 tokens, the last of which is written by
  # decoding, have one full page.
  assert pages.give(t, 1, problem=8, prompt=8, known=8, length=8) == [
      (0, 2), (1, 7)]
  reader, begin = pages.readers(t)
  assert reader[0, :8, :2].tolist() == [
      [0, 2], [0, 2], [1, 4], [0, 4], [0, 4], [2, 4], [2, 4], [1, 4]]
  assert begin[0, :8].tolist() == [0, 4, 0, 8, 12, 8, 12, 4]
  # The first reader ends; the prompt stays for the other.
  pages.release(t, 0)
  assert t.refs_GxP[0, :8].tolist() == [1, 1, 1, 0, 0, 1, 1, 1]
  pages.release(t, 2)
  assert t.refs_GxP[0, :8].tolist() == [0, 0, 1, 0, 0, 0, 0, 1]
  assert t.copies == [[(8, (2,))]]


def test_no_page_has_more_readers_than_attention_multiplies():
  t = start(R=20, pages=200)
  filled = [pages.give(t, r, problem=0, prompt=5, known=5, length=8)
            for r in range(20)]
  assert [len(each) for each in filled] == [
      2, *[1] * 7, 2, *[1] * 7, 2, 1, 1, 1]
  assert t.refs_GxP.max() == pages.READERS
  reader, _ = pages.readers(t)
  assert reader[0, 0].tolist() == list(range(8))
  assert reader[0, 1].tolist() == list(range(8, 16))
  alone = start(R=20, pages=200, sharing=False)
  for r in range(20):
    assert pages.give(alone, r, problem=0, prompt=5, known=5,
                      length=8) == [(0, 25 + 2 * r), (1, 26 + 2 * r)]


def test_the_youngest_lose_their_pages_by_hand():
  """6 pages; slots with 2, 2 and 1; two of them grow by one, one by two."""
  t = start(R=3, pages=6, sharing=False)
  for row, length in enumerate((8, 8, 4)):
    assert pages.give(t, row, problem=row, prompt=1, known=1, length=length)
  assert lines(t) == [[1, 2], [3, 4], [5]]
  # 4 pages are needed and 1 is free. Slot 1 has drawn the fewest tokens, and
  # its 2 pages are enough for the others.
  assert pages.grow(t, [0, 1, 2], [12, 12, 12], [9, 3, 4]) == [1]
  assert lines(t) == [[1, 2, 3], [], [5, 4, 0]]
  assert pages.give(t, 1, problem=1, prompt=1, known=1, length=1) is None
  # Of equal ones, the last.
  assert pages.grow(t, [0, 2], [16, 16], [5, 5]) == [2]
  assert lines(t) == [[1, 2, 3, 4], [], []]
  # A slot that is alone has all it needs.
  assert pages.grow(t, [0], [20], [5]) == []


def test_a_rollout_starts_only_if_others_can_grow():
  """8 slots of 2 pages each leave one page of 17 to spare."""
  t = start(R=9, pages=17, sharing=False)
  for row in range(8):
    assert pages.give(t, row, problem=0, prompt=1, known=1, length=8)
  assert t.free_G.tolist() == [1]
  assert pages.give(t, 8, problem=0, prompt=1, known=1, length=4) is None
  pages.release(t, 3)
  assert pages.give(t, 8, problem=0, prompt=1, known=1, length=4)


def test_pages_are_packed_by_hand():
  """Of two blocks; the second has nothing to move."""
  t = start(G=2, R=6, pages=16, sharing=False)
  for row in range(6):
    pages.give(t, row, problem=0, prompt=1, known=1, length=8)
  assert pages.extent(t) == (False, 6)
  for row in (0, 5):
    pages.release(t, row)
  assert lines(t) == [[], [4, 5], [6, 7], [2, 3], [4, 5], []]
  source, target = pages.pack(t)
  assert source.tolist() == [[6, 7], [16, 16]]
  assert target.tolist() == [[2, 3], [16, 16]]
  assert lines(t) == [[], [4, 5], [2, 3], [2, 3], [4, 5], []]
  assert pages.extent(t) == (False, 4)
  assert t.refs_GxP[:, 2:8].tolist() == [[1, 1, 1, 1, 0, 0]] * 2
  pages.keep(t, np.array([[1, 2], [0, 1]]))
  assert lines(t) == [[4, 5], [2, 3], [2, 3], [4, 5]]


def test_a_pool_holds_at_least_the_longest():
  with pytest.raises(ValueError, match="4 pages of 4 .* 20, which needs 5"):
    start(pages=4)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_no_page_is_lost_or_written_by_two(data):
  """Slots start, grow, end and lose pages at random."""
  G, R_b = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
  page = data.draw(st.integers(1, 5))
  random = np.random.default_rng(data.draw(st.integers(0, 999)))
  R, longest = G * R_b, 20
  t = pages.start(
      G=G, R=R, page=page, longest=longest, sharing=data.draw(st.booleans()),
      pages=-(-longest // page) + data.draw(st.integers(0, 12)))
  length, drawn = np.zeros(R, int), np.zeros(R, int)
  prompt_P, problem_R = random.integers(1, 9, 4), np.zeros(R, int)
  for _ in range(12):
    active = np.flatnonzero(t.count_R)
    for row in active[random.random(len(active)) < 0.3]:
      pages.release(t, row)
    active = np.flatnonzero(t.count_R)
    length[active] = np.minimum(length[active] + 3, longest)
    drawn[active] += 3
    lost = pages.grow(t, active, length[active], drawn[active])
    assert (t.count_R[lost] == 0).all()
    for row in np.flatnonzero(t.count_R == 0):
      problem = random.integers(4)
      prompt = int(prompt_P[problem])
      before = t.refs_GxP.copy()
      got = pages.give(t, row, problem=problem, prompt=prompt, known=prompt,
                       length=prompt + 3)
      if got is None:
        np.testing.assert_array_equal(t.refs_GxP, before)
        g = row // R_b
        assert (t.count_R[g * R_b:(g + 1) * R_b] > 0).any()
        continue
      length[row], drawn[row] = prompt + 3, 0
      problem_R[row] = problem
    for row in np.flatnonzero(t.count_R):
      assert t.count_R[row] == -(-length[row] // page)
      # Where it will write, it is alone; what it shares is of its prompt.
      g, first = row // R_b, (prompt_P[problem_R[row]] - 1) // page
      own = t.page_RxM[row, first:t.count_R[row]]
      assert (t.refs_GxP[g, own] == 1).all()
    # Each page has as many readers as slots that list it.
    for g in range(G):
      listed = np.concatenate([t.page_RxM[r, :t.count_R[r]] for r in range(
          g * R_b, (g + 1) * R_b)])
      np.testing.assert_array_equal(
          np.bincount(listed, minlength=t.pages), t.refs_GxP[g])
      shares = t.refs_GxP[g] > 1
      assert not shares[t.shared:].any()
      live = {page for copy in t.copies[g] for page in copy.pages}
      assert set(np.flatnonzero(shares)) <= live
    if random.random() < 0.5:
      pages.pack(t)
  for row in range(R):
    pages.release(t, row)
  assert t.used == 0 and not any(t.copies)
