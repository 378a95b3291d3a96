"""Groups that lost verdicts, so that they have fewer than n rollouts."""

import dataclasses
import math

import numpy as np
import pytest

from configs import hard, pods
from isojax.core import allocation
from isojax.rl import algorithm, packing
from isojax.run import experiment
from isojax.run import rollouts as rollouts_lib
from isojax.run import step as step_lib
from isojax.tasks.grader import Graded
from isojax.types import Prompts, Rollouts
from tests.rl.batches import PLAIN


def sampled(judged_B, n_P) -> rollouts_lib.Sampled:
  """Rollouts of three problems; rollout i has i + 1 tokens and is correct."""
  B = len(judged_B)
  tokens = np.zeros((B, B), np.int32)
  return rollouts_lib.Sampled(
      Prompts(np.zeros((3, 5)), np.array([5, 3, 2]), np.arange(3)),
      np.array(n_P), Rollouts(
          tokens, np.arange(1, B + 1), np.ones(B, bool),
          np.zeros(tokens.shape, np.float32), np.ones(B, np.float32)),
      Graded(np.ones(B), np.ones(B), [""] * B, np.array(judged_B, bool),
             np.zeros(B, bool), [{} for _ in range(B)], []), (0.0, 0), 0.0, 0)


def test_rollouts_without_a_verdict_leave_their_group():
  got = rollouts_lib.with_verdicts(sampled([1, 1, 0, 0, 1, 0], [2, 2, 2]))
  assert got.n_P.tolist() == [2, 0, 1]
  assert got.rollouts.len_R.tolist() == [1, 2, 5]
  assert (got.num_lost, got.lost_tokens) == (3, 3 + 4 + 6)


def test_a_problem_without_verdicts_is_in_no_mean():
  one = sampled([1, 1, 1], [2, 0, 1])
  fields = step_lib.rollout_fields(one._replace(graded=dataclasses.replace(
      one.graded, correct_B=np.array([1.0, 0.0, 1.0]),
      parts_B=[{}, {"a": 1.0}, {"a": 0.5}])))
  assert (fields["all_incorrect"], fields["all_correct"]) == (0.0, 0.5)
  assert fields["reward_parts"] == {"a": 0.5}
  assert step_lib.sampling_cost(one) == {
      "rollouts": 3, "prompt_tokens": 10, "sampled_tokens": 6}


def test_pods_keeps_a_share_of_each_group():
  """A quarter, rounded up, of all rollouts; two at least, to compare."""
  alloc = allocation.Allocation(4, 36, 9, m=9)
  n_P = np.array([2, 9, 20, 0, 33])
  m_P = alloc.kept_of(n_P)
  assert m_P.tolist() == [2, 3, 5, 0, 9]
  loss = experiment.load(pods.get_config()).recipe.loss
  reward_PxN, mask_PxN = algorithm.by_problem(np.arange(64) % 3 == 0, n_P)
  groups = algorithm.select_rollouts(
      reward_PxN, mask_PxN, mask_PxN * 0.5, m_P, loss)
  assert groups.selected_PxN.sum(axis=1).tolist() == m_P.tolist()
  assert not (groups.selected_PxN & ~mask_PxN).any()


def expected_update(n_P, p_P, advantage: str, aggregation: str) -> np.ndarray:
  """The expected policy gradient of each problem, as a multiple of dp_i / P.

  Each policy is a softmax over answers of which one is right. With score s of
  the right answer the mean score of a wrong one is -p s / (1 - p), as scores
  have mean 0, and dp = p s. So the sum over the answers' distribution is one
  over the number of right rollouts.
  """
  loss = dataclasses.replace(
      experiment.load(hard.get_config()).recipe.loss, advantage=advantage,
      advantage_eps=0.0, aggregation=aggregation)
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
                                      loss)["policy_weight"])
      score_B = np.where(right_B, 1 / p, -1 / (1 - p))  # over dp
      out[i] += P * math.comb(n, k) * p**k * (1 - p)**(n - k) * (
          factor_B * score_B)[first[i]:first[i] + n].sum()
  return out


P_P = np.array([0.03, 0.1, 0.3, 0.5, 0.9])
N_P = np.array([2, 2, 12, 12, 2])  # rollouts that have a verdict


@pytest.mark.parametrize("aggregation", ["sample_mean", "token_mean",
                                         "prompt_mean", "sample_sum"])
def test_without_a_std_the_expected_update_is_that_of_equal_groups(aggregation):
  np.testing.assert_allclose(
      expected_update(N_P, P_P, "leave_one_out", aggregation), 1.0)
  # A mean that includes the rollout itself: 1 - 1/n of the gradient.
  np.testing.assert_allclose(
      expected_update(N_P, P_P, "centered", aggregation), 1 - 1 / N_P)


def test_the_bias_of_a_std():
  """k right of n add sqrt(k (n - k)) / (n p (1-p)) dp: its mean over k is 1 at
  n = 2, and near 1 / sqrt(p (1-p)) for large n, where p = 0.5 has 2."""
  got = expected_update(N_P, P_P, "group_norm", "sample_mean")
  np.testing.assert_allclose(got, [
      sum(math.comb(n, k) * p**k * (1 - p)**(n - k) * math.sqrt(k * (n - k))
          for k in range(n + 1)) / (n * p * (1 - p))
      for n, p in zip(N_P.tolist(), P_P, strict=True)])
  np.testing.assert_allclose(got[[0, 1, 4]], 1.0)
  assert got[3] == pytest.approx(1.91, abs=0.005)


def test_shapes_do_not_depend_on_what_is_lost():
  """Of groups of 0 to 40; rows have the width of a whole group."""
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
