"""The host's part of a step: which rollouts are trained on, and as what.

  rewards -> keep -> (score) -> advantage -> weights -> updates

NumPy arithmetic, in float64. Rollouts are problem-major: rollout b belongs to
problem b // n. A rollout that was not kept has advantage and weights 0, and
packing leaves it out.

The columns of a Batch, one number per token:

  behavior_logp       of the sampler, at its temperature
  advantage
  policy_weight       in the policy term
  regularizer_weight  in the KL and entropy terms
  old_logp            of the trainer at the weights before the step's updates
  ref_logp            of the base policy
  value               of the critic at its weights before the step's updates
  return              that the critic is trained towards

`old_logp`, `ref_logp` and `value` are scored by a forward pass, if the recipe
needs them.
"""

import dataclasses

import numpy as np

from isojax.errors import InputError
from isojax.rl import advantages as advantages_lib
from isojax.rl import aggregation
from isojax.rl import objective
from isojax.rl.critic import CriticConfig
from isojax.rl.objective import LossConfig
from isojax.types import Rollouts


CACHES = ("recompute", "stale")  # of unfinished rollouts, after a step


@dataclasses.dataclass(frozen=True)
class UpdatesConfig:
  """How many updates a step makes of its rollouts, and how old these may be."""

  epochs: int = dataclasses.field(metadata={"neutral": 1})
  minibatches: int = dataclasses.field(metadata={"neutral": 1})
  # Largest staleness of in-flight updates, steps; see sampling.in_flight.
  in_flight: int = dataclasses.field(metadata={"neutral": 0})
  caches: str = dataclasses.field(metadata={"neutral": "recompute"})

  def __post_init__(self):
    for name in ("epochs", "minibatches"):
      if getattr(self, name) < 1:
        raise InputError(f"recipe.updates.{name}={getattr(self, name)}: "
                         "expected at least 1")
    if self.in_flight < 0:
      raise InputError(f"recipe.updates.in_flight={self.in_flight}: expected "
                       "the largest staleness in steps, or 0 for none")
    if self.caches not in CACHES:
      raise InputError(f"recipe.updates.caches={self.caches!r}: expected one "
                       f"of {', '.join(CACHES)}")
    if self.caches == "stale" and not self.in_flight:
      raise InputError("recipe.updates.caches='stale' has no effect with "
                       "recipe.updates.in_flight=0; leave it out")

  @property
  def count(self) -> int:
    """Returns the updates of a step."""
    return self.epochs * self.minibatches


def scored_columns(loss: LossConfig, updates: UpdatesConfig,
                   critic: CriticConfig) -> tuple[str, ...]:
  """Returns the columns that a forward pass computes before the updates.

  With one update per step the trainer's log-probs before it are those of the
  update itself, so `old_logp` is scored for several updates only, or for a KL
  term in the reward.
  """
  old = loss.kl_in_reward or (updates.count > 1 and loss.ratio_to == "old")
  return (("old_logp",) * old + ("ref_logp",) * loss.kl_in_reward
          + ("value",) * (critic.kind != "none"))


def forward_passes(names: tuple[str, ...], critic: CriticConfig) -> int:
  """Returns the forward passes that score these columns.

  A shared critic's values come from the hidden states of `old_logp`.
  """
  return len(names) - (critic.kind == "shared" and "old_logp" in names)


def to_score(reward_Bpxn, kept_Bpxm, rollouts: Rollouts,
             cfg: LossConfig) -> np.ndarray:
  """Returns the rollouts that need scored columns: bool [B].

  Only those that can have a gradient, where their rewards alone decide it.
  """
  n = np.shape(reward_Bpxn)[1]
  kept_B = put(kept_Bpxm, np.ones(np.shape(kept_Bpxm), bool), n).reshape(-1)
  if (cfg.regularized or cfg.kl_in_reward
      or cfg.advantage in advantages_lib.TOKEN_ADVANTAGES):
    return kept_B
  found = advantages(reward_Bpxn, kept_Bpxm, rollouts, {}, cfg)
  return kept_B & (found["advantage"] != 0)


def keep(reward_Bpxn, uniform_Bpxn, m: int, cfg: LossConfig) -> np.ndarray:
  """Returns the indices [Bp, m] of the rollouts to train on, in each group.

  Args:
    reward_Bpxn: of all sampled rollouts.
    uniform_Bpxn: a number in [0, 1) for each rollout.
    m: rollouts to keep of each group.
    cfg: names the selection.
  """
  select = objective.chosen(cfg, "selection")
  return select(np.asarray(reward_Bpxn), uniform_Bpxn, m=m)


def put(kept_Bpxm, value_Bpxm, n: int) -> np.ndarray:
  """Returns values of kept rollouts as values of all, [Bp, n, ...].

  They are 0 for the others.
  """
  value = np.asarray(value_Bpxm)
  out = np.zeros((len(value), n, *value.shape[2:]), value.dtype)
  out[np.arange(len(value))[:, None], kept_Bpxm] = value
  return out


def take(kept_Bpxm, value_Bpxn) -> np.ndarray:
  """Returns the values of kept rollouts, [Bp, m, ...]."""
  value = np.asarray(value_Bpxn)
  return value[np.arange(len(value))[:, None], kept_Bpxm]


def advantages(reward_Bpxn, kept_Bpxm, rollouts: Rollouts, scored: dict,
               cfg: LossConfig) -> dict[str, np.ndarray]:
  """Returns the advantages; 0 for rollouts that were not kept.

  Args:
    reward_Bpxn: of all rollouts.
    kept_Bpxm: the rollouts that are trained on.
    rollouts: of the step, [B, ...].
    scored: the columns of `scored_columns`, [B, T] each.
    cfg: names the advantage.

  Returns:
    {"advantage": [B]}, or {"advantage": [B, T], "return": [B, T]} for those of
    tokens.
  """
  Bp, n = np.shape(reward_Bpxn)
  function = objective.chosen(cfg, "advantage")
  if cfg.normalise == "before":
    return {"advantage": put(kept_Bpxm, take(
        kept_Bpxm, function(reward_Bpxn)), n).reshape(-1)}

  def of_kept(value_BxT):
    return take(kept_Bpxm, value_BxT.reshape(Bp, n, -1))

  reward_Bpxm = take(kept_Bpxm, reward_Bpxn)
  of_rollouts = cfg.advantage not in advantages_lib.TOKEN_ADVANTAGES
  if of_rollouts and not cfg.kl_in_reward:  # without arrays of tokens
    return {"advantage": put(kept_Bpxm, function(reward_Bpxm), n).reshape(-1)}
  mask_BpxmxT = of_kept(rollouts.mask_RxT)
  penalty_BpxmxT = np.zeros(mask_BpxmxT.shape)
  if cfg.kl_in_reward:
    penalty_BpxmxT = np.where(mask_BpxmxT, cfg.kl_coef * np.float64(of_kept(
        scored["old_logp"]) - of_kept(scored["ref_logp"])), 0.0)
  if of_rollouts:
    reward_Bpxm = reward_Bpxm - penalty_BpxmxT.sum(axis=-1)
    return {"advantage": put(kept_Bpxm, function(reward_Bpxm), n).reshape(-1)}
  value_BpxmxT = (of_kept(scored["value"]) if "value" in scored
                  else np.zeros(mask_BpxmxT.shape))
  pair = function(advantages_lib.token_rewards(
      reward_Bpxm, penalty_BpxmxT, mask_BpxmxT), value_BpxmxT, mask_BpxmxT)
  return {name: put(kept_Bpxm, value, n).reshape(Bp * n, -1)
          for name, value in zip(("advantage", "return"), pair, strict=True)}


def weights(reward_Bpxn, kept_Bpxm, mask_BxT, problems,
            cfg: LossConfig) -> dict[str, np.ndarray]:
  """Returns the token weights of an update, [B] each.

  Args:
    reward_Bpxn: of all rollouts.
    kept_Bpxm: the rollouts that are trained on.
    mask_BxT: the tokens in the loss.
    problems: indices of the update's problems; weights are 0 in others.
    cfg: names the aggregation.
  """
  Bp, n = np.shape(reward_Bpxn)
  length_Bpxn = np.asarray(mask_BxT).sum(axis=1).reshape(Bp, n)
  # A group counts as flat if its rewards are equal, without KL in the reward.
  compared = (np.asarray(reward_Bpxn) if cfg.normalise == "before"
              else take(kept_Bpxm, reward_Bpxn))
  each = aggregation.token_weights(
      take(kept_Bpxm, length_Bpxn)[problems], compared[problems],
      aggregate=objective.chosen(cfg, "aggregation"),
      zero_variance=cfg.zero_variance)
  out = {}
  for name, value in zip(("policy_weight", "regularizer_weight"), each,
                         strict=True):
    all_Bpxn = np.zeros((Bp, n))
    all_Bpxn[problems] = put(kept_Bpxm[problems], value, n)
    out[name] = all_Bpxn.reshape(-1)
  return out


def of_all(reward_Bpxn, rollouts: Rollouts, cfg: LossConfig) -> dict:
  """Returns the columns of one update on all rollouts of a step."""
  Bp, n = np.shape(reward_Bpxn)
  kept_Bpxm = np.tile(np.arange(n), (Bp, 1))
  return {**advantages(reward_Bpxn, kept_Bpxm, rollouts, {}, cfg),
          **weights(reward_Bpxn, kept_Bpxm, rollouts.mask_RxT, np.arange(Bp),
                    cfg)}


def used(columns: dict, *, regularized: bool) -> np.ndarray:
  """Returns which rollouts have a gradient: bool [B].

  A rollout has a gradient if its advantage and its policy weight are not 0, or
  if KL or entropy bonus is on and its regularizer weight is not 0. Others, such
  as those of all-wrong groups without KL, are left out.
  """
  advantage = np.asarray(columns["advantage"])
  if advantage.ndim > 1:
    advantage = (advantage != 0).any(axis=1)
  out = (advantage != 0) & (np.asarray(columns["policy_weight"]) > 0)
  if regularized:
    out |= np.asarray(columns["regularizer_weight"]) > 0
  return out


def minibatches(*, seed: int, step: int, epoch: int, Bp: int,
                count: int) -> list[np.ndarray]:
  """Returns the problems of each update of an epoch, ascending.

  A pure function: an epoch cuts a permutation of its own into `count` parts of
  nearly equal size. With one part the problems keep their order.

  Args:
    seed: of the run.
    step: of the run.
    epoch: over the step's rollouts.
    Bp: problems of the step.
    count: updates of the epoch.
  """
  # Not in the first word, which counts up as numbers are drawn: the streams of
  # two epochs would overlap.
  bits = np.random.Philox(key=[seed, step], counter=[0, epoch, 0, 1]).random_raw(
      Bp)
  return [np.sort(part) for part in np.array_split(
      np.argsort(bits, kind="stable"), count)]
