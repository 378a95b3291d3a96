"""Figures of a fit document; they draw what it holds and fit nothing.

One function a figure. The same n has the same colour and marker in all.
"""

import math
import os

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator
from matplotlib.ticker import FuncFormatter
from matplotlib.ticker import LogLocator
from matplotlib.ticker import NullFormatter

from isojax.frontier.words import axis_of
from isojax.frontier.words import compact
from isojax.frontier.words import metric_of
from isojax.frontier.words import number
from isojax.frontier.words import of_x0
from isojax.frontier.words import pair
from isojax.frontier.words import parameters
from isojax.frontier.words import rate
from isojax.frontier.words import run_of
from isojax.frontier.words import signed

WIDTH, DPI = 8.0, 150  # inches: 1200 px
MOST = 6  # runs in a figure that draws runs
GREY = "0.45"
MARKERS = "os^DvPX*<>phd"
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "legend.fontsize": 8,
         "svg.hashsalt": "isojax",
         "text.parse_math": False}  # a run may be named $x$
styled = matplotlib.rc_context(STYLE)  # a decorator, entered at each call


def colour_of(n: int, tested) -> tuple:
  """Viridis over log2 n, without its end that vanishes on white."""
  low, high = math.log2(min(tested)), math.log2(max(tested))
  at = (math.log2(n) - low) / (high - low) if high > low else 0.5
  return matplotlib.colormaps["viridis"](0.9 * at)


def marker_of(n: int, tested) -> str:
  return MARKERS[sorted(tested).index(n) % len(MARKERS)]


def chosen(rows: list[dict]) -> list[dict]:
  """One run a configuration; the ends of n at each Bp before the others."""
  first = {(row["Bp"], row["n"]): row for row in reversed(rows)}
  ns = {Bp: [n for b, n in first if b == Bp] for Bp, _ in first}
  ends = sorted(c for c in first if c[1] in (min(ns[c[0]]), max(ns[c[0]])))
  if len(ends) > MOST:
    picked = [ends[i * (len(ends) - 1) // (MOST - 1)] for i in range(MOST)]
  else:
    picked = (ends + sorted(set(first) - set(ends)))[:MOST]
  return [first[cell] for cell in sorted(picked)]


def spread(at, gap: float, low: float, high: float) -> np.ndarray:
  """Increasing positions moved apart to `gap`, ending at `high` at most."""
  steps = gap * np.arange(len(at))
  at = np.maximum.accumulate(np.maximum(at, low) - steps) + steps
  return np.minimum(at, high - steps[::-1])


def _floats(row: dict, *keys: str) -> list[np.ndarray]:
  return [np.array(row[key], float) for key in keys]  # null is NaN


def _in_axes(ax, points) -> np.ndarray:
  """Data to axes coordinates, before any layout is known."""
  return (ax.transScale + ax.transLimits).transform(points)


def _C_axis(ax, study: dict, *, log: bool = True, subs=(1, 2, 5)):
  if log:
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=30))
    ax.xaxis.set_minor_formatter(NullFormatter())
  ax.xaxis.set_major_formatter(FuncFormatter(compact))
  ax.set_xlabel("{}, {}".format(*axis_of(study)))


def _few(low: float, high: float, *, most: int) -> list[float]:
  """Round ticks of a logarithmic axis, as many as have room."""
  for subs in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8), (1, 1.5, 2, 3, 5, 7),
               (1, 2, 5), (1, 3), (1,)):
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [s * 10.0**p for p in powers for s in subs
             if low <= s * 10.0**p <= high]
    if 1 < len(ticks) <= most:
      return ticks
  return np.linspace(low, high, 4)[1:3].tolist()


def _n_axis(ax, name: str, tested):
  """A logarithmic axis with a tick at each value tested."""
  getattr(ax, f"set_{name}scale")("log")
  axis = getattr(ax, f"{name}axis")
  axis.set_major_locator(FixedLocator(sorted(tested)))
  axis.set_minor_locator(FixedLocator([]))
  axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _stretches(frontier: dict) -> list[tuple]:
  """(first C, last C, Bp, n, resolved) with one leader, from where the curves
  cross."""
  C, change = frontier["C"], frontier["change"]
  rows = list(zip(frontier["Bp"], frontier["n"], frontier["resolved"]))
  starts = [i for i, row in enumerate(rows) if i and row != rows[i - 1]]
  edges = [C[0], *(C[i] if change[i - 1] is None else change[i - 1]
                   for i in starts), C[-1]]
  return [(*edges[i:i + 2], *rows[at]) for i, at in enumerate([0, *starts])]


def _draw_curves(ax, document, curves, *, points: bool):
  """Measured points, and curves that are dashed beyond their data."""
  tested = document["study"]["n"]
  cells = {(c["Bp"], c["n"]) for c in curves}
  many = sum(len(run["C"]) for run in document["study"]["runs"]) > 600
  for run in document["study"]["runs"] if points else ():
    if (run["Bp"], run["n"]) in cells:
      ax.scatter(*_floats(run, "C", "reward"), s=9, lw=0, rasterized=True,
                 alpha=0.25 if many else 0.6,
                 color=colour_of(run["n"], tested),
                 marker=marker_of(run["n"], tested))
  for c in curves:
    (C, R), end = _floats(c, "C", "reward"), c["C_hi"]
    R_end, seen = np.interp(end, C, R), C <= end
    style = dict(color=colour_of(c["n"], tested), lw=1)
    ax.plot([*C[seen], end], [*R[seen], R_end], **style)
    ax.plot([end, *C[~seen]], [R_end, *R[~seen]], "--", **style)


def _label_ends(ax, document, curves, *, inches: float, columns: int):
  """n at the right margin of each curve; the size of the axes sets the gaps."""
  tested, edge = document["study"]["n"], ax.get_xlim()[1]
  value = lambda c: float(np.interp(edge, *_floats(c, "C", "reward")))
  curves = sorted(curves, key=value)
  height = _in_axes(ax, [(edge, value(c)) for c in curves])[:, 1].clip(0, 1)
  for c, y0, y in zip(curves, height, spread(height, 0.14 / inches, 0, 1)):
    at = dict(clip_on=False, transform=ax.transAxes)
    style = dict(color=colour_of(c["n"], tested), **at)
    ax.plot([1, 1 + 0.03 * columns], [y0, y], lw=0.8, **style)
    ax.plot(1 + 0.035 * columns, y, marker_of(c["n"], tested), ms=4, **style)
    ax.text(1 + 0.05 * columns, y, f"n = {c['n']}", va="center", fontsize=7.5,
            **at)


def _draw_envelope(ax, document):
  """The thick frontier, and above it a ribbon that names who leads where."""
  study, frontier = document["study"], document["frontier"]
  C, R, low, high = _floats(frontier, "C", "reward", "low", "high")
  by_n = study["regime"] == "fixed_Bp"
  if frontier["tied"]:
    ax.plot(C, R, color=GREY, lw=4)
    ax.set_title("no n differs")
    return
  labels, before = [], None  # width and middle in the axes, name
  for start, end, Bp, n, resolved in _stretches(frontier):
    colour = colour_of(n, study["n"])
    part = np.array([start, *C[(start < C) & (C < end)], end])
    R_part, low_part, high_part = (np.interp(part, C, y)
                                   for y in (R, low, high))
    ax.plot(part, R_part, ls="-" if resolved else (0, (1.5, 1)), lw=4,
            color=colour, zorder=4, solid_capstyle="butt",
            path_effects=[withStroke(linewidth=6, foreground="white")])
    ax.fill_between(part, low_part, high_part, color=colour, alpha=0.15, lw=0,
                    zorder=0)
    ax.axvspan(start, end, 0.965, 1, color=colour, lw=0,
               alpha=1 if resolved else 0.35)
    if before not in (None, (Bp, n)):
      ax.axvline(start, color=GREY, lw=0.6, ls=":", zorder=1)
      ax.plot(start, R_part[0], "o", mfc="white", mec="black", ms=5, zorder=5)
    before = Bp, n
    left, right = _in_axes(ax, [(start, 0), (end, 0)])[:, 0]
    name = (f"n = {n}" if by_n else f"{Bp}×{n}") + "?" * (not resolved)
    labels.append((right - left, (left + right) / 2, name))
  at = dict(clip_on=False, transform=ax.transAxes)
  gap = 0.0125 * max(len(name) for *_, name in labels) + 0.01
  widest = sorted(labels, reverse=True)[:int(0.95 / gap)]  # a name for these
  labels = sorted(widest, key=lambda label: label[1])
  places = spread([middle for _, middle, _ in labels], gap, 0.03, 0.98)
  for (_, middle, name), x in zip(labels, places):
    ax.plot([middle, x], [1, 1.035], color="black", lw=0.6, **at)
    ax.text(x, 1.045, name, ha="center", fontsize=8, **at)
  if not by_n:
    ax.text(-0.01, 1.045, "Bp×n", ha="right", fontsize=8, **at)


def _reward_axes(figure, place, document, *, log: bool = True, subs=(1, 2, 5)):
  study, C = document["study"], document["frontier"]["C"]
  ax, start = figure.add_subplot(place), C[0] if log else 0.0
  _C_axis(ax, study, log=log, subs=subs)
  ax.set_xlim(start * 0.95 if log else -0.015 * C[-1],  # a point at 0 is whole
              C[-1] * (1.3 if log else 1.15))
  seen = np.concatenate(_floats(document["frontier"], "low", "high") + [
      R[x >= start] for x, R in (
          _floats(run, "C", "reward") for run in study["runs"])])
  low, high = np.nanmin(seen), np.nanmax(seen)
  pad = (high - low) or 0.1
  ax.set_ylim(low - 0.03 * pad, high + 0.12 * pad)
  if not place.colspan.start:
    ax.set_ylabel(f"reward, {metric_of(study, study['metric'])}")
  return ax


@styled
def reward(document: dict) -> Figure:
  """Reward against C with its envelope; with several Bp, a panel for each."""
  study, frontier = document["study"], document["frontier"]
  start, end = frontier["C"][0], frontier["C"][-1]
  leaders = {(Bp, n) for _, _, Bp, n, _ in _stretches(frontier)}
  joint = study["regime"] == "joint"
  columns = (2 if len(study["Bp"]) in (2, 4) else 3) if joint else 1
  rows = -(-len(study["Bp"]) // columns) if joint else 0
  figure = Figure((WIDTH, 8.4 + 3.2 * rows), layout="constrained")
  grid = figure.add_gridspec(2 + rows, columns,
                             height_ratios=[4.2] * 2 + [3.2] * rows)
  shown = [c for c in document["curves"]
           if not joint or (c["Bp"], c["n"]) in leaders]
  for row, log in enumerate((True, False)):
    ax = _reward_axes(figure, grid[row, :], document, log=log)
    _draw_curves(ax, document, shown, points=True)
    _draw_envelope(ax, document)
    if not joint:
      _label_ends(ax, document, shown, inches=3.4, columns=1)
  for i, Bp in enumerate(study["Bp"] if joint else ()):
    ax = _reward_axes(figure, grid[2 + i // columns, i % columns], document,
                      subs=(1, 3) if end < 100 * start else (1,))
    ax.set_title(f"Bp = {Bp}; grey: the envelope")
    ax.plot(frontier["C"], frontier["reward"], lw=5, color="0.85", zorder=0)
    members = [c for c in document["curves"] if c["Bp"] == Bp]
    _draw_curves(ax, document, members, points=False)
    _label_ends(ax, document, members, inches=2.5, columns=columns)
  return figure


def _draw_law(ax, document, key: str, of_n):
  """Points of the frontier (hollow: unresolved), law and band."""
  study, frontier, fitted = (document[k] for k in ("study", "frontier", "law"))
  for C, y, n, known, sure in zip(
      *(frontier[k] for k in ("C", key, "n", "resolved", "agreeing"))):
    colour = colour_of(n, study["n"])
    ax.plot(C, y, marker_of(n, study["n"]), ms=5.5, zorder=3, mew=0.6,
            alpha=0.2 + 0.8 * sure, mec="white" if known else colour,
            mfc=colour if known else "white")
  ends = min(study[key]) / 2**0.7, max(study[key]) * 2**0.8
  if fitted is not None:
    C, n, low, high = _floats(fitted, "C", "n", "low", "high")
    band = np.array([of_n(low), of_n(high)])
    cut = " (cut)" * bool(band.min() < ends[0] or band.max() > ends[1])
    seen = (C >= fitted["C_seen"][0]) & (C <= fitted["C_seen"][1])
    ax.fill_between(C, of_n(low), of_n(high), color="0.85", lw=0,
                    label=f"95% band of the law{cut}")
    ax.plot(C, of_n(n), "k--", lw=1)
    ax.plot(C[seen], of_n(n)[seen], "k-", lw=1.6, label="law")
  _C_axis(ax, study)
  _n_axis(ax, "y", study[key])
  ax.set_xlim(frontier["C"][0] / 1.1, frontier["C"][-1] * 1.1)
  ax.set_ylim(*ends)


@styled
def law(document: dict) -> Figure:
  """n*(C) with the frontier's points; at a fixed batch also Bp*(M) = B / n*."""
  study, fitted, frontier = (document[k] for k in ("study", "law", "frontier"))
  tested, symbol = study["n"], axis_of(study)[0]
  two = study["regime"] == "fixed_B"
  figure = Figure((WIDTH, 7.2 if two else 4.6), layout="constrained")
  axes = figure.subplots(1 + two, 2, width_ratios=[1, 0.32], squeeze=False)
  (ax, side), told = axes[0], ["no law was fitted"]
  _draw_law(ax, document, "n", lambda n: n)
  if fitted is not None:
    x0 = fitted["M0" if fitted["kind"] == "fixed_batch" else "log10_C0"]
    halfway = 2 ** (fitted["b"] + fitted["L"] / 2)
    ends = [of_x0(study, x) for x in fitted["intervals"]["x0"]]
    held = np.clip(ends, frontier["C"][0], frontier["C"][-1])
    ax.plot(held, [halfway] * 2, color="C3", lw=2, zorder=4)
    for end, at, beyond in zip(ends, held, "<>"):  # arrows: it goes on
      ax.plot(at, halfway, "|" if end == at else beyond, color="C3", ms=9,
              zorder=4)
    ax.plot(of_x0(study, x0), halfway, "D", color="C3", mfc="white", ms=7,
            zorder=5)
    ax.plot([], [], "-D", color="C3", mfc="white",
            label=f"{symbol}0, halfway in log2 n,\nwith its 95% interval")
    told = ["the law is identified" if document["verdict"]["identified"] else
            "the law is NOT identified:\nno advice rests on it"]
    told += [f"{name}\n   {value}  {interval}".replace(" (bound", "\n   (bound")
             for name, value, interval in parameters(document)]
  ax.axhline(max(tested), color=GREY, lw=1)
  ax.annotate("largest n tested", (0, max(tested)), (4, 3), color="0.3",
              xycoords=("axes fraction", "data"), textcoords="offset points")
  ax.set_ylabel(f"n*({symbol}), rollouts per problem")
  ax.plot([], [], "o", color=GREY,
          label="best n tested, faint\nwhere draws disagree")
  if not all(frontier["resolved"]):
    ax.plot([], [], "o", color=GREY, mfc="white", label="the same, unresolved")
  side.text(0, 1, "\n\n".join(told), va="top", fontsize=8)
  side.legend(*ax.get_legend_handles_labels(), loc="lower left",
              borderaxespad=0)
  for side in axes[:, 1]:
    side.axis("off")
  if two:
    B = frontier["Bp"][0] * frontier["n"][0]
    _draw_law(axes[1, 0], document, "Bp", lambda n: B / n)
    axes[1, 0].set_ylabel(f"Bp*(M) = {B} / n*(M), problems per batch")
  return figure


def _draw_sensitivity(ax, row: dict, study: dict):
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
  """Reward over n at each Bp, and over Bp at each n, at one C a panel.

  Points and not bars: bars would start at 0 and hide what differs.
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
  """The best n of each metric at each Bp, with 95% of the bootstrap draws."""
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
  _n_axis(ax, "x", study["n"])
  ax.set_xlim(min(study["n"]) / 1.4, max(study["n"]) * 1.4)
  ax.set_ylim(len(rows) - 0.4, -0.6)
  ax.set_yticks(range(len(rows)), [
      f"{metric_of(study, row['metric'])}, Bp = {row['Bp']}" for row in rows])
  ax.set_xlabel("best n, rollouts per problem; line: 95% of the draws")
  return figure


@styled
def scalerl(document: dict) -> Figure:
  """ScaleRL fits, hollow and dashed beyond what was fitted; F(R) below.

  F over C_mid^B is a line of slope B that is 1 at C_mid, for any unit of C.
  """
  study = document["study"]
  figure = Figure((WIDTH, 8.0), layout="constrained")
  (top, bottom), ends = figure.subplots(2, 1, height_ratios=[4, 3]), []
  for i, row in enumerate(chosen(document["scalerl"])):
    colour, mark = (f(row["n"], study["n"]) for f in (colour_of, marker_of))
    C, R, C_G, R_G = _floats(row, "C", "reward", "curve_C", "curve_reward")
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
      power_law, = _floats(row, "power_law_curve_reward")
      top.plot(C_G, power_law, ":", color=colour, lw=1.2)
    at = dict(transform=top.get_yaxis_transform(), clip_on=False, color=colour)
    x = 1.015 + 0.02 * i
    top.plot(x, row["A"], mark, ms=5, **at)
    top.plot([x, x], row["A_interval"] or [row["A"]] * 2, lw=1.5, **at)
    bottom.plot([], [], marker=mark, color=colour, label=(
        f"{run_of(row)}: A = {row['A']:.3f}"
        f"{' (bound)' * row['A_at_edge']}, B = {row['B']:.2f}"))
  top.set_title("right margin: asymptote A ± the margin between equal runs; "
                "dashed: beyond the fitted points; dotted: power law")
  figure.get_layout_engine().set(rect=(0, 0, 0.98, 1))  # markers in the margin
  top.set_ylabel(f"reward, {metric_of(study, study['metric'])}")
  bottom.set_yscale("log")
  bottom.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
  least, most = max(min(ends) / 3, 1e-3), min(max(ends) * 3, 1e3)
  bottom.set_ylim(least, most)
  bottom.set_title(f"drawn from {least:.2g} to {number(most)}: next to R0 and "
                   "A it is mostly noise")
  bottom.axhline(1, color=GREY, lw=0.6, ls=":")
  bottom.set_ylabel("F(R) / C_mid^B = (R − R0) / (A − R)")
  bottom.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
  for ax in (top, bottom):
    _C_axis(ax, study)
  return figure


@styled
def interference(document: dict) -> Figure:
  """Histograms of the problems' pass rates as a run goes on, a row a run."""
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
  """C0 and n at the end of the data as each choice of the analysis changes."""
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
  _C_axis(left, study)
  left.xaxis.set_major_locator(FixedLocator(_few(*left.get_xlim(), most=6)))
  left.xaxis.set_minor_locator(FixedLocator([]))
  left.set_xlabel("{}0, {}".format(*axis_of(study)))
  left.set_title("grey: 95% interval as reported")
  _n_axis(right, "x", study["n"])
  right.set_xlim(min(study["n"]) / 1.4, max(study["n"]) * 1.4)
  right.set_xlabel("n* at the end of the data")
  return figure


FIGURES = {"reward": reward, "law": law, "variants": variants,
           "sensitivity": sensitivity, "best_n": best_n,
           "interference": interference, "scalerl": scalerl}
OF_FRONTIER = ("reward", "law")  # the others draw the document's key of a name


def save(document: dict, out: str) -> list[str]:
  """Writes each figure that has data as PNG and SVG; their paths."""
  os.makedirs(out, exist_ok=True)
  paths = []
  for name, draw in FIGURES.items():
    if not document["frontier" if name in OF_FRONTIER else name] or (
        name == "law" and document["frontier"]["tied"]):
      continue
    figure = draw(document)
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
      paths.append(os.path.join(out, f"{name}.{kind}"))
      with matplotlib.rc_context(STYLE):
        figure.savefig(paths[-1], dpi=DPI, metadata=metadata)
  return paths
