"""Which rollout each slot decodes, and when a batch is complete."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from isojax.sampling import flight
from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling.scheduler import Scheduler
from isojax.sampling.sizes import Sizes
from isojax.types import Drawn, Prompts


def make_prompts(lengths) -> Prompts:
  P, S = len(lengths), max(lengths)
  return Prompts(np.arange(P * S, dtype=np.int32).reshape(P, S),
                 np.array(lengths, np.int32),
                 np.arange(7, 7 + P, dtype=np.uint32))


def make_source(prompts, n, *, Bp=None, steps=1, interrupt_after=None
                ) -> flight.GroupSource:
  """Position p is problem p % P; steps of Bp problems, n rollouts of each."""
  P = len(prompts.len_P)
  Bp = Bp or P

  def groups(step):
    position = step * Bp + np.arange(Bp)
    return flight.new_groups(position, position % P, n)

  return flight.GroupSource(prompts, groups, lambda p: (0, p // Bp), steps,
                       interrupt_after)


def make_queue(source, *, G=1, R=4, W=1, T=5, groups=None, k=0, state=None,
               version=0, interrupt=None) -> Scheduler:
  return Scheduler(
      state or flight.empty_state((R, 0, G)), source,
      flight.BatchRule(groups or len(source.groups_of_step(0).n_E), k),
      version=version, G=G,
      sizes=Sizes(chunk=1, max_new_tokens=T, longest=99, rows=(R,),
                  lengths=(999,), prompts=(1, 2, 3, 9, 999), window=W),
      interrupt=interrupt)


def fill(queue, count=None):
  """Fills the free slots, or `count` of each block; returns the candidates."""
  candidates = queue.candidates()
  queue.fill(candidates, [
      len(block.row_F) if count is None else count for block in candidates])
  return candidates


def move_window(queue):
  """Items of the windows by their sequences: tokens of each, as lists."""
  prompts = queue.move_window()
  return [row[:length].tolist() for row, length in zip(
      prompts.tokens_PxS, prompts.len_P)]


def test_slots_take_what_waits_by_hand():
  """3 problems of 2 rollouts, 2 blocks of 2 slots, windows of 1 prompt.

  Each block gets one problem. Then block 0 gets the third, and block 1 takes
  half of it.
  """
  queue = make_queue(make_source(make_prompts([2, 1, 3]), 2), G=2)
  assert queue.starving
  assert [len(block.row_F) for block in fill(queue)] == [0, 0]
  assert move_window(queue) == [[0, 1], [3]]
  # Slots, places in the window, tokens, problem, and tokens of its prompt.
  assert [[x.tolist() for x in block] for block in fill(queue)] == [
      [[0, 1], [0, 0], [2, 2], [0, 0], [2, 2]],
      [[2, 3], [0, 0], [1, 1], [1, 1], [1, 1]]]
  assert queue.slots.item_R.tolist() == [0, 1, 2, 3]
  assert not queue.starving and queue.waiting
  # The last tokens of the prompts.
  assert queue.slots.row.token_R.tolist() == [1, 1, 3, 3]
  assert queue.slots.row.rollout_R.tolist() == [0, 1, 0, 1]
  assert queue.slots.row.id_R.tolist() == [7, 7, 8, 8]
  assert queue.progress.started_E.tolist() == [True, True, False]
  queue.slots.row.active_R[:] = [False, True, True, False]
  assert queue.starving and move_window(queue) == [[6, 7, 8], [6, 7, 8]]
  assert [block.row_F.tolist() for block in fill(queue)] == [[0], [3]]
  assert queue.slots.item_R.tolist() == [4, 1, 2, 5] and not queue.waiting


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_each_item_starts_once_and_no_slot_idles(data):
  """Rollouts end at random; after a refill, nothing waits or no slot is free.
  """
  G, R_b = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
  n, E = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9))
  W = data.draw(st.integers(1, 3))
  random = np.random.default_rng(data.draw(st.integers(0, 99)))
  queue = make_queue(make_source(make_prompts([2] * E), n), G=G, R=G * R_b, W=W,
                 T=1)
  started, window = [], None
  while queue.waiting:
    while True:
      for g, block in enumerate(fill(queue)):
        for row, place in zip(block.row_F, block.place_F):
          item = queue.slots.item_R[row]
          started.append(item)
          # Its prompt is in the window of its own block.
          group = item // n
          assert window[g * W + place] == [2 * group, 2 * group + 1]
      if not queue.starving:
        break
      window = move_window(queue)
      assert any(map(len, queue.places))
    assert not queue.waiting or queue.slots.row.active_R.all()
    ends = random.random(G * R_b) < 0.4
    if queue.waiting:
      ends[random.integers(G * R_b)] = True
    queue.slots.row.active_R[ends] = False
  assert sorted(started) == list(range(E * n))


def test_rollouts_that_lose_their_slot_are_next_by_hand():
  """Those with the most tokens first; the window is read again for them."""
  queue = make_queue(make_source(make_prompts([1, 1]), 3), W=2)
  move_window(queue)
  fill(queue)
  assert [x.tolist() for x in (*queue.queued, *queue.places)] == [
      [4, 5], [1, 1]]
  queue.items.out.len_R[:4] = 0, 1, 3, 2
  queue.items.out.tokens_RxT[2, :3] = 20, 21, 22
  queue.evict([1, 2])
  assert queue.queued[0].tolist() == [2, 1, 4, 5] and not len(queue.places[0])
  assert queue.evicted_count == 2 and queue.starving
  assert move_window(queue) == [[0, 20, 21, 22], [0, 0]]  # then the prompts
  fill(queue)
  assert queue.slots.item_R.tolist() == [0, 2, 1, 3]
  assert queue.slots.row.token_R[1] == 22 and queue.slots.row.position_R[1] == 3


def test_a_refused_block_has_no_free_slots():
  queue = make_queue(make_source(make_prompts([1, 1]), 3), W=2)
  move_window(queue)
  fill(queue, 2)
  assert queue.slots.row.active_R.tolist() == [True, True, False, False]
  assert queue.waiting and not queue.starving
  queue.evict([])
  assert queue.starving


# In-flight updates.


def test_what_is_handed_over_by_hand():
  """k = 1, batches of 2: what began at version 0 is due at version 1."""
  due = lambda version_E, complete_E, version: flight.next_batch_groups(
      np.array(version_E), np.array(complete_E, bool), version=version,
      rule=flight.BatchRule(2, 1))
  assert due([0, 0, 0, 0], [1, 0, 0, 0], 0) is None  # one group is no batch
  assert due([0, 0, 0, 0], [1, 0, 0, 1], 0).tolist() == [0, 3]
  assert due([0, 0, 1, 1], [1, 0, 1, 1], 1) is None  # group 1 is due: wait
  assert due([0, 0, 1, 1], [1, 1, 1, 1], 1).tolist() == [0, 1]
  assert due([0, 1, 1, 1], [1, 0, 0, 1], 1).tolist() == [0, 3]


def in_flight() -> flight.InFlightState:
  """Two groups of 2 rollouts; one of 4 is complete, one has no token."""
  return flight.InFlightState(
      steps=2, not_started=flight.new_groups([], [], 0),
      groups=flight.new_groups([0, 1], [0, 1], 2),
      len_R=np.array([1, 2, 2, 0], np.int32),
      ended_R=np.array([False, True, False, False]),
      entropy_R=np.zeros(4, np.float32),
      tokens_X=np.array([9, 8, 7, 6, 5], np.int32),
      logp_X=np.arange(5, dtype=np.float32),
      version_X=np.zeros(5, np.int32), sampler_layout=(4, 0, 1))


def test_waiting_rollouts_by_hand():
  """Unfinished ones first, the longest first; then groups in their order."""
  source = make_source(make_prompts([3, 1]), 2, Bp=1, steps=4)
  queue = make_queue(source, R=6, W=9, T=4, groups=1, k=2, state=in_flight(),
                 version=1)
  assert queue.done.tolist() == [1] and sum(map(len, queue.units)) == 5
  # Of 3 + 1 and 1 + 2 tokens; then of none, and the group that may begin.
  assert move_window(queue)[:4] == [[0, 1, 2, 9], [3, 6, 5], [3], [0, 1, 2]]
  fill(queue)
  assert queue.slots.item_R[:5].tolist() == [0, 2, 3, 4, 5]
  assert queue.slots.row.token_R[:5].tolist() == [9, 5, 3, 2, 2]
  assert queue.slots.row.count_R[:5].tolist() == [1, 2, 0, 0, 0]
  assert queue.progress.groups.version_E.tolist() == [0, 0, 1]
  assert queue.progress.started_E.all()
  left = queue.remaining_state(np.array([0]))
  assert left.steps == 3 and left.groups.position_E.tolist() == [1, 2]
  assert left.tokens_X.tolist() == [6, 5] and left.logp_X.tolist() == [3, 4]
  assert left.len_R.tolist() == [2, 0, 0, 0] and not len(left.not_started.n_E)


def test_a_step_that_has_begun_keeps_its_problems():
  """4 slots begin 2 of the 3 groups of step 0, and none of step 1."""
  source = make_source(make_prompts([1] * 9), 2, Bp=3, steps=3)
  queue = make_queue(source, W=9, groups=3, k=1)
  move_window(queue)
  fill(queue)
  state = flight.from_bytes(flight.to_bytes(
      queue.remaining_state(np.array([0]))))
  assert state.steps == 1 and state.groups.position_E.tolist() == [1]
  assert state.not_started.position_E.tolist() == [2]
  assert state.sampler_layout == (4, 0, 1)
  other = source._replace(groups_of_step=lambda step: flight.new_groups(
      3 * step + np.arange(3), [8, 8, 8], 2))
  queue = make_queue(other, W=9, groups=3, k=1, state=state)
  assert queue.progress.groups.problem_E.tolist() == [1, 2, 8, 8, 8, 8, 8, 8]


def test_a_rollout_that_is_read_again_knows_what_closed_it():
  """Token 8 within the first L = 1 tokens of item 1 of 2, not of item 2."""
  interrupt_after = lambda groups: np.repeat(np.int32(1), groups.n_E.sum())
  state = in_flight().replace(ended_R=np.zeros(4, bool))
  queue = make_queue(
      make_source(make_prompts([3, 1]), 2, Bp=1, steps=4,
                  interrupt_after=interrupt_after),
      W=9, T=4, groups=1, k=2, state=state,
      interrupt=interrupt_lib.Interrupt(phrase=(2, 3), unless=(8,)))
  move_window(queue)
  fill(queue)
  assert queue.slots.item_R.tolist() == [1, 0, 2, 3]
  assert queue.slots.row.interrupt_R.tolist() == [1] * 4
  assert queue.slots.row.matched_R.tolist() == [1, 0, 0, 0]


def sampled(needs_PxN, *, k, Bp, slots, chunk, T):
  """Runs the rules alone, with given lengths.

  Yields:
    For each step: version, CompletedBatch, tokens, and slots times the tokens
    of their chunks.
  """
  P, n = needs_PxN.shape
  source = make_source(make_prompts([1] * P), n, Bp=Bp, steps=P // Bp)
  state, needs = flight.empty_state((slots, 0, 1)), needs_PxN.reshape(-1)
  for version in range(P // Bp):
    queue = make_queue(source, R=slots, W=slots, T=T, groups=Bp, k=k,
                       state=state, version=version)
    before, decoded = queue.items.out.len_R.sum(), 0
    while (chosen := queue.progress.ready()) is None:
      while True:
        fill(queue)
        if not queue.starving:
          break
        move_window(queue)
      assert queue.slots.row.active_R.any()
      assert queue.progress.started_E.sum() <= (k + 1) * Bp
      group = queue.items.group_B[queue.slots.item_R]
      need = needs[queue.progress.groups.position_E[group] * n
                   + queue.items.number_B[queue.slots.item_R]]
      row, zeros = queue.slots.row, np.zeros((slots, chunk), np.int32)
      count = np.where(row.active_R, np.minimum(row.count_R + chunk, need),
                       row.count_R)
      queue.harvest(row.replace(count_R=count, active_R=row.active_R & (
          count < need)), Drawn(zeros, zeros.astype(np.float32), np.zeros(
              slots, np.float32), count == need))
      decoded += slots * chunk
    yield (version, queue.completed_batch(chosen),
           queue.items.out.len_R.sum() - before, decoded)
    state = queue.remaining_state(chosen)
  assert not len(state.groups.n_E)


@hypothesis.given(
    st.integers(0, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5),
    st.integers(1, 20), st.randoms(use_true_random=False))
@hypothesis.settings(max_examples=100)
def test_no_token_is_too_old_and_every_rollout_is_used(
    k, Bp, n, M, slots, random):
  """Any lengths."""
  needs = np.array([[random.choice((1, 2, 12)) for _ in range(n)]
                    for _ in range(M * Bp)])
  used = []
  for version, batch, _, _ in sampled(
      needs, k=k, Bp=Bp, slots=slots, chunk=1, T=12):
    position_E, length_R = batch.groups.position_E, batch.rollouts.len_R
    np.testing.assert_array_equal(length_R, needs[position_E].reshape(-1))
    mean, most = batch.staleness(version)
    assert 0 <= mean <= most <= k
    ages = (version - batch.version_RxT)[
        np.arange(12)[None] < length_R[:, None]]
    assert (ages >= 0).all() and ages.max() == most
    used.extend(position_E.tolist())
  assert sorted(used) == list(range(M * Bp))


@pytest.mark.parametrize("slots, k, least, most", [
    (128, 2, 0.5, 0.7), (128, 4, 0.9, 0.94), (32, 1, 0.9, 0.94)])
def test_slots_are_busy_if_enough_may_be_in_flight(slots, k, least, most):
  """Lengths of the bench: 8 x 16, mean 48, at most 256, chunks of 8 tokens.

  A slot waits for half a chunk after each rollout: at most 93 % are useful.
  """
  needs = np.minimum(np.random.default_rng(0).geometric(1 / 48, (160, 16)), 256)
  found = list(sampled(needs, k=k, Bp=8, slots=slots, chunk=8, T=256))
  steady = found[4:-k - 1]  # without the first and the last steps
  kept, decoded = (sum(x[i] for x in steady) for i in (2, 3))
  assert least < kept / decoded < most
