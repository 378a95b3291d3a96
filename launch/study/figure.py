"""The figure of the study: reward against rollouts of three ends."""

import matplotlib
from matplotlib.ticker import NullLocator
import numpy as np

from isojax.core.format import compact
from isojax.report import plots
from launch.study import verdicts

TITLES = {"hard": "hard problems", "easy": "easy problems",
          "smollm2": "SmolLM2-135M, sums"}
CURRENT, AVERAGE, COOLED = "0.45", "#d95f02", "#1b7837"


def draw(lines: dict):
  """A panel for each set of the ledger, in the order of TITLES."""
  names = [name for name in TITLES if verdicts.curves(lines, name)]
  with matplotlib.rc_context(plots.STYLE):
    figure = plots.Figure((plots.WIDTH, 3.4), layout="constrained")
    [row] = figure.subplots(1, len(names), squeeze=False)
    for ax, name in zip(row, names, strict=True):
      _panel(ax, lines, name)
    figure.legend(*row[0].get_legend_handles_labels(), ncols=3,
                  loc="outside upper center")
  return figure


def _panel(ax, lines: dict, name: str) -> None:
  constant, cooled = (
      verdicts.curves(lines, name, decay=decay) for decay in (0.0, 0.3))
  trunk = constant[max(constant)][1:]  # log axis: without C = 0
  ax.plot(trunk[:, 0], trunk[:, 2], color=CURRENT, lw=1.2,
          label="last weights")
  ax.plot(trunk[:, 0], trunk[:, 1], color=AVERAGE, lw=1.8, label="average")
  for C, points in sorted(cooled.items()):
    points = points[points[:, 0] >= 0.7 * C]
    ax.plot(points[:, 0], points[:, 2], color=COOLED, lw=1.8,
            label="rate falls over the last 30 %" if C == max(cooled) else None)
  _arrow(ax, trunk)
  ax.set_title(TITLES[name])
  ax.set_xscale("log", base=2)
  ax.xaxis.set_major_formatter(lambda value, _: compact(value))
  ax.xaxis.set_minor_locator(NullLocator())
  ax.set(xlabel="rollouts", ylabel="avg, validation problems")


def _arrow(ax, trunk: np.ndarray) -> None:
  """From where the average first reaches the best last weights to these."""
  end, reward = trunk[trunk[:, 2].argmax()][[0, 2]]
  begin = trunk[(trunk[:, 1] >= reward).argmax()][0]
  if trunk[:, 1].max() < reward or begin >= end:
    return
  ax.annotate("", (begin, reward), (end, reward),
              arrowprops={"arrowstyle": "->", "color": "black"})
  ax.annotate(f"{end / begin:.1f} times fewer", (end, reward), (0, -12),
              textcoords="offset points", ha="right", fontsize=8,
              bbox={"facecolor": "white", "lw": 0, "pad": 0.5, "alpha": 0.8})
