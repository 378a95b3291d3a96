"""Tokens to text at the boundary of a rollout; rewards of marks."""

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.models import tokenizer as tokenizer_lib
from isojax.rl import rewards
from isojax.types import Rollouts


def rollouts(rows, ended):
  length = np.array([len(row) for row in rows], np.int32)
  tokens = np.zeros((len(rows), max(length) + 2), np.int32)
  for out, row in zip(tokens, rows):
    out[:len(row)] = row
  return Rollouts(tokens, length, np.array(ended), None, None)


def test_the_eos_is_left_out_and_nothing_else():
  """Ended by <eos> (1), ended by another id of generation_config, cut off."""
  tokenizer = tokenizer_lib.load("isojax/assets/countdown-tiny")
  five = tokenizer("5*2")["input_ids"]
  plus = tokenizer("+")["input_ids"]
  rows = [[*five, 1], [*five, *plus], five, [1]]
  ended = [True, True, False, True]
  assert rewards.texts(tokenizer, rollouts(rows, ended)) == [
      "5*2", "5*2", "5*2", ""]


def test_a_text_survives_the_way_there_and_back():
  """Spaces at both ends and a token for each character stay as they are."""
  tokenizer = tokenizer_lib.load("isojax/assets/countdown-tiny")
  for text in ("8*(5-2)", " 3 - 2 ", "13-(12-(11-10))", "=:"):
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert rewards.texts(tokenizer, rollouts([[*ids, 1]], [True])) == [text]


CORRECT, FORMATTED = np.array([1.0, 1.0, 0.0, 0.0]), np.array([1., 0., 1., 0.])
LENGTH = np.array([12_500, 14_500, 13_000, 12_000])


def shaped(**changes):
  cfg = rewards.RewardConfig(**dict(
      incorrect=0.0, overlong="off", overlong_max=None, overlong_cache=None
      ) | changes)
  return rewards.shaped(CORRECT, FORMATTED, LENGTH, cfg, format_coef=0.25)


@pytest.mark.parametrize("incorrect, want", [
    (0.0, [1.25, 1.0, 0.25, 0.0]), (-1.0, [1.25, 1.0, -0.75, -1.0])])
def test_an_incorrect_answer_has_0_or_minus_1(incorrect, want):
  assert shaped(incorrect=incorrect).tolist() == want


@pytest.mark.parametrize("overlong, want", [
    ("all", [1.0, 0.0, -0.25, 0.0]), ("correct", [1.0, 0.0, 0.25, 0.0])])
def test_overlong_lowers_all_or_correct_rewards(overlong, want):
  """Limit 14,000 and cache 2,000: penalties .25, 1, .5 and 0."""
  assert shaped(overlong=overlong, overlong_max=14_000, overlong_cache=2_000
                ).tolist() == want


def test_without_shaping_the_reward_keeps_its_bits():
  correct = np.array([0.0, 0.0, 1.0, 1.0] * 3)
  formatted = np.array([0.0, 1.0, 0.0, 1.0] * 3)
  for coef in (0.0, 0.1, 0.3):
    got = rewards.shaped(
        correct, formatted, np.zeros(12),
        rewards.RewardConfig(0.0, "off", None, None), format_coef=coef)
    assert got.tobytes() == (correct + coef * formatted).tobytes()


@pytest.mark.parametrize("changes, message", [
    (dict(overlong="yes"), "'yes': expected one of off, all, correct"),
    (dict(incorrect=0.5), "incorrect=0.5: expected at most 0"),
    (dict(overlong_max=9), "overlong='off': expected all or correct"),
    (dict(overlong="all"), "overlong_cache=None: expected 0 < .*=None"),
    (dict(overlong="all", overlong_max=5, overlong_cache=9), "cache=9: exp")])
def test_a_wrong_reward_is_refused(changes, message):
  with pytest.raises(InputError, match=message):
    shaped(**changes)
