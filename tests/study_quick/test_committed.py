"""The committed page of the study is what its committed ledgers give."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from isojax.study import ledger
from isojax.study import page
from tests import command

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docs/study"
LEDGERS = sorted(FOLDER.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", LEDGERS, ids=lambda p: p.name)
def test_the_page_is_rebuilt(path, tmp_path):
  """Words and numbers exactly; the fit, a prior of the planner, to rounding."""
  part = path.name.removesuffix(".jsonl.gz")
  for name in (f"{part}-prediction.json",):
    if (FOLDER / name).exists():
      shutil.copy(FOLDER / name, tmp_path / name)
  done = command.run("launch.study", f"--ledger={path}", f"--out={tmp_path}")
  assert done.returncode == 0, done.stderr
  made = page.block_of((tmp_path / "study.md").read_text("utf-8"), part)
  committed = page.block_of(
      (ROOT / "docs/study.md").read_text("utf-8"), part)
  assert committed == made.replace("](", "](study/")
  for figure in tmp_path.glob("*.svg"):
    assert (FOLDER / figure.name).exists(), figure.name
    assert (FOLDER / figure.with_suffix(".png").name).exists()
  if (tmp_path / f"{part}-fit.json").exists():  # a part with a law
    made, kept = (json.loads((folder / f"{part}-fit.json").read_text("utf-8"))
                  for folder in (tmp_path, ROOT / "isojax/assets/study"))
    for key in ("options", "verdict"):
      assert made[key] == kept[key]
    for key, values in kept["frontier"].items():
      np.testing.assert_allclose(  # None becomes nan
          np.array(made["frontier"][key], float), np.array(values, float),
          rtol=1e-4, err_msg=key)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*-prediction.json")),
                         ids=lambda p: p.name)
def test_the_prediction_was_committed_before_the_longer_runs(path):
  """The commit of this very content is older than the first later record."""
  said = json.loads(path.read_text("utf-8"))
  lines = ledger.read(FOLDER / f"{said['part']}.jsonl.gz")
  later = [e["unix_time"] for run in ledger.runs(lines) for e in run.evals
           if e["rollouts"] > said["fitted_to"]]
  found = subprocess.run(
      ["git", "-C", str(ROOT), "log", "--format=%at", "--follow", "--",
       str(path.relative_to(ROOT))], capture_output=True, text=True)
  if found.returncode or not found.stdout.strip():
    pytest.skip("no git history")
  commits = [int(at) for at in found.stdout.split()]
  assert said["unix_time"] <= min(commits) + 1
  if later:
    assert max(commits) < min(later), (
        f"{path.name} was changed after the longer runs had begun")
