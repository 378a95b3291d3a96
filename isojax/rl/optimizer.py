"""The optimizer of an update: AdamW, its warm-up and its step."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from isojax.errors import InputError

BATCHES = ("sampled", "trained", "update")  # Bp n, Bp m, Bp m / minibatches


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a constant learning rate after a linear warm-up."""

  base_lr: float  # at B = base_batch
  base_batch: int  # rollouts of the anchor; lr ~ sqrt(rollouts / base_batch)
  # Which rollouts of a step the square-root rule counts: a key of BATCHES.
  batch: str = dataclasses.field(metadata={"neutral": "sampled"})
  warmup_steps: int  # updates
  b1: float
  b2: float
  eps: float
  weight_decay: float
  clip_norm: float  # global gradient norm

  def __post_init__(self):
    if self.batch not in BATCHES:
      raise InputError(f"optimizer.batch={self.batch!r}: expected one of "
                       f"{', '.join(BATCHES)}")
    for name in ("base_lr", "base_batch", "eps", "clip_norm"):
      if getattr(self, name) <= 0:
        raise InputError(f"optimizer.{name}={getattr(self, name)}: expected "
                         "> 0")
    if not (0 <= self.b1 < 1 and 0 <= self.b2 < 1):
      raise InputError(f"optimizer: b1={self.b1}, b2={self.b2}: expected in "
                       "[0, 1)")


def make(cfg: OptimizerConfig, schedule):
  """Returns AdamW behind a clip of the gradient's global norm.

  Args:
    schedule: the number of optimizer steps made -> learning rate.
  """
  return optax.chain(
      optax.clip_by_global_norm(cfg.clip_norm),
      optax.adamw(schedule, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
                  weight_decay=cfg.weight_decay))


def warmup_then_constant(lr: float, steps: int):
  """Returns a schedule: linear from lr / steps to lr, then constant."""
  def schedule(step):
    return lr * jnp.minimum(1.0, (step + 1) / max(1, steps))

  return schedule


def stepped(tx, grads, state, lr_factor):
  """Returns (params, opt_state) after a step; see update.make_update."""
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  if lr_factor is not None:
    updates = jax.tree.map(lambda x: x * lr_factor, updates)
  return optax.apply_updates(state.params, updates), opt_state
