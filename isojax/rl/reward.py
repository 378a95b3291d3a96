"""Rollouts to text, and text to reward, on the host."""

import numpy as np

from isojax.tasks.problem import Problem
from isojax.types import Rollouts


def texts(tokenizer, rollouts: Rollouts) -> list[str]:
  """The text of each row, without the EOS that ended it."""
  length_R = rollouts.len_R - rollouts.ended_R
  return tokenizer.batch_decode(
      [row[:length].tolist()
       for row, length in zip(rollouts.tokens_RxT, length_R, strict=True)],
      skip_special_tokens=False)


def score(problems: list[Problem], text_B: list[str], verify) -> np.ndarray:
  """verify(problem, text) of problem-major texts: float64 [problems, n]."""
  n = len(text_B) // len(problems)
  return np.reshape([verify(problems[i // n], text)
                     for i, text in enumerate(text_B)], (-1, n))
