"""Random prompts and rollouts, and updates of them on any mesh."""

import dataclasses

import jax
import numpy as np
import optax

from configs import grpo as base_config
from isojax.models import lora as lora_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.rl.loss_config import LossConfig
from isojax.runtime import mesh as mesh_lib
from isojax.types import Prompts, Rollouts, UpdateScalars
from tests.conftest import columns, make_model, placed, TINY

Bp, n, S, T = 6, 4, 7, 5
LOSS = LossConfig(
    **base_config.get_config().recipe.loss.to_dict() | dict(
        kl_coef=0.03, entropy_coef=0.01, microbatch_tokens=1000))
PLAIN = dataclasses.replace(LOSS, kl_coef=0.0, entropy_coef=0.0)
# SGD of rate 1: the change of the parameters is the gradient, not its sign.
SGD = optax.sgd(1.0)


def drawn():
  """(prompts, rollouts, the generator that drew them)."""
  random, B = np.random.default_rng(1), Bp * n
  prompts = Prompts(random.integers(0, TINY.V, (Bp, S)).astype(np.int32),
                    random.integers(1, S + 1, Bp).astype(np.int32),
                    np.arange(Bp, dtype=np.uint32))
  rollouts = Rollouts(random.integers(0, TINY.V, (B, T)).astype(np.int32),
                      random.integers(1, T + 1, B).astype(np.int32),
                      np.ones(B, bool),
                      random.normal(-3, 0.5, (B, T)).astype(np.float32),
                      np.zeros(B, np.float32))
  return prompts, rollouts, random


def make_data():
  """(prompts, rollouts, advantages, token weights)."""
  prompts, rollouts, random = drawn()
  return prompts, rollouts, random.normal(size=Bp * n), np.full(
      Bp * n, 1 / rollouts.len_R.sum())


def assembled(cfg, model=None, *, rows=None, n=n):
  """Microbatches; on the devices of a model."""
  prompts, rollouts, advantage, weight = rows or make_data()
  batches = update_lib.assemble(
      prompts, rollouts, columns(advantage, weight), n=n,
      G=mesh_lib.num_blocks(model.mesh) if model else 1, cfg=cfg)
  return [update_lib.place(b, model.mesh) for b in batches] if model else (
      batches)


def scalars(temperature=0.8, lr=1.0, *, critic_lr=0.0, average_weight=0.0):
  """Of an update: SGD and `plain.GRADIENT` have the rate 1."""
  return UpdateScalars(*map(np.float32, (
      temperature, lr, critic_lr, average_weight)))


_UPDATES = {}


def make_update(model, tx, cfg, lora=lora_lib.FULL):
  """One for all tests of a loss, so that it is traced once."""
  key = model, tx, lora, repr(dataclasses.replace(cfg, microbatch_tokens=1))
  if key not in _UPDATES:
    _UPDATES[key] = update_lib.make_update(model, tx, cfg, lora)
  return _UPDATES[key]


def step(params, *, cfg=LOSS, rows=None, n=n, shape=TINY, temperature=0.8,
         **axes):
  """(change of the parameters, metrics) of one update on a mesh."""
  model = make_model(shape, **axes)
  on_mesh = placed(params, model)
  before = jax.device_get(on_mesh)
  ref = jax.tree.map(
      lambda x: jax.device_put(0.9 * np.asarray(x), x.sharding), on_mesh)
  after, metrics = make_update(model, SGD, cfg)(
      optimizer_lib.init_state(model, SGD, on_mesh),
      ref if cfg.kl_coef else None, assembled(cfg, model, rows=rows, n=n),
      scalars(temperature))
  assert int(after.step) == 1
  want = jax.tree.map(lambda x: x.sharding,
                      optimizer_lib.abstract_state(model, SGD))
  assert jax.tree.map(lambda x: x.sharding, after) == want
  change = jax.tree.map(lambda a, b: np.asarray(a) - b, after.params, before)
  return change, jax.device_get(metrics)


def equations(jaxpr):
  """Those of a jaxpr and of all inside it."""
  for eqn in jaxpr.eqns:
    yield eqn
    for inner in jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
      if hasattr(inner, "eqns"):
        yield from equations(inner)
