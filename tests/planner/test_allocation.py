"""C = Bp * n * M in exact integers, never more than the budget."""

import csv
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isojax.errors import InputError
from isojax.planner.allocation import allocate
from isojax.planner.allocation import sqrt_lr

ROWS = list(csv.DictReader(
    (pathlib.Path(__file__).parents[2]
     / "isojax/assets/published/planner_cases.csv").open()))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_published_cases(row):
  a = allocate(Bp=int(row["Bp"]), n=int(row["n"]), M=None, C=int(row["C"]))
  assert (a.M, a.B, a.C) == tuple(int(row[c]) for c in ("M", "B", "C_used"))
  assert sqrt_lr(1e-6, 1024, a.B) == pytest.approx(float(row["lr"]), rel=1e-6)


@given(st.integers(1, 10**12), st.integers(1, 4096), st.integers(1, 4096))
def test_never_more_than_the_budget_and_less_than_a_step_is_left(C, Bp, n):
  if C < Bp * n:
    with pytest.raises(InputError, match=str(Bp * n)):
      allocate(Bp=Bp, n=n, M=None, C=C)
  else:
    a = allocate(Bp=Bp, n=n, M=None, C=C)
    assert 0 <= C - a.C < a.B


@pytest.mark.parametrize("kwargs, message", [
    (dict(Bp=0, n=4, M=3, C=99), "Bp=0"),
    (dict(Bp=2, n=-1, M=None, C=8), "n=-1"),
    (dict(Bp=2, n=4, M=0, C=99), "M=0")])
def test_refusals_name_the_number(kwargs, message):
  with pytest.raises(InputError, match=message):
    allocate(**kwargs)


def test_M_is_taken_as_it_is():
  assert allocate(Bp=2, n=4, M=3, C=5).C == 24
