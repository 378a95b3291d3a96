"""Draws the figures of a parsed fit.json, one function each.

The same n has the same colour and marker in all of them.
"""

import math
import os

import numpy as np
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN
from matplotlib.markers import CARETUP
from matplotlib.ticker import FixedLocator
from matplotlib.ticker import FuncFormatter

from isojax.format import compact, number, pair, rate, signed
from isojax.frontier.labels import axis_of, metric_of, of_x0, run_of
from isojax.frontier.report import axes as axes_lib
from isojax.frontier.report import plots_frontier
from isojax.frontier.report.axes import GREY, WIDTH, C_axis, colour_of
from isojax.frontier.report.axes import floats, marker_of, n_axis, styled
from isojax.frontier.report.plots_frontier import law
from isojax.frontier.report.plots_frontier import reward
from isojax.frontier.report.sections import IN_COLUMN

MOST = 6  # runs in a figure that draws runs


def chosen(rows: list[dict]) -> list[dict]:
  """Returns at most MOST runs, one per configuration.

  The smallest and the largest n of each Bp come before the others.
  """
  first = {(row["Bp"], row["n"]): row for row in reversed(rows)}
  ns = {Bp: [n for b, n in first if b == Bp] for Bp, _ in first}
  ends = sorted(c for c in first if c[1] in (min(ns[c[0]]), max(ns[c[0]])))
  if len(ends) > MOST:
    picked = [ends[i * (len(ends) - 1) // (MOST - 1)] for i in range(MOST)]
  else:
    picked = (ends + sorted(set(first) - set(ends)))[:MOST]
  return [first[cell] for cell in sorted(picked)]


def _few(low: float, high: float, *, most: int) -> list[float]:
  """Returns at most `most` round ticks of a logarithmic axis."""
  for subs in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8), (1, 1.5, 2, 3, 5, 7),
               (1, 2, 5), (1, 3), (1,)):
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [s * 10.0**p for p in powers for s in subs
             if low <= s * 10.0**p <= high]
    if 1 < len(ticks) <= most:
      return ticks
  return np.linspace(low, high, 4)[1:3].tolist()


def _draw_sensitivity(ax, row: dict, study: dict):
  """Draws one panel of `sensitivity`."""
  by_n, count = row["varied"] == "n", len(row["values"])
  ax.axhspan(min(row["reward"]), max(row["reward"]), color="0.93", lw=0)
  for i, value in enumerate(row["values"]):
    n = value if by_n else row["held"]
    style = dict(color=colour_of(n, study["n"]),
                 marker=marker_of(n, study["n"]), ms=6, lw=2)
    ax.plot([i] * 3, [row[key][i] for key in ("low", "reward", "high")],
            markevery=[1], **style)
    ax.plot(i + 0.25, row["best_seen"][i], mfc="white",
            **{**style, "color": GREY, "ms": 4})
  ax.set_xticks(range(count), row["values"], fontsize=7.5,
                rotation=90 if count * ax.get_gridspec().ncols > 20 else 0)
  ax.set_xlim(-0.6, count - 0.3)
  ax.set_xlabel(
      "n, rollouts per problem" if by_n else "Bp, problems per batch")
  ax.set_title(
      f"{'Bp' if by_n else 'n'} = {row['held']}, {axis_of(study)[0]} = "
      f"{compact(row['C'])}\nmax − min {rate(row['spread'])} "
      f"{pair(row['spread_interval'], rate)}", fontsize=7.5)


@styled
def sensitivity(document: dict) -> Figure:
  """Returns reward over n at each Bp, and over Bp at each n, at one C each.

  Points instead of bars, because bars start at 0 and hide small differences.
  """
  study, rows = document["study"], document["sensitivity"]
  columns = min(4, max(2, len(rows)))
  groups = [[r for r in rows if r["varied"] == name] for name in ("n", "Bp")]
  lines = [group[i:i + columns] for group in groups
           for i in range(0, len(group), columns)]
  figure = Figure((WIDTH, 0.4 + 2.8 * len(lines)), layout="constrained")
  axes = figure.subplots(len(lines), columns, sharey=True, squeeze=False)
  for line, axes_line in zip(lines, axes):
    axes_line[0].set_ylabel(f"reward, {metric_of(study, study['metric'])}")
    for ax in axes_line[len(line):]:
      ax.axis("off")
    for row, ax in zip(line, axes_line):
      _draw_sensitivity(ax, row, study)
  figure.suptitle(
      "filled: fitted curve with 95% interval; grey: max − min of the curves; "
      "hollow: best single evaluation", fontsize=8.5, x=0.01, ha="left")
  return figure


@styled
def best_n(document: dict) -> Figure:
  """Returns the best n of each metric and Bp, with 95 % of the draws."""
  study, rows = document["study"], document["best_n"]
  rows = sorted(rows, key=lambda row: row["Bp"])
  figure = Figure((WIDTH, 0.9 + 0.3 * len(rows)), layout="constrained")
  ax = figure.subplots()
  for y, row in enumerate(rows):
    ax.axhline(y, color="0.9", lw=0.6, zorder=0)
    if row["n"] is None:
      told, colour = row["why"], "0.3"
    else:
      colour = colour_of(row["n"], study["n"])
      ax.plot(row["n_interval"], [y, y], color=colour, lw=2)
      ax.plot(row["n"], y, marker_of(row["n"], study["n"]), color=colour, ms=7)
      told = f"n = {row['n']}, {row['agreeing']:.0%} of the draws"
    ax.text(1.01, y, told, transform=ax.get_yaxis_transform(), va="center",
            fontsize=8, color="0.2")
  n_axis(ax, "x", study["n"])
  ax.set_xlim(min(study["n"]) / 1.4, max(study["n"]) * 1.4)
  ax.set_ylim(len(rows) - 0.4, -0.6)
  ax.set_yticks(range(len(rows)), [
      f"{metric_of(study, row['metric'])}, Bp = {row['Bp']}" for row in rows])
  ax.set_xlabel("best n, rollouts per problem; line: 95% of the draws")
  return figure


@styled
def scalerl(document: dict) -> Figure:
  """Returns the ScaleRL fits, and their linearised form F(R) below.

  Points that were not fitted are hollow, curves beyond them dashed. F / C_mid^B
  is a line of slope B that is 1 at C_mid, in any unit of C.
  """
  study = document["study"]
  figure = Figure((WIDTH, 8.0), layout="constrained")
  top, bottom = figure.subplots(2, 1, height_ratios=[4, 3])
  ends, margin = [], []
  for i, row in enumerate(chosen(document["scalerl"])):
    colour, mark = (f(row["n"], study["n"]) for f in (colour_of, marker_of))
    C, R, C_G, R_G = floats(row, "C", "reward", "curve_C", "curve_reward")
    edge = C.max() if row["fit_below"] is None else row["fit_below"]
    with np.errstate(divide="ignore", invalid="ignore"):
      odds = (R - row["R0"]) / (row["A"] - R)
      odds[~((row["R0"] < R) & (R < row["A"]))] = np.nan
    line_G = (C_G / row["C_mid"]) ** row["B"]
    ends += [line_G[0], line_G[-1]]
    for ax, y, line in ((top, R, R_G), (bottom, odds, line_G)):
      last = np.searchsorted(C_G, edge, side="right")
      for fill, dash, part, part_G in (
          (colour, "-", C <= edge, slice(last)),
          ("white", "--", C > edge, slice(max(last - 1, 0), None))):
        ax.plot(C[part], y[part], mark, color=colour, mfc=fill, ms=3.5, mew=0.7,
                alpha=0.6)
        ax.plot(C_G[part_G], line[part_G], dash, color=colour, lw=1.8)
    if row["power_law_curve_reward"] is not None:
      power_law, = floats(row, "power_law_curve_reward")
      top.plot(C_G, power_law, ":", color=colour, lw=1.2)
    margin.append((1.015 + 0.02 * i, row, mark, colour))
    top.axhline(row["A"], alpha=0)  # the axis reaches every A
    bottom.plot([], [], marker=mark, color=colour, label=(
        f"{run_of(row)}: A = {row['A']:.3f}"
        f"{' (bound)' * row['A_at_edge']}, B = {row['B']:.2f}"))
  low, high = top.get_ylim()
  top.set_ylim(low, high)
  for x, row, mark, colour in margin:
    at = dict(transform=top.get_yaxis_transform(), clip_on=False, color=colour)
    top.plot(x, row["A"], mark, ms=5, **at)
    ends = np.clip(row["A_interval"], low, high)
    top.plot([x, x], ends, lw=1.5, **at)
    for end, drawn, beyond in zip(row["A_interval"], ends,
                                  (CARETDOWN, CARETUP)):
      if end != drawn:  # the interval ends outside of the axis
        top.plot(x, drawn, marker=beyond, ms=6, **at)
  top.set_title(
      "right margin: asymptote A with its 95% interval (arrow: beyond the axis)"
      "\ndashed: beyond the fitted points; dotted: power law")
  figure.get_layout_engine().set(rect=(0, 0, 0.98, 1))  # markers in the margin
  top.set_ylabel(f"reward, {metric_of(study, study['metric'])}")
  bottom.set_yscale("log")
  for set_formatter in (bottom.yaxis.set_major_formatter,
                        bottom.yaxis.set_minor_formatter):
    set_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
  least, most = max(min(ends) / 3, 1e-3), min(max(ends) * 3, 1e3)
  bottom.set_ylim(least, most)
  bottom.set_title(f"drawn from {least:.2g} to {number(most)}; near R0 and A "
                   "it is mostly noise")
  bottom.axhline(1, color=GREY, lw=0.6, ls=":")
  bottom.set_ylabel("F(R) / C_mid^B = (R − R0) / (A − R)")
  bottom.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
  for ax in (top, bottom):
    C_axis(ax, study)
  return figure


@styled
def interference(document: dict) -> Figure:
  """Returns histograms of the problems' pass rates over time, a row per run."""
  study, rows = document["study"], chosen(document["interference"])
  figure = Figure((WIDTH, 1.95 * len(rows) + 0.1), layout="constrained")
  top = max(max(counts) for row in rows for counts in row["histograms"])
  parts = np.atleast_1d(figure.subfigures(len(rows), 1))
  for row, part in zip(rows, parts):
    part.suptitle(
        f"{run_of(row)}: score "
        f"{signed(row['score'])} {pair(row['score_interval'], signed)}",
        x=0.01, ha="left", fontsize=9)
    axes = part.subplots(1, len(row["C"]), sharey=True, squeeze=False)[0]
    axes[0].set_ylabel("problems")
    for ax, C, mean, counts in zip(axes, row["C"], row["mean"],
                                   row["histograms"]):
      bars = ax.bar(range(12), counts, 0.9,
                    color=colour_of(row["n"], study["n"]))
      for end in (bars[0], bars[-1]):
        end.set(hatch="////", edgecolor="white")
      ax.set_xticks([0, 3, 5.5, 8, 11], fontsize=7,
                    labels=["never", "0.25", "0.5", "0.75", "always"])
      ax.set_ylim(0, 1.05 * top)
      ax.set_title(f"{axis_of(study)[0]} = {compact(C)}, mean {mean:.3f}",
                   fontsize=8)
  parts[-1].supxlabel("pass rate of a problem", fontsize=8.5)
  return figure


@styled
def variants(document: dict) -> Figure:
  """Returns C0 and n at the end of the data for each choice of the analysis."""
  study, fitted, rows = (document[k] for k in ("study", "law", "variants"))
  figure = Figure((WIDTH, 1.0 + 0.3 * len(rows)), layout="constrained")
  left, right = figure.subplots(1, 2, sharey=True)
  for y, row in enumerate(rows):
    for ax, x in ((left, of_x0(study, row["log10_C0"])),
                  (right, row["n_at_end"])):
      ax.axhline(y, color="0.9", lw=0.6, zorder=0)
      if x is None:
        ax.text(0.5, y, "no law", transform=ax.get_yaxis_transform(),
                ha="center", va="center", color="0.3")
      else:
        ax.plot(x, y, "o" if y else "D", color="black" if y else "C3", ms=6)
  if fitted is not None:
    left.axvspan(*(of_x0(study, x) for x in fitted["intervals"]["x0"]),
                 color="0.88", lw=0, zorder=0)
    right.axvspan(fitted["low"][-1], fitted["high"][-1], color="0.88", lw=0,
                  zorder=0)
  left.set_yticks(range(len(rows)), [row["name"] for row in rows])
  left.invert_yaxis()
  C_axis(left, study)
  left.xaxis.set_major_locator(FixedLocator(_few(*left.get_xlim(), most=6)))
  left.xaxis.set_minor_locator(FixedLocator([]))
  left.set_xlabel("{}0, {}".format(*axis_of(study)))
  left.set_title("grey: 95% interval as reported")
  n_axis(right, "x", study["n"])
  right.set_xlim(min(study["n"]) / 1.4, max(study["n"]) * 1.4)
  right.set_xlabel("n* at the end of the data")
  return figure


FIGURES = {"reward": reward, "law": law, "variants": variants,
           "sensitivity": sensitivity, "best_n": best_n,
           "interference": interference, "scalerl": scalerl}
COLUMNS = {"reward": plots_frontier.reward_column,
           "law": plots_frontier.law_column}
OF_FRONTIER = ("reward", "law")  # the others draw the key of their own name


def drawable(document: dict) -> list[str]:
  """Returns the names of the figures that have data."""
  return [name for name in FIGURES
          if document["frontier" if name in OF_FRONTIER else name]
          and not (name == "law" and document["frontier"]["tied"])]


def save(document: dict, out: str) -> list[str]:
  """Writes each figure that has data and returns the paths.

  The figures of COLUMNS are written again, one column wide.
  """
  os.makedirs(out, exist_ok=True)
  paths = []
  for name in drawable(document):
    paths += axes_lib.save(FIGURES[name](document), out, name)
    if name in COLUMNS:
      paths += axes_lib.save(COLUMNS[name](document), out,
                             f"{name}{IN_COLUMN}", ("svg", "pdf"))
  return paths
