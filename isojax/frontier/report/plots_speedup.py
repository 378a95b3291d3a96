"""Draws the figure of launch.speedup from a parsed speedup.json."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from isojax.format import compact, number
from isojax.frontier.report import axes
from isojax.frontier.report.axes import GREY, MARKERS, WIDTH, styled


def _label(arm: dict, unit: str) -> str:
  """Returns the legend of an arm: its speed-up and interval."""
  if arm["ratio"] is None:
    return f"{arm['name']}: never"
  text = f"{arm['name']}: {number(arm['time'])} {unit}, {arm['ratio']:.2f}x"
  if arm["interval"]:
    text += " [{:.2f}, {:.2f}]".format(*arm["interval"][::2])
  return text


@styled
def curves(document: dict) -> Figure:
  """Returns reward against compute: runs thin, means thick, T dashed."""
  unit = document["axis"].replace("_", " ")
  base = document["baseline"]
  rows = [(base, "black", "o",
           f"{base['name']}: {number(base['time'])} {unit}")]
  colours = matplotlib.colormaps[axes.PALETTE](
      np.linspace(0.1, axes.LIGHTEST, len(document["arms"])))
  rows += [(arm, colour, MARKERS[(i + 1) % len(MARKERS)], _label(arm, unit))
           for i, (arm, colour) in enumerate(zip(document["arms"], colours))]
  figure = Figure((WIDTH, 4.6 + 0.2 * len(rows)), layout="constrained")
  ax = figure.subplots()
  for arm, colour, mark, label in rows:
    if len(arm["x_of_runs"]) > 1:
      for x, reward in zip(arm["x_of_runs"], arm["reward_of_runs"]):
        ax.plot(x, reward, color=colour, lw=0.6, alpha=0.35)
    ax.plot(arm["x"], arm["reward"], marker=mark, ms=4, lw=1.8, color=colour,
            label=label)
    if arm["time"] is not None:
      reward = float(np.interp(arm["time"], arm["x"], arm["reward"]))
      ax.plot(arm["time"], reward, mark, ms=10, mfc="none", mew=1.5,
              color=colour)
  T = document["threshold"]
  ax.axhline(T, color=GREY, lw=1, ls="--")
  ax.text(0.01, T, f"T = {T:.4g}", transform=ax.get_yaxis_transform(),
          va="bottom", color=GREY)
  ax.set_xlim(left=0)
  ax.xaxis.set_major_formatter(FuncFormatter(compact))
  ax.set_xlabel(unit)
  ax.set_ylabel(f"reward, {document['metric']}")
  ax.set_title("thick: mean over runs; thin: runs; dashed: "
               f"{document['share']:g} of the baseline's highest mean; ring: "
               "first evaluation at or above it")
  ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12))
  return figure


def save(document: dict, out: str) -> list[str]:
  """Writes the figure in every format, and returns the paths."""
  return axes.save(curves(document), out, "speedup")
