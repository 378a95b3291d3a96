"""Draws the histogram of a problem set (IsoCompute Playbook, figure 2)."""

import matplotlib
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every common kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False,
         "text.parse_math": False}  # a model may be named $x$


@matplotlib.rc_context(STYLE)
def histogram(path: str, problems: list[int], strata: list[tuple],
              title: str) -> None:
  """Writes a PNG of how many problems have 0 .. n of n samples correct.

  Args:
    path: of the PNG.
    problems: [n + 1].
    strata: (label, low, high) of avg@n, drawn as bars above the histogram.
    title: what was measured.
  """
  n = len(problems) - 1
  figure = Figure(figsize=(8, 3.6 + 0.25 * len(strata)), dpi=150,
                  layout="constrained")
  # Of no height without strata, which matplotlib would warn about.
  spans, axes = figure.subplots(
      2, sharex=True, height_ratios=(0.25 * len(strata), 3)) if strata else (
          None, figure.subplots())
  axes.bar(range(n + 1), problems, width=0.85, color="0.6")
  for count, number in enumerate(problems):
    axes.annotate(f"{number:,}", (count, number), (0, 2), ha="center",
                  textcoords="offset points", fontsize=7)
  step = -(-n // 32)
  axes.set_xticks(range(0, n + 1, step),
                  [f"{count}/{n}" for count in range(0, n + 1, step)],
                  fontsize=7)
  axes.set(xlabel=f"correct samples of {n}", ylabel="problems")
  for row, (label, low, high) in enumerate(strata):
    left = min(c for c in range(n + 1) if c / n >= low) - 0.42
    right = max(c for c in range(n + 1) if c / n <= high) + 0.42
    spans.barh(row, max(right - left, 0.1), 0.6, left,
               color=COLOURS[row % len(COLOURS)])
    inward = left < n / 2
    spans.annotate(label, (right if inward else left, row),
                   (4 if inward else -4, 0), textcoords="offset points",
                   ha="left" if inward else "right", va="center", fontsize=8)
  (axes if spans is None else spans).set_title(title)
  if spans is not None:
    spans.set_ylim(len(strata) - 0.5, -0.5)
    spans.axis("off")
  figure.savefig(path)
