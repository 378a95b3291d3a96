"""The weight of each rollout's tokens in the loss.

NumPy arithmetic on the host, in float64. The loss is the sum over all tokens of
weight * term. The division by the whole batch happens here and nowhere else, so
microbatches and devices cannot change it.

An aggregation is a pure function of lengths [Bp, n] and of the groups that
count [Bp]. It returns the weight of every token of a rollout [Bp, n], which is 0
in other groups. Its keyword-only arguments are constants of the config
(docs/extending.md).
"""

import numpy as np

from isojax.rl import advantages


def sample_mean(len_Bpxn, keep_Bp):
  """Returns weights for the mean over rollouts of their token mean (GRPO)."""
  return keep_Bp[:, None] / np.maximum(len_Bpxn, 1) / np.maximum(
      keep_Bp.sum() * len_Bpxn.shape[1], 1)


def prompt_mean(len_Bpxn, keep_Bp):
  """Returns weights for the mean over groups of their token mean (ScaleRL)."""
  tokens_Bpx1 = len_Bpxn.sum(axis=1, keepdims=True)
  weight_Bpx1 = keep_Bp[:, None] / np.maximum(tokens_Bpx1, 1) / np.maximum(
      keep_Bp.sum(), 1)
  return np.broadcast_to(weight_Bpx1, len_Bpxn.shape)


def token_mean(len_Bpxn, keep_Bp):
  """Returns weights for the mean over all tokens of the update (DAPO, verl)."""
  tokens = (len_Bpxn * keep_Bp[:, None]).sum()
  return np.broadcast_to(keep_Bp[:, None] / np.maximum(tokens, 1),
                         len_Bpxn.shape)


def constant_length(len_Bpxn, keep_Bp, *, length: int):
  """Returns weights for the mean of token sums / length (Dr. GRPO).

  Args:
    length: tokens; fixed for a run, such as sampler.max_new_tokens.
  """
  return sample_sum(len_Bpxn, keep_Bp) / length


def sample_sum(len_Bpxn, keep_Bp):
  """Returns weights for the mean over rollouts of their token sum."""
  rollouts = np.maximum(keep_Bp.sum() * len_Bpxn.shape[1], 1)
  return np.broadcast_to(keep_Bp[:, None] / rollouts, len_Bpxn.shape)


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


def token_weights(len_Bpxn, reward_Bpxn, *, aggregate, zero_variance: str):
  """Returns token weights of the policy term, and of KL and entropy: [Bp, n].

  The weights are all 0 if every group was dropped.

  Args:
    aggregate: a function of AGGREGATIONS with its constants bound.
    zero_variance: a key of ZERO_VARIANCE.
  """
  informative_Bp = advantages.informative(reward_Bpxn)
  return tuple(
      aggregate(np.asarray(len_Bpxn, np.float64),
                informative_Bp if drop else np.ones_like(informative_Bp))
      for drop in ZERO_VARIANCE[zero_variance])
