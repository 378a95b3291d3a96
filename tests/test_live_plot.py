"""The learning curve as text, by hand."""

import io

from isojax import live_plot


def test_braille_by_hand():
  """2 x 1 characters have 4 x 4 dots; y counts from the bottom."""
  assert live_plot.braille([(0, 0), (0.99, 1), (0.5, 0.5)], width=2,
                           height=1) == [["⡀", "⠌"]]
  # ⡀ is dot 7, bottom left; ⠌: dot 4, top right, and dot 3, third row left
  assert live_plot.braille([], width=1, height=2) == [[" "], [" "]]


def record(kind, rollouts, value):
  return {"kind": kind, "rollouts": rollouts,
          {"train": "reward", "eval": "avg"}[kind]: value}


def test_a_curve_by_hand():
  """Ten columns and two lines: 0.25 is at the bottom, 0.75 at the top."""
  lines = live_plot.curve(
      [record("eval", 0, 0.25), record("train", 50, 0.75),
       record("eval", 1000, 0.5)], 1000, width=10 + live_plot.MARGIN, height=2)
  assert lines[:3] == ["0.750 │⠈         ",
                       "0.250 │●        ●", "      └──────────"]
  lines = live_plot.curve([record("eval", 0, 0.25)], 1000, width=60)
  assert lines[-1].endswith(" C = 1k rollouts") and len(lines[-1]) == 60


def test_one_value_is_drawn():
  lines = live_plot.curve([record("eval", 0, 0.0)], 8, width=30)
  assert sum("●" in line for line in lines[:live_plot.HEIGHT]) == 1


def test_where_no_live_plot_is_possible(monkeypatch):
  monkeypatch.setattr("sys.stderr", io.StringIO())
  assert "is none; progress is printed as lines" in live_plot.refusal()
  terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
  terminal.isatty = lambda: True
  monkeypatch.setattr("sys.stderr", terminal)
  assert "of encoding latin-1" in live_plot.refusal()
