"""Runs with a paged cache: their records, and their resume with the same bits.
"""

import os
import shutil

import jax
import numpy as np
import pytest

from configs import easy
from isojax import components
from isojax.ledger import checkpoint, records
from tests import few, test_learning

# What a sum in another order changes in the last bits.
ROUNDED = {"entropy", "grad_norm", "kl", "logp", "logp_gap", "loss"}


def small(page):
  """Four steps with adapters; checkpoints at steps 2 and 4.

  The memory admits 51 pages; 16 of the longest answers need 128.
  """
  config = easy.get_config()
  config.alloc.update(Bp=4, n=4, C=64)
  config.task.stratum = few.easy()
  config.model.lora.rank = 2
  config.sampler.update(slots=16, page=page, expected_tokens=1)
  if page:
    config.sampler.memory_gib = 0.00094
  config.eval.update(k=1, first=64)
  config.checkpoint.every_steps = 2
  config.recipe.optimizer.warmup_steps = 1
  return config


def last_state(context, folder):
  tx, _ = components.make_optimizer(context.e)
  return jax.device_get(checkpoint.restore_newest(
      os.path.join(folder, "checkpoints"),
      components.abstract_state(context, tx), context.run_id,
      reach=99, keep=2, host=False)[:2])


def test_pages_change_no_record_and_a_resume_no_bit(tmp_path):
  _, plain = test_learning.run(small(None), tmp_path / "plain")
  context, kept = test_learning.run(small(4), tmp_path / "paged")
  assert sum(r["put_back"] for r in kept if r["kind"] == "train") > 3
  for one, other in zip(records.comparable(plain), records.comparable(kept),
                        strict=True):
    assert one.keys() == other.keys()
    for name in {*one} - {"run_id", "put_back"}:
      if name in ROUNDED:
        assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6)
      else:
        assert other[name] == one[name], name
  step, wanted = last_state(context, tmp_path / "paged")
  assert step == 4
  shutil.rmtree(tmp_path / "paged/checkpoints/4")
  _, again = test_learning.run(small(4), tmp_path / "paged")
  assert records.comparable(again) == records.comparable(kept)
  step, got = last_state(context, tmp_path / "paged")
  assert step == 4
  jax.tree.map(np.testing.assert_array_equal, got, wanted)
