"""The host's part of a step: which rollouts are trained on, with which columns.

A step calls `select_rollouts`, `to_score` (if a column is scored),
`advantages`, and then `weights` for each update.

NumPy arithmetic, in float64. P problems have at most N rollouts each, of which
at most M are selected. Padding has mask False. A rollout that was not selected
has advantage and weights 0, and packing leaves it out.

  [B] rollouts, problem-major   [P, N] by problem   [P, M] selected, no gaps
           |------- by_problem ------->|-- _Selected.gather -->|
           |<------ [mask_PxN] --------|<- _Selected.scatter --|

Values of tokens have a last axis T.

The columns of a Batch, one number per token, by what makes them:

  update.assemble
    behavior_logp       log-prob of the sampler, at its temperature
  advantages
    advantage
    return              target of the critic
  weights
    policy_weight       of the token in the policy term
    regularizer_weight  of the token in the KL, entropy and value terms
  update.make_score, a forward pass each, if the recipe needs them
    old_logp            log-prob of the policy before the step's updates
    ref_logp            log-prob of the base policy
    value               of the critic before the step's updates
  objective.whole_answer_columns, in the update, if the recipe needs them
    sequence_log_ratio, sequence_gap
"""

import dataclasses
import typing

import numpy as np

from isojax.errors import expect, InputError
from isojax.rl import advantages as advantages_lib
from isojax.rl import aggregation
from isojax.rl.critic import CriticConfig
from isojax.rl.loss_config import LossConfig
from isojax.runtime import rng
from isojax.types import Rollouts

MAX_STALENESS = 1024  # steps, whose rollouts are in memory at once


@dataclasses.dataclass(frozen=True)
class UpdatesConfig:
  """How many updates a step makes of its rollouts, and how old these may be."""

  epochs: int
  minibatches: int
  in_flight: int  # most steps that a token may be old; see sampling.flight

  def __post_init__(self):
    expect("recipe.updates", self, epochs=(self.epochs >= 1, "at least 1"),
           minibatches=(self.minibatches >= 1, "at least 1"),
           in_flight=(0 <= self.in_flight <= MAX_STALENESS,
                      f"the largest staleness in steps, at most {MAX_STALENESS}"
                      ", or 0 for none"))

  @property
  def count(self) -> int:
    """The updates of a step."""
    return self.epochs * self.minibatches


def scored_columns(loss: LossConfig, updates: UpdatesConfig,
                   critic: CriticConfig) -> tuple[str, ...]:
  """The columns that a forward pass computes before the updates.

  A step's first update computes `old_logp` itself, so it is scored only before
  several updates, or for a KL in the reward.
  """
  needed = {
      "old_logp": loss.kl_in_reward or (
          updates.count > 1 and loss.ratio_to == "old"),
      "ref_logp": loss.kl_in_reward, "value": critic.kind != "none"}
  return tuple(name for name, is_needed in needed.items() if is_needed)


def forward_passes(names: tuple[str, ...], critic: CriticConfig) -> int:
  """The number of forward passes that score these columns.

  A shared critic's values come from the hidden states of `old_logp`.
  """
  return len(names) - (critic.kind == "shared" and "old_logp" in names)


class Groups(typing.NamedTuple):
  """The rewards of a step by problem. N is the largest group."""

  reward_PxN: np.ndarray
  mask_PxN: np.ndarray  # bool, False for padding behind a smaller group
  selected_PxN: np.ndarray  # bool, by the config's selection


def by_problem(value_B, n_P) -> tuple[np.ndarray, np.ndarray]:
  """Values of rollouts as [P, N], and the mask, which is False for padding."""
  n_P = np.asarray(n_P)
  mask_PxN = np.arange(n_P.max()) < n_P[:, None]
  return _placed(value_B, mask_PxN), mask_PxN


def _placed(value_B, mask_PxN) -> np.ndarray:
  """Values [B, ...] where the mask is True, [P, N, ...]; 0 elsewhere."""
  value_PxN = np.zeros((*mask_PxN.shape, *value_B.shape[1:]), value_B.dtype)
  value_PxN[mask_PxN] = value_B
  return value_PxN


def select_rollouts(reward_PxN, mask_PxN, uniform_PxN, m,
                    cfg: LossConfig) -> Groups:
  """Selects the rollouts to train on, by the config's selection.

  m is one number or one for each group. Groups of equal m are selected in one
  call. InputError if the selection returns another shape or dtype, or more than
  m rollouts of a group.
  """
  reward_PxN, mask_PxN = np.asarray(reward_PxN), np.asarray(mask_PxN)
  m_P, selected_PxN = np.broadcast_to(m, len(mask_PxN)), np.zeros_like(mask_PxN)
  for size in np.unique(m_P[m_P > 0]).tolist():
    same_m_P = m_P == size
    selected = np.asarray(cfg.function("selection", m=size)(
        reward_PxN[same_m_P], mask_PxN[same_m_P], uniform_PxN[same_m_P]))
    if selected.shape != mask_PxN[same_m_P].shape or selected.dtype != bool:
      raise InputError(
          f"recipe.loss.selection={cfg.selection}: returned {selected.dtype} "
          f"{selected.shape}; expected the rollouts to keep, bool "
          f"{mask_PxN[same_m_P].shape}")
    kept = selected & mask_PxN[same_m_P]
    if (most := kept.sum(axis=1).max()) > size:
      raise InputError(
          f"recipe.loss.selection={cfg.selection}: keeps {most} rollouts of a "
          f"problem; expected at most m={size}, also of equal rewards (without "
          "alloc.m, m is n)")
    selected_PxN[same_m_P] = kept
  return Groups(reward_PxN, mask_PxN, selected_PxN)


class _Selected:
  """Moves the selected rollouts of each group to its front, [P, N] to [P, M].

  M is the largest number of a group; `mask_PxM` is False for padding.
  """

  def __init__(self, selected_PxN):
    self.selected_PxN = selected_PxN
    M = selected_PxN.sum(axis=1).max(initial=0)
    self.index_PxM = np.argsort(~selected_PxN, axis=1, kind="stable")[:, :M]
    self.mask_PxM = self.gather(selected_PxN)

  def gather(self, value_PxN) -> np.ndarray:
    """Values of the selected rollouts, [P, M, ...]."""
    return value_PxN[np.arange(len(value_PxN))[:, None], self.index_PxM]

  def scatter(self, value_PxM) -> np.ndarray:
    """Values of all rollouts, [P, N, ...]; 0 where not selected."""
    return _placed(np.asarray(value_PxM)[self.mask_PxM], self.selected_PxN)


def to_score(groups: Groups, rollouts: Rollouts, cfg: LossConfig) -> np.ndarray:
  """The rollouts that need scored columns: bool [B].

  If the rewards alone decide which rollouts can have a gradient, only these
  are scored.
  """
  selected_B = groups.selected_PxN[groups.mask_PxN]
  if cfg.regularized or cfg.kl_in_reward or cfg.has_token_advantages:
    return selected_B
  return selected_B & (advantages(groups, rollouts, {}, cfg)["advantage"] != 0)


def advantages(groups: Groups, rollouts: Rollouts, scored: dict,
               cfg: LossConfig) -> dict[str, np.ndarray]:
  """The advantages; 0 for rollouts that were not selected.

  With kl_in="reward" the KL penalty is taken from the rewards here.

  They are {"advantage": [B]}, or {"advantage": [B, T], "return": [B, T]} if
  they are per token. `scored` has the columns of `scored_columns`, [B, T] each.
  """
  reward_PxN, mask_PxN, selected_PxN = groups
  advantage = cfg.function("advantage", ddof=cfg.advantage_ddof,
                           eps=cfg.advantage_eps)
  if cfg.normalise == "before":
    all_PxN = advantage(reward_PxN, mask_PxN)
    return {"advantage": np.where(selected_PxN, all_PxN, 0.0)[mask_PxN]}

  selected = _Selected(selected_PxN)
  reward_PxM = selected.gather(reward_PxN)

  def gathered(value_BxT):
    return selected.gather(_placed(value_BxT, mask_PxN))

  def scattered(value_PxM):
    return selected.scatter(value_PxM)[mask_PxN]

  per_token = cfg.has_token_advantages
  if per_token or cfg.kl_in_reward:  # else there are no arrays of tokens
    mask_PxMxT = gathered(rollouts.mask_RxT) & selected.mask_PxM[..., None]
    zeros_PxMxT = penalty_PxMxT = np.zeros(mask_PxMxT.shape)
  if cfg.kl_in_reward:
    penalty_PxMxT = np.where(mask_PxMxT, cfg.kl_coef * np.float64(
        gathered(scored["old_logp"]) - gathered(scored["ref_logp"])), 0.0)
  if not per_token:
    if cfg.kl_in_reward:
      reward_PxM = reward_PxM - penalty_PxMxT.sum(axis=-1)
    return {"advantage": scattered(advantage(reward_PxM, selected.mask_PxM))}
  value_PxMxT = gathered(scored["value"]) if "value" in scored else zeros_PxMxT
  pair = advantage(advantages_lib.token_rewards(
      reward_PxM, penalty_PxMxT, mask_PxMxT), value_PxMxT, mask_PxMxT)
  return {name: scattered(value)
          for name, value in zip(("advantage", "return"), pair, strict=True)}


def weights(groups: Groups, mask_BxT, problems,
            cfg: LossConfig) -> dict[str, np.ndarray]:
  """The weights of each rollout's tokens in an update, [B] each.

  They are 0 outside `problems`, the indices of the update's problems.
  """
  length_PxN = _placed(np.asarray(mask_BxT).sum(axis=1), groups.mask_PxN)
  reward_PxN, mask_PxN, selected_PxN = (x[problems] for x in groups)
  selected = _Selected(selected_PxN)
  # From rewards before a KL is subtracted, which would make equal ones differ.
  informative_P = advantages_lib.informative(
      reward_PxN, mask_PxN if cfg.normalise == "before" else selected_PxN)
  pair = aggregation.token_weights(
      selected.gather(length_PxN[problems]),
      aggregation.shares(selected.mask_PxM), informative_P,
      aggregate=cfg.function("aggregation"), zero_variance=cfg.zero_variance)
  out = {}
  for name, value in zip(("policy_weight", "regularizer_weight"), pair,
                         strict=True):
    all_PxN = np.zeros(groups.mask_PxN.shape)
    all_PxN[problems] = selected.scatter(value)
    out[name] = all_PxN[groups.mask_PxN]
  return out


def single_update_columns(reward_PxN, rollouts: Rollouts,
                          cfg: LossConfig) -> dict:
  """The columns of one update on all rollouts, equally many of each problem."""
  mask_PxN = np.ones(np.shape(reward_PxN), bool)
  groups = Groups(np.asarray(reward_PxN), mask_PxN, selected_PxN=mask_PxN)
  return {**advantages(groups, rollouts, {}, cfg),
          **weights(groups, rollouts.mask_RxT, np.arange(len(mask_PxN)), cfg)}


def used(columns: dict, *, regularized: bool) -> np.ndarray:
  """Which rollouts have a gradient: bool [B].

  Their advantage and policy weight are not 0; or `regularized` (the loss has a
  KL, entropy or value term) and their regularizer weight is not 0.
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
  """The problems of each update of an epoch, ascending.

  A pure function: each epoch cuts another permutation into `count` parts of
  nearly equal size. With one part the problems keep their order.
  """
  bits = rng.words(rng.Draw.MINIBATCHES, seed, step, Bp, at=(epoch, 0))
  return [np.sort(part) for part in np.array_split(
      np.argsort(bits, kind="stable"), count)]
