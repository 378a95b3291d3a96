"""Which rollout each slot decodes."""

import time

import hypothesis
import hypothesis.strategies as st
import numpy as np

from isojax.sampling import queue
from isojax.types import Prompts


def test_slots_take_what_waits_by_hand():
  """3 problems of 2 rollouts, 2 blocks of 2 slots, windows of 1 prompt.

  Short prompts first: items 2 3 | 0 1 | 4 5; block 0 has the first three.
  """
  prompts = Prompts(np.arange(9, dtype=np.int32).reshape(3, 3),
                    np.array([2, 1, 3], np.int32),
                    np.array([7, 8, 9], np.uint32))
  q = queue.start(prompts, 2, G=2, R=4, W=1, T=5)
  assert q.starving and queue.fill(q)[0].shape == (2, 0)
  assert queue.move_window(q).id_P.tolist() == [8, 7]
  row, slot = queue.fill(q)
  assert row.tolist() == [[0, 1], [0, 2]] and slot.tolist() == [[0, 0], [0, 0]]
  assert q.item_R[:3].tolist() == [2, 3, 1] and q.starving
  assert queue.move_window(q).id_P.tolist() == [7, 9]
  assert queue.fill(q)[0].tolist() == [[2], [1]]  # block 0 is full
  assert q.item_R.tolist() == [2, 3, 1, 4] and not q.starving and q.waiting
  assert q.row.token_R.tolist() == [3, 3, 1, 8]  # last tokens of the prompts
  assert q.row.rollout_R.tolist() == [0, 1, 1, 0]
  q.row.active_R[:] = [False, True, True, False]
  assert queue.move_window(q).id_P.tolist() == [7, 9]
  assert queue.fill(q)[0].tolist() == [[0], [1]]
  assert q.item_R.tolist() == [0, 3, 1, 5] and not q.waiting


def test_sizes_by_hand():
  assert queue.shares(4, 176, 16) == (48, 96, 144, 176)
  assert queue.shares(4, 176, 32) == (64, 96, 160, 176)
  assert queue.shares(4, 6, 4) == (4, 6)
  assert queue.shares(4, 30, 32) == (30,)
  assert queue.halves(30, 4, 3, 1) == (4, 8, 16, 32)
  assert queue.halves(30, 4, 3, 4) == (16, 32)
  assert queue.halves(30, 4, 3, 9) == (32,)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_filled_slots_stay_where_they_are_when_slots_are_dropped(data):
  """The sampler inserts prompts by the rows of `fill`, after `compact`."""
  G, R_b = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 24))
  P, n = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
  prompts = Prompts(np.zeros((P, 1), np.int32), np.ones(P, np.int32),
                    np.arange(P, dtype=np.uint32))
  q = queue.start(prompts, n, G=G, R=G * R_b, W=data.draw(st.integers(1, 4)),
                  T=1)
  active = st.lists(st.booleans(), min_size=G * R_b, max_size=G * R_b)
  q.row.active_R[:] = data.draw(active)
  queue.move_window(q)
  row_GxF, _ = queue.fill(q)
  before = q.item_R.reshape(G, R_b).copy()
  least = max(1, q.most_active)
  kept = data.draw(st.integers(least, R_b))
  take_GxR = queue.compact(q, G * kept)
  for g in range(G):
    rows = row_GxF[g][row_GxF[g] < R_b]
    assert (take_GxR[g, rows] == rows).all()
    assert (q.item_R.reshape(G, -1)[g, rows] == before[g, rows]).all()


def test_fill_is_linear_in_slots():
  """Comparing each item with each prompt of the window took 48 ms."""
  R = 16384
  prompts = Prompts(np.zeros((R, 1), np.int32), np.ones(R, np.int32),
                    np.arange(R, dtype=np.uint32))
  seconds = []
  for _ in range(3):
    q = queue.start(prompts, 8, G=1, R=R, W=R // 8, T=1)
    queue.move_window(q)
    begun = time.perf_counter()
    queue.fill(q)
    seconds.append(time.perf_counter() - begun)
    assert q.row.active_R.all() and q.item_R.tolist() == list(range(R))
  assert min(seconds) < 0.03
