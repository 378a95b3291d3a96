"""A budget far beyond a law becomes a sweep and a final run."""

import pytest

from isojax.planner import planning
from isojax.planner import stages
from isojax.planner.request import Request

WHERE = dict(machine="16xh100", model="tests/data/qwen2.5-7b",
             prompt_tokens=200.0, response_tokens=2000.0, stratum="hard")


def test_the_n_of_a_sweep():
  assert stages.sweep_n(128) == (16, 32, 64, 128, 256)
  assert stages.sweep_n(4) == (2, 4, 8)


def test_the_budget_of_a_sweep_by_hand():
  """10 runs and one of four times their C, 1 hour for 1,000 rollouts."""
  hours_of = lambda C: 14 * C / 1000
  assert stages.sweep_budget(70.0, 10, hours_of) == 5000
  assert stages.sweep_budget(70.0, 10**7, hours_of) == 5000
  assert stages.sweep_budget(17.29, 100, hours_of) == 1230  # 1235
  assert not stages.beyond(4e6, 1e6) and stages.beyond(4.1e6, 1e6)


def test_half_a_million_dollars_are_not_one_run():
  """189 million rollouts, 32 times the published data, without a division."""
  plan = planning.make(Request(usd=500_000.0, **WHERE))
  assert len(plan.rows) == 10
  assert {row.allocation.n for row in plan.rows} == {16, 32, 64, 128, 256}
  assert {row.seed for row in plan.rows} == {0, 1}
  C = plan.rows[0].allocation.C
  assert 1.2e7 < C < 1.4e7 and all(
      abs(row.allocation.C / C - 1) < 1e-3 for row in plan.rows)
  spent = sum(row.expected["usd"] for row in plan.rows)
  assert 0.6 * 500_000 < spent < 0.8 * 500_000  # 10 of 14 parts
  assert "32 times the largest C of the data" in plan.text
  assert f"launch.plan --rollouts={4 * C // 4096 * 4096} " in plan.text
  assert "a final run of 4 times that C: 33 days" in plan.text


@pytest.mark.parametrize("more", [
    dict(usd=5000.0), dict(usd=500_000.0, n=(64,)), dict(rollouts=2e8)])
def test_other_budgets_are_one_run(more):
  plan = planning.make(Request(**WHERE, **more))
  assert len(plan.rows) == 1 and "divided" not in plan.text


def test_own_seeds_are_those_of_the_sweep():
  plan = planning.make(Request(usd=500_000.0, seeds=(3, 4, 5),
                               given=frozenset(("seeds",)), **WHERE))
  assert {row.seed for row in plan.rows} == {3, 4, 5}
