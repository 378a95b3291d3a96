"""The weight of each rollout's tokens in the loss.

NumPy arithmetic on the host, in float64. The loss is the sum over all tokens of
weight * term. The division by the whole batch happens here and nowhere else, so
microbatches and devices cannot change it.

An aggregation is a pure function of lengths and of the shares of rollouts,
[P, N] each: problem, rollout. A length is the number of tokens in the loss. A
share says how much a rollout counts: 1 in an update of problems with equally
many rollouts, 0 for padding and dropped groups. It returns the weight of every
token of a rollout, [P, N]. A rollout without a token in the loss does not
count, and a group without a rollout that counts leaves the mean over groups (as
in verl). Keyword-only arguments are constants of the config.
"""

import numpy as np


def sample_mean(len_PxN, share_PxN):
  """Weights for the mean over rollouts of their token mean (GRPO)."""
  counted_PxN = share_PxN * (len_PxN > 0)
  return counted_PxN / np.maximum(len_PxN, 1) / np.maximum(
      counted_PxN.sum(), 1)


def prompt_mean(len_PxN, share_PxN):
  """Weights for the mean over groups of their token mean (ScaleRL)."""
  tokens_Px1 = (len_PxN * share_PxN).sum(axis=1, keepdims=True)
  return share_PxN * (len_PxN > 0) / np.maximum(tokens_Px1, 1) / np.maximum(
      (tokens_Px1 > 0).sum(), 1)


def token_mean(len_PxN, share_PxN):
  """Weights for the mean over all tokens of the update (DAPO, verl)."""
  tokens = (len_PxN * share_PxN).sum()
  return share_PxN * (len_PxN > 0) / np.maximum(tokens, 1)


def constant_length(len_PxN, share_PxN, *, length: int):
  """Weights for the mean over rollouts of token sum / length (Dr. GRPO)."""
  return sample_sum(len_PxN, share_PxN) / length


def sample_sum(len_PxN, share_PxN):
  """Weights for the mean over rollouts of their token sum."""
  counted_PxN = share_PxN * (len_PxN > 0)
  return counted_PxN / np.maximum(counted_PxN.sum(), 1)


AGGREGATIONS = {
    "sample_mean": sample_mean,
    "prompt_mean": prompt_mean,
    "token_mean": token_mean,
    "constant_length": constant_length,
    "sample_sum": sample_sum,
}

# Whether terms drop groups of equal rewards: (policy; KL, entropy and value).
# A dropped group leaves the numerator and the denominator of the term.
ZERO_VARIANCE = {
    "off": (False, False),
    "policy": (True, False),
    "regularizers": (False, True),
    "all": (True, True),
}


def shares(mask_PxN) -> np.ndarray:
  """How much each rollout counts in an update, [P, N].

  All problems count alike, also one that lost verdicts: a rollout counts the
  mean number of rollouts per problem, divided by its problem's own number.
  """
  mask_PxN = np.asarray(mask_PxN, bool)
  n_Px1 = mask_PxN.sum(axis=1, keepdims=True)
  if not n_Px1.any():
    return mask_PxN * 1.0
  return mask_PxN * (n_Px1[n_Px1 > 0].mean() / np.maximum(n_Px1, 1))


def token_weights(len_PxN, share_PxN, informative_P, *, aggregate,
                  zero_variance: str):
  """Token weights of the policy term, and of the other terms: [P, N] each.

  The weights are all 0 if every group was dropped. `aggregate` is a function of
  AGGREGATIONS with its constants bound.
  """
  informative_share_PxN = share_PxN * np.asarray(informative_P)[:, None]
  return tuple(
      aggregate(np.asarray(len_PxN, np.float64),
                informative_share_PxN if drop else share_PxN)
      for drop in ZERO_VARIANCE[zero_variance])
