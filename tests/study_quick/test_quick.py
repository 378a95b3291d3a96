"""The quick version of the study runs from its plan to its table."""

import pytest

from launch.study import ledger
from tests import command

pytestmark = pytest.mark.ci


def test_the_quick_study(tmp_path):
  """Three runs, their ledger and their table; again, from the same records."""
  words = ["launch.study", "--config=configs/study.py:quick",
           f"--root={tmp_path}", "--config.eval.k=1"]
  done = command.run(*words, "--workers=2", timeout=1800)
  assert done.returncode == 0, done.stderr
  assert "quick: 3 runs, 24.6k rollouts" in done.stdout
  assert "| 8.19k | 32 |" in done.stdout and "Partial" not in done.stdout
  path = tmp_path / "quick.jsonl.gz"
  one, stored = ledger.read(str(path)), path.read_bytes()
  assert [(r.head["n"], r.head["seed"]) for r in one.runs] == [
      (2, 0), (8, 0), (32, 0)]
  assert not one.missing and all(r.head["reached"] == 8192 for r in one.runs)
  again = command.run(*words, "--collect", timeout=600)
  assert again.returncode == 0, again.stderr
  assert again.stdout.endswith(done.stdout[done.stdout.index("quick: 3"):])
  assert path.read_bytes() == stored

  # Another machine has the ledger but not the runs.
  other = tmp_path / "other"
  done = command.run("launch.study", words[1], f"--root={other}",
                     f"--ledger={path}", timeout=600)
  assert done.returncode == 0, done.stderr
  assert (other / "quick.jsonl.gz").read_bytes() == stored
  assert not list(other.glob("*/records.jsonl"))
  done = command.run("launch.study", "--config=configs/study.py:d16",
                     f"--root={other}", f"--ledger={path}")
  assert done.returncode == 2 and "of another plan than d16" in done.stderr
