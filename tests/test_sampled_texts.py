"""Which rollouts of a step are stored as text."""

import json

import numpy as np

from isojax import sampled_texts


def test_a_problem_that_is_half_solved_is_shown_first():
  reward_Bpxn = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 1.0]])
  assert sampled_texts.chosen(reward_Bpxn, 2).tolist() == [4, 5]  # right, wrong
  assert sampled_texts.chosen(reward_Bpxn, 9).tolist() == [4, 5, 3]
  same = np.zeros((2, 3))
  assert sampled_texts.chosen(same, 1).tolist() == [0]


def test_a_resumed_run_repeats_no_line(tmp_path):
  path = tmp_path / "samples.jsonl"
  path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
  sampled_texts._append(str(path), [{"step": 3, "x": 1}], first=True)
  sampled_texts._append(str(path), [{"step": 4}], first=False)
  assert [json.loads(line) for line in path.open()] == [
      {"step": 1}, {"step": 2}, {"step": 3, "x": 1}, {"step": 4}]
