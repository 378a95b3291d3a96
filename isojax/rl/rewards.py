"""The text of rollouts, which judges turn into rewards."""

from isojax.types import Rollouts


def texts(tokenizer, rollouts: Rollouts) -> list[str]:
  """Returns the text of each rollout, without the EOS that ended it."""
  length_R = rollouts.len_R - rollouts.ended_R
  return tokenizer.batch_decode(
      [row[:length].tolist()
       for row, length in zip(rollouts.tokens_RxT, length_R, strict=True)],
      skip_special_tokens=False)
