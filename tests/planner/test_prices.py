"""What a price reads from a config, and prices of whole allocations."""

import itertools

import pytest

from configs import hard
from isojax.core import plan_file
from isojax.core.allocation import Allocation
from isojax.planner import planning, prices
from isojax.planner.cost import StepParts
from isojax.rl import algorithm
from isojax.run import experiment
from tests.planner import examples


def test_forward_passes_are_those_of_the_algorithm():
  assert prices.priced_recipe(hard.get_config(), None) == StepParts()
  for (coef, where), ratio_to, epochs, minibatches, critic in itertools.product(
      ((0.0, "loss"), (0.1, "loss"), (0.1, "reward")), ("old", "behavior"),
      (1, 2), (1, 4), ("none", "shared", "own")):
    config = hard.get_config()
    config.recipe.loss.update(
        kl_coef=coef, kl_in=where, ratio_to=ratio_to,
        importance_cap=None if ratio_to == "behavior" else 2.0,
        advantage="group_norm" if critic == "none" else "gae",
        kl_estimator="k1" if where == "reward" else "k3",
        constants={} if critic == "none" else dict(gamma=1.0, lam=0.95))
    config.recipe.updates.update(epochs=epochs, minibatches=minibatches)
    config.recipe.critic.kind = critic
    r, found = experiment.load(config).recipe, prices.priced_recipe(
        config, None)
    columns = algorithm.scored_columns(r.loss, r.updates, r.critic)
    assert found == StepParts(
        epochs=epochs, minibatches=minibatches, critic=critic,
        old_logp="old_logp" in columns, ref_logp="ref_logp" in columns,
        kl=coef > 0 and where == "loss")
    assert found.score_passes == algorithm.forward_passes(columns, r.critic)


def test_the_rate_of_a_plan_is_that_of_the_run():
  config = hard.get_config()
  config.recipe.updates.minibatches = 2
  for batch, m in itertools.product(("sampled", "trained", "update"),
                                    (None, 2)):
    config.recipe.optimizer.batch = batch
    config.alloc.update(Bp=4, n=8, M=3, m=m)
    config.recipe.loss.selection = "all" if m is None else "max_variance"
    loaded = experiment.load(config)
    optimizer = loaded.recipe.optimizer
    row = plan_file.Row(Allocation(4, 8, 3), 0, optimizer.base_lr * (
        4 * 8 / optimizer.base_batch) ** 0.5, None)
    (row,), _ = planning.with_config(config, [row])
    assert row.lr == pytest.approx(loaded.lr)


def test_rounds_are_measured_or_the_most():
  config = hard.get_config()
  config.recipe.updates.in_flight = 2
  assert prices.priced_recipe(config, None) == StepParts(in_flight=True)
  config.recipe.filter.rounds = 3
  assert prices.priced_recipe(config, None).rounds == 3.0
  train = [dict(Bp=2, n=4, rollouts=C) for C in (8, 16, 32, 48)]
  assert prices.priced_recipe(config, train).rounds == 40 / 8 / 3
  cost_model = examples.packed()
  # C pays for 6 rounds: 6 steps, or 3 of two rounds each.
  one = cost_model.run(8, 4, 6)
  two = cost_model.with_recipe(rounds=2.0).run(8, 4, 6)
  assert two.decode == pytest.approx(one.decode)
  assert two.update == pytest.approx(one.update / 2)


def test_an_allocation_costs_what_its_m_costs():
  cost_model = examples.packed()
  kept = prices.cost_of(cost_model, Allocation(8, 4, 40, m=2))
  assert kept.seconds == cost_model.with_recipe(m=2).run(8, 4, 40).seconds
  assert kept.seconds < cost_model.run(8, 4, 40).seconds
