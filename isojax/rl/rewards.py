"""The text of rollouts, which graders judge, and the reward of their verdicts.

NumPy arithmetic on the host, in float64.
"""

import dataclasses

import numpy as np

from isojax.errors import expect, expect_one_of
from isojax.types import Rollouts

# The rollouts whose reward the overlong penalty lowers: DAPO has "all", ScaleRL
# "correct".
OVERLONG = ("off", "all", "correct")


def texts(tokenizer, rollouts: Rollouts) -> list[str]:
  """The text of each rollout, without the EOS that ended it."""
  length_R = rollouts.len_R - rollouts.ended_R
  return tokenizer.batch_decode(
      [row[:length].tolist()
       for row, length in zip(rollouts.tokens_RxT, length_R, strict=True)],
      skip_special_tokens=False)


def overlong_penalty(length, *, limit: int, cache: int):
  """clip((limit - length) / cache - 1, -1, 0) for lengths in tokens.

  DAPO (arXiv 2503.14476): 0 up to limit - cache tokens, then linear down to -1
  at the limit. A length includes the EOS.
  """
  return np.clip((limit - np.asarray(length, np.float64)) / cache - 1, -1.0,
                 0.0)


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """The reward of a judged rollout; a correct answer has 1."""

  incorrect: float  # reward of other answers: 0.0, or -1.0 for rewards of +-1
  overlong: str  # one of OVERLONG
  # `limit` and `cache` of overlong_penalty, in tokens; None if it is off.
  overlong_max: int | None
  overlong_cache: int | None

  def __post_init__(self):
    expect_one_of("recipe.reward", self, overlong=OVERLONG)
    limit, cache = self.overlong_max, self.overlong_cache
    off, both = self.overlong == "off", None not in (limit, cache)
    expect(
        "recipe.reward", self,
        incorrect=(self.incorrect <= 0, "at most 0; a correct answer has 1"),
        overlong=(not off or (limit is None and cache is None),
                  "all or correct, or no lengths of a penalty; you gave "
                  f"overlong_max={limit}, overlong_cache={cache}"),
        overlong_cache=(off or (both and 0 < cache <= limit),
                        f"0 < overlong_cache <= overlong_max={limit}, in tokens"
                        ))


def shaped(correct_B, formatted_B, len_B, cfg: RewardConfig, *,
           format_coef: float):
  """The reward of each rollout.

  It is cfg.incorrect + (1 - cfg.incorrect) * grade, so 1 for a correct answer
  and cfg.incorrect for a grade of 0; plus format_coef if the answer is in the
  expected place; plus the overlong penalty. Lengths include the EOS.
  """
  correct_B = np.asarray(correct_B, np.float64)
  reward_B = (cfg.incorrect + (1.0 - cfg.incorrect) * correct_B
              + format_coef * formatted_B)
  if cfg.overlong == "off":
    return reward_B
  penalty_B = overlong_penalty(len_B, limit=cfg.overlong_max,
                               cache=cfg.overlong_cache)
  if cfg.overlong == "correct":
    penalty_B = np.where(correct_B == 1.0, penalty_B, 0.0)
  return reward_B + penalty_B


def part_means(parts_B: list[dict]) -> dict[str, float] | None:
  """The mean of each named part of the reward over all answers.

  A part that an answer lacks counts as 0. None if no answer has parts.
  """
  names = dict.fromkeys(name for parts in parts_B for name in parts)
  return {name: sum(parts[name] for parts in parts_B if name in parts)
          / len(parts_B) for name in names} or None
