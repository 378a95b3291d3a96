"""Style of the figures: sizes, palette, axes of C and n, and file formats."""

import math
import os

import matplotlib
import numpy as np
from matplotlib.ticker import FixedLocator
from matplotlib.ticker import FuncFormatter
from matplotlib.ticker import LogLocator
from matplotlib.ticker import NullFormatter

from isojax.format import compact
from isojax.frontier.labels import axis_of

WIDTH = 8.0  # inches, of a page of the report
COLUMN = 3.3  # inches, of a column of a paper and of a phone
DPI = 150  # 1200 px of WIDTH
PALETTE = "plasma"  # for colour-blind readers too; its luminance only rises
LIGHTEST = 0.63  # of PALETTE: contrast of at least 3 with white (WCAG 1.4.11)
FORMATS = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
GREY = "0.45"
MARKERS = "os^DvPX*<>phd"
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "legend.fontsize": 8,
         "svg.hashsalt": "isojax",
         "pdf.fonttype": 42,  # fonts that journals accept
         "text.parse_math": False}  # a run may be named $x$
styled = matplotlib.rc_context(STYLE)  # a decorator, applied at each call


def colour_of(n: int, tested) -> tuple:
  """Returns the palette over log2 n, without its end, too light on white."""
  low, high = math.log2(min(tested)), math.log2(max(tested))
  at = (math.log2(n) - low) / (high - low) if high > low else 0.5
  return matplotlib.colormaps[PALETTE](LIGHTEST * at)


def marker_of(n: int, tested) -> str:
  """Returns the marker of n among the tested n."""
  return MARKERS[sorted(tested).index(n) % len(MARKERS)]


def save(figure, out: str, name: str, formats=tuple(FORMATS)) -> list[str]:
  """Writes a figure in each format and returns the paths.

  The same figure has the same bytes each time.
  """
  paths = []
  for kind in formats:
    paths.append(os.path.join(out, f"{name}.{kind}"))
    with matplotlib.rc_context(STYLE):
      figure.savefig(paths[-1], dpi=DPI, metadata=FORMATS[kind])
    figure.set_layout_engine("none")  # arranged; again would take as long
  return paths


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
