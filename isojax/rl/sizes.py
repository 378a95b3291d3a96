"""Sizes of the update's programs."""

# Most bytes of float32 logits that a chunked head computes at once: 1,024
# tokens of Qwen2.5's vocabulary of 152,064.
HEAD_BYTES = 594 * 2**20


def head_chunk(vocab: int) -> int:
  """The tokens whose logits a chunked head computes at once."""
  return max(1, HEAD_BYTES // (4 * vocab))
