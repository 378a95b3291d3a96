"""The weight of each rollout's tokens in the loss.

NumPy arithmetic on the host, in float64. The loss is the sum over all tokens of
weight * term. The division by the whole batch happens here and nowhere else, so
microbatches and devices cannot change it.

An aggregation is a pure function of lengths and of the rollouts that count,
[P, N] each: problem, rollout. A length is the number of tokens in the loss. An
aggregation returns the weight of every token of a rollout, [P, N], which is 0
for rollouts that do not count, such as padding. A rollout without a token in
the loss does not count either, and a group without a rollout that counts leaves
the mean over groups (as in verl). Keyword-only arguments are constants of the
config (docs/extending.md).
"""

import numpy as np


def sample_mean(len_PxN, keep_PxN):
  """Weights for the mean over rollouts of their token mean (GRPO)."""
  counted_PxN = keep_PxN & (len_PxN > 0)
  return counted_PxN / np.maximum(len_PxN, 1) / np.maximum(
      counted_PxN.sum(), 1)


def prompt_mean(len_PxN, keep_PxN):
  """Weights for the mean over groups of their token mean (ScaleRL)."""
  tokens_Px1 = (len_PxN * keep_PxN).sum(axis=1, keepdims=True)
  return (keep_PxN & (len_PxN > 0)) / np.maximum(tokens_Px1, 1) / np.maximum(
      (tokens_Px1 > 0).sum(), 1)


def token_mean(len_PxN, keep_PxN):
  """Weights for the mean over all tokens of the update (DAPO, verl)."""
  tokens = (len_PxN * keep_PxN).sum()
  return (keep_PxN & (len_PxN > 0)) / np.maximum(tokens, 1)


def constant_length(len_PxN, keep_PxN, *, length: int):
  """Weights for the mean of token sums / length (Dr. GRPO).

  Args:
    length: tokens; fixed for a run, such as sampler.max_new_tokens.
  """
  return sample_sum(len_PxN, keep_PxN) / length


def sample_sum(len_PxN, keep_PxN):
  """Weights for the mean over rollouts of their token sum."""
  counted_PxN = keep_PxN & (len_PxN > 0)
  return counted_PxN / np.maximum(counted_PxN.sum(), 1)


AGGREGATIONS = {
    "sample_mean": sample_mean,
    "prompt_mean": prompt_mean,
    "token_mean": token_mean,
    "constant_length": constant_length,
    "sample_sum": sample_sum,
}

# The terms that drop groups of equal rewards: (policy, KL and entropy).
# A dropped group leaves the numerator and the denominator of the term.
ZERO_VARIANCE = {
    "off": (False, False),
    "policy": (True, False),
    "regularizers": (False, True),
    "all": (True, True),
}


def token_weights(len_PxN, mask_PxN, informative_P, *, aggregate,
                  zero_variance: str):
  """Token weights of the policy term, and of KL and entropy: [P, N] each.

  The weights are all 0 if every group was dropped.

  Args:
    len_PxN: tokens of each rollout that are in the loss.
    mask_PxN: bool, False for padding.
    informative_P: bool, groups whose rewards differ.
    aggregate: a function of AGGREGATIONS with its constants bound.
    zero_variance: a key of ZERO_VARIANCE.
  """
  mask_PxN = np.asarray(mask_PxN, bool)
  informative_PxN = mask_PxN & np.asarray(informative_P)[:, None]
  return tuple(
      aggregate(np.asarray(len_PxN, np.float64),
                informative_PxN if drop else mask_PxN)
      for drop in ZERO_VARIANCE[zero_variance])
