"""C = Bp * n * M in exact integers, never more than the budget."""

import csv
import pathlib

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import special

import isojax
from isojax import allocation
from isojax.allocation import (
  allocate,
  Allocation,
  of_section,
  section_of,
  sqrt_lr,
)
from isojax.errors import InputError

ROWS = list(csv.DictReader(
    (pathlib.Path(__file__).parent
     / "data/published/planner_cases.csv").open()))


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
    (dict(n=4, m=0), "m=0: expected at least 1"),
    (dict(n=4, m=5), "m=5 is more than the 4 rollouts"),
    (dict(n=4, m=3, schedule=((0, 4), (9, 2))), "m=3 is more than the 2")])
def test_refusals_of_m_and_schedule(kwargs, message):
  with pytest.raises(InputError, match=message):
    allocate(Bp=2, M=None, C=999, **kwargs)


def test_a_stored_section_and_back():
  """JSON has lists."""
  a = of_section({"Bp": 8, "n": 4, "M": None, "C": 1000, "m": 2,
                  "schedule": [list(piece) for piece in STEPS]})
  assert a == Allocation(8, 4, 12, 2, STEPS)
  assert section_of(a) == {
      "Bp": 8, "n": 4, "M": 12, "m": 2, "schedule": STEPS}
  plain = of_section({"Bp": 8, "n": 4, "M": 3, "C": 1, "m": None,
                      "schedule": []})
  assert plain == Allocation(8, 4, 3) and plain.m_of(4) == 4
  assert section_of(plain) == {"Bp": 8, "n": 4, "M": 3}


# --- n of each problem ---


def posteriors(seed: int, P: int) -> allocation.Posterior:
  random = np.random.default_rng(seed)
  return allocation.Posterior(
      random.uniform(0.3, 20, P), random.uniform(0.3, 20, P),
      random.integers(0, 5, P), random.uniform(size=P))


def best(utility_NxP, B: int, low: int, high: int) -> float:
  """The largest summed utility of B rollouts, by dynamic programming."""
  best_B = np.full(B + 1, -np.inf)
  best_B[0] = 0.0
  for utility_N in utility_NxP.T:
    further_B = np.full(B + 1, -np.inf)
    for n in range(low, min(high, B) + 1):
      further_B[n:] = np.maximum(further_B[n:],
                                 best_B[:B + 1 - n] + utility_N[n])
    best_B = further_B
  return best_B[B]


@pytest.mark.parametrize("rule, utility", [
    ("knapsack", allocation.knapsack_utility),
    ("variance", allocation.variance_utility), ("hit", allocation.hits)])
def test_greedy_finds_what_dynamic_programming_finds(rule, utility):
  random = np.random.default_rng(1)
  for seed in range(1000):
    P, low = int(random.integers(2, 7)), int(random.integers(1, 4))
    high = low + int(random.integers(1, 8))
    B = int(random.integers(P * low, P * high + 1))
    p = posteriors(seed, P)
    n_P = allocation.RULES[rule](p, B, allocation.Bounds(low, high))
    table_NxP = utility(p, high)
    assert table_NxP[n_P, np.arange(P)].sum() >= (
        best(table_NxP, B, low, high) - 1e-12)


@pytest.mark.parametrize("rule", allocation.RULES)
def test_rules_spend_exactly_the_budget_within_the_bounds(rule):
  random = np.random.default_rng(2)
  for seed in range(300):
    P, low = int(random.integers(1, 40)), int(random.integers(1, 5))
    high = low + int(random.integers(0, 30))
    B = int(random.integers(P * low, P * high + 1))
    n_P = allocation.RULES[rule](posteriors(seed, P), B,
                                 allocation.Bounds(low, high))
    assert n_P.sum() == B and n_P.shape == (P,)
    sampled = n_P[n_P > 0] if rule == "skip" else n_P
    assert sampled.max() <= high and (rule == "skip" or sampled.min() >= low)


def test_expectations_equal_numerical_integration():
  p, high = posteriors(3, 20), 64
  expected = {
      allocation.informative: lambda x, n: 1 - x**n - (1 - x)**n,
      allocation.hits: lambda x, n: 1 - (1 - x)**n,
      allocation.knapsack_utility:
          lambda x, n: (1 - x**n - (1 - x)**n) * x * (1 - x)**2,
      allocation.variance_utility: lambda x, n: -x * (1 - x) / n}
  for i, (a, b) in enumerate(zip(p.a_P, p.b_P, strict=True)):
    # Gauss-Jacobi: exact for polynomials up to degree 119.
    node, weight = special.roots_jacobi(60, b - 1, a - 1)
    x, weight = (node + 1) / 2, weight / weight.sum()
    for function, value in expected.items():
      for n in range(1, high + 1):
        np.testing.assert_allclose(function(p, high)[n, i],
                                   weight @ value(x, n), rtol=0, atol=1e-9)


def test_rules_by_hand():
  bounds, half = allocation.Bounds(1, 8), np.full(2, 0.0)
  # E[p (1-p)] of Beta(1, 1) is 1/6, of Beta(1, 3) 3/20: gains of the first
  # problem 1/12, 1/36, 1/72, of the second 3/40, 1/40, 1/80.
  p = allocation.Posterior(np.array([1.0, 1.0]), np.array([1.0, 3.0]), half,
                           half)
  assert allocation.RULES["variance"](p, 5, bounds).tolist() == [3, 2]
  # 1 - E[(1-p)^n]: gains 1/6, 1/12, 1/20, ...; of Beta(1, 3), where
  # E[(1-p)^n] = 3 / (3 + n): 3/20, 1/10, 1/14, 3/56.
  assert allocation.RULES["hit"](p, 7, bounds).tolist() == [3, 4]
  # 1 / E[p] is 2 and 4.
  assert allocation.inverse(p, 6, bounds).tolist() == [2, 4]
  assert allocation.inverse(p, 12, bounds).tolist() == [4, 8]
  # E[(1-p^2-(1-p)^2) p (1-p)^2] = 2 E[p^2 (1-p)^3] = 2 * 2! 3! / 6! = 1/30 and,
  # for Beta(1, 3), 2 * B(3, 6) / B(1, 3) = 2 * 3 / 168 = 1/28.
  np.testing.assert_allclose(allocation.knapsack_utility(p, 2)[2],
                             [1 / 30, 1 / 28])
  assert allocation.uniform(p, 7, bounds).tolist() == [4, 3]


def test_skip_leaves_silent_problems_out_but_never_for_ever():
  p = allocation.Posterior(
      np.ones(4), np.ones(4), np.array([0, 1, 2, 3]),
      np.array([0.9, 0.49, 0.26, 0.12]))  # 0.5^z is 1, 0.5, 0.25, 0.125
  bounds = allocation.Bounds(2, 8)
  assert allocation.skip(p, 12, bounds).tolist() == [4, 4, 0, 4]
  # 30 rollouts need four problems of at most 8.
  assert allocation.skip(p, 30, bounds).tolist() == [8, 8, 7, 7]


def test_a_problem_without_a_right_answer_keeps_a_value():
  n_P = isojax.allocate([0, 8, 16], [16, 16, 16], 48)
  assert n_P.sum() == 48 and n_P[0] > n_P[2] >= 2


@pytest.mark.parametrize("arguments, said", [
    (dict(budget=3), "expected 4 to 128"), (dict(budget=129), "4 to 128"),
    (dict(rule="best"), "expected one of uniform, knapsack"),
    (dict(low=0), "1 <= low <= high"), (dict(correct=[3, 1]), "<= sampled"),
    (dict(sampled=[2]), "a count of each problem"),
    (dict(strength=0), "expected > 0")])
def test_what_allocate_refuses(arguments, said):
  with pytest.raises(InputError, match=said):
    isojax.allocate(**dict(correct=[1, 1], sampled=[2, 2], budget=16)
                    | arguments)
