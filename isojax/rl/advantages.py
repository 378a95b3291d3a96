"""Rewards [Bp, n] to advantages, and the weight of each row in the loss.

Host arithmetic on small arrays, in float64.
"""

import numpy as np


def group_norm(reward_Bpxn, *, ddof: int, eps: float):
  """(r - mean) / (std + eps) within each group (GRPO, arXiv 2402.03300).

  ddof scales the result by sqrt((n - ddof) / n), so 1 against 0 confounds a
  sweep over n: 41 % at n = 2, 7 % at n = 8. A group of equal rewards gets
  exactly 0.
  """
  reward = np.asarray(reward_Bpxn, np.float64)
  centered = reward - reward.mean(axis=1, keepdims=True)
  std = reward.std(axis=1, ddof=ddof, keepdims=True)
  scaled = centered / np.where(std > 0, std + eps, 1.0)
  return np.where(informative(reward)[:, None], scaled, 0.0)


def informative(reward_Bpxn):
  """Whether a group's rewards differ, by exact equality: bool [Bp]."""
  reward = np.asarray(reward_Bpxn)
  return (reward != reward[:, :1]).any(axis=1)


def sample_mean(len_Bpxn, keep_Bp):
  """Mean over rows of each row's mean over tokens (GRPO)."""
  return keep_Bp[:, None] / np.maximum(len_Bpxn, 1) / np.maximum(
      keep_Bp.sum() * len_Bpxn.shape[1], 1)


def prompt_mean(len_Bpxn, keep_Bp):
  """Mean over problems of the mean over the tokens of their group (ScaleRL)."""
  tokens_Bpx1 = len_Bpxn.sum(axis=1, keepdims=True)
  weight_Bpx1 = keep_Bp[:, None] / np.maximum(tokens_Bpx1, 1) / np.maximum(
      keep_Bp.sum(), 1)
  return np.broadcast_to(weight_Bpx1, len_Bpxn.shape)


def token_mean(len_Bpxn, keep_Bp):
  """Mean over all tokens of the whole update (DAPO, verl)."""
  tokens = (len_Bpxn * keep_Bp[:, None]).sum()
  return np.broadcast_to(keep_Bp[:, None] / np.maximum(tokens, 1),
                         len_Bpxn.shape)


AGGREGATIONS = {
    "sample_mean": sample_mean,
    "prompt_mean": prompt_mean,
    "token_mean": token_mean,
}

# Which terms a zero-variance group is dropped from: (policy, KL and entropy).
# A dropped group leaves the numerator and the denominator of the term.
ZERO_VARIANCE = {
    "off": (False, False),
    "policy": (True, False),
    "regularizers": (False, True),
    "all": (True, True),
}


def row_weights(len_Bpxn, reward_Bpxn, *, aggregation: str, zero_variance: str):
  """The weight of every token of a row, in the policy term and in KL, entropy.

  The loss is the sum over all tokens of weight * term: the division by the
  whole batch is made here and nowhere else, so microbatches and devices can
  not change it.

  Returns:
    policy [Bp, n], regularizers [Bp, n]; each sums to 1 over tokens, or to 0
    if every group was dropped.
  """
  useful_Bp = informative(reward_Bpxn)
  return tuple(
      AGGREGATIONS[aggregation](
          np.asarray(len_Bpxn, np.float64),
          useful_Bp if drop else np.ones_like(useful_Bp))
      for drop in ZERO_VARIANCE[zero_variance])
