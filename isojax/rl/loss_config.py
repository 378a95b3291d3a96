"""The section recipe.loss of a config, and its checks as tables.

A field of FUNCTIONS chooses a function by name. FILE.py:NAME in place of a name
is a function of the user, and the text of its file is part of the run id.
"""

import dataclasses
from dataclasses import field
import functools
import inspect
import math

from isojax.core import custom_function
from isojax.core.identity import LAST_BITS
from isojax.core.memory import MAX_MICROBATCH
from isojax.errors import expect, expect_one_of, InputError
from isojax.models import attention, decoder
from isojax.models import precision as precision_lib
from isojax.rl import advantages, aggregation, custom_check, losses, selection

# A field of LossConfig -> the functions that it names.
FUNCTIONS = {
    "selection": selection.SELECTIONS,
    "advantage": advantages.ADVANTAGES | advantages.TOKEN_ADVANTAGES,
    "aggregation": aggregation.AGGREGATIONS,
    "policy_loss": losses.POLICY_LOSSES,
}
# Constants that callers of `LossConfig.function` give by keyword; the others
# are in LossConfig.constants.
CALLER_CONSTANTS = {
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
    # The ratio's denominator: the trainer before the step's updates, or the
    # sampler's record.
    "ratio_to": ("old", "behavior"),
    # Whether an importance weight is of a token, or of a whole answer.
    "importance_level": ("token", "sequence"),
    "kl_estimator": losses.KL_ESTIMATORS,
    "kl_in": ("loss", "reward"),
    "dtype": decoder.DTYPES,
    "reduce_dtype": decoder.DTYPES,
    "attention": attention.CHOICES,
    "precision": precision_lib.PRECISIONS,
    "head_dtype": (None, *decoder.HEAD_DTYPES),
}
MINIMUM = {
    "microbatch_tokens": 1,
    "prompt_sizes": 1,
    "kl_coef": 0,
    "entropy_coef": 0,
    "clip_low": 0,
    "clip_high": 0,
    "advantage_eps": 0,
    "advantage_ddof": 0,
}
# A constant of the config -> (excluded minimum, maximum, the range in words).
CONSTANT_RANGES = {
    "gamma": (0.0, 1.0, "in (0, 1]; 1 does not discount"),
    "lam": (-math.ulp(0.0), 1.0, "in [0, 1]"),  # the float below 0: allows 0
    "cap": (0.0, math.inf, "> 0, a bound on the ratio itself"),
    "dual_clip": (1.0, math.inf, "> 1, a bound on the ratio"),
    "length": (0.0, math.inf, "> 0, in tokens"),
}
# Fields that depend on each other: field -> (what must hold, what is expected).
CHECKS = {
    "reduce_dtype": (
        lambda cfg: cfg.reduce_dtype in ("float32", cfg.dtype),
        "float32, or recipe.loss.dtype={cfg.dtype}, in which the gradients are "
        "computed"),
    "importance_cap": (
        lambda cfg: cfg.importance_cap is None or cfg.importance_cap > 0,
        "> 0, or None for no weights"),
    "ratio_to": (
        lambda cfg: cfg.ratio_to == "old" or cfg.importance_cap is None,
        "'old' with recipe.loss.importance_cap={cfg.importance_cap}: the ratio "
        "to the sampler already contains trainer / sampler; or set "
        "importance_cap=None"),
    "policy_loss": (
        lambda cfg: cfg.policy_loss != "reinforce" or (
            cfg.ratio, cfg.ratio_to) == ("token", "old"),
        "a loss with a ratio for recipe.loss.ratio={cfg.ratio!r}, ratio_to="
        "{cfg.ratio_to!r}; or set ratio='token', ratio_to='old'"),
    "normalise": (
        lambda cfg: cfg.normalise == "after" or not (
            cfg.has_token_advantages or cfg.kl_in == "reward"),
        "'after' with advantages of tokens or recipe.loss.kl_in='reward', "
        "which only selected rollouts have"),
    "kl_estimator": (
        lambda cfg: cfg.kl_estimator == "k1" or cfg.kl_in == "loss",
        "'k1' with recipe.loss.kl_in='reward': old - ref, whose mean is the "
        "KL"),
    "kl_in": (
        lambda cfg: cfg.kl_coef > 0 or cfg.kl_in == "loss",
        "'loss' with recipe.loss.kl_coef=0: there is no KL to subtract; or set "
        "kl_coef > 0"),
}


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """The loss, its precision, and the memory that it takes."""

  selection: str  # of FUNCTIONS, or FILE.py:NAME, as the next three
  advantage: str
  aggregation: str
  policy_loss: str
  normalise: str  # of CHOICES, as the next two
  ratio: str
  ratio_to: str
  constants: dict  # of the first four functions, but for CALLER_CONSTANTS
  zero_variance: str  # a key of aggregation.ZERO_VARIANCE
  advantage_ddof: int  # of the standard deviation that divides the advantage
  advantage_eps: float  # added to it
  clip_low: float  # PPO clip; no effect while strictly on-policy
  clip_high: float
  importance_cap: float | None  # of weights trainer / sampler; None: no weights
  importance_level: str  # of CHOICES
  kl_coef: float  # of the KL to the base policy; 0 drops its forward pass
  kl_estimator: str  # of CHOICES
  kl_in: str  # of CHOICES
  entropy_coef: float  # of the entropy bonus
  # Tokens of a microbatch's rows, with padding. LAST_BITS: changes rounding
  # alone, not the run id.
  microbatch_tokens: int = field(metadata=LAST_BITS)
  # Number of lengths of prompt slots: S, S / 2, ...; each compiles programs.
  prompt_sizes: int = field(metadata=LAST_BITS)
  # The backward computes the layers again, to save memory.
  remat: bool = field(metadata=LAST_BITS)
  # Of weights and activations in the update; the trained weights are float32.
  dtype: str
  reduce_dtype: str  # in which gradients of weights are summed over devices
  attention: str = field(metadata=LAST_BITS)  # one of attention.CHOICES
  precision: str  # of float32 products, one of precision.PRECISIONS
  head_dtype: str | None  # of the LM head, or None for `dtype`

  def __post_init__(self):
    # A key of FUNCTIONS -> the user's function, if the config names one. Not a
    # field of the dataclass: fields are the keys of recipe.loss.
    object.__setattr__(self, "custom", {
        kind: custom_check.read(kind, getattr(self, kind), next(iter(
            functions.values()))) for kind, functions in FUNCTIONS.items()
        if names_file(getattr(self, kind))})
    expect_one_of("recipe.loss", self, **CHOICES)
    expect_one_of("recipe.loss", self, ", or FILE.py:FUNCTION", **{
        kind: FUNCTIONS[kind] for kind in FUNCTIONS if kind not in self.custom})
    expect("recipe.loss", self, **{
        name: (getattr(self, name) >= minimum, f">= {minimum}")
        for name, minimum in MINIMUM.items()})
    expect("recipe.loss", self, microbatch_tokens=(
        self.microbatch_tokens <= MAX_MICROBATCH,
        f"at most {MAX_MICROBATCH:,} tokens, which are in memory at once"))
    _check_constants(self)
    for kind in self.custom:
      self._try_custom(kind)
    expect("recipe.loss", self, **{
        name: (holds(self), expected.format(cfg=self))
        for name, (holds, expected) in CHECKS.items()})

  def _try_custom(self, kind: str) -> None:
    examples = dict(m=2, ddof=self.advantage_ddof, eps=self.advantage_eps,
                    clip_low=self.clip_low, clip_high=self.clip_high)
    custom_check.check(kind, self.custom[kind], self._bound(kind, **{
        name: examples[name] for name in CALLER_CONSTANTS[kind]}))

  def unbound(self, kind: str):
    """The chosen function of a key of FUNCTIONS: ours, or the user's own."""
    if kind in self.custom:
      return custom_function.load(**self.custom[kind])
    return FUNCTIONS[kind][getattr(self, kind)]

  def function(self, kind: str, **caller_constants):
    """The chosen function of a key of FUNCTIONS, with its constants bound.

    `caller_constants` are its CALLER_CONSTANTS; the function gets only those
    that it takes. What a function of the user's returns is checked, see
    custom_check.Checked.
    """
    function = self._bound(kind, **caller_constants)
    return function if kind not in self.custom else custom_check.Checked(
        kind, self.custom[kind], function)

  def _bound(self, kind: str, **caller_constants):
    function, constants = self.unbound(kind), self.constants | caller_constants
    return functools.partial(function, **{
        name: constants[name] for name in constant_names(function)})

  @property
  def has_token_advantages(self) -> bool:
    """Whether the advantage is one number per token, not per rollout."""
    return self.advantage in advantages.TOKEN_ADVANTAGES

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


def names_file(name: str) -> bool:
  """Whether a function is named as FILE.py:FUNCTION, not by a table's key."""
  return name.partition(":")[0].endswith(".py")


def constant_names(function) -> list[str]:
  """The constants of a function: its keyword-only arguments."""
  return [p.name for p in inspect.signature(function).parameters.values()
          if p.kind is p.KEYWORD_ONLY]


def _check_constants(cfg: LossConfig) -> None:
  """InputError if a constant is missing, unused or out of its range."""
  used, described = set(), []
  for kind in FUNCTIONS:
    names = [name for name in constant_names(cfg.unbound(kind))
             if name not in CALLER_CONSTANTS[kind]]
    missing = [name for name in names if name not in cfg.constants]
    if missing:
      raise InputError(
          f"recipe.loss.constants.{missing[0]} is missing: {kind} "
          f"{getattr(cfg, kind)} takes {', '.join(names)}; set it, such as "
          f"--config.recipe.loss.constants=\"{{'{missing[0]}': 1.0}}\"")
    used.update(names)
    described.append(
        f"{kind} {getattr(cfg, kind)} ({', '.join(names) or 'none'})")
  for name, value in cfg.constants.items():
    if name not in used:
      raise InputError(
          f"recipe.loss.constants.{name}: no chosen function takes it; the "
          f"constants are: {', '.join(described)}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise InputError(
          f"recipe.loss.constants.{name}={value!r}: expected a number")
    low, high, expected = (
        CONSTANT_RANGES[name] if name in CONSTANT_RANGES
        else (-math.inf, math.inf, "a finite number"))
    if not (low < value <= high and math.isfinite(value)):
      raise InputError(
          f"recipe.loss.constants.{name}={value}: expected {expected}")
