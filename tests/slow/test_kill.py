"""A run of each recipe with `kill -9` has the bits of an undisturbed one, and
four devices agree with one until two tokens tie.

Which groups in flight are complete first depends on the row shards, so there
two devices share the heads."""

import pytest

from tests import processes
from tests.slow import recipes

# About 16 steps, and checkpoints between which the kills happen.
LONGER = dict(alloc=dict(C=1024), eval=dict(first=600))
# Those that would have fewer steps.
LARGER = dict(alloc=dict(C=2048))
SIZES = {"pods": LARGER, "dapo": LARGER}
IN_FLIGHT = "in_flight", "decayed_in_flight", "lora_in_flight", "scalerl"
KILLS = 3


def arguments(case: str) -> list[str]:
  return recipes.arguments(case, LONGER, SIZES[case] if case in SIZES else {})


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=pytest.mark.ci if case == "hard" else ())
    for case in recipes.CASES])
def test_killed_runs_end_in_the_same_bits(case, tmp_path):
  calm, other, four = (str(tmp_path / name) for name in ("calm", "k", "four"))
  seconds = processes.finished(calm, arguments(case))
  M = processes.Processes(calm, [], []).last_step()
  assert M > 10
  steps = processes.killed(other, arguments(case), M=M, kills=KILLS,
                           seconds=seconds, seed=0)
  assert steps[-1] > 5, "no kill after the first checkpoint"
  assert processes.result(other) == processes.result(calm)
  mesh = (dict(devices=2, axis="tensor") if case in IN_FLIGHT  # 2 key heads
          else dict(devices=4))
  processes.finished(four, arguments(case), **mesh)
  # Each device has its own pool of pages.
  worst = processes.differences(calm, four, but=["evicted"], longest=16)
  assert max(worst.values(), default=0.0) < 1e-3, worst
