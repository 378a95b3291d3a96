"""Runs whose steps divide their rollouts by a rule: charging, weights, folds.
"""

import dataclasses
import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from configs import dapo, hard, mixed, pods, scalerl
from isojax.core import allocation, division
from isojax.core.division import RULES
from isojax.errors import InputError
from isojax.rl import algorithm, packing
from isojax.run import experiment, state
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run import step as step_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks.grader import Graded
from isojax.types import Prompts, Rollouts
from tests import few, short_runs
from tests.rl.batches import PLAIN
from tests.short_runs import steps

HIT = division.Division("hit", n_low=2, n_high=64, prior_strength=4.0,
                        forgetting=0.99, objective="problems")
SETUP = {}  # recipe and stratum -> its setup


def setup_of(recipe, stratum: str, rule: str) -> setup_lib.Setup:
  name = recipe.__name__, stratum
  if name not in SETUP:
    config = recipe.get_config()
    config.task.stratum = stratum
    SETUP[name] = setup_lib.prepare(config)
  setup = SETUP[name]
  # Of hard.py with 8 rollouts a problem to pods.py with 64.
  alloc = dataclasses.replace(setup.e.alloc, division=dataclasses.replace(
      HIT, rule=rule, n_high=2 * setup.e.alloc.n))
  return dataclasses.replace(setup, e=dataclasses.replace(
      setup.e, alloc=alloc))


# --- What is charged ---


@pytest.mark.parametrize("recipe", [hard, pods, dapo, scalerl])
@pytest.mark.parametrize("stratum", [few.hard, few.easy, few.mixed])
def test_each_step_of_the_data_order_costs_B(recipe, stratum):
  @settings(max_examples=12, deadline=None)
  @given(st.sampled_from(list(RULES)), st.integers(0, 2**16))
  def check(rule, seed):
    setup, chance = setup_of(recipe, stratum(), rule), np.random.default_rng(
        seed)
    a, n_high = setup.e.alloc, setup.e.alloc.division.n_high
    history = state.History(evidence=state.first_evidence(setup))
    solved_D = chance.random(len(setup.train.id_P)) < 0.1
    for step in range(5):
      index = prompts_lib.order_at(seed=0, step=step, Bp=a.Bp,
                                   solved_D=solved_D)[:a.Bp]
      n_P = state.rollouts_per_problem(setup, history, index, step, a.n)
      assert n_P.sum() == a.Bp * a.n == a.B
      sampled = n_P[n_P > 0]
      assert sampled.min() >= (2 if rule != "uniform" else a.n)
      assert sampled.max() <= n_high
      assert (sampled.size == a.Bp) or rule == "skip"
      right = chance.binomial(n_P, chance.random(len(n_P)) ** 2)
      line = {"kind": "train", "step": step + 1, "rollouts": a.B * (step + 1),
              "solved": None, "groups": np.stack([
                  setup.train.id_P[index], n_P, right],
                  axis=1).tolist(),
              **dict.fromkeys(history.totals, 0)}
      history = history.after(json.loads(json.dumps(line)))

  check()


def test_a_run_spends_B_in_each_step_and_measures_what_it_expected():
  train, before = steps(short_runs.read(short_runs.finished("knapsack"))), 0
  for r in train:
    ids, n_P, right_P = np.array(r["groups"]).T
    assert len(set(ids)) == 4 and n_P.sum() == 24 == r["rollouts"] - before
    before = r["rollouts"]
    assert r["n"] == 6 and r["reward"] == right_P.sum() / 24
    assert r["all_incorrect"] == np.mean(right_P == 0)
    assert r["all_correct"] == np.mean(right_P == n_P)
    assert 0 < r["informative_expected"] < 1
    assert r["selected"] == 24
  assert len({tuple(g[1] for g in r["groups"]) for r in train}) > 2


def test_a_run_that_skips_problems_spends_B_on_the_others():
  train = steps(short_runs.read(short_runs.finished("skip")))
  assert [r["rollouts"] for r in train] == [24 * s for s in range(1, 11)]
  sizes = [[n for _, n, _ in r["groups"]] for r in train]
  assert all(sum(n_P) == 24 and len(n_P) == 4 for n_P in sizes)
  assert sum(0 in n_P for n_P in sizes) > 2
  for r in train:
    kept = [right / n for _, n, right in r["groups"] if n]
    assert r["all_incorrect"] == np.mean(np.array(kept) == 0)


def test_in_flight_a_step_is_charged_the_groups_that_it_hands_over():
  train = steps(short_runs.read(short_runs.finished("knapsack_in_flight")))
  sizes = [sum(n for _, n, _ in r["groups"]) for r in train]
  assert [r["rollouts"] for r in train] == np.cumsum(sizes).tolist()
  assert train[-1]["rollouts"] == 384 and len(train) == 6
  assert set(sizes) != {64} and max(r["staleness_max"] for r in train) > 0


def test_a_problem_without_rollouts_is_in_no_mean():
  tokens = np.zeros((3, 4), np.int32)
  rollouts = Rollouts(tokens, np.array([4, 2, 1]), np.ones(3, bool),
                      np.zeros((3, 4), np.float32), np.ones(3, np.float32))
  graded = Graded(np.array([1.0, 0.0, 1.0]), np.ones(3), [""] * 3,
                  np.ones(3, bool), [{}, {"a": 1.0}, {"a": 0.5}], [])
  fields = step_lib.rollout_fields(rollouts_lib.Sampled(
      Prompts(np.zeros((3, 5)), np.array([5, 3, 2]), np.arange(3)),
      np.array([2, 0, 1]), rollouts, graded, (0.0, 0), 0.0, 0))
  assert (fields["all_incorrect"], fields["all_correct"]) == (0.0, 0.5)
  assert fields["reward_parts"] == {"a": 0.5}
  assert fields["prompt_tokens"] == 7 and fields["sampled"] == 3
  known = division.evidence([7, 8, 9], [0, 0, 16], 16, HIT)
  # One rollout has no other to differ from; Beta(2, 2): 1 - 2 * 3/10.
  known = dataclasses.replace(known, mean_D=np.full(3, 0.5))
  assert known.informative([[7, 2, 0], [8, 0, 0], [9, 1, 0]]) == (
      pytest.approx((1 - 2 * 3 / 10) / 2))


# --- What is known ---


def test_evidence_by_hand():
  """Prior of 4 rollouts at (c + 1/2) / 17; the first visit fades to 1/4."""
  half = dataclasses.replace(HIT, forgetting=0.5)
  known = division.evidence([30, 10, 20], [0, 16, 8], 16, half)
  first = known.posterior(np.arange(3), np.zeros(3))
  np.testing.assert_allclose(first.a_P, [2 / 17, 66 / 17, 2])
  np.testing.assert_allclose(first.a_P + first.b_P, 4)
  for groups in ([[10, 4, 4], [30, 6, 0]], [[20, 2, 1], [10, 0, 0]],
                 [[10, 8, 8], [20, 3, 0]]):
    known = known.after(groups)
  p = known.posterior(np.array([1, 0, 2]), np.zeros(3))
  np.testing.assert_allclose(p.a_P, [66 / 17 + 1 + 8, 2 / 17, 2 + 0.5])
  np.testing.assert_allclose(p.b_P, [2 / 17, 66 / 17 + 1.5, 2 + 0.5 + 3])
  assert p.no_signal_P.tolist() == [2, 1, 1]  # 0 rollouts are no visit
  # In flight a batch can hold a problem twice, of two epochs.
  twice = known.after([[20, 4, 4], [20, 4, 1], [10, 3, 0], [10, 2, 2]])
  np.testing.assert_allclose(twice.correct_D, [0, 4.5 + 2, 0.25 + 5])
  np.testing.assert_allclose(twice.incorrect_D, [0.75, 3, 1.75 + 3])
  assert twice.no_signal_D.tolist() == [1, 4, 0]
  nothing = division.evidence([1], [0], 0, half)
  assert nothing.mean_D == 0.5  # not measured


# --- What is trained on ---


def test_pods_keeps_a_share_of_each_group():
  """A quarter, rounded up, of all rollouts; two at least, to compare."""
  a = allocation.Allocation(4, 16, 9, m=4, division=HIT)
  n_P = np.array([2, 9, 20, 0, 33])
  m_P = a.kept_of(n_P)
  assert m_P.tolist() == [2, 3, 5, 0, 9]
  loss = setup_of(pods, few.mixed(), "hit").e.recipe.loss
  reward_PxN, mask_PxN = algorithm.by_problem(np.arange(64) % 3 == 0, n_P)
  groups = algorithm.keep(reward_PxN, mask_PxN, mask_PxN * 0.5, m_P, loss)
  assert groups.kept_PxN.sum(axis=1).tolist() == m_P.tolist()
  assert not (groups.kept_PxN & ~mask_PxN).any()


def expected_update(n_P, p_P, advantage: str, aggregation: str,
                    objective="problems") -> np.ndarray:
  """The expected policy gradient of each problem, as a multiple of dp_i / P.

  Each policy is a softmax over answers of which one is right. With score s of
  the right answer the mean score of a wrong one is -p s / (1 - p), as scores
  have mean 0, and dp = p s. So the sum over the answers' distribution is one
  over the number of right rollouts.
  """
  loss = setup_of(mixed, few.mixed(), "hit").e.recipe.loss
  loss = dataclasses.replace(loss, advantage=advantage, advantage_eps=0.0,
                             aggregation=aggregation)
  out, P = np.zeros(len(n_P)), len(n_P)
  first = np.cumsum(n_P) - n_P
  rollouts = Rollouts(np.zeros((n_P.sum(), 1), np.int32), np.ones(n_P.sum()),
                      None, None, None)
  for i, (n, p) in enumerate(zip(n_P.tolist(), p_P, strict=True)):
    for k in range(n + 1):
      right_B = np.zeros(n_P.sum())
      right_B[first[i]:first[i] + k] = 1.0
      reward_PxN, mask_PxN = algorithm.by_problem(right_B, n_P)
      groups = algorithm.Groups(reward_PxN, mask_PxN, mask_PxN)
      factor_B = (algorithm.advantages(groups, rollouts, {}, loss)["advantage"]
                  * algorithm.weights(groups, rollouts.mask_RxT, np.arange(P),
                                      loss, objective=objective)
                  ["policy_weight"])
      score_B = np.where(right_B, 1 / p, -1 / (1 - p))  # over dp
      out[i] += P * math.comb(n, k) * p**k * (1 - p)**(n - k) * (
          factor_B * score_B)[first[i]:first[i] + n].sum()
  return out


P_P = np.array([0.03, 0.1, 0.3, 0.5, 0.9])


def divided(rule: str) -> np.ndarray:
  p = division.Posterior(8 * P_P, 8 * (1 - P_P), np.zeros(5), np.zeros(5))
  n_P = RULES[rule](p, 30, division.Bounds(2, 12))
  assert n_P.sum() == 30 and (len(set(n_P)) > 1) == (
      rule not in ("uniform", "skip"))
  return n_P


@pytest.mark.parametrize("aggregation", ["sample_mean", "token_mean",
                                         "prompt_mean", "sample_sum"])
@pytest.mark.parametrize("rule", list(RULES))
def test_without_a_std_the_expected_update_is_that_of_uniform_n(
    rule, aggregation):
  n_P = divided(rule)
  np.testing.assert_allclose(
      expected_update(n_P, P_P, "leave_one_out", aggregation), 1.0)
  # A mean that includes the rollout itself: 1 - 1/n of the gradient.
  np.testing.assert_allclose(
      expected_update(n_P, P_P, "centered", aggregation), 1 - 1 / n_P)


def test_the_bias_of_a_std_and_of_counting_rollouts():
  """k right of n add sqrt(k (n - k)) / (n p (1-p)) dp: its mean over k is 1 at
  n = 2, and near 1 / sqrt(p (1-p)) for large n, where p = 0.5 has 2."""
  n_P = np.array([2, 2, 12, 12, 2])
  got = expected_update(n_P, P_P, "group_norm", "sample_mean")
  np.testing.assert_allclose(got, [
      sum(math.comb(n, k) * p**k * (1 - p)**(n - k) * math.sqrt(k * (n - k))
          for k in range(n + 1)) / (n * p * (1 - p))
      for n, p in zip(n_P.tolist(), P_P, strict=True)])
  np.testing.assert_allclose(got[[0, 1, 4]], 1.0)
  assert got[3] == pytest.approx(1.91, abs=0.005)
  rollouts = expected_update(n_P, P_P, "leave_one_out", "sample_mean",
                             objective="rollouts")
  np.testing.assert_allclose(rollouts, n_P / 6)


def test_shapes_do_not_depend_on_n():
  """Of groups of 2 to 40; rows have the width of the widest group."""
  prompts = Prompts(np.zeros((6, 15)), np.full(6, 9), None)
  cfg = dataclasses.replace(PLAIN, microbatch_tokens=256, prompt_sizes=1)
  chance, shapes = np.random.default_rng(0), set()
  for n_P in ([8] * 6, [2, 2, 2, 2, 3, 37], [0, 12, 9, 9, 9, 9]):
    len_B = chance.integers(1, 4, sum(n_P))
    layouts = packing.layouts(
        prompts, Rollouts(np.zeros((48, 3)), len_B, None, None, None),
        np.ones(48, bool), n=n_P, widest=64, G=1, cfg=cfg)
    shapes |= {(x.W, x.S, len(x.slot_R)) for x in layouts}
    tokens = np.concatenate([x.rollout_N for x in layouts])
    assert np.bincount(tokens).tolist() == len_B.tolist()
    group_B = np.repeat(np.arange(6), n_P)
    for x in layouts:  # a row has the prompt of its answers
      row_N = x.target_N // x.W
      assert (x.problem_P[x.slot_R[row_N]] == group_B[x.rollout_N]).all()
  assert len(shapes) == 1


# --- What is refused ---


@pytest.mark.parametrize("section, said", [
    (dict(alloc=dict(rule="best")), "alloc.rule='best': expected one of unif"),
    (dict(alloc=dict(n_low=9)), "alloc.n_low=9 <= n <= alloc.n_high=64"),
    (dict(alloc=dict(n_low=9, n_high=8)), "expected 1 <= n_low <= n_high"),
    (dict(alloc=dict(prior_strength=0.0)), "prior_strength=0.0: expected > 0"),
    (dict(alloc=dict(forgetting=1.5)), r"expected a weight in \[0, 1\]"),
    (dict(alloc=dict(objective="tokens")), "one of problems, rollouts"),
    (dict(alloc=dict(n_low=1)), "alloc.n_low=1: this recipe compares"),
    (dict(alloc=dict(objective="rollouts"),
          recipe=dict(loss=dict(aggregation="prompt_mean"))),
     "counts problems alike; set objective='problems'"),
    (dict(alloc=dict(rule="skip"), recipe=dict(
        updates=dict(in_flight=2), loss=dict(
            ratio_to="behavior", importance_cap=None))),
     "a batch could be of skipped problems alone; use in_flight=0")])
def test_what_a_config_refuses(section, said):
  config = mixed.get_config()
  config.alloc.rule = "knapsack"
  with config.ignore_type():
    config.update(section)
  with pytest.raises(InputError, match=said):
    experiment.check(experiment.load(config), problems=1024, max_positions=99)


def test_a_rule_of_ones_own(tmp_path):
  path = tmp_path / "rules.py"
  path.write_text("""
import numpy as np
def first(p, B, bounds):
  n_P = np.full(len(p.a_P), bounds.low)
  n_P[0] += B - n_P.sum()
  return n_P
def short(p, B, bounds):
  return first(p, B - 1, bounds)
def broken(p, B, bounds):
  return p.c_P
""")
  p = division.Posterior(*np.ones((4, 3)))
  own = lambda name: dataclasses.replace(
      HIT, rule=f"{path}:{name}", n_high=20).n_of(p, 12)
  assert own("first").tolist() == [8, 2, 2]
  for name, said in (("short", "whose sum is 12"), ("broken", "rules.py:10: A"),
                     ("none", "has no function 'none'")):
    with pytest.raises(InputError, match=said):
      own(name)
  config = mixed.get_config()
  config.alloc.rule = f"{path}:first"
  before = setup_lib.prepare(config).identity["functions_sha256"]
  path.write_text(path.read_text() + "\n")
  assert setup_lib.prepare(config).identity["functions_sha256"] != before
