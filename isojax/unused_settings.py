"""Refuses settings of a recipe that change nothing, when a run is new.

A run that exists is resumed with whatever it has begun with.
"""

from isojax.errors import InputError
from isojax.experiment import Experiment
from isojax.rl import objective
from isojax.rl.objective import LossConfig

# Values in configs/base.py, at which a setting is not one of the user's.
CONSTANTS = {"advantage_ddof": 0, "advantage_eps": 1e-6, "clip_low": 0.2,
             "clip_high": 0.2}
CRITIC = {"lr": 3e-4, "coef": 0.5, "clip": None}
KL_ESTIMATOR, NORMALISE, LEVEL = "k3", "after", "token"
RATIO, RATIO_TO = "token", "old"


def _constants(cfg: LossConfig):
  """Yields (setting, why) of constants that no chosen function takes."""
  used = {objective.field_of(kind, name) for kind in objective.TABLES
          for name in objective.constant_names(
              objective.function_of(cfg, kind))}
  for name, value in CONSTANTS.items():
    if name not in used and getattr(cfg, name) != value:
      kind = "policy_loss" if name.startswith("clip") else "advantage"
      yield (f"recipe.loss.{name}", getattr(cfg, name), value,
             f"recipe.loss.{kind}={getattr(cfg, kind)!r} does not take it")


def found(e: Experiment):
  """Yields (setting, its value, the value of configs/base.py, why) of each."""
  cfg, critic = e.recipe.loss, e.recipe.critic
  yield from _constants(cfg)
  fields = {"none": ("lr", "coef", "clip"), "own": ("coef",), "shared": ()}
  for name in fields[critic.kind]:
    if getattr(critic, name) != CRITIC[name]:
      yield (f"recipe.critic.{name}", getattr(critic, name), CRITIC[name],
             f"recipe.critic.kind={critic.kind!r}")
  if e.alloc.m is None:
    why = "alloc.m=None keeps all n rollouts"
    if cfg.selection != "all":
      yield "recipe.loss.selection", cfg.selection, "all", why
    if cfg.normalise != NORMALISE:
      yield "recipe.loss.normalise", cfg.normalise, NORMALISE, why
  if not cfg.kl_coef and cfg.kl_estimator != KL_ESTIMATOR:
    yield ("recipe.loss.kl_estimator", cfg.kl_estimator, KL_ESTIMATOR,
           "recipe.loss.kl_coef=0")
  if cfg.kl_coef and cfg.kl_in == "loss" and cfg.kl_estimator == "k1":
    yield ("recipe.loss.kl_estimator", "k1", KL_ESTIMATOR,
           "as a term of the loss, k1 has a gradient of mean 0")
  if cfg.policy_loss == "reinforce":  # without a ratio
    why = "recipe.loss.policy_loss='reinforce' has no ratio"
    if cfg.ratio != RATIO:
      yield "recipe.loss.ratio", cfg.ratio, RATIO, why
    if cfg.ratio_to != RATIO_TO:
      yield "recipe.loss.ratio_to", cfg.ratio_to, RATIO_TO, why
  if cfg.zero_variance == "regularizers" and not (
      cfg.regularized or critic.kind != "none"):
    yield ("recipe.loss.zero_variance", cfg.zero_variance, "off",
           "there is no KL in the loss, entropy bonus or critic")
  if cfg.importance_cap is None and cfg.importance_level != LEVEL:
    yield ("recipe.loss.importance_level", cfg.importance_level, LEVEL,
           "recipe.loss.importance_cap=None")


def check(e: Experiment) -> None:
  """Raises InputError for the first setting without effect."""
  for name, value, base, why in found(e):
    raise InputError(f"{name}={value!r} has no effect: {why}; set it to "
                     f"{base!r}, or change what makes it void")
