"""What the console says of a study."""

from isojax.frontier import result


def test_a_run_by_its_start_its_best_and_its_final_evaluation():
  run = {"run_id": "a", "Bp": 4, "n": 8, "seed": 0,
         "reward": [0.06, 0.25, 0.125], "C": [0, 2048, 65_536]}
  document = {"study": {"axis": "rollouts"}, "falls": []}
  assert result.curve_of(run, document) == (
      "a: start 0.060 at 0, best 0.250 at 2.05k, final 0.125 at 65.5k rollouts")
  # a fall is not fitted, but the run ends after it
  document["falls"] = [run | {"C": [99_000, 131_072], "reward": [0.1, 0.05]},
                       run | {"seed": 1, "C": [2e6], "reward": [0.5]}]
  assert "final 0.050 at 0.131M" in result.curve_of(run, document)
