"""The figures of a fit, from studies whose truth is known."""

import dataclasses
import pathlib

from matplotlib.colors import same_color
import numpy as np

from isojax.report import html, plots
from tests.frontier import documents as make
from tests.frontier import page


def test_every_figure_is_written_and_not_empty(saved, documents):
  assert {pathlib.Path(path).name for path in saved["joint"]} == {
      f"{name}.{kind}" for name in plots.FIGURES
      for kind in ("png", "svg", "pdf")}
  for path in map(pathlib.Path, saved["joint"]):
    assert path.stat().st_size > 8000
    if path.suffix == ".svg":
      assert "<script" not in path.read_text()


def test_no_data_no_figure_and_the_same_bytes_again(documents, tmp_path):
  found = {**documents["fixed_Bp"], "law": None, "verdict": {
      "identified": False, "reasons": [], "limits": [], "cautions": []},
           "notes": [], "interference": [], "scalerl": []}
  paths = plots.save(found, str(tmp_path))
  assert {pathlib.Path(p).stem for p in paths} == {"reward"}
  first = [pathlib.Path(p).read_bytes() for p in paths]
  assert [pathlib.Path(p).read_bytes()
          for p in plots.save(found, str(tmp_path))] == first
  report = page.Page(html.page(found, paths))
  assert "The law n*" not in report.text and "ScaleRL" not in report.text


def test_without_a_difference_no_n_is_drawn(tmp_path):
  one = make.study(C_max=400_000)
  zero = make.document_of(dataclasses.replace(one, runs=tuple(
      dataclasses.replace(r, value_ExQ=0 * r.value_ExQ, reward_E=0 * r.reward_E)
      for r in one.runs)))
  assert zero["law"] is None and zero["best_n"][0]["n"] is None
  paths = plots.save(zero, str(tmp_path))
  assert not any("law." in path for path in paths)
  report = page.Page(html.page(zero, paths))
  assert "no n differs: avg is 0 throughout" in report.text


def test_the_leader_changes_where_the_curves_cross(documents):
  found = documents["joint"]
  moves = [C for C in found["frontier"]["change"] if C is not None]
  assert moves
  starts = [stretch[0] for stretch in plots._stretches(
      found["frontier"])]
  assert set(moves) <= set(starts) and starts == sorted(starts)


def test_colours_of_n_are_apart_and_readable_on_white():
  """WCAG 2.2, 1.4.11: a contrast of at least 3."""
  tested, weight = [2**i for i in range(3, 11)], (0.2126, 0.7152, 0.0722)
  c = np.array([plots.colour_of(n, tested)[:3] for n in tested])
  assert np.diff(c @ weight).min() > 0.02  # also without colour
  linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
  assert (1.05 / (linear @ weight + 0.05) >= 3).all()
  assert len({plots.marker_of(n, tested) for n in tested}) == len(tested)
  assert plots.colour_of(8, [8]) == plots.colour_of(16, [16])  # a single n


def test_the_colour_of_n_is_the_same_in_every_figure(documents):
  seen = set()
  for draw, regime in ((plots.reward, "fixed_Bp"), (plots.law, "joint")):
    found = documents[regime]
    tested = found["study"]["n"]
    colours = {plots.marker_of(n, tested): plots.colour_of(n, tested)
               for n in tested}
    for ax in draw(found).axes:
      for line in ax.lines:
        mark, colour = line.get_marker(), line.get_color()
        if mark in colours and line.get_markerfacecolor() != "white" and (
            colour != plots.GREY):
          face = line.get_markerfacecolor()
          assert same_color(face, colours[mark]), (draw.__name__, mark)
          seen.add((draw.__name__, mark))
  assert {name for name, _ in seen} == {"reward", "law"}


def test_unresolved_points_are_hollow_and_dashed(documents):
  found = documents["joint"]
  known = found["frontier"]["resolved"]
  assert 0 < sum(known) < len(known)
  points = [line for line in plots.law(found).axes[0].lines
            if len(line.get_xdata()) == 1 and line.get_zorder() == 3]
  assert [p.get_markerfacecolor() != "white" for p in points] == known
  thick = [line for line in plots.reward(found).axes[0].lines
           if line.get_linewidth() == 4 and len(line.get_xdata())]
  assert [line.get_linestyle() for line in thick].count("--") == sum(
      not stretch[-1] for stretch in plots._stretches(
          found["frontier"]))


def test_parts_of_the_reward_of_a_run_have_an_axis_of_their_own():
  values = {f"{name}{end}": 0.5 for name in plots.METRICS
            for end in ("", "_se")} | dict(
                k=4, eval_set="hard", correct=[2], current=None)
  evaluations = [values | dict(rollouts=C, reward_parts=parts) for C, parts in (
      (0, {"right": 0.1}), (64, {"right": 0.2, "short": 0.3}))]
  sums, parts = plots.learning(evaluations).axes
  assert len(sums.containers) == 4
  assert {line.get_label(): line.get_xydata().tolist()
          for line in parts.lines} == {
              "right": [[0, 0.1], [64, 0.2]], "short": [[64, 0.3]]}
  for record in evaluations:
    record["reward_parts"] = None
  assert len(plots.learning(evaluations).axes) == 1


def test_the_current_policy_is_a_curve_of_its_own():
  values = {f"{name}{end}": 0.5 for name in plots.METRICS
            for end in ("", "_se")} | dict(
                k=4, eval_set="hard", correct=[2], reward_parts=None)
  [ax] = plots.learning([
      values | dict(rollouts=C, current=values | dict(avg=avg))
      for C, avg in ((0, 0.5), (64, 0.25))]).axes
  curve = ax.containers[-1]
  assert curve.get_label() == "avg@4, current policy"
  assert curve[0].get_xydata().tolist() == [[0, 0.5], [64, 0.25]]
  assert curve[0].get_linestyle() == "--"
