"""launch.study: a ledger to a page, and its errors."""

import json

import pytest

from isojax.study import ledger
from tests import command
from tests.study import ledgers


def test_a_ledger_becomes_a_page(tmp_path):
  path = tmp_path / "hard.jsonl.gz"
  ledger.write(str(path), ledgers.lines(Q=60))
  words = ["launch.study", f"--ledger={path}", f"--out={tmp_path}/o",
           f"--page={tmp_path}/page.md", f"--fits={tmp_path}/f", "--draws=100"]
  done = command.run(*words)
  assert done.returncode == 0, done.stderr
  text = (tmp_path / "page.md").read_text("utf-8")
  assert "](o/hard-reward.svg)" in text and "leads**" in done.stdout
  assert json.loads((tmp_path / "f/hard-fit.json").read_text())["version"] == 1
  assert len(list((tmp_path / "o").iterdir())) == 12  # six figures


@pytest.mark.parametrize("words, message", [
    ([], "either --config and --root, or --ledger"),
    (["--ledger=none.gz"], "--ledger needs --out"),
    (["--ledger=none.gz", "--out=@"], "not a ledger of launch.study"),
    (["--root=@"], "--root needs --config"),
    (["--config=configs/hard.py", "--root=@"], "has no get_study"),
    (["--config=configs/study.py:rate", "--root=@", "--stage=first"],
     "the part rate has no such stage")])
def test_bad_flags_are_one_line(tmp_path, words, message):
  done = command.run("launch.study", *(
      word.replace("@", str(tmp_path / "r")) for word in words))
  assert done.returncode == 2 and message in done.stderr
  assert "Traceback" not in done.stderr
