"""Rollouts to text, on the host."""

from isojax.types import Rollouts


def texts(tokenizer, rollouts: Rollouts) -> list[str]:
  """The text of each row, without the EOS that ended it."""
  length_R = rollouts.len_R - rollouts.ended_R
  return tokenizer.batch_decode(
      [row[:length].tolist()
       for row, length in zip(rollouts.tokens_RxT, length_R, strict=True)],
      skip_special_tokens=False)
