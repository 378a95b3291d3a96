"""The text of rollouts, which judges mark, and the reward of the marks.

NumPy arithmetic on the host, in float64.
"""

import numpy as np

from isojax.errors import InputError
from isojax.types import Rollouts

# The rollouts whose reward the overlong penalty lowers: DAPO has "all", ScaleRL
# "correct".
OVERLONG = ("off", "all", "correct")


def texts(tokenizer, rollouts: Rollouts) -> list[str]:
  """Returns the text of each rollout, without the EOS that ended it."""
  length_R = rollouts.len_R - rollouts.ended_R
  return tokenizer.batch_decode(
      [row[:length].tolist()
       for row, length in zip(rollouts.tokens_RxT, length_R, strict=True)],
      skip_special_tokens=False)


def overlong_penalty(length, *, limit: int, cache: int):
  """Returns clip((limit - length) / cache - 1, -1, 0) for lengths in tokens.

  DAPO (arXiv 2503.14476): 0 up to limit - cache tokens, then linear down to -1
  at the limit. A length includes the EOS.
  """
  return np.clip((limit - np.asarray(length, np.float64)) / cache - 1, -1.0,
                 0.0)


def shaped(correct_B, formatted_B, len_B, *, wrong: float, format_coef: float,
           overlong: str, overlong_max: int | None, overlong_cache: int | None):
  """Returns the reward of each rollout.

  It is 1 if the answer is right, else `wrong`; plus format_coef if it is in
  the expected place; plus the overlong penalty.

  Args:
    correct_B, formatted_B: 1 or 0.
    len_B: tokens of each rollout, EOS included.
    wrong: reward of a wrong answer, 0 or -1.
    overlong: one of OVERLONG.
    overlong_max, overlong_cache: tokens; `limit` and `cache` of
      overlong_penalty. Not used if overlong is "off".
  """
  if overlong not in OVERLONG:
    raise InputError(f"overlong={overlong!r}: expected one of "
                     f"{', '.join(OVERLONG)}")
  correct_B = np.asarray(correct_B, np.float64)
  reward_B = wrong + (1.0 - wrong) * correct_B + format_coef * formatted_B
  if overlong == "off":
    return reward_B
  penalty_B = overlong_penalty(len_B, limit=overlong_max, cache=overlong_cache)
  if overlong == "correct":
    penalty_B = np.where(correct_B == 1.0, penalty_B, 0.0)
  return reward_B + penalty_B
