"""The figures of the study: narrow enough for a phone, labels at the lines.

WIDTH inches are shown on 390 pixels: 9 points are then 12 pixels. One colour per
n, light to dark, which colour-blind readers can order. The only module of
isojax.study that imports matplotlib.
"""

import os

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from isojax.format import compact
from isojax.frontier import plots as axes_lib
from isojax.study import arms as arms_lib

WIDTH = 4.2  # inches
GREY = "0.4"
STYLE = axes_lib.STYLE | {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8}
styled = matplotlib.rc_context(STYLE)


def colour_of(n: int, tested) -> tuple:
  """Returns viridis over log2 n, dark enough for text on white."""
  low, high = np.log2(min(tested)), np.log2(max(tested))
  at = (np.log2(n) - low) / (high - low) if high > low else 0.5
  return matplotlib.colormaps["viridis"](0.8 * at)


def spread(y, gap: float) -> np.ndarray:
  """Returns positions at least `gap` apart, in the order of y and near it."""
  y = np.asarray(y, float)
  order = np.argsort(y, kind="stable")
  out = y[order].copy()
  for _ in range(200):
    moved = False
    for i in range(len(out) - 1):
      short = gap - (out[i + 1] - out[i])
      if short > 1e-9 * max(gap, 1e-9):
        out[i] -= short / 2
        out[i + 1] += short / 2
        moved = True
    if not moved:
      break
  back = np.empty_like(out)
  back[order] = out
  return back


def label_ends(ax, ends, tested, *, prefix: str = "") -> None:
  """Writes n at the right end of each line, without overlap.

  Args:
    ends: (n, y of the line at its end).
    tested: all n, for the colours.
    prefix: of the first label from the top.
  """
  if not ends:
    return
  low, high = ax.get_ylim()
  y = spread([y for _, y in ends], 0.052 * (high - low))
  top = int(np.argmax(y))
  for i, ((n, at), place) in enumerate(zip(ends, y)):
    ax.annotate(
        f"{prefix if i == top else ''}{n}", xy=(1.0, at), xytext=(1.03, place),
        xycoords=("axes fraction", "data"), textcoords=("axes fraction",
                                                        "data"),
        va="center", color=colour_of(n, tested), fontweight="bold",
        annotation_clip=False,
        arrowprops=dict(arrowstyle="-", lw=0.5, shrinkA=0, shrinkB=0,
                        color=colour_of(n, tested)))


def _axes(height: float, panels: int = 1, **more):
  figure = Figure((WIDTH, height), layout="constrained")
  return figure, figure.subplots(panels, 1, **more)


def _study(found: dict) -> dict:
  return found["fit"]["study"]


def _compute(ax, found: dict, start: float) -> None:
  axes_lib.C_axis(ax, _study(found), subs=(1, 2, 5) if start > 2e4 else (1, 3))
  ax.set_xlim(left=start)


def _means(found: dict) -> dict:
  """Returns n -> (C, mean, least, most over seeds) where all seeds are."""
  out = {}
  for n in _study(found)["n"]:
    runs = [r for r in found["evaluations"] if r["n"] == n]
    C = sorted(set.intersection(*(set(r["C"]) for r in runs)))
    value = np.array([[r["reward"][r["C"].index(c)] for c in C] for r in runs])
    out[n] = (np.array(C), value.mean(0), value.min(0), value.max(0))
  return out


def _start(found: dict) -> float:
  """Returns the first C of the horizontal axes."""
  return 0.8 * min(c for r in found["evaluations"] for c in r["C"] if c > 0)


@styled
def reward(found: dict) -> Figure:
  """Returns the mean reward of each n over C, with the range of the seeds."""
  tested = _study(found)["n"]
  figure, ax = _axes(4.2)
  ends = []
  for n, (C, mean, low, high) in _means(found).items():
    colour, seen = colour_of(n, tested), C > 0
    ax.errorbar(C[seen], mean[seen], np.stack([mean - low, high - mean])[
        :, seen], color=colour, lw=1.5, elinewidth=0.8, capsize=0, ms=3.5,
                marker=axes_lib.marker_of(n, tested))
    ends.append((n, mean[-1]))
  base = np.mean([r["reward"][0] for r in found["evaluations"]])
  ax.axhline(base, color=GREY, lw=0.8, ls=":")
  _compute(ax, found, _start(found))
  ax.annotate("before training", (0.99, base), (0, 2), ha="right", color=GREY,
              xycoords=("axes fraction", "data"), fontsize=8,
              textcoords="offset points")
  ax.set_ylabel(f"reward, avg@{_study(found)['k']}")
  ax.set_title("Mean reward by rollouts per problem n\n"
               "bars: range of the seeds")
  label_ends(ax, ends, tested, prefix="n = ")
  return figure


def _predictions(found: dict) -> list[dict]:
  return found["prediction"]["found"]["predicted"] if found["prediction"] else []


@styled
def frontier(found: dict) -> Figure:
  """Returns the best reward at each C, coloured by the n that leads."""
  tested, f = _study(found)["n"], found["fit"]["frontier"]
  C, R, low, high = axes_lib.floats(f, "C", "reward", "low", "high")
  figure, ax = _axes(3.8)
  ax.fill_between(C, low, high, color="0.88", lw=0)
  ns, begin, below = f["n"], 0, True  # the first label is not on the axis
  for i in range(1, len(ns) + 1):
    if i < len(ns) and ns[i] == ns[begin]:
      continue
    colour = colour_of(ns[begin], tested)
    ax.plot(C[begin:i + 1], R[begin:i + 1], lw=4, color=colour,
            solid_capstyle="butt")
    middle = (begin + i - 1) // 2
    ax.annotate(f"n = {ns[begin]}", (C[middle], R[middle]),
                (7, -11) if below else (-6, 7), ha="left" if below else "right",
                textcoords="offset points", color=colour, fontweight="bold")
    begin, below = i, not below
  for each in _predictions(found):
    ends = each["interval"]
    ax.errorbar(each["C"], each["reward"], [[each["reward"] - ends[0]],
                                            [ends[1] - each["reward"]]],
                fmt="D", mfc="white", color="C3", ms=6, capsize=3, zorder=5)
    ax.annotate(f"{each['n']}", (each["C"], ends[0]), (0, -11), ha="center",
                color="C3", textcoords="offset points", fontsize=8)
  ax.margins(y=0.12)
  _compute(ax, found, _start(found))
  if _predictions(found):
    ax.plot([], [], "D", mfc="white", color="C3",
            label="predicted before,\nwith its n")
    ax.legend(loc="lower right")
    ax.set_xlim(right=1.6 * max(p["C"] for p in _predictions(found)))
  ax.set_ylabel(f"best reward, avg@{_study(found)['k']}")
  ax.set_title("Frontier: the best n at each budget\ngrey: 95 % interval")
  return figure


@styled
def best_n(found: dict) -> Figure:
  """Returns n*(C): the n that leads, its interval, the law, the prediction."""
  tested, f, fitted = _study(found)["n"], found["fit"]["frontier"], found[
      "fit"]["law"]
  C, n, low, high = axes_lib.floats(f, "C", "n", "n_low", "n_high")
  known = np.array(f["resolved"], bool)
  figure, ax = _axes(3.6)
  ax.fill_between(C, low, high, color="0.88", lw=0, step="mid")
  for at, value, sure in zip(C, n, known):
    colour = colour_of(value, tested)
    ax.plot(at, value, axes_lib.marker_of(value, tested), ms=5, mec=colour,
            mfc=colour if sure else "white")
  if fitted is not None and found["fit"]["verdict"]["identified"]:
    ax.plot(*axes_lib.floats(fitted, "C", "n"), "k-", lw=1.2)
    ax.annotate("law", (fitted["C"][-1], fitted["n"][-1]), (-4, -11),
                ha="right", textcoords="offset points")
  for each in _predictions(found):
    ends = each["n_interval"]
    ax.errorbar(each["C"], each["n"], [[each["n"] - ends[0]],
                                       [ends[1] - each["n"]]], fmt="D",
                mfc="none", color="C3", ms=8, capsize=3, zorder=5)
  if _predictions(found):
    ax.plot([], [], "D", mfc="none", color="C3", label="predicted before")
    ax.legend(loc="upper left")
  _compute(ax, found, _start(found))
  axes_lib.n_axis(ax, "y", tested)
  ax.set_ylim(tested[0] / 1.5, tested[-1] * 1.5)
  ax.set_ylabel("best n, rollouts per problem")
  ax.set_title("n*(C)\ngrey: 95 % interval; hollow: not resolved")
  return figure


@styled
def leaders(found: dict) -> Figure | None:
  """Returns the n with the best policy in each window; None without windows.

  The area of a circle is the share of the bootstrap samples in which its n
  leads.
  """
  if not found["leaders"]:
    return None
  rows = found["leaders"]["windows"]
  tested = [each["n"] for each in rows[0]["by_n"]]
  figure, ax = _axes(3.6)
  C = [(row["low"] * row["high"])**0.5 for row in rows]
  ax.plot(C, [row["n"] for row in rows], color=GREY, lw=1.2, zorder=1)
  for at, row in zip(C, rows):
    for n, share in row["share"].items():
      if share >= 0.025:
        ax.scatter(at, int(n), s=260 * share, lw=0, zorder=2,
                   color=colour_of(int(n), tested))
  axes_lib.C_axis(ax, {"axis": "rollouts"}, subs=(1, 3))
  axes_lib.n_axis(ax, "y", tested)
  ax.set_ylim(tested[0] / 1.5, tested[-1] * 1.5)
  ax.set_ylabel("best n, rollouts per problem")
  factor, (low, high) = found["leaders"]["trend"]["factor"], found["leaders"][
      "trend"]["interval"]
  ax.set_title(f"The n of the best policy: times {factor:.2g} [{low:.2g}, "
               f"{high:.2g}]\nfor ten times the C. Area: share of the bootstrap")
  return figure


@styled
def metrics(found: dict) -> Figure:
  """Returns avg, best@k and worst@k over n at the end, with intervals."""
  rows, k = found["by_n"], _study(found)["k"]
  tested = [row["n"] for row in rows]
  figure, panels = _axes(5.2, 3, sharex=True)
  for ax, name in zip(panels, ("avg", "best", "worst")):
    for row in rows:
      value = row[name]
      ends = value["interval"]
      ax.errorbar(row["n"], value["mean"],
                  [[max(value["mean"] - ends[0], 0)],
                   [max(ends[1] - value["mean"], 0)]],
                  fmt=axes_lib.marker_of(row["n"], tested), capsize=3, ms=5,
                  color=colour_of(row["n"], tested))
    ax.plot(tested, [row[name]["mean"] for row in rows], color="0.8", lw=1,
            zorder=0)
    ax.set_title({"avg": f"avg@{k}: mean", "best": f"best@{k}: at least one right",
                  "worst": f"worst@{k}: all right"}[name])
    ax.set_ylabel("reward")
  axes_lib.n_axis(panels[-1], "x", tested)
  panels[-1].set_xlabel("n, rollouts per problem")
  figure.suptitle(f"At C = {compact(found['end'])}, with 95 % intervals",
                  fontsize=9, x=0.01, ha="left")
  return figure


@styled
def mechanisms(found: dict) -> Figure:
  """Returns the share of groups without a gradient and the entropy over C."""
  tested = _study(found)["n"]
  figure, panels = _axes(5.4, 2, sharex=True)
  for ax, title, value in (
      (panels[0], "Groups of equal rewards (no gradient)",
       lambda u: np.array(u["all_wrong"], float) + np.array(
           u["all_right"], float)),
      (panels[1], "Entropy, nats per token",
       lambda u: np.array(u["entropy"], float))):
    ends = []
    for n in tested:
      runs = [u for u in found["updates"] if u["n"] == n and u["rollouts"]]
      if not runs:
        continue
      x = np.geomspace(max(u["rollouts"][0] for u in runs),
                       min(u["rollouts"][-1] for u in runs), 40)
      y = np.mean([np.interp(np.log(x), np.log(u["rollouts"]), value(u))
                   for u in runs], axis=0)
      ax.plot(x, y, color=colour_of(n, tested), lw=1.5)
      ends.append((n, y[-1]))
    ax.set_title(title)
    ax.set_ylim(bottom=0)
    label_ends(ax, ends, tested, prefix="n = ")
  _compute(panels[1], found, _start(found))
  return figure


@styled
def arms(found: dict) -> Figure:
  """Returns avg at C of every arm, with its interval, from the top down."""
  rows = found["rows"]
  tested = sorted({row["n"] for row in rows if row["n"]})
  figure, ax = _axes(1.2 + 0.24 * len(rows))
  for i, row in enumerate(rows):
    value, (low, high) = row["avg"]["mean"], row["avg"]["interval"]
    n = row["n"]
    ax.errorbar(value, -i, xerr=[[max(value - low, 0)], [max(high - value, 0)]],
                fmt=axes_lib.marker_of(n, tested) if n else "*", capsize=3,
                color=colour_of(n, tested) if n else "C3", ms=5 if n else 8)
  for base in (row for row in rows if row["arm"] == found["baseline"]):
    beside = [i for i, row in enumerate(rows) if row["n"] == base["n"]]
    if any(rows[i]["gain"] for i in beside):
      ax.vlines(base["avg"]["mean"], -beside[-1] - 0.4, 0.4 - beside[0],
                color=GREY, lw=0.8, ls=":")
  ax.set_yticks([-i for i in range(len(rows))], [
      ", ".join(filter(None, (arms_lib.name_of(found, row),
                              row["n"] and f"n = {row['n']}")))
      for row in rows])
  ax.tick_params(axis="y", length=0)
  ax.set_xlabel(f"avg@{found['k']} at C = {compact(found['protocol']['C'])}, "
                "95 % interval")
  return figure


@styled
def falls(found: dict) -> Figure | None:
  """Returns the mean reward over C if an arm falls; names the steadiest one."""
  if not arms_lib.falls(found):
    return None
  figure, ax = _axes(2.8)
  steady = max(found["rows"], key=lambda row: (
      row["lowest"]["low"] / row["lowest"]["best"]))
  for row in found["rows"]:
    C, reward_ = row["lowest"]["curve"]
    base = row["arm"] == found["baseline"]
    named = base or row is steady
    colour = "black" if base else "C0" if named else GREY
    ax.plot(C[1:], reward_[1:], color=colour, lw=1.8 if named else 0.6,
            zorder=2 if named else 1)
    if named:
      ax.annotate(arms_lib.name_of(found, row), xy=(1.0, reward_[-1]),
                  xytext=(1.02, reward_[-1]), xycoords=("axes fraction", "data"),
                  textcoords=("axes fraction", "data"), va="center",
                  color=colour, fontweight="bold", annotation_clip=False)
  axes_lib.C_axis(ax, {"axis": "rollouts"}, subs=(1, 3))
  ax.set_ylim(bottom=0.0)
  ax.set_ylabel(f"avg@{found['k']}, mean over seeds")
  return figure


ARMS = {"arms": arms, "falls": falls, "leaders": leaders}
LAW = {"reward": reward, "frontier": frontier, "best-n": best_n,
           "leaders": leaders, "metrics": metrics, "mechanisms": mechanisms}


def save(found: dict, folder: str, drawn: dict) -> list[str]:
  """Writes PART-NAME.svg and .png of each figure; returns the names.

  Args:
    found: the results of a part.
    folder: of the files.
    drawn: name -> function of the results that returns a figure, or None.
  """
  names = []
  with matplotlib.rc_context(STYLE):
    for name, draw in drawn.items():
      figure = draw(found)
      if figure is None:
        continue
      path = os.path.join(folder, f"{found['part']}-{name}")
      figure.savefig(path + ".svg", metadata={"Date": None})
      figure.savefig(path + ".png", dpi=190,
                     metadata={"Software": None})
      names.append(f"{found['part']}-{name}")
  return names
