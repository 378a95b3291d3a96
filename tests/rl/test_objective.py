"""How a config chooses the functions of the objective and their constants."""

import dataclasses

import numpy as np
import pytest

from configs import base as base_config
from isojax.errors import InputError
from isojax.rl import advantages
from isojax.rl import objective
from isojax.rl import selection

LOSS = objective.LossConfig(**base_config.get_config().recipe.loss.to_dict())
REWARD = np.array([[1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
LENGTH = np.array([[2, 4, 6, 8], [1, 1, 10, 3]])


def first(reward_Bpxn, uniform_Bpxn, *, m: int):
  """Selects the last m, in reverse."""
  del uniform_Bpxn
  n = np.shape(reward_Bpxn)[1]
  return np.tile(np.arange(n - 1, n - 1 - m, -1), (len(reward_Bpxn), 1))


@pytest.mark.parametrize("field, value, message", [
    ("selection", "most", "expected one of all"),
    ("advantage", "grpo", "expected one of group_norm, centered"),
    ("aggregation", "mean", "sample_mean, prompt_mean, token_mean"),
    ("policy_loss", "ppo", "one of ppo_clip, ppo_dual_clip, cispo"),
    ("zero_variance", "yes", "off, policy, regularizers, all"),
    ("reduce_dtype", "float16", "float32, bfloat16"),
    ("reduce_dtype", "bfloat16", "expected float32, or loss.dtype=float32"),
    ("aggregation", "constant_length",
     "constants.length is missing: aggregation constant_length takes length"),
    ("constants", {"length": 16},
     r"constants.length: no chosen function takes it; .* aggregation "
     r"token_mean \(none\)"),
    ("clip_low", -0.1, "clip_low=-0.1: expected >= 0"),
    ("microbatch_tokens", 0, ">= 1")])
def test_bad_config_is_refused(field, value, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(LOSS, **{field: value})


def test_a_constant_is_a_number():
  with pytest.raises(InputError, match="length='16': expected a number"):
    dataclasses.replace(LOSS, aggregation="constant_length",
                        constants={"length": "16"})


def test_constants_come_from_fields_and_from_constants():
  cfg = dataclasses.replace(
      LOSS, aggregation="constant_length", constants={"length": 16},
      advantage_eps=0.5, clip_high=0.3)
  assert objective.chosen(cfg, "advantage").keywords == dict(ddof=0, eps=0.5)
  assert objective.chosen(cfg, "policy_loss").keywords == dict(
      clip_low=0.2, clip_high=0.3)
  assert objective.chosen(cfg, "aggregation").keywords == dict(length=16)
  assert objective.chosen(cfg, "selection").keywords == {}


def test_terms_of_all_rollouts():
  advantage, policy, regularizer = objective.rollout_terms(
      REWARD, LENGTH, LOSS)
  np.testing.assert_array_equal(
      advantage, advantages.group_norm(REWARD, ddof=0, eps=1e-6))
  assert (policy == 1 / 35).all() and (regularizer == 1 / 35).all()


def test_only_selected_rollouts_count(monkeypatch):
  """Of [1, 0, 0, 1/2] the last two: centred they are -1/4 and 1/4."""
  monkeypatch.setitem(selection.SELECTIONS, "first", first)
  cfg = dataclasses.replace(LOSS, selection="first", advantage="centered",
                            zero_variance="policy", constants={"m": 2})
  advantage, policy, regularizer = objective.rollout_terms(REWARD, LENGTH, cfg)
  np.testing.assert_array_equal(advantage, [[0, 0, -0.25, 0.25], [0] * 4])
  # 14 tokens of the informative group; 27 of both.
  np.testing.assert_allclose(policy, [[0, 0, 1 / 14, 1 / 14], [0] * 4])
  np.testing.assert_allclose(regularizer, [[0, 0, 1 / 27, 1 / 27]] * 2)
