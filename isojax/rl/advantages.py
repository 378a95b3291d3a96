"""Advantages of rollouts and of tokens from rewards.

NumPy arithmetic on the host, in float64. Keyword-only arguments are constants
of the config (docs/api.md).

ADVANTAGES are pure functions of rewards and of a mask, [P, N] each: problem,
rollout. N is the largest group; the mask is False for padding behind a smaller
one. They return one advantage for each rollout, [P, N]. A group of equal
rewards, such as a group of one, gets exactly 0: no gradient of the policy loss.

TOKEN_ADVANTAGES are pure functions of rewards (see `token_rewards`), values and
masks of tokens, [P, N, T] each: problem, rollout, token. They return advantages
and returns, [P, N, T] each. The mask is False for padding and for tokens that
the policy did not draw: an estimator ignores their reward and value, and their
advantage and return are 0. Without a critic all values are 0.
"""

import numpy as np


def informative(reward_PxN, mask_PxN):
  """Whether the rewards of each group differ, by however little: bool [P]."""
  reward, mask = np.asarray(reward_PxN), np.asarray(mask_PxN, bool)
  first = np.take_along_axis(reward, mask.argmax(axis=1)[:, None], axis=1)
  return ((reward != first) & mask).any(axis=1)


def centered(reward_PxN, mask_PxN):
  """r - mean of the group (Dr. GRPO, arXiv 2503.20783)."""
  reward, mask = np.asarray(reward_PxN, np.float64), np.asarray(mask_PxN, bool)
  differs = informative(reward, mask)[:, None]  # else 0: the mean may round
  return np.where(mask & differs, reward - _group_mean(reward, mask), 0.0)


def leave_one_out(reward_PxN, mask_PxN):
  """r - mean of the other rewards of the group (RLOO, arXiv 2402.14740)."""
  n_Px1 = _count(mask_PxN)
  return centered(reward_PxN, mask_PxN) * (n_Px1 / np.maximum(n_Px1 - 1, 1))


def group_norm(reward_PxN, mask_PxN, *, ddof: int, eps: float):
  """(r - mean) / (std + eps) within each group (GRPO, arXiv 2402.03300).

  ddof = 1, as in verl and TRL, multiplies the result by sqrt((n - 1) / n): 0.71
  at n = 2, 0.94 at n = 8. A sweep over n would then also change the step size.
  """
  reward, mask = np.asarray(reward_PxN, np.float64), np.asarray(mask_PxN, bool)
  n_Px1 = _count(mask)
  deviation = np.where(mask, reward - _group_mean(reward, mask), 0.0)
  std = np.sqrt((deviation**2).sum(axis=1, keepdims=True)
                / np.maximum(n_Px1 - ddof, 1))
  scaled = centered(reward, mask) / np.where(std > 0, std + eps, 1.0)
  return np.where(n_Px1 > ddof, scaled, 0.0)


def _count(mask_PxN):
  return np.asarray(mask_PxN).sum(axis=1, keepdims=True)


def _group_mean(reward_PxN, mask_PxN):
  total_Px1 = np.where(mask_PxN, reward_PxN, 0.0).sum(axis=1, keepdims=True)
  return total_Px1 / np.maximum(_count(mask_PxN), 1)


def _scaled(centered_PxN, values, *, ddof: int, eps: float):
  """Centred rewards / (std of the values + eps)."""
  if values.size <= ddof:
    return np.zeros_like(centered_PxN)
  std = values.std(ddof=ddof)
  return centered_PxN / (std + eps if std > 0 else 1.0)


def batch_norm_centered(reward_PxN, mask_PxN, *, ddof: int, eps: float):
  """(r - mean of the group) / (std of all these differences + eps).

  As in ScaleRL (arXiv 2510.13786), which leaves ddof open. Groups of equal
  rewards count in the standard deviation with their zeros.
  """
  difference = centered(reward_PxN, mask_PxN)
  return _scaled(difference, difference[mask_PxN], ddof=ddof, eps=eps)


def batch_norm_informative(reward_PxN, mask_PxN, *, ddof: int, eps: float):
  """batch_norm_centered with a std over informative groups alone.

  TRL's form of ScaleRL: groups of equal rewards are dropped before the standard
  deviation, so it does not shrink as problems are solved.
  """
  difference = centered(reward_PxN, mask_PxN)
  differs = informative(reward_PxN, mask_PxN)[:, None]
  return _scaled(difference, difference[mask_PxN & differs], ddof=ddof, eps=eps)


def batch_norm_raw(reward_PxN, mask_PxN, *, ddof: int, eps: float):
  """(r - mean of the group) / (std of all rewards + eps).

  TRL's scale_rewards="batch" (there ddof = 1, eps = 1e-4). The spread between
  groups counts in the standard deviation.
  """
  rewards = np.asarray(reward_PxN, np.float64)[mask_PxN]
  return _scaled(centered(reward_PxN, mask_PxN), rewards, ddof=ddof, eps=eps)


ADVANTAGES = {
    "group_norm": group_norm,
    "centered": centered,
    "leave_one_out": leave_one_out,
    "batch_norm_centered": batch_norm_centered,
    "batch_norm_informative": batch_norm_informative,
    "batch_norm_raw": batch_norm_raw,
}


def token_rewards(reward_PxN, penalty_PxNxT, mask_PxNxT):
  """The rollout's reward at its last token in the mask, minus token penalties.

  The penalty is kl_coef * KL with recipe.loss.kl_in="reward", else 0. Outside
  the mask the result is 0.
  """
  mask = np.asarray(mask_PxNxT, bool)
  # The sum counts the mask's tokens from each token to the end.
  last = mask & (np.cumsum(mask[..., ::-1], axis=-1)[..., ::-1] == 1)
  return (np.where(last, np.asarray(reward_PxN, np.float64)[..., None], 0.0)
          - np.where(mask, penalty_PxNxT, 0.0))


def whitened(x, mask, *, ddof: int, eps: float):
  """(x - mean) / sqrt(variance + eps) over all tokens of the mask.

  Other tokens get 0; all do if the mask has at most ddof tokens, or its values
  are equal. verl has ddof = 1 and eps = 1e-8; older TRL has ddof = 0.
  """
  mask = np.asarray(mask, bool)
  if mask.sum() <= ddof:
    return np.zeros(mask.shape)
  x = np.asarray(x, np.float64)
  values = x[mask]
  # Exactly 0: the mean may round, and eps = 0 would give 0 / 0.
  if (values == values[0]).all():
    return np.zeros(mask.shape)
  return np.where(
      mask, (x - values.mean()) / np.sqrt(values.var(ddof=ddof) + eps), 0.0)


def reinforce_pp(reward_PxNxT, value_PxNxT, mask_PxNxT, *, gamma: float,
                 ddof: int, eps: float):
  """REINFORCE++ (arXiv 2501.03262): (advantages, returns).

  Whitened returns, and the returns G_t = reward_t + gamma G_{t+1}.
  """
  returns, _ = gae(reward_PxNxT, np.zeros_like(value_PxNxT), mask_PxNxT,
                   gamma=gamma, lam=1.0)
  return whitened(returns, mask_PxNxT, ddof=ddof, eps=eps), returns


def reinforce_pp_baseline(reward_PxNxT, value_PxNxT, mask_PxNxT, *,
                          ddof: int, eps: float):
  """REINFORCE++-baseline as in verl: (advantages, returns).

  Whitened group-centred rewards, and the same before whitening: each token of a
  rollout has the sum of the rollout's rewards minus the mean of the group.
  Whitening is over tokens, so long rollouts weigh more in its mean, and a group
  of equal rewards usually gets an advantage other than 0. If every group has
  equal rewards, all advantages are 0.
  """
  del value_PxNxT
  mask = np.asarray(mask_PxNxT, bool)
  reward_PxN = np.where(mask, reward_PxNxT, 0.0).sum(axis=-1)
  difference_PxN = centered(reward_PxN, mask.any(axis=-1))
  returns = np.where(mask, difference_PxN[..., None], 0.0)
  return whitened(returns, mask, ddof=ddof, eps=eps), returns


def gae(reward_PxNxT, value_PxNxT, mask_PxNxT, *, gamma: float, lam: float):
  """Generalised advantage estimation, arXiv 1506.02438: (advantages, returns).

  delta_t = reward_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1},
  return = A + V. V and A after the last token are 0. A token outside the mask
  passes V_{t+1} and A_{t+1} on, as in verl.
  """
  mask_PxNxT = np.asarray(mask_PxNxT, bool)
  next_value = np.zeros(mask_PxNxT.shape[:-1])
  next_advantage = np.zeros(mask_PxNxT.shape[:-1])
  advantage = np.zeros(mask_PxNxT.shape)
  reward_PxNxT = np.asarray(reward_PxNxT, np.float64)
  value_PxNxT = np.asarray(value_PxNxT, np.float64)
  for t in reversed(range(mask_PxNxT.shape[-1])):
    value, mask = value_PxNxT[..., t], mask_PxNxT[..., t]
    delta = reward_PxNxT[..., t] + gamma * next_value - value
    next_advantage = np.where(mask, delta + gamma * lam * next_advantage,
                              next_advantage)
    next_value = np.where(mask, value, next_value)
    advantage[..., t] = np.where(mask, next_advantage, 0.0)
  return advantage, np.where(mask_PxNxT, advantage + value_PxNxT, 0.0)


def gae_whitened(reward_PxNxT, value_PxNxT, mask_PxNxT, *, gamma: float,
                 lam: float, ddof: int, eps: float):
  """Whitened advantages of `gae`, and returns from before whitening."""
  advantage, returns = gae(reward_PxNxT, value_PxNxT, mask_PxNxT,
                           gamma=gamma, lam=lam)
  return whitened(advantage, mask_PxNxT, ddof=ddof, eps=eps), returns


TOKEN_ADVANTAGES = {
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae": gae,
    "gae_whitened": gae_whitened,
}
# Names of advantages, for the checks of a config in run/experiment.py.
# Advantages that use the values, which a critic estimates:
READS_VALUES = ("gae", "gae_whitened")
# Advantages that compare the rollouts of a group, so a group of one gets 0:
NEEDS_GROUP = (*ADVANTAGES, "reinforce_pp_baseline")
# Advantages divided by a std over all rollouts or tokens of a step:
NORMALISED_OVER_STEP = (
    "batch_norm_centered", "batch_norm_informative", "batch_norm_raw",
    "reinforce_pp", "reinforce_pp_baseline", "gae_whitened")
