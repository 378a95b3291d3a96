"""The objective of an update: its config, and the terms that it sums.

loss = sum over tokens of policy_weight * importance * policy_loss
                        + regularizer_weight * (kl_coef * KL
                                                - entropy_coef * entropy)

The parts that a config chooses by name are functions of TABLES. FILE.py:NAME in
place of a name is a function of the user's own, whose text is part of the run
id.
"""

import dataclasses
from dataclasses import field
import functools
import inspect
import math

import jax
import jax.numpy as jnp

from isojax.core import custom_function
from isojax.core.identity import LAST_BITS
from isojax.errors import expect, expect_one_of, InputError
from isojax.models import attention, auto_dtype, decoder
from isojax.models import precision as precision_lib
from isojax.rl import advantages, aggregation, custom_check, losses, selection
from isojax.types import Batch

# A field of LossConfig -> the functions that it names.
TABLES = {
    "selection": selection.SELECTIONS,
    "advantage": advantages.ADVANTAGES | advantages.TOKEN_ADVANTAGES,
    "aggregation": aggregation.AGGREGATIONS,
    "policy_loss": losses.POLICY_LOSSES,
}
# Constants that callers of `LossConfig.function` give by keyword; the others
# are in LossConfig.constants.
GIVEN = {
    "selection": ("m",),
    "advantage": ("ddof", "eps"),
    "aggregation": (),
    "policy_loss": ("clip_low", "clip_high"),
}

CHOICES = {
    "zero_variance": aggregation.ZERO_VARIANCE,
    # Whether advantages are computed after or before the selection.
    "normalise": ("after", "before"),
    # What a probability ratio compares: a token, or an answer's mean (GSPO).
    "ratio": ("token", "sequence"),
    # Its denominator: the trainer before the step's updates, or the sampler's
    # record.
    "ratio_to": ("old", "behavior"),
    "importance_level": ("token", "sequence"),
    "kl_estimator": losses.KL_ESTIMATORS,
    "kl_in": ("loss", "reward"),
    "dtype": auto_dtype.CHOICES,
    "reduce_dtype": decoder.DTYPES,
    "attention": attention.CHOICES,
    "precision": precision_lib.PRECISIONS,
    "head_dtype": (None, *decoder.HEAD_DTYPES),
}
LEAST = {"microbatch_tokens": 1, "prompt_sizes": 1, "kl_coef": 0,
         "entropy_coef": 0, "clip_low": 0, "clip_high": 0, "advantage_eps": 0,
         "advantage_ddof": 0}
# Of constants in the config: above, up to, and both in words.
RANGES = {
    "gamma": (0.0, 1.0, "in (0, 1]; 1 does not discount"),
    "lam": (-math.ulp(0.0), 1.0, "in [0, 1]"),
    "cap": (0.0, math.inf, "> 0, a bound on the ratio itself"),
    "dual_clip": (1.0, math.inf, "> 1, a bound on the ratio"),
    "length": (0.0, math.inf, "> 0, in tokens"),
}


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What is minimised, and in which precision and pieces."""

  selection: str  # of TABLES, or FILE.py:NAME, as the next three
  advantage: str
  aggregation: str
  policy_loss: str
  normalise: str  # of CHOICES, as the next two
  ratio: str
  ratio_to: str
  constants: dict  # of these four functions; without those of GIVEN
  zero_variance: str  # a key of aggregation.ZERO_VARIANCE
  advantage_ddof: int  # of the group's standard deviation
  advantage_eps: float  # added to it
  clip_low: float  # PPO clip; no effect while strictly on-policy
  clip_high: float
  importance_cap: float | None  # of trainer / sampler; None: no weights
  importance_level: str  # of CHOICES
  kl_coef: float  # of the KL to the base policy; 0 drops its forward pass
  kl_estimator: str  # of CHOICES
  kl_in: str  # of CHOICES
  entropy_coef: float  # of the entropy bonus
  # Of packed answers with padding.
  microbatch_tokens: int = field(metadata=LAST_BITS)
  # Of prompt slots: S, S / 2, ...; each compiles programs.
  prompt_sizes: int = field(metadata=LAST_BITS)
  # The backward computes the layers again, to save memory.
  remat: bool = field(metadata=LAST_BITS)
  # Of weights and activations in the update, whose masters are float32; a run
  # replaces auto_dtype.AUTO.
  dtype: str
  reduce_dtype: str  # in which gradients of weights are summed over devices
  attention: str = field(metadata=LAST_BITS)  # one of attention.CHOICES
  precision: str  # of float32 products, one of precision.PRECISIONS
  head_dtype: str | None  # of the head, of decoder.HEAD_DTYPES; None: dtype

  def __post_init__(self):
    # custom_function.read of each, once. Not a field: the config has the names.
    object.__setattr__(self, "own", {
        kind: _own(kind, getattr(self, kind)) for kind in TABLES
        if getattr(self, kind).partition(":")[0].endswith(".py")})
    expect_one_of("loss", self, **CHOICES, **{
        kind: TABLES[kind] for kind in TABLES if kind not in self.own})
    expect("loss", self, **{
        name: (getattr(self, name) >= least, f">= {least}")
        for name, least in LEAST.items()})
    _check_constants(self)
    for kind, own in self.own.items():
      custom_check.check(kind, own, self.function(kind, **{
          name: value for name, value in (
              ("m", 2), ("ddof", self.advantage_ddof),
              ("eps", self.advantage_eps), ("clip_low", self.clip_low),
              ("clip_high", self.clip_high)) if name in GIVEN[kind]}))
    cap, in_reward = self.importance_cap, self.kl_in == "reward"
    before = self.normalise == "before"
    of_tokens = self.advantage in advantages.TOKEN_ADVANTAGES
    expect(
        "loss", self,
        reduce_dtype=(
            self.reduce_dtype in ("float32", self.dtype),
            f"float32, or loss.dtype={self.dtype}, in which the gradients are "
            "computed"),
        importance_cap=(cap is None or cap > 0, "> 0, or None for no weights"),
        ratio_to=(
            self.ratio_to == "old" or cap is None,
            f"'old' with loss.importance_cap={cap}: the ratio to the sampler "
            "already contains trainer / sampler; or set importance_cap=None"),
        normalise=(
            not (before and (of_tokens or in_reward)),
            "'after' with advantages of tokens or loss.kl_in='reward', which "
            "only kept rollouts have"),
        kl_estimator=(
            self.kl_estimator == "k1" or not in_reward,
            "'k1' with loss.kl_in='reward': old - ref, whose mean is the KL"),
        kl_in=(
            bool(self.kl_coef) or not in_reward,
            "'loss' with loss.kl_coef=0: there is no KL to subtract; or set "
            "kl_coef > 0"))

  def unbound(self, kind: str):
    """The function of a kind of TABLES, of a table or of the user's file."""
    if kind in self.own:
      return custom_function.function(**self.own[kind])
    return TABLES[kind][getattr(self, kind)]

  def function(self, kind: str, **given):
    """The function of a kind of TABLES with its constants bound.

    Of `given`, constants of GIVEN[kind], those that the function takes.
    """
    function, constants = self.unbound(kind), self.constants | given
    return functools.partial(function, **{
        name: constants[name] for name in constant_names(function)})

  @property
  def regularized(self) -> bool:
    """Whether KL or entropy bonus is a term of the loss."""
    return bool(self.kl_in_loss or self.entropy_coef)

  @property
  def kl_in_loss(self) -> bool:
    """Whether the KL to the base policy is a term of the loss."""
    return bool(self.kl_coef) and self.kl_in == "loss"

  @property
  def kl_in_reward(self) -> bool:
    """Whether the KL to the base policy lowers the rewards."""
    return bool(self.kl_coef) and self.kl_in == "reward"

  @property
  def whole_answers(self) -> bool:
    """Whether the loss of a token depends on the other tokens of its answer."""
    return self.ratio == "sequence" or (
        self.importance_cap is not None and self.importance_level == "sequence")


def _own(kind: str, name: str) -> dict[str, str]:
  own = custom_function.read(f"loss.{kind}", name)
  try:
    function = custom_function.function(**own)
  except InputError as error:
    raise InputError(f"loss.{kind}: {error}; correct the file") from error
  expected, names = (
      [p.name for p in inspect.signature(f).parameters.values()
       if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
      for f in (next(iter(TABLES[kind].values())), function))
  if len(expected) != len(names):
    raise InputError(
        f"loss.{kind}={name}: takes ({', '.join(names)}); expected "
        f"({', '.join(expected)}), and constants as keyword-only arguments")
  return own


def constant_names(function) -> list[str]:
  """The constants of a function: its keyword-only arguments."""
  return [p.name for p in inspect.signature(function).parameters.values()
          if p.kind is p.KEYWORD_ONLY]


def _check_constants(cfg: LossConfig) -> None:
  """InputError if cfg.constants lacks a constant, or has one without a use."""
  used, described = set(), []
  for kind in TABLES:
    names = [name for name in constant_names(cfg.unbound(kind))
             if name not in GIVEN[kind]]
    missing = [name for name in names if name not in cfg.constants]
    if missing:
      raise InputError(
          f"loss.constants.{missing[0]} is missing: {kind} "
          f"{getattr(cfg, kind)} takes {', '.join(names)}; set it, such as "
          f"--config.recipe.loss.constants=\"{{'{missing[0]}': 1.0}}\"")
    used.update(names)
    described.append(
        f"{kind} {getattr(cfg, kind)} ({', '.join(names) or 'none'})")
  for name, value in cfg.constants.items():
    if name not in used:
      raise InputError(
          f"loss.constants.{name}: no chosen function takes it; the constants "
          f"are: {', '.join(described)}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise InputError(f"loss.constants.{name}={value!r}: expected a number")
    low, high, expected = RANGES[name] if name in RANGES else (
        -math.inf, math.inf, "a finite number")
    if not (low < value <= high and math.isfinite(value)):
      raise InputError(f"loss.constants.{name}={value}: expected {expected}")


def whole_answer_columns(logp, batch: Batch, cfg: LossConfig) -> dict:
  """The columns that sum over the tokens of an answer, [R, W] each."""
  logp = jnp.where(batch.mask_RxW, logp, 0.0)
  old, behavior = old_and_behavior(logp, batch.mask_RxW, batch.columns, cfg)
  columns = {}
  if cfg.ratio == "sequence":
    columns["sequence_log_ratio"] = losses.sequence_log_ratio(
        logp, old, batch.offset_RxW, batch.mask_RxW)
  if cfg.importance_cap is not None and cfg.importance_level == "sequence":
    columns["sequence_gap"] = losses.answer_sums(
        old - behavior, batch.offset_RxW)
  return columns


def old_and_behavior(logp, mask, columns: dict, cfg: LossConfig):
  """The log-probs of ratios and of importance weights; 0 where masked.

  `old` is the scored column if there is one; without it this is the first
  update since sampling, and `old` is logp itself.
  """
  behavior = jnp.where(mask, columns["behavior_logp"], 0.0)
  if cfg.ratio_to == "behavior":
    return behavior, behavior
  if "old_logp" in columns:
    return jnp.where(mask, columns["old_logp"], 0.0), behavior
  return jax.lax.stop_gradient(logp), behavior


def token_loss(logp, ref_logp, entropy, token: Batch, cfg: LossConfig):
  """The loss and sums for the metrics of positions [R, c] of all rows.

  Args:
    logp: of the policy, with gradient.
    ref_logp, entropy: None where their coefficients are 0.
    token: the arrays of a Batch that have one value per token; its columns
      include those of `whole_answer_columns` if the config needs them.
  """
  mask, columns = token.mask_RxW, token.columns

  # Masked before any exp: 0 * inf would be NaN in the backward.
  def masked(x):
    return jnp.where(mask, x, 0.0)

  def total(x):
    return jnp.sum(masked(x))

  logp = masked(logp)
  old, behavior = old_and_behavior(logp, mask, columns, cfg)
  log_ratio = losses.token_log_ratio(logp, old)
  if cfg.ratio == "sequence":
    log_ratio = columns["sequence_log_ratio"] + (
        logp - jax.lax.stop_gradient(logp))
  policy_loss = cfg.function("policy_loss", clip_low=cfg.clip_low,
                             clip_high=cfg.clip_high)
  policy, bounded = policy_loss(logp, log_ratio, columns["advantage"])
  if cfg.importance_cap is not None:
    gap = (columns["sequence_gap"] if cfg.importance_level == "sequence"
           else old - behavior)
    weight, capped = losses.importance(gap, cap=cfg.importance_cap)
    policy, bounded = policy * weight, bounded | capped
  value = policy * columns["policy_weight"]
  sums = {"tokens": jnp.sum(mask, dtype=jnp.float32),
          "logp": total(logp),
          "logp_gap": total(jnp.abs(jax.lax.stop_gradient(logp) - behavior)),
          "clip_fraction": total(bounded.astype(jnp.float32))}
  if cfg.entropy_coef:
    value -= cfg.entropy_coef * entropy * columns["regularizer_weight"]
  if cfg.kl_in_loss:
    kl = losses.KL_ESTIMATORS[cfg.kl_estimator](logp, masked(ref_logp))
    value += cfg.kl_coef * kl * columns["regularizer_weight"]
    sums["kl"] = total(kl)
  return total(value), sums | {"loss": total(value)}
