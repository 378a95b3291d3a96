"""Which rollout each slot decodes."""

import time

import hypothesis
import hypothesis.strategies as st
import numpy as np

from isojax.sampling import queue
from isojax.types import Drawn
from isojax.types import Prompts


def test_slots_take_what_waits_by_hand():
  """3 problems of 2 rollouts, 2 blocks of 2 slots, windows of 1 prompt.

  Short prompts first: items 2 3 | 0 1 | 4 5; each block gets one problem. Then
  block 0 gets the third, and block 1 takes half of it.
  """
  prompts = Prompts(np.arange(9, dtype=np.int32).reshape(3, 3),
                    np.array([2, 1, 3], np.int32),
                    np.array([7, 8, 9], np.uint32))
  q = queue.start(prompts, 2, G=2, R=4, W=1, T=5)
  assert q.starving and queue.fill(q)[0].shape == (2, 0)
  assert queue.move_window(q).id_P.tolist() == [8, 7]
  row, slot = queue.fill(q)
  assert row.tolist() == [[0, 1], [0, 1]] and slot.tolist() == [[0, 0], [0, 0]]
  assert q.item_R.tolist() == [2, 3, 0, 1] and not q.starving and q.waiting
  assert q.row.token_R.tolist() == [3, 3, 1, 1]  # last tokens of the prompts
  assert q.row.rollout_R.tolist() == [0, 1, 0, 1]
  q.row.active_R[:] = [False, True, True, False]
  assert q.starving and queue.move_window(q).id_P.tolist() == [9, 9]
  assert queue.fill(q)[0].tolist() == [[0], [1]]
  assert q.item_R.tolist() == [4, 3, 0, 5] and not q.waiting
  assert q.row.token_R.tolist() == [8, 3, 1, 8]


def test_a_block_keeps_the_prompt_of_what_it_has_started():
  """4 problems of 3 rollouts, windows of 2: the second is half started."""
  prompts = Prompts(np.zeros((4, 1), np.int32), np.ones(4, np.int32),
                    np.arange(4, dtype=np.uint32))
  q = queue.start(prompts, 3, G=1, R=5, W=2, T=1)
  assert queue.move_window(q).id_P.tolist() == [0, 1]
  queue.fill(q)
  assert [x.tolist() for x in (*q.held, *q.slots)] == [[5], [1]]
  q.row.active_R[:3] = False
  _, slot = queue.fill(q)  # item 5, whose prompt is there
  assert slot.tolist() == [[1]] and q.starving
  assert queue.move_window(q).id_P.tolist() == [2, 3]
  q.row.active_R[:] = False
  queue.fill(q)
  assert q.item_R.tolist() == [6, 7, 8, 9, 10]
  assert q.waiting and not q.starving


def test_the_longest_expected_are_first():
  prompts = Prompts(np.zeros((4, 3), np.int32), np.array([1, 3, 2, 3], np.int32),
                    np.arange(4, dtype=np.uint32))
  order = lambda **more: queue.start(
      prompts, 1, G=1, R=1, W=1, T=1, **more).problem_P.tolist()
  assert order() == [0, 2, 1, 3]
  assert order(expected_P=[5.0, 7.5, 5.0, 9.0]) == [3, 1, 0, 2]


def test_the_last_problem_is_shared_by_hand():
  """One problem of 10 rollouts on 4 blocks of 2 slots."""
  prompts = Prompts(np.zeros((1, 1), np.int32), np.ones(1, np.int32),
                    np.zeros(1, np.uint32))
  q = queue.start(prompts, 10, G=4, R=8, W=1, T=1)
  queue.move_window(q)
  queue.fill(q)
  assert q.row.active_R.all() and sum(map(len, q.held)) == 2
  assert sorted([*q.item_R, *np.concatenate(q.held)]) == list(range(10))


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_each_item_starts_once_and_no_slot_idles(data):
  """Rollouts end at random; after a refill, nothing waits or no slot is free."""
  G, R_b = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
  P, n = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 7))
  W = data.draw(st.integers(1, 3))
  random = np.random.default_rng(data.draw(st.integers(0, 99)))
  prompts = Prompts(np.arange(3 * P, dtype=np.int32).reshape(P, 3),
                    random.integers(1, 4, P).astype(np.int32),
                    np.arange(P, dtype=np.uint32))
  q = queue.start(prompts, n, G=G, R=G * R_b, W=W, T=1)
  started, window = [], None
  while q.waiting:
    while True:
      row_GxF, slot_GxF = queue.fill(q)
      for g, (rows, slots) in enumerate(zip(row_GxF, slot_GxF)):
        for row, slot in zip(rows[rows < R_b], slots[rows < R_b]):
          item = q.item_R[g * R_b + row]
          started.append(item)
          # Its prompt is in the window of its own block.
          assert window.id_P[g * W + slot] == item // n
      if not q.starving:
        break
      window = queue.move_window(q)
      assert any(map(len, q.slots))
    assert not q.waiting or q.row.active_R.all()
    ends = random.random(G * R_b) < 0.4
    if q.waiting:
      ends[random.integers(G * R_b)] = True
    q.row.active_R[ends] = False
  assert sorted(started) == list(range(P * n))


def test_sizes_by_hand():
  assert queue.shares(4, 176, 16) == (48, 96, 144, 176)
  assert queue.shares(4, 176, 32) == (64, 96, 160, 176)
  assert queue.shares(4, 6, 4) == (4, 6)
  assert queue.shares(4, 30, 32) == (30,)


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


def test_a_chunk_is_stored_by_hand():
  """4 slots, 3 of them active, chunks of 3: one ends, one reaches T = 4."""
  prompts = Prompts(np.full((2, 1), 5, np.int32), np.ones(2, np.int32),
                    np.array([7, 8], np.uint32))
  q = queue.start(prompts, 2, G=1, R=4, W=2, T=4)
  queue.move_window(q)
  queue.fill(q)
  q.row.active_R[1] = False  # item 1
  q.row.count_R[:] = 0, 0, 2, 1
  q.out.tokens_RxT[2, :2], q.out.tokens_RxT[3, 0] = (1, 2), 3
  q.out.entropy_R[2] = 0.5
  tokens = np.arange(10, 22, dtype=np.int32).reshape(4, 3)
  after, drawn = queue.read(
      q.row.replace(token_R=tokens[:, 2], count_R=np.array([3, 0, 4, 2]),
                    active_R=np.array([True, False, False, False])),
      Drawn(tokens, tokens / 8, np.full(4, 0.25, np.float32),
            np.array([False, False, False, True])))
  assert after.id_R is None and after.rollout_R is None  # not transferred
  assert queue.harvest(q, after, drawn).tolist() == [2, 3]
  assert q.out.tokens_RxT.tolist() == [
      [10, 11, 12, 0], [0, 0, 0, 0], [1, 2, 16, 17], [3, 19, 0, 0]]
  assert q.out.behavior_logp_RxT.tolist() == [
      [1.25, 1.375, 1.5, 0], [0] * 4, [0, 0, 2, 2.125], [0, 2.375, 0, 0]]
  assert q.out.len_R.tolist() == [3, 0, 4, 2]
  assert q.out.ended_R.tolist() == [False, False, False, True]
  assert q.out.entropy_R.tolist() == [0.25, 0, 0.75, 0.25]
  assert q.row.active_R.tolist() == [True, False, False, False]
  assert q.row.id_R.tolist() == [7, 7, 8, 8]
  assert q.row.count_R.flags.writeable


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
