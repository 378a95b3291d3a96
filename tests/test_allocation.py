"""C = Bp * n * M in exact integers, never more than the budget."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from isojax.allocation import allocate, Allocation, of_section, section_of
from isojax.errors import InputError


@given(st.integers(1, 10**12), st.integers(1, 4096), st.integers(1, 4096))
def test_never_more_than_the_budget_and_less_than_a_step_is_left(C, Bp, n):
  if C < Bp * n:
    with pytest.raises(InputError, match=str(Bp * n)):
      allocate(Bp=Bp, n=n, M=None, C=C)
  else:
    a = allocate(Bp=Bp, n=n, M=None, C=C)
    assert 0 <= C - a.C < a.B


STEPS = ((0, 4), (100, 8), (300, 16))


def test_a_schedule_by_hand():
  """Bp = 8. Steps of 32 begin at 0, 32, 64, 96; of 64 at 128, 192, 256; of 128
  at 320, 448, ...: a piece begins with the first step at or after its C."""
  a = allocate(Bp=8, n=4, M=None, C=1000, schedule=STEPS)
  assert (a.M, a.C) == (12, 960)  # 13 steps are 1088
  assert [a.rollouts_after(s) for s in range(14)] == [
      0, 32, 64, 96, 128, 192, 256, 320, 448, 576, 704, 832, 960, 1088]
  assert [a.n_after(C) for C in (0, 96, 100, 128, 256, 299, 300, 320)] == [
      4, 4, 8, 8, 8, 8, 16, 16]
  assert (a.n_max, a.n_min, a.B) == (16, 4, 32)
  # The last step must fit: 319 holds 3 steps of 64, 320 would be the next.
  at = lambda C: allocate(Bp=8, n=4, M=None, C=C, schedule=STEPS)
  assert [(at(C).M, at(C).C) for C in (127, 128, 191, 319, 447)] == [
      (3, 96), (4, 128), (4, 128), (6, 256), (7, 320)]
  assert allocate(Bp=8, n=4, M=7, C=1, schedule=STEPS).C == 320


def test_a_piece_shorter_than_a_step_is_passed_over():
  """The step of 64 from 32 ends at 96, beyond the piece of n = 3."""
  a = allocate(Bp=8, n=4, M=4, C=1,
               schedule=((0, 4), (20, 8), (50, 3), (90, 2)))
  assert [a.rollouts_after(s) for s in range(5)] == [0, 32, 96, 112, 128]


@given(st.integers(1, 9), st.lists(st.tuples(
    st.integers(1, 200), st.integers(1, 20)), max_size=5), st.integers(0, 2000))
def test_a_schedule_agrees_with_steps_one_by_one(Bp, more, left):
  starts = sorted({start for start, _ in more})
  pieces = ((0, 3), *zip(starts, (n for _, n in more)))
  C, steps, rollouts = 3 * Bp + left, 0, [0]
  while True:
    n = [n for start, n in pieces if start <= rollouts[-1]][-1]
    if rollouts[-1] + Bp * n > C:
      break
    rollouts.append(rollouts[-1] + Bp * n)
    steps += 1
  a = allocate(Bp=Bp, n=3, M=None, C=C, schedule=pieces)
  assert (a.M, a.C) == (steps, rollouts[-1])
  assert [a.rollouts_after(s) for s in range(steps + 1)] == rollouts


@pytest.mark.parametrize("kwargs, message", [
    (dict(n=8, schedule=STEPS), "begins with n = 4, but alloc.n=8"),
    (dict(n=4, schedule=((5, 4),)), "begin at C = 0"),
    (dict(n=4, schedule=((0, 4), (9, 8), (9, 2))), "increasing order of C"),
    (dict(n=4, schedule=((0, 4), (9, 0))), "n=0: expected at least 1"),
    (dict(n=4, schedule=((0, 4, 9),)), r"expected pieces \(from C, n\)"),
    (dict(Bp=0), "Bp=0"), (dict(n=-1), "n=-1"), (dict(M=0), "M=0"),
    (dict(n=4, m=0), "m=0: expected at least 1"),
    (dict(n=4, m=5), "m=5 is more than the 4 rollouts"),
    (dict(n=4, m=3, schedule=((0, 4), (9, 2))), "m=3 is more than the 2")])
def test_refusals_name_the_number(kwargs, message):
  with pytest.raises(InputError, match=message):
    allocate(**dict(Bp=2, n=4, M=None, C=999) | kwargs)


def test_a_stored_section_and_back():
  """JSON has lists."""
  rule = dict(rule="uniform", n_low=1, n_high=1, prior_strength=1.0,
              forgetting=1.0, objective="problems")
  a = of_section(Bp=8, n=4, M=None, C=1000, m=2,
                 schedule=[list(piece) for piece in STEPS], **rule)
  assert a == Allocation(8, 4, 12, 2, STEPS)
  assert section_of(a) == {
      "Bp": 8, "n": 4, "M": 12, "m": 2, "schedule": STEPS}
  plain = of_section(Bp=8, n=4, M=3, C=1, m=None, schedule=[], **rule)
  assert plain == Allocation(8, 4, 3) and plain.m_of(4) == 4
  assert section_of(plain) == {"Bp": 8, "n": 4, "M": 3}
