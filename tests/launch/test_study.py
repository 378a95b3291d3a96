"""launch.study: a ledger to a table, and its errors."""

import pytest

from tests import command
from tests.study import ledgers


def test_a_ledger_becomes_a_table(tmp_path):
  ledgers.made(tmp_path / "hard.jsonl.gz")
  done = command.run("launch.study", f"--ledger={tmp_path}/hard.jsonl.gz")
  assert done.returncode == 0, done.stderr
  assert "hard: 6 runs, 2.4M rollouts" in done.stdout
  assert "| C | C/D | best n, training |" in done.stdout


@pytest.mark.parametrize("words, message", [
    ([], "expected --docs, or --config with --root"),
    (["--ledger=none.gz"], "not a ledger of launch.study"),
    (["--config=configs/study.py:hard"], "--config needs --root"),
    (["--config=configs/study.py", "--root=@"], "expected FILE:PART"),
    (["--config=configs/hard.py", "--root=@"], "no get_study")])
def test_bad_flags_are_one_line(tmp_path, words, message):
  done = command.run("launch.study", *(
      word.replace("@", str(tmp_path / "r")) for word in words))
  assert done.returncode == 2 and message in done.stderr
  assert "Traceback" not in done.stderr
