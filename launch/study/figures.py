"""The figures of the study: curves of validation, and the regret of each n.

The only module of launch.study that imports matplotlib.
"""

import os

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
import numpy as np

from launch.study import reanalysis

STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "hatch.linewidth": 0.6, "hatch.color": "0.35",
         "svg.hashsalt": "isojax"}
WORST = 0.10  # reward; regret beyond has the darkest colour
WIDTH, ROW = 7.0, 1.25  # inches
DPI = 130
MARKERS = {2: "v", 4: "<", 8: "o", 16: "s", 32: "D", 64: ">", 128: "^"}


def curves(grids: dict[str, list]) -> Figure:
  """Validation against rollouts and against training reward, of each n.

  Args:
    grids: name of the problems -> runs; the means over seeds are drawn.
  """
  with matplotlib.rc_context(STYLE):
    figure = Figure((WIDTH, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for i, (name, runs) in enumerate(grids.items()):
      ns = sorted({run.head["n"] for run in runs})
      for n in ns:
        C, avg, reward = reanalysis.mean_curve(
            [run for run in runs if run.head["n"] == n])
        look = dict(color=f"C{i}", lw=1, marker=MARKERS[n], ms=3, alpha=0.8)
        left.plot(C[1:], avg[1:], **look)
        right.plot(reward[1:], avg[1:], **look,
                   label=name if n == ns[0] else None)
    left.set_xscale("log", base=2)
    left.set_xlabel("rollouts, C")
    left.set_ylabel("avg@8 on validation problems")
    left.set_title("n decides when, D how far")
    right.set_xlabel("training reward")
    right.set_title("one curve of each D")
    shapes = [Line2D([], [], color="0.4", lw=0, marker=marker, ms=4,
                     label=f"n = {n}") for n, marker in MARKERS.items()]
    left.legend(handles=shapes, fontsize=7, ncols=2, frameon=False)
    right.legend(fontsize=7, frameon=False)
  return figure


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
