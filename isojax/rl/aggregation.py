"""The weight of each rollout's tokens in the loss.

NumPy arithmetic on the host, in float64. The loss is the sum over all tokens of
weight * term. The division by the whole batch happens here and nowhere else, so
microbatches and devices cannot change it.

An aggregation is a pure function of lengths [Bp, n] and of the rollouts that
count [Bp, n]. A length is the number of tokens in the loss. An aggregation
returns the weight of every token of a rollout [Bp, n], which is 0 for rollouts
that do not count. A rollout without a token in the loss does not count either,
and a group without a rollout that counts leaves the mean over groups (as in
verl). Keyword-only arguments are constants of the config (docs/extending.md).
"""

import numpy as np

from isojax.rl import advantages


def sample_mean(len_Bpxn, keep_Bpxn):
  """Returns weights for the mean over rollouts of their token mean (GRPO)."""
  counted_Bpxn = keep_Bpxn & (len_Bpxn > 0)
  return counted_Bpxn / np.maximum(len_Bpxn, 1) / np.maximum(
      counted_Bpxn.sum(), 1)


def prompt_mean(len_Bpxn, keep_Bpxn):
  """Returns weights for the mean over groups of their token mean (ScaleRL)."""
  tokens_Bpx1 = (len_Bpxn * keep_Bpxn).sum(axis=1, keepdims=True)
  return (keep_Bpxn & (len_Bpxn > 0)) / np.maximum(tokens_Bpx1, 1) / np.maximum(
      (tokens_Bpx1 > 0).sum(), 1)


def token_mean(len_Bpxn, keep_Bpxn):
  """Returns weights for the mean over all tokens of the update (DAPO, verl)."""
  tokens = (len_Bpxn * keep_Bpxn).sum()
  return (keep_Bpxn & (len_Bpxn > 0)) / np.maximum(tokens, 1)


def constant_length(len_Bpxn, keep_Bpxn, *, length: int):
  """Returns weights for the mean of token sums / length (Dr. GRPO).

  Args:
    length: tokens; fixed for a run, such as sampler.max_new_tokens.
  """
  return sample_sum(len_Bpxn, keep_Bpxn) / length


def sample_sum(len_Bpxn, keep_Bpxn):
  """Returns weights for the mean over rollouts of their token sum."""
  counted_Bpxn = keep_Bpxn & (len_Bpxn > 0)
  return counted_Bpxn / np.maximum(counted_Bpxn.sum(), 1)


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
    len_Bpxn: tokens of each rollout that are in the loss.
    reward_Bpxn: rewards whose equality makes a group flat; of other rollouts
      than the lengths if advantages compare others.
    aggregate: a function of AGGREGATIONS with its constants bound.
    zero_variance: a key of ZERO_VARIANCE.
  """
  everything_Bpxn = np.ones(np.shape(len_Bpxn), bool)
  informative_Bpxn = (everything_Bpxn
                      & advantages.informative(reward_Bpxn)[:, None])
  return tuple(
      aggregate(np.asarray(len_Bpxn, np.float64),
                informative_Bpxn if drop else everything_Bpxn)
      for drop in ZERO_VARIANCE[zero_variance])
