"""What the console says of a study."""

from isojax.frontier import result


def test_a_run_by_its_start_its_best_and_its_final_evaluation():
  run = {"run_id": "a", "reward": [0.06, 0.25, 0.125], "C": [0, 2048, 65_536]}
  assert result.curve_of(run, {"axis": "rollouts"}) == (
      "a: start 0.060 at 0, best 0.250 at 2.05k, final 0.125 at 65.5k rollouts")


def test_files_of_one_figure_count_once():
  assert result.count(["out.d/law.png", "out.d/law.svg", "out.d/law.pdf",
                       "out.d/law-column.svg", "out.d/best_n.png"]) == 2
