"""A budget far beyond a law becomes a sweep and a final run."""

import pytest

from isojax.planner import planning
from isojax.planner.request import request

WHERE = dict(machine="16xh100", model="tests/data/qwen2.5-7b",
             prompt_tokens=200.0, response_tokens=2000.0, stratum="hard")


def test_the_sweep_of_a_divided_budget_by_hand():
  """10 runs and one of four times their C, 1 hour for 1,000 rollouts."""
  assert planning.sweep_n(128) == (16, 32, 64, 128, 256)
  assert planning.sweep_n(4) == (2, 4, 8)
  hours_of = lambda C: 14 * C / 1000
  for hours, guess, C in ((70.0, 10, 5000), (70.0, 10**7, 5000),
                          (17.29, 100, 1230)):  # 1235
    assert planning.sweep_budget(hours, guess, hours_of) == C


def test_half_a_million_dollars_are_not_one_run():
  """189 million rollouts, 32 times the published data, without a division."""
  plan = planning.make(request(usd=500_000.0, **WHERE))
  assert len(plan.rows) == 10
  assert {row.allocation.n for row in plan.rows} == {16, 32, 64, 128, 256}
  assert {row.seed for row in plan.rows} == {0, 1}
  C = plan.rows[0].allocation.C
  assert 1.2e7 < C < 1.4e7 and all(
      abs(row.allocation.C / C - 1) < 1e-3 for row in plan.rows)
  spent = sum(row.expected["usd"] for row in plan.rows)
  assert 0.6 * 500_000 < spent < 0.8 * 500_000  # 10 of 14 parts
  assert "32 times the largest C of the data" in plan.table()
  assert f"launch.plan --rollouts={4 * C // 4096 * 4096} " in plan.table()
  assert "a final run of 4 times that C: 33 days" in plan.table()


@pytest.mark.parametrize("more", [
    dict(usd=5000.0), dict(usd=500_000.0, n=(64,)), dict(rollouts=2e8)])
def test_other_budgets_are_one_run(more):
  plan = planning.make(request(**WHERE, **more))
  assert len(plan.rows) == 1 and "divided" not in plan.table()


def test_own_seeds_are_those_of_the_sweep():
  plan = planning.make(request(usd=500_000.0, seeds=(3, 4, 5),
                               given=("seeds",), **WHERE))
  assert {row.seed for row in plan.rows} == {3, 4, 5}
