"""C = Bp * n * M in exact integers, never more than the budget."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from isojax.core.allocation import allocate, Allocation, sizes_of
from isojax.errors import InputError


@given(st.integers(1, 10**12), st.integers(1, 4096), st.integers(1, 4096))
def test_never_more_than_the_budget_and_less_than_a_step_is_left(C, Bp, n):
  if C < Bp * n:
    with pytest.raises(InputError, match=str(Bp * n)):
      allocate(Bp=Bp, n=n, M=None, C=C)
  else:
    alloc = allocate(Bp=Bp, n=n, M=None, C=C)
    assert 0 <= C - alloc.C < alloc.B


def test_steps_of_several_rounds_end_with_the_budget():
  alloc = allocate(Bp=8, n=4, M=None, C=1000)
  assert (alloc.B, alloc.M, alloc.C) == (32, 31, 992)
  assert [alloc.is_finished(step, C, rounds=rounds) for step, C, rounds in (
      (30, 992, 1), (31, 961, 1), (30, 960, 2), (30, 961, 2))] == [
          False, True, False, True]


@pytest.mark.parametrize("kwargs, message", [
    (dict(Bp=0), "Bp=0"), (dict(n=-1), "n=-1"), (dict(M=0), "M=0"),
    (dict(n=10**9), "n=1000000000, .*at most 16,777,216 rollouts a step"),
    (dict(n=10**400), "n=10000"), (dict(M=10**30), r"at most 2\*\*53"),
    (dict(n=4, m=0), "m=0: expected at least 1"),
    (dict(n=4, m=5), "m=5 is more than the 4 rollouts")])
def test_refusals_name_the_number(kwargs, message):
  with pytest.raises(InputError, match=message):
    allocate(**dict(Bp=2, n=4, M=None, C=999) | kwargs)


def test_a_stored_section_and_back():
  alloc = allocate(Bp=8, n=4, M=None, C=1000, m=2)
  assert alloc == Allocation(8, 4, 31, 2) and alloc.kept == 2
  assert sizes_of(alloc) == {"Bp": 8, "n": 4, "M": 31, "m": 2}
  plain = allocate(Bp=8, n=4, M=3, C=1)
  assert plain == Allocation(8, 4, 3) and plain.kept == 4
  assert sizes_of(plain) == {"Bp": 8, "n": 4, "M": 3}
