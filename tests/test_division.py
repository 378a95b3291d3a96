"""n of each problem: rules, their solver and their expectations."""

import numpy as np
import pytest
from scipy import special

from configs import grpo
import isojax
from isojax.core import division
from isojax.errors import InputError


def posteriors(seed: int, P: int) -> division.Posterior:
  random = np.random.default_rng(seed)
  return division.Posterior(
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
    ("knapsack", division.knapsack_utility),
    ("variance", division.variance_utility), ("hit", division.hits)])
def test_greedy_finds_what_dynamic_programming_finds(rule, utility):
  random = np.random.default_rng(1)
  for seed in range(1000):
    P, low = int(random.integers(2, 7)), int(random.integers(1, 4))
    high = low + int(random.integers(1, 8))
    B = int(random.integers(P * low, P * high + 1))
    p = posteriors(seed, P)
    n_P = division.RULES[rule](p, B, division.Bounds(low, high))
    table_NxP = utility(p, high)
    assert table_NxP[n_P, np.arange(P)].sum() >= (
        best(table_NxP, B, low, high) - 1e-12)


@pytest.mark.parametrize("rule", division.RULES)
def test_rules_spend_exactly_the_budget_within_the_bounds(rule):
  random = np.random.default_rng(2)
  for seed in range(300):
    P, low = int(random.integers(1, 40)), int(random.integers(1, 5))
    high = low + int(random.integers(0, 30))
    B = int(random.integers(P * low, P * high + 1))
    n_P = division.RULES[rule](posteriors(seed, P), B,
                                 division.Bounds(low, high))
    assert n_P.sum() == B and n_P.shape == (P,)
    sampled = n_P[n_P > 0] if rule == "skip" else n_P
    assert sampled.max() <= high and (rule == "skip" or sampled.min() >= low)


def test_expectations_equal_numerical_integration():
  p, high = posteriors(3, 20), 64
  expected = {
      division.informative: lambda x, n: 1 - x**n - (1 - x)**n,
      division.hits: lambda x, n: 1 - (1 - x)**n,
      division.knapsack_utility:
          lambda x, n: (1 - x**n - (1 - x)**n) * x * (1 - x)**2,
      division.variance_utility: lambda x, n: -x * (1 - x) / n}
  for i, (a, b) in enumerate(zip(p.a_P, p.b_P, strict=True)):
    # Gauss-Jacobi: exact for polynomials up to degree 119.
    node, weight = special.roots_jacobi(60, b - 1, a - 1)
    x, weight = (node + 1) / 2, weight / weight.sum()
    for function, value in expected.items():
      for n in range(1, high + 1):
        np.testing.assert_allclose(function(p, high)[n, i],
                                   weight @ value(x, n), rtol=0, atol=1e-9)


def test_rules_by_hand():
  bounds, half = division.Bounds(1, 8), np.full(2, 0.0)
  # E[p (1-p)] of Beta(1, 1) is 1/6, of Beta(1, 3) 3/20: gains of the first
  # problem 1/12, 1/36, 1/72, of the second 3/40, 1/40, 1/80.
  p = division.Posterior(np.array([1.0, 1.0]), np.array([1.0, 3.0]), half,
                           half)
  assert division.RULES["variance"](p, 5, bounds).tolist() == [3, 2]
  # 1 - E[(1-p)^n]: gains 1/6, 1/12, 1/20, ...; of Beta(1, 3), where
  # E[(1-p)^n] = 3 / (3 + n): 3/20, 1/10, 1/14, 3/56.
  assert division.RULES["hit"](p, 7, bounds).tolist() == [3, 4]
  # E[(1-p^2-(1-p)^2) p (1-p)^2] = 2 E[p^2 (1-p)^3] = 2 * 2! 3! / 6! = 1/30 and,
  # for Beta(1, 3), 2 * B(3, 6) / B(1, 3) = 2 * 3 / 168 = 1/28.
  np.testing.assert_allclose(division.knapsack_utility(p, 2)[2],
                             [1 / 30, 1 / 28])
  assert division.uniform(p, 7, bounds).tolist() == [4, 3]


def test_skip_leaves_silent_problems_out_but_never_for_ever():
  p = division.Posterior(
      np.ones(4), np.ones(4), np.array([0, 1, 2, 3]),
      np.array([0.9, 0.49, 0.26, 0.12]))  # 0.5^z is 1, 0.5, 0.25, 0.125
  bounds = division.Bounds(2, 8)
  assert division.skip(p, 12, bounds).tolist() == [4, 4, 0, 4]
  # 30 rollouts need four problems of at most 8.
  assert division.skip(p, 30, bounds).tolist() == [8, 8, 7, 7]


@pytest.mark.parametrize("rule", ["uniform", "knapsack", "variance", "hit"])
def test_allocate_and_a_run_answer_alike(rule):
  """A stratum of these counts, before the first step."""
  correct, low_high = [0, 1, 8, 15], dict(n_low=2, n_high=64)
  made = grpo.get_config().alloc
  rules = division.Division(rule, **low_high, **{
      name: made[name] for name in ("prior_strength", "forgetting",
                                    "objective")})
  evidence = division.evidence(range(4), correct, 16, rules)
  want = rules.n_of(evidence.posterior(np.arange(4), np.zeros(4)), 64).tolist()
  assert isojax.allocate(correct, [16] * 4, 64, rule=rule).tolist() == want
  if rule == "knapsack":
    assert want == [15, 24, 16, 9]


def test_counts_may_be_worth_as_much_as_they_are():
  """Of 8 of 16 and 80 of 160 the second is surer."""
  correct, sampled = np.array([1, 10]), np.array([16, 160])
  n_P = isojax.allocate(correct, sampled, 64, rule="hit", strength=sampled + 1)
  assert n_P[0] != n_P[1]
  assert (isojax.allocate([1, 1], [16, 16], 64, rule="hit") == 32).all()


def test_allocate_divides_or_refuses():
  """A problem without a right answer keeps a value."""
  n_P = isojax.allocate([0, 8, 16], [16, 16, 16], 48)
  assert n_P.sum() == 48 and n_P[0] > n_P[2] >= 2
  # The tables of a rule end where the budget does, not at `high`.
  for rule in ("knapsack", "variance", "hit"):
    counts = dict(correct=[0, 8, 16], sampled=[16] * 3, budget=48, rule=rule)
    assert isojax.allocate(**counts, high=10**9).tolist() == (
        isojax.allocate(**counts, high=44).tolist())
  for arguments, said in (
      (dict(budget=3), "expected 4 to 128"), (dict(budget=129), "4 to 128"),
      (dict(rule="best"), "expected one of uniform, knapsack"),
      (dict(low=0), "1 <= low <= high"), (dict(correct=[3, 1]), "<= sampled"),
      (dict(sampled=[2]), "count of each problem"),
      (dict(sampled=[2, float("inf")]), "a finite count"),
      (dict(strength=0), "expected > 0"),
      (dict(strength=np.array([1, -1])), "expected > 0")):
    with pytest.raises(InputError, match=said):
      isojax.allocate(**dict(correct=[1, 1], sampled=[2, 2], budget=16)
                      | arguments)
