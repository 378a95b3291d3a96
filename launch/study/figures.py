"""The figure of the study: how far each n is behind the best, over C/D.

The only module of launch.study that imports matplotlib.
"""

import os

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
import numpy as np

STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "hatch.linewidth": 0.6, "hatch.color": "0.35",
         "svg.hashsalt": "isojax"}
WORST = 0.10  # reward; regret beyond has the darkest colour
WIDTH, ROW = 7.0, 1.25  # inches
DPI = 130


def regrets(rows: list[tuple[str, dict, dict]]) -> Figure:
  """Regret of each n in windows of C, on training and validation problems.

  Args:
    rows: (name of the problems, training, validation); each as of
      reanalysis.regret.
  """
  with matplotlib.rc_context(STYLE):
    figure = Figure((WIDTH, ROW * len(rows) + 0.9), layout="constrained")
    axes = figure.subplots(len(rows), 2, sharex=True, squeeze=False)
    for (name, *both), pair in zip(rows, axes, strict=True):
      for ax, found, what in zip(pair, both, ("training", "validation"),
                                 strict=True):
        mesh = _panel(ax, found)
        ax.set_title(f"{name}: {what}")
      pair[0].set_ylabel("n")
    for ax in axes[-1]:
      ax.set_xlabel("C / D, rollouts of each training problem")
    figure.colorbar(mesh, ax=axes, location="bottom", aspect=50, extend="max",
                    label="reward behind the best n (hatched: not resolved; "
                    "line: the best n)")
  return figure


def _panel(ax, found: dict):
  ns, x, regret = found["n"], found["C/D"], found["regret"]
  edges = np.append(x[0] / 2, x)
  rows = np.arange(len(ns) + 1) - 0.5
  mesh = ax.pcolormesh(edges, rows, regret, cmap="YlOrRd", vmin=0, vmax=WORST,
                       edgecolors="white", linewidth=0.5)
  for row, column in np.argwhere(~found["resolved"] & (regret > 0)):
    ax.add_patch(Rectangle(
        (edges[column], rows[row]), edges[column + 1] - edges[column], 1,
        fill=False, linewidth=0, hatch="////"))
  centre = x / 2**0.5
  ax.plot(centre, [ns.index(n) for n in found["best"]], color="black", lw=1.2,
          marker="o", ms=3.5)
  ax.set_xscale("log", base=2)
  ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
  ax.set_xticks([2.0**i for i in range(1, 14, 2)])
  ax.set_yticks(range(len(ns)), ns)
  return mesh


def save(figure: Figure, path: str) -> list[str]:
  """Writes PATH.svg and PATH.png; the same figure has the same bytes."""
  with matplotlib.rc_context(STYLE):
    figure.savefig(f"{path}.svg", metadata={"Date": None})
    figure.savefig(f"{path}.png", dpi=DPI)
  return [f"{os.path.normpath(path)}.{kind}" for kind in ("svg", "png")]
