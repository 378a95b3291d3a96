"""launch.verify.kill_matrix: what it compares, and that its recipes are runs.

tests/test_main.py runs launch.verify.kill_and_resume, which shares its code.
"""

import json
import shutil

import numpy as np
import pytest

from isojax.ledger import checkpoint
from isojax.types import TrainState
from launch.verify import killing
from launch.verify import recipe_runs


def record(step, **fields):
  return {"kind": "train", "step": step, "reward": 0.5, "grad_norm": 1.0,
          "device_seconds": step, **fields}


def test_agreement_by_hand():
  """Seconds and rounding do not count, nor do steps after another reward."""
  one = [record(1), record(2), record(3), {"kind": "eval", "step": 3}]
  other = [record(1, device_seconds=9, grad_norm=1 + 1e-7),
           record(2, grad_norm=1.25), record(3, reward=0.25, grad_norm=7.0), {"kind": "eval", "step": 3}]
  assert killing.agreement(one, one) == (3, 3, 0.0)
  assert killing.agreement(one, other) == (2, 3, pytest.approx(0.2))


@pytest.mark.parametrize("case", recipe_runs.CASES)
def test_each_case_is_a_run_with_checkpoints_between_kills(case):
  every = recipe_runs.SMALL["checkpoint"]["every_steps"]
  assert 2 * every < recipe_runs.steps_of(case) <= 40


def test_the_hashes_of_a_run(tmp_path):
  """One number of the state, or of a record, changes its hash alone."""
  def write(name, value, reward):
    folder = tmp_path / name
    (folder / "checkpoints").mkdir(parents=True)
    state = TrainState(step=np.int32(3), opt_state=(),
                       params={"w": np.full(4, value, np.float32)})
    with checkpoint.open_manager(str(folder / "checkpoints"), keep=1) as m:
      checkpoint.save(m, 3, state, "abc")
    (folder / "records.jsonl").write_text(
        json.dumps(record(1, reward=reward)) + "\n")
    return killing.result(str(folder))

  one, state, reward = (write(*x) for x in (
      ("one", 1.0, 0.5), ("state", 1.5, 0.5), ("reward", 1.0, 0.25)))
  assert (one.state == state.state, one.records == state.records) == (
      False, True)
  assert (one.state == reward.state, one.records == reward.records) == (
      True, False)
  shutil.copytree(tmp_path / "one", tmp_path / "copy")
  assert killing.result(str(tmp_path / "copy")) == one
