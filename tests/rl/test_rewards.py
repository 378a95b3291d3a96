"""Tokens to text at the boundary of a rollout."""

import numpy as np

from isojax.models import hf_tokenizer
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
  tokenizer = hf_tokenizer.load("isojax/assets/countdown-tiny")
  five = tokenizer("5*2")["input_ids"]
  plus = tokenizer("+")["input_ids"]
  rows = [[*five, 1], [*five, *plus], five, [1]]
  assert rewards.texts(tokenizer, rollouts(rows, [True, True, False, True])) == [
      "5*2", "5*2", "5*2", ""]


def test_a_text_survives_the_way_there_and_back():
  """Spaces at both ends and a token for each character stay as they are."""
  tokenizer = hf_tokenizer.load("isojax/assets/countdown-tiny")
  for text in ("8*(5-2)", " 3 - 2 ", "13-(12-(11-10))", "=:"):
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert rewards.texts(tokenizer, rollouts([[*ids, 1]], [True])) == [text]
