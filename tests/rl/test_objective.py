"""How a config chooses the functions of the objective and their constants."""

import dataclasses
import math

import numpy as np
import pytest

from configs import grpo as base_config
from isojax.errors import InputError
from isojax.rl import algorithm, selection
from isojax.rl import critic as critic_lib
from isojax.rl.loss_config import LossConfig
from isojax.types import Rollouts

LOSS = LossConfig(**base_config.get_config().recipe.loss.to_dict())
REWARD = np.array([[1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
LENGTH = np.array([[2, 4, 6, 8], [1, 1, 10, 3]])


EVERY = np.ones((2, 4), bool)


def last(reward_PxN, mask_PxN, uniform_PxN, *, m: int):
  """Keeps the last m of each group."""
  del uniform_PxN
  return mask_PxN & (np.arange(4)[None] >= 4 - m)


def groups(selected):
  """The groups of REWARD, of which the rollouts at indices are selected."""
  return algorithm.Groups(REWARD, EVERY, np.array(
      [[i in row for i in range(4)] for row in selected]))


@pytest.mark.parametrize("changes, message", [
    (dict(selection="most"), "expected one of all"),
    (dict(advantage="grpo"), "expected one of group_norm, centered"),
    (dict(aggregation="mean"), "sample_mean, prompt_mean, token_mean"),
    (dict(policy_loss="ppo"), "one of ppo_clip, ppo_dual_clip, cispo"),
    (dict(zero_variance="yes"), "off, policy, regularizers, all"),
    (dict(reduce_dtype="float16"), "float32, bfloat16"),
    (dict(reduce_dtype="bfloat16"), "float32, or recipe.loss.dtype=float32"),
    (dict(head_dtype="bfloat16"), "expected one of None, float32"),
    (dict(clip_low=-0.1), "clip_low=-0.1: expected >= 0"),
    (dict(advantage_ddof=-1), "advantage_ddof=-1: expected >= 0"),
    (dict(microbatch_tokens=0), ">= 1"),
    (dict(prompt_sizes=0), "prompt_sizes=0: expected >= 1"),
    (dict(kl_in="reward", kl_estimator="k1", kl_coef=0.0), "set kl_coef > 0"),
    (dict(aggregation="constant_length"),
     "constants.length is missing: aggregation constant_length takes length"),
    (dict(constants={"length": 16}),
     r"constants.length: no chosen function takes it; .* aggregation "
     r"token_mean \(none\)"),
    (dict(aggregation="constant_length", constants={"length": "16"}),
     "length='16': expected a number"),
    (dict(aggregation="constant_length", constants={"length": 0}),
     "length=0: expected > 0"),
    (dict(policy_loss="cispo", constants={"cap": 0.0}), "cap=0.0: expected >"),
    (dict(policy_loss="cispo", constants={"cap": math.inf}), "cap=inf: expect"),
    (dict(policy_loss="ppo_dual_clip", constants={"dual_clip": 1.0}),
     "expected > 1"),
    (dict(advantage="gae", constants={"gamma": 1.1, "lam": 1.0}),
     "gamma=1.1: expected in"),
    (dict(advantage="gae", constants={"gamma": 1.0, "lam": -0.1}),
     "lam=-0.1: expected in")])
def test_bad_config_is_refused(changes, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(LOSS, **changes)


def test_the_limits_of_a_range():
  dataclasses.replace(LOSS, advantage="gae", constants=dict(gamma=1, lam=0))
  dataclasses.replace(LOSS, kl_in="reward", kl_estimator="k1", kl_coef=0.1)


def test_constants_come_from_fields_and_from_constants():
  cfg = dataclasses.replace(
      LOSS, aggregation="constant_length", constants={"length": 16},
      advantage_eps=0.5, clip_high=0.3)
  assert cfg.function("advantage", ddof=0, eps=0.5).keywords == dict(
      ddof=0, eps=0.5)
  assert cfg.function("aggregation").keywords == dict(length=16)
  cfg = dataclasses.replace(LOSS, policy_loss="ppo_dual_clip",
                            constants={"dual_clip": 3})
  assert cfg.function("policy_loss", clip_low=0.2, clip_high=0.3).keywords == (
      dict(clip_low=0.2, clip_high=0.3, dual_clip=3))


def rollouts():
  """Two groups of four answers, as long as LENGTH."""
  return Rollouts(
      np.zeros((8, 10), np.int32), LENGTH.reshape(-1), np.ones(8, bool),
      np.zeros((8, 10), np.float32), np.zeros(8, np.float32))


@pytest.mark.parametrize("normalise, advantage", [
    ("after", [-0.25, 0.25]), ("before", [-0.375, 0.125])])
def test_only_selected_rollouts_count(monkeypatch, normalise, advantage):
  """Of [1, 0, 0, 1/2] the last two, centred with their mean or that of all."""
  monkeypatch.setitem(selection.SELECTIONS, "last", last)
  cfg = dataclasses.replace(LOSS, selection="last", advantage="centered",
                            zero_variance="policy", normalise=normalise)
  selected = algorithm.select_rollouts(REWARD, EVERY, np.zeros((2, 4)), 2, cfg)
  assert selected.selected_PxN.tolist() == [[False, False, True, True]] * 2
  got = algorithm.advantages(selected, rollouts(), {}, cfg)
  np.testing.assert_array_equal(
      got["advantage"], [0, 0, *advantage, 0, 0, 0, 0])
  got = algorithm.weights(selected, rollouts().mask_RxT, np.arange(2), cfg)
  # 14 tokens of the informative group; 27 of both.
  np.testing.assert_allclose(
      got["policy_weight"], [0, 0, 1 / 14, 1 / 14, 0, 0, 0, 0])
  np.testing.assert_allclose(
      got["regularizer_weight"], [0, 0, 1 / 27, 1 / 27] * 2)
  one = algorithm.weights(selected, rollouts().mask_RxT, np.array([1]), cfg)
  assert not one["policy_weight"].any()
  np.testing.assert_allclose(
      one["regularizer_weight"], [0] * 6 + [1 / 13] * 2)


def test_kl_in_the_reward():
  """A selected rollout loses kl_coef * sum of (old - ref) over its tokens."""
  cfg = dataclasses.replace(LOSS, advantage="centered", kl_coef=0.1,
                            kl_in="reward", kl_estimator="k1")
  selected = groups([[0, 3], [1, 2]])
  scored = {"old_logp": np.full((8, 10), -1.0),
            "ref_logp": np.full((8, 10), -1.5)}
  got = algorithm.advantages(selected, rollouts(), scored, cfg)
  # Rewards 1 - 0.1 * 2 * 0.5 = 0.9 and 0.5 - 0.4 = 0.1; -0.05 and -0.5.
  np.testing.assert_allclose(
      got["advantage"], [0.4, 0, 0, -0.4, 0, 0.225, -0.225, 0])


def test_rollouts_without_a_gradient_are_not_scored():
  """The rewards of group 0 differ; an entropy bonus needs all selected ones."""
  selected = groups([[0, 3], [1, 2]])
  score = lambda cfg: algorithm.to_score(selected, rollouts(), cfg).tolist()
  assert score(LOSS) == [True, False, False, True] + [False] * 4
  assert score(dataclasses.replace(LOSS, entropy_coef=0.1)) == [
      True, False, False, True, False, True, True, False]


def test_rollouts_without_a_weight_are_not_packed():
  columns = {"advantage": [1.0, 1.0, 0.0, 0.0],
             "policy_weight": [0.5, 0.0, 0.5, 0.5],
             "regularizer_weight": [0.0, 0.0, 0.5, 0.0]}
  assert algorithm.used(columns, regularized=False).tolist() == [
      True, False, False, False]
  assert algorithm.used(columns, regularized=True).tolist() == [
      True, False, True, False]


def test_minibatches_hold_each_problem_once_an_epoch():
  parts = [algorithm.minibatches(seed=3, step=5, epoch=epoch, Bp=10, count=3)
           for epoch in range(2)]
  for each in parts:
    assert [len(part) for part in each] == [4, 3, 3]
    assert sorted(np.concatenate(each)) == list(range(10))
  assert any((a != b).any() for a, b in zip(*parts))
  other = algorithm.minibatches(seed=3, step=6, epoch=0, Bp=10, count=3)
  assert any((a != b).any() for a, b in zip(other, parts[0]))
  # Epochs share no random numbers, also not those of a problem 4 further on:
  # Philox draws 4 for each count.
  ranks = [np.argsort(np.concatenate(algorithm.minibatches(
      seed=3, step=5, epoch=epoch, Bp=64, count=64))) for epoch in range(2)]
  assert (np.argsort(ranks[0][4:]) != np.argsort(ranks[1][:60])).any()
  whole, = algorithm.minibatches(seed=3, step=5, epoch=0, Bp=10, count=1)
  assert whole.tolist() == list(range(10))


@pytest.mark.parametrize("loss, updates, names", [
    ({}, (1, 1), ()), ({}, (1, 2), ("old_logp",)), ({}, (2, 1), ("old_logp",)),
    (dict(ratio_to="behavior", importance_cap=None), (2, 2), ()),
    (dict(kl_coef=0.1), (1, 1), ()),
    (dict(kl_coef=0.1, kl_in="reward", kl_estimator="k1"), (1, 1),
     ("old_logp", "ref_logp"))])
def test_what_is_scored_first(loss, updates, names):
  assert algorithm.scored_columns(
      dataclasses.replace(LOSS, **loss),
      algorithm.UpdatesConfig(*updates, 0),
      critic_lib.CriticConfig("none", lr=3e-4, coef=0.5, clip=None)) == names


def test_a_group_is_flat_if_what_its_advantages_compare_is_equal():
  """Of [1, 0, 0, 1/2] two zeros are taken: flat after, informative before."""
  selected, mask = groups([[1, 2], [1, 2]]), rollouts().mask_RxT
  for normalise, flat in (("after", True), ("before", False)):
    cfg = dataclasses.replace(LOSS, zero_variance="policy", normalise=normalise)
    got = algorithm.weights(selected, mask, np.arange(2), cfg)
    assert (got["policy_weight"][1] == 0) == flat
    assert got["policy_weight"][5] == 0


def test_groups_of_several_sizes_by_hand():
  """Rewards 1, 0, 0 | 2, 0 of 5 rollouts; of the first group two are selected.

  Means 1/2 and 1; 3 + 5 and 1 + 7 tokens have a weight.
  """
  mask = np.array([[1, 1, 1], [1, 1, 0]], bool)
  step = algorithm.Groups(
      np.array([[1.0, 0, 0], [2, 0, 9]]), mask,
      np.array([[1, 0, 1], [1, 1, 0]], bool))
  length = np.array([3, 4, 5, 1, 7])
  sampled = Rollouts(np.zeros((5, 8), np.int32), length, np.ones(5, bool),
                     np.zeros((5, 8)), np.zeros(5))
  for normalise, first in (("after", [0.5, 0, -0.5]),
                           ("before", [2 / 3, 0, -1 / 3])):
    cfg = dataclasses.replace(LOSS, advantage="centered", normalise=normalise)
    got = algorithm.advantages(step, sampled, {}, cfg)
    np.testing.assert_allclose(got["advantage"], [*first, 1, -1])
    got = algorithm.weights(step, sampled.mask_RxT, np.arange(2), cfg)
    np.testing.assert_allclose(
        got["policy_weight"], np.array([1, 0, 1, 1, 1]) / 16)
    assert algorithm.to_score(step, sampled, cfg).tolist() == [
        True, False, True, True, True]
  # Returns of the last token, 1 | 0 | 2 | 0, less their mean at every token.
  cfg = dataclasses.replace(LOSS, advantage="reinforce_pp_baseline")
  got = algorithm.advantages(step, sampled, {}, cfg)["return"]
  np.testing.assert_allclose(got, sampled.mask_RxT * np.array(
      [[0.5], [0], [-0.5], [1], [-1]]))


def test_a_selection_that_returns_indices_is_refused(monkeypatch):
  monkeypatch.setitem(selection.SELECTIONS, "first", (
      lambda reward, mask, uniform, *, m: np.tile(np.arange(m), (2, 1))))
  with pytest.raises(InputError, match=r"int64 \(2, 3\); .*bool \(2, 4\)"):
    algorithm.select_rollouts(REWARD, EVERY, EVERY, 3, dataclasses.replace(
        LOSS, selection="first"))
