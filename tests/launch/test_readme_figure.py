"""The figure of the README, from a study whose truth is known."""

import dataclasses
import json

import numpy as np

from isojax.frontier import analysis, bootstrap, fit_json
from launch import readme_figure
from tests import command
from tests.frontier import synthetic


def test_figure_shows_every_run_and_every_leader(tmp_path):
  study = synthetic.study(synthetic.saturating(), C_max=400_000, evaluations=12,
                          Q=20, k=4, spread=2.0, seed=3)
  fit = analysis.analyse(study, dataclasses.replace(
      bootstrap.DEFAULT, draws=30, grid=40))
  found = fit_json.document(fit, path="fit.json", with_scalerl=False)
  left, right = readme_figure.draw(found).axes
  shown = [line for line in left.lines if len(line.get_xdata())]
  assert len(shown) == len(study.runs)
  for line, run in zip(shown, study.runs):
    np.testing.assert_allclose(line.get_ydata(), run.reward_E, rtol=1e-5)
  leaders = {f"n = {n} leads" for n in found["frontier"]["n"]}
  labels = {text.get_text() for text in right.get_legend().get_texts()}
  assert labels == leaders | {"95% interval"}
  (tmp_path / "fit.json").write_text(json.dumps(found))
  done = command.run("launch.readme_figure", f"--fit={tmp_path}/fit.json",
                     f"--out={tmp_path}/new/figure")
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "new" / "figure.svg").stat().st_size > 8000
  assert (tmp_path / "new" / "figure.png").stat().st_size > 8000


def test_missing_document_is_named(tmp_path):
  done = command.run("launch.readme_figure", f"--fit={tmp_path}/none.json")
  assert done.returncode == 2
  assert "none.json" in done.stderr and "launch.fit" in done.stderr
