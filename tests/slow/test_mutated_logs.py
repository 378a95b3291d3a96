"""As tests/frontier/test_mutated_logs.py, with more logs."""

from tests.frontier import mutated_logs


def test_mutated_logs_raise_input_errors_alone(tmp_path):
  raised = {seed: errors for seed in range(250, 5250)
            if (errors := mutated_logs.failures(seed, tmp_path))}
  assert not raised
