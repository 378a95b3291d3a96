"""Two figures of the frontier: reward against C, and the law n*(C)."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from isojax.frontier.labels import axis_of, metric_of, of_x0, parameters
from isojax.frontier.report.axes import COLUMN, GREY, WIDTH, C_axis, colour_of
from isojax.frontier.report.axes import floats, marker_of, n_axis, styled

WIDE = 2.6  # a label in COLUMN relative to one in WIDTH, as shares of the axis


def spread(at, gap: float, low: float, high: float) -> np.ndarray:
  """Returns increasing positions moved apart to `gap`, up to `high`."""
  steps = gap * np.arange(len(at))
  at = np.maximum.accumulate(np.maximum(at, low) - steps) + steps
  return np.minimum(at, high - steps[::-1])


def _in_axes(ax, points) -> np.ndarray:
  """Returns data coordinates as axes coordinates; needs no layout."""
  return (ax.transScale + ax.transLimits).transform(points)


def _stretches(frontier: dict) -> list[tuple]:
  """Returns (first C, last C, Bp, n, resolved) of each stretch with one leader.

  A stretch begins where the curves cross.
  """
  C, change = frontier["C"], frontier["change"]
  rows = list(zip(frontier["Bp"], frontier["n"], frontier["resolved"]))
  starts = [i for i, row in enumerate(rows) if i and row != rows[i - 1]]
  edges = [C[0], *(C[i] if change[i - 1] is None else change[i - 1]
                   for i in starts), C[-1]]
  return [(*edges[i:i + 2], *rows[at]) for i, at in enumerate([0, *starts])]


def _draw_curves(ax, document, curves, *, points: bool):
  """Draws measured points, and curves that are dashed beyond their data."""
  tested = document["study"]["n"]
  cells = {(c["Bp"], c["n"]) for c in curves}
  many = sum(len(run["C"]) for run in document["study"]["runs"]) > 600
  for run in document["study"]["runs"] if points else ():
    if (run["Bp"], run["n"]) in cells:
      ax.scatter(*floats(run, "C", "reward"), s=9, lw=0, rasterized=True,
                 alpha=0.25 if many else 0.6,
                 color=colour_of(run["n"], tested),
                 marker=marker_of(run["n"], tested))
  for fall in document["falls"] if points else ():
    if (fall["Bp"], fall["n"]) in cells:  # not fitted
      ax.plot(*floats(fall, "C", "reward"), "x", ms=5, mew=1.2, lw=0,
              color=colour_of(fall["n"], tested))
  for c in curves:
    (C, R), end = floats(c, "C", "reward"), c["C_hi"]
    R_end, seen = np.interp(end, C, R), C <= end
    style = dict(color=colour_of(c["n"], tested), lw=1)
    ax.plot([*C[seen], end], [*R[seen], R_end], **style)
    ax.plot([end, *C[~seen]], [R_end, *R[~seen]], "--", **style)


def _label_ends(ax, document, curves, *, inches: float, columns: int):
  """Writes n beside the right end of each curve, without overlaps."""
  tested, edge = document["study"]["n"], ax.get_xlim()[1]
  value = lambda c: float(np.interp(edge, *floats(c, "C", "reward")))
  curves = sorted(curves, key=value)
  height = _in_axes(ax, [(edge, value(c)) for c in curves])[:, 1].clip(0, 1)
  for c, y0, y in zip(curves, height, spread(height, 0.14 / inches, 0, 1)):
    at = dict(clip_on=False, transform=ax.transAxes)
    style = dict(color=colour_of(c["n"], tested), **at)
    ax.plot([1, 1 + 0.03 * columns], [y0, y], lw=0.8, **style)
    ax.plot(1 + 0.035 * columns, y, marker_of(c["n"], tested), ms=4, **style)
    ax.text(1 + 0.05 * columns, y, f"n = {c['n']}", va="center", fontsize=7.5,
            **at)


def _draw_envelope(ax, document, *, columns: float = 1):
  """Draws the frontier, and above it a ribbon that names its leaders."""
  study, frontier = document["study"], document["frontier"]
  C, R, low, high = floats(frontier, "C", "reward", "low", "high")
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
  gap = columns * (0.0125 * max(len(name) for *_, name in labels) + 0.01)
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
  C_axis(ax, study, log=log, subs=subs)
  ax.set_xlim(start * 0.95 if log else -0.015 * C[-1],  # a point at 0 is whole
              C[-1] * (1.3 if log else 1.15))
  seen = np.concatenate(floats(document["frontier"], "low", "high") + [
      R[x >= start] for x, R in (
          floats(run, "C", "reward") for run in study["runs"])])
  low, high = np.nanmin(seen), np.nanmax(seen)
  pad = (high - low) or 0.1
  ax.set_ylim(low - 0.03 * pad, high + 0.12 * pad)
  if not place.colspan.start:
    ax.set_ylabel(f"reward, {metric_of(study, study['metric'])}")
  return ax


@styled
def reward(document: dict) -> Figure:
  """Returns reward against C with the envelope, and a panel per Bp."""
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


@styled
def reward_column(document: dict) -> Figure:
  """Returns the first panel of `reward`, one column wide."""
  study, C = document["study"], document["frontier"]["C"]
  figure = Figure((COLUMN, 2.8), layout="constrained")
  ax = _reward_axes(figure, figure.add_gridspec(1, 1)[0, 0], document,
                    subs=(1, 3) if C[-1] < 100 * C[0] else (1,))
  leaders = {(Bp, n) for _, _, Bp, n, _ in _stretches(document["frontier"])}
  joint = study["regime"] == "joint"
  shown = [c for c in document["curves"]
           if not joint or (c["Bp"], c["n"]) in leaders]
  _draw_curves(ax, document, shown, points=False)
  _draw_envelope(ax, document, columns=WIDE)
  if not joint:
    _label_ends(ax, document, shown, inches=2.0, columns=WIDE)
  return figure


@styled
def law_column(document: dict) -> Figure:
  """Returns n*(C) of `law`, one column wide and without its parameters."""
  study, frontier = document["study"], document["frontier"]
  figure = Figure((COLUMN, 3.1), layout="constrained")
  ax = figure.subplots()
  _draw_law(ax, document, "n", lambda n: n)
  if document["law"] is not None:
    _draw_middle(ax, document)
  C = frontier["C"]
  C_axis(ax, study, subs=(1, 3) if C[-1] < 100 * C[0] else (1,))
  ax.set_ylabel(f"n*({axis_of(study)[0]}), rollouts per problem")
  if not document["verdict"]["identified"]:
    ax.set_title("the law is NOT identified")
  ax.plot([], [], "o", color=GREY, label="best n tested")
  figure.legend(loc="outside lower left", ncols=2, fontsize=7)
  return figure


def _draw_middle(ax, document):
  """Draws C0, halfway between floor and ceiling, with its interval."""
  study, fitted, frontier = (document[k] for k in ("study", "law", "frontier"))
  x0 = fitted["M0" if fitted["kind"] == "fixed_batch" else "log10_C0"]
  halfway = 2 ** (fitted["b"] + fitted["L"] / 2)
  ends = [of_x0(study, x) for x in fitted["intervals"]["x0"]]
  held = np.clip(ends, frontier["C"][0], frontier["C"][-1])
  ax.plot(held, [halfway] * 2, color="C3", lw=2, zorder=4)
  for end, at, beyond in zip(ends, held, "<>"):  # arrow: beyond the axis
    ax.plot(at, halfway, "|" if end == at else beyond, color="C3", ms=9,
            zorder=4)
  ax.plot(of_x0(study, x0), halfway, "D", color="C3", mfc="white", ms=7,
          zorder=5)
  ax.plot([], [], "-D", color="C3", mfc="white",
          label=f"{axis_of(study)[0]}0, halfway in log2 n,\nwith its 95% "
          "interval")


def _draw_law(ax, document, key: str, of_n):
  """Draws the points of the frontier (hollow: not resolved), law and band."""
  study, frontier, fitted = (document[k] for k in ("study", "frontier", "law"))
  for C, y, n, known, sure in zip(
      *(frontier[k] for k in ("C", key, "n", "resolved", "agreeing"))):
    colour = colour_of(n, study["n"])
    ax.plot(C, y, marker_of(n, study["n"]), ms=5.5, zorder=3, mew=0.6,
            alpha=0.2 + 0.8 * sure, mec="white" if known else colour,
            mfc=colour if known else "white")
  ends = min(study[key]) / 2**0.7, max(study[key]) * 2**0.8
  if fitted is not None:
    C, n, low, high = floats(fitted, "C", "n", "low", "high")
    band = np.array([of_n(low), of_n(high)])
    cut = " (cut)" * bool(band.min() < ends[0] or band.max() > ends[1])
    seen = (C >= fitted["C_seen"][0]) & (C <= fitted["C_seen"][1])
    ax.fill_between(C, of_n(low), of_n(high), color="0.85", lw=0,
                    label=f"95% band of the law{cut}")
    ax.plot(C, of_n(n), "k--", lw=1)
    ax.plot(C[seen], of_n(n)[seen], "k-", lw=1.6, label="law")
  C_axis(ax, study)
  n_axis(ax, "y", study[key])
  ax.set_xlim(frontier["C"][0] / 1.1, frontier["C"][-1] * 1.1)
  ax.set_ylim(*ends)


@styled
def law(document: dict) -> Figure:
  """Returns n*(C) with the frontier; at a fixed batch also Bp*(M) = B / n*."""
  study, fitted, frontier = (document[k] for k in ("study", "law", "frontier"))
  tested, symbol = study["n"], axis_of(study)[0]
  two = study["regime"] == "fixed_B"
  figure = Figure((WIDTH, 7.2 if two else 4.6), layout="constrained")
  axes = figure.subplots(1 + two, 2, width_ratios=[1, 0.32], squeeze=False)
  (ax, side), told = axes[0], ["no law was fitted"]
  _draw_law(ax, document, "n", lambda n: n)
  if fitted is not None:
    _draw_middle(ax, document)
    told = ["the law is identified" if document["verdict"]["identified"] else
            "the law is NOT identified:\ndo not use it"]
    told += [f"{name}\n   {value}  {interval}".replace(" (bound", "\n   (bound")
             for name, value, interval in parameters(document)]
  ax.axhline(max(tested), color=GREY, lw=1)
  ax.annotate("largest n tested", (0, max(tested)), (4, 3), color="0.3",
              xycoords=("axes fraction", "data"), textcoords="offset points")
  ax.set_ylabel(f"n*({symbol}), rollouts per problem")
  ax.plot([], [], "o", color=GREY,
          label="best n tested, faint\nwhere draws disagree")
  if not all(frontier["resolved"]):
    ax.plot([], [], "o", color=GREY, mfc="white", label="best n, not resolved")
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
