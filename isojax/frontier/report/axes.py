"""Style of the figures: axes of C and n, and one colour and marker per n."""

import math

import matplotlib
import numpy as np
from matplotlib.ticker import FixedLocator
from matplotlib.ticker import FuncFormatter
from matplotlib.ticker import LogLocator
from matplotlib.ticker import NullFormatter

from isojax.format import compact
from isojax.frontier.labels import axis_of

WIDTH = 8.0  # inches
GREY = "0.45"
MARKERS = "os^DvPX*<>phd"
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "legend.fontsize": 8,
         "svg.hashsalt": "isojax",
         "text.parse_math": False}  # a run may be named $x$
styled = matplotlib.rc_context(STYLE)  # a decorator, applied at each call


def colour_of(n: int, tested) -> tuple:
  """Returns viridis over log2 n, without its end, too light on white."""
  low, high = math.log2(min(tested)), math.log2(max(tested))
  at = (math.log2(n) - low) / (high - low) if high > low else 0.5
  return matplotlib.colormaps["viridis"](0.9 * at)


def marker_of(n: int, tested) -> str:
  """Returns the marker of n among the tested n."""
  return MARKERS[sorted(tested).index(n) % len(MARKERS)]


def floats(row: dict, *keys: str) -> list[np.ndarray]:
  """Returns these lists of a row as arrays; null becomes NaN."""
  return [np.array(row[key], float) for key in keys]


def C_axis(ax, study: dict, *, log: bool = True, subs=(1, 2, 5)):
  """Makes the horizontal axis one of compute."""
  if log:
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=30))
    ax.xaxis.set_minor_formatter(NullFormatter())
  ax.xaxis.set_major_formatter(FuncFormatter(compact))
  ax.set_xlabel("{}, {}".format(*axis_of(study)))


def n_axis(ax, name: str, tested):
  """Makes axis `name` logarithmic with a tick at each tested value."""
  getattr(ax, f"set_{name}scale")("log")
  axis = getattr(ax, f"{name}axis")
  axis.set_major_locator(FixedLocator(sorted(tested)))
  axis.set_minor_locator(FixedLocator([]))
  axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
