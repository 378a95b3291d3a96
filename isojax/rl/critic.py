"""The critic of PPO: the value of each state, and its loss (arXiv 1707.06347).

The state of a token is everything before it. Its value is the product of the
hidden state that predicts the token with a value vector of width D. The vector
is 0 at first, so the first step has no baseline. The hidden states are those of

  own     a second decoder, which begins as a copy of the base policy. With
          adapters, it has its own adapters on the same frozen base.
  shared  the policy. The value loss, times `coef`, is added to the policy's.

The value loss of a token is weighted like KL and entropy bonus, as
recipe.loss.aggregation says.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from isojax.errors import expect, expect_one_of
from isojax.models import decoder
from isojax.models import lora as lora_lib
from isojax.rl import head as head_lib
from isojax.rl import losses
from isojax.rl.loss_config import LossConfig
from isojax.runtime import mesh as mesh_lib
from isojax.types import Batch

KINDS = ("none", "shared", "own")


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """Which hidden states give the values, and how the values are trained."""

  kind: str  # one of KINDS, see the module's docstring
  # Base learning rate of the critic's AdamW. The other constants, the warm-up
  # and the square-root rule are those of recipe.optimizer.
  lr: float
  # Factor of the value loss if kind is shared; an own trunk has no other loss.
  coef: float
  # Largest distance of a value from that before the step's updates, in units of
  # reward; None: not clipped.
  clip: float | None

  def __post_init__(self):
    expect_one_of("recipe.critic", self, kind=KINDS)
    expect("recipe.critic", self, lr=(self.lr > 0, "> 0"),
           coef=(self.coef > 0, "> 0"),
           clip=(self.clip is None or self.clip > 0,
                 "> 0, or None for values that are not clipped"))


def abstract_params(model: decoder.Transformer, cfg: CriticConfig, lora):
  """Shapes and shardings of the critic's parameters, float32."""
  value = jax.ShapeDtypeStruct((model.cfg.D,), jnp.float32,
                               sharding=mesh_lib.replicated(model.mesh))
  if cfg.kind == "shared":
    return {"value": value}
  return {"trunk": headless(lora_lib.abstract_trained(model, lora)),
          "value": value}


def headless(params: dict) -> dict:
  """Parameters of a decoder without a separate output head."""
  return {name: x for name, x in params.items() if name != "head"}


def init_params(model: decoder.Transformer, cfg: CriticConfig, trunk) -> dict:
  """The parameters of step 0; `trunk` holds those of an own trunk."""
  value = jax.device_put(jnp.zeros(model.cfg.D, jnp.float32),
                         mesh_lib.replicated(model.mesh))
  if cfg.kind == "shared":
    return {"value": value}
  return {"trunk": headless(trunk), "value": value}


@jax.named_scope("value")
def values(hidden_RxWxD, value_D):
  """The value of the state of each token: float32 [R, W]."""
  return jnp.einsum("rwd,d->rw", hidden_RxWxD.astype(jnp.float32), value_D,
                    precision=jax.lax.Precision.HIGHEST)


def term(hidden_RxWxD, value_D, batch: Batch, clip: float | None):
  """(weighted sum of the value loss, sums for the metrics)."""
  columns = batch.columns
  loss, _ = losses.value_loss(
      values(hidden_RxWxD, value_D), columns["value"], columns["return"],
      clip=math.inf if clip is None else clip)
  loss = jnp.where(batch.mask_RxW, loss, 0.0)
  return jnp.sum(loss * columns["regularizer_weight"]), {
      "value_loss": jnp.sum(loss)}


def own_hidden(model: decoder.Transformer, params, base, batch: Batch,
               loss: LossConfig, lora):
  """The hidden states [R, W, D] of an own trunk; adapters are on `base`."""
  weights = lora_lib.merge(
      lora, base, params["trunk"], compute=loss.dtype,
      precision=loss.precision)
  if not model.cfg.tied and "head" not in weights:
    # The decoder declares a head; hidden states do not depend on it, so XLA
    # removes it.
    weights = weights | {
        "head": jnp.zeros((model.cfg.V, model.cfg.D), jnp.float32)}
  return head_lib.hidden_states(
      model, jax.tree.map(lambda x: x.astype(loss.reduce_dtype), weights),
      batch, jnp.dtype(loss.dtype))


def value_gradient(model: decoder.Transformer, params, hidden_RxWxD, base,
                   batch: Batch, loss: LossConfig, cfg: CriticConfig, lora):
  """The gradient of the value loss of a microbatch, and sums for the metrics.

  (gradient of `params`, of `hidden_RxWxD`, sums). The second one is 0 if the
  critic has its own trunk.
  """
  def total(params, hidden_RxWxD):
    own = cfg.kind == "own"
    if own:
      hidden_RxWxD = own_hidden(model, params, base, batch, loss, lora)
    value, sums = term(hidden_RxWxD, params["value"], batch, cfg.clip)
    return value if own else cfg.coef * value, sums

  (grad_critic, grad_hidden), sums = jax.grad(
      total, argnums=(0, 1), has_aux=True)(params, hidden_RxWxD)
  return grad_critic, grad_hidden, sums


def explained_variance(value_BxT, return_BxT, mask_BxT) -> float | None:
  """1 - var(return - value) / var(return) over tokens; None: equal returns."""
  value, target = (np.asarray(x, np.float64)[mask_BxT]
                   for x in (value_BxT, return_BxT))
  if not target.size or (target == target[0]).all():
    return None
  return float(1 - (target - value).var() / target.var())
