"""Damaged logs end in a message or in findings, in no other exception."""

import json
import pathlib

import pytest

from isojax.errors import InputError
from isojax.logs.fields import Reading
from isojax.report import doctor
from tests.frontier import mutated_logs


def test_mutated_logs_raise_input_errors_alone(tmp_path):
  """tests/slow has 5,000."""
  raised = {seed: errors for seed in range(250)
            if (errors := mutated_logs.failures(seed, tmp_path))}
  assert not raised


NAMES = ("reward", "reward_std", "kl", "grad_norm", "entropy", "loss",
         "learning_rate", "completions/clipped_ratio", "frac_reward_zero_std")


@pytest.mark.parametrize("value", [
    [0.5, 1.0], "0,5", "12%", "oops", {"a": 1}, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_another_type_is_left_out_with_a_note(name, value, tmp_path):
  lines = [{"step": i} | dict.fromkeys(NAMES, 0.3) for i in range(1, 30)]
  lines[6][name] = value
  path = tmp_path / "log.jsonl"
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  report = doctor.report(str(path), Reading())
  damage = f"log.jsonl:7: {name}" + (
      f"/a is {value['a']}" if isinstance(value, dict) else f" is {value!r}")
  noted = any(damage in note for note in report.log.notes)
  assert noted == (not isinstance(value, dict))
  assert len(report.run.train) == 29
  field = next(field for field, source in report.log.names.items()
               if source == name)
  assert [field in line for line in report.run.train].count(False) == 1


@pytest.mark.parametrize("value", ["oops", [1], "9" * 400, 2.5])
def test_a_step_of_another_type_is_refused(value, tmp_path):
  path = tmp_path / "log.jsonl"
  path.write_text("".join(
      json.dumps({"step": i if i != 7 else value, "reward": 0.3,
                  "reward_std": 0.1}) + "\n" for i in range(1, 30)))
  with pytest.raises(InputError, match="log.jsonl:7: step is"):
    doctor.report(str(path), Reading())


def test_a_list_of_rewards_is_no_reward():
  path = pathlib.Path("tests/data/faulty_logs/list_of_rewards.jsonl")
  report = doctor.report(str(path), Reading())
  assert report.log.names["reward"] == "mean_reward"
  assert report.run.train[2]["reward"] == 0.75
