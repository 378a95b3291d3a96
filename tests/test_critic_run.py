"""A run with a critic: what it records, and its resume with the same bits."""

import os
import shutil

import jax
import numpy as np
import pytest

from configs import ppo
from isojax import components
from isojax.errors import InputError
from isojax.ledger import checkpoint, records
from tests import few, test_learning


def small():
  """Four steps of two updates; checkpoints at steps 2 and 4."""
  config = ppo.get_config()
  config.alloc.update(Bp=4, n=2, C=32)
  config.task.stratum = few.easy()
  config.sampler.slots = 8
  config.eval.update(k=1, first=32)
  config.checkpoint.every_steps = 2
  config.recipe.updates.update(epochs=2, minibatches=1)
  config.recipe.optimizer.warmup_steps = 1
  return config


def last_state(context, folder):
  tx, _ = components.make_optimizer(context.e)
  return jax.device_get(checkpoint.restore_newest(
      os.path.join(folder, "checkpoints"),
      components.abstract_state(context, tx), context.run_id,
      reach=99, keep=2, host=False)[:2])


def test_resume_gives_the_same_bits(tmp_path):
  context, kept = test_learning.run(small(), tmp_path)
  train = [r for r in kept if r["kind"] == "train"]
  assert train[-1]["updates"] == 8
  # A forward pass of the critic and one of the policy.
  assert train[-1]["scored_tokens"] == 2 * train[-1]["sampled_tokens"]
  assert all(r["value_loss"] > 0 and r["explained_variance"] is not None
             for r in train if r["reward"] > 0)
  step, wanted = last_state(context, tmp_path)
  assert step == 4 and np.abs(wanted.critic.params["value"]).max() > 0
  shutil.rmtree(tmp_path / "checkpoints/4")
  _, again = test_learning.run(small(), tmp_path)
  assert records.comparable(again) == records.comparable(kept)
  step, got = last_state(context, tmp_path)
  assert step == 4
  jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_an_advantage_without_values_is_refused():
  config = small()
  with config.unlocked():
    config.recipe.loss.update(advantage="centered")
    config.recipe.loss.constants = {}
  with pytest.raises(InputError, match="does not depend on values"):
    components.prepare(config)
