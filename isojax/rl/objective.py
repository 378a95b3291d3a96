"""The objective of an update: its config, and the terms that it sums.

loss = sum over tokens of policy_weight * importance * policy_loss
                        + regularizer_weight * (kl_coef * KL
                                                - entropy_coef * entropy)

The parts that a config chooses by name are functions of a table in their own
module: SELECTIONS, ADVANTAGES, AGGREGATIONS and POLICY_LOSSES.
"""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np

from isojax.errors import InputError
from isojax.models import attention
from isojax.models import decoder
from isojax.models import precision as precision_lib
from isojax.rl import advantages
from isojax.rl import aggregation
from isojax.rl import losses
from isojax.rl import selection
from isojax.types import Batch

# A field of LossConfig -> the functions that it names.
TABLES = {
    "selection": selection.SELECTIONS,
    "advantage": advantages.ADVANTAGES,
    "aggregation": aggregation.AGGREGATIONS,
    "policy_loss": losses.POLICY_LOSSES,
}


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What is minimised, and in which precision and pieces."""

  selection: str = dataclasses.field(metadata={"neutral": "all"})
  advantage: str = dataclasses.field(metadata={"neutral": "group_norm"})
  aggregation: str
  policy_loss: str = dataclasses.field(metadata={"neutral": "ppo_clip"})
  # Constants of these four functions that have no field of their own.
  constants: dict = dataclasses.field(metadata={"neutral": {}})
  zero_variance: str  # a key of aggregation.ZERO_VARIANCE
  advantage_ddof: int  # of the group's standard deviation
  advantage_eps: float  # added to it
  clip_low: float  # PPO clip; no effect while strictly on-policy
  clip_high: float
  importance_cap: float | None  # of trainer / sampler; None: no weights
  kl_coef: float  # of k3 to the base policy; 0 drops the reference forward
  entropy_coef: float  # of the entropy bonus
  microbatch_tokens: int  # of packed answers with padding; memory, speed only
  remat: bool  # the backward computes the layers again; memory only
  dtype: str  # of weights and activations in the update; masters are float32
  reduce_dtype: str  # in which gradients of weights are summed over devices
  attention: str  # one of attention.CHOICES
  # Of float32 products, one of precision.PRECISIONS.
  precision: str = dataclasses.field(metadata={"neutral": "highest"})

  def __post_init__(self):
    for name, choices in (*TABLES.items(),
                          ("zero_variance", aggregation.ZERO_VARIANCE),
                          ("dtype", decoder.DTYPES),
                          ("reduce_dtype", decoder.DTYPES),
                          ("attention", attention.CHOICES),
                          ("precision", precision_lib.PRECISIONS)):
      if getattr(self, name) not in choices:
        raise InputError(f"loss.{name}={getattr(self, name)!r}: expected one "
                         f"of {', '.join(choices)}")
    _check_constants(self)
    if self.microbatch_tokens < 1:
      raise InputError(
          f"loss.microbatch_tokens={self.microbatch_tokens}: expected >= 1; "
          "fewer than the tokens of one row mean one row")
    if self.reduce_dtype not in ("float32", self.dtype):
      raise InputError(
          f"loss.reduce_dtype={self.reduce_dtype}: expected float32, or "
          f"loss.dtype={self.dtype}, in which the gradients are computed")
    if self.importance_cap is not None and self.importance_cap <= 0:
      raise InputError(f"loss.importance_cap={self.importance_cap}: expected "
                       "> 0, or None for no weights")
    for name in ("kl_coef", "entropy_coef", "clip_low", "clip_high",
                 "advantage_eps"):
      if getattr(self, name) < 0:
        raise InputError(f"loss.{name}={getattr(self, name)}: expected >= 0")

  @property
  def regularized(self) -> bool:
    """Whether KL or entropy bonus is on."""
    return bool(self.kl_coef or self.entropy_coef)


def constant_names(function) -> list[str]:
  """Returns the constants of a function: its keyword-only arguments."""
  return [p.name for p in inspect.signature(function).parameters.values()
          if p.kind is p.KEYWORD_ONLY]


def field_of(kind: str, constant: str) -> str | None:
  """Returns the field of LossConfig that holds a constant, if one does.

  The field is called like the constant, or `advantage_eps` for the constant
  `eps` of an advantage.
  """
  fields = {field.name for field in dataclasses.fields(LossConfig)}
  found = [name for name in (constant, f"{kind}_{constant}") if name in fields]
  return found[0] if found else None


def _check_constants(cfg: LossConfig) -> None:
  """InputError if cfg.constants lacks a constant, or has one without a use."""
  wanted, described = set(), []
  for kind, table in TABLES.items():
    name = getattr(cfg, kind)
    names = constant_names(table[name])
    own = [c for c in names if field_of(kind, c) is None]
    missing = [c for c in own if c not in (*cfg.constants, "m")]
    if missing:
      raise InputError(
          f"loss.constants.{missing[0]} is missing: {kind} {name} takes "
          f"{', '.join(names)}; set it in recipe.loss.constants")
    wanted.update(own)
    described.append(f"{kind} {name} ({', '.join(own) or 'none'})")
  for name, value in cfg.constants.items():
    if name not in wanted:
      raise InputError(
          f"loss.constants.{name}: no chosen function takes it; the constants "
          f"are: {', '.join(described)}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise InputError(f"loss.constants.{name}={value!r}: expected a number")


def chosen(cfg: LossConfig, kind: str):
  """Returns the function that cfg names, with its constants bound.

  Args:
    kind: a key of TABLES.
  """
  function = TABLES[kind][getattr(cfg, kind)]
  bound = {}
  for name in constant_names(function):
    field = field_of(kind, name)
    if field or name in cfg.constants:  # or `m`, which rollout_terms gives
      bound[name] = getattr(cfg, field) if field else cfg.constants[name]
  return functools.partial(function, **bound)


def rollout_terms(reward_Bpxn, len_Bpxn, cfg: LossConfig):
  """Returns advantage, policy weight and regularizer weight of each rollout.

  Selection comes first: the other functions see the kept rollouts alone. All
  three are [Bp, n] in float64, and 0 for rollouts that were not selected.
  """
  select = chosen(cfg, "selection")
  if "m" not in cfg.constants:
    select = functools.partial(select, m=np.shape(reward_Bpxn)[1])
  kept_Bpxm = select(reward_Bpxn, None)
  reward_Bpxm = np.take_along_axis(np.asarray(reward_Bpxn), kept_Bpxm, axis=1)
  len_Bpxm = np.take_along_axis(np.asarray(len_Bpxn), kept_Bpxm, axis=1)
  policy_Bpxm, regularizer_Bpxm = aggregation.token_weights(
      len_Bpxm, reward_Bpxm, aggregate=chosen(cfg, "aggregation"),
      zero_variance=cfg.zero_variance)
  terms = []
  for term_Bpxm in (chosen(cfg, "advantage")(reward_Bpxm), policy_Bpxm,
                    regularizer_Bpxm):
    terms.append(np.zeros(np.shape(reward_Bpxn)))
    np.put_along_axis(terms[-1], kept_Bpxm, term_Bpxm, axis=1)
  return tuple(terms)


def token_loss(logp, ref_logp, entropy, mask, token: Batch, cfg: LossConfig):
  """Returns the loss and sums for the metrics of positions [R, c] of all rows.

  Args:
    logp: of the policy, with gradient.
    ref_logp, entropy: None where their coefficients are 0.
    mask: False for padding.
    token: the arrays of a Batch that have one value per token.
  """
  # Masked before any exp: 0 * inf would be NaN in the backward.
  def masked(x):
    return jnp.where(mask, x, 0.0)

  def total(x):
    return jnp.sum(masked(x))

  logp, behavior_logp = masked(logp), masked(token.behavior_logp_RxW)
  old = jax.lax.stop_gradient(logp)
  policy, bounded = chosen(cfg, "policy_loss")(
      logp, logp - old, token.advantage_RxW)
  if cfg.importance_cap is not None:
    weight, capped = losses.importance(
        old - behavior_logp, cap=cfg.importance_cap)
    policy, bounded = policy * weight, bounded | capped
  value = policy * token.policy_weight_RxW
  sums = {"tokens": jnp.sum(mask, dtype=jnp.float32),
          "logp": total(logp), "logp_gap": total(jnp.abs(old - behavior_logp)),
          "clip_fraction": total(bounded.astype(jnp.float32))}
  if cfg.entropy_coef:
    value -= cfg.entropy_coef * entropy * token.regularizer_weight_RxW
  if cfg.kl_coef:
    kl = losses.k3(logp, masked(ref_logp))
    value += cfg.kl_coef * kl * token.regularizer_weight_RxW
    sums["kl"] = total(kl)
  return total(value), sums | {"loss": total(value)}
