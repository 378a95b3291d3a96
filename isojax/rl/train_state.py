"""The state that an update changes: its shapes, its shardings, its start."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from isojax import mesh as mesh_lib
from isojax.models import decoder
from isojax.models import lora as lora_lib
from isojax.rl import critic as critic_lib
from isojax.types import CriticState
from isojax.types import TrainState


@dataclasses.dataclass(frozen=True)
class Critic:
  """A critic and its optimizer."""

  cfg: critic_lib.CriticConfig
  tx: optax.GradientTransformation

  @property
  def own(self) -> bool:
    """Whether the critic has a trunk of its own."""
    return self.cfg.kind == "own"


def abstract_moments(tx, params, mesh):
  """Returns shapes and shardings of the optimizer's state."""
  def like(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return optax.tree_utils.tree_map_params(
      tx, lambda x, param: like(x, param.sharding),
      jax.eval_shape(tx.init, params), params,
      transform_non_params=lambda x: like(x, mesh_lib.replicated(mesh)))


def abstract(model: decoder.Transformer, tx, lora=lora_lib.FULL,
             critic: Critic | None = None) -> TrainState:
  """Returns shapes and shardings of the train state; also to restore into."""
  params, valued = lora_lib.abstract_trained(model, lora), None
  if critic:
    valued = critic_lib.abstract_params(model, critic.cfg, lora)
    valued = CriticState(
        valued, abstract_moments(critic.tx, valued, model.mesh))
  return TrainState(
      jax.ShapeDtypeStruct((), jnp.int32,
                           sharding=mesh_lib.replicated(model.mesh)),
      params, abstract_moments(tx, params, model.mesh), valued)


def init(model: decoder.Transformer, tx, params, lora=lora_lib.FULL,
         critic: Critic | None = None, trunk=None) -> TrainState:
  """Returns the state of step 0. The trained parameters are donated.

  Args:
    params: trained parameters of the policy.
    critic: None for a recipe without one.
    trunk: trained parameters of the critic's own trunk, donated as well.
  """
  shardings = jax.tree.map(lambda x: x.sharding,
                           abstract(model, tx, lora, critic))
  valued = critic and critic_lib.init_params(model, critic.cfg, trunk)

  def make(params, valued):
    return TrainState(
        jnp.int32(0), params, tx.init(params),
        critic and CriticState(valued, critic.tx.init(valued)))

  return jax.jit(make, out_shardings=shardings,
                 donate_argnums=(0, 1))(params, valued)
