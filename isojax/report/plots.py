"""Figures of a parsed fit.json, of one run and of a comparison.

In the figures of one fit.json an n has the same colour and marker.
"""

import io
import math
import os

import numpy as np

from isojax.core.format import compact
from isojax.diagnosis.symptoms import column, RunLog
from isojax.errors import InputError
from isojax.logs.fields import TRAINING
from isojax.logs.series import PART
from isojax.report.labels import axis_of, metric_of

try:
  import matplotlib
  from matplotlib import figure as figure_lib
  from matplotlib.patheffects import withStroke
  from matplotlib.ticker import LogLocator, NullFormatter
except ImportError as error:
  raise InputError(
      "figures need the extra: pip install -e '.[plot]'") from error

WIDTH = 8.0  # inches, of a page of the report
DPI = 150  # 1200 px of WIDTH
PALETTE = "plasma"  # for colour-blind readers too; its luminance only rises
LIGHTEST = 0.63  # of PALETTE: contrast of at least 3 with white (WCAG 1.4.11)
# The metadata of each file format, without dates.
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


class Figure(figure_lib.Figure):
  """A figure that a notebook shows without pyplot."""

  def _repr_png_(self) -> bytes:
    content = io.BytesIO()
    self.savefig(content, format="png", dpi=100)
    return content.getvalue()


def colour_of(n: int, tested) -> tuple:
  """The colour of n on PALETTE, whose light end is left out, over log2 n."""
  low, high = math.log2(min(tested)), math.log2(max(tested))
  position = (math.log2(n) - low) / (high - low) if high > low else 0.5
  return matplotlib.colormaps[PALETTE](LIGHTEST * position)


def marker_of(n: int, tested) -> str:
  return MARKERS[sorted(tested).index(n) % len(MARKERS)]


def write(figure, out: str, name: str, formats=tuple(FORMATS)) -> list[str]:
  """Writes a figure in each format, with the same bytes each time."""
  paths = [os.path.join(out, f"{name}.{kind}") for kind in formats]
  for kind, path in zip(formats, paths):
    with matplotlib.rc_context(STYLE):
      figure.savefig(path, dpi=DPI, metadata=FORMATS[kind])
    figure.set_layout_engine("none")  # the first has laid it out, which is slow
  return paths


def floats(row: dict, *keys: str) -> list[np.ndarray]:
  """The lists under `keys` as arrays; null becomes NaN."""
  return [np.array(row[key], float) for key in keys]


def C_axis(ax, study: dict):
  ax.set_xscale("log")
  ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=30))
  ax.xaxis.set_minor_formatter(NullFormatter())
  ax.xaxis.set_major_formatter(compact)
  ax.set_xlabel("{}, {}".format(*axis_of(study)))


# ---- The frontier: reward against C, and the law n*(C)


def _stretches(frontier: dict) -> list[tuple]:
  """(first C, last C, Bp, n, resolved); the last three are equal in a stretch.

  If the leader changes, a stretch begins where the curves cross.
  """
  C, change = frontier["C"], frontier["change"]
  rows = list(zip(frontier["Bp"], frontier["n"], frontier["resolved"]))
  starts = [i for i, row in enumerate(rows) if i and row != rows[i - 1]]
  edges = [C[0], *(C[i] if change[i - 1] is None else change[i - 1]
                   for i in starts), C[-1]]
  return [(*edges[i:i + 2], *rows[start])
          for i, start in enumerate([0, *starts])]


def _draw_curves(ax, document, curves):
  """Draws measured points, and curves that are dashed beyond their data."""
  study = document["study"]
  cells = {(c["Bp"], c["n"]) for c in curves}
  # So many points would hide the curves.
  crowded = sum(len(run["C"]) for run in study["runs"]) > 600
  for run in study["runs"]:
    if (run["Bp"], run["n"]) in cells:
      (C, R), count = floats(run, "C", "reward"), run["fitted"]
      colour = colour_of(run["n"], study["n"])
      ax.scatter(C[:count], R[:count], s=9, lw=0, rasterized=True, color=colour,
                 marker=marker_of(run["n"], study["n"]),
                 alpha=0.25 if crowded else 0.6)
      ax.plot(C[count:], R[count:], "x", ms=5, mew=1.2, lw=0, color=colour)
  for curve in curves:
    (C, R), end, n = floats(curve, "C", "reward"), curve["C_hi"], curve["n"]
    R_end, seen = np.interp(end, C, R), C <= end
    style = dict(color=colour_of(n, study["n"]), lw=1)
    ax.plot([*C[seen], end], [*R[seen], R_end], **style)
    ax.plot([end, *C[~seen]], [R_end, *R[~seen]], "--", **style)
    ax.plot([], [], marker=marker_of(n, study["n"]), ms=4, **style,
            label=f"n = {n}" if study["regime"] == "fixed_Bp" else
            f"Bp = {curve['Bp']}, n = {n}")


def _draw_envelope(ax, document):
  """Draws the frontier in the colour of its leader, with its band."""
  study, frontier = document["study"], document["frontier"]
  C, R, low, high = floats(frontier, "C", "reward", "low", "high")
  if frontier["tied"]:
    ax.plot(C, R, color=GREY, lw=4)
    ax.set_title("no n differs")
    return
  leader = None
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
    if leader not in (None, (Bp, n)):
      ax.axvline(start, color=GREY, lw=0.6, ls=":", zorder=1)
      ax.plot(start, R_part[0], "o", mfc="white", mec="black", ms=5, zorder=5)
    leader = Bp, n
  ax.plot([], [], lw=4, color=GREY, label="frontier")
  if not all(frontier["resolved"]):
    ax.plot([], [], lw=4, ls=(0, (1.5, 1)), color=GREY, label="not comparable")


@styled
def reward(document: dict) -> Figure:
  """Reward against C with the envelope; if Bp varies, only curves that lead."""
  study, frontier = document["study"], document["frontier"]
  joint, C = study["regime"] == "joint", frontier["C"]
  leaders = {stretch[2:4] for stretch in _stretches(frontier)}
  figure = Figure((WIDTH, 4.6), layout="constrained")
  ax = figure.subplots()
  C_axis(ax, study)
  ax.set_xlim(C[0] * 0.95, max(1.3 * C[-1], *(
      1.05 * run["C"][-1] for run in study["runs"])))
  visible = np.concatenate(floats(frontier, "low", "high") + [
      R[x >= C[0]] for x, R in (
          floats(run, "C", "reward") for run in study["runs"])])
  low, high = np.nanmin(visible), np.nanmax(visible)
  pad = 0.03 * ((high - low) or 0.1)
  ax.set_ylim(low - pad, high + pad)
  metric = metric_of(study, study["metric"])
  ax.set_ylabel(metric if study["eval_set"] == TRAINING
                else f"reward, {metric}")
  _draw_curves(ax, document, [c for c in document["curves"]
                              if not joint or (c["Bp"], c["n"]) in leaders])
  _draw_envelope(ax, document)
  figure.legend(loc="outside right upper")
  return figure


@styled
def law(document: dict) -> Figure:
  """The law n*(C), and the best tested n: hollow where it is not comparable."""
  study, frontier, fitted = (document[k] for k in ("study", "frontier", "law"))
  figure = Figure((WIDTH, 4.6), layout="constrained")
  ax = figure.subplots()
  for C, n, resolved, agreeing in zip(
      *(frontier[k] for k in ("C", "n", "resolved", "agreeing"))):
    colour = colour_of(n, study["n"])
    ax.plot(C, n, marker_of(n, study["n"]), ms=5.5, zorder=3, mew=0.6,
            alpha=0.2 + 0.8 * agreeing, mec="white" if resolved else colour,
            mfc=colour if resolved else "white")
  ends = min(study["n"]) / 2**0.7, max(study["n"]) * 2**0.8
  C, n, low, high = floats(fitted, "C", "n", "low", "high")
  cut = " (cut)" if low.min() < ends[0] or high.max() > ends[1] else ""
  seen = (C >= fitted["C_seen"][0]) & (C <= fitted["C_seen"][1])
  ax.fill_between(C, low, high, color="0.85", lw=0,
                  label=f"95% band of the law{cut}")
  ax.plot(C, n, "k--", lw=1)
  ax.plot(C[seen], n[seen], "k-", lw=1.6, label="law")
  ax.plot([], [], "o", color=GREY,
          label="best n tested, faint where draws disagree")
  if not all(frontier["resolved"]):
    ax.plot([], [], "o", color=GREY, mfc="white",
            label="best n, not comparable")
  ax.axhline(max(study["n"]), color=GREY, lw=1)
  ax.annotate("largest n tested", (0, max(study["n"])), (4, 3), color="0.3",
              xycoords=("axes fraction", "data"), textcoords="offset points")
  C_axis(ax, study)
  ax.set_ylabel(f"n*({axis_of(study)[0]}), rollouts per problem")
  ax.set_yscale("log")
  ax.set_yticks(sorted(study["n"]), map(str, sorted(study["n"])))
  ax.set_yticks([], minor=True)
  ax.set_xlim(frontier["C"][0] / 1.1, frontier["C"][-1] * 1.1)
  ax.set_ylim(*ends)
  figure.legend(loc="outside lower center", ncols=2)
  return figure


FIGURES = {"reward": reward, "law": law}


def drawable(document: dict) -> list[str]:
  """The names of the figures that have data."""
  return ["reward", "law"] if document["verdict"]["identified"] else ["reward"]


def save(document: dict, out: str) -> list[str]:
  """Writes the figures that have data; returns their paths."""
  os.makedirs(out, exist_ok=True)
  return [path for name in drawable(document)
          for path in write(FIGURES[name](document), out, name)]


# ---- One run

METRICS = ("best", "maj", "avg", "worst")  # maj: of the majority's answer


@styled
def learning(evaluations: list[dict]) -> Figure:
  """Metrics of evaluations against rollouts, with standard errors.

  With eval.current also avg of the current policy, dashed. Parts of the reward
  have a separate axis.
  """
  parts = {name: [r for r in evaluations if name in (r["reward_parts"] or ())]
           for record in evaluations for name in record["reward_parts"] or ()}
  rows = 1 + bool(parts)
  figure = Figure((0.7 * WIDTH, 3.4 * rows), layout="constrained")
  ax, *below = figure.subplots(rows, sharex=True, squeeze=False)[:, 0]
  C = [r["rollouts"] for r in evaluations]
  for name in METRICS:
    ax.errorbar(C, [r[name] for r in evaluations],
                [r[f"{name}_se"] for r in evaluations], marker="o", ms=4,
                lw=2.2 if name == "avg" else 1.2, elinewidth=1,
                label=f"{name}@{evaluations[-1]['k']}")
  both = [r for r in evaluations if r["current"]]
  if both:
    ax.errorbar([r["rollouts"] for r in both],
                [r["current"]["avg"] for r in both],
                [r["current"]["avg_se"] for r in both],
                color=f"C{METRICS.index('avg')}", ls="--",
                elinewidth=1, label=f"avg@{both[-1]['k']}, current policy")
  ax.set_ylabel("share of the validation problems")
  for name, records in parts.items():
    below[0].plot([r["rollouts"] for r in records],
                  [r["reward_parts"][name] for r in records], "o-", ms=4,
                  label=name)
    below[0].set_ylabel("mean of each part of the reward")
  for axis in (ax, *below):
    axis.set_ylim(0, None)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
  axis.xaxis.set_major_formatter(compact)  # the lowest
  axis.set_xlabel("C, rollouts sampled in training")
  ax.set_title(f"{evaluations[-1]['eval_set']}, "
               f"{len(evaluations[-1]['correct'])} problems")
  return figure


SMOOTHED = 20  # steps of the thick line

# Title, field of a step, and whether 1 - the field is drawn.
PANELS = (("training reward", "reward", False),
          ("groups with a signal, share", "zero_std", True),
          ("entropy, nats a token", "entropy", False),
          ("response length, tokens", "response_length", False),
          ("cut off, share", "truncated", False),
          ("KL from the reference, nats a token", "kl", False))


@styled
def health(run: RunLog, findings=()) -> Figure:
  """Reward, groups with a signal, entropy, length, KL against rollouts.

  The steps of the findings are shaded, unless they are the whole run.
  """
  panels = [(title, {field: field}, inverse) for title, field, inverse in PANELS
            if column(run.train, field)]
  if parts := {name: match[1] or match[2] for line in run.train
               for name in line if (match := PART.fullmatch(name))}:
    panels.insert(1, ("parts of the reward", parts, False))
  count = len(panels) + bool(run.avg)
  rows = max(1, -(-count // 2))
  figure = Figure((WIDTH, 0.4 + 2.0 * rows), layout="constrained")
  axes = figure.subplots(rows, 2, sharex=True, squeeze=False).flat
  spent = np.cumsum(run.spent)
  for ax, (title, names, inverse) in zip(axes, panels):
    for i, (field, name) in enumerate(names.items()):
      logged = [bool(column([line], field)) for line in run.train]
      y = np.array(column(run.train, field))
      y = 1 - y if inverse else y
      width = min(SMOOTHED, len(y))
      ax.plot(spent[logged], y, lw=0.7, color=GREY, alpha=0.6)
      ax.plot(spent[logged][width - 1:], np.convolve(
          y, np.full(width, 1 / width), "valid"), lw=1.8, color=f"C{i}",
              label=name)
    if len(names) > 1:
      ax.legend()
    ax.set_title(title)
  if run.avg:
    ax = axes[len(panels)]
    ax.plot(np.interp([record["step"] for record in run.avg],
                      [0, *(line["step"] for line in run.train)], [0, *spent]),
            [record["avg"] for record in run.avg], "o-", ms=3, color="C3")
    ax.set_title("evaluation")
  spent_at = dict(zip([line["step"] for line in run.train], spent))
  for steps in {finding.steps for finding in findings}:
    first, last = (spent_at[step] for step in steps)
    if first > spent[0] or last < spent[-1]:
      for ax in axes[:count]:
        ax.axvspan(first, last, color="C3", alpha=0.07, lw=0)
  for ax in axes[count:]:
    ax.set_axis_off()
  for ax in axes[max(0, count - 2):count]:
    ax.xaxis.set_major_formatter(compact)
    ax.tick_params(labelbottom=True)
    ax.set_xlabel("rollouts" if max(run.spent) > 1 else "logged steps")
  return figure


# ---- Two recipes

@styled
def compare(document: dict) -> Figure:
  """Reward of two recipes against compute: runs thin, means thick, T dashed."""
  T = document["speedup"]["threshold"]
  figure = Figure((WIDTH, 4.4), layout="constrained")
  ax = figure.subplots()
  for key, colour, mark in (("baseline", "black", "o"), ("recipe", "C3", "s")):
    recipe = document[key]
    for reward_E in recipe["reward_of_runs"]:
      ax.plot(recipe["x"], reward_E, color=colour, lw=0.6, alpha=0.35)
    ax.plot(recipe["x"], recipe["reward"], marker=mark, ms=4, lw=1.8,
            color=colour, label=recipe["name"])
  ax.axhline(T, color=GREY, lw=1, ls="--", label=(
      f"T = {T:.4g}, {document['share']:g} of the baseline's highest mean"))
  ax.set_xlim(left=0)
  ax.xaxis.set_major_formatter(compact)
  ax.set_xlabel(document["axis"].replace("_", " "))
  ax.set_ylabel(f"reward, {document['metric']}")
  ax.legend(loc="lower right")
  return figure
