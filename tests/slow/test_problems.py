"""The commands of docs/problems.md with their model, in fewer steps."""

import os
import pathlib

import pytest

from isojax.ledger import records
from isojax.run import samples
from tests import test_problems


def test_the_page_trains(tmp_path):
  if "ISOJAX_DEMO_MODEL" not in os.environ:
    pytest.skip("ISOJAX_DEMO_MODEL is not set: make the folder with `python -m "
                "launch.demo_model --out=FOLDER`")
  (tmp_path / "smollm2").symlink_to(pathlib.Path(
      os.environ["ISOJAX_DEMO_MODEL"]).resolve())
  test_problems.write_files(tmp_path)
  _, split, train, show, *_ = test_problems.COMMANDS
  test_problems.run(split, tmp_path)
  test_problems.run(train, tmp_path, "--workdir=run", "--config.eval.k=1",
                        "--config.alloc.C=128")
  kept = records.read(str(tmp_path / "run/records.jsonl"))
  assert [r["kind"] for r in kept] == ["eval", "train", "train", "eval"]
  assert all(0.1 < r["reward"] < 0.9 for r in kept if r["kind"] == "train")
  show[-1] = "run"
  assert samples.read(f"{tmp_path}/run/samples.jsonl")[0]["question"] in (
      test_problems.run(show, tmp_path).stdout)
