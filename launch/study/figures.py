"""The figures of the study: curves of validation, and the regret of each n.

C is the rollouts of a run so far. The only module of launch.study that imports
matplotlib.
"""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
import numpy as np

from isojax.core.format import compact
from isojax.report import plots
from launch.study import ledger, reanalysis

styled = matplotlib.rc_context(plots.STYLE | {  # a decorator
    "hatch.linewidth": 0.6, "hatch.color": "0.35"})
MAX_REGRET = 0.10  # reward; a larger regret has the same, darkest colour
WIDTH, ROW_HEIGHT = 7.0, 1.25  # inches
MARKERS = {2: "v", 4: "<", 8: "o", 16: "s", 32: "D", 64: ">", 128: "^"}


@styled
def save_curves(grids: dict[str, list], out: str) -> list[str]:
  """Draws validation against rollouts and against training reward, of each n.

  `grids` is {name of the problems: runs}; the means over seeds are drawn.
  """
  figure = Figure((WIDTH, 3.4), layout="constrained")
  left, right = figure.subplots(1, 2, sharey=True)
  for i, (name, runs) in enumerate(grids.items()):
    for n, members in ledger.by_n(runs).items():
      C, avg, reward = reanalysis.mean_curve(members)
      line_style = dict(color=f"C{i}", lw=1, marker=MARKERS[n], ms=3, alpha=0.8)
      left.plot(C[1:], avg[1:], **line_style)
      right.plot(reward[1:], avg[1:], **line_style)
    right.plot([], [], color=f"C{i}", lw=1, label=name)
  left.set_xscale("log", base=2)
  left.xaxis.set_major_formatter(compact)
  left.set_xlabel("rollouts, C")
  left.set_ylabel("avg@8 on validation problems")
  left.set_title("n sets the speed, D the height")
  right.set_xlabel("training reward")
  right.set_title("the same, by training reward")
  left.legend(handles=[
      Line2D([], [], color="0.4", lw=0, marker=marker, ms=4, label=f"n = {n}")
      for n, marker in MARKERS.items()], fontsize=7, ncols=2)
  right.legend(fontsize=7)
  return plots.write(figure, out, "curves", ("svg", "png"))


@styled
def save_regrets(rows: list[tuple[str, dict, dict]], out: str) -> list[str]:
  """Draws the regret of each n in windows of C.

  A row is (name of the problems, reanalysis.regret of training, of validation).
  """
  figure = Figure((WIDTH, ROW_HEIGHT * len(rows) + 0.9), layout="constrained")
  axes = figure.subplots(len(rows), 2, sharex=True, squeeze=False)
  for (name, *both), pair in zip(rows, axes, strict=True):
    for ax, points, what in zip(pair, both, ("training", "validation"),
                               strict=True):
      mesh = _panel(ax, points)
      ax.set_title(f"{name}: {what}")
    pair[0].set_ylabel("n")
  for ax in axes[-1]:
    ax.set_xlabel("C / D, rollouts of each training problem")
  figure.colorbar(mesh, ax=axes, location="bottom", aspect=50, extend="max",
                  label="reward behind the best n (hatched: not resolved; "
                  "line: the best n)")
  return plots.write(figure, out, "regret", ("svg", "png"))


def _panel(ax, points: dict):
  """Draws one result of reanalysis.regret."""
  ns, ends, regret = points["n"], points["C/D"], points["regret"]
  edges = np.append(ends[0] / 2, ends)  # a window begins at half its end
  rows = np.arange(len(ns) + 1) - 0.5
  mesh = ax.pcolormesh(edges, rows, regret, cmap="YlOrRd", vmin=0,
                       vmax=MAX_REGRET, edgecolors="white", linewidth=0.5)
  for row, column in np.argwhere(~points["resolved"] & (regret > 0)):
    ax.add_patch(Rectangle(
        (edges[column], rows[row]), edges[column + 1] - edges[column], 1,
        fill=False, linewidth=0, hatch="////"))
  ax.plot(ends / 2**0.5,  # the middle of a window, on the log axis
          [ns.index(n) for n in points["best"]], color="black", lw=1.2,
          marker="o", ms=3.5)
  ax.set_xscale("log", base=2)
  ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
  ax.set_xticks([2.0**i for i in range(1, 14, 2)])
  ax.set_yticks(range(len(ns)), ns)
  return mesh
