"""The quick version of the study runs from its plan to its page."""

import json

from isojax.study import ledger
from tests import command


def test_the_quick_study(tmp_path):
  """Three runs to C / 2, the prediction, the same runs to C, the page."""
  words = ["launch.study", "--config=configs/study.py:quick",
           f"--root={tmp_path}", "--workers=2", "--draws=200"]
  done = command.run(*words, timeout=1800)
  assert done.returncode == 0, done.stderr
  assert "leads** by its fitted curve, with avg@8" in done.stdout
  out = tmp_path / "report"
  runs = ledger.runs(ledger.read(str(out / "quick.jsonl.gz")))
  assert [(r.head["n"], r.head["seed"]) for r in runs] == [
      (2, 0), (8, 0), (32, 0)]
  assert all(r.head["reached"] == 8192 for r in runs)
  # The evaluation at the end of the first stage shows that a run went on.
  assert all(4096 in [e["rollouts"] for e in r.evals] for r in runs)
  said = json.loads((out / "quick-prediction.json").read_text())
  assert (said["fitted_to"], said["predicted"][0]["C"]) == (4096, 8192)
  text = (out / "study.md").read_text("utf-8")
  assert "| 8.19k | reward |" in text and "not measured" not in text
  assert "after the prediction" in text and "Partial" not in text
  assert "not those that the prediction" not in text  # the same runs went on
  assert (out / "quick-reward.svg").exists()
  # Without runs, the same numbers.
  before = text
  again = command.run(*words[:3], "--stage=none", "--draws=200",
                      timeout=600)
  assert again.returncode == 0, again.stderr
  assert (out / "study.md").read_text("utf-8") == before
